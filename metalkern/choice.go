package metalkern

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Key names a choice that lowering has: a kernel, and the class of shapes that it
// meets. Classes are few and coarse, such as the format of a weight and the power
// of two above its rows, because each is tried and timed on its own.
//
// Rows of a step may be part of a class only where all variants give a row the
// same bits; a variant that sums in another order is chosen for all row counts at
// once, or decode and verify would disagree.
type Key struct {
	Kernel string
	Class  [8]uint32
}

// String is the key as files have it, such as "linear_rows 2 4 64 1": trailing
// zeros of the class are left out.
func (k Key) String() string {
	n := len(k.Class)
	for n > 0 && k.Class[n-1] == 0 {
		n--
	}
	var b strings.Builder
	b.WriteString(k.Kernel)
	for _, c := range k.Class[:n] {
		fmt.Fprintf(&b, " %d", c)
	}
	return b.String()
}

// MarshalText is String.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what String wrote.
func (k *Key) UnmarshalText(text []byte) error {
	words := strings.Fields(string(text))
	*k = Key{}
	if len(words) == 0 || len(words) > 1+len(k.Class) {
		return fmt.Errorf("%.60q is no key of a kernel's variants", text)
	}
	k.Kernel = words[0]
	for i, w := range words[1:] {
		n, err := strconv.ParseUint(w, 10, 32)
		if err != nil {
			return fmt.Errorf("%.60q is no key of a kernel's variants", text)
		}
		k.Class[i] = uint32(n)
	}
	return nil
}

// way is a variant, one way to run a kernel: a name for files and people, and numbers,
// such as the outputs of a threadgroup, of which lowering makes function constants
// and grids.
type way struct {
	Name   string
	Values [4]uint32
}

// variants lists the ways of each kernel that has more than one, the default
// first.
var variants = map[string][]way{}

// vary enters the variants of a kernel, the default first; lowering then asks
// pick for one. It is called when the package starts: var _ = vary(...).
func vary(kernel string, list ...way) struct{} {
	for i, v := range list {
		for _, o := range list[:i] {
			if o.Name == v.Name {
				panic("metalkern: two variants of " + kernel + " are called " + v.Name)
			}
		}
	}
	if _, twice := variants[kernel]; twice || len(list) == 0 {
		panic("metalkern: the variants of " + kernel + " are entered twice, or there are none")
	}
	variants[kernel] = list
	return struct{}{}
}

// choices says which variant each key gets.
type choices struct {
	chosen map[Key]int // index into variants; none: the default
	listen bool        // note in asked what is asked for
	asked  []Key       // each once
}

// pick returns the variant of a key: the chosen one, or the default.
func (l *lowerer) pick(k Key) way {
	list := variants[k.Kernel]
	c := l.choices
	if c == nil {
		return list[0]
	}
	if c.listen && !slices.Contains(c.asked, k) {
		c.asked = append(c.asked, k)
	}
	return list[c.chosen[k]]
}

// name is that of the variant which a key has now.
func (c *choices) name(k Key) string { return variants[k.Kernel][c.chosen[k]].Name }
