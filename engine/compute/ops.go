package compute

import (
	"errors"
	"fmt"

	"sparkbar/engine/layout"
)

// Activations are F32 views [rows, cols] unless stated; where a backend keeps
// activations in halves (Activations), F16 or BF16 ones too, each view of an op
// its own: ops work in float32 and round a result once, when it is stored. What is
// marked F32 is F32 always. Views marked optional may be the zero View. An op may
// write in place (Out == X) where noted.

// Act is an elementwise activation, the epilogue of a Linear. The gated ones
// combine a gate g and an up value u.
type Act uint8

// The activations. silu(z) = z*sigmoid(z); GeGLU uses the tanh form of GELU;
// ClampedSwiGLU (gpt-oss): g = min(g, Limit), u = clip(u, -Limit, Limit),
// (u+1) * g*sigmoid(Alpha*g) with Limit 7 and Alpha 1.702.
const (
	ActNone Act = iota
	ActSiLU
	ActReLU2 // max(z,0)^2
	ActGELU  // tanh form
	ActSigmoid
	ActSwiGLU // silu(g)*u
	ActGeGLU  // gelu_tanh(g)*u
	ActClampedSwiGLU
)

// Gated reports whether a combines two matrices.
func (a Act) Gated() bool { return a >= ActSwiGLU }

// SwiGLULimit and SwiGLUAlpha are the constants of ActClampedSwiGLU.
const (
	SwiGLULimit = 7
	SwiGLUAlpha = 1.702
)

// Weight is a matrix that a backend has taken over by Backend.Load.
type Weight struct {
	layout.Matrix
	Handle any // the backend's own form
	// Repacked says that the handle is a copy: the matrix' own bytes must stay
	// valid, but are read seldom, so the system may have their memory.
	Repacked bool
}

// Embed gathers rows of a weight: Out[r] = Scale * W[IDs[r]]. An id outside
// the table gives a zero row.
type Embed struct {
	IDs   View // I32 [1,N]
	W     *Weight
	Scale float32
	Out   View // [N, W.Cols]
}

// NormKind selects the statistic of a Norm.
type NormKind uint8

// RMS: x / sqrt(mean(x^2) + Eps). L2: x / sqrt(sum(x^2) + Eps).
const (
	RMS NormKind = iota
	L2
)

// GatePlace says where a Norm's silu gate applies.
type GatePlace uint8

// GateBefore: the norm of x*silu(gate); GateAfter: norm(x)*silu(gate).
const (
	GateNone GatePlace = iota
	GateBefore
	GateAfter
)

// Norm normalises each slice of Group elements of each row (0 = the whole row),
// multiplies by Scale and by (Offset + weight). W is as wide as a slice (shared
// by all slices) or as the row; not given = no weight. May write in place.
type Norm struct {
	X, Out View
	W      View // F32 [1, Group or Cols], optional
	Kind   NormKind
	Eps    float32
	Scale  float32 // 1 = none
	Offset float32 // 0, or 1 for centred weights
	Group  int
	Gate   View // as X, optional
	Place  GatePlace
}

// Adapter is a low-rank addition to a Linear, y += Scale * B(A x); with Mag
// (DoRA) the sum of both is rescaled per output by Mag (already divided by the
// norm of the merged row), before the bias.
type Adapter struct {
	A, B  *Weight // dense [rank, in], [out, rank]
	Scale float32
	Mag   View // F32 [1,out], optional
}

// Linear is Out = Residual + Scale * act(X W^T + Bias), or with a gated Act
// Out = Residual + Scale * act(X W^T + Bias, X Up^T + UpBias). Residual may be Out.
// K is accumulated in the same order for every row, whatever N is.
type Linear struct {
	X            View // [N, in]
	W, Up        *Weight
	Bias, UpBias View // F32 [1,out], optional
	Adapter      *Adapter
	UpAdapter    *Adapter
	Act          Act
	Scale        float32 // 1 = none
	Residual     View    // [N,out], optional
	Out          View    // [N,out]
	Prefill      int     // rows from here on may use prefill kernels (Rows.Prefill); N or more = none
}

// HeadLinear applies one small matrix per head: for head h,
// Out[r, h*rows:] = W[h] X[r, h*cols:].
type HeadLinear struct {
	X   View    // [N, heads*W.Cols]
	W   *Weight // Batch = heads
	Out View    // [N, heads*W.Rows]
}

// RoPE rotates, in place, the first 2*Freq.Cols dimensions of each head of X by
// the angle Pos*Freq[i], after multiplying them by Mul. Pairs are (i, i+Freq.Cols)
// or, Interleaved, (2i, 2i+1). A zero frequency leaves its pair unturned
// (proportional rope). With QBeta > 0 all dimensions of the head are then
// multiplied by 1 + QBeta*ln(1+floor(Pos/QOrig)).
type RoPE struct {
	X           View // [N, heads*HeadDim]
	Pos         View // I32 [1,N]
	Freq        View // F32 [1,D/2] radians per position
	HeadDim     int
	Interleaved bool
	Mul         float32 // 1 = none
	QBeta       float32
	QOrig       int
}

// KVWrite stores rows of K and V at their positions: row r goes to the page
// that Table names for segment Of[r], block Pos[r]/PageSize. A dropped page (-1)
// skips the row, as do a segment, position or page outside the table or cache.
// Elements round to nearest even; quantized groups follow MLX's affine
// quantization to the bit.
type KVWrite struct {
	K, V  View // [N, Heads*KDim], [N, Heads*VDim] (V not given with VInK)
	KV    KV
	Rows  Rows
	Pages Pages // Table only
}

// Attention is softmax(Scale * q k^T) v over the visible positions [Lo, Hi) of
// each row, in float32, query head h reading KV head h*KV.Heads/Heads. SoftCap c > 0
// replaces scores s by c*tanh(s/c). Sinks add exp(sink_h) to the denominator.
// Positions in dropped pages, and all that lies outside the table or the cache,
// are not seen. A row that sees nothing gives zeros. Work goes page by page; partial results
// merge in page order.
type Attention struct {
	Q       View // [N, Heads*KDim]
	KV      KV
	Rows    Rows
	Pages   Pages
	Heads   int
	Scale   float32
	SoftCap float32
	Sinks   View // F32 [1,Heads], optional
	Out     View // [N, Heads*VDim]
}

// RouteKind is how a mixture-of-experts router turns logits into weights.
type RouteKind uint8

// SoftmaxAll: softmax over all experts, then the TopK largest. SoftmaxTop: the
// TopK largest logits, softmax over those. SigmoidTop: sigmoid scores; Bias is
// added for choosing only.
const (
	SoftmaxAll RouteKind = iota
	SoftmaxTop
	SigmoidTop
)

// MoERoute picks TopK experts per row, best first, ties to the lower index.
// With Groups > 1, experts are split into groups, a group scores the sum of its
// two best biased scores, and the biased scores of all but the best TopGroups
// groups are set to 0 before choosing. Weights are divided by (sum + NormEps)
// with Normalize, then multiplied by Scale and by PerExpert of the expert.
type MoERoute struct {
	Logits            View // [N, experts]
	Bias              View // F32 [1,experts], optional
	Kind              RouteKind
	TopK              int
	Groups, TopGroups int
	Normalize         bool
	NormEps           float32
	Scale             float32 // 1 = none
	PerExpert         View    // F32 [1,experts], optional
	IDs               View    // I32 [N, TopK]
	Weights           View    // [N, TopK]
}

// MoELinear applies, for each row r and choice j, the expert IDs[r,j] of the
// stacked weight W: like Linear with a row per (r,j). X has N rows (shared by the
// choices of a row) or N*TopK rows. An id outside the stack gives a zero row.
type MoELinear struct {
	X            View
	IDs          View    // I32 [N, TopK]
	W, Up        *Weight // Batch = experts
	Bias, UpBias View    // F32 [experts, out], optional
	Act          Act
	Out          View // [N*TopK, out]
	Prefill      int  // rows of IDs from here on may use prefill kernels, as in Linear
}

// MoECombine is Out[r] = Residual[r] + Scale*(sum_j Weights[r,j] * X[r*TopK+j]
// + Shared[r] * sigmoid(SharedGate[r])); j ascends.
type MoECombine struct {
	X          View // [N*TopK, out]
	Weights    View // [N, TopK]
	Shared     View // [N, out], optional
	SharedGate View // [N, 1], optional
	Scale      float32
	Residual   View // optional
	Out        View // [N, out]
}

// ShortConv is a causal depthwise convolution along each segment:
// Out[t,c] = act(Bias[c] + sum_j W[c,j] * x[t-K+1+j, c]), where inputs before
// the segment come from the state slot ([K-1, C], oldest first). Act is ActNone
// or ActSiLU. Log rows are the inputs X.
type ShortConv struct {
	X     View // [N, C]
	W     View // F32 [C, K]
	Bias  View // F32 [1,C], optional
	Act   Act
	State State // size (K-1)*C
	Rows  Rows
	Out   View // [N, C]
}

// GatedDelta is the gated delta rule. Per token and value head j (key head
// j*HeadsK/HeadsV): g = exp(-exp(ALog[j]) * softplus(A+DtBias[j])),
// beta = sigmoid(B); S = g S; d = beta (v - S k); S = S + d k^T; y = S q. Q and K come
// normalised and scaled. State slots hold S [HeadsV, DimV, DimK]. Log rows are
// [k | v | g | beta] (HeadsK*DimK + HeadsV*DimV + 2*HeadsV).
type GatedDelta struct {
	Q, K           View // [N, HeadsK*DimK]
	V              View // [N, HeadsV*DimV]
	A, B           View // [N, HeadsV]
	ALog, DtBias   View // F32 [1,HeadsV]
	HeadsK, HeadsV int
	DimK, DimV     int
	State          State
	Rows           Rows
	Out            View // [N, HeadsV*DimV]
}

// SSMScan is the Mamba-2 recurrence. Per token and head h (group h*Groups/Heads):
// dt = clip(softplus(Dt+DtBias), DtMin, DtMax); S = exp(-exp(ALog) dt) S + (dt x) B^T;
// y = S C + D x. State slots hold S [Heads, Dim, N]. Log rows are
// [x | B | dt] (Heads*Dim + Groups*StateDim + Heads), dt after clipping.
type SSMScan struct {
	X               View // [N, Heads*Dim]
	B, C            View // [N, Groups*StateDim]
	Dt              View // [N, Heads]
	ALog, D, DtBias View // F32 [1,Heads]
	Heads, Dim      int
	Groups          int
	StateDim        int
	DtMin, DtMax    float32
	State           State
	Rows            Rows
	Out             View // [N, Heads*Dim]
}

// StateCommit applies the first Keep[s] logged rows of segment s (as the rows
// lay in the program that logged them) to its state slot; the result equals, to
// the bit, a forward of only these rows. Exactly one of Conv, Delta, SSM is set:
// the op that logged, with its State, Rows and constants.
type StateCommit struct {
	Conv  *ShortConv
	Delta *GatedDelta
	SSM   *SSMScan
	Keep  View // I32 [1,Segments], 0 to the rows of the segment
}

// BinaryKind is an elementwise operation of two matrices.
type BinaryKind uint8

// BinAdd: A+B. BinMul: A*B. BinSigmoidMul: A*sigmoid(B). BinSiLUMul: A*silu(B).
const (
	BinAdd BinaryKind = iota
	BinMul
	BinSigmoidMul
	BinSiLUMul
)

// Binary is Out = Scale * (A kind B). B has as many rows as A or one row, and as
// many columns or one per head: with BGroup > 0 column c of A meets column c/BGroup of B. May write in place.
type Binary struct {
	Kind      BinaryKind
	A, B, Out View
	BGroup    int
	Scale     float32 // 1 = none
}

// UnaryKind is an elementwise operation of one matrix.
type UnaryKind uint8

// UnScale: V*x. UnSoftcap: V*tanh(x/V). UnSigmoid, UnSiLU.
const (
	UnScale UnaryKind = iota
	UnSoftcap
	UnSigmoid
	UnSiLU
)

// Unary is Out = kind(X) with constant V. May write in place.
type Unary struct {
	Kind   UnaryKind
	X, Out View
	V      float32
}

// CopyRows copies rows: Dst[i] = Src[Index[i]], or Src[i] without Index. An
// index outside Src gives a zero row. Both are I32, or both activations.
type CopyRows struct {
	Src, Dst View
	Index    View // I32 [1,Dst.Rows], optional
}

// Argmax writes the index of the largest element of each row; the lowest index
// wins ties; NaN never wins (a row of NaN gives 0).
type Argmax struct {
	X   View
	Out View // I32 [1,N] or [N,1]
}

// TopK writes the K largest elements of each row, best first, ties to the lower
// index; NaN comes after everything else.
type TopK struct {
	X    View
	IDs  View // I32 [N,K]
	Vals View // [N,K]
}

// LogSumExp writes ln(sum(exp(x))) of each row.
type LogSumExp struct {
	X   View
	Out View // [N,1]
}

// MapIDs turns draft-vocabulary ids into target ids: Out = IDs + Offset[IDs].
// Ids outside the table give 0. May write in place.
type MapIDs struct {
	IDs    View // I32 [1,N]
	Offset View // I32 [1,draft vocabulary]
	Out    View // I32 [1,N]
}

// BlockConv is DFlash 2's dynamic convolution inside draft blocks of Block rows:
// Out[t,c] = sum_j (Base[j,c] + P[t, j*(C/Group) + c/Group]) * X[t-j, c], with
// x before the block zero.
type BlockConv struct {
	X     View // [N, C]
	Base  View // F32 [taps, C]
	P     View // [N, taps*C/Group]
	Group int
	Block int
	Out   View // [N, C]; not X
}

// PairSelect is DFlash 2's candidate walk over blocks of Slots rows. For slot s
// with candidates c and predecessor p (the anchor for slot 0, else the pick of
// slot s-1): score[c] = Unary[s,c] + sum_r A[p][r] * H[s][r] * B[cand_c][r]. Greedy
// (no Uniform): the first largest. Sampled: row = softmax(score/Temperature), pick =
// min(count(u >= cumulative sum), K-1). An id outside A or B adds nothing.
type PairSelect struct {
	Unary       View // [N, K]
	Cand        View // I32 [N, K]
	Anchor      View // I32 [1, blocks]
	A, B        *Weight
	H           View // [N, r]
	Slots       int
	Uniform     View // [1, N], optional
	Temperature float32
	IDs         View // I32 [1, N]: picked token ids
	Probs       View // [N, K]: the row that was drawn from (greedy: the scores), optional
}

func (Embed) name() string       { return "Embed" }
func (Norm) name() string        { return "Norm" }
func (Linear) name() string      { return "Linear" }
func (HeadLinear) name() string  { return "HeadLinear" }
func (RoPE) name() string        { return "RoPE" }
func (KVWrite) name() string     { return "KVWrite" }
func (Attention) name() string   { return "Attention" }
func (MoERoute) name() string    { return "MoERoute" }
func (MoELinear) name() string   { return "MoELinear" }
func (MoECombine) name() string  { return "MoECombine" }
func (ShortConv) name() string   { return "ShortConv" }
func (GatedDelta) name() string  { return "GatedDelta" }
func (SSMScan) name() string     { return "SSMScan" }
func (StateCommit) name() string { return "StateCommit" }
func (Binary) name() string      { return "Binary" }
func (Unary) name() string       { return "Unary" }
func (CopyRows) name() string    { return "CopyRows" }
func (Argmax) name() string      { return "Argmax" }
func (TopK) name() string        { return "TopK" }
func (LogSumExp) name() string   { return "LogSumExp" }
func (MapIDs) name() string      { return "MapIDs" }
func (BlockConv) name() string   { return "BlockConv" }
func (PairSelect) name() string  { return "PairSelect" }

// shape reports what v is not: given, of type t, rows x cols (-1 = any).
func shape(what string, v View, t layout.DType, rows, cols int) error {
	if !v.Given() {
		return fmt.Errorf("%s is not given", what)
	}
	if v.Type != t || (rows >= 0 && v.Rows != rows) || (cols >= 0 && v.Cols != cols) {
		return fmt.Errorf("%s is %v %dx%d, wants %v %s", what, v.Type, v.Rows, v.Cols, t, dims(rows, cols))
	}
	if err := v.check(); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// activation is shape for a view of any type of floats.
func activation(what string, v View, rows, cols int) error {
	t := v.Type
	if t != layout.F16 && t != layout.BF16 {
		t = layout.F32
	}
	return shape(what, v, t, rows, cols)
}

func optionalActivation(what string, v View, rows, cols int) error {
	if !v.Given() {
		return nil
	}
	return activation(what, v, rows, cols)
}

func optional(what string, v View, t layout.DType, rows, cols int) error {
	if !v.Given() {
		return nil
	}
	return shape(what, v, t, rows, cols)
}

func dims(rows, cols int) string {
	one := func(n int) string {
		if n < 0 {
			return "any"
		}
		return fmt.Sprint(n)
	}
	return one(rows) + "x" + one(cols)
}

func weight(what string, w *Weight, batch, rows, cols int) error {
	if w == nil {
		return fmt.Errorf("%s is not given", what)
	}
	if (batch >= 0 && w.Batch != batch) || (rows >= 0 && w.Rows != rows) || (cols >= 0 && w.Cols != cols) {
		return fmt.Errorf("%s %s is %d x %dx%d, wants %s x %s", what, w.Name, w.Batch, w.Rows, w.Cols, dims(batch, -1), dims(rows, cols))
	}
	return nil
}

// check wants what state ops read of the rows, or what attention ops read.
func (r Rows) check(state bool) error {
	if state {
		return shape("Start", r.Start, layout.I32, 1, r.Segments+1)
	}
	return errors.Join(
		shape("Pos", r.Pos, layout.I32, 1, r.N),
		shape("Of", r.Of, layout.I32, 1, r.N))
}

func (o Embed) check() error {
	if err := weight("W", o.W, 0, -1, -1); err != nil {
		return err
	}
	n := o.IDs.Rows * o.IDs.Cols
	return errors.Join(shape("IDs", o.IDs, layout.I32, 1, n), activation("Out", o.Out, n, o.W.Cols))
}

func (o Norm) check() error {
	g := o.Group
	if g == 0 {
		g = o.X.Cols
	}
	if g < 0 || (g > 0 && o.X.Cols%g != 0) {
		return fmt.Errorf("groups of %d do not divide %d columns", g, o.X.Cols)
	}
	if o.W.Given() && o.W.Cols != g && o.W.Cols != o.X.Cols {
		return fmt.Errorf("weight has %d elements, wants %d or %d", o.W.Cols, g, o.X.Cols)
	}
	if o.Gate.Given() != (o.Place != GateNone) {
		return errors.New("a gate needs a place and the reverse")
	}
	return errors.Join(activation("X", o.X, -1, -1), activation("Out", o.Out, o.X.Rows, o.X.Cols),
		optional("W", o.W, layout.F32, 1, -1), optionalActivation("Gate", o.Gate, o.X.Rows, o.X.Cols))
}

func (a *Adapter) check(in, out int) error {
	if a == nil {
		return nil
	}
	if err := errors.Join(weight("adapter A", a.A, 0, -1, in), weight("adapter B", a.B, 0, out, -1)); err != nil {
		return err
	}
	if a.A.Rows != a.B.Cols || a.A.Scheme != layout.Dense || a.B.Scheme != layout.Dense {
		return fmt.Errorf("adapter ranks %d and %d, schemes %v and %v", a.A.Rows, a.B.Cols, a.A.Scheme, a.B.Scheme)
	}
	return optional("adapter magnitude", a.Mag, layout.F32, 1, out)
}

func (o Linear) check() error {
	if err := weight("W", o.W, 0, -1, o.X.Cols); err != nil {
		return err
	}
	if o.Act.Gated() != (o.Up != nil) {
		return errors.New("a gated activation needs Up and the reverse")
	}
	if o.Up != nil {
		if err := weight("Up", o.Up, 0, o.W.Rows, o.X.Cols); err != nil {
			return err
		}
	}
	n, out := o.X.Rows, o.W.Rows
	return errors.Join(activation("X", o.X, -1, -1), activation("Out", o.Out, n, out),
		optional("Bias", o.Bias, layout.F32, 1, out), optional("UpBias", o.UpBias, layout.F32, 1, out),
		optionalActivation("Residual", o.Residual, n, out),
		o.Adapter.check(o.X.Cols, out), o.UpAdapter.check(o.X.Cols, out))
}

func (o HeadLinear) check() error {
	if err := weight("W", o.W, -1, -1, -1); err != nil {
		return err
	}
	if o.W.Batch < 1 {
		return errors.New("weight W is not stacked")
	}
	return errors.Join(activation("X", o.X, -1, o.W.Batch*o.W.Cols), activation("Out", o.Out, o.X.Rows, o.W.Batch*o.W.Rows))
}

func (o RoPE) check() error {
	if o.HeadDim <= 0 || o.X.Cols%o.HeadDim != 0 || 2*o.Freq.Cols > o.HeadDim {
		return fmt.Errorf("%d columns in heads of %d, %d pairs", o.X.Cols, o.HeadDim, o.Freq.Cols)
	}
	if o.QBeta != 0 && o.QOrig <= 0 {
		return errors.New("a QBeta needs QOrig")
	}
	return errors.Join(activation("X", o.X, -1, -1), shape("Pos", o.Pos, layout.I32, 1, o.X.Rows), shape("Freq", o.Freq, layout.F32, 1, -1))
}

func (o KVWrite) check() error {
	if err := errors.Join(o.KV.check(), o.Rows.check(false)); err != nil {
		return err
	}
	err := errors.Join(activation("K", o.K, o.Rows.N, o.KV.Heads*o.KV.KDim), shape("Table", o.Pages.Table, layout.I32, o.Rows.Segments, -1))
	if o.V.Given() == o.KV.VInK {
		return errors.New("a V is given exactly when the cache keeps it apart from K")
	}
	return errors.Join(err, optionalActivation("V", o.V, o.Rows.N, o.KV.Heads*o.KV.VDim))
}

func (o Attention) check() error {
	if err := errors.Join(o.KV.check(), o.Rows.check(false)); err != nil {
		return err
	}
	if o.Heads <= 0 || o.Heads%o.KV.Heads != 0 {
		return fmt.Errorf("%d query heads over %d KV heads", o.Heads, o.KV.Heads)
	}
	n := o.Rows.N
	return errors.Join(activation("Q", o.Q, n, o.Heads*o.KV.KDim), activation("Out", o.Out, n, o.Heads*o.KV.VDim),
		shape("Table", o.Pages.Table, layout.I32, o.Rows.Segments, -1), shape("Lo", o.Pages.Lo, layout.I32, 1, n), shape("Hi", o.Pages.Hi, layout.I32, 1, n),
		optional("Sinks", o.Sinks, layout.F32, 1, o.Heads))
}

func (o MoERoute) check() error {
	e := o.Logits.Cols
	if o.TopK < 1 || o.TopK > e || o.Groups > 1 && (e%o.Groups != 0 || o.TopGroups < 1 || o.TopGroups > o.Groups) {
		return fmt.Errorf("top %d of %d experts, %d of %d groups", o.TopK, e, o.TopGroups, o.Groups)
	}
	n := o.Logits.Rows
	return errors.Join(activation("Logits", o.Logits, -1, -1), optional("Bias", o.Bias, layout.F32, 1, e), optional("PerExpert", o.PerExpert, layout.F32, 1, e),
		shape("IDs", o.IDs, layout.I32, n, o.TopK), activation("Weights", o.Weights, n, o.TopK))
}

func (o MoELinear) check() error {
	if err := weight("W", o.W, -1, -1, o.X.Cols); err != nil {
		return err
	}
	if o.W.Batch < 1 {
		return errors.New("weight W is not stacked")
	}
	if o.Act.Gated() != (o.Up != nil) {
		return errors.New("a gated activation needs Up and the reverse")
	}
	if o.Up != nil {
		if err := weight("Up", o.Up, o.W.Batch, o.W.Rows, o.X.Cols); err != nil {
			return err
		}
	}
	pairs := o.IDs.Rows * o.IDs.Cols
	if o.X.Rows != o.IDs.Rows && o.X.Rows != pairs {
		return fmt.Errorf("input has %d rows for %dx%d choices", o.X.Rows, o.IDs.Rows, o.IDs.Cols)
	}
	return errors.Join(activation("X", o.X, -1, -1), shape("IDs", o.IDs, layout.I32, -1, -1), activation("Out", o.Out, pairs, o.W.Rows),
		optional("Bias", o.Bias, layout.F32, o.W.Batch, o.W.Rows), optional("UpBias", o.UpBias, layout.F32, o.W.Batch, o.W.Rows))
}

func (o MoECombine) check() error {
	n, k := o.Weights.Rows, o.Weights.Cols
	if o.SharedGate.Given() && !o.Shared.Given() {
		return errors.New("a SharedGate needs Shared")
	}
	return errors.Join(activation("X", o.X, n*k, o.Out.Cols), activation("Weights", o.Weights, -1, -1), activation("Out", o.Out, n, -1),
		optionalActivation("Shared", o.Shared, n, o.Out.Cols), optionalActivation("SharedGate", o.SharedGate, n, 1), optionalActivation("Residual", o.Residual, n, o.Out.Cols))
}

func (s State) check(r Rows, size, log int) error {
	return errors.Join(r.check(true), shape("State", s.Mem, layout.F32, -1, size), shape("Slots", s.Slots, layout.I32, 1, r.Segments),
		optional("Log", s.Log, layout.F32, r.N, log))
}

func (o ShortConv) check() error {
	c, k := o.W.Rows, o.W.Cols
	if k < 1 {
		return errors.New("no taps")
	}
	if o.Act != ActNone && o.Act != ActSiLU {
		return fmt.Errorf("activation %d", o.Act)
	}
	return errors.Join(activation("X", o.X, o.Rows.N, c), shape("W", o.W, layout.F32, -1, -1), optional("Bias", o.Bias, layout.F32, 1, c),
		activation("Out", o.Out, o.Rows.N, c), o.State.check(o.Rows, (k-1)*c, c))
}

func (o GatedDelta) check() error {
	if o.HeadsK < 1 || o.HeadsV%o.HeadsK != 0 {
		return fmt.Errorf("%d value heads over %d key heads", o.HeadsV, o.HeadsK)
	}
	n, k, v := o.Rows.N, o.HeadsK*o.DimK, o.HeadsV*o.DimV
	return errors.Join(activation("Q", o.Q, n, k), activation("K", o.K, n, k), activation("V", o.V, n, v),
		activation("A", o.A, n, o.HeadsV), activation("B", o.B, n, o.HeadsV),
		shape("ALog", o.ALog, layout.F32, 1, o.HeadsV), shape("DtBias", o.DtBias, layout.F32, 1, o.HeadsV),
		activation("Out", o.Out, n, v), o.State.check(o.Rows, o.HeadsV*o.DimV*o.DimK, k+v+2*o.HeadsV))
}

func (o SSMScan) check() error {
	if o.Groups < 1 || o.Heads%o.Groups != 0 {
		return fmt.Errorf("%d heads over %d groups", o.Heads, o.Groups)
	}
	n, x, g := o.Rows.N, o.Heads*o.Dim, o.Groups*o.StateDim
	return errors.Join(activation("X", o.X, n, x), activation("B", o.B, n, g), activation("C", o.C, n, g), activation("Dt", o.Dt, n, o.Heads),
		shape("ALog", o.ALog, layout.F32, 1, o.Heads), shape("D", o.D, layout.F32, 1, o.Heads), shape("DtBias", o.DtBias, layout.F32, 1, o.Heads),
		activation("Out", o.Out, n, x), o.State.check(o.Rows, o.Heads*o.Dim*o.StateDim, x+g+o.Heads))
}

func (o StateCommit) check() error {
	var err error
	var s State
	var segments, given int
	if o.Conv != nil {
		given, s, segments, err = given+1, o.Conv.State, o.Conv.Rows.Segments, o.Conv.check()
	}
	if o.Delta != nil {
		given, s, segments, err = given+1, o.Delta.State, o.Delta.Rows.Segments, o.Delta.check()
	}
	if o.SSM != nil {
		given, s, segments, err = given+1, o.SSM.State, o.SSM.Rows.Segments, o.SSM.check()
	}
	if given != 1 || !s.Log.Given() {
		return errors.New("wants exactly one op that logged")
	}
	return errors.Join(err, shape("Keep", o.Keep, layout.I32, 1, segments))
}

func (o Binary) check() error {
	cols := o.A.Cols
	if o.BGroup > 0 {
		if cols%o.BGroup != 0 {
			return fmt.Errorf("groups of %d do not divide %d columns", o.BGroup, cols)
		}
		cols /= o.BGroup
	}
	if o.B.Rows != 1 && o.B.Rows != o.A.Rows {
		return fmt.Errorf("matrix B has %d rows, A %d", o.B.Rows, o.A.Rows)
	}
	return errors.Join(activation("A", o.A, -1, -1), activation("B", o.B, -1, cols), activation("Out", o.Out, o.A.Rows, o.A.Cols))
}

func (o Unary) check() error {
	if o.Kind == UnSoftcap && o.V <= 0 {
		return fmt.Errorf("soft cap %v", o.V)
	}
	return errors.Join(activation("X", o.X, -1, -1), activation("Out", o.Out, o.X.Rows, o.X.Cols))
}

func (o CopyRows) check() error {
	rows := o.Src.Rows
	if o.Index.Given() {
		rows = o.Dst.Rows
	}
	index := optional("Index", o.Index, layout.I32, 1, o.Dst.Rows)
	if o.Src.Type == layout.I32 {
		return errors.Join(shape("Src", o.Src, layout.I32, -1, -1), shape("Dst", o.Dst, layout.I32, rows, o.Src.Cols), index)
	}
	return errors.Join(activation("Src", o.Src, -1, -1), activation("Dst", o.Dst, rows, o.Src.Cols), index)
}

func (o Argmax) check() error {
	if o.Out.Rows*o.Out.Cols != o.X.Rows || (o.Out.Rows != 1 && o.Out.Cols != 1) {
		return fmt.Errorf("output is %dx%d for %d rows", o.Out.Rows, o.Out.Cols, o.X.Rows)
	}
	if o.X.Cols < 1 {
		return errors.New("no columns")
	}
	return errors.Join(activation("X", o.X, -1, -1), shape("Out", o.Out, layout.I32, -1, -1))
}

func (o TopK) check() error {
	k := o.IDs.Cols
	if k < 1 || k > o.X.Cols {
		return fmt.Errorf("top %d of %d", k, o.X.Cols)
	}
	return errors.Join(activation("X", o.X, -1, -1), shape("IDs", o.IDs, layout.I32, o.X.Rows, k), activation("Vals", o.Vals, o.X.Rows, k))
}

func (o LogSumExp) check() error {
	return errors.Join(activation("X", o.X, -1, -1), activation("Out", o.Out, o.X.Rows, 1))
}

func (o MapIDs) check() error {
	n := o.IDs.Cols
	return errors.Join(shape("IDs", o.IDs, layout.I32, 1, n), shape("Offset", o.Offset, layout.I32, 1, -1), shape("Out", o.Out, layout.I32, 1, n))
}

func (o BlockConv) check() error {
	c, taps := o.X.Cols, o.Base.Rows
	if o.Group < 1 || c%o.Group != 0 || o.Block < 1 || o.X.Rows%o.Block != 0 {
		return fmt.Errorf("%d columns in groups of %d, %d rows in blocks of %d", c, o.Group, o.X.Rows, o.Block)
	}
	return errors.Join(activation("X", o.X, -1, -1), shape("Base", o.Base, layout.F32, -1, c), activation("P", o.P, o.X.Rows, taps*c/o.Group), activation("Out", o.Out, o.X.Rows, c))
}

func (o PairSelect) check() error {
	n, k := o.Unary.Rows, o.Unary.Cols
	if o.Slots < 1 || n%o.Slots != 0 || k < 1 {
		return fmt.Errorf("%d rows in blocks of %d, %d candidates", n, o.Slots, k)
	}
	if o.Uniform.Given() && o.Temperature <= 0 {
		return fmt.Errorf("temperature %v", o.Temperature)
	}
	return errors.Join(activation("Unary", o.Unary, -1, -1), shape("Cand", o.Cand, layout.I32, n, k), shape("Anchor", o.Anchor, layout.I32, 1, n/o.Slots),
		weight("A", o.A, 0, -1, o.H.Cols), weight("B", o.B, 0, -1, o.H.Cols), activation("H", o.H, n, -1),
		optional("Uniform", o.Uniform, layout.F32, 1, n), shape("IDs", o.IDs, layout.I32, 1, n), optionalActivation("Probs", o.Probs, n, k))
}
