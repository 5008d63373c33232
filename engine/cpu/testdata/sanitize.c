// Runs every op on every level that the machine has, with odd shapes and each
// matrix in its own exactly sized block, for the address, undefined-behaviour
// and thread sanitizers to watch. Results are not judged here.
#include "../sb.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *blocks[4096];
static int used;

static void *block(size_t n) {
	void *p = malloc(n ? n : 1);
	if (!p || used == 4096)
		abort();
	blocks[used++] = p;
	return memset(p, 0, n);
}

static uint64_t seed;
static uint32_t rnd(uint32_t n) {
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(seed >> 33) % n;
}

static sb_view mat(int64_t rows, int64_t cols) {
	sb_view v = {0, rows, cols, cols + rnd(4)};
	int64_t n = rows > 0 ? (rows - 1) * v.stride + cols : 0;
	float *p = block(n * 4);
	for (int64_t i = 0; i < n; i++)
		p[i] = (float)rnd(2001) / 500 - 2;
	v.p = (uintptr_t)p;
	return v;
}

static sb_view ints(int64_t rows, int64_t cols, int lo, int hi) {
	sb_view v = mat(rows, cols);
	for (int64_t r = 0; r < rows; r++)
		for (int64_t c = 0; c < cols; c++)
			((int32_t *)v.p)[r * v.stride + c] = lo + (int)rnd(hi - lo);
	return v;
}

static const sb_level *level;

static sb_weight *weight(int scheme, int bits, int group, int dtype, int64_t batch, int64_t rows, int64_t cols, int pack) {
	static const int64_t bytes[] = {[SB_Q4_0] = 18, [SB_Q4_1] = 20, [SB_Q5_0] = 22, [SB_Q5_1] = 24, [SB_Q8_0] = 34, [SB_Q2_K] = 84, [SB_Q3_K] = 110, [SB_Q4_K] = 144, [SB_Q5_K] = 176, [SB_Q6_K] = 210, [SB_IQ4_NL] = 18, [SB_GGUF_MXFP4] = 17};
	sb_weight *w = block(sizeof *w);
	int64_t size = dtype == SB_F32 ? 4 : 2;
	*w = (sb_weight){.scheme = scheme, .bits = bits, .group = group, .dtype = dtype, .batch = batch, .rows = rows, .cols = cols, .global = 1};
	if (scheme == SB_DENSE)
		w->row_bytes = cols * size;
	else if (scheme == SB_AFFINE) {
		w->row_bytes = cols * bits / 8;
		w->scale_bytes = cols / group * size;
	} else if (scheme <= SB_NVFP4) {
		w->row_bytes = cols * bits / 8;
		w->scale_bytes = cols / group;
	} else
		w->row_bytes = cols / group * bytes[scheme];
	// One byte before the data: checkpoints do not align tensors.
	uint8_t *q = (uint8_t *)block(batch * rows * w->row_bytes + 1) + 1, *s = (uint8_t *)block(batch * rows * w->scale_bytes + 1) + 1, *b = (uint8_t *)block(batch * rows * w->scale_bytes + 1) + 1;
	for (int64_t i = 0; i < batch * rows * w->row_bytes; i++)
		q[i] = (uint8_t)rnd(256);
	for (int64_t i = 0; i < batch * rows * w->scale_bytes; i++)
		s[i] = b[i] = (uint8_t)rnd(60);
	w->w = (uintptr_t)q;
	w->s = (uintptr_t)s;
	w->b = (uintptr_t)b;
	if (pack && sb_pack_size(level, w) > 0) {
		w->packed = (uintptr_t)block(sb_pack_size(level, w));
		sb_pack args = {(uintptr_t)w};
		for (int64_t i = 0; i < batch * ((rows + level->lanes - 1) / level->lanes); i++)
			level->run[SB_PACK](&args, i, NULL);
	}
	return w;
}

static sb_op list[512];
static int64_t n;

static void op(int kind, int64_t chunks, const void *args, size_t size) {
	void *p = block(size);
	memcpy(p, args, size);
	list[n++] = (sb_op){.kind = kind, .chunks = (int32_t)chunks, .args = (uintptr_t)p};
}
#define OP(kind, chunks, ...)                                  \
	do {                                                   \
		__VA_ARGS__;                                   \
		op(kind, chunks, &args, sizeof args);          \
	} while (0)

static void linear(sb_weight *w, sb_weight *up, int64_t rows, int act) {
	int64_t outs = 16 * (1 + rnd(3)), per = (w->rows + outs - 1) / outs, k = w->cols;
	sb_view x = mat(rows, k), out = mat(rows, w->rows);
	uintptr_t q = 0;
	int64_t q_row = k * 2;
	if (w->packed) {
		int64_t each = 1 + rnd(3);
		q = (uintptr_t)block((rows + 15) / 16 * 16 * q_row);
		OP(SB_QUANT, (rows + each - 1) / each, sb_quant args = {x, q, q_row, each});
	}
	OP(SB_LINEAR, per, sb_linear args = {.x = x, .out = out, .res = mat(rows, w->rows), .bias = mat(1, w->rows), .w = (uintptr_t)w, .up = (uintptr_t)up, .act = act, .scale = 1, .outs = outs, .per = per, .q = q, .q_row = q_row});
}

static void linears(void) {
	for (int i = 0; i < 40; i++) {
		int64_t rows = 1 + rnd(23), out = 1 + rnd(40);
		int act = (int)rnd(8), type = 1 + (int)rnd(3);
		int scheme = 1 + (int)rnd(17), bits = (int[]){1, 2, 3, 4, 5, 6, 8, 4, 8}[rnd(9)], group = 32 << rnd(3);
		int64_t cols = 128 * (1 + rnd(3));
		if (scheme == SB_DENSE)
			cols = 1 + rnd(100);
		else if (scheme == SB_NVFP4)
			group = 16, bits = 4, cols -= 16;
		else if (scheme == SB_MXFP4 || scheme == SB_MXFP8)
			group = 32, bits = scheme == SB_MXFP4 ? 4 : 8, cols -= 32;
		else if (scheme >= SB_Q2_K && scheme <= SB_Q6_K)
			group = 256, cols = 512;
		else if (scheme >= SB_Q4_0)
			group = 32, cols -= 32;
		else if (group == 32)
			cols -= 32;
		int pack = rnd(4) > 0;
		sb_weight *w = weight(scheme, bits, group, type, 1, out, cols, pack), *up = act >= SB_ACT_SWIGLU ? weight(scheme, bits, group, type, 1, out, cols, pack) : NULL;
		linear(w, up, rows, act);
		OP(SB_EMBED, rows, sb_embed args = {ints(1, rows, -1, (int)out + 1), mat(rows, cols), (uintptr_t)w, 1});
		// experts, with ids out of range
		int64_t experts = 1 + rnd(4), top = 1 + rnd(3), pairs = rows * top, cap = pairs < experts ? pairs : experts;
		sb_weight *e = weight(scheme, bits, group, type, experts, out, cols, 0);
		uintptr_t lists = (uintptr_t)block(4 * (2 * cap + 2 + pairs)), count = (uintptr_t)block(4 * experts);
		sb_view y = mat(pairs, out);
		OP(SB_MOESORT, 1, sb_moesort args = {ints(rows, top, -1, (int)experts + 1), y, lists, count, experts, cap});
		int64_t per = (out + 15) / 16;
		OP(SB_LINEAR, per * cap, sb_linear args = {.x = mat(rows, cols), .out = y, .bias = mat(experts, out), .w = (uintptr_t)e, .act = SB_ACT_SILU, .scale = 1, .outs = 16, .per = per, .list = lists, .pairs = pairs, .x_div = top});
		OP(SB_LINEAR, per * experts, sb_linear args = {.x = mat(rows, experts * cols), .out = mat(rows, experts * out), .w = (uintptr_t)e, .scale = 1, .outs = 16, .per = per, .heads = experts});
		// a low-rank addition
		int64_t rank = 1 + rnd(9);
		sb_weight *b = weight(SB_DENSE, 0, 0, type, 1, out, rank, 0), *plain = weight(SB_DENSE, 0, 0, type, 1, out, cols, 0);
		sb_adapter ad = {(uintptr_t)b, mat(rows, rank), mat(1, out), 0.5f};
		OP(SB_LINEAR, per, sb_linear args = {.x = mat(rows, cols), .out = mat(rows, out), .w = (uintptr_t)plain, .ad = ad, .scale = 1, .outs = 16, .per = per});
	}
}

static void row_ops(void) {
	for (int i = 0; i < 25; i++) {
		int64_t rows = 1 + rnd(5), group = 1 + rnd(40), cols = group * (1 + rnd(3));
		sb_view x = mat(rows, cols);
		OP(SB_NORM, rows, sb_norm args = {.x = x, .out = x, .w = mat(1, rnd(2) ? group : cols), .gate = mat(rows, cols), .kind = (int)rnd(2), .place = (int)rnd(3), .group = group, .eps = 1e-5f, .scale = 1, .rows = rows});
		int64_t half = 1 + rnd(20), dim = 2 * half + rnd(5);
		uintptr_t table = (uintptr_t)block(rows * half * 8);
		sb_view pos = ints(1, rows, 0, 1000);
		OP(SB_ROPETABLE, rows, sb_ropetable args = {pos, mat(1, half), table});
		OP(SB_ROPE, rows, sb_rope args = {.x = mat(rows, dim * 3), .pos = pos, .table = table, .half = half, .head_dim = dim, .interleaved = (int)rnd(2), .mul = 1, .qbeta = 0.1f, .qorig = 64, .rows = 1});
		OP(SB_BINARY, rows * 2, sb_binary args = {x, mat(rnd(2) ? 1 : rows, cols / group), x, (int)rnd(4), group, 1, (cols + 1) / 2, 2});
		OP(SB_UNARY, rows * 2, sb_unary args = {x, x, (int)rnd(4), 3, (cols + 1) / 2, 2});
		OP(SB_COPY, rows, sb_copy args = {x, mat(rows, cols), ints(1, rows, -1, (int)rows + 1)});
		int64_t wide = 1 + rnd(10000), per = (wide + SB_PART - 1) / SB_PART, k = 1 + rnd(wide < 200 ? wide : 200);
		sb_view logits = mat(rows, wide);
		OP(SB_ARGMAX, rows * per, sb_reduce args = {.x = logits, .out = mat(rows, 1), .part = (uintptr_t)block(rows * per * SB_PART_BYTES), .per = per});
		OP(SB_LSE, rows * per, sb_reduce args = {.x = logits, .out = mat(rows, 1), .part = (uintptr_t)block(rows * per * SB_PART_BYTES), .per = per});
		OP(SB_TOPK, rows * per, sb_reduce args = {.x = logits, .out = mat(rows, k), .vals = mat(rows, k), .part = (uintptr_t)block(rows * per * 8 * k), .per = per, .k = k, .width = SB_PART});
		sb_view ids = ints(1, rows, -2, 9);
		OP(SB_MAPIDS, 1, sb_mapids args = {ids, ints(1, 7, -9, 9), ids});
		int64_t groups = 1 + rnd(3), experts = groups * (1 + rnd(9)), top = 1 + rnd(experts), taps = 1 + rnd(3);
		OP(SB_ROUTE, rows, sb_route args = {mat(rows, experts), mat(1, experts), mat(1, experts), mat(rows, top), mat(rows, top), (int)rnd(3), 1, top, groups, 1 + rnd(groups), 1e-9f, 2});
		OP(SB_COMBINE, rows, sb_combine args = {mat(rows * top, cols), mat(rows, top), mat(rows, cols), mat(rows, 1), mat(rows, cols), mat(rows, cols), 1});
		OP(SB_BLOCKCONV, rows, sb_blockconv args = {x, mat(taps, cols), mat(rows, taps * cols / group), mat(rows, cols), group, rows});
		int64_t rank = 1 + rnd(40), cands = 1 + rnd(9);
		sb_weight *a = weight(SB_DENSE, 0, 0, 1 + (int)rnd(3), 1, 20, rank, 0), *b = weight(SB_DENSE, 0, 0, 1 + (int)rnd(3), 1, 20, rank, 0);
		OP(SB_PAIRSELECT, 2, sb_pairselect args = {mat(2 * rows, cands), ints(2 * rows, cands, -1, 22), ints(1, 2, -1, 22), mat(2 * rows, rank), rnd(2) ? mat(1, 2 * rows) : (sb_view){0}, mat(1, 2 * rows), mat(2 * rows, cands), (uintptr_t)a, (uintptr_t)b, rows, 1});
	}
}

static void caches(void) {
	for (int i = 0; i < 25; i++) {
		int64_t rows = 1 + rnd(20), tall = 1 + rnd(SB_ATTN_ROWS), heads = 1 + rnd(3), per = 1 + rnd(3), kd = 1 + rnd(50), vd = 1 + rnd(70), pages = 1 + rnd(6), nblocks = 1 + rnd(12);
		int v_in_k = rnd(3) == 0, bits = rnd(2) ? (rnd(2) ? 4 : 8) : 0, dtype = 1 + (int)rnd(3), group = 32;
		if (bits)
			kd = 32 * (1 + rnd(3)), vd = 32 * (1 + rnd(3));
		if (v_in_k && vd > kd)
			vd = kd;
		int64_t size = dtype == SB_F32 ? 4 : 2;
		int64_t kpage = heads * 64 * (bits ? kd * bits / 8 + kd / group * 8 : kd * size), vpage = heads * 64 * (bits ? vd * bits / 8 + vd / group * 8 : vd * size);
		sb_kv kv = {(uintptr_t)block(pages * kpage), v_in_k ? 0 : (uintptr_t)block(pages * vpage), pages, heads, kd, vd, kpage, v_in_k ? 0 : vpage, dtype, bits, group};
		sb_view of = ints(1, rows, -1, 4), table = ints(3, nblocks, -1, (int)pages + 1), lo = ints(1, rows, -9, 300), hi = ints(1, rows, -9, 900);
		int64_t sides = 1 + rnd(3);
		OP(SB_KVWRITE, (heads * (v_in_k ? 1 : 2) + sides - 1) / sides, sb_kvwrite args = {mat(rows, heads * kd), v_in_k ? (sb_view){0} : mat(rows, heads * vd), ints(1, rows, -1, 900), of, table, kv, sides});
		int64_t splits = 1 + rnd(3), part = (vd + 2 + 31) / 32 * 32;
		sb_attention a = {.q = mat(rows, heads * per * kd), .out = mat(rows, heads * per * vd), .of = of, .table = table, .lo = lo, .hi = hi, .sinks = rnd(2) ? mat(1, heads * per) : (sb_view){0}, .kv = kv, .heads = heads * per, .scale = 0.1f, .softcap = rnd(2) ? 30.0f : 0, .rows = tall, .per = per, .splits = splits, .part_size = part};
		a.part = (uintptr_t)block(4 * rows * heads * per * nblocks * part);
		OP(SB_ATTENTION, (rows + tall - 1) / tall * heads * splits, sb_attention args = a);
		if (splits > 1)
			OP(SB_ATTNMERGE, rows * heads * per, sb_attention args = a);
	}
	for (int i = 0; i < 25; i++) {
		int64_t rows = rnd(7), segments = 1 + rnd(3), logged = rnd(2);
		sb_state st = {.slots = ints(1, segments, -1, 4), .start = ints(1, segments + 1, -2, 9), .n = rows, .segments = segments};
		int64_t c = 1 + rnd(300), taps = 1 + rnd(4), per = (c + 255) / 256;
		st.mem = mat(3, (taps - 1) * c);
		st.log = logged ? mat(rows, c) : (sb_view){0};
		sb_conv conv = {.x = mat(rows, c), .w = mat(c, taps), .bias = mat(1, c), .out = mat(rows, c), .st = st, .act = (int)rnd(2), .cols = 256, .per = per};
		OP(SB_CONV, segments * per, sb_conv args = conv);
		if (logged)
			OP(SB_CONV, segments * per, sb_conv args = conv; args.st.keep = ints(1, segments, -1, 9));
		int64_t hk = 1 + rnd(2), hv = hk * (1 + rnd(2)), dk = 1 + rnd(40), dv = 1 + rnd(40), each = 1 + rnd(20);
		st.mem = mat(3, hv * dv * dk);
		st.log = logged ? mat(rows, hk * dk + hv * dv + 2 * hv) : (sb_view){0};
		sb_delta delta = {mat(rows, hk * dk), mat(rows, hk * dk), mat(rows, hv * dv), mat(rows, hv), mat(rows, hv), mat(1, hv), mat(1, hv), mat(rows, hv * dv), st, hk, hv, dk, dv, each, (dv + each - 1) / each};
		OP(SB_DELTA, segments * hv * delta.per, sb_delta args = delta);
		if (logged)
			OP(SB_DELTA, segments * hv * delta.per, sb_delta args = delta; args.st.keep = ints(1, segments, -1, 9));
		st.mem = mat(3, hv * dv * dk);
		st.log = logged ? mat(rows, hv * dv + hk * dk + hv) : (sb_view){0};
		sb_ssm ssm = {mat(rows, hv * dv), mat(rows, hk * dk), mat(rows, hk * dk), mat(rows, hv), mat(1, hv), mat(1, hv), mat(1, hv), mat(rows, hv * dv), st, hv, dv, hk, dk, 0, 9, each, (dv + each - 1) / each};
		OP(SB_SSM, segments * hv * ssm.per, sb_ssm args = ssm);
		if (logged)
			OP(SB_SSM, segments * hv * ssm.per, sb_ssm args = ssm; args.st.keep = ints(1, segments, -1, 9));
	}
}

int main(void) {
	static const char *names[] = {"amx", "avx512", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "scalar"};
	void (*parts[])(void) = {linears, row_ops, caches};
	for (int l = 0; l < 8; l++) {
		level = sb_level_find(names[l]);
		if (!level)
			continue;
		for (int threads = 1; threads <= 3; threads += 2) {
			sb_pool *pool = sb_pool_new(level, threads);
			if (!pool || !sb_pool_scratch(pool, 1 << 20))
				return 1;
			for (int p = 0; p < 3; p++) {
				seed = 1 + p;
				n = 0;
				parts[p]();
				if (sb_run(pool, list, n, NULL) != 0)
					return 1;
				int32_t stop = 1;
				if (sb_run(pool, list, n, &stop) != 1)
					return 1;
				while (used > 0)
					free(blocks[--used]);
			}
			sb_pool_free(pool);
			printf("%s, %d threads\n", level->name, threads);
		}
	}
	return 0;
}
