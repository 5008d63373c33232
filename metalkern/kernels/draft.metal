// The two ops of DFlash 2 drafters.
#include "weights.h"

constant uint FLAGS [[function_constant(5)]];
constant constexpr uint SAMPLED = 1, PROBS = 2;

struct ConvArgs { uint cols, taps, group, block, x_stride, base_stride, p_stride, out_stride; };

// Grid: (blocks of 256 columns, rows); 256 threads.
kernel void block_conv(constant ConvArgs &a [[buffer(0)]], device const uchar *x [[buffer(1)]], device const float *base [[buffer(2)]],
                       device const uchar *p [[buffer(3)]], device uchar *out [[buffer(4)]], uint3 tg [[threadgroup_position_in_grid]],
                       uint id [[thread_index_in_threadgroup]]) {
  const uint c = tg.x * 256 + id, t = tg.y, groups = a.cols / a.group;
  if (c >= a.cols) return;
  float sum = 0.0f;
  for (uint j = 0; j < min(a.taps, t % a.block + 1); j++)
    sum = fma(base[ulong(j) * a.base_stride + c] + In<1>{p}[ulong(t) * a.p_stride + j * groups + c / a.group], In<0>{x}[ulong(t - j) * a.x_stride + c], sum);
  Out<2>{out}.put(ulong(t) * a.out_stride + c, sum);
}

struct PairArgs {
  uint slots, k, rank, a_rows, b_rows, unary_stride, cand_stride, h_stride, probs_stride;
  float temperature, a_whole, b_whole;
};

// Grid: (blocks); 32 threads. Threadgroup memory: rank + k floats.
kernel void pair_select(constant PairArgs &a [[buffer(0)]], device const uchar *unary [[buffer(1)]], device const int *cand [[buffer(2)]],
                        device const int *anchor [[buffer(3)]], device const uchar *aw [[buffer(4)]], device const uchar *as [[buffer(5)]],
                        device const uchar *ab [[buffer(6)]], device const uchar *bw [[buffer(7)]], device const uchar *bs [[buffer(8)]],
                        device const uchar *bb [[buffer(9)]], device const uchar *h [[buffer(10)]], device const float *uniform [[buffer(11)]],
                        device int *ids [[buffer(12)]], device uchar *probs [[buffer(13)]], threadgroup float *shared [[threadgroup(0)]],
                        uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float *ah = shared, *score = shared + a.rank;
  const uint chunks = (a.rank + 7) / 8;
  int prev = anchor[tg.x];
  for (uint slot = 0; slot < a.slots; slot++) {
    const ulong r = ulong(tg.x) * a.slots + slot;
    float q[8], scale, add;
    for (uint c = lane; c < chunks; c += 32) {
      const bool have = prev >= 0 && uint(prev) < a.a_rows;
      if (have) chunk(aw, as, ab, ulong(prev), c, a.rank, a.a_whole, q, scale, add);
      for (uint i = 0; i < min(a.rank - c * 8, 8u); i++) ah[c * 8 + i] = have ? fma(scale, q[i], add) * In<1>{h}[r * a.h_stride + c * 8 + i] : 0.0f;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = lane; e < a.k; e += 32) {
      const int id = cand[r * a.cand_stride + e];
      float sum = 0.0f;
      for (uint c = 0; id >= 0 && uint(id) < a.b_rows && c < chunks; c++) {
        chunk(bw, bs, bb, ulong(id), c, a.rank, a.b_whole, q, scale, add);
        for (uint i = 0; i < min(a.rank - c * 8, 8u); i++) sum = fma(ah[c * 8 + i], fma(scale, q[i], add), sum);
      }
      score[e] = In<0>{unary}[r * a.unary_stride + e] + sum;
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    uint pick = 0;  // few candidates: every lane walks them
    for (uint e = 1; e < a.k; e++)
      if (better(score[e], score[pick])) pick = e;
    if (FLAGS & SAMPLED) {
      const float m = score[pick] / a.temperature;
      float all = 0.0f, sum = 0.0f;
      for (uint e = 0; e < a.k; e++) all += exp(score[e] / a.temperature - m);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      for (uint e = lane; e < a.k; e += 32) score[e] = exp(score[e] / a.temperature - m) / all;
      simdgroup_barrier(mem_flags::mem_threadgroup);
      const float u = uniform[r];
      pick = 0;
      for (uint e = 0; e < a.k; e++) {
        sum += score[e];
        if (u >= sum) pick++;
      }
      pick = min(pick, a.k - 1);
    }
    if (FLAGS & PROBS)
      for (uint e = lane; e < a.k; e += 32) Out<2>{probs}.put(r * a.probs_stride + e, score[e]);
    prev = cand[r * a.cand_stride + pick];
    if (lane == 0) ids[r] = prev;
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
}
