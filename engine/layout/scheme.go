package layout

import (
	"fmt"
	"slices"
)

// Scheme says how the bytes of a Matrix encode its numbers.
type Scheme uint8

// Schemes. W is one logical element, g = its group along the row (column / Group). The zero Scheme is none and is refused
// wherever a Matrix is read, so that a forgotten field cannot pass for dense.
const (
	// Dense: Weight holds Batch*Rows*Cols elements of type DType.
	Dense Scheme = iota + 1
	// Affine (MLX): W = scale[g]*code + bias[g]. The codes of a row form one bit stream, least significant bit first:
	// code i starts at bit i*Bits of the row's bytes. Bits is 1, 2, 3, 4, 5, 6 or 8; Group 32, 64 or 128. Scales and
	// Biases hold [Batch, Rows, Cols/Group] elements of type DType.
	Affine
	// MXFP4: W = e2m1(code) * 2^(scale[g]-127), two codes a byte, low nibble first, Group 32, one scale byte a group.
	MXFP4
	// MXFP8: W = e4m3(code) * 2^(scale[g]-127), one code a byte, Group 32, one scale byte a group.
	MXFP8
	// NVFP4: W = e2m1(code) * e4m3(scale[g]) * GlobalScale, two codes a byte, low nibble first, Group 16.
	NVFP4
	// The GGUF block kinds: Weight holds each row as Cols/Group consecutive blocks of BlockBytes bytes with their
	// scales inside; Scales and Biases are nil. See blocks.go for the layout of each block.
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

var schemes = [...]struct {
	name         string
	block, bytes int // GGUF: elements and bytes of a block; MX and NVFP4: columns per scale and 0
	bits         int // bits of one code; 0: dense, or chosen by the matrix
}{
	Dense: {name: "dense"}, Affine: {name: "affine"},
	MXFP4: {"mxfp4", 32, 0, 4}, MXFP8: {"mxfp8", 32, 0, 8}, NVFP4: {"nvfp4", 16, 0, 4},
	Q4_0: {"Q4_0", 32, 18, 4}, Q4_1: {"Q4_1", 32, 20, 4}, Q5_0: {"Q5_0", 32, 22, 5}, Q5_1: {"Q5_1", 32, 24, 5}, Q8_0: {"Q8_0", 32, 34, 8},
	Q2_K: {"Q2_K", 256, 84, 2}, Q3_K: {"Q3_K", 256, 110, 3}, Q4_K: {"Q4_K", 256, 144, 4}, Q5_K: {"Q5_K", 256, 176, 5}, Q6_K: {"Q6_K", 256, 210, 6},
	IQ4_NL: {"IQ4_NL", 32, 18, 4}, GGUFMXFP4: {"gguf-mxfp4", 32, 17, 4},
}

// String is the name the formats themselves use, such as "affine" or "Q4_K".
func (s Scheme) String() string {
	if s > 0 && int(s) < len(schemes) {
		return schemes[s].name
	}
	return fmt.Sprintf("Scheme(%d)", uint8(s))
}

// IsBlock reports whether s is one of the GGUF block kinds.
func (s Scheme) IsBlock() bool { return s >= Q4_0 && s <= GGUFMXFP4 }

// BlockSize is the number of elements of one GGUF block (32 or 256), 0 for other schemes.
func (s Scheme) BlockSize() int {
	if s.IsBlock() {
		return schemes[s].block
	}
	return 0
}

// BlockBytes is the number of bytes of one GGUF block, 0 for other schemes.
func (s Scheme) BlockBytes() int {
	if s.IsBlock() {
		return schemes[s].bytes
	}
	return 0
}

// CodeBits is the number of bits of one code where the scheme alone decides it, 0 for Dense and Affine.
func (s Scheme) CodeBits() int {
	if int(s) < len(schemes) {
		return schemes[s].bits
	}
	return 0
}

// Check refuses a scheme that does not exist and one that does not come with codes of so many bits in groups of so many
// columns. Dense weights have neither, and the two numbers are not looked at.
func (s Scheme) Check(bits, group int) error {
	switch {
	case s == 0 || int(s) >= len(schemes):
		return fmt.Errorf("%s is no weight format", s)
	case s == Dense:
		return nil
	case s == Affine && !slices.Contains([]int{1, 2, 3, 4, 5, 6, 8}, bits):
		return fmt.Errorf("affine quantization with %d bits does not exist; the choices are 1, 2, 3, 4, 5, 6 and 8", bits)
	case s == Affine && !slices.Contains([]int{32, 64, 128}, group):
		return fmt.Errorf("affine quantization with groups of %d does not exist; the choices are 32, 64 and 128", group)
	case s == Affine:
		return nil
	case group != schemes[s].block:
		return fmt.Errorf("%s quantization has groups of %d, not %d", s, schemes[s].block, group)
	case bits != schemes[s].bits:
		return fmt.Errorf("%s quantization has %d bits, not %d", s, schemes[s].bits, bits)
	}
	return nil
}
