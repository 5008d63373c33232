// Affine 4- and 8-bit weights times int8 activations. (The scalar level has no
// instructions that would make this pay, and stays with float32.)
//
// Activations: each 32 elements of a row have one scale (largest magnitude /
// 127), int8 codes and scale * (sum of the codes). A row takes cols bytes of
// codes, then cols/32 float scales, then cols/32 float sums.
//
// Packed weights: blocks of W rows (the last one padded with zeros). For each
// group of a block: W scales, W biases (in the checkpoint's type), then for each
// 32 columns vectors of 4*W bytes, four bytes a row.
// 8 bit: vector j holds columns 4j to 4j+3. 4 bit: the low nibbles of vector j
// hold columns 8j to 8j+3, the high nibbles 8j+4 to 8j+7.
//
// A sum is s*xs*dot + b*xsum for each 32 columns, ascending, in the lane of its
// row: it does not depend on the other rows.

INL int64_t elem_size(int dtype) { return dtype == SB_F32 ? 4 : 2; }
INL vf v_elems(const uint8_t *p, int dtype) { return dtype == SB_F32 ? v_ld(p) : dtype == SB_F16 ? v_half(p) : v_bhalf(p); }

#if defined(SB_AVX512) || defined(SB_AVX2) || defined(SB_NEON)
#define SB_INT8 1

static int64_t pack(sb_weight *w, uint8_t *dst) {
	const int64_t es = elem_size(w->dtype), groups = w->cols / w->group, group_bytes = w->group * w->bits / 8;
	const int64_t group_size = 2 * W * es + W * group_bytes;
	w->packed_block = groups * group_size;
	w->packed_batch = (w->rows + W - 1) / W * w->packed_block;
	if (!dst)
		return w->batch * w->packed_batch;
	for (int64_t m = 0; m < w->batch; m++)
		for (int64_t r = 0; r < (w->rows + W - 1) / W * W; r++) {
			uint8_t *block = dst + m * w->packed_batch + r / W * w->packed_block;
			const int64_t lane = r % W, from = m * w->rows + r;
			if (r >= w->rows) { // only this lane's bytes: zero codes, scale and bias
				for (int64_t g = 0; g < groups; g++, block += group_size) {
					memset(block + lane * es, 0, es);
					memset(block + (W + lane) * es, 0, es);
					for (int64_t v = 0; v < group_bytes / 4; v++)
						memset(block + 2 * W * es + v * 4 * W + 4 * lane, 0, 4);
				}
				continue;
			}
			const uint8_t *q = (const uint8_t *)w->w + from * w->row_bytes;
			const uint8_t *s = (const uint8_t *)w->s + from * w->scale_bytes, *b = (const uint8_t *)w->b + from * w->scale_bytes;
			for (int64_t g = 0; g < groups; g++, block += group_size, q += group_bytes) {
				memcpy(block + lane * es, s + g * es, es);
				memcpy(block + (W + lane) * es, b + g * es, es);
				uint8_t *codes = block + 2 * W * es + 4 * lane;
				for (int64_t v = 0; v < group_bytes / 4; v++, codes += 4 * W) {
					if (w->bits == 8) {
						memcpy(codes, q + 4 * v, 4);
						continue;
					}
					// Four bytes hold columns 0 to 7 in order; wanted are 0-3 low, 4-7 high.
					uint32_t u, lo = 0, hi = 0;
					memcpy(&u, q + 4 * v, 4);
					for (int i = 0; i < 4; i++) {
						lo |= (u >> (4 * i) & 15) << (8 * i);
						hi |= (u >> (16 + 4 * i) & 15) << (8 * i);
					}
					lo |= hi << 4;
					memcpy(codes, &lo, 4);
				}
			}
		}
	return w->batch * w->packed_batch;
}

static void run_quant(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_quant *a = args;
	(void)scratch;
	const float *x = row(a->x, chunk);
	const int64_t n = a->x.cols;
	int8_t *q = (int8_t *)a->q + chunk * a->q_row;
	float *scale = (float *)(q + n), *sum = scale + n / 32;
	for (int64_t t = 0; t < n / 32; t++, x += 32, q += 32) {
		vf top = {0}, bad = {0};
		for (int i = 0; i < 32; i += W) {
			vf v = v_ld(x + i);
			top = v_max(v_abs(v), top);
			bad = bad + v * 0.0f;
		}
		float m = 0;
		for (int l = 0; l < W; l++)
			m = top[l] > m ? top[l] : m;
		if (v_sum(bad) != 0) { // something is infinite or NaN: so is the result
			memset(q, 0, 32);
			scale[t] = sum[t] = NAN;
			continue;
		}
		if (m < 1e-30f) {
			memset(q, 0, 32);
			scale[t] = sum[t] = 0;
			continue;
		}
		const float inverse = 127.0f / m;
		vi sums = {0};
		for (int i = 0; i < 32; i += W) {
			vi code = (vi)(v_ld(x + i) * inverse + 12582912.0f) - 0x4b400000; // rounds to even
			v_store_codes(q + i, code);
			sums += code;
		}
		int32_t total = 0;
		for (int l = 0; l < W; l++)
			total += sums[l];
		scale[t] = m / 127.0f;
		sum[t] = scale[t] * (float)total;
	}
}

// Four codes, broadcast straight from memory.
typedef int32_t i32_any __attribute__((aligned(1), may_alias));

// Dot products of 32 columns of a block with each of m <= 8 rows of codes.
// 8-bit codes count as code-128 where SIGNED8 is set.
#if defined(SB_AVX512)
#define SIGNED8 0
INL void dots(int bits, int m, const uint8_t *w, const int8_t *const *x, int64_t at, vi *d) {
	__m512i c[8];
	const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) {
		if (bits == 8)
			c[j] = _mm512_loadu_si512(w + 64 * j);
		else if (j % 2 == 0) {
			__m512i v = _mm512_loadu_si512(w + 32 * j);
			c[j] = _mm512_and_si512(v, low);
			c[j + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++) {
		__m512i a = _mm512_setzero_si512(), b = a;
#pragma GCC unroll 4
		for (int j = 0; j < 8; j += 2) {
			const i32_any *u = (const i32_any *)(x[i] + at + 4 * j);
			a = _mm512_dpbusd_epi32(a, c[j], _mm512_set1_epi32(u[0]));
			b = _mm512_dpbusd_epi32(b, c[j + 1], _mm512_set1_epi32(u[1]));
		}
		d[i] = (vi)_mm512_add_epi32(a, b);
	}
}
#elif defined(SB_AVX2)
#define SIGNED8 1
INL void dots(int bits, int m, const uint8_t *w, const int8_t *const *x, int64_t at, vi *d) {
	const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
	__m256i a[8];
#pragma GCC unroll 8
	for (int j = 0; j < 8; j += 2) {
		if (bits == 4) { // 15 * 127 * 16 products fit into 16 bits
			__m256i v = _mm256_loadu_si256((const __m256i *)(w + 16 * j)), lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
#pragma GCC unroll 8
			for (int i = 0; i < m; i++) {
				const i32_any *u = (const i32_any *)(x[i] + at + 4 * j);
				__m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(lo, _mm256_set1_epi32(u[0])), _mm256_maddubs_epi16(hi, _mm256_set1_epi32(u[1])));
				a[i] = j ? _mm256_add_epi16(a[i], p) : p;
			}
		} else {
			const __m256i flip = _mm256_set1_epi8((char)0x80);
			__m256i s0 = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(w + 32 * j)), flip), s1 = _mm256_xor_si256(_mm256_loadu_si256((const __m256i *)(w + 32 * j + 32)), flip);
			__m256i m0 = _mm256_abs_epi8(s0), m1 = _mm256_abs_epi8(s1);
#pragma GCC unroll 8
			for (int i = 0; i < m; i++) { // |code - 128| * 127 * 2 fits into 16 bits
				const i32_any *u = (const i32_any *)(x[i] + at + 4 * j);
				__m256i p0 = _mm256_maddubs_epi16(m0, _mm256_sign_epi8(_mm256_set1_epi32(u[0]), s0)), p1 = _mm256_maddubs_epi16(m1, _mm256_sign_epi8(_mm256_set1_epi32(u[1]), s1));
				__m256i p = _mm256_add_epi32(_mm256_madd_epi16(p0, one), _mm256_madd_epi16(p1, one));
				a[i] = j ? _mm256_add_epi32(a[i], p) : p;
			}
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
		d[i] = (vi)(bits == 4 ? _mm256_madd_epi16(a[i], one) : a[i]);
}
#elif defined(SB_NEON)
#define SIGNED8 1
INL void dots(int bits, int m, const uint8_t *w, const int8_t *const *x, int64_t at, vi *d) {
	int8x16_t c[8];
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) {
		if (bits == 8)
			c[j] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(w + 16 * j), vdupq_n_u8(0x80)));
		else if (j % 2 == 0) {
			uint8x16_t v = vld1q_u8(w + 8 * j);
			c[j] = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15)));
			c[j + 1] = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++) {
		int32x4_t a = vdupq_n_s32(0), b = a;
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++) {
			int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(*(const i32_any *)(x[i] + at + 4 * j)));
#if defined(__ARM_FEATURE_DOTPROD)
			a = vdotq_s32(a, c[j], y);
#else
			a = vpadalq_s16(a, vmull_s8(vget_low_s8(c[j]), vget_low_s8(y)));
			b = vpadalq_s16(b, vmull_s8(vget_high_s8(c[j]), vget_high_s8(y)));
#endif
		}
#if !defined(__ARM_FEATURE_DOTPROD)
		a = vpaddq_s32(a, b);
#endif
		(void)b;
		d[i] = (vi)a;
	}
}
#endif

// z[i*ldz .. +W] = block times row i of m rows.
INL void int8_tile_of(int bits, int dtype, int m, const sb_weight *w, const uint8_t *block, const int8_t *const *x, float *z, int64_t ldz) {
	const int64_t es = elem_size(dtype), n = w->cols, subs = w->group / 32;
	vf acc[8];
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
		acc[i] = (vf){0};
	for (int64_t t = 0; t < n / 32;) {
		vf s = v_elems(block, dtype), b = v_elems(block + W * es, dtype);
		if (bits == 8 && SIGNED8)
			b = v_fma(s, v_set(128.0f), b);
		block += 2 * W * es;
		for (int64_t sub = 0; sub < subs; sub++, t++, block += 4 * W * bits) {
			vi d[8];
			dots(bits, m, block, x, 32 * t, d);
#pragma GCC unroll 8
			for (int i = 0; i < m; i++) {
				const float *scale = (const float *)(x[i] + n) + t;
				acc[i] = v_fma(s * v_set(scale[0]), __builtin_convertvector(d[i], vf), acc[i]);
				acc[i] = v_fma(b, v_set(scale[n / 32]), acc[i]);
			}
		}
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
		v_st(z + i * ldz, acc[i]);
}

#define TILE_OF(bits, dtype, m) \
	case (bits)*64 + (dtype)*16 + (m): int8_tile_of(bits, dtype, m, w, block, x, z, ldz); return;
#define TILES_OF(bits, dtype) \
	TILE_OF(bits, dtype, 1) TILE_OF(bits, dtype, 2) TILE_OF(bits, dtype, 3) TILE_OF(bits, dtype, 4) TILE_OF(bits, dtype, 8)

// Rows that one tile may have, given that n rows are left.
#if defined(SB_AVX512)
INL int int8_rows(int64_t n) { return n >= 8 ? 8 : n >= 4 ? 4 : (int)n; }
#else
INL int int8_rows(int64_t n) { return n >= 4 ? 4 : (int)n; }
#endif

static void int8_tile(int m, const sb_weight *w, const uint8_t *block, const int8_t *const *x, float *z, int64_t ldz) {
	switch (w->bits * 64 + w->dtype * 16 + m) {
		TILES_OF(4, SB_F32)
		TILES_OF(4, SB_F16)
		TILES_OF(4, SB_BF16)
		TILES_OF(8, SB_F32)
		TILES_OF(8, SB_F16)
		TILES_OF(8, SB_BF16)
	}
}
#endif
