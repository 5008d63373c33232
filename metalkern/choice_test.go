package metalkern

import "testing"

// TestKeys: what files say of a key reads back as the key.
func TestKeys(t *testing.T) {
	for _, k := range []Key{{Kernel: "rope"}, {"linear_rows", [8]uint32{2, 0, 64}}, {"attention", [8]uint32{1, 2, 3, 4, 5, 6, 7, 8}}} {
		var back Key
		if err := back.UnmarshalText([]byte(k.String())); err != nil || back != k {
			t.Errorf("%v: %v, %v", k, back, err)
		}
	}
	for _, s := range []string{"", "x 1 2 3 4 5 6 7 8 9", "x -1", "x 4294967296", "x y"} {
		var k Key
		if err := k.UnmarshalText([]byte(s)); err == nil {
			t.Errorf("%q reads as %v", s, k)
		}
	}
}

// TestPick: the default, then what was chosen.
func TestPick(t *testing.T) {
	defer delete(variants, "a kernel")
	vary("a kernel", way{Name: "wide"}, way{Name: "narrow", Values: [4]uint32{2}})
	k := Key{Kernel: "a kernel", Class: [8]uint32{1}}
	c := &choices{chosen: map[Key]int{}}
	l := &lowerer{choices: c}
	if v := l.pick(k); v.Name != "wide" {
		t.Errorf("nothing chosen: %v", v)
	}
	c.chosen[k] = 1
	if v := l.pick(k); v.Name != "narrow" || l.pick(Key{Kernel: "a kernel"}).Name != "wide" {
		t.Errorf("chosen: %v", v)
	}
	if (&lowerer{}).pick(k).Name != "wide" {
		t.Error("a lowerer without choices takes no default")
	}
}
