// Rows of weights as float32: every scheme of layout.Scheme. The meaning is
// that of layout.Matrix.Row; a product and a sum may be rounded once (fused).

static const float e2m1[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};

INL float e8m0(uint8_t b) { return bits_f32(b ? (uint32_t)b << 23 : 0x00400000); }
INL float e4m3(uint8_t b) {
	uint32_t sign = (uint32_t)(b >> 7) << 31, exp = b >> 3 & 15, man = b & 7;
	if ((b & 127) == 127)
		return bits_f32(sign | 0x7fc00000);
	if (exp == 0)
		return bits_f32(f32_bits((float)man * (1.0f / 512)) | sign);
	return bits_f32(sign | (exp + 120) << 23 | man << 20);
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

// Columns, padded so that whole vectors can be stored.
INL int64_t padded(int64_t cols) { return (cols + 31) / 32 * 32; }

// n numbers of type dtype at any alignment; dst may be written up to a whole vector.
static void widen(float *dst, const uint8_t *src, int64_t n, int dtype) {
	int64_t i = 0;
	if (dtype == SB_F32) {
		memcpy(dst, src, n * 4);
	} else if (dtype == SB_F16) {
		for (; i + W <= n; i += W)
			v_st(dst + i, v_half(src + 2 * i));
		for (; i < n; i++)
			dst[i] = f16_f32(ld16(src + 2 * i));
	} else {
		for (; i + W <= n; i += W)
			v_st(dst + i, v_bhalf(src + 2 * i));
		for (; i < n; i++)
			dst[i] = bf16_f32(ld16(src + 2 * i));
	}
}

// dst = scale * code + bias for n codes, a multiple of 32.
INL void codes_f32(float *dst, const uint8_t *codes, int64_t n, float scale, float bias) {
	for (int64_t i = 0; i < n; i += W)
		v_st(dst + i, v_fma(v_bytes(codes + i), v_set(scale), v_set(bias)));
}

// n codes of `bits` bits, least significant bit first, n a multiple of 8.
INL void unpack_codes(uint8_t *codes, const uint8_t *w, int64_t n, int bits) {
	if (bits == 4) {
		for (int64_t i = 0; i < n / 2; i++) {
			codes[2 * i] = w[i] & 15;
			codes[2 * i + 1] = w[i] >> 4;
		}
		return;
	}
	for (int64_t i = 0; i < n; i += 8, w += bits) { // 8 codes are `bits` bytes
		uint64_t u = 0;
		memcpy(&u, w, bits);
		for (int j = 0; j < 8; j++)
			codes[i + j] = u >> (j * bits) & ((1 << bits) - 1);
	}
}

INL void affine_group(float *dst, const uint8_t *w, int64_t n, int bits, float scale, float bias) {
	if (bits == 8) {
		codes_f32(dst, w, n, scale, bias);
		return;
	}
#if defined(SB_AVX512)
	if (bits == 4) { // the sixteen values of the group as a table
		vf index = (vf){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
		vf t = v_fma(index, v_set(scale), v_set(bias));
		for (int64_t i = 0; i < n; i += 32) {
			__m128i lo = _mm_loadu_si128((const __m128i *)(w + i / 2)), hi = _mm_srli_epi16(lo, 4);
			// The table look-up reads the low four bits only.
			v_st(dst + i, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpacklo_epi8(lo, hi)), t));
			v_st(dst + i + 16, _mm512_permutexvar_ps(_mm512_cvtepu8_epi32(_mm_unpackhi_epi8(lo, hi)), t));
		}
		return;
	}
#elif defined(SB_AVX2)
	if (bits == 4) {
		const __m128i low = _mm_set1_epi8(15);
		for (int64_t i = 0; i < n; i += 32) {
			__m128i v = _mm_loadu_si128((const __m128i *)(w + i / 2)), lo = _mm_and_si128(v, low), hi = _mm_and_si128(_mm_srli_epi16(v, 4), low);
			__m128i a = _mm_unpacklo_epi8(lo, hi), b = _mm_unpackhi_epi8(lo, hi);
			vf s = v_set(scale), z = v_set(bias);
			v_st(dst + i, v_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(a)), s, z));
			v_st(dst + i + 8, v_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(a, 8))), s, z));
			v_st(dst + i + 16, v_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(b)), s, z));
			v_st(dst + i + 24, v_fma(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))), s, z));
		}
		return;
	}
#endif
	uint8_t codes[128];
	unpack_codes(codes, w, n, bits);
	codes_f32(dst, codes, n, scale, bias);
}

INL void affine_row_of(int bits, const sb_weight *w, int64_t r, float *dst) {
	const uint8_t *q = (const uint8_t *)w->w + r * w->row_bytes;
	const uint8_t *s = (const uint8_t *)w->s + r * w->scale_bytes, *b = (const uint8_t *)w->b + r * w->scale_bytes;
	const int64_t groups = w->cols / w->group, group_bytes = w->group * bits / 8;
	float scale[64], bias[64];
	for (int64_t g = 0; g < groups; g++) {
		if (g % 64 == 0) {
			int64_t at = g * (w->dtype == SB_F32 ? 4 : 2), n = min64(64, groups - g);
			widen(scale, s + at, n, w->dtype);
			widen(bias, b + at, n, w->dtype);
		}
		affine_group(dst + g * w->group, q + g * group_bytes, w->group, bits, scale[g % 64], bias[g % 64]);
	}
}

static void affine_row(const sb_weight *w, int64_t r, float *dst) {
	if (w->bits == 4)
		affine_row_of(4, w, r, dst);
	else if (w->bits == 8)
		affine_row_of(8, w, r, dst);
	else
		affine_row_of(w->bits, w, r, dst);
}

// MX and NV formats: codes, and one scale byte a group.
static void micro_row(const sb_weight *w, int64_t r, float *dst) {
	const uint8_t *q = (const uint8_t *)w->w + r * w->row_bytes, *s = (const uint8_t *)w->s + r * w->scale_bytes;
	if (w->scheme == SB_MXFP8) {
		for (int64_t i = 0; i < w->cols; i += 32) { // a float8 is a float16 with another exponent: 2^8 times too small
			uint16_t half[32];
			for (int j = 0; j < 32; j++)
				half[j] = (uint16_t)((q[i + j] & 127) == 127 ? 0x7e00 : (q[i + j] & 128) << 8 | (q[i + j] & 127) << 7);
			const float scale = e8m0(s[i / 32]);
			for (int j = 0; j < 32; j += W)
				v_st(dst + i + j, v_half(half + j) * 256.0f * scale);
		}
		return;
	}
	for (int64_t i = 0; i < w->cols; i++) {
		float v = e2m1[q[i / 2] >> (i % 2 * 4) & 15];
		dst[i] = w->scheme == SB_MXFP4 ? v * e8m0(s[i / w->group]) : v * e4m3(s[i / w->group]) * w->global;
	}
}

// Scale and minimum number j of a Q4_K or Q5_K block: 6 bits each in 12 bytes.
INL void k_scale(const uint8_t *q, int j, uint8_t *scale, uint8_t *min) {
	if (j < 4) {
		*scale = q[j] & 63;
		*min = q[j + 4] & 63;
	} else {
		*scale = (q[j + 4] & 15) | (q[j - 4] >> 6) << 4;
		*min = (q[j + 4] >> 4) | (q[j] >> 6) << 4;
	}
}

// GGUF blocks of 32 elements. Two elements 16 apart share a byte.
static void block32(int scheme, const uint8_t *q, float *y) {
	static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	float d = f16_f32(ld16(q)), m = 0;
	uint32_t high = 0;
	switch (scheme) {
	case SB_Q8_0:
		for (int j = 0; j < 32; j++)
			y[j] = (float)(int8_t)q[2 + j] * d;
		return;
	case SB_GGUF_MXFP4:
		d = e8m0(q[0]);
		for (int j = 0; j < 16; j++) {
			y[j] = e2m1[q[1 + j] & 15] * d;
			y[j + 16] = e2m1[q[1 + j] >> 4] * d;
		}
		return;
	case SB_IQ4_NL:
		for (int j = 0; j < 16; j++) {
			y[j] = d * iq4[q[2 + j] & 15];
			y[j + 16] = d * iq4[q[2 + j] >> 4];
		}
		return;
	case SB_Q4_0:
		q += 2;
		break;
	case SB_Q4_1:
		m = f16_f32(ld16(q + 2));
		q += 4;
		break;
	case SB_Q5_0:
		memcpy(&high, q + 2, 4);
		q += 6;
		break;
	case SB_Q5_1:
		m = f16_f32(ld16(q + 2));
		memcpy(&high, q + 4, 4);
		q += 8;
		break;
	}
	int zero = scheme == SB_Q4_0 ? 8 : scheme == SB_Q5_0 ? 16 : 0;
	for (int j = 0; j < 16; j++) {
		int a = (q[j] & 15) | (high >> j & 1) << 4, b = (q[j] >> 4) | (high >> (j + 16) & 1) << 4;
		y[j] = (float)(a - zero) * d + m;
		y[j + 16] = (float)(b - zero) * d + m;
	}
}

// GGUF blocks of 256 elements.
static void block256(int scheme, const uint8_t *q, float *y) {
	switch (scheme) {
	case SB_Q2_K: { // 16 scales, 64 bytes of codes, d, dmin
		float d = f16_f32(ld16(q + 80)), dmin = f16_f32(ld16(q + 82));
		for (int i = 0; i < 256; i++) { // 128 elements share 32 bytes, 32 elements a bit pair
			uint8_t sc = q[i / 16];
			int code = q[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
			y[i] = d * (sc & 15) * code - dmin * (sc >> 4);
		}
		return;
	}
	case SB_Q3_K: { // 32 bytes of high bits, 64 bytes of codes, 12 bytes of 6-bit scales, d
		float d = f16_f32(ld16(q + 108));
		const uint8_t *s = q + 96;
		for (int i = 0; i < 256; i++) {
			int j = i / 16; // low four bits: bytes 0-7 by nibble; high two: bytes 8-11 by bit pair
			int sc = (s[j % 8] >> (j / 8 * 4) & 15) | (s[8 + j % 4] >> (j / 4 * 2) & 3) << 4;
			int code = q[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
			code -= q[i % 32] >> (i / 32) & 1 ? 0 : 4;
			y[i] = d * (sc - 32) * code;
		}
		return;
	}
	case SB_Q4_K: // d, dmin, 12 bytes of scales, 128 bytes of codes
	case SB_Q5_K: { // 32 bytes of high bits before the codes
		float d = f16_f32(ld16(q)), dmin = f16_f32(ld16(q + 2));
		const uint8_t *high = q + 16, *codes = scheme == SB_Q4_K ? q + 16 : q + 48;
		for (int i = 0; i < 256; i += 32) {
			uint8_t sc, mn;
			k_scale(q + 4, i / 32, &sc, &mn);
			float scale = d * sc, min = dmin * mn;
			for (int l = 0; l < 32; l++) {
				int code = codes[i / 64 * 32 + l] >> (i / 32 % 2 * 4) & 15;
				if (scheme == SB_Q5_K)
					code |= (high[l] >> (i / 32) & 1) << 4;
				y[i + l] = scale * code - min;
			}
		}
		return;
	}
	case SB_Q6_K: { // 128 bytes of low bits, 64 bytes of high bits, 16 scales, d
		float d = f16_f32(ld16(q + 208));
		for (int i = 0; i < 256; i++) {
			int half = i / 128, quarter = i % 128 / 32, l = i % 32;
			int low = q[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15;
			int high = q[128 + half * 32 + l] >> (quarter * 2) & 3;
			y[i] = d * (int8_t)q[192 + i / 16] * ((low | high << 4) - 32);
		}
		return;
	}
	}
}

// Writes row r (counted over the whole batch) to dst, which has room for
// padded(cols) elements; the padding becomes zero.
static void dequant_row(const sb_weight *w, int64_t r, float *dst) {
	switch (w->scheme) {
	case SB_DENSE:
		widen(dst, (const uint8_t *)w->w + r * w->row_bytes, w->cols, w->dtype);
		break;
	case SB_AFFINE:
		affine_row(w, r, dst);
		break;
	case SB_MXFP4:
	case SB_MXFP8:
	case SB_NVFP4:
		micro_row(w, r, dst);
		break;
	default: {
		const uint8_t *q = (const uint8_t *)w->w + r * w->row_bytes;
		int big = w->scheme >= SB_Q2_K && w->scheme <= SB_Q6_K, size = big ? 256 : 32;
		int64_t bytes = w->row_bytes / (w->cols / size);
		for (int64_t i = 0; i < w->cols; i += size, q += bytes)
			big ? block256(w->scheme, q, dst + i) : block32(w->scheme, q, dst + i);
	}
	}
	for (int64_t i = w->cols; i < padded(w->cols); i++)
		dst[i] = 0;
}
