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

// Partial softmax sums of one query head: largest score, sum of exp(score - max),
// and the weighted sum of values. sum < 0: nothing was seen.
typedef struct {
	float max, sum;
	float *acc;
} partial;

static void merge(partial *a, const partial *b, int64_t n) {
	const float m = a->max > b->max ? a->max : b->max, ea = s_exp(a->max - m), eb = s_exp(b->max - m);
	a->max = m;
	a->sum = a->sum * ea + b->sum * eb;
	for (int64_t i = 0; i < n; i += W)
		v_store(a->acc + i, v_fma(v_load(a->acc + i, n - i), v_set(ea), v_load(b->acc + i, n - i) * eb), n - i);
}

// The rows of one head of a page as float32: in place, or decoded into scratch.
typedef struct {
	const float *k, *v;
	int64_t ldk, ldv;
} kv_page;

static kv_page page_load(const sb_kv *kv, int64_t page, int64_t head, int64_t from, int64_t to, float *buf) {
	const int64_t kd = kv->kdim, vd = kv->vdim, kp = padded(kd), vp = padded(vd);
	float *kbuf = buf, *vbuf = buf + PAGE * kp;
	kv_page p = {kbuf, vbuf, kp, vp};
	if (!kv->bits && kv->dtype == SB_F32) {
		p.k = (const float *)kv_at(kv, kv->k, kv->kpage, kd, page, head, 0).codes;
		p.ldk = kd;
		if (kv->v) {
			p.v = (const float *)kv_at(kv, kv->v, kv->vpage, vd, page, head, 0).codes;
			p.ldv = vd;
		}
	} else
		for (int64_t j = from; j < to; j++) {
			kv_load(kv, kv_at(kv, kv->k, kv->kpage, kd, page, head, j), kd, kbuf + j * kp);
			if (kv->v)
				kv_load(kv, kv_at(kv, kv->v, kv->vpage, vd, page, head, j), vd, vbuf + j * vp);
		}
	if (!kv->v) {
		p.v = p.k;
		p.ldv = p.ldk;
	}
	return p;
}

// score[h][j..j+3] = q[h] . k[j..j+3] for n queries, n <= 4.
INL void scores_of(int n, const float *const *q, int64_t dim, const float *k, int64_t ldk, float *score) {
	vf acc[4][4];
#pragma GCC unroll 4
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++)
			acc[h][j] = (vf){0};
	for (int64_t i = 0; i < dim; i += W) {
		vf kv[4];
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++)
			kv[j] = v_load(k + j * ldk + i, dim - i);
#pragma GCC unroll 4
		for (int h = 0; h < n; h++) {
			vf qv = v_load(q[h] + i, dim - i);
#pragma GCC unroll 4
			for (int j = 0; j < 4; j++)
				acc[h][j] = v_fma(qv, kv[j], acc[h][j]);
		}
	}
#pragma GCC unroll 4
	for (int h = 0; h < n; h++)
		v_store_sums(score + h * PAGE, acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
}

// p[h].acc[i..] = sum over j of score[h][j] * v[j][i..] for n heads and `vecs`
// whole vectors, or one that may be partial.
INL void values_of(int n, int vecs, const float *score, int64_t from, int64_t to, const float *v, int64_t ldv, int64_t left, partial *p, int64_t i) {
	vf acc[4][4];
#pragma GCC unroll 4
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int c = 0; c < vecs; c++)
			acc[h][c] = (vf){0};
	for (int64_t j = from; j < to; j++) {
		vf x[4];
#pragma GCC unroll 4
		for (int c = 0; c < vecs; c++)
			x[c] = vecs > 1 ? v_ld(v + j * ldv + i + c * W) : v_load(v + j * ldv + i, left);
#pragma GCC unroll 4
		for (int h = 0; h < n; h++) {
			vf e = v_set(score[h * PAGE + j]);
#pragma GCC unroll 4
			for (int c = 0; c < vecs; c++)
				acc[h][c] = v_fma(e, x[c], acc[h][c]);
		}
	}
#pragma GCC unroll 4
	for (int h = 0; h < n; h++)
#pragma GCC unroll 4
		for (int c = 0; c < vecs; c++)
			if (vecs > 1)
				v_st(p[h].acc + i + c * W, acc[h][c]);
			else
				v_store(p[h].acc + i, acc[h][c], left);
}

// Queries that share a loaded vector: as many as the registers hold.
#if defined(SB_AVX512) || defined(SB_NEON)
enum { QUERY_TILE = 4 };
#else
enum { QUERY_TILE = 2 };
#endif

#define QUERIES(n, call)                     \
	switch (n) {                         \
	case 1: call(1); break;              \
	case 2: call(2); break;              \
	case 3: call(QUERY_TILE - 1); break; \
	case 4: call(QUERY_TILE); break;     \
	}

// Query i sees positions [from[i], to[i]) of a page; n of them, which all lie in
// the loaded [first, last). Rows that are loaded but not visible do no harm to
// scores, which are overwritten, and are not read as values.
static void attend_page(const sb_attention *a, int64_t n, const float *const *q, const uint8_t *from, const uint8_t *to, const kv_page *kv, int64_t first, int64_t last, partial *p, float *score) {
	const int64_t kd = a->kv.kdim, vd = a->kv.vdim;
	for (int64_t i = 0, m; i < n; i += m) {
		m = min64(QUERY_TILE, n - i);
		for (int64_t j = first & ~3; j < last; j += 4) {
			const float *k = kv->k + j * kv->ldk;
			float *s = score + i * PAGE + j;
#define SCORES(m) scores_of(m, q + i, kd, k, kv->ldk, s)
			QUERIES(m, SCORES)
		}
	}
	for (int64_t i = 0; i < n; i++) {
		float *s = score + i * PAGE;
		for (int64_t j = 0; j < PAGE; j += W) {
			vf t = v_ld(s + j) * a->scale;
			if (a->softcap > 0)
				t = a->softcap * v_tanh(t / a->softcap);
			v_st(s + j, t);
		}
		for (int64_t j = 0; j < from[i]; j++)
			s[j] = -INFINITY;
		for (int64_t j = to[i]; j < PAGE; j++)
			s[j] = -INFINITY;
		const float m = largest(s, PAGE);
		vf sum = {0};
		for (int64_t j = 0; j < PAGE; j += W) {
			vf e = v_exp(v_ld(s + j) - m);
			v_st(s + j, e);
			sum += e;
		}
		p[i].max = m;
		p[i].sum = v_sum(sum);
	}
	for (int64_t i = 0, m; i < n; i += m) {
		const float *s = score + i * PAGE;
		for (m = 1; m < QUERY_TILE && i + m < n && from[i + m] == from[i] && to[i + m] == to[i];)
			m++;
		int64_t c = 0;
		for (; c + 4 * W <= vd; c += 4 * W) {
#define VALUES(m) values_of(m, 4, s, from[i], to[i], kv->v, kv->ldv, 0, p + i, c)
			QUERIES(m, VALUES)
		}
		for (; c < vd; c += W)
			for (int64_t one = 0; one < m; one++)
				values_of(1, 1, s + one * PAGE, from[i], to[i], kv->v, kv->ldv, vd - c, p + i + one, c);
	}
}

INL void visible(const sb_attention *a, int64_t r, int64_t *lo, int64_t *hi) {
	const int64_t end = a->table.cols * PAGE;
	*lo = max64(0, min64(irow(a->lo, 0)[r], end));
	*hi = max64(*lo, min64(irow(a->hi, 0)[r], end));
}

INL partial start_of(const sb_attention *a, int64_t h, float *out) {
	memset(out, 0, a->kv.vdim * 4);
	return a->sinks.p ? (partial){row(a->sinks, 0)[h], 1, out} : (partial){-INFINITY, 0, out};
}

INL void end_of(partial *w, int64_t n) {
	if (w->sum > 0)
		for (int64_t i = 0; i < n; i += W)
			v_store(w->acc + i, v_load(w->acc + i, n - i) / w->sum, n - i);
}

INL float *part_at(const sb_attention *a, int64_t r, int64_t h, int64_t block) {
	return (float *)a->part + ((r * a->heads + h) * a->table.cols + block) * a->part_size;
}

// A chunk is (rows, KV head, range of pages); neighbouring rows of one segment
// share the decoded pages. With one range the pages are merged at once, else their
// partial sums are left for run_attnmerge; both merge in page order. Query i of a
// chunk is head i % per of row i / per.
static void run_attention(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_attention *a = args;
	const int64_t split = chunk % a->splits, head = chunk / a->splits % a->kv.heads, tile = chunk / a->splits / a->kv.heads;
	const int64_t g = a->per, vd = a->kv.vdim, kd = a->kv.kdim, end = min64((tile + 1) * a->rows, a->q.rows), most = a->rows * g;
	partial *whole = (partial *)scratch, *p = whole + most;
	const float **q = (const float **)(p + most);
	int32_t *from_row = (int32_t *)(q + most); // which query of the chunk
	uint8_t *from = (uint8_t *)(from_row + most), *to = from + most;
	float *accs = (float *)(scratch + (most * (2 * sizeof(partial) + sizeof(float *) + 8) + 63) / 64 * 64);
	float *score = accs + most * padded(vd), *buf = score + most * PAGE;
	memset(score, 0, most * PAGE * 4);
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
				whole[i * g + h] = start_of(a, head * g + h, row(a->out, r1) + (head * g + h) * vd);
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
					from_row[n] = (int32_t)(i * g + h);
					from[n] = (uint8_t)rfrom;
					to[n] = (uint8_t)rto;
					p[n] = (partial){0, -1, a->splits > 1 ? part_at(a, r0 + i, head * g + h, b) + 2 : accs + n * padded(vd)};
				}
			}
			if (page >= 0 && n > 0) {
				const kv_page kv = page_load(&a->kv, page, head, low, high, buf);
				attend_page(a, n, q, from, to, &kv, low, high, p, score);
			}
			for (int64_t i = 0; i < n; i++) {
				if (a->splits > 1) {
					float *part = part_at(a, r0 + from_row[i] / g, head * g + from_row[i] % g, b);
					part[0] = p[i].max;
					part[1] = p[i].sum;
				} else if (page >= 0)
					merge(&whole[from_row[i]], &p[i], vd);
			}
		}
		for (int64_t i = 0; i < (r1 - r0) * g && a->splits == 1; i++)
			end_of(&whole[i], vd);
	}
}

// A chunk is (row, query head).
static void run_attnmerge(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_attention *a = args;
	(void)scratch;
	const int64_t r = chunk / a->heads, h = chunk % a->heads, vd = a->kv.vdim;
	int64_t lo, hi;
	visible(a, r, &lo, &hi);
	partial whole = start_of(a, h, row(a->out, r) + h * vd);
	for (int64_t b = lo / PAGE; b * PAGE < hi; b++) {
		float *part = part_at(a, r, h, b);
		partial p = {part[0], part[1], part + 2};
		if (!(p.sum < 0))
			merge(&whole, &p, vd);
	}
	end_of(&whole, vd);
}
