package metalkern_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"sparkbar/metalkern"
	"sparkbar/metalkern/metaltest"
)

// languageVersion is the newest version of the Metal language that macOS 14
// compiles: the kernels may use nothing that came later.
const languageVersion = 3.1

// library is what the kernels use of the language and its library, with the
// version that brought it (Metal Shading Language Specification; feature tables).
var library = map[string]float64{
	"as_type": 1, "min": 1, "max": 1, "clamp": 1, "fma": 1, "fabs": 1, "floor": 1, "rint": 1, "sqrt": 1, "exp": 1, "log": 1, "tanh": 1, "sin": 1, "cos": 1, "isnan": 1,
	"function_constant": 1.2, "threadgroup_barrier": 1, "simdgroup_barrier": 2, "simd_sum": 2.1, "simd_min": 2.1, "simd_max": 2.1,
	"simdgroup_float8x8": 2.3, "make_filled_simdgroup_matrix": 2.3, "simdgroup_load": 2.3, "simdgroup_store": 2.3, "simdgroup_multiply_accumulate": 2.3, "simdgroup_multiply": 2.3,
	"buffer": 1, "threadgroup_position_in_grid": 1, "thread_index_in_threadgroup": 1, "thread_index_in_simdgroup": 2, "simdgroup_index_in_threadgroup": 2,
}

// words of the language itself, and types: no version is asked of them.
var words = strings.Fields("if else for while switch return sizeof float half int uint uchar ushort ulong bool void inline template constexpr constant device thread threadgroup kernel const struct case default _Pragma unroll")

var (
	comment    = regexp.MustCompile(`(?s)//[^\n]*|/\*.*?\*/`)
	called     = regexp.MustCompile(`\b([A-Za-z_]\w*)\s*(?:<[\w\s,()>?:]*>)?\(`)
	defined    = regexp.MustCompile(`(?m)^\s*(?:inline|kernel)\s[^\n(]*?\b(\w+)\(|#define (\w+)|^struct (\w+)`)
	attributes = regexp.MustCompile(`\[\[(\w+)`)
	banned     = regexp.MustCompile(`\b(double|long|auto|new|delete|goto|asm|static|virtual|try|throw|std|restrict|volatile|char|unsigned)\b`)
	literal    = regexp.MustCompile(`\d+\.\d*(?:e[+-]?\d+)?[^f\de]`)
)

// TestLanguage holds the sources to what Metal 3.1 has: every function and
// attribute that they use and do not define is in the table above, with a
// version that macOS 14 knows.
func TestLanguage(t *testing.T) {
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	if len(sources) < 6 {
		t.Fatalf("only %d kernel files", len(sources))
	}
	used := map[string]bool{}
	for _, s := range sources {
		text := comment.ReplaceAllString(s.Text, "")
		for _, m := range banned.FindAllString(text, -1) {
			t.Errorf("%s uses %q, which the kernels do without", s.Name, m)
		}
		for _, m := range literal.FindAllString(text, -1) {
			t.Errorf("%s: the literal %q has no f behind it", s.Name, m)
		}
		own := map[string]bool{"AT": true}
		for _, m := range defined.FindAllStringSubmatch(text, -1) {
			own[m[1]+m[2]+m[3]] = true
		}
		check := func(name string) {
			if own[name] || slices.Contains(words, name) {
				return
			}
			v, ok := library[name]
			switch {
			case !ok:
				t.Errorf("%s uses %s, which is not in the table of what Metal has", s.Name, name)
			case v > languageVersion:
				t.Errorf("%s uses %s of Metal %v; macOS 14 has %v", s.Name, name, v, languageVersion)
			}
			used[name] = true
		}
		for _, m := range called.FindAllStringSubmatch(text, -1) {
			check(m[1])
		}
		for _, m := range attributes.FindAllStringSubmatch(text, -1) {
			check(m[1])
		}
		if strings.Contains(text, "simdgroup_float8x8") {
			used["simdgroup_float8x8"] = true
		}
	}
	for name := range library {
		if !used[name] {
			t.Errorf("no kernel uses %s: take it out of the table", name)
		}
	}
}

// TestAddressSpaces compiles the kernels with real address spaces.
func TestAddressSpaces(t *testing.T) {
	metaltest.Need(t)
	sources, err := metalkern.Sources()
	if err != nil {
		t.Fatal(err)
	}
	if err := metaltest.CheckSpaces(sources); err != nil {
		t.Error(err)
	}
	for _, s := range sources { // and it does notice
		if s.Name == "rows.metal" {
			broken := strings.Replace(s.Text, "threadgroup float *shared [[threadgroup(0)]]", "device float *shared [[threadgroup(0)]]", 1)
			if broken == s.Text {
				t.Fatal("the text to break is gone")
			}
			if metaltest.CheckSpaces([]metalkern.Source{{Name: s.Name, Text: broken}}) == nil {
				t.Error("a device pointer passes for one to threadgroup memory")
			}
		}
	}
}
