// Vectors of W floats, one implementation per level. A level defines SB_AVX512,
// SB_AVX2, SB_NEON or none of them (plain C, 4 lanes) before including this.
//
// Every function gives each lane the same bits wherever the lane stands, so
// a tail that is loaded with v_ldn computes like the rest.
#include "sb.h"

#if defined(SB_AVX512)
#define W 16
#elif defined(SB_AVX2)
#define W 8
#else
#define W 4
#endif

#define INL static inline __attribute__((always_inline, unused))

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef float vf_any __attribute__((vector_size(4 * W), aligned(1), may_alias));
typedef int32_t vi_any __attribute__((vector_size(4 * W), aligned(1), may_alias));

INL vf v_ld(const void *p) { return *(const vf_any *)p; }
INL void v_st(void *p, vf v) { *(vf_any *)p = v; }
INL vf v_set(float x) { return x - (vf){0}; }
INL vi v_seti(int32_t x) { return x - (vi){0}; }
INL vf v_select(vi mask, vf a, vf b) { return (vf)((mask & (vi)a) | (~mask & (vi)b)); }
INL vf v_abs(vf a) { return (vf)((vi)a & 0x7fffffff); }

// v_min and v_max return b when either is NaN. v_half, v_bhalf and v_bytes widen
// W float16, bfloat16 or unsigned byte elements; v_store_half rounds to float16.
// v_top is the largest of numbers that are not NaN; v_maxi and v_topi: the larger,
// the largest integer. v_store_codes stores 32 small
// integers as bytes, and the sums of each half of them.
#if defined(SB_AVX512)
INL vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INL vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INL vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INL vf v_half(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INL void v_store_half(void *p, vf v) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(v, 0)); }
INL float v_top(vf v) { return _mm512_reduce_max_ps(v); }
INL vi v_maxi(vi a, vi b) { return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b); }
INL int32_t v_topi(vi v) { return _mm512_reduce_max_epi32((__m512i)v); }
INL void v_store_codes(int8_t *p, const vi *v, int32_t *sums) {
	for (int h = 0; h < 2; h++) {
		_mm_storeu_si128((__m128i *)p + h, _mm512_cvtepi32_epi8((__m512i)v[h]));
		sums[h] = _mm512_reduce_add_epi32((__m512i)v[h]);
	}
}
INL vf v_bhalf(const void *p) { return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16); }
INL vf v_bytes(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INL vf v_ldn(const float *p, int64_t n) { return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p); }
INL void v_stn(float *p, vf v, int64_t n) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), v); }
INL vi v_bytes_int(const void *p) { return (vi)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INL vf v_sbytes(const void *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
// v_sum4 returns the sums of four vectors; v_sum has the same order of additions:
// (0+2)+(1+3) in each quarter, then the quarters alike.
INL __m128 v_sum4(vf a, vf b, vf c, vf d) {
	__m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b)), cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
	__m512 t = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
	__m256 h = _mm256_add_ps(_mm512_castps512_ps256(t), _mm512_extractf32x8_ps(t, 1));
	return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
INL float v_sum(vf a) { return _mm_cvtss_f32(v_sum4(a, a, a, a)); }
#elif defined(SB_AVX2)
INL vf v_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INL vf v_min(vf a, vf b) { return _mm256_min_ps(a, b); }
INL vf v_max(vf a, vf b) { return _mm256_max_ps(a, b); }
INL vf v_half(const void *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INL void v_store_half(void *p, vf v) { _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(v, 0)); }
INL float v_top(vf v) {
	__m128 h = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
	h = _mm_max_ps(h, _mm_movehl_ps(h, h));
	return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
INL vi v_maxi(vi a, vi b) { return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b); }
INL int32_t v_topi(vi v) {
	__m128i h = _mm_max_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
	h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
	return _mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}
INL void v_store_codes(int8_t *p, const vi *v, int32_t *sums) {
	__m256i h = _mm256_packs_epi16(_mm256_packs_epi32((__m256i)v[0], (__m256i)v[1]), _mm256_packs_epi32((__m256i)v[2], (__m256i)v[3]));
	h = _mm256_permutevar8x32_epi32(h, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
	_mm256_storeu_si256((__m256i *)p, h);
	h = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), h), _mm256_set1_epi16(1)); // a half in each half
	h = _mm256_add_epi32(h, _mm256_shuffle_epi32(h, 0x4e));
	h = _mm256_add_epi32(h, _mm256_shuffle_epi32(h, 0xb1));
	sums[0] = _mm256_cvtsi256_si32(h);
	sums[1] = _mm256_extract_epi32(h, 4);
}
INL vf v_bhalf(const void *p) { return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16); }
INL vf v_bytes(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INL vi v_bytes_int(const void *p) { return (vi)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)); }
INL vf v_sbytes(const void *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
// v_sum4 returns the sums of four vectors; v_sum has the same order of additions:
// (0+2)+(1+3) in each half, then the halves.
INL __m128 v_sum4(vf a, vf b, vf c, vf d) {
	__m256 ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)), cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
	__m256 t = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
	return _mm_add_ps(_mm256_castps256_ps128(t), _mm256_extractf128_ps(t, 1));
}
INL float v_sum(vf a) { return _mm_cvtss_f32(v_sum4(a, a, a, a)); }
#elif defined(SB_NEON)
INL vf v_fma(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INL vf v_min(vf a, vf b) { return v_select(a < b, a, b); }
INL vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
INL vf v_half(const void *p) {
	uint16_t h[4];
	memcpy(h, p, sizeof h);
	return (vf)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(h)));
}
INL void v_store_half(void *p, vf v) {
	uint16x4_t h = vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v));
	memcpy(p, &h, sizeof h);
}
INL float v_top(vf v) { return vmaxvq_f32((float32x4_t)v); }
INL vi v_maxi(vi a, vi b) { return (vi)vmaxq_s32((int32x4_t)a, (int32x4_t)b); }
INL int32_t v_topi(vi v) { return vmaxvq_s32((int32x4_t)v); }
INL void v_store_codes(int8_t *p, const vi *v, int32_t *sums) {
	for (int h = 0; h < 2; h++, v += 4) {
		int16x8_t a = vcombine_s16(vmovn_s32((int32x4_t)v[0]), vmovn_s32((int32x4_t)v[1])), b = vcombine_s16(vmovn_s32((int32x4_t)v[2]), vmovn_s32((int32x4_t)v[3]));
		vst1q_s8(p + 16 * h, vcombine_s8(vmovn_s16(a), vmovn_s16(b)));
		sums[h] = vaddvq_s32((int32x4_t)(v[0] + v[1] + v[2] + v[3]));
	}
}
INL vf v_bhalf(const void *p) {
	uint16_t h[4];
	memcpy(h, p, sizeof h);
	return (vf)vshll_n_u16(vld1_u16(h), 16);
}
INL vf v_bytes(const void *p) {
	uint32_t u;
	memcpy(&u, p, sizeof u);
	uint8x8_t b = vreinterpret_u8_u32(vdup_n_u32(u));
	return (vf)vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(b))));
}
INL vi v_bytes_int(const void *p) {
	uint32_t u;
	memcpy(&u, p, sizeof u);
	return (vi)vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(u)))));
}
INL vf v_sbytes(const void *p) {
	uint32_t u;
	memcpy(&u, p, sizeof u);
	return (vf)vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(u))))));
}
INL float32x4_t v_sum4(vf a, vf b, vf c, vf d) {
	return vpaddq_f32(vpaddq_f32((float32x4_t)a, (float32x4_t)b), vpaddq_f32((float32x4_t)c, (float32x4_t)d));
}
INL float v_sum(vf a) { return (a[0] + a[1]) + (a[2] + a[3]); }
#else
INL vf v_fma(vf a, vf b, vf c) { return a * b + c; }
INL vf v_min(vf a, vf b) { return v_select(a < b, a, b); }
INL vf v_max(vf a, vf b) { return v_select(a > b, a, b); }
INL vf v_sum4(vf a, vf b, vf c, vf d) {
	return (vf){(a[0] + a[1]) + (a[2] + a[3]), (b[0] + b[1]) + (b[2] + b[3]), (c[0] + c[1]) + (c[2] + c[3]), (d[0] + d[1]) + (d[2] + d[3])};
}
INL float v_sum(vf a) { return (a[0] + a[1]) + (a[2] + a[3]); }
INL float v_top(vf v) {
	vf h = v_max(v, (vf){v[2], v[3], v[0], v[1]});
	return h[0] > h[1] ? h[0] : h[1];
}
#endif

// p[0..3] = the sums of four vectors, each with the bits of v_sum.
INL void v_store_sums(float *p, vf a, vf b, vf c, vf d) {
	__typeof__(v_sum4(a, b, c, d)) t = v_sum4(a, b, c, d);
	memcpy(p, &t, sizeof t);
}

#if !defined(SB_AVX512)
INL vf v_ldn(const float *p, int64_t n) {
	float t[W] = {0};
	for (int64_t i = 0; i < n; i++)
		t[i] = p[i];
	return v_ld(t);
}
INL void v_stn(float *p, vf v, int64_t n) {
	float t[W];
	v_st(t, v);
	for (int64_t i = 0; i < n; i++)
		p[i] = t[i];
}
#endif

// Single elements at any alignment.
INL uint16_t ld16(const void *p) {
	uint16_t h;
	memcpy(&h, p, sizeof h);
	return h;
}
INL float ld32(const void *p) {
	float f;
	memcpy(&f, p, sizeof f);
	return f;
}
INL float bits_f32(uint32_t u) {
	float f;
	memcpy(&f, &u, sizeof f);
	return f;
}
INL uint32_t f32_bits(float f) {
	uint32_t u;
	memcpy(&u, &f, sizeof u);
	return u;
}
INL float f16_f32(uint16_t h) {
	uint32_t sign = (uint32_t)(h >> 15) << 31, exp = h >> 10 & 31, frac = h & 1023;
	if (exp == 0)
		return bits_f32(f32_bits((float)frac * (1.0f / (1 << 24))) | sign);
	if (exp == 31)
		return bits_f32(sign | 0x7f800000 | frac << 13);
	return bits_f32(sign | (exp + 112) << 23 | frac << 13);
}
INL float bf16_f32(uint16_t h) { return bits_f32((uint32_t)h << 16); }
INL float element(const uint8_t *p, int64_t i, int dtype) {
	return dtype == SB_F32 ? ld32(p + 4 * i) : dtype == SB_BF16 ? bf16_f32(ld16(p + 2 * i)) : f16_f32(ld16(p + 2 * i));
}

#if !defined(SB_AVX512) && !defined(SB_AVX2) && !defined(SB_NEON)
INL vf v_half(const void *p) {
	vf v;
	for (int i = 0; i < W; i++)
		v[i] = f16_f32(ld16((const uint8_t *)p + 2 * i));
	return v;
}
INL vf v_bhalf(const void *p) {
	vf v;
	for (int i = 0; i < W; i++)
		v[i] = bf16_f32(ld16((const uint8_t *)p + 2 * i));
	return v;
}
INL vf v_bytes(const void *p) {
	vf v;
	for (int i = 0; i < W; i++)
		v[i] = (float)((const uint8_t *)p)[i];
	return v;
}
#endif

// Functions. Errors are below 2 units in the last place unless stated.

// e^x = p 2^n with p near 1, for x that v_exp and v_weight take.
INL vf v_exp_parts(vf x, vi *n) {
	const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
	vf shifted = v_fma(x, v_set(1.44269504f), v_set(magic));
	*n = (vi)shifted - 0x4b400000;
	vf f = shifted - magic;
	vf r = v_fma(f, v_set(-0.693359375f), x);
	r = v_fma(f, v_set(2.12194440e-4f), r);
	vf p = v_set(1.9875691500e-4f);
	p = v_fma(p, r, v_set(1.3981999507e-3f));
	p = v_fma(p, r, v_set(8.3334519073e-3f));
	p = v_fma(p, r, v_set(4.1665795894e-2f));
	p = v_fma(p, r, v_set(1.6666665459e-1f));
	p = v_fma(p, r, v_set(5.0000001201e-1f));
	return v_fma(p, r * r, r) + 1.0f;
}

// e^x; 0 below -104, infinite above 88.73.
INL vf v_exp(vf x) {
	vi n;
	vf p = v_exp_parts(v_min(v_set(89.0f), v_max(v_set(-104.0f), x)), &n);
	vi half = n >> 1; // 2^n in two factors, so that subnormal results come out right
	return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

// e^x for x <= 0, and 0 below -87: never a subnormal number, which processors take
// a hundred cycles for.
INL vf v_weight(vf x) {
	vi n;
	vf p = v_exp_parts(v_max(v_set(-87.0f), x), &n) * (vf)((n + 127) << 23);
	return (vf)(~(x < -87.0f) & (vi)p);
}

INL vf v_sigmoid(vf x) { // by e^-|x|, so that small results keep their digits
	vf e = v_exp((vf)((vi)x | (int32_t)0x80000000));
	return v_select(x < 0.0f, e, v_set(1.0f)) / (1.0f + e);
}
INL vf v_silu(vf x) { return x * v_sigmoid(x); }

INL vf v_tanh(vf x) {
	vf a = v_abs(x), z = x * x;
	vf big = 1.0f - 2.0f / (v_exp(a + a) + 1.0f);
	big = (vf)((vi)big | ((vi)x & (int32_t)0x80000000));
	vf p = v_set(-5.70498872745e-3f);
	p = v_fma(p, z, v_set(2.06390887954e-2f));
	p = v_fma(p, z, v_set(-5.37397155531e-2f));
	p = v_fma(p, z, v_set(1.33314422036e-1f));
	p = v_fma(p, z, v_set(-3.33332819422e-1f));
	vf small = v_fma(p * z, x, x);
	return v_select(a < 0.625f, small, big);
}

// GELU, tanh form; x * sigmoid(2u) equals 0.5 x (1 + tanh(u)).
INL vf v_gelu(vf x) {
	vf u = 0.79788456080286536f * v_fma(0.044715f * x * x, x, x);
	return x * v_sigmoid(u + u);
}

INL vf v_act(int act, vf z, vf u) {
	switch (act) {
	case SB_ACT_SILU:
		return v_silu(z);
	case SB_ACT_RELU2:
		z = v_max(v_set(0), z);
		return z * z;
	case SB_ACT_GELU:
		return v_gelu(z);
	case SB_ACT_SIGMOID:
		return v_sigmoid(z);
	case SB_ACT_SWIGLU:
		return v_silu(z) * u;
	case SB_ACT_GEGLU:
		return v_gelu(z) * u;
	case SB_ACT_CLAMPED: {
		vf g = v_min(v_set(7.0f), z);
		u = v_max(v_set(-7.0f), v_min(v_set(7.0f), u));
		return (u + 1.0f) * g * v_sigmoid(1.702f * g);
	}
	}
	return z;
}

// The same functions for one number: the bits of a lane.
INL float s_exp(float x) { return v_exp(v_set(x))[0]; }
INL float s_sigmoid(float x) { return v_sigmoid(v_set(x))[0]; }
INL float softplus(float x) { return (x > 0 ? x : 0) + (x != x ? x : log1pf(expf(-fabsf(x)))); }

// a . b over n elements, one lane map for every caller.
INL float dot(const float *a, const float *b, int64_t n) {
	vf acc = {0};
	int64_t i = 0;
	for (; i + W <= n; i += W)
		acc = v_fma(v_ld(a + i), v_ld(b + i), acc);
	if (i < n)
		acc = v_fma(v_ldn(a + i, n - i), v_ldn(b + i, n - i), acc);
	return v_sum(acc);
}

// The largest of n > 0 elements; NaN is passed over unless all are.
INL float largest(const float *x, int64_t n) {
	vf m = v_set(-INFINITY);
	int64_t i = 0;
	for (; i + W <= n; i += W)
		m = v_max(v_ld(x + i), m);
	float best = v_top(m);
	for (; i < n; i++)
		best = x[i] > best ? x[i] : best;
	return best;
}

// Vectors of a row of which `left` elements remain: the last one is partial.
INL vf v_load(const float *p, int64_t left) { return left >= W ? v_ld(p) : v_ldn(p, left); }
INL void v_store(float *p, vf v, int64_t left) {
	if (left >= W)
		v_st(p, v);
	else
		v_stn(p, v, left);
}

INL int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
INL int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
INL float *row(sb_view v, int64_t i) { return (float *)v.p + i * v.stride; }
INL int32_t *irow(sb_view v, int64_t i) { return (int32_t *)v.p + i * v.stride; }
