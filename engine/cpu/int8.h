// Packed weights times int8 activations. (The scalar level has no instructions
// that would make this pay, and stays with float32.)
//
// Activations: each 32 elements of a row are one record of 64 bytes, one line of
// the cache: int8 codes, their scale (largest magnitude / 127), scale * (sum of
// the codes), -128 * (sum of the codes), then scale * (sum of the codes) of each
// half.
//
// A sum is s*xs*dot + b*xsum for each 32 (or 16) columns, ascending, in the lane
// of its row, and dot is exact: it does not depend on the other rows, nor on the
// kernel. The codes of 32 columns are unpacked once, into registers, for up to eight
// rows (sixteen with AVX-512, four of codes that are not common); so a row more costs
// its products and nothing else.
#if defined(SB_INT8)

typedef struct {
	int8_t codes[32];
	float scale, sum;
	int32_t offset;
	float half[2];
	int32_t none[3];
} record;

// Rounds 32 elements.
INL void quantize(record *to, const float *x) {
	vi top = {0}; // magnitudes compare like their bits; NaN is above infinity
#pragma GCC unroll 8
	for (int i = 0; i < 32; i += W)
		top = v_maxi((vi)v_ld(x + i) & 0x7fffffff, top);
	const int32_t bits = v_topi(top);
	const float m = bits_f32(bits);
	if (bits >= 0x7f800000 || m < 1e-30f) {
		memset(to, 0, sizeof *to);
		if (bits >= 0x7f800000) // something is infinite or NaN: so is the result
			to->scale = to->sum = to->half[0] = to->half[1] = NAN;
		return;
	}
	const float inverse = 127.0f / m, scale = m / 127.0f;
	vi code[32 / W];
#pragma GCC unroll 8
	for (int i = 0; i < 32 / W; i++)
		code[i] = (vi)(v_ld(x + i * W) * inverse + 12582912.0f) - 0x4b400000; // rounds to even
	int32_t total[2];
	v_store_codes(to->codes, code, total);
	to->scale = scale;
	to->sum = scale * (float)(total[0] + total[1]);
	to->offset = -128 * (total[0] + total[1]);
	to->half[0] = scale * (float)total[0];
	to->half[1] = scale * (float)total[1];
}

static void run_quant(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_quant *a = args;
	(void)scratch;
	for (int64_t r = chunk * a->rows, end = min64(r + a->rows, a->x.rows); r < end; r++) {
		const float *x = row(a->x, r);
		record *q = (record *)(a->q + r * a->q_row);
		for (int64_t t = 0; t < a->x.cols / 32; t++)
			quantize(q + t, x + 32 * t);
	}
}

// Four codes, broadcast straight from memory.
typedef int32_t i32_any __attribute__((aligned(1), may_alias));

// Dot products of the 32 codes in the vectors c with those of a record: of all of
// them, or of each half.
#if defined(SB_AVX512) || defined(SB_VNNI)
#if defined(SB_AVX512)
INL vi v_dot(vi a, vb w, int32_t x) { return (vi)_mm512_dpbusd_epi32((__m512i)a, (__m512i)w, _mm512_set1_epi32(x)); }
#else
INL vi v_dot(vi a, vb w, int32_t x) { return (vi)_mm256_dpbusd_avx_epi32((__m256i)a, (__m256i)w, _mm256_set1_epi32(x)); }
#endif
INL void dots(int code, int halves, const vb *c, const record *x, vi *d) {
	const i32_any *u = (const i32_any *)x->codes;
	vi a = {0}, b = {0};
	if (code_signed(code))
		a = v_seti(x->offset);
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		a = v_dot(a, c[j], u[j]);
		b = v_dot(b, c[j + 4], u[j + 4]);
	}
	d[0] = halves ? a : a + b;
	d[1] = b;
}
#elif defined(SB_AVX2)
INL void dots(int code, int halves, const vb *c, const record *x, vi *d) {
	const __m256i one = _mm256_set1_epi16(1);
	// Vectors whose products, two to a lane, can be added in 16 bits: |code| * 127 * 2
	// of a signed one just fits.
	const int most = code_signed(code) ? 1 : code <= 4 ? 8 : code == 6 ? 2 : 4, part = halves ? 4 : 8, step = most < part ? most : part;
	const i32_any *u = (const i32_any *)x->codes;
	__m256i a, all;
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) {
		__m256i cj = (__m256i)c[j], xj = _mm256_set1_epi32(u[j]);
		__m256i p = code_signed(code) ? _mm256_maddubs_epi16(_mm256_abs_epi8(cj), _mm256_sign_epi8(xj, cj)) : _mm256_maddubs_epi16(cj, xj);
		a = j % step ? _mm256_add_epi16(a, p) : p;
		__asm__("" : "+x"(a)); // in this order: a tree of sums would need more registers than there are
		if ((j + 1) % step == 0) {
			__m256i sum = _mm256_madd_epi16(a, one);
			all = (j + 1) % part == step % part ? sum : _mm256_add_epi32(all, sum);
			d[halves ? j / 4 : 0] = (vi)all;
		}
	}
}
#elif defined(SB_NEON)
INL void dots(int code, int halves, const vb *c, const record *x, vi *d) {
	(void)code;
	int32x4_t a[2], b[2];
	a[0] = a[1] = b[0] = b[1] = vdupq_n_s32(0);
#pragma GCC unroll 8
	for (int j = 0; j < 8; j++) {
		int8x16_t w = (int8x16_t)c[j], y = (int8x16_t)vdupq_n_s32(*(const i32_any *)(x->codes + 4 * j));
		const int h = j / 4;
#if defined(SB_DOTPROD)
		a[h] = vdotq_s32(a[h], w, y);
#else
		a[h] = vpadalq_s16(a[h], vmull_s8(vget_low_s8(w), vget_low_s8(y)));
		b[h] = vpadalq_s16(b[h], vmull_s8(vget_high_s8(w), vget_high_s8(y)));
#endif
	}
#if !defined(SB_DOTPROD)
	a[0] = vpaddq_s32(a[0], b[0]);
	a[1] = vpaddq_s32(a[1], b[1]);
#endif
	(void)b;
	d[0] = (vi)(halves ? a[0] : vaddq_s32(a[0], a[1]));
	d[1] = (vi)a[1];
}
#endif

#if defined(SB_I8MM)
// Those of two records: two rows of weights by two rows of x, eight columns at a time.
INL void dots_of_two(int halves, const vb *c, const record *x, const record *y, vi *dx, vi *dy) {
	int32x4_t a[2], b[2];
	a[0] = a[1] = b[0] = b[1] = vdupq_n_s32(0);
#pragma GCC unroll 4
	for (int j = 0; j < 4; j++) {
		int32x4_t c0 = (int32x4_t)c[2 * j], c1 = (int32x4_t)c[2 * j + 1];
		int8x16_t both = vcombine_s8(vld1_s8(x->codes + 8 * j), vld1_s8(y->codes + 8 * j));
		const int h = halves ? j / 2 : 0;
		a[h] = vmmlaq_s32(a[h], (int8x16_t)vzip1q_s32(c0, c1), both);
		b[h] = vmmlaq_s32(b[h], (int8x16_t)vzip2q_s32(c0, c1), both);
	}
#pragma GCC unroll 2
	for (int h = 0; h <= halves; h++) {
		dx[h] = (vi)vuzp1q_s32(a[h], b[h]);
		dy[h] = (vi)vuzp2q_s32(a[h], b[h]);
	}
}
#endif

// 32 (or 16) columns more of a row: d are their dot products. Every kernel adds so,
// in ascending order.
INL vf add_dots(int bias, vf acc, float scale, float sum, vi d, vf s, vf b) {
	acc = v_fma(s * v_set(scale), __builtin_convertvector(d, vf), acc);
	return bias ? v_fma(b, v_set(sum), acc) : acc;
}

INL vf add_columns(int halves, int bias, vf acc, const record *x, const vi *d, const vf *s, const vf *b) {
	for (int h = 0; h <= halves; h++)
		acc = add_dots(bias, acc, x->scale, halves ? x->half[h] : x->sum, d[h], s[h], b[h]);
	return acc;
}

// PASS: most rows that share unpacked codes, whose sums fit into the registers.
#if defined(SB_AVX512)
enum { AHEAD = 4096, PANEL = 32, PASS = 16 };
#else
enum { AHEAD = 4096, PANEL = 32, PASS = 8 };
#endif

// z[i*W .. +W] = block times row i of n.
INL void block_of(int code, int halves, int bias, int n, const sb_weight *w, const uint8_t *p, const record *const *x, vf *z) {
	const vb table = code < SB_CODE_E2M1 ? (vb){0} : code_table(code);
	const int64_t tiles = w->cols / 32;
	vf acc[PASS], s[2], b[2], k[2];
	const record *y[PASS];
	s[0] = s[1] = b[0] = b[1] = k[0] = k[1] = (vf){0};
#pragma GCC unroll 16
	for (int i = 0; i < n; i++)
		acc[i] = (vf){0}, y[i] = x[i];
	for (int64_t t = 0; t < tiles; t++) {
		for (int i = 0; i <= code_bits(code) * 4 * W; i += 64)
			__builtin_prefetch(p + AHEAD + i, 0, 3);
		p = scales_at(w, halves, t, p, k, s, b);
		vb c[8];
#pragma GCC unroll 8
		for (int j = 0; j < 8; j++)
			c[j] = code_vector(code, p, j, table);
		p += code_bits(code) * 4 * W;
		int i = 0;
#if defined(SB_I8MM)
#pragma GCC unroll 4
		for (; i + 2 <= n; i += 2) {
			vi d[2][2];
			dots_of_two(halves, c, y[i] + t, y[i + 1] + t, d[0], d[1]);
			acc[i] = add_columns(halves, bias, acc[i], y[i] + t, d[0], s, b);
			acc[i + 1] = add_columns(halves, bias, acc[i + 1], y[i + 1] + t, d[1], s, b);
		}
#endif
#pragma GCC unroll 16
		for (; i < n; i++) {
			vi d[2];
			dots(code, halves, c, y[i] + t, d);
			acc[i] = add_columns(halves, bias, acc[i], y[i] + t, d, s, b);
		}
	}
#pragma GCC unroll 16
	for (int i = 0; i < n; i++)
		z[i] = acc[i];
}

// How many of the rows that are left a pass takes: codes of which most models are
// made have one for each number.
INL int64_t pass_of(int code, int64_t left) { return code == 4 || code == 6 || code == 8 ? min64(left, PASS) : left >= 4 ? 4 : 1; }

// The packed kinds: code, groups of 16, biased.
#define EVERY_KIND(DO)                                                \
	switch (w->code * 4 + (w->pgroup == 16) * 2 + biased(w)) { \
		DO(2, 0, 1)                                           \
		DO(2, 1, 1)                                           \
		DO(3, 0, 1)                                           \
		DO(3, 1, 1)                                           \
		DO(4, 0, 1)                                           \
		DO(5, 0, 1)                                           \
		DO(6, 0, 1)                                           \
		DO(6, 1, 1)                                           \
		DO(8, 0, 0)                                           \
		DO(8, 0, 1)                                           \
		DO(SB_CODE_E2M1, 0, 1)                                \
		DO(SB_CODE_E2M1, 1, 1)                                \
		DO(SB_CODE_IQ4, 0, 0)                                 \
	}

#define ROWS(n)                                                              \
	case n:                                                              \
		if (n <= PASS && pass_of(code, n) == n)                      \
			block_of(code, halves, bias, n, w, block, x + i, z + i); \
		break;

INL void passes(int code, int halves, int bias, const sb_weight *w, const uint8_t *block, int64_t m, const record *const *x, vf *z) {
	for (int64_t i = 0, n; i < m; i += n)
		switch (n = pass_of(code, m - i)) {
			ROWS(1)
			ROWS(2)
			ROWS(3)
			ROWS(4)
			ROWS(5)
			ROWS(6)
			ROWS(7)
			ROWS(8)
			ROWS(9)
			ROWS(10)
			ROWS(11)
			ROWS(12)
			ROWS(13)
			ROWS(14)
			ROWS(15)
			ROWS(16)
		}
}

#define BLOCK(code, halves, bias) \
	case (code)*4 + (halves)*2 + (bias): passes(code, halves, bias, w, block, m, x, z); return;

static void packed_block(const sb_weight *w, const uint8_t *block, int64_t m, const record *const *x, vf *z) {
	EVERY_KIND(BLOCK)
}

#if defined(SB_AMX)
enum { AMX_ROWS = 16 };

// Tiles: 0 sums, 1 rows of 32 codes of x, 2 eight vectors of weights; 3, 4 and 5
// the same; 6 and 7 rows and weights of 16 columns.
static void amx_begin(void) {
	static const struct {
		uint8_t palette, start, none[14];
		uint16_t bytes[16];
		uint8_t rows[16];
	} c = {.palette = 1, .bytes = {64, 32, 64, 64, 32, 64, 16, 64}, .rows = {16, 16, 8, 16, 16, 8, 16, 4}};
	_tile_loadconfig(&c);
}

// Part i of the columns of a block: 32 of them, or 16 with halves.
#define AMX_PRODUCT(to, u, v, i)                                                                                \
	do {                                                                                                    \
		_tile_zero(to);                                                                                 \
		if (halves) {                                                                                   \
			_tile_loadd(6, y + (i) / 2 * sizeof(record) + (i) % 2 * 16, ldx);                       \
			_tile_loadd(7, got[(i) / 2].codes + (i) % 2 * 4, 64);                                   \
			_tile_dpbsud(to, 6, 7);                                                                 \
		} else {                                                                                        \
			_tile_loadd(u, y + (i) * sizeof(record), ldx);                                          \
			_tile_loadd(v, got[i].codes, 64);                                                       \
			if (code_signed(code))                                                                  \
				_tile_dpbssd(to, u, v);                                                         \
			else                                                                                    \
				_tile_dpbsud(to, u, v);                                                         \
		}                                                                                               \
	} while (0)

// block_of for m rows, a multiple of sixteen, that lie ldx bytes apart; the sums of
// sixteen stay in registers. Nothing may wait for what is just being made, so codes
// are unpacked EARLY tiles ahead of their products, and a product is begun two steps
// before its sums are added up, and stored one before.
INL void amx_block_of(int code, int halves, int bias, const sb_weight *w, const uint8_t *p, int64_t m, const uint8_t *x, int64_t ldx, vf *z) {
	enum { EARLY = 4, SOME = 24, SUMS = 4 };
	struct {
		vb codes[8];
		vf s[2], b[2];
	} got[SOME];
	vi sums[SUMS][AMX_ROWS];
	const vb table = code < SB_CODE_E2M1 ? (vb){0} : code_table(code);
	const int64_t tiles = w->cols / 32;
	vf s[2], b[2], k[2];
	s[0] = s[1] = b[0] = b[1] = k[0] = k[1] = (vf){0};
	for (int64_t t = 0; t < tiles; t += SOME) {
		const int64_t some = min64(SOME, tiles - t), parts = some << halves;
		int64_t unpacked = 0;
		for (int64_t r = 0; r < m; r += AMX_ROWS) {
			const uint8_t *y = x + r * ldx + t * sizeof(record);
			vf acc[AMX_ROWS];
#pragma GCC unroll 16
			for (int j = 0; j < AMX_ROWS; j++)
				acc[j] = t ? z[r + j] : (vf){0};
			for (int64_t i = -2; i < parts; i++) {
				for (const int64_t until = min64(((i + 2) >> halves) + EARLY, some); unpacked < until; unpacked++) {
					for (int c = 0; c <= code_bits(code) * 4 * W; c += 64)
						__builtin_prefetch(p + AHEAD + c);
					p = scales_at(w, halves, t + unpacked, p, k, s, b);
					for (int h = 0; h <= halves; h++)
						got[unpacked].s[h] = s[h], got[unpacked].b[h] = b[h];
#pragma GCC unroll 8
					for (int c = 0; c < 8; c++)
						got[unpacked].codes[c] = code_vector(code, p, c, table) ^ (uint8_t)(code_signed(code) ? 128 : 0);
					p += code_bits(code) * 4 * W;
				}
				__asm__ volatile("" ::: "memory"); // tiles do not say what they read and write
				if (i % 2 == 0) {
					if (i + 1 >= 0 && i + 1 < parts)
						_tile_stored(3, sums[(i + 1) % SUMS], 64);
					if (i + 2 < parts)
						AMX_PRODUCT(0, 1, 2, i + 2);
				} else {
					if (i + 1 < parts)
						_tile_stored(0, sums[(i + 1) % SUMS], 64);
					if (i + 2 < parts)
						AMX_PRODUCT(3, 4, 5, i + 2);
				}
				__asm__ volatile("" ::: "memory");
				if (i < 0)
					continue;
				const int64_t at = i >> halves, h = i & halves;
#pragma GCC unroll 16
				for (int j = 0; j < AMX_ROWS; j++) {
					const record *o = (const record *)(y + j * ldx) + at;
					acc[j] = add_dots(bias, acc[j], o->scale, halves ? o->half[h] : o->sum, sums[i % SUMS][j], got[at].s[h], got[at].b[h]);
				}
			}
#pragma GCC unroll 16
			for (int j = 0; j < AMX_ROWS; j++)
				z[r + j] = acc[j];
		}
	}
}

#define AMX_BLOCK(code, halves, bias) \
	case (code)*4 + (halves)*2 + (bias): amx_block_of(code, halves, bias, w, block, m, x, ldx, z); return;

static void amx_block(const sb_weight *w, const uint8_t *block, int64_t m, const uint8_t *x, int64_t ldx, vf *z) {
	EVERY_KIND(AMX_BLOCK)
}
#endif
#endif
