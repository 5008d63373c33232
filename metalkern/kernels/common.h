// What every kernel file begins with. Kernels are written to this rule:
//
//   - arguments are one struct of 32-bit fields at index 0; buffers follow from
//     index 1; threadgroup memory is one argument, whose size the host sets;
//   - variants are function constants, all of type uint;
//   - every SIMD-group of a threadgroup is whole, and a SIMD-group function is
//     reached by all of its lanes;
//   - sums are explicit fma: the compiler has nothing to contract, so variants of
//     a kernel compute the same bits;
//   - offsets into weights and caches are ulong.
#pragma once
#include <metal_stdlib>
using namespace metal;

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
