package layout

import "sparkbar/engine/checkpoint"

// DType, Scheme and Matrix: see the aliased types.
type (
	DType  = checkpoint.DType
	Scheme = checkpoint.Scheme
	Matrix = checkpoint.Matrix
)

// Element types.
const (
	F32    = checkpoint.F32
	F16    = checkpoint.F16
	BF16   = checkpoint.BF16
	F64    = checkpoint.F64
	I8     = checkpoint.I8
	U8     = checkpoint.U8
	I16    = checkpoint.I16
	U16    = checkpoint.U16
	I32    = checkpoint.I32
	U32    = checkpoint.U32
	I64    = checkpoint.I64
	U64    = checkpoint.U64
	Bool   = checkpoint.Bool
	F8E4M3 = checkpoint.F8E4M3
	F8E5M2 = checkpoint.F8E5M2
	E8M0   = checkpoint.F8E8M0
)

// Schemes.
const (
	Dense     = checkpoint.Dense
	Affine    = checkpoint.Affine
	MXFP4     = checkpoint.MXFP4
	MXFP8     = checkpoint.MXFP8
	NVFP4     = checkpoint.NVFP4
	Q4_0      = checkpoint.Q4_0
	Q4_1      = checkpoint.Q4_1
	Q5_0      = checkpoint.Q5_0
	Q5_1      = checkpoint.Q5_1
	Q8_0      = checkpoint.Q8_0
	Q2_K      = checkpoint.Q2_K
	Q3_K      = checkpoint.Q3_K
	Q4_K      = checkpoint.Q4_K
	Q5_K      = checkpoint.Q5_K
	Q6_K      = checkpoint.Q6_K
	IQ4_NL    = checkpoint.IQ4_NL
	GGUFMXFP4 = checkpoint.GGUFMXFP4
)
