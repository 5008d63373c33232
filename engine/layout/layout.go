package layout

import "fmt"

// DType is the type of one element.
type DType uint8

// Element types. F8E4M3 is the 8-bit float of the OCP FP8 specification, E8M0
// the power-of-two scale of the OCP microscaling (MX) specification.
const (
	Invalid DType = iota
	F32
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
	name string
	size int
}{{"invalid", 0}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"F64", 8}, {"I8", 1}, {"U8", 1}, {"I16", 2}, {"U16", 2},
	{"I32", 4}, {"U32", 4}, {"I64", 8}, {"U64", 8}, {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}}

// String returns the name that safetensors headers use.
func (t DType) String() string {
	if int(t) < len(dtypes) {
		return dtypes[t].name
	}
	return fmt.Sprintf("DType(%d)", uint8(t))
}

// Size returns the bytes of one element.
func (t DType) Size() int {
	if int(t) < len(dtypes) {
		return dtypes[t].size
	}
	return 0
}

// Scheme is how a weight is encoded.
type Scheme uint8

// Dense holds plain elements of Matrix.DType. Affine, MXFP4, MXFP8 and NVFP4
// are MLX's layouts (codes, scales and biases in separate tensors); the rest
// are GGUF block formats (everything interleaved in Matrix.Weight).
const (
	Dense Scheme = iota
	Affine
	MXFP4
	MXFP8
	NVFP4
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	IQ4_NL
	GGUFMXFP4
)

var schemes = [...]string{"dense", "affine", "mxfp4", "mxfp8", "nvfp4", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0",
	"Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "GGUF_MXFP4"}

func (s Scheme) String() string {
	if int(s) < len(schemes) {
		return schemes[s]
	}
	return fmt.Sprintf("Scheme(%d)", uint8(s))
}

// Matrix is a linear or embedding weight as stored: Rows x Cols, or Batch
// stacked matrices of that shape (mixture-of-experts, per-head maps). The bytes
// are usually mapped from a file: read-only, valid as long as the checkpoint.
type Matrix struct {
	Name        string
	Scheme      Scheme
	Batch       int // stacked matrices; 0 = one plain matrix
	Rows, Cols  int
	Bits, Group int   // codes and elements per scale; zero for Dense
	DType       DType // Dense: the elements; Affine: scales and biases
	Weight      []byte
	Scales      []byte
	Biases      []byte  // Affine only
	GlobalScale float32 // NVFP4: multiplies every value; 1 elsewhere
}
