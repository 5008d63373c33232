package layout

import "fmt"

// DType is the type of one stored element.
type DType uint8

// Element types. E8M0 is an exponent-only scale. MLX stores 8-bit floats as U8.
const (
	F32 DType = iota + 1
	F16
	BF16
	F64
	I8
	U8
	I16
	U16
	I32
	U32
	I64
	U64
	Bool
	F8E4M3
	F8E5M2
	E8M0
)

var dtypes = [...]struct {
	name string // as safetensors spells it
	size int
}{
	F32: {"F32", 4}, F16: {"F16", 2}, BF16: {"BF16", 2}, F64: {"F64", 8},
	I8: {"I8", 1}, U8: {"U8", 1}, I16: {"I16", 2}, U16: {"U16", 2}, I32: {"I32", 4}, U32: {"U32", 4}, I64: {"I64", 8}, U64: {"U64", 8},
	Bool: {"BOOL", 1}, F8E4M3: {"F8_E4M3", 1}, F8E5M2: {"F8_E5M2", 1}, E8M0: {"F8_E8M0", 1},
}

// Size is the number of bytes of one element, 0 for the zero DType.
func (d DType) Size() int {
	if int(d) < len(dtypes) {
		return dtypes[d].size
	}
	return 0
}

// String is the safetensors spelling, such as "BF16".
func (d DType) String() string {
	if d > 0 && int(d) < len(dtypes) {
		return dtypes[d].name
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// ParseDType is the inverse of DType.String.
func ParseDType(s string) (DType, bool) {
	for d, t := range dtypes {
		if d > 0 && t.name == s {
			return DType(d), true
		}
	}
	return 0, false
}

// IsFloat reports whether d can be widened to float32 (exactly, except F64).
func (d DType) IsFloat() bool {
	switch d {
	case F32, F16, BF16, F64, F8E4M3, F8E5M2, E8M0:
		return true
	}
	return false
}
