// Linear, HeadLinear and MoELinear: one skeleton, two inner products.
//
// float32: rows of weights are decoded into scratch (it stays in the nearest
// cache) and multiplied with tiles of rows of x. Lane l of a sum takes columns l,
// l+W, ... in ascending order; the lanes are added in a fixed tree. So the bits
// of a result depend on its row of x and its row of weights only.
// int8: see int8.h.

enum { OUT_BLOCK = 16, ROW_TILE = 8 };

// Floats of scratch: 2 * OUT_BLOCK * padded(cols) for decoded rows of W and Up,
// padded(rank) for one row of an adapter.

INL void tile_of(int r, int m, const float *w, int64_t ldw, const float *const *x, int64_t k, float *z) {
	vf acc[4][4];
#pragma GCC unroll 4
	for (int i = 0; i < r; i++)
#pragma GCC unroll 4
		for (int j = 0; j < m; j++)
			acc[i][j] = (vf){0};
	int64_t at = 0;
	for (; at + W <= k; at += W) {
		vf xv[4];
#pragma GCC unroll 4
		for (int j = 0; j < m; j++)
			xv[j] = v_ld(x[j] + at);
#pragma GCC unroll 4
		for (int i = 0; i < r; i++) {
			vf wv = v_ld(w + i * ldw + at);
#pragma GCC unroll 4
			for (int j = 0; j < m; j++)
				acc[i][j] = v_fma(wv, xv[j], acc[i][j]);
		}
	}
	if (at < k)
#pragma GCC unroll 4
		for (int i = 0; i < r; i++)
#pragma GCC unroll 4
			for (int j = 0; j < m; j++)
				acc[i][j] = v_fma(v_ld(w + i * ldw + at), v_ldn(x[j] + at, k - at), acc[i][j]);
#pragma GCC unroll 4
	for (int j = 0; j < m; j++)
		if (r == 4)
			v_store_sums(z + j * OUT_BLOCK, acc[0][j], acc[1][j], acc[2][j], acc[3][j]);
		else
#pragma GCC unroll 4
			for (int i = 0; i < r; i++)
				z[j * OUT_BLOCK + i] = v_sum(acc[i][j]);
}

// z[j*OUT_BLOCK + i] = row i of r rows of w times row j of m <= 4 rows of x.
static void tile(int r, int m, const float *w, int64_t ldw, const float *const *x, int64_t k, float *z) {
	int i = 0;
	if (m == 1)
		for (; i + 4 <= r; i += 4)
			tile_of(4, 1, w + i * ldw, ldw, x, k, z + i);
	else if (m == 2)
		for (; i + 4 <= r; i += 4)
			tile_of(4, 2, w + i * ldw, ldw, x, k, z + i);
	else if (m == 4)
#if defined(SB_AVX512) || defined(SB_NEON)
		for (; i + 4 <= r; i += 4)
			tile_of(4, 4, w + i * ldw, ldw, x, k, z + i);
#else
		for (; i + 2 <= r; i += 2)
			tile_of(2, 4, w + i * ldw, ldw, x, k, z + i);
#endif
	for (; i < r; i++)
		for (int j = 0; j < m; j++)
			tile_of(1, 1, w + i * ldw, ldw, x + j, k, z + j * OUT_BLOCK + i);
}

// Adds the low-rank term of outputs [o, o+n) to z, for row i.
static void adapt(const sb_adapter *a, int64_t i, int64_t o, int64_t n, float *z, float *buf) {
	const sb_weight *b = (const sb_weight *)a->b;
	for (int64_t j = 0; j < n; j++) {
		dequant_row(b, o + j, buf);
		z[j] += a->scale * dot(buf, row(a->t, i), b->cols);
		if (a->mag.p)
			z[j] *= row(a->mag, 0)[o + j];
	}
}

// The rest of a Linear for outputs [o, o+n) of one row. z and u may be changed.
static void epilogue(const sb_linear *a, int64_t i, int64_t matrix, int64_t o, int64_t n, float *z, float *u, float *out, float *buf) {
	if (a->ad.b)
		adapt(&a->ad, i, o, n, z, buf);
	if (a->upad.b)
		adapt(&a->upad, i, o, n, u, buf);
	const float *bias = a->bias.p ? row(a->bias, matrix) + o : NULL, *upbias = a->upbias.p ? row(a->upbias, matrix) + o : NULL;
	const float *res = a->res.p ? row(a->res, i) + o : NULL;
	for (int64_t j = 0; j < n; j += W) {
		const int64_t left = n - j;
		vf zv = v_load(z + j, left), uv = {0};
		if (bias)
			zv += v_load(bias + j, left);
		if (a->up) {
			uv = v_load(u + j, left);
			if (upbias)
				uv += v_load(upbias + j, left);
		}
		vf y = v_act(a->act, zv, uv) * a->scale;
		if (res)
			y += v_load(res + j, left);
		v_store(out + j, y, left);
	}
}

// Which rows and which matrix a chunk of a linear is about.
typedef struct {
	int64_t matrix, rows;
	const int32_t *pairs; // MoELinear: the pairs of the expert
} linear_part;

INL int part_of_linear(const sb_linear *a, int64_t chunk, linear_part *l) {
	const int64_t part = chunk / a->per;
	*l = (linear_part){a->heads ? part : 0, a->x.rows, NULL};
	if (!a->list)
		return 1;
	const int64_t batch = ((const sb_weight *)a->w)->batch, cap = min64(a->pairs, batch);
	const int32_t *list = (const int32_t *)a->list, *ids = list + 1, *starts = ids + cap;
	if (part >= list[0])
		return 0;
	*l = (linear_part){ids[part], starts[part + 1] - starts[part], starts + cap + 1 + starts[part]};
	return 1;
}

#if defined(SB_INT8)
// Outputs [o, o+n) of m rows from row i on, one vector of z and of u each.
static void finish8(const sb_linear *a, const linear_part *l, int64_t i, int64_t m, int64_t o, int64_t n, vf *z, vf *u, float *buf) {
	const int plain = n == W && !a->ad.b && !a->upad.b && !a->bias.p && !a->upbias.p;
	for (int64_t j = 0; j < m; j++) {
		const int64_t r = l->pairs ? l->pairs[i + j] : i + j;
		float *out = row(a->out, r) + o;
		if (!plain) {
			epilogue(a, r, l->matrix, o, n, (float *)(z + j), (float *)(u + j), out, buf);
			continue;
		}
		vf y = z[j];
		if (a->act == SB_ACT_SWIGLU)
			y = v_silu(y) * u[j];
		else if (a->act != SB_ACT_NONE)
			y = v_act(a->act, y, a->up ? u[j] : y);
		y = y * a->scale;
		if (a->res.p)
			y += v_ld(row(a->res, r) + o);
		v_st(out, y);
	}
}

INL const uint8_t *block_at(const sb_weight *w, int64_t matrix, int64_t o) { return (const uint8_t *)w->packed + matrix * w->packed_batch + o / W * w->packed_block; }

static void run_linear8(const sb_linear *a, int64_t chunk, uint8_t *scratch) {
	const sb_weight *w = (const sb_weight *)a->w, *up = (const sb_weight *)a->up;
	linear_part l;
	if (!part_of_linear(a, chunk, &l))
		return;
	const int64_t o0 = chunk % a->per * a->outs, o1 = min64(o0 + a->outs, w->rows);
	vf z[PANEL], u[PANEL];
	for (int64_t i = 0, m; i < l.rows; i += m) {
		const record *x[PANEL];
		m = min64(PANEL, l.rows - i);
		for (int64_t j = 0; j < m; j++) // HeadLinear never comes here
			x[j] = (const record *)(a->q + (l.pairs ? l.pairs[i + j] / a->x_div : i + j) * a->q_row);
		for (int64_t o = o0; o < o1; o += W) {
			packed_block(w, block_at(w, l.matrix, o), m, x, z);
			if (up)
				packed_block(up, block_at(up, l.matrix, o), m, x, u);
			finish8(a, &l, i, m, o, min64(W, o1 - o), z, u, (float *)scratch);
		}
	}
}

#if defined(SB_AMX)
INL sb_view rows_from(sb_view v, int64_t i) {
	if (v.p) {
		v.p += i * v.stride * 4;
		v.rows -= i;
	}
	return v;
}

// Tiles of sixteen rows; up to eight that are left over, where a tile more costs more
// than a pass does, and less than fourteen at all, are for the level below.
static void run_amx(const void *args, int64_t chunk, uint8_t *scratch) {
	enum { TALL = 64, LEAST = 14, REST = 8 };
	const sb_linear *a = args;
	const sb_weight *w = (const sb_weight *)a->w, *up = (const sb_weight *)a->up;
	linear_part l;
	if (!a->q || a->list || a->x.rows < LEAST) {
		SB_BASE.run[SB_LINEAR](args, chunk, scratch);
		return;
	}
	part_of_linear(a, chunk, &l);
	const int64_t o0 = chunk % a->per * a->outs, o1 = min64(o0 + a->outs, w->rows);
	const int64_t rest = l.rows % AMX_ROWS <= REST ? l.rows % AMX_ROWS : 0, rows = l.rows - rest;
	vf z[TALL], u[TALL];
	amx_begin();
	for (int64_t i = 0, m; i < rows; i += m) {
		m = min64(TALL, rows - i);
		const int64_t tall = (m + AMX_ROWS - 1) / AMX_ROWS * AMX_ROWS; // rows of x are padded to sixteen
		const uint8_t *x = (const uint8_t *)a->q + i * a->q_row;
		for (int64_t o = o0; o < o1; o += W) {
			amx_block(w, block_at(w, 0, o), tall, x, a->q_row, z);
			if (up)
				amx_block(up, block_at(up, 0, o), tall, x, a->q_row, u);
			finish8(a, &l, i, m, o, min64(W, o1 - o), z, u, (float *)scratch);
		}
	}
	_tile_release();
	if (rest) {
		sb_linear b = *a;
		b.x = rows_from(a->x, rows);
		b.out = rows_from(a->out, rows);
		b.res = rows_from(a->res, rows);
		b.ad.t = rows_from(a->ad.t, rows);
		b.upad.t = rows_from(a->upad.t, rows);
		b.q += rows * a->q_row;
		SB_BASE.run[SB_LINEAR](&b, chunk, scratch);
	}
}
#endif
#endif

static void run_linear(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_linear *a = args;
#if defined(SB_INT8)
	if (a->q) {
		run_linear8(a, chunk, scratch);
		return;
	}
#endif
	const sb_weight *w = (const sb_weight *)a->w, *up = (const sb_weight *)a->up;
	const int64_t k = w->cols, ldw = padded(k);
	linear_part l;
	if (!part_of_linear(a, chunk, &l))
		return;
	const int64_t o0 = chunk % a->per * a->outs, o1 = min64(o0 + a->outs, w->rows);
	float *wbuf = (float *)scratch, *ubuf = wbuf + OUT_BLOCK * ldw, *abuf = ubuf + OUT_BLOCK * ldw;
	float z[ROW_TILE * OUT_BLOCK] __attribute__((aligned(64))), u[ROW_TILE * OUT_BLOCK] __attribute__((aligned(64)));
	const int64_t block = l.rows <= 4 ? 4 : OUT_BLOCK;
	for (int64_t o = o0; o < o1; o += block) {
		const int64_t n = min64(block, o1 - o);
		for (int64_t j = 0; j < n; j++) {
			dequant_row(w, l.matrix * w->rows + o + j, wbuf + j * ldw);
			if (up)
				dequant_row(up, l.matrix * up->rows + o + j, ubuf + j * ldw);
		}
		for (int64_t i = 0, m; i < l.rows; i += m) {
			m = l.rows - i >= 4 ? 4 : l.rows - i >= 2 ? 2 : 1;
			const float *x[ROW_TILE];
			for (int64_t j = 0; j < m; j++)
				x[j] = row(a->x, l.pairs ? l.pairs[i + j] / a->x_div : i + j) + (a->heads ? l.matrix * k : 0);
			tile(n, m, wbuf, ldw, x, k, z);
			if (up)
				tile(n, m, ubuf, ldw, x, k, u);
			for (int64_t j = 0; j < m; j++) {
				const int64_t r = l.pairs ? l.pairs[i + j] : i + j;
				float *out = row(a->out, r) + (a->heads ? l.matrix * w->rows : 0) + o;
				epilogue(a, r, l.matrix, o, n, z + j * OUT_BLOCK, u + j * OUT_BLOCK, out, abuf);
			}
		}
	}
}

static void run_embed(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_embed *a = args;
	const sb_weight *w = (const sb_weight *)a->w;
	float *out = row(a->out, chunk), *buf = (float *)scratch;
	const int32_t id = irow(a->ids, 0)[chunk];
	if (id < 0 || id >= w->rows) {
		memset(out, 0, w->cols * 4);
		return;
	}
#if defined(SB_INT8)
	if (w->packed && w->scheme == SB_AFFINE)
		packed_row(w, id, buf);
	else
#endif
		dequant_row(w, id, buf);
	for (int64_t i = 0; i < w->cols; i += W)
		v_store(out + i, v_load(buf + i, w->cols - i) * a->scale, w->cols - i);
}

static void run_moesort(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_moesort *a = args;
	(void)chunk, (void)scratch;
	int32_t *list = (int32_t *)a->list, *count = (int32_t *)a->count;
	int32_t *ids = list + 1, *starts = ids + a->cap, *pairs = starts + a->cap + 1;
	memset(count, 0, a->experts * 4);
	for (int64_t r = 0, p = 0; r < a->ids.rows; r++)
		for (int64_t j = 0; j < a->ids.cols; j++, p++) {
			const int32_t e = irow(a->ids, r)[j];
			if (e >= 0 && e < a->experts)
				count[e]++;
			else
				memset(row(a->out, p), 0, a->out.cols * 4);
		}
	int32_t used = 0, at = 0;
	for (int32_t e = 0; e < a->experts; e++)
		if (count[e]) {
			ids[used] = e;
			starts[used++] = at;
			at += count[e];
			count[e] = at - count[e]; // now: where the next pair goes
		}
	starts[used] = at;
	list[0] = used;
	for (int64_t r = 0, p = 0; r < a->ids.rows; r++)
		for (int64_t j = 0; j < a->ids.cols; j++, p++) {
			const int32_t e = irow(a->ids, r)[j];
			if (e >= 0 && e < a->experts)
				pairs[count[e]++] = (int32_t)p;
		}
}
