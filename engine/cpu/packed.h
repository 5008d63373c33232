// Packed weights: every quantized layout in one shape, for int8 activations.
//
// A weight becomes W = s*c + b: small integer codes c, one scale s for each
// `pgroup` columns, and b stored, -zero*s or nothing. Codes keep their bits; a
// weight is as large as it was, but for MLX's 1-bit codes and scales of NVFP4.
//
// Blocks of W rows, the last one padded with zeros. A block is a stream over the
// columns, 32 at a time:
//   SB_SCALE_F32B, F16B, BF16B   before each group: W scales, W biases
//   SB_SCALE_F16                 before each group: W scales (groups of 16: twice)
//   SB_SCALE_E8M0                before each group: W exponents
//   SB_SCALE_K, SB_SCALE_KM      before each 256: W float16 factors, with M W more for
//                                the minima; before each 32: W signed bytes (groups
//                                of 16: twice), with M the minima alike
// then the codes of 32 columns, "vectors" of 4*W bytes, four bytes a row. Code
// vector j is columns 4j to 4j+3:
//   8 bits   vector j
//   4 bits   vector j/2: the low nibbles for even j, the high ones for odd
//   2 bits   vector j/4: bits 2(j%4) and up
//   5 and 3  the low 4 or 2 bits, then one vector with bit j for the top bit
//   6        the low 4 bits, then vector j/4 with bits 2(j%4) and up for the others

INL int64_t elem_size(int dtype) { return dtype == SB_F32 ? 4 : 2; }

#if defined(SB_AVX512) || defined(SB_AVX2) || defined(SB_NEON)
#define SB_INT8 1

// Signed codes (8 bits and IQ4_NL) are kept with 128 added where the dot product
// wants unsigned ones.
#if defined(SB_AVX512) || defined(SB_VNNI)
enum { FLIP = 128 };
#else
enum { FLIP = 0 };
#endif

INL int code_bits(int code) { return code >= SB_CODE_E2M1 ? 4 : code; }
INL int code_signed(int code) { return code == 8 || code == SB_CODE_IQ4; }

// Says how w is packed; 0 if it is not.
static int pack_plan(sb_weight *w) {
	int code = 0, scale = SB_SCALE_F16, group = 32;
	float zero = 0, gain = 1;
	switch (w->scheme) {
	case SB_AFFINE:
		code = w->bits == 1 ? 2 : w->bits;
		scale = w->dtype == SB_F32 ? SB_SCALE_F32B : w->dtype == SB_F16 ? SB_SCALE_F16B : SB_SCALE_BF16B;
		group = w->group;
		break;
	case SB_MXFP4:
	case SB_GGUF_MXFP4:
		code = SB_CODE_E2M1, scale = SB_SCALE_E8M0, zero = 12, gain = 0.5f;
		break;
	case SB_NVFP4:
		code = SB_CODE_E2M1, group = 16, zero = 12, gain = 0.5f * w->global;
		break;
	case SB_Q4_0:
		code = 4, zero = 8;
		break;
	case SB_Q4_1:
		code = 4, scale = SB_SCALE_F16B;
		break;
	case SB_Q5_0:
		code = 5, zero = 16;
		break;
	case SB_Q5_1:
		code = 5, scale = SB_SCALE_F16B;
		break;
	case SB_Q8_0:
		code = 8;
		break;
	case SB_IQ4_NL:
		code = SB_CODE_IQ4;
		break;
	case SB_Q2_K:
		code = 2, scale = SB_SCALE_KM, group = 16;
		break;
	case SB_Q3_K:
		code = 3, scale = SB_SCALE_K, group = 16, zero = 4;
		break;
	case SB_Q4_K:
		code = 4, scale = SB_SCALE_KM;
		break;
	case SB_Q5_K:
		code = 5, scale = SB_SCALE_KM;
		break;
	case SB_Q6_K:
		code = 6, scale = SB_SCALE_K, group = 16, zero = 32;
		break;
	}
	if (!code || w->rows == 0 || w->cols == 0 || w->cols % 32)
		return 0;
	w->code = code, w->scale = scale, w->pgroup = group, w->zero = zero, w->gain = gain;
	const int64_t two = group == 16 ? 2 : 1, tiles = w->cols / 32;
	int64_t lane = tiles * code_bits(code) * 4; // bytes of a row
	switch (scale) {
	case SB_SCALE_F32B:
		lane += w->cols / group * 8;
		break;
	case SB_SCALE_F16B:
	case SB_SCALE_BF16B:
		lane += w->cols / group * 4;
		break;
	case SB_SCALE_F16:
		lane += w->cols / group * 2;
		break;
	case SB_SCALE_E8M0:
		lane += tiles;
		break;
	case SB_SCALE_K:
		lane += tiles / 8 * 2 + tiles * two;
		break;
	case SB_SCALE_KM:
		lane += tiles / 8 * 4 + tiles * two * 2;
	}
	w->packed_block = lane * W;
	w->packed_batch = (w->rows + W - 1) / W * w->packed_block;
	return 1;
}

static int64_t pack_size(sb_weight *w) { return pack_plan(w) ? w->batch * w->packed_batch : 0; }

// The codes of columns 32t to 32t+31 of a stored row, a byte each.
static void codes_of_row(const sb_weight *w, const uint8_t *q, int64_t t, uint8_t *c) {
	uint32_t high = 0;
	switch (w->scheme) {
	case SB_AFFINE:
		q += t * 4 * w->bits;
		if (w->bits == 8)
			memcpy(c, q, 32);
		else
			unpack_codes(c, q, 32, w->bits);
		return;
	case SB_MXFP4:
	case SB_NVFP4:
		unpack_codes(c, q + 16 * t, 32, 4);
		return;
	case SB_Q8_0:
		memcpy(c, q + 34 * t + 2, 32);
		return;
	case SB_Q4_0:
	case SB_IQ4_NL:
		q += 18 * t + 2;
		break;
	case SB_GGUF_MXFP4:
		q += 17 * t + 1;
		break;
	case SB_Q4_1:
		q += 20 * t + 4;
		break;
	case SB_Q5_0:
		q += 22 * t;
		memcpy(&high, q + 2, 4);
		q += 6;
		break;
	case SB_Q5_1:
		q += 24 * t;
		memcpy(&high, q + 4, 4);
		q += 8;
		break;
	case SB_Q2_K:
	case SB_Q3_K: {
		const int three = w->scheme == SB_Q3_K, i = t % 8;
		q += t / 8 * (three ? 110 : 84);
		for (int l = 0; l < 32; l++) {
			c[l] = q[(three ? 32 : 16) + i / 4 * 32 + l] >> (i % 4 * 2) & 3;
			if (three)
				c[l] |= (q[l] >> i & 1) << 2;
		}
		return;
	}
	case SB_Q4_K:
	case SB_Q5_K: {
		const int five = w->scheme == SB_Q5_K, i = t % 8;
		q += t / 8 * (five ? 176 : 144);
		for (int l = 0; l < 32; l++) {
			c[l] = q[(five ? 48 : 16) + i / 2 * 32 + l] >> (i % 2 * 4) & 15;
			if (five)
				c[l] |= (q[16 + l] >> i & 1) << 4;
		}
		return;
	}
	case SB_Q6_K: {
		const int i = t % 8, half = i / 4, quarter = i % 4;
		q += t / 8 * 210;
		for (int l = 0; l < 32; l++)
			c[l] = (q[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4) & 15) | (q[128 + half * 32 + l] >> (quarter * 2) & 3) << 4;
		return;
	}
	}
	for (int j = 0; j < 16; j++) { // two elements 16 apart share a byte
		c[j] = (q[j] & 15) | (high >> j & 1) << 4;
		c[j + 16] = (q[j] >> 4) | (high >> (j + 16) & 1) << 4;
	}
}

// Puts 32 codes of a row into its lane of the vectors at dst.
static void place_codes(int code, const uint8_t *c, uint8_t *dst) {
	for (int i = 0; i < 4; i++) {
		uint8_t *d = dst + i;
		const int bits = code_bits(code);
		if (bits == 8) {
			for (int j = 0; j < 8; j++)
				d[j * 4 * W] = c[4 * j + i];
			continue;
		}
		const int low = bits == 4 || bits == 5 || bits == 6 ? 4 : 2, per = 8 / low;
		for (int v = 0; v < 8 / per; v++) {
			int b = 0;
			for (int j = 0; j < per; j++)
				b |= (c[4 * (v * per + j) + i] & ((1 << low) - 1)) << (low * j);
			d[v * 4 * W] = (uint8_t)b;
		}
		d += 8 / per * 4 * W;
		if (bits - low == 1) {
			int b = 0;
			for (int j = 0; j < 8; j++)
				b |= (c[4 * j + i] >> low & 1) << j;
			*d = (uint8_t)b;
		} else if (bits - low == 2)
			for (int v = 0; v < 2; v++) {
				int b = 0;
				for (int j = 0; j < 4; j++)
					b |= (c[4 * (4 * v + j) + i] >> low & 3) << (2 * j);
				d[v * 4 * W] = (uint8_t)b;
			}
	}
}

// A chunk is a block of W rows.
static void run_pack(const void *args, int64_t chunk, uint8_t *scratch) {
	const sb_pack *a = args;
	const sb_weight *w = (const sb_weight *)a->w;
	(void)scratch;
	const int64_t per = (w->rows + W - 1) / W, matrix = chunk / per, first = chunk % per * W;
	const int64_t es = elem_size(w->dtype), tiles = w->cols / 32, subs = w->pgroup / 32;
	uint8_t *const block = (uint8_t *)w->packed + chunk * w->packed_block;
	if (first + W > w->rows)
		memset(block, 0, w->packed_block);
	for (int64_t lane = 0; lane < W && first + lane < w->rows; lane++) {
		const int64_t r = matrix * w->rows + first + lane;
		const uint8_t *q = (const uint8_t *)w->w + r * w->row_bytes, *s = (const uint8_t *)w->s + r * w->scale_bytes, *b = (const uint8_t *)w->b + r * w->scale_bytes;
		uint8_t *d = block;
		for (int64_t t = 0; t < tiles; t++) {
			switch (w->scheme) {
			case SB_AFFINE:
				if (t % subs == 0) {
					memcpy(d + lane * es, s + t / subs * es, es);
					memcpy(d + (W + lane) * es, b + t / subs * es, es);
					d += 2 * W * es;
				}
				break;
			case SB_MXFP4:
				d[lane] = s[t];
				d += W;
				break;
			case SB_NVFP4: // a float8 is a float16
				for (int h = 0; h < 2; h++, d += 2 * W) {
					const uint16_t f = f32_f16(e4m3(s[2 * t + h]));
					memcpy(d + 2 * lane, &f, 2);
				}
				break;
			case SB_GGUF_MXFP4:
				d[lane] = q[17 * t];
				d += W;
				break;
			case SB_Q4_0:
			case SB_IQ4_NL:
			case SB_Q5_0:
			case SB_Q8_0:
				memcpy(d + 2 * lane, q + t * (w->scheme == SB_Q5_0 ? 22 : w->scheme == SB_Q8_0 ? 34 : 18), 2);
				d += 2 * W;
				break;
			case SB_Q4_1:
			case SB_Q5_1:
				memcpy(d + 2 * lane, q + t * (w->scheme == SB_Q5_1 ? 24 : 20), 2);
				memcpy(d + 2 * W + 2 * lane, q + t * (w->scheme == SB_Q5_1 ? 24 : 20) + 2, 2);
				d += 4 * W;
				break;
			case SB_Q2_K: {
				const uint8_t *k = q + t / 8 * 84;
				if (t % 8 == 0) {
					memcpy(d + 2 * lane, k + 80, 2);
					memcpy(d + 2 * W + 2 * lane, k + 82, 2);
					d += 4 * W;
				}
				for (int h = 0; h < 2; h++) {
					d[h * W + lane] = k[t % 8 * 2 + h] & 15;
					d[(2 + h) * W + lane] = k[t % 8 * 2 + h] >> 4;
				}
				d += 4 * W;
				break;
			}
			case SB_Q3_K: {
				const uint8_t *k = q + t / 8 * 110, *sc = k + 96;
				if (t % 8 == 0) {
					memcpy(d + 2 * lane, k + 108, 2);
					d += 2 * W;
				}
				for (int h = 0; h < 2; h++, d += W) {
					const int j = t % 8 * 2 + h;
					d[lane] = (uint8_t)(((sc[j % 8] >> (j / 8 * 4) & 15) | (sc[8 + j % 4] >> (j / 4 * 2) & 3) << 4) - 32);
				}
				break;
			}
			case SB_Q4_K:
			case SB_Q5_K: {
				const uint8_t *k = q + t / 8 * (w->scheme == SB_Q4_K ? 144 : 176);
				if (t % 8 == 0) {
					memcpy(d + 2 * lane, k, 2);
					memcpy(d + 2 * W + 2 * lane, k + 2, 2);
					d += 4 * W;
				}
				k_scale(k + 4, t % 8, d + lane, d + W + lane);
				d += 2 * W;
				break;
			}
			case SB_Q6_K: {
				const uint8_t *k = q + t / 8 * 210;
				if (t % 8 == 0) {
					memcpy(d + 2 * lane, k + 208, 2);
					d += 2 * W;
				}
				for (int h = 0; h < 2; h++, d += W)
					d[lane] = k[192 + t % 8 * 2 + h];
				break;
			}
			}
			uint8_t c[32];
			codes_of_row(w, q, t, c);
			if (w->scheme == SB_Q8_0 && FLIP != 0)
				for (int i = 0; i < 32; i++)
					c[i] ^= 128;
			else if (w->scheme == SB_AFFINE && w->bits == 8 && FLIP == 0) // counted as code - 128
				for (int i = 0; i < 32; i++)
					c[i] ^= 128;
			place_codes(w->code, c, d + 4 * lane);
			d += code_bits(w->code) * 4 * W;
		}
	}
}

typedef uint8_t vb __attribute__((vector_size(4 * W)));
typedef uint16_t vh __attribute__((vector_size(4 * W)));
typedef vb vb_any __attribute__((aligned(1), may_alias));

INL vh vh_ld(const uint8_t *p) { return (vh) * (const vb_any *)p; }

INL vb v_look(vb table, vb index) {
#if defined(SB_AVX512)
	return (vb)_mm512_shuffle_epi8((__m512i)table, (__m512i)index);
#elif defined(SB_AVX2)
	return (vb)_mm256_shuffle_epi8((__m256i)table, (__m256i)index);
#else
	return (vb)vqtbl1q_u8((uint8x16_t)table, (uint8x16_t)index);
#endif
}

INL vb code_table(int code) {
	static const uint8_t e2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0}; // twice the number, and 12
	static const int8_t iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
	vb t;
	for (int i = 0; i < 4 * W; i++)
		t[i] = code == SB_CODE_E2M1 ? e2m1[i % 16] : (uint8_t)(iq4[i % 16] + FLIP);
	return t;
}

// Code vector j of the 32 columns at p.
INL vb code_vector(int code, const uint8_t *p, int j, vb table) {
	vh v, h;
	switch (code) {
	case 8:
		return (vb)vh_ld(p + 4 * W * j);
	case 2:
	case 3:
		v = vh_ld(p + 4 * W * (j / 4));
		v = v >> (2 * (j % 4)) & 0x0303;
		if (code == 2)
			return (vb)v;
		h = vh_ld(p + 8 * W);
		return (vb)(v | ((j <= 2 ? h << (2 - j) : h >> (j - 2)) & 0x0404));
	}
	v = vh_ld(p + 4 * W * (j / 2));
	v = (j % 2 ? v >> 4 : v) & 0x0f0f;
	switch (code) {
	case 5:
		h = vh_ld(p + 16 * W);
		return (vb)(v | ((j <= 4 ? h << (4 - j) : h >> (j - 4)) & 0x1010));
	case 6:
		h = vh_ld(p + 16 * W + 4 * W * (j / 4));
		return (vb)(v | ((j % 4 <= 2 ? h << (4 - 2 * (j % 4)) : h >> 2) & 0x3030));
	case SB_CODE_E2M1:
	case SB_CODE_IQ4:
		return v_look(table, (vb)v);
	}
	return (vb)v;
}

// The numbers of row r of an affine weight, the same bits as from its stored form:
// what was packed need not be in memory any more.
static void packed_row(const sb_weight *w, int64_t r, float *dst) {
	const int64_t es = elem_size(w->dtype), lane = r % W;
	const int flip = w->code == 8 && FLIP == 0 ? 128 : 0;
	const uint8_t *p = (const uint8_t *)w->packed + r / W * w->packed_block;
	for (int64_t g = 0; g < w->cols; g += w->pgroup) {
		uint8_t codes[128];
		float scale, bias;
		widen(&scale, p + lane * es, 1, w->dtype);
		widen(&bias, p + (W + lane) * es, 1, w->dtype);
		p += 2 * W * es;
		for (int64_t t = 0; t < w->pgroup; t += 32, p += code_bits(w->code) * 4 * W)
			for (int j = 0; j < 8; j++) {
				const vb v = code_vector(w->code, p, j, (vb){0});
				memcpy(codes + t + 4 * j, (const uint8_t *)&v + 4 * lane, 4);
			}
		for (int64_t i = 0; i < w->pgroup; i++)
			codes[i] ^= flip;
		codes_f32(dst + g, codes, w->pgroup, scale, bias);
	}
}

// Scales of tile t, from p on; s and b are kept from one tile of a group to the
// next, d from one tile of 256 columns to the next. Returns where the codes begin.
INL const uint8_t *scales_at(const sb_weight *w, int halves, int64_t t, const uint8_t *p, vf *d, vf *s, vf *b) {
	switch (w->scale) {
	case SB_SCALE_F32B:
	case SB_SCALE_F16B:
	case SB_SCALE_BF16B:
		if (t & (w->pgroup / 32 - 1))
			return p;
		if (w->scale == SB_SCALE_F32B) {
			s[0] = v_ld(p), b[0] = v_ld(p + 4 * W);
			p += 8 * W;
		} else {
			if (w->scale == SB_SCALE_F16B)
				s[0] = v_half(p), b[0] = v_half(p + 2 * W);
			else
				s[0] = v_bhalf(p), b[0] = v_bhalf(p + 2 * W);
			p += 4 * W;
		}
		if (w->code == 8)
			b[0] = v_fma(s[0], v_set(128.0f), b[0]);
		return p;
	case SB_SCALE_F16:
		for (int h = 0; h <= halves; h++, p += 2 * W)
			s[h] = v_half(p) * w->gain;
		break;
	case SB_SCALE_E8M0: {
		vi e = (vi)v_bytes_int(p) << 23; // 0 is 2^-127
		s[0] = (vf)(e | ((e == 0) & 0x00400000)) * w->gain;
		p += W;
		break;
	}
	case SB_SCALE_K:
	case SB_SCALE_KM: {
		const int with_min = w->scale == SB_SCALE_KM;
		if (t % 8 == 0) {
			d[0] = v_half(p);
			p += 2 * W;
			if (with_min) {
				d[1] = v_half(p);
				p += 2 * W;
			}
		}
		for (int h = 0; h <= halves; h++, p += W)
			s[h] = d[0] * v_sbytes(p);
		if (with_min) {
			for (int h = 0; h <= halves; h++, p += W)
				b[h] = -d[1] * v_sbytes(p);
			return p;
		}
	}
	}
	for (int h = 0; h <= halves; h++)
		b[h] = s[h] * -w->zero;
	return p;
}

// Whether b is more than zeros.
INL int biased(const sb_weight *w) { return w->scale <= SB_SCALE_BF16B || w->scale == SB_SCALE_KM || w->zero != 0; }
#endif
