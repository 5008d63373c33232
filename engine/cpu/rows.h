// Ops that work row by row: norms, rope, elementwise, choices of the largest,
// routing.

static void norm_row(const sb_norm *a, int64_t r) {
	enum { L2 = 1, BEFORE = 1, AFTER = 2 };
	const float *x = row(a->x, r), *gate = a->gate.p ? row(a->gate, r) : NULL, *w = a->w.p ? row(a->w, 0) : NULL;
	float *out = row(a->out, r);
	const int64_t g = a->group;
	for (int64_t at = 0; at < a->x.cols; at += g) {
		const float *z = x + at, *wg = w ? w + (a->w.cols == g ? 0 : at) : NULL;
		float *y = out + at;
		if (a->place == BEFORE) {
			for (int64_t i = 0; i < g; i += W)
				v_store(y + i, v_load(z + i, g - i) * v_silu(v_load(gate + at + i, g - i)), g - i);
			z = y;
		}
		float sum = dot(z, z, g);
		if (a->kind != L2)
			sum /= (float)g;
		const float inverse = 1.0f / sqrtf(sum + a->eps);
		for (int64_t i = 0; i < g; i += W) {
			vf v = v_load(z + i, g - i) * inverse * a->scale;
			if (wg)
				v *= v_load(wg + i, g - i) + a->offset;
			if (a->place == AFTER)
				v *= v_silu(v_load(gate + at + i, g - i));
			v_store(y + i, v, g - i);
		}
	}
}

static void run_norm(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_norm *a = args;
	(void)scratch;
	for (int64_t r = chunk * a->rows, end = min64(r + a->rows, a->x.rows); r < end; r++)
		norm_row(a, r);
}

// Row r of the table: cos, then sin, of pos[r]*freq[i].
static void run_ropetable(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_ropetable *a = args;
	(void)scratch;
	const int64_t half = a->freq.cols;
	float *c = (float *)a->table + chunk * 2 * half, *s = c + half;
	const float pos = (float)irow(a->pos, 0)[chunk], *freq = row(a->freq, 0);
	for (int64_t i = 0; i < half; i++) {
		const double angle = (double)(pos * freq[i]);
		c[i] = (float)cos(angle);
		s[i] = (float)sin(angle);
	}
}

static void rope_row(const sb_rope *a, int64_t r) {
	const int64_t half = a->half;
	const float *c = (const float *)a->table + r * 2 * half, *s = c + half;
	float scale = 1;
	if (a->qbeta != 0)
		scale += a->qbeta * (float)log1p(floor((double)irow(a->pos, 0)[r] / (double)a->qorig));
	float *x = row(a->x, r);
	for (float *h = x; h < x + a->x.cols; h += a->head_dim) {
		if (a->interleaved)
			for (int64_t i = 0; i < half; i++) {
				float u = h[2 * i] * a->mul, v = h[2 * i + 1] * a->mul;
				h[2 * i] = u * c[i] - v * s[i];
				h[2 * i + 1] = v * c[i] + u * s[i];
			}
		else
			for (int64_t i = 0; i < half; i += W) {
				const int64_t left = half - i;
				vf u = v_load(h + i, left) * a->mul, v = v_load(h + half + i, left) * a->mul, cv = v_load(c + i, left), sv = v_load(s + i, left);
				v_store(h + i, u * cv - v * sv, left);
				v_store(h + half + i, v * cv + u * sv, left);
			}
		if (a->qbeta != 0)
			for (int64_t i = 0; i < a->head_dim; i += W)
				v_store(h + i, v_load(h + i, a->head_dim - i) * scale, a->head_dim - i);
	}
}

static void run_rope(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_rope *a = args;
	(void)scratch;
	for (int64_t r = chunk * a->rows, end = min64(r + a->rows, a->x.rows); r < end; r++)
		rope_row(a, r);
}

static void run_binary(const void *args, int64_t chunk, uint8_t *scratch) {
	enum { ADD, MUL, SIGMOID_MUL, SILU_MUL };
	const sb_binary *a = args;
	(void)scratch;
	const int64_t r = chunk / a->per, from = chunk % a->per * a->cols, to = min64(from + a->cols, a->a.cols);
	const float *x = row(a->a, r), *b = row(a->b, r < a->b.rows ? r : a->b.rows - 1);
	float *out = row(a->out, r);
	for (int64_t i = from; i < to;) {
		// With groups, a stretch of columns meets one element of b.
		const int64_t end = a->bgroup ? min64(to, (i / a->bgroup + 1) * a->bgroup) : to;
		for (int64_t left; left = end - i, left > 0; i += W) {
			vf v = v_load(x + i, left), y = a->bgroup ? v_set(b[i / a->bgroup]) : v_load(b + i, left);
			switch (a->kind) {
			case ADD:
				y = v + y;
				break;
			case MUL:
				y = v * y;
				break;
			case SIGMOID_MUL:
				y = v * v_sigmoid(y);
				break;
			case SILU_MUL:
				y = v * v_silu(y);
			}
			v_store(out + i, y * a->scale, left);
		}
		i = end;
	}
}

static void run_unary(const void *args, int64_t chunk, uint8_t *scratch) {
	enum { SCALE, SOFTCAP, SIGMOID, SILU };
	const sb_unary *a = args;
	(void)scratch;
	const int64_t r = chunk / a->per, from = chunk % a->per * a->cols, to = min64(from + a->cols, a->x.cols);
	const float *x = row(a->x, r);
	float *out = row(a->out, r);
	for (int64_t i = from; i < to; i += W) {
		vf v = v_load(x + i, to - i);
		switch (a->kind) {
		case SCALE:
			v = v * a->v;
			break;
		case SOFTCAP:
			v = a->v * v_tanh(v / a->v);
			break;
		case SIGMOID:
			v = v_sigmoid(v);
			break;
		case SILU:
			v = v_silu(v);
		}
		v_store(out + i, v, to - i);
	}
}

static void run_copy(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_copy *a = args;
	(void)scratch;
	int64_t from = a->index.p ? irow(a->index, 0)[chunk] : chunk;
	if (from < 0 || from >= a->src.rows)
		memset(row(a->dst, chunk), 0, a->dst.cols * 4);
	else
		memmove(row(a->dst, chunk), row(a->src, from), a->dst.cols * 4);
}

static void run_mapids(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_mapids *a = args;
	(void)chunk, (void)scratch;
	for (int64_t i = 0; i < a->ids.cols; i++) {
		const int32_t id = irow(a->ids, 0)[i];
		irow(a->out, 0)[i] = id < 0 || id >= a->offset.cols ? 0 : (int32_t)((uint32_t)id + (uint32_t)irow(a->offset, 0)[id]);
	}
}

// Order of scores: a larger one first, NaN last, ties to the lower index.
INL int better(float a, int64_t ia, float b, int64_t ib) {
	if (a > b || b > a)
		return a > b;
	if (a != a || b != b)
		if ((a != a) != (b != b))
			return a == a;
	return ia < ib;
}

// The k best of n scores, best first. taken: n bytes.
static void best_of(const float *s, int64_t n, int64_t k, int32_t *ids, uint8_t *taken) {
	memset(taken, 0, n);
	for (int64_t j = 0; j < k; j++) {
		int64_t at = -1;
		for (int64_t i = 0; i < n; i++)
			if (!taken[i] && (at < 0 || better(s[i], i, s[at], at)))
				at = i;
		taken[at] = 1;
		ids[j] = (int32_t)at;
	}
}

// The best score; NaN only when all are.
INL float top_of(const float *s, int64_t n) {
	int64_t at = 0;
	for (int64_t i = 1; i < n; i++)
		if (better(s[i], i, s[at], at))
			at = i;
	return s[at];
}

static void softmax(float *x, int64_t n) {
	const float m = top_of(x, n);
	float sum = 0;
	for (int64_t i = 0; i < n; i += W)
		v_store(x + i, v_exp(v_load(x + i, n - i) - m), n - i);
	for (int64_t i = 0; i < n; i++)
		sum += x[i];
	for (int64_t i = 0; i < n; i++)
		x[i] /= sum;
}

// Partial results of one part of a row: its best, or its largest and sum.
typedef struct {
	float value, sum;
	int64_t at;
} part;

INL part *part_of(const sb_reduce *a, int64_t r, int64_t i) { return (part *)a->part + r * a->per + i; }

static void run_argmax(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_reduce *a = args;
	(void)scratch;
	const int64_t r = chunk / a->per, from = chunk % a->per * SB_PART, n = min64(SB_PART, a->x.cols - from);
	const float *x = row(a->x, r) + from;
	const float m = largest(x, n);
	int64_t at = 0;
	// All NaN: m is -Inf and nothing equals it, so the first wins.
	for (int64_t i = 0; i < n; i++)
		if (x[i] == m) {
			at = i;
			break;
		}
	*part_of(a, r, chunk % a->per) = (part){x[at], 0, from + at};
}

static void finish_argmax(const void *args) {
	const sb_reduce *a = args;
	for (int64_t r = 0; r < a->x.rows; r++) {
		part best = *part_of(a, r, 0);
		for (int64_t i = 1; i < a->per; i++) {
			part p = *part_of(a, r, i);
			if (better(p.value, p.at, best.value, best.at))
				best = p;
		}
		*(a->out.rows == 1 ? irow(a->out, 0) + r : irow(a->out, r)) = (int32_t)best.at;
	}
}

static void run_lse(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_reduce *a = args;
	(void)scratch;
	const int64_t r = chunk / a->per, from = chunk % a->per * SB_PART, n = min64(SB_PART, a->x.cols - from);
	const float *x = row(a->x, r) + from;
	const float m = largest(x, n);
	float sum = 0;
	int nan = 0;
	if (m > -INFINITY && m < INFINITY) {
		vf acc = {0};
		int64_t i = 0;
		for (; i + W <= n; i += W)
			acc += v_exp(v_ld(x + i) - m);
		sum = v_sum(acc);
		for (; i < n; i++)
			sum += s_exp(x[i] - m);
		nan = sum != sum;
	} else
		for (int64_t i = 0; i < n; i++)
			nan |= x[i] != x[i];
	*part_of(a, r, chunk % a->per) = (part){nan ? NAN : m, sum, 0};
}

static void finish_lse(const void *args) {
	const sb_reduce *a = args;
	for (int64_t r = 0; r < a->x.rows; r++) {
		float m = -INFINITY, sum = 0;
		for (int64_t i = 0; i < a->per; i++) {
			const float v = part_of(a, r, i)->value;
			m = v > m || v != v ? v : m;
			if (m != m)
				break;
		}
		if (m > -INFINITY && m < INFINITY) {
			for (int64_t i = 0; i < a->per; i++) {
				part *p = part_of(a, r, i);
				if (p->value > -INFINITY)
					sum += p->sum * s_exp(p->value - m);
			}
			m += logf(sum);
		}
		row(a->out, r)[0] = m;
	}
}

// A heap of the k best so far, the worst of them at the root.
static void sift(float *v, int32_t *id, int64_t i, int64_t n) {
	for (;;) {
		int64_t c = 2 * i + 1;
		if (c >= n)
			return;
		if (c + 1 < n && better(v[c], id[c], v[c + 1], id[c + 1]))
			c++;
		if (!better(v[i], id[i], v[c], id[c]))
			return;
		float fv = v[i];
		int32_t fi = id[i];
		v[i] = v[c], id[i] = id[c];
		v[c] = fv, id[c] = fi;
		i = c;
	}
}

static void heap_offer(float *v, int32_t *id, int64_t *n, int64_t k, float x, int32_t at) {
	if (*n < k) {
		v[*n] = x, id[*n] = at;
		if (++*n == k)
			for (int64_t i = k / 2; i-- > 0;)
				sift(v, id, i, k);
	} else if (better(x, at, v[0], id[0])) {
		v[0] = x, id[0] = at;
		sift(v, id, 0, k);
	}
}

static void heap_sort(float *v, int32_t *id, int64_t n) { // n == k: a full heap
	for (int64_t i = n - 1; i > 0; i--) {
		float fv = v[0];
		int32_t fi = id[0];
		v[0] = v[i], id[0] = id[i];
		v[i] = fv, id[i] = fi;
		sift(v, id, 0, i);
	}
}

// A row is cut into `per` parts of a->width columns; each keeps its k best.
static void run_topk(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_reduce *a = args;
	(void)scratch;
	const int64_t r = chunk / a->per, i = chunk % a->per, from = i * a->width, to = min64(from + a->width, a->x.cols);
	float *v = a->per == 1 ? row(a->vals, r) : (float *)a->part + (r * a->per + i) * 2 * a->k;
	int32_t *id = a->per == 1 ? irow(a->out, r) : (int32_t *)(v + a->k);
	const int64_t k = min64(a->k, to - from);
	const float *x = row(a->x, r);
	int64_t n = 0, c = from;
	for (; c < to && n < k; c++)
		heap_offer(v, id, &n, k, x[c], (int32_t)c);
	for (; c < to; c += W) { // a vector without anything larger is passed over
		const int64_t e = min64(c + W, to);
		if (e - c == W && v[0] == v[0]) {
			vi any = v_ld(x + c) > v_set(v[0]);
			int hit = 0;
			for (int l = 0; l < W; l++)
				hit |= any[l];
			if (!hit)
				continue;
		}
		for (int64_t j = c; j < e; j++)
			heap_offer(v, id, &n, k, x[j], (int32_t)j);
	}
	if (a->per == 1)
		heap_sort(v, id, k);
}

static void finish_topk(const void *args) {
	const sb_reduce *a = args;
	if (a->per == 1)
		return;
	for (int64_t r = 0; r < a->x.rows; r++) {
		float *v = row(a->vals, r);
		int32_t *id = irow(a->out, r);
		int64_t n = 0;
		for (int64_t i = 0; i < a->per; i++) {
			const float *pv = (const float *)a->part + (r * a->per + i) * 2 * a->k;
			const int32_t *pid = (const int32_t *)(pv + a->k);
			const int64_t k = min64(a->k, min64(a->width, a->x.cols - i * a->width));
			for (int64_t j = 0; j < k; j++)
				heap_offer(v, id, &n, a->k, pv[j], pid[j]);
		}
		heap_sort(v, id, a->k);
	}
}

static void run_route(const void *args, int64_t chunk, uint8_t *scratch) {
	enum { SOFTMAX_ALL, SOFTMAX_TOP, SIGMOID_TOP };
	const sb_route *a = args;
	const int64_t n = a->logits.cols;
	float *scores = (float *)scratch, *choice = scores + n, *sums = choice + n;
	int32_t *picked = (int32_t *)(sums + n);
	uint8_t *taken = (uint8_t *)(picked + n);
	memcpy(scores, row(a->logits, chunk), n * 4);
	if (a->kind == SOFTMAX_ALL)
		softmax(scores, n);
	else if (a->kind == SIGMOID_TOP)
		for (int64_t i = 0; i < n; i += W)
			v_store(scores + i, v_sigmoid(v_load(scores + i, n - i)), n - i);
	for (int64_t i = 0; i < n; i++)
		choice[i] = a->bias.p ? scores[i] + row(a->bias, 0)[i] : scores[i];
	if (a->groups > 1) {
		const int64_t size = n / a->groups;
		for (int64_t g = 0; g < a->groups; g++) {
			best_of(choice + g * size, size, min64(2, size), picked, taken);
			sums[g] = 0;
			for (int64_t j = 0; j < min64(2, size); j++)
				sums[g] += choice[g * size + picked[j]];
		}
		best_of(sums, a->groups, a->topgroups, picked, taken); // taken: the groups to keep
		for (int64_t i = 0; i < n; i++)
			if (!taken[i / size])
				choice[i] = 0;
	}
	int32_t *ids = irow(a->ids, chunk);
	float *weights = row(a->weights, chunk);
	best_of(choice, n, a->topk, ids, taken);
	for (int64_t j = 0; j < a->topk; j++)
		weights[j] = scores[ids[j]];
	if (a->kind == SOFTMAX_TOP)
		softmax(weights, a->topk);
	if (a->normalize) {
		float sum = 0;
		for (int64_t j = 0; j < a->topk; j++)
			sum += weights[j];
		for (int64_t j = 0; j < a->topk; j++)
			weights[j] /= sum + a->eps;
	}
	for (int64_t j = 0; j < a->topk; j++) {
		weights[j] *= a->scale;
		if (a->per_expert.p)
			weights[j] *= row(a->per_expert, 0)[ids[j]];
	}
}

static void run_combine(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_combine *a = args;
	(void)scratch;
	const int64_t n = a->out.cols, k = a->weights.cols;
	const float *w = row(a->weights, chunk), gate = a->gate.p ? s_sigmoid(row(a->gate, chunk)[0]) : 1.0f;
	for (int64_t i = 0; i < n; i += W) {
		vf sum = {0};
		for (int64_t j = 0; j < k; j++)
			sum = v_fma(v_set(w[j]), v_load(row(a->x, chunk * k + j) + i, n - i), sum);
		if (a->shared.p)
			sum = v_fma(v_load(row(a->shared, chunk) + i, n - i), v_set(gate), sum);
		sum *= a->scale;
		if (a->res.p)
			sum += v_load(row(a->res, chunk) + i, n - i);
		v_store(row(a->out, chunk) + i, sum, n - i);
	}
}

static void run_blockconv(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_blockconv *a = args;
	(void)scratch;
	const int64_t groups = a->x.cols / a->group, taps = min64(a->base.rows, chunk % a->block + 1);
	const float *p = row(a->p, chunk);
	float *out = row(a->out, chunk);
	for (int64_t g = 0; g < groups; g++)
		for (int64_t c = g * a->group, end = c + a->group; c < end; c += W) {
			vf sum = {0};
			for (int64_t j = 0; j < taps; j++)
				sum = v_fma(v_load(row(a->base, j) + c, end - c) + p[j * groups + g], v_load(row(a->x, chunk - j) + c, end - c), sum);
			v_store(out + c, sum, end - c);
		}
}

static void run_pairselect(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_pairselect *a = args;
	const sb_weight *wa = (const sb_weight *)a->a, *wb = (const sb_weight *)a->b;
	const int64_t rank = a->h.cols, k = a->unary.cols;
	float *ah = (float *)scratch, *buf = ah + padded(rank), *score = buf + padded(rank);
	int32_t prev = irow(a->anchor, 0)[chunk];
	for (int64_t s = chunk * a->slots; s < (chunk + 1) * a->slots; s++) {
		memset(ah, 0, padded(rank) * 4);
		if (prev >= 0 && prev < wa->rows) {
			dequant_row(wa, prev, ah);
			for (int64_t i = 0; i < rank; i++)
				ah[i] *= row(a->h, s)[i];
		}
		const int32_t *cand = irow(a->cand, s);
		memcpy(score, row(a->unary, s), k * 4);
		for (int64_t c = 0; c < k; c++)
			if (cand[c] >= 0 && cand[c] < wb->rows) {
				dequant_row(wb, cand[c], buf);
				score[c] += dot(ah, buf, rank);
			}
		int64_t pick = 0;
		if (a->uniform.p) {
			for (int64_t c = 0; c < k; c++)
				score[c] /= a->temperature;
			softmax(score, k);
			const float u = row(a->uniform, 0)[s];
			float sum = 0;
			for (int64_t c = 0; c < k; c++) {
				sum += score[c];
				pick += u >= sum;
			}
			pick = min64(pick, k - 1);
		} else
			for (int64_t c = 1; c < k; c++)
				if (better(score[c], c, score[pick], pick))
					pick = c;
		if (a->probs.p)
			memcpy(row(a->probs, s), score, k * 4);
		prev = cand[pick];
		irow(a->ids, 0)[s] = prev;
	}
}
