// Convolution and recurrent state. Each op runs a step function over the rows
// of a segment; StateCommit runs the same function over logged rows, so the bits
// of the state are the same.

// The rows of a segment, cut to those that exist, and its slot (NULL: none).
INL float *segment_of(const sb_state *s, int64_t i, int64_t *from, int64_t *to) {
	const int32_t *start = irow(s->start, 0);
	*from = max64(0, min64(start[i], s->n));
	*to = max64(*from, min64(start[i + 1], s->n));
	const int64_t slot = irow(s->slots, 0)[i];
	if (s->keep.p)
		*to = *from + max64(0, min64(irow(s->keep, 0)[i], *to - *from));
	return slot >= 0 && slot < s->mem.rows ? row(s->mem, slot) : NULL;
}

// A chunk is (segment, range of channels).
static void run_conv(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_conv *a = args;
	const sb_state *st = &a->st;
	const int64_t c0 = chunk % a->per * a->cols, n = min64(a->cols, a->w.rows - c0), taps = a->w.cols, past = taps - 1, all = a->w.rows;
	int64_t from, to;
	float *state = segment_of(st, chunk / a->per, &from, &to);
	if (!state) {
		for (int64_t t = from; t < to && !st->keep.p; t++)
			memset(row(a->out, t) + c0, 0, n * 4);
		return;
	}
	const sb_view in = st->keep.p ? st->log : a->x;
	if (!st->keep.p) {
		float *w = (float *)scratch; // taps of these channels, transposed
		for (int64_t j = 0; j < taps; j++)
			for (int64_t c = 0; c < n; c++)
				w[j * a->cols + c] = row(a->w, c0 + c)[j];
		for (int64_t t = from; t < to; t++) {
			if (st->log.p)
				memcpy(row(st->log, t) + c0, row(a->x, t) + c0, n * 4);
			for (int64_t c = 0; c < n; c += W) {
				vf sum = a->bias.p ? v_load(row(a->bias, 0) + c0 + c, n - c) : (vf){0};
				for (int64_t j = 0; j < taps; j++) {
					const int64_t at = t - past + j; // row of this tap; before the segment: the state
					const float *x = at < from ? state + (at - from + past) * all : row(a->x, at);
					sum = v_fma(v_load(w + j * a->cols + c, n - c), v_load(x + c0 + c, n - c), sum);
				}
				v_store(row(a->out, t) + c0 + c, v_act(a->act, sum, sum), n - c);
			}
		}
		if (st->log.p)
			return;
	}
	if (to > from)
		for (int64_t j = 0; j < past; j++) { // ascending: a state row is read before it is written
			const int64_t at = to - past + j;
			memmove(state + j * all + c0, (at < from ? state + (at - from + past) * all : row(in, at)) + c0, n * 4);
		}
}

// S = g S; S += beta (v - S k) k^T for rows [i0, i1) of one head.
INL void delta_push(float *s, int64_t dk, int64_t rows, const float *k, const float *v, float g, float beta) {
	for (int64_t i = 0; i < rows; i++, s += dk) {
		for (int64_t n = 0; n < dk; n += W)
			v_store(s + n, v_load(s + n, dk - n) * g, dk - n);
		const float d = beta * (v[i] - dot(s, k, dk));
		for (int64_t n = 0; n < dk; n += W)
			v_store(s + n, v_fma(v_set(d), v_load(k + n, dk - n), v_load(s + n, dk - n)), dk - n);
	}
}

// A chunk is (segment, value head, range of state rows).
static void run_delta(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_delta *a = args;
	const sb_state *st = &a->st;
	const int64_t part = chunk % a->per, j = chunk / a->per % a->hv, dk = a->dk, dv = a->dv;
	const int64_t i0 = part * a->rows, rows = min64(a->rows, dv - i0), kh = j * a->hk / a->hv;
	const int64_t nk = a->hk * dk, nv = a->hv * dv;
	int64_t from, to;
	float *state = segment_of(st, chunk / a->per / a->hv, &from, &to);
	if (state)
		state += (j * dv + i0) * dk;
	if (st->keep.p) {
		for (int64_t t = from; state && t < to; t++) {
			const float *log = row(st->log, t);
			delta_push(state, dk, rows, log + kh * dk, log + nk + j * dv + i0, log[nk + nv + j], log[nk + nv + a->hv + j]);
		}
		return;
	}
	if (state && st->log.p)
		state = memcpy(scratch, state, rows * dk * 4);
	const float decay = -s_exp(row(a->alog, 0)[j]), dt = row(a->dtbias, 0)[j];
	for (int64_t t = from; t < to; t++) {
		float *out = row(a->out, t) + j * dv + i0;
		if (!state) {
			memset(out, 0, rows * 4);
			continue;
		}
		const float *q = row(a->q, t) + kh * dk, *k = row(a->k, t) + kh * dk, *v = row(a->v, t) + j * dv + i0;
		const float g = s_exp(decay * softplus(row(a->a, t)[j] + dt)), beta = s_sigmoid(row(a->b, t)[j]);
		if (st->log.p) {
			float *log = row(st->log, t);
			if (part == 0) {
				if (j == 0 || kh != (j - 1) * a->hk / a->hv)
					memcpy(log + kh * dk, k, dk * 4);
				log[nk + nv + j] = g;
				log[nk + nv + a->hv + j] = beta;
			}
			memcpy(log + nk + j * dv + i0, v, rows * 4);
		}
		delta_push(state, dk, rows, k, v, g, beta);
		for (int64_t i = 0; i < rows; i++)
			out[i] = dot(state + i * dk, q, dk);
	}
}

// S = decay S + (dt x) B^T for a range of rows of one head.
INL void ssm_push(float *s, int64_t n, int64_t rows, const float *x, const float *b, float decay, float dt) {
	for (int64_t i = 0; i < rows; i++, s += n) {
		const float dx = dt * x[i];
		for (int64_t k = 0; k < n; k += W)
			v_store(s + k, v_fma(v_set(dx), v_load(b + k, n - k), v_load(s + k, n - k) * decay), n - k);
	}
}

// A chunk is (segment, head, range of state rows).
static void run_ssm(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_ssm *a = args;
	const sb_state *st = &a->st;
	const int64_t part = chunk % a->per, h = chunk / a->per % a->heads, n = a->sdim;
	const int64_t i0 = part * a->rows, rows = min64(a->rows, a->dim - i0), group = h * a->groups / a->heads;
	const int64_t nx = a->heads * a->dim, nb = a->groups * n, at = h * a->dim + i0;
	int64_t from, to;
	float *state = segment_of(st, chunk / a->per / a->heads, &from, &to);
	if (state)
		state += at * n;
	const float rate = -s_exp(row(a->alog, 0)[h]);
	if (st->keep.p) {
		for (int64_t t = from; state && t < to; t++) {
			const float *log = row(st->log, t), dt = log[nx + nb + h];
			ssm_push(state, n, rows, log + at, log + nx + group * n, s_exp(rate * dt), dt);
		}
		return;
	}
	if (state && st->log.p)
		state = memcpy(scratch, state, rows * n * 4);
	for (int64_t t = from; t < to; t++) {
		float *out = row(a->out, t) + at;
		if (!state) {
			memset(out, 0, rows * 4);
			continue;
		}
		const float *x = row(a->x, t) + at, *b = row(a->b, t) + group * n, *c = row(a->c, t) + group * n;
		float dt = softplus(row(a->dt, t)[h] + row(a->dtbias, 0)[h]);
		dt = dt < a->dtmin ? a->dtmin : dt;
		dt = dt > a->dtmax ? a->dtmax : dt;
		if (st->log.p) {
			float *log = row(st->log, t);
			memcpy(log + at, x, rows * 4);
			if (part == 0) {
				if (h == 0 || group != (h - 1) * a->groups / a->heads)
					memcpy(log + nx + group * n, b, n * 4);
				log[nx + nb + h] = dt;
			}
		}
		ssm_push(state, n, rows, x, b, s_exp(rate * dt), dt);
		const float d = row(a->d, 0)[h];
		for (int64_t i = 0; i < rows; i++)
			out[i] = dot(state + i * n, c, n) + d * x[i];
	}
}
