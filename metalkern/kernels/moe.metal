// Mixture of experts: choosing, grouping rows by expert, and adding up. The
// experts themselves are linear_rows and linear_tiles in their list mode.
#include "common.h"

constant uint FLAGS [[function_constant(1)]];
constant uint KIND [[function_constant(2)]];  // compute.RouteKind
constant constexpr uint BIAS = 1, NORMALIZE = 2, PER_EXPERT = 4, SHARED = 8, SHARED_GATE = 16, RESIDUAL = 32;
constant constexpr uint SOFTMAX_ALL = 0, SOFTMAX_TOP = 1;

struct RouteArgs {
  uint experts, top_k, groups, top_groups, logits_stride, ids_stride, weights_stride;
  float eps, scale;
};

// The order of scores as unsigned numbers: NaN below everything, zeros equal.
inline uint rank_of(float v) {
  if (isnan(v)) return 0;
  const uint u = v == 0.0f ? 0u : as_type<uint>(v);
  return u >> 31 ? ~u : u | 0x80000000u;
}

// The largest of n scores that is not yet taken (lowest index on ties), by a
// SIMD-group; it is then taken.
inline uint take_best(threadgroup float *score, threadgroup float *taken, uint n, uint lane) {
  uint r = 0, at = 0xFFFFFFFFu;
  for (uint i = lane; i < n; i += 32) {
    if (taken[i] != 0.0f) continue;
    const uint v = rank_of(score[i]);
    if (at == 0xFFFFFFFFu || v > r) r = v, at = i;
  }
  const uint top = simd_max(at == 0xFFFFFFFFu ? 0u : r);
  const uint best = simd_min(at != 0xFFFFFFFFu && r == top ? at : 0xFFFFFFFFu);
  if (lane == 0) taken[best] = 1.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  return best;
}

// Grid: (rows); 32 threads. Threadgroup memory: 3 * experts + 2 * groups floats.
kernel void route(constant RouteArgs &a [[buffer(0)]], device const uchar *logits [[buffer(1)]], device const float *bias [[buffer(2)]],
                  device const float *per_expert [[buffer(3)]], device int *ids [[buffer(4)]], device uchar *weights [[buffer(5)]],
                  threadgroup float *shared [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  threadgroup float *score = shared, *choice = shared + a.experts, *taken = choice + a.experts, *sums = taken + a.experts, *kept = sums + a.groups;
  const In<0> x = In<0>{logits} + ulong(tg.x) * a.logits_stride;
  float m = -INFINITY, sum = 0.0f;
  if (KIND == SOFTMAX_ALL) {
    for (uint i = lane; i < a.experts; i += 32) m = max(m, x[i]);
    m = simd_max(m);
    for (uint i = lane; i < a.experts; i += 32) sum += exp(x[i] - m);
    sum = simd_sum(sum);
  }
  for (uint i = lane; i < a.experts; i += 32) {
    float v = x[i];
    if (KIND == SOFTMAX_ALL) v = exp(v - m) / sum;
    else if (KIND != SOFTMAX_TOP) v = sigmoid(v);
    score[i] = v, choice[i] = FLAGS & BIAS ? v + bias[i] : v, taken[i] = 0.0f;
  }
  for (uint i = lane; i < a.groups; i += 32) kept[i] = 0.0f;
  simdgroup_barrier(mem_flags::mem_threadgroup);
  if (a.groups > 1) {
    const uint size = a.experts / a.groups;
    for (uint g = lane; g < a.groups; g += 32) {  // the two best, in order
      uint first = 0, second = 0xFFFFFFFFu;
      for (uint i = 1; i < size; i++)
        if (better(choice[g * size + i], choice[g * size + first])) first = i;
      for (uint i = 0; i < size; i++)
        if (i != first && (second == 0xFFFFFFFFu || better(choice[g * size + i], choice[g * size + second]))) second = i;
      sums[g] = choice[g * size + first] + (second == 0xFFFFFFFFu ? 0.0f : choice[g * size + second]);
    }
    simdgroup_barrier(mem_flags::mem_threadgroup);
    for (uint k = 0; k < a.top_groups; k++) take_best(sums, kept, a.groups, lane);
    for (uint i = lane; i < a.experts; i += 32)
      if (kept[i / size] == 0.0f) choice[i] = 0.0f;
    simdgroup_barrier(mem_flags::mem_threadgroup);
  }
  device int *to = ids + ulong(tg.x) * a.ids_stride;
  const Out<1> w = Out<1>{weights} + ulong(tg.x) * a.weights_stride;
  m = -INFINITY;
  for (uint j = 0; j < a.top_k; j++) {
    const uint e = take_best(choice, taken, a.experts, lane);
    const float v = score[e];
    if (j == 0 || better(v, m)) m = v;
    if (lane == 0) to[j] = int(e), choice[e] = v;  // a taken choice serves as the weight
  }
  if (lane != 0) return;
  if (KIND == SOFTMAX_TOP) {
    sum = 0.0f;
    for (uint j = 0; j < a.top_k; j++) sum += exp(choice[to[j]] - m);
    for (uint j = 0; j < a.top_k; j++) choice[to[j]] = exp(choice[to[j]] - m) / sum;
  }
  sum = 0.0f;
  for (uint j = 0; j < a.top_k; j++) sum += choice[to[j]];
  for (uint j = 0; j < a.top_k; j++) {
    const int e = to[j];
    float v = choice[e];
    if (FLAGS & NORMALIZE) v /= sum + a.eps;
    v *= a.scale;
    if (FLAGS & PER_EXPERT) v *= per_expert[e];
    w.put(j, v);
  }
}

struct SortArgs { uint pairs, top_k, experts, room, ids_stride, out_stride, out; };

// Lists the (row, choice) pairs of each expert in use, pairs in order, and zeroes
// the outputs of pairs whose expert does not exist. list: the number of experts in
// use; for each its number and its first pair; the end; after room for that, the
// pairs. Grid: one; 256 threads. Threadgroup memory: 2 * experts numbers.
kernel void sort_experts(constant SortArgs &a [[buffer(0)]], device const int *ids [[buffer(1)]], device int *list [[buffer(2)]], device uchar *out [[buffer(3)]],
                         threadgroup uint *shared [[threadgroup(0)]], uint id [[thread_index_in_threadgroup]]) {
  threadgroup uint *count = shared, *first = shared + a.experts;
  for (uint e = id; e < a.experts; e += 256) {
    uint n = 0;
    for (uint p = 0; p < a.pairs; p++) n += ids[p / a.top_k * a.ids_stride + p % a.top_k] == int(e) ? 1u : 0u;
    count[e] = n;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (id == 0) {
    uint used = 0, at = 0;
    for (uint e = 0; e < a.experts; e++) {
      first[e] = at;
      if (count[e] == 0) continue;
      list[1 + 2 * used] = int(e), list[2 + 2 * used] = int(at);
      used++, at += count[e];
    }
    list[0] = int(used), list[2 + 2 * used] = int(at);
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  device int *entries = list + 3 + 2 * a.room;
  for (uint e = id; e < a.experts; e += 256) {
    uint at = first[e];
    for (uint p = 0; count[e] > 0 && p < a.pairs; p++)
      if (ids[p / a.top_k * a.ids_stride + p % a.top_k] == int(e)) entries[at++] = int(p);
  }
  for (uint p = 0; p < a.pairs; p++) {
    const int e = ids[p / a.top_k * a.ids_stride + p % a.top_k];
    if (e >= 0 && uint(e) < a.experts) continue;
    for (uint i = id; i < a.out; i += 256) Out<0>{out}.put(ulong(p) * a.out_stride + i, 0.0f);
  }
}

struct CombineArgs {
  uint cols, top_k, x_stride, weights_stride, shared_stride, gate_stride, res_stride, out_stride;
  float scale;
};

// Grid: (blocks of 256 columns, rows); 256 threads.
kernel void combine(constant CombineArgs &a [[buffer(0)]], device const uchar *x [[buffer(1)]], device const uchar *weights [[buffer(2)]],
                    device const uchar *more [[buffer(3)]], device const uchar *gate [[buffer(4)]], device const uchar *res [[buffer(5)]],
                    device uchar *out [[buffer(6)]], uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint i = tg.x * 256 + id, r = tg.y;
  if (i >= a.cols) return;
  float sum = 0.0f;
  for (uint j = 0; j < a.top_k; j++) sum = fma(In<1>{weights}[ulong(r) * a.weights_stride + j], In<0>{x}[(ulong(r) * a.top_k + j) * a.x_stride + i], sum);
  if (FLAGS & SHARED) sum = fma(In<2>{more}[ulong(r) * a.shared_stride + i], FLAGS & SHARED_GATE ? sigmoid(In<3>{gate}[ulong(r) * a.gate_stride]) : 1.0f, sum);
  Out<5>{out}.put(ulong(r) * a.out_stride + i, FLAGS & RESIDUAL ? fma(a.scale, sum, In<4>{res}[ulong(r) * a.res_stride + i]) : a.scale * sum);
}
