// The types that Go fills in and C reads: views, weights, op arguments.
// Addresses are uintptr_t, so that Go may write them into C memory at any time.
#ifndef SB_H
#define SB_H

#include <stddef.h>
#include <stdint.h>

// A matrix of 4-byte elements: rows of cols elements, stride elements apart.
// p 0 = not given.
typedef struct {
	uintptr_t p;
	int64_t rows, cols, stride;
} sb_view;

// Element types and schemes: the values of layout.DType and layout.Scheme.
enum { SB_F32 = 1, SB_F16 = 2, SB_BF16 = 3 };
enum {
	SB_DENSE = 1,
	SB_AFFINE,
	SB_MXFP4,
	SB_MXFP8,
	SB_NVFP4,
	SB_Q4_0,
	SB_Q4_1,
	SB_Q5_0,
	SB_Q5_1,
	SB_Q8_0,
	SB_Q2_K,
	SB_Q3_K,
	SB_Q4_K,
	SB_Q5_K,
	SB_Q6_K,
	SB_IQ4_NL,
	SB_GGUF_MXFP4
};

// A weight as it lies in the checkpoint, and its packed form (0 = none).
typedef struct {
	int32_t scheme, bits, group, dtype;
	int64_t batch, rows, cols; // batch is at least 1
	uintptr_t w, s, b;
	int64_t row_bytes, scale_bytes; // of one row
	float global;
	// The packed form, see packed.h; packed 0 = none.
	uintptr_t packed;
	int64_t packed_block, packed_batch; // bytes of a block of rows, of one matrix
	int32_t code, scale, pgroup;
	float zero, gain;
} sb_weight;

// Codes of packed weights: 2, 3, 4, 5, 6 or 8 bits, or an index into sixteen
// numbers. How their scales are kept; those up to BF16B have a bias beside each.
enum { SB_CODE_E2M1 = 9, SB_CODE_IQ4 };
enum { SB_SCALE_F32B = 1, SB_SCALE_F16B, SB_SCALE_BF16B, SB_SCALE_F16, SB_SCALE_E8M0, SB_SCALE_K, SB_SCALE_KM };

// The activations of compute.Act, in its order.
enum { SB_ACT_NONE, SB_ACT_SILU, SB_ACT_RELU2, SB_ACT_GELU, SB_ACT_SIGMOID, SB_ACT_SWIGLU, SB_ACT_GEGLU, SB_ACT_CLAMPED };

// The ops. Each has one argument struct below.
enum {
	SB_EMBED,
	SB_NORM,
	SB_QUANT,
	SB_LINEAR,
	SB_ROPETABLE,
	SB_ROPE,
	SB_KVWRITE,
	SB_ATTENTION,
	SB_ATTNMERGE,
	SB_ROUTE,
	SB_MOESORT,
	SB_COMBINE,
	SB_CONV,
	SB_DELTA,
	SB_SSM,
	SB_BINARY,
	SB_UNARY,
	SB_COPY,
	SB_ARGMAX,
	SB_TOPK,
	SB_LSE,
	SB_MAPIDS,
	SB_BLOCKCONV,
	SB_PAIRSELECT,
	SB_PACK,
	SB_KINDS
};

typedef struct {
	int32_t kind, chunks;
	int64_t joined; // 1: may run together with the op before it
	uintptr_t args;
} sb_op;

typedef struct {
	sb_view ids, out;
	uintptr_t w;
	float scale;
} sb_embed;

typedef struct {
	sb_view x, out, w, gate;
	int32_t kind, place;
	int64_t group;
	float eps, scale, offset;
	int64_t rows; // of a chunk
} sb_norm;

// Rows of x as int8 with a scale and a scaled sum for each 32 elements.
typedef struct {
	sb_view x;
	uintptr_t q;
	int64_t q_row; // bytes of a row
	int64_t rows;  // of a chunk
} sb_quant;

// Writes w->packed. A chunk is a block of rows.
typedef struct {
	uintptr_t w;
} sb_pack;

// A low-rank addition: t holds A x of every row.
typedef struct {
	uintptr_t b; // weight, 0 = no adapter
	sb_view t, mag;
	float scale;
} sb_adapter;

// Linear, HeadLinear and MoELinear. A chunk is a range of outputs of one head,
// of one expert, or of the one matrix. With list, the rows of expert list
// entry i are given by sb_moelist.
typedef struct {
	sb_view x, out, res, bias, upbias;
	uintptr_t w, up;
	sb_adapter ad, upad;
	int32_t act;
	float scale;
	int64_t outs;       // outputs of a chunk
	int64_t per;        // chunks of one matrix
	int64_t heads;      // HeadLinear: matrices; 0 otherwise
	uintptr_t q;        // int8 rows of x, 0 = float32
	int64_t q_row;
	uintptr_t list;     // MoELinear: int32 expert list, see sb_moesort
	int64_t pairs, x_div; // MoELinear: rows of out; x row = pair / x_div
} sb_linear;

// Groups (row, choice) pairs by expert. list: [0] = used experts n, then for
// each of at most `cap` used experts its id, then n+1 starts (cap+1 reserved),
// then the pairs. Rows of out whose expert does not exist are zeroed.
typedef struct {
	sb_view ids, out;
	uintptr_t list, count; // count: int32 [experts+1]
	int64_t experts, cap;
} sb_moesort;

// cos and sin of every row: [rows][2][half].
typedef struct {
	sb_view pos, freq;
	uintptr_t table;
} sb_ropetable;

typedef struct {
	sb_view x, pos;
	uintptr_t table;
	int64_t half, head_dim;
	int32_t interleaved;
	float mul, qbeta;
	int64_t qorig;
	int64_t rows; // of a chunk
} sb_rope;

typedef struct {
	uintptr_t k, v; // v 0: inside k
	int64_t pages, heads, kdim, vdim, kpage, vpage; // bytes from a page to the next
	int32_t dtype, bits, group;
} sb_kv;

typedef struct {
	sb_view k, v, pos, of, table;
	sb_kv kv;
	int64_t sides; // heads of K and of V of a chunk
} sb_kvwrite;

enum { SB_ATTN_ROWS = 16 }; // most rows of a chunk of attention
typedef struct {
	sb_view q, out, of, table, lo, hi, sinks;
	sb_kv kv;
	int64_t heads;
	float scale, softcap;
	int64_t rows;      // rows of a chunk
	int64_t per;       // query heads of a KV head
	int64_t splits;    // ranges of pages, a chunk each; 1 = all pages
	uintptr_t part;    // splits > 1: partial sums, one per (row, head, block)
	int64_t part_size; // floats of one partial
} sb_attention;

typedef struct {
	sb_view logits, bias, per_expert, ids, weights;
	int32_t kind, normalize;
	int64_t topk, groups, topgroups;
	float eps, scale;
} sb_route;

typedef struct {
	sb_view x, weights, shared, gate, res, out;
	float scale;
} sb_combine;

typedef struct {
	sb_view mem, slots, log, start, keep; // keep given: commit logged rows
	int64_t n, segments;
} sb_state;

typedef struct {
	sb_view x, w, bias, out;
	sb_state st;
	int32_t act;
	int64_t cols, per; // columns of a chunk, chunks of a segment
} sb_conv;

typedef struct {
	sb_view q, k, v, a, b, alog, dtbias, out;
	sb_state st;
	int64_t hk, hv, dk, dv;
	int64_t rows, per; // state rows of a chunk, chunks of a head
} sb_delta;

typedef struct {
	sb_view x, b, c, dt, alog, d, dtbias, out;
	sb_state st;
	int64_t heads, dim, groups, sdim;
	float dtmin, dtmax;
	int64_t rows, per;
} sb_ssm;

typedef struct {
	sb_view a, b, out;
	int32_t kind;
	int64_t bgroup;
	float scale;
	int64_t cols, per; // columns of a chunk, chunks of a row
} sb_binary;

typedef struct {
	sb_view x, out;
	int32_t kind;
	float v;
	int64_t cols, per;
} sb_unary;

typedef struct {
	sb_view src, dst, index;
} sb_copy;

// Argmax, TopK and LogSumExp work on `per` parts of a row; the last chunk to end
// merges the parts in order. Argmax and LogSumExp: parts of SB_PART columns,
// SB_PART_BYTES of `part` each. TopK: parts of width columns, k numbers and k
// indices each, or one part and no `part`.
enum { SB_PART = 4096, SB_PART_BYTES = 16 };
typedef struct {
	sb_view x, out, vals;
	uintptr_t part;
	int64_t per, k, width;
} sb_reduce;

typedef struct {
	sb_view ids, offset, out;
} sb_mapids;

typedef struct {
	sb_view x, base, p, out;
	int64_t group, block;
} sb_blockconv;

typedef struct {
	sb_view unary, cand, anchor, h, uniform, ids, probs;
	uintptr_t a, b;
	int64_t slots;
	float temperature;
} sb_pairselect;

// One level: the same ops compiled for one instruction set.
typedef void (*sb_chunk_fn)(const void *args, int64_t chunk, uint8_t *scratch);
typedef void (*sb_finish_fn)(const void *args);
typedef struct sb_level {
	const char *name;
	const struct sb_level *base; // whose functions are run where this one has none
	sb_chunk_fn run[SB_KINDS];
	sb_finish_fn finish[SB_KINDS]; // once, after the last chunk
	// Plans the packed form of a weight (see packed.h) and returns its bytes, 0 if
	// this weight is not packed. NULL: the level has no int8 kernels.
	int64_t (*pack)(sb_weight *w);
	int32_t lanes; // floats of a vector
} sb_level;

extern const sb_level sb_level_scalar;
#if defined(__x86_64__)
extern const sb_level sb_level_avx2, sb_level_avxvnni, sb_level_avx512, sb_level_amx;
#elif defined(__aarch64__)
extern const sb_level sb_level_neon, sb_level_dotprod, sb_level_i8mm;
#endif

// The level of that name; NULL if this build or this machine does not have it.
const sb_level *sb_level_find(const char *name);

// sb_level.pack of the level, 0 without one.
int64_t sb_pack_size(const sb_level *level, sb_weight *w);

// The pool: threads workers, of which the caller of sb_run is one.
typedef struct sb_pool sb_pool;
sb_pool *sb_pool_new(const sb_level *level, int threads);
void sb_pool_free(sb_pool *p);
// Makes every thread's scratch at least so large; 0 on failure. Not during a run.
int sb_pool_scratch(sb_pool *p, int64_t bytes);
// Runs ops in order. Returns 1 when *stop became nonzero before the end.
int sb_run(sb_pool *p, const sb_op *ops, int64_t n, const int32_t *stop);

#endif
