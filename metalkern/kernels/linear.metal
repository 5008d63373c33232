// Linear layers. linear_rows serves decode and verify rows: one SIMD-group makes
// a few outputs for up to 16 rows and reads their weights once. Lane l takes
// chunks l, l+32, ... of a row of weights whatever the number of rows and whatever
// the variant, so that a row's bits do not depend on its company. linear_tiles
// serves prefill: every element sums over the columns in order, whatever the tile.
#include "weights.h"

constant uint MODE [[function_constant(5)]];   // 0 rows of one matrix; 1 one matrix per head; 2 rows listed by expert
constant uint ACT [[function_constant(6)]];    // compute.Act
constant uint FLAGS [[function_constant(7)]];  // see below
constant uint SETS [[function_constant(8)]];   // matrices: 2 and 3 share the input, each with its own output
constant uint ROWS [[function_constant(9)]];   // rows of a tile
constant uint OUTS [[function_constant(10)]];  // outputs: of a SIMD-group of linear_rows, of a tile of linear_tiles
constant uint SIMDS [[function_constant(11)]];  // SIMD-groups of a threadgroup of linear_rows
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

// A matrix as stored.
struct Matrix {
  device const uchar *codes, *scales, *biases;
  float whole;
};

// What a threadgroup works on.
struct Job {
  uint tile, set, matrix, first, rows, outs;  // output tile in its set; matrix of the stack; first list entry or row; how many; outputs of the matrix
  Matrix w, up;
  In<0> x;
  Low low, up_low;
  device const float *bias, *up_bias, *ready;
  In<1> res;
  Out<2> out;
  device const int *entries;  // rows listed by expert
};

// The parameters of the linear kernels, and the job that a threadgroup makes of them.
#define PARAMS                                                                                                                            \
  constant LinearArgs &a [[buffer(0)]], device const uchar *x [[buffer(1)]], device const uchar *w0 [[buffer(2)]],                       \
      device const uchar *s0 [[buffer(3)]], device const uchar *b0 [[buffer(4)]], device const float *bias0 [[buffer(5)]],               \
      device uchar *out0 [[buffer(6)]], device const uchar *w1 [[buffer(7)]], device const uchar *s1 [[buffer(8)]],                      \
      device const uchar *b1 [[buffer(9)]], device const float *bias1 [[buffer(10)]], device uchar *out1 [[buffer(11)]],                 \
      device const uchar *w2 [[buffer(12)]], device const uchar *s2 [[buffer(13)]], device const uchar *b2 [[buffer(14)]],               \
      device const float *bias2 [[buffer(15)]], device uchar *out2 [[buffer(16)]], device const uchar *res [[buffer(17)]],               \
      device const float *t [[buffer(18)]], device const uchar *ad [[buffer(19)]], device const float *mag [[buffer(20)]],               \
      device const float *up_t [[buffer(21)]], device const uchar *up_ad [[buffer(22)]], device const float *up_mag [[buffer(23)]],      \
      device const int *list [[buffer(24)]], uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]],         \
      uint simd [[simdgroup_index_in_threadgroup]]
#define JOB                                                                                                                               \
  const uint set = SETS > 2 && tg.x >= a.tiles[1] ? 2 : SETS > 1 && tg.x >= a.tiles[0] ? 1 : 0;                                          \
  const Matrix w = {set == 0 ? w0 : set == 1 ? w1 : w2, set == 0 ? s0 : set == 1 ? s1 : s2, set == 0 ? b0 : set == 1 ? b1 : b2, a.whole[set]}; \
  const Low low = {t, ad, mag, a.rank, a.a_type, a.a_scale}, up_low = {up_t, up_ad, up_mag, a.up_rank, a.up_type, a.up_scale};           \
  Job j = {tg.x - (set > 0 ? a.tiles[set - 1] : 0), set, MODE == 1 ? tg.z : 0, 0, a.rows, a.out[set], w, {w1, s1, b1, a.whole[1]}, {x},  \
           low, up_low, set == 0 ? bias0 : set == 1 ? bias1 : bias2, bias1, up_t, {res}, {set == 0 ? out0 : set == 1 ? out1 : out2}, list}; \
  if (MODE == 2) find_expert(a, list, tg.z, j);

// The expert that is number n of those in use. list: experts in use, then for each
// its number and its first entry, the end, and after room for tiles[0] the entries.
inline void find_expert(constant LinearArgs &a, device const int *list, uint n, thread Job &j) {
  j.rows = 0, j.entries = list + 3 + 2 * a.tiles[0];
  if (int(n) >= list[0]) return;
  j.matrix = uint(list[1 + 2 * n]), j.first = uint(list[2 + 2 * n]);
  j.rows = uint(list[4 + 2 * n]) - j.first;
}

// Stores output n of a row (of x or of the list): z is its sum, u that of up.
inline void store(constant LinearArgs &a, thread const Job &j, uint row, uint n, float z, float u) {
  const uint to = MODE == 2 ? uint(j.entries[j.first + row]) : row, at = MODE == 1 ? j.matrix * a.out[0] + n : n;
  const float b = FLAGS & BIAS ? j.bias[j.matrix * a.bias_stride + n] : 0.0f;
  z = finish(z, j.low, (FLAGS & ADAPT) != 0, (FLAGS & MAG) != 0, (FLAGS & BIAS) != 0, b, row, n);
  if (FLAGS & GATED) {
    const float c = FLAGS & UP_BIAS ? j.up_bias[j.matrix * a.up_bias_stride + n] : 0.0f;
    u = finish(u, j.up_low, (FLAGS & UP_ADAPT) != 0, (FLAGS & UP_MAG) != 0, (FLAGS & UP_BIAS) != 0, c, row, n);
  }
  if (FLAGS & UP_READY) u = j.ready[ulong(to) * a.out[0] + n];
  z = activate(ACT, z, u);
  z = FLAGS & RESIDUAL ? fma(a.scale, z, j.res[ulong(to) * a.res_stride + at]) : a.scale * z;
  j.out.put(ulong(to) * a.out_stride[j.set] + at, z);
}

// M rows, N outputs of a SIMD-group; with GATED those of both matrices.
template <uint M, uint N>
inline void rows_of(constant LinearArgs &a, thread const Job &j, uint first, uint lane, uint simd) {
  const uint n0 = (j.tile * SIMDS + simd) * N, outs = j.outs, chunks = (a.cols + 7) / 8, sets = FLAGS & GATED ? 2 : 1;
  if (n0 >= outs) return;
  // an expert's rows are walked here, so that its weights stay in the cache
  const uint step = MODE == 2 ? M : j.rows;
  for (uint from = MODE == 2 ? 0 : first; from < j.rows; from += step) {
    const uint m = min(j.rows - from, M);
    float acc[2][M][N];
    UNROLL
    for (uint i = 0; i < sets; i++)
      UNROLL
      for (uint r = 0; r < M; r++)
        UNROLL
        for (uint n = 0; n < N; n++) acc[i][r][n] = 0.0f;
    for (uint c = lane; c < chunks; c += 32) {
      float q[2][N][8], scale[2][N], add[2][N];
      for (uint n = 0; n < N; n++) {
        const ulong row = ulong(j.matrix) * outs + min(n0 + n, outs - 1);
        chunk(j.w.codes, j.w.scales, j.w.biases, row, c, a.cols, j.w.whole, q[0][n], scale[0][n], add[0][n]);
        if (sets == 2) chunk(j.up.codes, j.up.scales, j.up.biases, row, c, a.cols, j.up.whole, q[1][n], scale[1][n], add[1][n]);
      }
      UNROLL
      for (uint r = 0; r < M; r++) {
        if (r >= m) break;
        const uint xr = MODE == 2 ? uint(j.entries[j.first + from + r]) / a.x_div : from + r;
        const In<0> p = j.x + (ulong(xr) * a.x_stride + (MODE == 1 ? j.matrix * a.cols : 0) + c * 8);
        const uint have = min(a.cols - c * 8, 8u);
        float v[8], sum = 0.0f;
        for (uint i = 0; i < 8; i++) v[i] = i < have ? p[i] : 0.0f, sum += v[i];
        UNROLL
        for (uint i = 0; i < sets; i++)
          UNROLL
          for (uint n = 0; n < N; n++) {
            float d = 0.0f;
            UNROLL
            for (uint k = 0; k < 8; k++) d = fma(q[i][n][k], v[k], d);
            acc[i][r][n] = fma(add[i][n], sum, fma(scale[i][n], d, acc[i][r][n]));
          }
      }
    }
    UNROLL
    for (uint s0 = 0; s0 < M * N; s0 += 32) {  // each lane stores one of the sums
      float mine = 0.0f, mine_up = 0.0f;
      UNROLL
      for (uint e = 0; e < min(M * N, 32u); e++) {
        const uint r = (s0 + e) / N, n = (s0 + e) % N;
        if (r >= m) break;
        const float z = simd_sum(acc[0][r][n]), u = sets == 2 ? simd_sum(acc[1][r][n]) : 0.0f;
        if (lane == e) mine = z, mine_up = u;
      }
      const uint r = (s0 + lane) / N, n = (s0 + lane) % N;
      if (r < m && n0 + n < outs) store(a, j, from + r, n0 + n, mine, mine_up);
    }
  }
}

#define ROWS_CASE(M, N) \
  case 16 * M + N: rows_of<M, N>(a, j, tg.y * M, lane, simd); break;

// Grid: (output tiles of all sets, row tiles, heads or list slots); 32 * SIMDS threads.
kernel void linear_rows(PARAMS) {
  JOB
  switch (16 * ROWS + OUTS) {  // ROWS * OUTS <= 64, with GATED 32: what registers hold
    ROWS_CASE(1, 1)
    ROWS_CASE(1, 2)
    ROWS_CASE(1, 4)
    ROWS_CASE(1, 8)
    ROWS_CASE(2, 2)
    ROWS_CASE(2, 4)
    ROWS_CASE(2, 8)
    ROWS_CASE(4, 2)
    ROWS_CASE(4, 4)
    ROWS_CASE(4, 8)
    ROWS_CASE(8, 2)
    ROWS_CASE(8, 4)
    ROWS_CASE(16, 2)
    ROWS_CASE(16, 4)
  }
}

// M rows by N outputs, a quarter for each of 4 SIMD-groups, 32 columns at a time.
template <uint M, uint N>
inline void one_tile(constant LinearArgs &a, thread const Job &j, threadgroup float *shared, uint first, uint lane, uint simd) {
  constexpr uint K = 32, XL = K + 4, WL = N + 4;  // columns of a step; floats between lines
  const uint id = simd * 32 + lane, n0 = j.tile * N, sets = FLAGS & GATED ? 2 : 1;
  threadgroup float *xs = shared, *ws = xs + M * XL;
  const uint sm = simd / 2 * (M / 2), sn = simd % 2 * (N / 2);
  simdgroup_float8x8 c[2][M / 16][N / 16];
  UNROLL
  for (uint set = 0; set < sets; set++)
    UNROLL
    for (uint i = 0; i < M / 16; i++)
      UNROLL
      for (uint k = 0; k < N / 16; k++) c[set][i][k] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  for (uint k0 = 0; k0 < a.cols; k0 += K) {
    for (uint e = id; e < M * K / 8; e += 128) {  // 8 neighbours of a row
      const uint line = e / 4, part = e % 4 * 8, row = first + line, col = k0 + part;
      const uint xr = MODE == 2 && row < j.rows ? uint(j.entries[j.first + row]) / a.x_div : row;
      for (uint i = 0; i < 8; i++) xs[line * XL + part + i] = row < j.rows && col + i < a.cols ? j.x[ulong(xr) * a.x_stride + col + i] : 0.0f;
    }
    for (uint set = 0; set < sets; set++)
      for (uint e = id; e < N * K / 8; e += 128) {  // a chunk of weights, columns down
        const uint line = e / 4, part = e % 4 * 8, col = k0 + part;
        const ulong row = ulong(j.matrix) * j.outs + n0 + line;
        float q[8], scale = 0.0f, add = 0.0f;
        for (uint i = 0; i < 8; i++) q[i] = 0.0f;
        if (n0 + line < j.outs && col < a.cols) {
          if (set == 0)
            chunk(j.w.codes, j.w.scales, j.w.biases, row, col / 8, a.cols, j.w.whole, q, scale, add);
          else
            chunk(j.up.codes, j.up.scales, j.up.biases, row, col / 8, a.cols, j.up.whole, q, scale, add);
        }
        for (uint i = 0; i < 8; i++) ws[(set * K + part + i) * WL + line] = fma(scale, q[i], add);
      }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint kk = 0; kk < K; kk += 8) {
      simdgroup_float8x8 fx[M / 16], fw[N / 16];
      UNROLL
      for (uint i = 0; i < M / 16; i++) simdgroup_load(fx[i], xs + (sm + 8 * i) * XL + kk, XL);
      UNROLL
      for (uint set = 0; set < sets; set++) {
        UNROLL
        for (uint k = 0; k < N / 16; k++) simdgroup_load(fw[k], ws + (set * K + kk) * WL + sn + 8 * k, WL);
        UNROLL
        for (uint i = 0; i < M / 16; i++)
          UNROLL
          for (uint k = 0; k < N / 16; k++) simdgroup_multiply_accumulate(c[set][i][k], fx[i], fw[k], c[set][i][k]);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  UNROLL
  for (uint set = 0; set < sets; set++)
    UNROLL
    for (uint i = 0; i < M / 16; i++)
      UNROLL
      for (uint k = 0; k < N / 16; k++) simdgroup_store(c[set][i][k], shared + (set * M + sm + 8 * i) * WL + sn + 8 * k, WL);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  for (uint e = id; e < M * N; e += 128) {
    const uint line = e / N, row = first + line, n = n0 + e % N;
    if (row < j.rows && n < j.outs) store(a, j, row, n, shared[line * WL + e % N], sets == 2 ? shared[(M + line) * WL + e % N] : 0.0f);
  }
}

template <uint M, uint N>
inline void tile_of(constant LinearArgs &a, thread const Job &j, threadgroup float *shared, uint first, uint lane, uint simd) {
  if (MODE != 2) return one_tile<M, N>(a, j, shared, first, lane, simd);
  for (uint from = 0; from < j.rows; from += M) {  // an expert's rows, so that its weights stay in the cache
    if (from > 0) threadgroup_barrier(mem_flags::mem_threadgroup);
    one_tile<M, N>(a, j, shared, from, lane, simd);
  }
}

#define TILE_CASE(M, N) \
  case 128 * M + N: tile_of<M, N>(a, j, shared, tg.y * M, lane, simd); break;

// Grid: (output tiles of all sets, row tiles or 1, 1 or list slots); 128 threads. Threadgroup memory: a
// tile of x, one or two of weights; then the results of each.
kernel void linear_tiles(PARAMS, threadgroup float *shared [[threadgroup(0)]]) {
  JOB
  switch (128 * ROWS + OUTS) {
    TILE_CASE(16, 64)
    TILE_CASE(32, 32)
    TILE_CASE(32, 64)
    TILE_CASE(64, 32)
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
