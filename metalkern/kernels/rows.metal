// Ops on rows: norms, rotary positions, elementwise, copies, choices.
#include "common.h"

constant uint FLAGS [[function_constant(1)]];  // of the kernel
constant uint KIND [[function_constant(2)]];   // of a binary or unary op

struct NormArgs {
  uint group, x_stride, out_stride, gate_stride, simds;
  float eps, scale, offset;
};
constant constexpr uint NORM_L2 = 1, NORM_W = 2, NORM_W_ROW = 4, NORM_BEFORE = 8, NORM_AFTER = 16;

// Grid: (slices of a row, rows). Threadgroup memory: a float for each SIMD-group.
kernel void norm(constant NormArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device const float *w [[buffer(2)]],
                 device const uchar *gp [[buffer(3)]], device uchar *op [[buffer(4)]], threadgroup float *shared [[threadgroup(0)]],
                 uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  const uint id = simd * 32 + lane, threads = a.simds * 32, at = tg.x * a.group;
  const In<0> x = In<0>{xp} + (ulong(tg.y) * a.x_stride + at);
  const In<1> gate = In<1>{gp} + (ulong(tg.y) * a.gate_stride + at);
  const Out<2> out = Out<2>{op} + (ulong(tg.y) * a.out_stride + at);
  float sum = 0.0f;
  for (uint i = id; i < a.group; i += threads) {
    const float z = FLAGS & NORM_BEFORE ? x[i] * silu(gate[i]) : x[i];
    sum = fma(z, z, sum);
  }
  sum = group_sum(sum, shared, lane, simd, a.simds);
  const float inv = 1.0f / sqrt((FLAGS & NORM_L2 ? sum : sum / float(a.group)) + a.eps);
  for (uint i = id; i < a.group; i += threads) {
    float y = (FLAGS & NORM_BEFORE ? x[i] * silu(gate[i]) : x[i]) * inv * a.scale;
    if (FLAGS & NORM_W) y *= a.offset + w[FLAGS & NORM_W_ROW ? at + i : i];
    if (FLAGS & NORM_AFTER) y *= silu(gate[i]);
    out.put(i, y);
  }
}

struct RopeArgs {
  uint heads[2], stride[2], dim, half_dim, interleaved;
  float mul[2], beta[2];
  int orig[2];
  float eps[2], scale[2], offset[2];  // of the norm before it
};
constant constexpr uint ROPE_NORM = 1, ROPE_W = 2;

// Norm of each head and rotation, in place, for one or two matrices (queries and
// keys). Grid: (heads of both, rows); 32 threads.
kernel void rope(constant RopeArgs &a [[buffer(0)]], device uchar *x0 [[buffer(1)]], device uchar *x1 [[buffer(2)]], device const int *pos [[buffer(3)]],
                 device const float *freq [[buffer(4)]], device const float *w0 [[buffer(5)]], device const float *w1 [[buffer(6)]],
                 uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint set = tg.x < a.heads[0] ? 0 : 1, h = set == 0 ? tg.x : tg.x - a.heads[0];
  const Out<0> x = Out<0>{set == 0 ? x0 : x1} + (ulong(tg.y) * a.stride[set] + h * a.dim);
  device const float *w = set == 0 ? w0 : w1;
  const int p = pos[tg.y];
  float inv = 1.0f;
  if (FLAGS & ROPE_NORM) {
    float sum = 0.0f;
    for (uint i = lane; i < a.dim; i += 32) sum = fma(x[i], x[i], sum);
    inv = 1.0f / sqrt(simd_sum(sum) / float(a.dim) + a.eps[set]);
  }
  float grow = 1.0f;
  if (a.beta[set] != 0.0f) grow = fma(a.beta[set], log(1.0f + floor(float(p) / float(a.orig[set]))), 1.0f);
  const uint pairs = a.half_dim, rest = a.dim - 2 * pairs;
  for (uint i = lane; i < pairs + rest; i += 32) {
    uint j = i, k = i + pairs;
    if (i >= pairs) j = i + pairs, k = j;
    else if (a.interleaved != 0) j = 2 * i, k = 2 * i + 1;
    float u = x[j], v = x[k];
    if (FLAGS & ROPE_NORM) {
      u = u * inv * a.scale[set], v = v * inv * a.scale[set];
      if (FLAGS & ROPE_W) u *= a.offset[set] + w[j], v *= a.offset[set] + w[k];
      u = x.rounded(u), v = x.rounded(v);  // as a norm of its own would
    }
    if (i < pairs) {
      const float angle = float(p) * freq[i], s = sin(angle), c = cos(angle);
      u *= a.mul[set], v *= a.mul[set];
      const float y = v * c;
      x.put(j, fma(u, c, -(v * s)) * grow);
      x.put(k, fma(u, s, y) * grow);
    } else {
      x.put(j, u * grow);
    }
  }
}

struct BinaryArgs { uint cols, a_stride, b_stride, out_stride, group; float scale; };

// Grid: (blocks of 256 columns, rows); 256 threads. So are the next two.
kernel void binary(constant BinaryArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device const uchar *yp [[buffer(2)]], device uchar *op [[buffer(3)]],
                   uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint i = tg.x * 256 + id;
  if (i >= a.cols) return;
  const float u = In<0>{xp}[ulong(tg.y) * a.a_stride + i], v = In<1>{yp}[ulong(tg.y) * a.b_stride + (a.group > 0 ? i / a.group : i)];
  float z = u + v;
  if (KIND == 1) z = u * v;
  if (KIND == 2) z = u * sigmoid(v);
  if (KIND == 3) z = u * silu(v);
  Out<2>{op}.put(ulong(tg.y) * a.out_stride + i, a.scale * z);
}

struct UnaryArgs { uint cols, x_stride, out_stride; float v; };

kernel void unary(constant UnaryArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device uchar *op [[buffer(2)]],
                  uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint i = tg.x * 256 + id;
  if (i >= a.cols) return;
  const float u = In<0>{xp}[ulong(tg.y) * a.x_stride + i];
  float z = a.v * u;
  if (KIND == 1) z = a.v * tanh(u / a.v);
  if (KIND == 2) z = sigmoid(u);
  if (KIND == 3) z = silu(u);
  Out<1>{op}.put(ulong(tg.y) * a.out_stride + i, z);
}

struct CopyArgs { uint cols, rows, src_stride, dst_stride; };
constant constexpr uint COPY_INDEX = 1;

// Numbers of four bytes go as they are, ids among them.
kernel void copy_rows(constant CopyArgs &a [[buffer(0)]], device const uchar *src [[buffer(1)]], device const int *index [[buffer(2)]],
                      device uchar *dst [[buffer(3)]], uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint i = tg.x * 256 + id;
  if (i >= a.cols) return;
  const int from = FLAGS & COPY_INDEX ? index[tg.y] : int(tg.y);
  const ulong at = ulong(from) * a.src_stride + i, to = ulong(tg.y) * a.dst_stride + i;
  const bool have = from >= 0 && uint(from) < a.rows;
  if (TYPES == 0) ((device uint *)dst)[to] = have ? ((device const uint *)src)[at] : 0u;
  else Out<1>{dst}.put(to, have ? In<0>{src}[at] : 0.0f);
}

// The order of scores as unsigned numbers: NaN below everything, zeros equal.
inline uint rank_of(float v) {
  if (isnan(v)) return 0;
  const uint u = v == 0.0f ? 0u : as_type<uint>(v);
  return u >> 31 ? ~u : u | 0x80000000u;
}

// A score's rank and where it is.
struct Best { uint rank, at; };

// The best of a threadgroup of 8 SIMD-groups; rank 0 and the highest index mean
// none. shared holds 16.
inline Best best_of(uint r, uint i, threadgroup uint *shared, uint lane, uint simd) {
  const uint top = simd_max(r), at = simd_min(r == top ? i : 0xFFFFFFFFu);
  if (lane == 0) shared[2 * simd] = top, shared[2 * simd + 1] = at;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  Best b = {shared[0], shared[1]};
  for (uint k = 1; k < 8; k++)
    if (shared[2 * k] > b.rank || (shared[2 * k] == b.rank && shared[2 * k + 1] < b.at)) b.rank = shared[2 * k], b.at = shared[2 * k + 1];
  threadgroup_barrier(mem_flags::mem_threadgroup);
  return b;
}

struct ChooseArgs { uint cols, x_stride, out_stride, vals_stride, k; };

// The k best of each row, best first (argmax: k = 1 without values). Each round
// looks for the best that comes after the last. Grid: (rows); 256 threads.
kernel void choose(constant ChooseArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device int *ids [[buffer(2)]], device uchar *vp [[buffer(3)]],
                   threadgroup uint *shared [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]],
                   uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  const In<0> row = In<0>{xp} + ulong(tg.x) * a.x_stride;
  Best last = {0xFFFFFFFFu, 0};
  for (uint j = 0; j < a.k; j++) {
    uint r = 0, at = 0xFFFFFFFFu;
    for (uint i = id; i < a.cols; i += 256) {
      const uint v = rank_of(row[i]);
      const bool left = j == 0 || v < last.rank || (v == last.rank && i > last.at);
      if (left && (at == 0xFFFFFFFFu || v > r)) r = v, at = i;
    }
    last = best_of(r, at, shared, lane, simd);
    if (id == 0) {
      ids[ulong(tg.x) * a.out_stride + j] = int(last.at);
      if (FLAGS) Out<1>{vp}.put(ulong(tg.x) * a.vals_stride + j, row[last.at]);
    }
  }
}

// Grid: (rows); 256 threads.
kernel void log_sum_exp(constant ChooseArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device uchar *op [[buffer(2)]],
                        threadgroup float *shared [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]],
                        uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  const In<0> row = In<0>{xp} + ulong(tg.x) * a.x_stride;
  float m = -INFINITY;
  bool nan = false;
  for (uint i = id; i < a.cols; i += 256) m = max(m, row[i]), nan = nan || isnan(row[i]);
  m = simd_max(nan ? NAN : m);
  const uint bad = simd_max(nan ? 1u : 0u);
  if (lane == 0) shared[simd] = bad ? NAN : m;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  m = shared[0];
  for (uint k = 1; k < 8; k++) m = isnan(m) || isnan(shared[k]) ? NAN : max(m, shared[k]);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float sum = 0.0f;
  const bool finite = fabs(m) < INFINITY;
  for (uint i = id; finite && i < a.cols; i += 256) sum += exp(row[i] - m);
  sum = group_sum(sum, shared, lane, simd, 8);
  if (id == 0) Out<1>{op}.put(ulong(tg.x) * a.out_stride, finite ? m + log(sum) : m);
}

struct MapArgs { uint n, table; };

// Grid: (blocks of 256 ids); 256 threads.
kernel void map_ids(constant MapArgs &a [[buffer(0)]], device const int *ids [[buffer(1)]], device const int *offset [[buffer(2)]], device int *out [[buffer(3)]],
                    uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint i = tg.x * 256 + id;
  if (i >= a.n) return;
  const int v = ids[i];
  out[i] = v >= 0 && uint(v) < a.table ? v + offset[v] : 0;
}
