// Packed weights times int8 activations. (The scalar level has no instructions
// that would make this pay, and stays with float32.)
//
// Activations: each 32 elements of a row have one scale (largest magnitude /
// 127) and int8 codes. A row of n elements takes n bytes of codes, then for each
// 32 columns a float scale, scale * (sum of the codes) and -128 * (sum of the
// codes) as int32, then for each 16 columns scale * (sum of the codes).
//
// A sum is s*xs*dot + b*xsum for each 32 (or 16) columns, ascending, in the lane
// of its row, and dot is exact: it does not depend on the other rows, nor on the
// kernel. Few rows unpack codes as they go ("packed"); with more, a block is
// unpacked once into scratch for all of them ("wide").
#if defined(SB_INT8)

static void run_quant(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_quant *a = args;
	(void)scratch;
	const int64_t n = a->x.cols;
	for (int64_t r = chunk * a->rows, end = min64(r + a->rows, a->x.rows); r < end; r++) {
		const float *x = row(a->x, r);
		int8_t *q = (int8_t *)a->q + r * a->q_row;
		float *scale = (float *)(q + n), *sum = scale + n / 32;
		int32_t *offset = (int32_t *)(sum + n / 32);
		float *half = (float *)(offset + n / 32);
		for (int64_t t = 0; t < n / 32; t++, x += 32, q += 32) {
			vf top = {0}, bad = {0};
			for (int i = 0; i < 32; i += W) {
				vf v = v_ld(x + i);
				top = v_max(v_abs(v), top);
				bad = bad + v * 0.0f;
			}
			const float m = v_top(top);
			const int broken = v_sum(bad) != 0; // something is infinite or NaN: so is the result
			if (broken || m < 1e-30f) {
				memset(q, 0, 32);
				offset[t] = 0;
				scale[t] = sum[t] = half[2 * t] = half[2 * t + 1] = broken ? NAN : 0;
				continue;
			}
			const float inverse = 127.0f / m;
			int32_t total[2] = {0, 0};
#if defined(SB_AVX512)
			for (int h = 0; h < 2; h++) {
				vi code = (vi)(v_ld(x + 16 * h) * inverse + 12582912.0f) - 0x4b400000; // rounds to even
				v_store_codes(q + 16 * h, code);
				total[h] = _mm512_reduce_add_epi32((__m512i)code);
			}
#else
			for (int h = 0; h < 2; h++) {
				vi sums = {0};
				for (int i = 0; i < 16; i += W) {
					vi code = (vi)(v_ld(x + 16 * h + i) * inverse + 12582912.0f) - 0x4b400000; // rounds to even
					v_store_codes(q + 16 * h + i, code);
					sums += code;
				}
				for (int l = 0; l < W; l++)
					total[h] += sums[l];
			}
#endif
			scale[t] = m / 127.0f;
			sum[t] = scale[t] * (float)(total[0] + total[1]);
			offset[t] = -128 * (total[0] + total[1]);
			half[2 * t] = scale[t] * (float)total[0];
			half[2 * t + 1] = scale[t] * (float)total[1];
		}
	}
}

// Four codes, broadcast straight from memory.
typedef int32_t i32_any __attribute__((aligned(1), may_alias));

// Code vector j of packed columns, or of unpacked ones.
INL vb operand(int raw, int code, const uint8_t *p, int j, vb table) { return code_vector(raw ? 8 : code, p, j, table); }

// Dot products of 32 columns of a block with each of m <= 8 rows of codes: of all
// of them, or of each half.
#if defined(SB_AVX512) || defined(SB_VNNI)
#if defined(SB_AVX512)
INL vi v_dot(vi a, vb w, int32_t x) { return (vi)_mm512_dpbusd_epi32((__m512i)a, (__m512i)w, _mm512_set1_epi32(x)); }
enum { NARROW = 8, WIDE = 8 };
#else
INL vi v_dot(vi a, vb w, int32_t x) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)a, (__m256i)w, _mm256_set1_epi32(x)); }
enum { NARROW = 4, WIDE = 4 };
#endif
INL void dots(int raw, int code, int halves, int m, const uint8_t *w, vb table, const int8_t *const *x, int64_t n, int64_t t, vi (*d)[2]) {
	vb c[8];
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++)
		c[j] = operand(raw, code, w, j, table);
#pragma GCC unroll 8
	for (int i = 0; i < m; i++) {
		const i32_any *u = (const i32_any *)(x[i] + 32 * t);
		vi a = {0}, b = {0};
		if (code_signed(code))
			a = v_seti(((const int32_t *)(x[i] + n))[n / 16 + t]);
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++) {
			a = v_dot(a, c[j], u[j]);
			b = v_dot(b, c[j + 4], u[j + 4]);
		}
		d[i][0] = halves ? a : a + b;
		d[i][1] = b;
	}
}
#elif defined(SB_AVX2)
enum { NARROW = 4, WIDE = 4 };
INL void dots(int raw, int code, int halves, int m, const uint8_t *w, vb table, const int8_t *const *x, int64_t n, int64_t t, vi (*d)[2]) {
	const __m256i one = _mm256_set1_epi16(1);
	// Vectors whose products, two to a lane, can be added in 16 bits.
	const int most = code <= 4 ? 8 : code == 6 ? 2 : 4, part = halves ? 4 : 8, step = most < part ? most : part;
	__m256i a[8], all[8];
	(void)n;
#pragma GCC unroll 8
	for (int j = 0; j < 8; j += 2) {
		__m256i c0 = (__m256i)operand(raw, code, w, j, table), c1 = (__m256i)operand(raw, code, w, j + 1, table);
		const int h = halves ? j / 4 : 0, first = j % part == 0;
		if (code_signed(code)) {
			__m256i m0 = _mm256_abs_epi8(c0), m1 = _mm256_abs_epi8(c1);
#pragma GCC unroll 8
			for (int i = 0; i < m; i++) { // |code| * 127 * 2 fits into 16 bits
				const i32_any *u = (const i32_any *)(x[i] + 32 * t + 4 * j);
				__m256i p0 = _mm256_maddubs_epi16(m0, _mm256_sign_epi8(_mm256_set1_epi32(u[0]), c0)), p1 = _mm256_maddubs_epi16(m1, _mm256_sign_epi8(_mm256_set1_epi32(u[1]), c1));
				__m256i p = _mm256_add_epi32(_mm256_madd_epi16(p0, one), _mm256_madd_epi16(p1, one));
				all[i] = first ? p : _mm256_add_epi32(all[i], p);
				d[i][h] = (vi)all[i];
			}
			continue;
		}
#pragma GCC unroll 8
		for (int i = 0; i < m; i++) {
			const i32_any *u = (const i32_any *)(x[i] + 32 * t + 4 * j);
			__m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(c0, _mm256_set1_epi32(u[0])), _mm256_maddubs_epi16(c1, _mm256_set1_epi32(u[1])));
			a[i] = j % step ? _mm256_add_epi16(a[i], p) : p;
			if ((j + 2) % step == 0) {
				__m256i sum = _mm256_madd_epi16(a[i], one);
				all[i] = j % part + 2 == step ? sum : _mm256_add_epi32(all[i], sum);
				d[i][h] = (vi)all[i];
			}
		}
	}
}
#elif defined(SB_NEON)
enum { NARROW = 4, WIDE = 4 };
INL int32x4_t four(const int8_t *x) { return vdupq_n_s32(*(const i32_any *)x); }
INL void dots(int raw, int code, int halves, int m, const uint8_t *w, vb table, const int8_t *const *x, int64_t n, int64_t t, vi (*d)[2]) {
	int8x16_t c[8];
	(void)n;
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++)
		c[j] = (int8x16_t)operand(raw, code, w, j, table);
	int i = 0;
#if defined(SB_I8MM)
	// Two rows of weights by two rows of x, eight columns at a time.
	int8x16_t lo[4], hi[4];
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		lo[j] = (int8x16_t)vzip1q_s32((int32x4_t)c[2 * j], (int32x4_t)c[2 * j + 1]);
		hi[j] = (int8x16_t)vzip2q_s32((int32x4_t)c[2 * j], (int32x4_t)c[2 * j + 1]);
	}
#pragma GCC unroll 4
	for (; i + 2 <= m; i += 2) {
		int32x4_t a[2], b[2];
		a[0] = a[1] = b[0] = b[1] = vdupq_n_s32(0);
#pragma GCC unroll 4
		for (int j = 0; j < 4; j++) {
			int8x16_t y = vcombine_s8(vld1_s8(x[i] + 32 * t + 8 * j), vld1_s8(x[i + 1] + 32 * t + 8 * j));
			const int h = halves ? j / 2 : 0;
			a[h] = vmmlaq_s32(a[h], lo[j], y);
			b[h] = vmmlaq_s32(b[h], hi[j], y);
		}
#pragma GCC unroll 2
		for (int h = 0; h <= halves; h++) {
			d[i][h] = (vi)vuzp1q_s32(a[h], b[h]);
			d[i + 1][h] = (vi)vuzp2q_s32(a[h], b[h]);
		}
	}
#endif
#pragma GCC unroll 8
	for (; i < m; i++) {
		int32x4_t a[2], b[2];
		a[0] = a[1] = b[0] = b[1] = vdupq_n_s32(0);
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++) {
			int8x16_t y = (int8x16_t)four(x[i] + 32 * t + 4 * j);
			const int h = j / 4;
#if defined(SB_DOTPROD)
			a[h] = vdotq_s32(a[h], c[j], y);
#else
			a[h] = vpadalq_s16(a[h], vmull_s8(vget_low_s8(c[j]), vget_low_s8(y)));
			b[h] = vpadalq_s16(b[h], vmull_s8(vget_high_s8(c[j]), vget_high_s8(y)));
#endif
		}
#if !defined(SB_DOTPROD)
		a[0] = vpaddq_s32(a[0], b[0]);
		a[1] = vpaddq_s32(a[1], b[1]);
#endif
		(void)b;
		d[i][0] = (vi)(halves ? a[0] : vaddq_s32(a[0], a[1]));
		d[i][1] = (vi)a[1];
	}
}
#endif

// One tile more of a row: d are its dot products, in the order in which every
// kernel adds.
INL vf add_tile(int halves, vf acc, const int8_t *x, int64_t n, int64_t t, const vi *d, const vf *s, const vf *b, int bias) {
	const float *scale = (const float *)(x + n) + t;
	if (halves) {
		const float *half = scale + n / 32 * 3 + t;
		for (int h = 0; h < 2; h++) {
			acc = v_fma(s[h] * v_set(scale[0]), __builtin_convertvector(d[h], vf), acc);
			if (bias)
				acc = v_fma(b[h], v_set(half[h]), acc);
		}
		return acc;
	}
	acc = v_fma(s[0] * v_set(scale[0]), __builtin_convertvector(d[0], vf), acc);
	if (bias)
		acc = v_fma(b[0], v_set(scale[n / 32]), acc);
	return acc;
}

// A block unpacked: for each 32 columns eight vectors of codes; s, b (twice each
// for halves).
typedef struct {
	uint8_t *codes;
	vf_any *scales;
} wide_block;

// z[i*ldz .. +W] = block times row i of m rows.
INL void tile8_of(int raw, int code, int halves, int bias, int m, const sb_weight *w, const uint8_t *p, const vf_any *sb, const int8_t *const *x, float *z, int64_t ldz) {
	const int64_t n = w->cols;
	const vb table = raw || code < SB_CODE_E2M1 ? (vb){0} : code_table(code);
	vf acc[8], s[2], b[2], k[2];
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
		acc[i] = (vf){0};
	s[0] = s[1] = b[0] = b[1] = k[0] = k[1] = (vf){0};
	for (int64_t t = 0; t < n / 32; t++) {
		vi d[8][2];
		if (raw)
			for (int h = 0; h <= halves; h++, sb += 2)
				s[h] = sb[0], b[h] = sb[1];
		else
			p = scales_at(w, halves, t, p, k, s, b);
		dots(raw, code, halves, m, p, table, x, n, t, d);
		p += raw ? 32 * W : code_bits(code) * 4 * W;
#pragma GCC unroll 8
		for (int i = 0; i < m; i++)
			acc[i] = add_tile(halves, acc[i], x[i], n, t, d[i], s, b, bias);
	}
#pragma GCC unroll 8
	for (int i = 0; i < m; i++)
		v_st(z + i * ldz, acc[i]);
}

// Codes of which most models are made have a packed tile for two rows.
INL int has_two(int code) { return code == 4 || code == 6 || code == 8; }

// Rows of the packed tile to take when n rows are left. Where there is none for so
// many, the last row is taken again, which is cheaper than another pass.
INL int int8_rows(int code, int64_t n) { return n >= NARROW - 2 && NARROW > 4 ? NARROW : n > 2 || (n == 2 && !has_two(code)) ? 4 : (int)n; }

#define PACKED(code, halves, bias)                                                                                   \
	case (code)*4 + (halves)*2 + (bias):                                                                         \
		if (m == 1)                                                                                          \
			tile8_of(0, code, halves, bias, 1, w, block, NULL, x, z, ldz);                               \
		else if (has_two(code) && m == 2)                                                                    \
			tile8_of(0, code, halves, bias, has_two(code) ? 2 : 1, w, block, NULL, x, z, ldz);           \
		else if (m == 4)                                                                                     \
			tile8_of(0, code, halves, bias, 4, w, block, NULL, x, z, ldz);                               \
		else if (NARROW > 4)                                                                                 \
			tile8_of(0, code, halves, bias, NARROW, w, block, NULL, x, z, ldz);                          \
		return;

static void packed_tile(int m, const sb_weight *w, const uint8_t *block, const int8_t *const *x, float *z, int64_t ldz) {
	switch (w->code * 4 + (w->pgroup == 16) * 2 + biased(w)) {
		PACKED(2, 0, 1)
		PACKED(2, 1, 1)
		PACKED(3, 0, 1)
		PACKED(3, 1, 1)
		PACKED(4, 0, 1)
		PACKED(5, 0, 1)
		PACKED(6, 0, 1)
		PACKED(6, 1, 1)
		PACKED(8, 0, 0)
		PACKED(8, 0, 1)
		PACKED(SB_CODE_E2M1, 0, 1)
		PACKED(SB_CODE_E2M1, 1, 1)
		PACKED(SB_CODE_IQ4, 0, 0)
	}
}

INL void unpack_of(int code, int halves, const sb_weight *w, const uint8_t *p, wide_block to) {
	const vb table = code < SB_CODE_E2M1 ? (vb){0} : code_table(code);
	vf s[2], b[2], k[2];
	s[0] = s[1] = b[0] = b[1] = k[0] = k[1] = (vf){0};
	for (int64_t t = 0; t < w->cols / 32; t++) {
		p = scales_at(w, halves, t, p, k, s, b);
		for (int h = 0; h <= halves; h++, to.scales += 2)
			to.scales[0] = s[h], to.scales[1] = b[h];
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++, to.codes += 4 * W)
			*(vb_any *)to.codes = code_vector(code, p, j, table);
		p += code_bits(code) * 4 * W;
	}
}

static void unpack_block(const sb_weight *w, const uint8_t *p, wide_block to) {
	const int halves = w->pgroup == 16;
	switch (w->code) {
	case 2:
		unpack_of(2, halves, w, p, to);
		return;
	case 3:
		unpack_of(3, halves, w, p, to);
		return;
	case 4:
		unpack_of(4, halves, w, p, to);
		return;
	case 5:
		unpack_of(5, halves, w, p, to);
		return;
	case 6:
		unpack_of(6, halves, w, p, to);
		return;
	case 8:
		unpack_of(8, halves, w, p, to);
		return;
	case SB_CODE_E2M1:
		unpack_of(SB_CODE_E2M1, halves, w, p, to);
		return;
	case SB_CODE_IQ4:
		unpack_of(SB_CODE_IQ4, halves, w, p, to);
	}
}

#define UNPACKED(code, halves, bias) \
	case (code)*4 + (halves)*2 + (bias): tile8_of(1, code, halves, bias, WIDE, w, block.codes, block.scales, x, z, ldz); return;

// WIDE rows of an unpacked block.
static void wide_tile(const sb_weight *w, wide_block block, const int8_t *const *x, float *z, int64_t ldz) {
	// Codes that are multiplied alike: up to 15, 31 and 63, and signed ones.
	const int like = code_signed(w->code) ? 8 : w->code <= 4 ? 4 : w->code == 6 ? 6 : 5;
	switch (like * 4 + (w->pgroup == 16) * 2 + biased(w)) {
		UNPACKED(4, 0, 1)
		UNPACKED(4, 1, 1)
		UNPACKED(5, 0, 1)
		UNPACKED(5, 1, 1)
		UNPACKED(6, 0, 1)
		UNPACKED(6, 1, 1)
		UNPACKED(8, 0, 0)
		UNPACKED(8, 0, 1)
	}
}

#if defined(SB_AMX)
// Tiles: 0 sums, 1 sixteen rows of 32 codes of x, 2 eight vectors of weights; 3 and
// 4 the same for 16 columns.
enum { AMX_ROWS = 16 };
static void amx_begin(void) {
	static const struct {
		uint8_t palette, start, none[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} c = {.palette = 1, .bytes = {64, 32, 64, 16, 64}, .rows = {16, 16, 8, 16, 4}};
	_tile_loadconfig(&c);
}

INL void amx_tile_of(int sign, int halves, int bias, const sb_weight *w, wide_block block, const int8_t *x, int64_t ldx, float *z) {
	const int64_t n = w->cols;
	int32_t sums[2][AMX_ROWS * W] __attribute__((aligned(64)));
	vf acc[AMX_ROWS];
#pragma GCC unroll 16
	for (int i = 0; i < AMX_ROWS; i++)
		acc[i] = (vf){0};
	for (int64_t t = 0; t < n / 32; t++) {
		vf s[2], b[2];
		for (int h = 0; h <= halves; h++, block.scales += 2)
			s[h] = block.scales[0], b[h] = block.scales[1];
		if (halves)
			for (int h = 0; h < 2; h++) {
				_tile_loadd(3, x + 32 * t + 16 * h, ldx);
				_tile_loadd(4, block.codes + 512 * t + 256 * h, 64);
				_tile_zero(0);
				_tile_dpbsud(0, 3, 4);
				_tile_stored(0, sums[h], 64);
			}
		else {
			_tile_loadd(1, x + 32 * t, ldx);
			_tile_loadd(2, block.codes + 512 * t, 64);
			_tile_zero(0);
			if (sign)
				_tile_dpbssd(0, 1, 2);
			else
				_tile_dpbsud(0, 1, 2);
			_tile_stored(0, sums[0], 64);
		}
#pragma GCC unroll 16
		for (int i = 0; i < AMX_ROWS; i++) {
			vi d[2] = {*(vi *)(sums[0] + i * W), halves ? *(vi *)(sums[1] + i * W) : (vi){0}};
			acc[i] = add_tile(halves, acc[i], x + i * ldx, n, t, d, s, b, bias);
		}
	}
#pragma GCC unroll 16
	for (int i = 0; i < AMX_ROWS; i++)
		v_st(z + i * W, acc[i]);
}

// Sixteen rows of an unpacked block with signed codes not flipped.
static void amx_tile(const sb_weight *w, wide_block block, const int8_t *x, int64_t ldx, float *z) {
	const int bias = biased(w);
	if (w->pgroup == 16)
		amx_tile_of(0, 1, 1, w, block, x, ldx, z);
	else if (!code_signed(w->code))
		amx_tile_of(0, 0, 1, w, block, x, ldx, z);
	else if (bias)
		amx_tile_of(1, 0, 1, w, block, x, ldx, z);
	else
		amx_tile_of(1, 0, 0, w, block, x, ldx, z);
}
#endif
#endif
