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

static uint16_t f32_f16(float f) {
	uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000;
	u &= 0x7fffffff;
	if (u > 0x7f800000)
		return sign | 0x7e00;
	if (u >= 0x477ff000) // 65520 and above
		return sign | 0x7c00;
	if (u < 0x38800000) // subnormal: let the addition of 2^-24 * 2^23 round
		return sign | (uint16_t)(f32_bits(bits_f32(u) + 0.5f) - 0x3f000000);
	u += 0xfff + (u >> 13 & 1) - 0x38000000;
	return sign | (uint16_t)(u >> 13);
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
	for (int64_t i = 0; i < dim; i++) {
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

// A chunk is one head of K or of V, all rows in order.
static void run_kvwrite(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_kvwrite *a = args;
	const sb_kv *kv = &a->kv;
	(void)scratch;
	const int64_t head = chunk % kv->heads;
	const int is_v = chunk >= kv->heads;
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

// Attention of one row and one KV head (g query heads) over positions [from, to)
// of a page, into p[g].
static void attend_page(const sb_attention *a, int64_t r, int64_t head, int64_t page, int64_t from, int64_t to, partial *p, float *buf) {
	const sb_kv *kv = &a->kv;
	const int64_t g = a->per, kd = kv->kdim, vd = kv->vdim, kp = padded(kd), vp = padded(vd);
	const int v_in_k = kv->v == 0;
	const int direct = !kv->bits && kv->dtype == SB_F32;
	float *score = buf, *kbuf = score + g * PAGE, *vbuf = kbuf + PAGE * kp;
	const float *q = row(a->q, r) + head * g * kd;
	for (int64_t i = 0; i < g * PAGE; i++)
		score[i] = -INFINITY;
	for (int64_t j = from; j < to; j++) {
		const float *k = kv_load(kv, kv_at(kv, kv->k, kv->kpage, kd, page, head, j), kd, kbuf + j * kp);
		for (int64_t h = 0; h < g; h++)
			score[h * PAGE + j] = a->scale * dot(q + h * kd, k, kd);
	}
	const float *v = v_in_k ? kbuf : vbuf;
	int64_t ldv = v_in_k ? kp : vp;
	if (direct) {
		v = (const float *)(v_in_k ? kv_at(kv, kv->k, kv->kpage, kd, page, head, 0) : kv_at(kv, kv->v, kv->vpage, vd, page, head, 0)).codes;
		ldv = v_in_k ? kd : vd;
	} else if (!v_in_k)
		for (int64_t j = from; j < to; j++)
			kv_load(kv, kv_at(kv, kv->v, kv->vpage, vd, page, head, j), vd, vbuf + j * vp);
	for (int64_t h = 0; h < g; h++) {
		float *s = score + h * PAGE;
		if (a->softcap > 0)
			for (int64_t j = 0; j < PAGE; j += W) {
				vf t = a->softcap * v_tanh(v_ld(s + j) / a->softcap);
				v_st(s + j, v_select(v_ld(s + j) == -INFINITY, v_set(-INFINITY), t));
			}
		const float m = largest(s, PAGE);
		vf sum = {0};
		for (int64_t j = 0; j < PAGE; j += W) {
			vf e = v_exp(v_ld(s + j) - m);
			v_st(s + j, e);
			sum += e;
		}
		p[h].max = m;
		p[h].sum = v_sum(sum);
		float *acc = p[h].acc;
		int64_t i = 0;
		for (; i + 4 * W <= vd; i += 4 * W) {
			vf c0 = {0}, c1 = {0}, c2 = {0}, c3 = {0};
			for (int64_t j = from; j < to; j++) {
				const float *x = v + j * ldv + i;
				vf e = v_set(s[j]);
				c0 = v_fma(e, v_ld(x), c0);
				c1 = v_fma(e, v_ld(x + W), c1);
				c2 = v_fma(e, v_ld(x + 2 * W), c2);
				c3 = v_fma(e, v_ld(x + 3 * W), c3);
			}
			v_st(acc + i, c0);
			v_st(acc + i + W, c1);
			v_st(acc + i + 2 * W, c2);
			v_st(acc + i + 3 * W, c3);
		}
		for (; i < vd; i += W) {
			vf c = {0};
			for (int64_t j = from; j < to; j++)
				c = v_fma(v_set(s[j]), v_load(v + j * ldv + i, vd - i), c);
			v_store(acc + i, c, vd - i);
		}
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

// A chunk is (row, KV head, range of pages). With one range the pages are merged
// at once, else their partial sums are left for run_attnmerge; both merge in page
// order.
static void run_attention(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_attention *a = args;
	const int64_t split = chunk % a->splits, head = chunk / a->splits % a->kv.heads, r = chunk / a->splits / a->kv.heads;
	const int64_t g = a->per, vd = a->kv.vdim, segment = irow(a->of, 0)[r];
	partial *whole = (partial *)scratch, *p = whole + g;
	float *accs = (float *)(p + g), *buf = accs + g * padded(vd);
	int64_t lo, hi;
	visible(a, r, &lo, &hi);
	const int64_t b0 = lo / PAGE, blocks = hi > lo ? (hi + PAGE - 1) / PAGE - b0 : 0;
	const int64_t from = b0 + blocks * split / a->splits, to = b0 + blocks * (split + 1) / a->splits;
	if (a->splits == 1)
		for (int64_t h = 0; h < g; h++)
			whole[h] = start_of(a, head * g + h, row(a->out, r) + (head * g + h) * vd);
	for (int64_t b = from; b < to; b++) {
		const int64_t page = page_of(a->table, &a->kv, segment, b);
		for (int64_t h = 0; h < g; h++) {
			float *part = a->splits > 1 ? part_at(a, r, head * g + h, b) : NULL;
			p[h] = (partial){0, -1, part ? part + 2 : accs + h * padded(vd)};
		}
		if (page >= 0)
			attend_page(a, r, head, page, max64(lo - b * PAGE, 0), min64(hi - b * PAGE, PAGE), p, buf);
		for (int64_t h = 0; h < g; h++) {
			if (a->splits > 1) {
				float *part = part_at(a, r, head * g + h, b);
				part[0] = p[h].max;
				part[1] = p[h].sum;
			} else if (page >= 0)
				merge(&whole[h], &p[h], vd);
		}
	}
	if (a->splits == 1)
		for (int64_t h = 0; h < g; h++)
			end_of(&whole[h], vd);
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
