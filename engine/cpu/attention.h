// The paged KV cache and attention over it.

enum { PAGE = 64 };

// Where the page of a block of a segment lies; -1 if it is dropped or out of range.
INL int64_t page_of(sb_view table, const sb_kv *kv, int64_t segment, int64_t block) {
	if (segment < 0 || segment >= table.rows || block < 0 || block >= table.cols)
		return -1;
	const int64_t page = irow(table, segment)[block];
	return page < kv->pages ? page : -1;
}

// Row `at` of a head inside a page of rows of dim elements.
typedef struct {
	uint8_t *codes;
	float *scales, *biases; // quantized
} kv_row;

INL kv_row kv_at(const sb_kv *kv, uintptr_t mem, int64_t page_bytes, int64_t dim, int64_t page, int64_t head, int64_t at) {
	uint8_t *p = (uint8_t *)mem + page * page_bytes;
	const int64_t i = head * PAGE + at, rows = kv->heads * PAGE;
	if (!kv->bits)
		return (kv_row){p + i * dim * elem_size(kv->dtype), NULL, NULL};
	const int64_t n = dim * kv->bits / 8, g = dim / kv->group;
	float *scales = (float *)(p + rows * n);
	return (kv_row){p + i * n, scales + i * g, scales + rows * g + i * g};
}

static uint16_t f32_bf16(float f) {
	uint32_t u = f32_bits(f);
	return f != f ? (u >> 16 | 0x40) : (u + 0x7fff + (u >> 16 & 1)) >> 16;
}

// One group as MLX quantizes it: the end of the range with the larger magnitude,
// and zero, come out exactly.
static void quantize_group(uint8_t *codes, const float *x, int64_t n, int bits, float *scale_out, float *bias_out) {
	float lo = x[0], hi = x[0];
	for (int64_t i = 1; i < n; i++) {
		lo = x[i] < lo ? x[i] : lo;
		hi = x[i] > hi ? x[i] : hi;
	}
	const float top = (float)((1 << bits) - 1);
	float scale = (hi - lo) / top, edge = lo, bias = 0;
	scale = scale > 1e-7f ? scale : 1e-7f;
	if (!(fabsf(lo) > fabsf(hi))) {
		scale = -scale;
		edge = hi;
	}
	const float q = rintf(edge / scale);
	if (q != 0) {
		scale = edge / q;
		bias = edge;
	}
	memset(codes, 0, n * bits / 8);
	for (int64_t i = 0; i < n; i++) {
		float c = rintf((x[i] - bias) / scale);
		c = c > 0 ? c < top ? c : top : 0;
		codes[i * bits / 8] |= (uint8_t)((int)c << (i * bits % 8));
	}
	*scale_out = scale;
	*bias_out = bias;
}

static void kv_store(const sb_kv *kv, kv_row to, const float *x, int64_t dim) {
	if (kv->bits) {
		for (int64_t g = 0; g < dim / kv->group; g++)
			quantize_group(to.codes + g * kv->group * kv->bits / 8, x + g * kv->group, kv->group, kv->bits, to.scales + g, to.biases + g);
		return;
	}
	if (kv->dtype == SB_F32) {
		memcpy(to.codes, x, dim * 4);
		return;
	}
	int64_t i = 0;
#if defined(SB_AVX512) || defined(SB_AVX2) || defined(SB_NEON)
	for (; kv->dtype == SB_F16 && i + W <= dim; i += W)
		v_store_half(to.codes + 2 * i, v_ld(x + i));
#endif
	for (; i < dim; i++) {
		const uint16_t h = kv->dtype == SB_F16 ? f32_f16(x[i]) : f32_bf16(x[i]);
		memcpy(to.codes + 2 * i, &h, 2);
	}
}

// The first n of dim elements as float32: in place, or in buf (room for padded(dim)).
INL const float *kv_load(const sb_kv *kv, kv_row from, int64_t n, float *buf) {
	if (kv->bits) {
		for (int64_t g = 0; g * kv->group < n; g++)
			affine_group(buf + g * kv->group, from.codes + g * kv->group * kv->bits / 8, kv->group, kv->bits, from.scales[g], from.biases[g]);
		return buf;
	}
	if (kv->dtype == SB_F32)
		return (const float *)from.codes;
	widen(buf, from.codes, n, kv->dtype);
	return buf;
}

// Side i of a cache is head i of K, or head i - heads of V: all rows in order.
static void write_side(const sb_kvwrite *a, int64_t i) {
	const sb_kv *kv = &a->kv;
	const int64_t head = i % kv->heads;
	const int is_v = i >= kv->heads;
	const int64_t dim = is_v ? kv->vdim : kv->kdim;
	for (int64_t r = 0; r < a->k.rows; r++) {
		const int64_t pos = irow(a->pos, 0)[r];
		if (pos < 0)
			continue;
		const int64_t page = page_of(a->table, kv, irow(a->of, 0)[r], pos / PAGE);
		if (page < 0)
			continue;
		kv_store(kv, kv_at(kv, is_v ? kv->v : kv->k, is_v ? kv->vpage : kv->kpage, dim, page, head, pos % PAGE), row(is_v ? a->v : a->k, r) + head * dim, dim);
	}
}

static void run_kvwrite(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_kvwrite *a = args;
	(void)scratch;
	const int64_t sides = a->kv.v ? 2 * a->kv.heads : a->kv.heads;
	for (int64_t i = chunk * a->sides, end = min64(i + a->sides, sides); i < end; i++)
		write_side(a, i);
}

// The rows of one head of a page, as they lie or decoded into scratch.
typedef struct {
	const uint8_t *k, *v;
	int64_t ldk, ldv; // bytes of a row
} kv_page;

static kv_page page_of_head(const sb_kv *kv, int64_t page, int64_t head) {
	const int64_t bits = kv->bits ? kv->bits : 8 * elem_size(kv->dtype);
	kv_page p = {kv_at(kv, kv->k, kv->kpage, kv->kdim, page, head, 0).codes, NULL, kv->kdim * bits / 8, kv->vdim * bits / 8};
	if (kv->v)
		p.v = kv_at(kv, kv->v, kv->vpage, kv->vdim, page, head, 0).codes;
	else
		p.v = p.k, p.ldv = p.ldk;
	return p;
}

static kv_page page_decode(const sb_kv *kv, int64_t page, int64_t head, int64_t from, int64_t to, float *buf) {
	const int64_t kd = kv->kdim, vd = kv->vdim, kp = padded(kd), vp = padded(vd);
	float *kbuf = buf, *vbuf = kv->v ? buf + PAGE * kp : buf;
	for (int64_t j = from; j < to; j++) {
		kv_load(kv, kv_at(kv, kv->k, kv->kpage, kd, page, head, j), kd, kbuf + j * kp);
		if (kv->v)
			kv_load(kv, kv_at(kv, kv->v, kv->vpage, vd, page, head, j), vd, vbuf + j * vp);
	}
	return (kv_page){(uint8_t *)kbuf, (uint8_t *)vbuf, kp * 4, (kv->v ? vp : kp) * 4};
}

// Queries that share four loaded keys, or four vectors of a value: as many as the
// registers hold.
#if defined(SB_AVX512)
enum { QUERY_TILE = 6 };
#define OTHER_QUERIES(call) case 4: call(4); break; case 5: call(5); break; case 6: call(6); break;
#elif defined(SB_NEON)
enum { QUERY_TILE = 4 };
#define OTHER_QUERIES(call) case 4: call(4); break;
#else
enum { QUERY_TILE = 3 };
#define OTHER_QUERIES(call)
#endif
#define QUERIES(n, call)          \
	switch (n) {              \
	case 1: call(1); break;   \
	case 2: call(2); break;   \
	case 3: call(3); break;   \
	OTHER_QUERIES(call)       \
	}

INL int64_t query_tiles(int64_t n) { return (n + QUERY_TILE - 1) / QUERY_TILE; }

// The next tile of n queries: all are about as large.
INL int64_t query_tile(int64_t n) { return (n + query_tiles(n) - 1) / query_tiles(n); }

// A vector of elements i and up of a row.
INL vf kv_vector(int dtype, const uint8_t *p, int64_t i) { return dtype == SB_F16 ? v_half(p + 2 * i) : dtype == SB_BF16 ? v_bhalf(p + 2 * i) : v_ld(p + 4 * i); }

// score[h][0..3] = q[h] . k[0..3] for n queries. Only rows of float32 may end
// within a vector. Of the queries and the keys those that are fewer stay in registers.
INL void scores_of(int n, int dtype, const float *const *q, int64_t dim, const uint8_t *k, int64_t ldk, float *score) {
	vf acc[QUERY_TILE][4];
#pragma GCC unroll 6
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++)
			acc[h][j] = (vf){0};
	int64_t i = 0;
	for (; i + W <= dim; i += W)
		if (n < 4) {
			vf x[QUERY_TILE];
#pragma GCC unroll 6
			for (int h = 0; h < n; h++)
				x[h] = v_ld(q[h] + i);
#pragma GCC unroll 4
			for (int j = 0; j < 4; j++) {
				vf y = kv_vector(dtype, k + j * ldk, i);
#pragma GCC unroll 6
				for (int h = 0; h < n; h++)
					acc[h][j] = v_fma(x[h], y, acc[h][j]);
			}
		} else {
			vf y[4];
#pragma GCC unroll 4
			for (int j = 0; j < 4; j++)
				y[j] = kv_vector(dtype, k + j * ldk, i);
#pragma GCC unroll 6
			for (int h = 0; h < n; h++) {
				vf x = v_ld(q[h] + i);
#pragma GCC unroll 4
				for (int j = 0; j < 4; j++)
					acc[h][j] = v_fma(x, y[j], acc[h][j]);
			}
		}
	if (dtype == SB_F32 && i < dim)
#pragma GCC unroll 6
		for (int h = 0; h < n; h++)
#pragma GCC unroll 4
			for (int j = 0; j < 4; j++)
				acc[h][j] = v_fma(v_ldn(q[h] + i, dim - i), v_ldn((const float *)(k + j * ldk) + i, dim - i), acc[h][j]);
#pragma GCC unroll 6
	for (int h = 0; h < n; h++)
		v_store_sums(score + h * PAGE, acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
}

// What is read next, to be fetched while other things are worked on: some lines at
// each step of the work.
typedef struct {
	const uint8_t *p;
	int64_t lines, each;
} stretch;

INL void fetch(stretch *s) {
	const int64_t lines = min64(s->each, s->lines);
	for (int64_t i = 0; i < lines; i++)
		__builtin_prefetch(s->p + 64 * i);
	s->lines -= lines;
	s->p += 64 * lines;
}

INL stretch stretch_of(const uint8_t *p, int64_t from, int64_t to, int64_t ld) { return (stretch){p + from * ld, ((to - from) * ld + 63) / 64, 0}; }

// acc[h][i..] = sum over j of score[h][j] * v[j][i..] for n heads and `vecs` whole
// vectors, or one of which `left` elements remain.
INL void values_of(int n, int vecs, int dtype, const float *score, int64_t from, int64_t to, const uint8_t *v, int64_t ldv, int64_t left, float *const *acc, int64_t i, stretch *next) {
	vf sum[QUERY_TILE][4];
#pragma GCC unroll 6
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int c = 0; c < vecs; c++)
			sum[h][c] = (vf){0};
	for (int64_t j = from; j < to; j++) {
		fetch(next);
		const float *w = score + j;
#define VALUE(c) (left ? v_ldn((const float *)(v + j * ldv) + i, left) : kv_vector(dtype, v + j * ldv, i + (c)*W))
		if (n < 4) {
			vf x[QUERY_TILE];
#pragma GCC unroll 6
			for (int h = 0; h < n; h++)
				x[h] = v_set(w[h * PAGE]);
#pragma GCC unroll 4
			for (int c = 0; c < vecs; c++) {
				vf y = VALUE(c);
#pragma GCC unroll 6
				for (int h = 0; h < n; h++)
					sum[h][c] = v_fma(x[h], y, sum[h][c]);
			}
		} else {
			vf y[4];
#pragma GCC unroll 4
			for (int c = 0; c < vecs; c++)
				y[c] = VALUE(c);
#pragma GCC unroll 6
			for (int h = 0; h < n; h++) {
				vf x = v_set(w[h * PAGE]);
#pragma GCC unroll 4
				for (int c = 0; c < vecs; c++)
					sum[h][c] = v_fma(x, y[c], sum[h][c]);
			}
		}
	}
#pragma GCC unroll 6
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int c = 0; c < vecs; c++)
			if (left)
				v_stn(acc[h] + i, sum[h][c], left);
			else
				v_st(acc[h] + i + c * W, sum[h][c]);
}

// Partial softmax sums of n queries: largest score, sum of exp(score - max), and
// the weighted sum of values. (max and sum: room for whole vectors.)
typedef struct {
	float *max, *sum;
	float **acc;
} partials;

// Scores of one query on a page become weights. It sees [from, to).
static void soften(const sb_attention *a, float *s, int64_t from, int64_t to, float *max, float *sum) {
	vf t[PAGE / W], m = v_set(-INFINITY), total = {0};
	if (to - from < PAGE) {
		for (int64_t j = 0; j < from; j++)
			s[j] = -INFINITY;
		for (int64_t j = to; j < PAGE; j++)
			s[j] = -INFINITY;
	}
#pragma GCC unroll 16
	for (int j = 0; j < PAGE / W; j++) {
		t[j] = v_ld(s + j * W) * a->scale;
		if (a->softcap > 0)
			t[j] = v_select(t[j] > -INFINITY, a->softcap * v_tanh(t[j] / a->softcap), t[j]);
		m = v_max(t[j], m);
	}
	const float top = v_top(m);
#pragma GCC unroll 16
	for (int j = 0; j < PAGE / W; j++) {
		vf e = v_weight(t[j] - top);
		v_st(s + j * W, e);
		total += e;
	}
	*max = top;
	*sum = v_sum(total);
}

// Query i sees positions [from[i], to[i]) of a page; n of them, which all lie in
// the loaded [first, last). Rows that are loaded but not visible do no harm to
// scores, which are overwritten, and are not read as values. The stretches s and v
// are fetched beside the scores and beside the values.
INL void attend(int dtype, const sb_attention *a, int64_t n, const float *const *q, const uint8_t *from, const uint8_t *to, const kv_page *kv, stretch s, stretch v, int64_t first, int64_t last, partials p, float *score) {
	const int64_t kd = a->kv.kdim, vd = a->kv.vdim, tiles = query_tiles(n), ssteps = tiles * ((last - (first & ~3) + 3) / 4), vsteps = tiles * (last - first) * max64(vd / (4 * W), 1);
	s.each = (s.lines + ssteps - 1) / ssteps;
	v.each = (v.lines + vsteps - 1) / vsteps;
	for (int64_t i = 0, m; i < n; i += m) {
		m = query_tile(n - i);
		for (int64_t j = first & ~3; j < last; j += 4) {
			fetch(&s);
#define SCORES(m) scores_of(m, dtype, q + i, kd, kv->k + j * kv->ldk, kv->ldk, score + i * PAGE + j)
			QUERIES(m, SCORES)
		}
	}
	for (int64_t i = 0; i < n; i++)
		soften(a, score + i * PAGE, from[i], to[i], p.max + i, p.sum + i);
	for (int64_t i = 0, m; i < n; i += m) {
		const float *w = score + i * PAGE;
		const int64_t most = query_tile(n - i);
		for (m = 1; m < most && from[i + m] == from[i] && to[i + m] == to[i];)
			m++;
		int64_t c = 0;
		for (; c + 4 * W <= vd; c += 4 * W) {
#define VALUES(m) values_of(m, 4, dtype, w, from[i], to[i], kv->v, kv->ldv, 0, p.acc + i, c, &v)
			QUERIES(m, VALUES)
		}
		for (; c < vd; c += W)
			for (int64_t one = 0; one < m; one++)
				if (vd - c >= W)
					values_of(1, 1, dtype, w + one * PAGE, from[i], to[i], kv->v, kv->ldv, 0, p.acc + i + one, c, &v);
				else
					values_of(1, 1, SB_F32, w + one * PAGE, from[i], to[i], kv->v, kv->ldv, vd - c, p.acc + i + one, c, &v);
	}
}

// next is the page after: its K and its V.
static void attend_page(const sb_attention *a, int64_t page, const stretch *next, int64_t head, int64_t n, const float *const *q, const uint8_t *from, const uint8_t *to, int64_t first, int64_t last, partials p, float *score, float *buf) {
	const sb_kv *kv = &a->kv;
	const int whole = kv->kdim % W == 0 && kv->vdim % W == 0;
	kv_page at = page_of_head(kv, page, head);
	const stretch v = kv->v ? stretch_of(at.v, first, last, at.ldv) : (stretch){0};
	if (!kv->bits && kv->dtype == SB_F32)
		attend(SB_F32, a, n, q, from, to, &at, v, next[0], first, last, p, score);
	else if (!kv->bits && kv->dtype == SB_F16 && whole) // decoded on the way
		attend(SB_F16, a, n, q, from, to, &at, v, next[0], first, last, p, score);
	else {
		at = page_decode(kv, page, head, first, last, buf);
		attend(SB_F32, a, n, q, from, to, &at, next[0], next[1], first, last, p, score);
	}
}

// How W sums so far and W more meet: the factors of both.
INL void meet(float *max, float *sum, const float *max2, const float *sum2, float *factor, float *factor2) {
	vf a = v_ld(max), b = v_ld(max2), m = v_max(a, b), ea = v_weight(a - m), eb = v_weight(b - m);
	v_st(max, m);
	v_st(sum, v_ld(sum) * ea + v_ld(sum2) * eb);
	v_st(factor, ea);
	v_st(factor2, eb);
}

INL void add_scaled(float *a, float ea, const float *b, float eb, int64_t n) {
	for (int64_t i = 0; i < n; i += W)
		v_store(a + i, v_fma(v_load(a + i, n - i), v_set(ea), v_load(b + i, n - i) * eb), n - i);
}

INL void visible(const sb_attention *a, int64_t r, int64_t *lo, int64_t *hi) {
	const int64_t end = a->table.cols * PAGE;
	*lo = max64(0, min64(irow(a->lo, 0)[r], end));
	*hi = max64(*lo, min64(irow(a->hi, 0)[r], end));
}

// The sums of query head h of a row before any page; the values are summed in out.
INL void start_of(const sb_attention *a, int64_t h, float *out, float *max, float *sum) {
	memset(out, 0, a->kv.vdim * 4);
	*max = a->sinks.p ? row(a->sinks, 0)[h] : -INFINITY;
	*sum = a->sinks.p ? 1 : 0;
}

INL void end_of(float *out, float sum, int64_t n) {
	if (sum > 0)
		for (int64_t i = 0; i < n; i += W)
			v_store(out + i, v_load(out + i, n - i) / sum, n - i);
}

INL float *part_at(const sb_attention *a, int64_t r, int64_t h, int64_t block) {
	return (float *)a->part + ((r * a->heads + h) * a->table.cols + block) * a->part_size;
}

// Where a head of a block of a segment lies, as far as [lo, hi) is in it.
static void after(const sb_attention *a, int64_t segment, int64_t block, int64_t head, int64_t lo, int64_t hi, stretch *next) {
	const int64_t page = page_of(a->table, &a->kv, segment, block), from = max64(lo - block * PAGE, 0), to = min64(hi - block * PAGE, PAGE);
	if (page < 0 || from >= to)
		return;
	const kv_page at = page_of_head(&a->kv, page, head);
	next[0] = stretch_of(at.k, from, to, at.ldk);
	if (a->kv.v)
		next[1] = stretch_of(at.v, from, to, at.ldv);
}

// A chunk is (rows, KV head, range of pages); neighbouring rows of one segment
// share the decoded pages. With one range the pages are merged at once, else their
// partial sums are left for run_attnmerge; both merge in page order. Query i of a
// chunk is head i % per of row i / per.
static void run_attention(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_attention *a = args;
	const int64_t split = chunk % a->splits, head = chunk / a->splits % a->kv.heads, tile = chunk / a->splits / a->kv.heads;
	const int64_t g = a->per, vd = a->kv.vdim, kd = a->kv.kdim, end = min64((tile + 1) * a->rows, a->q.rows), most = (a->rows * g + 15) / 16 * 16;
	// Of all queries: the sums so far. Of those that see a page: which query (its
	// sums and where its values go), its range, the sums on the page.
	float *max = (float *)scratch, *sum = max + most, *emax = sum + most, *esum = emax + most, *factor = esum + most, *factor2 = factor + most;
	partials p = {factor2 + most, factor2 + 2 * most, (float **)(factor2 + 3 * most)};
	const float **q = (const float **)(p.acc + most);
	int32_t *of = (int32_t *)(q + most);
	uint8_t *from = (uint8_t *)(of + most), *to = from + most;
	float *accs = (float *)(to + most), *score = accs + most * padded(vd), *buf = score + most * PAGE;
	memset(score, 0, most * PAGE * 4);
	memset(scratch, 0, 8 * most * sizeof(float)); // vectors may have more lanes than there are queries
	stretch next[2];
	for (int64_t r0 = tile * a->rows, r1; r0 < end; r0 = r1) {
		const int64_t segment = irow(a->of, 0)[r0];
		int64_t lo[SB_ATTN_ROWS], hi[SB_ATTN_ROWS], first = INT64_MAX, last = 0; // blocks that any row sees
		for (r1 = r0; r1 < end && irow(a->of, 0)[r1] == segment; r1++) {
			const int64_t i = r1 - r0;
			visible(a, r1, &lo[i], &hi[i]);
			if (lo[i] < hi[i]) {
				first = min64(first, lo[i] / PAGE);
				last = max64(last, (hi[i] + PAGE - 1) / PAGE);
			}
			for (int64_t h = 0; h < g && a->splits == 1; h++)
				start_of(a, head * g + h, row(a->out, r1) + (head * g + h) * vd, max + i * g + h, sum + i * g + h);
		}
		const int64_t blocks = last > first ? last - first : 0;
		for (int64_t b = first + blocks * split / a->splits, bend = first + blocks * (split + 1) / a->splits; blocks > 0 && b < bend; b++) {
			const int64_t page = page_of(a->table, &a->kv, segment, b);
			int64_t n = 0, low = PAGE, high = 0;
			for (int64_t i = 0; i < r1 - r0; i++) {
				const int64_t rfrom = max64(lo[i] - b * PAGE, 0), rto = min64(hi[i] - b * PAGE, PAGE);
				if (rfrom >= rto)
					continue; // run_attnmerge does not look at this block either
				low = min64(low, rfrom);
				high = max64(high, rto);
				for (int64_t h = 0; h < g; h++, n++) {
					q[n] = row(a->q, r0 + i) + (head * g + h) * kd;
					of[n] = (int32_t)(i * g + h);
					from[n] = (uint8_t)rfrom;
					to[n] = (uint8_t)rto;
					p.acc[n] = a->splits > 1 ? part_at(a, r0 + i, head * g + h, b) + 2 : accs + n * padded(vd);
					p.sum[n] = -1; // not seen
				}
			}
			if (page >= 0 && n > 0) {
				memset(next, 0, sizeof next);
				if (b + 1 < bend)
					after(a, segment, b + 1, head, lo[0], hi[r1 - r0 - 1], next);
				else if (r1 < end && a->splits == 1) {
					int64_t l, h;
					visible(a, r1, &l, &h);
					after(a, irow(a->of, 0)[r1], l / PAGE, head, l, h, next);
				}
				attend_page(a, page, next, head, n, q, from, to, low, high, p, score, buf);
			}
			if (a->splits > 1) {
				for (int64_t i = 0; i < n; i++) {
					p.acc[i][-2] = p.max[i];
					p.acc[i][-1] = p.sum[i];
				}
				continue;
			}
			if (page < 0)
				continue;
			for (int64_t i = 0; i < n; i++)
				emax[i] = max[of[i]], esum[i] = sum[of[i]];
			for (int64_t i = 0; i < n; i += W)
				meet(emax + i, esum + i, p.max + i, p.sum + i, factor + i, factor2 + i);
			for (int64_t i = 0; i < n; i++) {
				max[of[i]] = emax[i], sum[of[i]] = esum[i];
				add_scaled(row(a->out, r0 + of[i] / g) + (head * g + of[i] % g) * vd, factor[i], p.acc[i], factor2[i], vd);
			}
		}
		for (int64_t i = 0; i < (r1 - r0) * g && a->splits == 1; i++)
			end_of(row(a->out, r0 + i / g) + (head * g + i % g) * vd, sum[i], vd);
	}
}

// A chunk is (row, query head).
static void run_attnmerge(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_attention *a = args;
	(void)scratch;
	const int64_t r = chunk / a->heads, h = chunk % a->heads, vd = a->kv.vdim;
	int64_t lo, hi;
	visible(a, r, &lo, &hi);
	float *out = row(a->out, r) + h * vd, max[W] = {0}, sum[W] = {0}, max2[W] = {0}, sum2[W] = {0}, factor[W], factor2[W];
	start_of(a, h, out, max, sum);
	for (int64_t b = lo / PAGE; b * PAGE < hi; b++) {
		const float *part = part_at(a, r, h, b);
		if (part[1] < 0)
			continue;
		max2[0] = part[0], sum2[0] = part[1];
		meet(max, sum, max2, sum2, factor, factor2);
		add_scaled(out, factor[0], part + 2, factor2[0], vd);
	}
	end_of(out, sum[0], vd);
}
