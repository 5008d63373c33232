// Ops with a recurrent state. Each kernel walks the rows of a segment in order;
// with LOG it leaves the state alone and records its inputs, and with COMMIT it
// advances the state over the first recorded rows by the same arithmetic.
#include "common.h"

constant uint FLAGS [[function_constant(1)]];
constant uint PER_LANE [[function_constant(2)]];  // elements of a state row that a lane holds (1, 2, 4, 8, 16)
constant constexpr uint LOG = 1, COMMIT = 2, BIAS = 4, SILU = 8;

struct Segments {
  uint rows, slots, mem_stride, log_stride;
};

// The rows of segment s; how many of them count.
inline uint rows_of(constant Segments &g, device const int *start, device const int *keep, uint s, thread uint &from) {
  const int n = int(g.rows), lo = clamp(start[s], 0, n), hi = max(lo, clamp(start[s + 1], 0, n));
  from = uint(lo);
  return FLAGS & COMMIT ? uint(clamp(keep[s], 0, hi - lo)) : uint(hi - lo);
}

struct ConvArgs {
  Segments g;
  uint channels, taps, x_stride, w_stride, out_stride;
};

// Grid: (blocks of 32 channels, segments); 32 threads.
kernel void short_conv(constant ConvArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device const float *w [[buffer(2)]],
                       device const float *bias [[buffer(3)]], device float *mem [[buffer(4)]], device const int *slots [[buffer(5)]],
                       device float *log [[buffer(6)]], device const int *start [[buffer(7)]], device const int *keep [[buffer(8)]],
                       device uchar *op [[buffer(9)]], uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const In<0> x = {xp};
  const Out<1> out = {op};
  const uint c = tg.x * 32 + lane, past = a.taps - 1;
  if (c >= a.channels) return;
  uint from;
  const uint n = rows_of(a.g, start, keep, tg.y, from);
  const int slot = slots[tg.y];
  const bool none = slot < 0 || uint(slot) >= a.g.slots;
  device float *state = mem + ulong(none ? 0 : slot) * a.g.mem_stride + c;
  if (!(FLAGS & COMMIT))
    for (uint t = 0; t < n; t++) {
      const ulong to = ulong(from + t) * a.out_stride + c;
      if (none) {
        out.put(to, 0.0f);
        continue;
      }
      float sum = FLAGS & BIAS ? bias[c] : 0.0f;
      for (uint j = 0; j < a.taps; j++) {  // input t+j-past
        const float v = t + j < past ? state[ulong(t + j) * a.channels] : x[ulong(from + t + j - past) * a.x_stride + c];
        sum = fma(w[ulong(c) * a.w_stride + j], v, sum);
      }
      if (FLAGS & LOG) log[ulong(from + t) * a.g.log_stride + c] = x[ulong(from + t) * a.x_stride + c];
      out.put(to, FLAGS & SILU ? silu(sum) : sum);
    }
  if (none || FLAGS & LOG) return;
  for (uint j = 0; j < past; j++)
    state[ulong(j) * a.channels] = n + j < past  ? state[ulong(n + j) * a.channels]
                                   : FLAGS & COMMIT ? log[ulong(from + n + j - past) * a.g.log_stride + c]
                                                    : x[ulong(from + n + j - past) * a.x_stride + c];
}

struct DeltaArgs {
  Segments g;
  uint heads_k, heads_v, dim_k, dim_v, q_stride, k_stride, v_stride, a_stride, b_stride, out_stride;
};

// A SIMD-group owns one row of the state of a head. Grid: (rows of the state,
// value heads, segments); 32 threads.
kernel void gated_delta(constant DeltaArgs &a [[buffer(0)]], device const uchar *qp [[buffer(1)]], device const uchar *kp [[buffer(2)]],
                        device const uchar *vp [[buffer(3)]], device const uchar *dp [[buffer(4)]], device const uchar *bp [[buffer(5)]],
                        device const float *a_log [[buffer(6)]], device const float *dt_bias [[buffer(7)]], device float *mem [[buffer(8)]],
                        device const int *slots [[buffer(9)]], device float *log [[buffer(10)]], device const int *start [[buffer(11)]],
                        device const int *keep [[buffer(12)]], device uchar *op [[buffer(13)]], uint3 tg [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]]) {
  const In<0> q = {qp};
  const In<1> k = {kp};
  const In<2> v = {vp};
  const In<3> dt = {dp};
  const In<4> b = {bp};
  const Out<5> out = {op};
  const uint i = tg.x, j = tg.y, key = j * a.heads_k / a.heads_v, nk = a.heads_k * a.dim_k, nv = a.heads_v * a.dim_v;
  uint from;
  const uint n = rows_of(a.g, start, keep, tg.z, from);
  const int slot = slots[tg.z];
  if (slot < 0 || uint(slot) >= a.g.slots) {
    for (uint t = 0; t < n && !(FLAGS & COMMIT); t++)
      if (lane == 0) out.put(ulong(from + t) * a.out_stride + j * a.dim_v + i, 0.0f);
    return;
  }
  device float *state = mem + ulong(slot) * a.g.mem_stride + ulong(j * a.dim_v + i) * a.dim_k;
  float s[16];
  for (uint e = 0; e < PER_LANE; e++) s[e] = lane + 32 * e < a.dim_k ? state[lane + 32 * e] : 0.0f;
  for (uint t = 0; t < n; t++) {
    const ulong r = from + t;
    device float *lg = log + r * a.g.log_stride;
    float kv[16], value, g, beta;
    for (uint e = 0; e < PER_LANE; e++) {
      const uint at = lane + 32 * e;
      kv[e] = at >= a.dim_k ? 0.0f : FLAGS & COMMIT ? lg[key * a.dim_k + at] : k[r * a.k_stride + key * a.dim_k + at];
    }
    if (FLAGS & COMMIT) {
      value = lg[nk + j * a.dim_v + i], g = lg[nk + nv + j], beta = lg[nk + nv + a.heads_v + j];
    } else {
      value = v[r * a.v_stride + j * a.dim_v + i];
      g = exp(-exp(a_log[j]) * softplus(dt[r * a.a_stride + j] + dt_bias[j]));
      beta = sigmoid(b[r * a.b_stride + j]);
    }
    float sk = 0.0f;
    for (uint e = 0; e < PER_LANE; e++) {
      s[e] *= g;
      sk = fma(s[e], kv[e], sk);
    }
    const float d = beta * (value - simd_sum(sk));
    for (uint e = 0; e < PER_LANE; e++) s[e] = fma(d, kv[e], s[e]);
    if (FLAGS & COMMIT) continue;
    float y = 0.0f;
    for (uint e = 0; e < PER_LANE; e++) {
      const uint at = lane + 32 * e;
      if (at < a.dim_k) y = fma(s[e], q[r * a.q_stride + key * a.dim_k + at], y);
    }
    y = simd_sum(y);
    if (lane == 0) out.put(r * a.out_stride + j * a.dim_v + i, y);
    if (!(FLAGS & LOG)) continue;
    if (lane == 0) lg[nk + j * a.dim_v + i] = value;
    if (i != 0) continue;
    if (lane == 0) lg[nk + nv + j] = g, lg[nk + nv + a.heads_v + j] = beta;
    for (uint e = 0; e < PER_LANE && j % (a.heads_v / a.heads_k) == 0; e++)
      if (lane + 32 * e < a.dim_k) lg[key * a.dim_k + lane + 32 * e] = kv[e];
  }
  if (FLAGS & LOG) return;
  for (uint e = 0; e < PER_LANE; e++)
    if (lane + 32 * e < a.dim_k) state[lane + 32 * e] = s[e];
}

struct ScanArgs {
  Segments g;
  uint heads, dim, groups, n, x_stride, b_stride, c_stride, dt_stride, out_stride;
  float lo, hi;
};

// Grid: (rows of the state, heads, segments); 32 threads.
kernel void ssm_scan(constant ScanArgs &a [[buffer(0)]], device const uchar *xp [[buffer(1)]], device const uchar *bp [[buffer(2)]],
                     device const uchar *cp [[buffer(3)]], device const uchar *dp [[buffer(4)]], device const float *a_log [[buffer(5)]],
                     device const float *skip [[buffer(6)]], device const float *dt_bias [[buffer(7)]], device float *mem [[buffer(8)]],
                     device const int *slots [[buffer(9)]], device float *log [[buffer(10)]], device const int *start [[buffer(11)]],
                     device const int *keep [[buffer(12)]], device uchar *op [[buffer(13)]], uint3 tg [[threadgroup_position_in_grid]],
                     uint lane [[thread_index_in_simdgroup]]) {
  const In<0> x = {xp};
  const In<1> b = {bp};
  const In<2> c = {cp};
  const In<3> dts = {dp};
  const Out<4> out = {op};
  const uint i = tg.x, h = tg.y, at = h * a.dim + i, group = h * a.groups / a.heads, nx = a.heads * a.dim, nb = a.groups * a.n;
  uint from;
  const uint n = rows_of(a.g, start, keep, tg.z, from);
  const int slot = slots[tg.z];
  if (slot < 0 || uint(slot) >= a.g.slots) {
    for (uint t = 0; t < n && !(FLAGS & COMMIT); t++)
      if (lane == 0) out.put(ulong(from + t) * a.out_stride + at, 0.0f);
    return;
  }
  device float *state = mem + ulong(slot) * a.g.mem_stride + ulong(at) * a.n;
  float s[16];
  for (uint e = 0; e < PER_LANE; e++) s[e] = lane + 32 * e < a.n ? state[lane + 32 * e] : 0.0f;
  for (uint t = 0; t < n; t++) {
    const ulong r = from + t;
    device float *lg = log + r * a.g.log_stride;
    float bs[16], value, dt;
    for (uint e = 0; e < PER_LANE; e++) {
      const uint p = lane + 32 * e;
      bs[e] = p >= a.n ? 0.0f : FLAGS & COMMIT ? lg[nx + group * a.n + p] : b[r * a.b_stride + group * a.n + p];
    }
    if (FLAGS & COMMIT)
      value = lg[at], dt = lg[nx + nb + h];
    else
      value = x[r * a.x_stride + at], dt = clamp(softplus(dts[r * a.dt_stride + h] + dt_bias[h]), a.lo, a.hi);
    const float decay = exp(-exp(a_log[h]) * dt), dx = dt * value;
    for (uint e = 0; e < PER_LANE; e++) s[e] = fma(decay, s[e], dx * bs[e]);
    if (FLAGS & COMMIT) continue;
    float y = 0.0f;
    for (uint e = 0; e < PER_LANE; e++) {
      const uint p = lane + 32 * e;
      if (p < a.n) y = fma(s[e], c[r * a.c_stride + group * a.n + p], y);
    }
    y = fma(skip[h], value, simd_sum(y));
    if (lane == 0) out.put(r * a.out_stride + at, y);
    if (!(FLAGS & LOG)) continue;
    if (lane == 0) lg[at] = value;
    if (i != 0) continue;
    if (lane == 0) lg[nx + nb + h] = dt;
    for (uint e = 0; e < PER_LANE && h % (a.heads / a.groups) == 0; e++)
      if (lane + 32 * e < a.n) lg[nx + group * a.n + lane + 32 * e] = bs[e];
  }
  if (FLAGS & LOG) return;
  for (uint e = 0; e < PER_LANE; e++)
    if (lane + 32 * e < a.n) state[lane + 32 * e] = s[e];
}
