// Linear layers. linear_rows serves decode and verify rows: one SIMD-group makes
// a few outputs for up to 16 rows and reads their weights once. Lane l takes
// chunks l, l+32, ... of a row of weights whatever the number of rows, so that a
// row's bits do not depend on its company. linear_tiles serves prefill.
#include "weights.h"

constant uint MODE [[function_constant(5)]];   // 0 rows of one matrix; 1 one matrix per head; 2 rows listed by expert
constant uint ACT [[function_constant(6)]];    // compute.Act
constant uint FLAGS [[function_constant(7)]];  // see below
constant uint ROWS [[function_constant(8)]];   // linear_rows: rows of a tile (1, 2, 4, 8, 16)
constant uint SETS [[function_constant(9)]];   // matrices: 2 and 3 share the input, each with its own output
constant constexpr uint BIAS = 1, UP_BIAS = 2, RESIDUAL = 4, ADAPT = 8, UP_ADAPT = 16, MAG = 32, UP_MAG = 64, GATED = 128, UP_READY = 256;  // UP_READY: the up values are in up_t

struct LinearArgs {
  uint rows, cols, out[3];  // outputs of each matrix
  uint tiles[2];            // threadgroups (x) before the second and the third matrix
  uint x_stride, out_stride[3], res_stride;
  float scale, whole[3];
  uint x_div;                       // list entries of a row of x
  uint bias_stride, up_bias_stride;  // of the experts' biases
  uint rank, a_type, up_rank, up_type;
  float a_scale, up_scale;
};

// The parameters of a linear kernel, AT(n) their attributes: the kernels and the
// template behind them share the list.
#define PARAMS(AT)                                                                                                                              \
  constant LinearArgs &a AT(0), device const uchar *xp AT(1), device const uchar *w0 AT(2), device const uchar *s0 AT(3),                        \
      device const uchar *b0 AT(4), device const float *bias0 AT(5), device uchar *out0 AT(6), device const uchar *w1 AT(7),                    \
      device const uchar *s1 AT(8), device const uchar *b1 AT(9), device const float *bias1 AT(10), device uchar *out1 AT(11),                  \
      device const uchar *w2 AT(12), device const uchar *s2 AT(13), device const uchar *b2 AT(14), device const float *bias2 AT(15),            \
      device uchar *out2 AT(16), device const uchar *res AT(17), device const float *t AT(18), device const uchar *ad AT(19),                   \
      device const float *mag AT(20), device const float *up_t AT(21), device const uchar *up_ad AT(22), device const float *up_mag AT(23),     \
      device const int *list AT(24)
#define BUFFER(n) [[buffer(n)]]
#define NOTHING(n)

// What a threadgroup works on.
struct Work {
  uint tile, set, matrix, first, rows;  // output tile in its set; matrix of the stack; first list entry or row; how many
};

inline Work work_of(constant LinearArgs &a, device const int *list, uint3 tg) {
  Work k = {tg.x, 0, 0, 0, a.rows};
  if (SETS > 1 && tg.x >= a.tiles[0]) k.set = 1, k.tile = tg.x - a.tiles[0];
  if (SETS > 2 && tg.x >= a.tiles[1]) k.set = 2, k.tile = tg.x - a.tiles[1];
  if (MODE == 1) k.matrix = tg.z;
  if (MODE == 2) {  // list: experts in use, then for each its number and its first entry, the end, the entries
    if (int(tg.z) >= list[0]) {
      k.rows = 0;
    } else {
      k.matrix = uint(list[1 + 2 * tg.z]), k.first = uint(list[2 + 2 * tg.z]);
      k.rows = uint(list[4 + 2 * tg.z]) - k.first;
    }
  }
  return k;
}

// A low-rank addition: t = A x of every row, B as stored, and the factors of DoRA.
struct Low {
  device const float *t;
  device const uchar *b;
  device const float *mag;
  uint rank, type;
  float scale;
};

// sum with the low-rank addition to output n of a row, and the bias.
inline float finish(float sum, thread const Low &l, bool adapt, bool mag, bool biased, float bias, uint row, uint n) {
  if (adapt) {
    float z = 0.0f;
    for (uint i = 0; i < l.rank; i++) z = fma(l.t[ulong(row) * l.rank + i], number(l.type, l.b, ulong(n) * l.rank + i), z);
    sum = fma(l.scale, z, sum);
    if (mag) return biased ? fma(sum, l.mag[n], bias) : sum * l.mag[n];
  }
  return biased ? sum + bias : sum;
}

// Where sums go: the epilogue of a threadgroup.
struct Sink {
  Work k;
  Low low, up;
  device const float *bias, *up_bias, *ready;
  In<1> res;
  device const int *entries;
  Out<2> out;
};

// Stores output n of a row (of x or of the list): z is its sum, u that of up.
inline void store(constant LinearArgs &a, thread const Sink &o, uint row, uint n, float z, float u) {
  const uint to = MODE == 2 ? uint(o.entries[o.k.first + row]) : row, at = MODE == 1 ? o.k.matrix * a.out[0] + n : n;
  const float b = FLAGS & BIAS ? o.bias[o.k.matrix * a.bias_stride + n] : 0.0f;
  z = finish(z, o.low, (FLAGS & ADAPT) != 0, (FLAGS & MAG) != 0, (FLAGS & BIAS) != 0, b, row, n);
  if (FLAGS & GATED) {
    const float c = FLAGS & UP_BIAS ? o.up_bias[o.k.matrix * a.up_bias_stride + n] : 0.0f;
    u = finish(u, o.up, (FLAGS & UP_ADAPT) != 0, (FLAGS & UP_MAG) != 0, (FLAGS & UP_BIAS) != 0, c, row, n);
  }
  if (FLAGS & UP_READY) u = o.ready[ulong(to) * a.out[0] + n];
  z = activate(ACT, z, u);
  z = FLAGS & RESIDUAL ? fma(a.scale, z, o.res[ulong(to) * a.res_stride + at]) : a.scale * z;
  o.out.put(ulong(to) * a.out_stride[o.k.set] + at, z);
}

// What the two kernels begin with: their work, the matrix they read and the sink.
#define BEGIN                                                                                                        \
  const Work k = work_of(a, list, tg);                                                                               \
  device const uchar *w = k.set == 0 ? w0 : k.set == 1 ? w1 : w2, *s = k.set == 0 ? s0 : k.set == 1 ? s1 : s2;       \
  device const uchar *b = k.set == 0 ? b0 : k.set == 1 ? b1 : b2;                                                    \
  const uint outs = a.out[k.set];                                                                                    \
  const Low low = {t, ad, mag, a.rank, a.a_type, a.a_scale}, up = {up_t, up_ad, up_mag, a.up_rank, a.up_type, a.up_scale}; \
  /* in mode 2 tiles[0] is how many experts the list has room for */                                                 \
  device const int *entries = list + 3 + 2 * a.tiles[0];                                                             \
  const Sink sink = {k, low, up, k.set == 0 ? bias0 : k.set == 1 ? bias1 : bias2, bias1, up_t, {res}, entries, {k.set == 0 ? out0 : k.set == 1 ? out1 : out2}};

constant constexpr uint SIMDS = 2;  // SIMD-groups of a threadgroup of linear_rows

// M rows, NR outputs of a SIMD-group, NW matrices (2: gate and up).
template <uint M, uint NR, uint NW>
inline void rows_of(PARAMS(NOTHING), uint3 tg, uint lane, uint simd) {
  BEGIN
  const uint n0 = (k.tile * SIMDS + simd) * NR, chunks = (a.cols + 7) / 8;
  if (n0 >= outs) return;
  // an expert's rows are walked here, so that its weights stay in the cache
  const uint step = MODE == 2 ? M : k.rows;
  for (uint from = MODE == 2 ? 0 : tg.y * M; from < k.rows; from += step) {
    const uint m = min(k.rows - from, M);
    float acc[NW][M][NR];
    for (uint i = 0; i < NW; i++)
      for (uint r = 0; r < M; r++)
        for (uint n = 0; n < NR; n++) acc[i][r][n] = 0.0f;
    for (uint c = lane; c < chunks; c += 32) {
      float q[NW][NR][8], scale[NW][NR], add[NW][NR];
      for (uint n = 0; n < NR; n++) {
        const ulong row = ulong(k.matrix) * outs + min(n0 + n, outs - 1);
        chunk(w, s, b, row, c, a.cols, a.whole[k.set], q[0][n], scale[0][n], add[0][n]);
        if (NW == 2) chunk(w1, s1, b1, row, c, a.cols, a.whole[1], q[NW - 1][n], scale[NW - 1][n], add[NW - 1][n]);
      }
      for (uint r = 0; r < M; r++) {
        if (r >= m) break;
        const uint xr = MODE == 2 ? uint(entries[k.first + from + r]) / a.x_div : from + r;
        const In<0> p = In<0>{xp} + (ulong(xr) * a.x_stride + (MODE == 1 ? k.matrix * a.cols : 0) + c * 8);
        const uint have = min(a.cols - c * 8, 8u);
        float v[8], sum = 0.0f;
        for (uint i = 0; i < 8; i++) v[i] = i < have ? p[i] : 0.0f, sum += v[i];
        for (uint i = 0; i < NW; i++)
          for (uint n = 0; n < NR; n++) {
            float d = 0.0f;
            for (uint j = 0; j < 8; j++) d = fma(q[i][n][j], v[j], d);
            acc[i][r][n] = fma(add[i][n], sum, fma(scale[i][n], d, acc[i][r][n]));
          }
      }
    }
    for (uint r = 0; r < M; r++) {
      if (r >= m) break;
      for (uint n = 0; n < NR; n++) {
        const float z = simd_sum(acc[0][r][n]), u = NW == 2 ? simd_sum(acc[NW - 1][r][n]) : 0.0f;
        if (lane == (r * NR + n) % 32 && n0 + n < outs) store(a, sink, from + r, n0 + n, z, u);
      }
    }
  }
}

#define ROWS_CASE(M)                                                                                                                                     \
  case M:                                                                                                                                                \
    if (FLAGS & GATED)                                                                                                                                   \
      rows_of<M, (M > 8 ? 2 : 4), 2>(a, xp, w0, s0, b0, bias0, out0, w1, s1, b1, bias1, out1, w2, s2, b2, bias2, out2, res, t, ad, mag, up_t, up_ad, up_mag, \
                                     list, tg, lane, simd);                                                                                              \
    else                                                                                                                                                 \
      rows_of<M, 4, 1>(a, xp, w0, s0, b0, bias0, out0, w1, s1, b1, bias1, out1, w2, s2, b2, bias2, out2, res, t, ad, mag, up_t, up_ad, up_mag, list, tg,    \
                       lane, simd);                                                                                                                      \
    break;

// Grid: (output tiles of all sets, row tiles, heads or list slots); 64 threads.
kernel void linear_rows(PARAMS(BUFFER), uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                        uint simd [[simdgroup_index_in_threadgroup]]) {
  switch (ROWS) {
    ROWS_CASE(1)
    ROWS_CASE(2)
    ROWS_CASE(4)
    ROWS_CASE(8)
    ROWS_CASE(16)
  }
}

constant constexpr uint TM = 32, TN = 32, TK = 32, LD = 36;

// Grid: (output tiles of 32 of all sets, row tiles of 32); 128 threads.
// Threadgroup memory: x tile, one or two weight tiles (columns down); then results.
kernel void linear_tiles(PARAMS(BUFFER), uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],
                         uint simd [[simdgroup_index_in_threadgroup]], threadgroup float *shared [[threadgroup(0)]]) {
  BEGIN
  const uint id = simd * 32 + lane, n0 = k.tile * TN;
  const uint line = id / 4, part = id % 4;  // each thread moves 8 neighbours of a line
  const uint row = tg.y * TM + line;
  threadgroup float *xs = shared, *ws = shared + TM * LD, *us = ws + TK * LD;
  const uint sm = simd / 2 * 16, sn = simd % 2 * 16;
  simdgroup_float8x8 c[2][2], d[2][2];
  for (uint i = 0; i < 2; i++)
    for (uint j = 0; j < 2; j++) c[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f), d[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k0 = 0; k0 < a.cols; k0 += TK) {
    const uint col = k0 + part * 8;
    for (uint i = 0; i < 8; i++) xs[line * LD + part * 8 + i] = row < k.rows && col + i < a.cols ? In<0>{xp}[ulong(row) * a.x_stride + col + i] : 0.0f;
    for (uint set = 0; set < (FLAGS & GATED ? 2u : 1u); set++) {
      float q[8], scale = 0.0f, add = 0.0f;
      for (uint i = 0; i < 8; i++) q[i] = 0.0f;
      if (n0 + line < outs && col < a.cols) {
        if (set == 0)
          chunk(w, s, b, n0 + line, col / 8, a.cols, a.whole[k.set], q, scale, add);
        else
          chunk(w1, s1, b1, n0 + line, col / 8, a.cols, a.whole[1], q, scale, add);
      }
      threadgroup float *to = set == 0 ? ws : us;
      for (uint i = 0; i < 8; i++) to[(part * 8 + i) * LD + line] = fma(scale, q[i], add);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint kk = 0; kk < TK; kk += 8) {
      simdgroup_float8x8 fx[2], fw[2];
      for (uint i = 0; i < 2; i++) simdgroup_load(fx[i], xs + (sm + 8 * i) * LD + kk, LD);
      for (uint i = 0; i < 2; i++) simdgroup_load(fw[i], ws + kk * LD + sn + 8 * i, LD);
      for (uint i = 0; i < 2; i++)
        for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(c[i][j], fx[i], fw[j], c[i][j]);
      if (FLAGS & GATED) {
        for (uint i = 0; i < 2; i++) simdgroup_load(fw[i], us + kk * LD + sn + 8 * i, LD);
        for (uint i = 0; i < 2; i++)
          for (uint j = 0; j < 2; j++) simdgroup_multiply_accumulate(d[i][j], fx[i], fw[j], d[i][j]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (uint i = 0; i < 2; i++)
    for (uint j = 0; j < 2; j++) {
      simdgroup_store(c[i][j], xs + (sm + 8 * i) * LD + sn + 8 * j, LD);
      if (FLAGS & GATED) simdgroup_store(d[i][j], ws + (sm + 8 * i) * LD + sn + 8 * j, LD);
    }
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (row >= k.rows) return;
  for (uint i = 0; i < 8; i++) {
    const uint n = n0 + part * 8 + i;
    if (n < outs) store(a, sink, row, n, xs[line * LD + part * 8 + i], FLAGS & GATED ? ws[line * LD + part * 8 + i] : 0.0f);
  }
}

struct EmbedArgs { uint rows, cols, table, out_stride; float scale, whole; };

// Grid: (blocks of 256 columns, rows); 32 threads.
kernel void embed(constant EmbedArgs &a [[buffer(0)]], device const int *ids [[buffer(1)]], device const uchar *w [[buffer(2)]],
                  device const uchar *s [[buffer(3)]], device const uchar *b [[buffer(4)]], device uchar *out [[buffer(5)]],
                  uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const uint c = tg.x * 32 + lane, r = tg.y;
  if (c * 8 >= a.cols) return;
  const int id = ids[r];
  float q[8], scale = 0.0f, add = 0.0f;
  for (uint i = 0; i < 8; i++) q[i] = 0.0f;
  if (id >= 0 && uint(id) < a.table) chunk(w, s, b, ulong(id), c, a.cols, a.whole, q, scale, add);
  for (uint i = 0; i < min(a.cols - c * 8, 8u); i++) Out<0>{out}.put(ulong(r) * a.out_stride + c * 8 + i, a.scale * fma(scale, q[i], add));
}
