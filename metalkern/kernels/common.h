// What every kernel file begins with. Kernels are written to this rule:
//
//   - arguments are one struct of 32-bit fields at index 0; buffers follow from
//     index 1; threadgroup memory is one argument, whose size the host sets;
//   - variants are function constants, all of type uint;
//   - activations are float, half or bfloat (In and Out below), sums are float;
//   - every SIMD-group of a threadgroup is whole, and a SIMD-group function is
//     reached by all of its lanes;
//   - sums are explicit fma: the compiler has nothing to contract, so variants of
//     a kernel compute the same bits;
//   - offsets into weights and caches are ulong.
#pragma once
#include <metal_stdlib>
using namespace metal;

// Before a loop over an array that lives in registers; not before one that reads
// weights, for all layouts are in it until the function constants are known.
#define UNROLL _Pragma("clang loop unroll(full)")

// What the activations of a kernel are between ops, two bits for each in the
// kernel's order: 0 float, 1 half, 2 bfloat. A kernel works in float and rounds a
// result once, when it stores it.
constant uint TYPES [[function_constant(0)]];

inline float bf16(ushort h) { return as_type<float>(uint(h) << 16); }
inline ushort to_bf16(float f) {
  const uint u = as_type<uint>(f);
  return isnan(f) ? ushort(u >> 16 | 0x40) : ushort((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

// Activation N of a kernel.
template <uint N>
struct In {
  device const uchar *p;
  inline In operator+(ulong i) const { return {p + i * (TYPES >> 2 * N & 3 ? 2 : 4)}; }
  inline float operator[](ulong i) const {
    switch (TYPES >> 2 * N & 3) {
      case 0: return ((device const float *)p)[i];
      case 1: return float(((device const half *)p)[i]);
    }
    return bf16(((device const ushort *)p)[i]);
  }
};

// Activation N of a kernel that writes it, and may read it too.
template <uint N>
struct Out {
  device uchar *p;
  inline Out operator+(ulong i) const { return {p + i * (TYPES >> 2 * N & 3 ? 2 : 4)}; }
  inline float operator[](ulong i) const { return In<N>{p}[i]; }
  inline void put(ulong i, float v) const {
    switch (TYPES >> 2 * N & 3) {
      case 0: ((device float *)p)[i] = v; return;
      case 1: ((device half *)p)[i] = half(v); return;
    }
    ((device ushort *)p)[i] = to_bf16(v);
  }
  // v as a later op would read it.
  inline float rounded(float v) const {
    switch (TYPES >> 2 * N & 3) {
      case 0: return v;
      case 1: return float(half(v));
    }
    return bf16(to_bf16(v));
  }
};

inline float sigmoid(float x) {
  const float e = exp(-fabs(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
inline float silu(float x) { return x * sigmoid(x); }

// ln(1+x) for x >= 0, exact also where 1+x rounds.
inline float log_1p(float x) {
  const float u = 1.0f + x;
  return u == 1.0f ? x : log(u) * (x / (u - 1.0f));
}
inline float softplus(float x) { return max(x, 0.0f) + log_1p(exp(-fabs(x))); }

inline float gelu(float x) {
  const float z = 0.7978845608f * fma(0.044715f * x * x, x, x);
  return 0.5f * x * (1.0f + tanh(z));
}

// Whether score a, met later, wins over b: NaN loses to all, ties stay.
inline bool better(float a, float b) { return a > b || (isnan(b) && !isnan(a)); }

// The activations of compute.Act; u is the up value of the gated ones.
inline float activate(uint act, float z, float u) {
  switch (act) {
    case 1: return silu(z);
    case 2: { const float p = max(z, 0.0f); return p * p; }
    case 3: return gelu(z);
    case 4: return sigmoid(z);
    case 5: return silu(z) * u;
    case 6: return gelu(z) * u;
    case 7: {
      const float g = min(z, 7.0f);
      return (clamp(u, -7.0f, 7.0f) + 1.0f) * g * sigmoid(1.702f * g);
    }
  }
  return z;
}

// Sum over a threadgroup of n SIMD-groups; every thread gets it. part holds n.
inline float group_sum(float v, threadgroup float* part, uint lane, uint simd, uint n) {
  v = simd_sum(v);
  if (n == 1) return v;
  if (lane == 0) part[simd] = v;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  v = 0.0f;
  for (uint i = 0; i < n; i++) v += part[i];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return v;
}
