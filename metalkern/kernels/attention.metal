// The paged cache: writing rows of K and V, and attention over it. Queries are the
// rows of the step times the heads that share a KV head.
//
// Decode and verify rows: a threadgroup of 64 threads serves up to 8 queries over
// some pages. A thread owns a position of the page for the scores and some
// dimensions for the sums, so K and V are read once for all queries. Pages go in
// order and splits begin at fixed pages: the bits of a row depend on what it sees
// and on nothing else.
//
// Prefill rows: attention_tiles, on the matrix units.
#include "common.h"

constant uint TYPE [[function_constant(1)]];   // layout.DType of the elements: F32 1, F16 2, BF16 3
constant uint BITS [[function_constant(2)]];   // 0, or codes of 4 or 8 bits
constant uint GROUP [[function_constant(3)]];  // elements of a scale
constant uint FLAGS [[function_constant(4)]];
constant uint DIMS [[function_constant(5)]];  // dimensions of V: 64 * DIMS for attention, 32 * DIMS for attention_tiles (1, 2, 4, 8, 16)
constant constexpr uint PAGE = 64, CAP = 1, SINKS = 2, PARTS = 4, V_IN_K = 8;

struct Cache {
  uint pages, heads, kdim, vdim, kpage, vpage;  // kpage, vpage: bytes of a page
};

// Element i of position at of a head. mem is the page, dim the width of a row.
inline float element(device const uchar *mem, uint heads, uint dim, uint head, uint at, uint i) {
  const uint row = head * PAGE + at;
  if (BITS != 0) {
    const uint bit = (row * dim + i) * BITS, groups = dim / GROUP;
    const uint code = mem[bit / 8] >> (bit % 8) & ((1u << BITS) - 1);
    device const float *scales = (device const float *)(mem + heads * PAGE * (dim * BITS / 8));
    const uint g = row * groups + i / GROUP;
    return fma(scales[g], float(code), scales[heads * PAGE * groups + g]);
  }
  const uint n = row * dim + i;
  if (TYPE == 1) return ((device const float *)mem)[n];
  if (TYPE == 2) return float(((device const half *)mem)[n]);
  return as_type<float>(uint(((device const ushort *)mem)[n]) << 16);
}

// Elements i to i+7 of position at of a head; those past the row are 0.
inline void elements(device const uchar *mem, uint heads, uint dim, uint head, uint at, uint i, thread float *v) {
  if (BITS == 0) {
    for (uint j = 0; j < 8; j++) v[j] = i + j < dim ? element(mem, heads, dim, head, at, i + j) : 0.0f;
    return;
  }
  const uint row = head * PAGE + at, groups = dim / GROUP, g = row * groups + min(i, dim - 8) / GROUP;
  device const float *scales = (device const float *)(mem + heads * PAGE * (dim * BITS / 8));
  device const uchar *codes = mem + (row * dim + i) * BITS / 8;
  const float scale = scales[g], bias = scales[heads * PAGE * groups + g];
  for (uint j = 0; j < 8; j++) {
    const uint bit = j * BITS;
    v[j] = i < dim ? fma(scale, float(codes[bit / 8] >> (bit % 8) & ((1u << BITS) - 1)), bias) : 0.0f;
  }
}

struct WriteArgs {
  Cache kv;
  uint k_stride, v_stride, segments, blocks, table_stride;
};

// Grid: (heads, rows, K and V); 32 threads.
kernel void kv_write(constant WriteArgs &a [[buffer(0)]], device const uchar *kp [[buffer(1)]], device const uchar *vp [[buffer(2)]],
                     device const int *pos [[buffer(3)]], device const int *of [[buffer(4)]], device const int *table [[buffer(5)]], device uchar *kmem [[buffer(6)]],
                     device uchar *vmem [[buffer(7)]], uint3 tg [[threadgroup_position_in_grid]], uint lane [[thread_index_in_simdgroup]]) {
  const int p = pos[tg.y], seg = of[tg.y];
  if (p < 0 || uint(p) / PAGE >= a.blocks || seg < 0 || uint(seg) >= a.segments) return;
  const int page = table[uint(seg) * a.table_stride + uint(p) / PAGE];
  if (page < 0 || uint(page) >= a.kv.pages) return;
  const bool is_v = tg.z == 1;
  const uint dim = is_v ? a.kv.vdim : a.kv.kdim, row = tg.x * PAGE + uint(p) % PAGE;
  const In<0> x = In<0>{is_v ? vp : kp} + (ulong(tg.y) * (is_v ? a.v_stride : a.k_stride) + tg.x * dim);
  device uchar *mem = is_v ? vmem + ulong(page) * a.kv.vpage : kmem + ulong(page) * a.kv.kpage;
  if (BITS == 0) {
    for (uint i = lane; i < dim; i += 32) {
      const uint n = row * dim + i;
      if (TYPE == 1) ((device float *)mem)[n] = x[i];
      else if (TYPE == 2) ((device half *)mem)[n] = half(x[i]);
      else ((device ushort *)mem)[n] = to_bf16(x[i]);
    }
    return;
  }
  const uint groups = dim / GROUP;
  device float *scales = (device float *)(mem + a.kv.heads * PAGE * (dim * BITS / 8));
  const float top = float((1u << BITS) - 1);
  for (uint g = 0; g < groups; g++) {
    const In<0> z = x + g * GROUP;
    float lo = INFINITY, hi = -INFINITY;
    for (uint i = lane; i < GROUP; i += 32) lo = min(lo, z[i]), hi = max(hi, z[i]);
    lo = simd_min(lo), hi = simd_max(hi);
    float scale = max((hi - lo) / top, 1e-7f), bias = 0.0f, edge = lo;
    if (!(fabs(lo) > fabs(hi))) scale = -scale, edge = hi;
    const float q0 = rint(edge / scale);
    if (q0 != 0.0f) scale = edge / q0, bias = edge;
    const uint codes = 8 / BITS;  // of a byte
    for (uint b = lane; b < GROUP / codes; b += 32) {
      uint byte = 0;
      for (uint i = 0; i < codes; i++) {
        const float q = rint((z[b * codes + i] - bias) / scale);
        byte |= (q > 0.0f ? uint(min(q, top)) : 0u) << (i * BITS);
      }
      mem[(row * dim + g * GROUP) * BITS / 8 + b] = uchar(byte);
    }
    if (lane == 0) {
      scales[row * groups + g] = scale;
      scales[a.kv.heads * PAGE * groups + row * groups + g] = bias;
    }
  }
}

struct AttentionArgs {
  Cache kv;
  uint rows, heads, per, head_tile, row_tile, tiles;  // per: query heads of a KV head; tiles: head tiles of a KV head
  uint q_stride, out_stride, table_stride, blocks, segments, splits, split;  // split: pages of a split
  float scale, cap;
};

// One page for the queries of a tile: D dimensions of V for each thread.
template <uint D>
inline void attend(constant AttentionArgs &a, In<0> q, device const int *of, device const int *table, device const int *lo,
                   device const int *hi, device const uchar *kmem, device const uchar *vmem, device const float *sinks, Out<1> out, device float *part,
                   threadgroup float *shared, uint3 tg, uint id, uint lane, uint simd) {
  const uint kh = tg.y / a.tiles, h0 = kh * a.per + tg.y % a.tiles * a.head_tile, ht = min(a.head_tile, (kh + 1) * a.per - h0);
  const uint r0 = tg.z * a.row_tile, r1 = min(r0 + a.row_tile, a.rows), end = a.blocks * PAGE, vdim = a.kv.vdim, kdim = a.kv.kdim;
  threadgroup float *qs = shared, *ss = shared + 8 * kdim, *stat = ss + 8 * PAGE;  // queries; scores; then max, sum, factor
  for (uint ra = r0, rb; ra < r1; ra = rb) {  // rows of one segment
    const int seg = of[ra];
    for (rb = ra + 1; rb < r1 && of[rb] == seg;) rb++;
    const uint n = (rb - ra) * ht;
    for (uint i = id; i < n * kdim; i += 64) qs[i] = q[ulong(ra + i / kdim / ht) * a.q_stride + (h0 + i / kdim % ht) * kdim + i % kdim];
    for (uint i = id; i < n; i += 64) stat[3 * i] = -INFINITY, stat[3 * i + 1] = 0.0f;
    float acc[8][D];
    for (uint i = 0; i < 8; i++)
      UNROLL
      for (uint j = 0; j < D; j++) acc[i][j] = 0.0f;
    uint from = end, to = 0;  // positions that any row sees
    for (uint r = ra; r < rb; r++) {
      const uint l = uint(clamp(lo[r], 0, int(end))), h = uint(clamp(hi[r], 0, int(end)));
      if (l < h) from = min(from, l), to = max(to, h);
    }
    uint block = max(from / PAGE, tg.x * a.split), last = min((to + PAGE - 1) / PAGE, (tg.x + 1) * a.split);
    if (seg < 0 || uint(seg) >= a.segments) last = 0;
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (; block < last; block++) {
      const int page = table[uint(seg) * a.table_stride + block];
      if (page < 0 || uint(page) >= a.kv.pages) continue;
      device const uchar *km = kmem + ulong(page) * a.kv.kpage;
      device const uchar *vm = FLAGS & V_IN_K ? km : vmem + ulong(page) * a.kv.vpage;
      const uint vwidth = FLAGS & V_IN_K ? kdim : vdim;
      const int p = int(block * PAGE + id);
      float s[8];
      for (uint i = 0; i < 8; i++) s[i] = 0.0f;
      if (uint(p) >= from && uint(p) < to)
        for (uint d = 0; d < kdim; d++) {
          const float e = element(km, a.kv.heads, kdim, kh, id, d);
          for (uint i = 0; i < n; i++) s[i] = fma(qs[i * kdim + d], e, s[i]);
        }
      for (uint i = 0; i < n; i++) {
        const uint r = ra + i / ht;
        float z = a.scale * s[i];
        if (FLAGS & CAP) z = a.cap * tanh(z / a.cap);
        ss[i * PAGE + id] = p >= lo[r] && p < hi[r] ? z : -INFINITY;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      for (uint i = simd; i < n; i += 2) {
        threadgroup float *row = ss + i * PAGE;
        const float u = row[lane], v = row[lane + 32], m0 = stat[3 * i], l0 = stat[3 * i + 1];
        const float m = max(m0, simd_max(max(u, v)));
        const float e0 = u == -INFINITY ? 0.0f : exp(u - m), e1 = v == -INFINITY ? 0.0f : exp(v - m);
        const float sum = simd_sum(e0 + e1), f = m0 == -INFINITY ? (m == -INFINITY ? 1.0f : 0.0f) : exp(m0 - m);
        row[lane] = e0, row[lane + 32] = e1;
        if (lane == 0) stat[3 * i] = m, stat[3 * i + 1] = fma(l0, f, sum), stat[3 * i + 2] = f;
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL
      for (uint j = 0; j < D; j++) {
        const uint d = id + 64 * j;
        if (d >= vdim) break;
        for (uint i = 0; i < n; i++) acc[i][j] *= stat[3 * i + 2];
        for (uint k = 0; k < PAGE; k++) {
          if (block * PAGE + k < from || block * PAGE + k >= to) continue;
          const float e = element(vm, a.kv.heads, vwidth, kh, k, d);
          for (uint i = 0; i < n; i++) {
            const float w = ss[i * PAGE + k];
            if (w != 0.0f) acc[i][j] = fma(w, e, acc[i][j]);  // what a row does not see may be anything
          }
        }
      }
      threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (uint i = 0; i < n; i++) {
      const uint r = ra + i / ht, h = h0 + i % ht;
      const float m = stat[3 * i], l = stat[3 * i + 1];
      if (FLAGS & PARTS) {
        device float *to = part + ((ulong(r) * a.heads + h) * a.splits + tg.x) * (vdim + 2);
        if (id == 0) to[0] = m, to[1] = l;
        UNROLL
        for (uint j = 0; j < D; j++)
          if (id + 64 * j < vdim) to[2 + id + 64 * j] = acc[i][j];
        continue;
      }
      const float top = FLAGS & SINKS ? max(m, sinks[h]) : m;
      const float f = m == -INFINITY ? 0.0f : exp(m - top);
      float all = fma(l, f, 0.0f);
      if (FLAGS & SINKS) all += exp(sinks[h] - top);
      UNROLL
      for (uint j = 0; j < D; j++)
        if (id + 64 * j < vdim) out.put(ulong(r) * a.out_stride + h * vdim + id + 64 * j, all > 0.0f ? fma(acc[i][j], f, 0.0f) / all : 0.0f);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

#define ATTEND(D) \
  case D: attend<D>(a, {qp}, of, table, lo, hi, kmem, vmem, sinks, {op}, part, shared, tg, id, lane, simd); break;

// Grid: (splits, KV heads * head tiles, row tiles); 64 threads. Threadgroup
// memory: 8*kdim + 8*64 + 24 floats.
kernel void attention(constant AttentionArgs &a [[buffer(0)]], device const uchar *qp [[buffer(1)]], device const int *of [[buffer(2)]],
                      device const int *table [[buffer(3)]], device const int *lo [[buffer(4)]], device const int *hi [[buffer(5)]],
                      device const uchar *kmem [[buffer(6)]], device const uchar *vmem [[buffer(7)]], device const float *sinks [[buffer(8)]],
                      device uchar *op [[buffer(9)]], device float *part [[buffer(10)]], threadgroup float *shared [[threadgroup(0)]],
                      uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]], uint lane [[thread_index_in_simdgroup]],
                      uint simd [[simdgroup_index_in_threadgroup]]) {
  switch (DIMS) {
    ATTEND(1)
    ATTEND(2)
    ATTEND(4)
    ATTEND(8)
    ATTEND(16)
  }
}

// Merges the splits of each row and head, in order. Grid: (heads, rows); 64 threads.
kernel void attention_merge(constant AttentionArgs &a [[buffer(0)]], device const float *part [[buffer(1)]], device const float *sinks [[buffer(2)]],
                            device uchar *op [[buffer(3)]], uint3 tg [[threadgroup_position_in_grid]], uint id [[thread_index_in_threadgroup]]) {
  const uint vdim = a.kv.vdim, size = vdim + 2, h = tg.x;
  device const float *p = part + (ulong(tg.y) * a.heads + h) * a.splits * size;
  float top = FLAGS & SINKS ? sinks[h] : -INFINITY;
  for (uint s = 0; s < a.splits; s++) top = max(top, p[s * size]);
  float all = 0.0f;
  for (uint s = 0; s < a.splits; s++)
    if (p[s * size] != -INFINITY) all = fma(p[s * size + 1], exp(p[s * size] - top), all);
  if (FLAGS & SINKS) all += exp(sinks[h] - top);
  for (uint d = id; d < vdim; d += 64) {
    float sum = 0.0f;
    for (uint s = 0; s < a.splits; s++)
      if (p[s * size] != -INFINITY) sum = fma(p[s * size + 2 + d], exp(p[s * size] - top), sum);
    Out<1>{op}.put(ulong(tg.y) * a.out_stride + h * vdim + d, all > 0.0f ? sum / all : 0.0f);
  }
}

constant constexpr uint TILE = 32, LD = 36;  // queries, keys and dimensions of a tile; floats between its lines

// 32 queries of attention_tiles, each SIMD-group 8 of them: 32 keys at a time their
// scores, a softmax that goes on from the keys before, and the sums over V, of which
// each lane holds its part of 4 * D matrices.
template <uint D>
inline void attend_tiles(constant AttentionArgs &a, In<0> q, device const int *of, device const int *table, device const int *lo, device const int *hi,
                         device const uchar *kmem, device const uchar *vmem, device const float *sinks, Out<1> out, threadgroup float *shared, uint3 tg,
                         uint lane, uint simd) {
  const uint kh = tg.y / a.tiles, h0 = kh * a.per + tg.y % a.tiles * a.head_tile, ht = min(a.head_tile, (kh + 1) * a.per - h0);
  const uint r0 = tg.z * a.row_tile, r1 = min(r0 + a.row_tile, a.rows), end = a.blocks * PAGE, vdim = a.kv.vdim, kdim = a.kv.kdim;
  const uint vwidth = FLAGS & V_IN_K ? kdim : vdim;
  threadgroup float *qs = shared, *ks = qs + TILE * LD, *ps = ks + TILE * LD + simd * 8 * LD, *diagonal = shared + 3 * TILE * LD + simd * 64;
  const uint line = simd * 8 + lane / 4, part = lane % 4 * 8;  // each thread moves 8 neighbours of a line
  for (uint i = lane; i < 64; i += 32) diagonal[i] = 0.0f;
  for (uint ra = r0, rb; ra < r1; ra = rb) {  // rows of one segment
    const int seg = of[ra];
    for (rb = ra + 1; rb < r1 && of[rb] == seg;) rb++;
    const uint n = (rb - ra) * ht;
    simdgroup_float8x8 o[D][4];
    UNROLL
    for (uint c = 0; c < D; c++)
      UNROLL
      for (uint j = 0; j < 4; j++) o[c][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    float m[8], l[8];
    UNROLL
    for (uint i = 0; i < 8; i++) m[i] = -INFINITY, l[i] = 0.0f;
    uint from = end, to = 0;  // positions that any row sees
    for (uint r = ra; r < rb; r++) {
      const uint x = uint(clamp(lo[r], 0, int(end))), y = uint(clamp(hi[r], 0, int(end)));
      if (x < y) from = min(from, x), to = max(to, y);
    }
    if (seg < 0 || uint(seg) >= a.segments) to = 0;
    for (uint p0 = from / TILE * TILE; p0 < to; p0 += TILE) {
      const int page = table[uint(seg) * a.table_stride + p0 / PAGE];
      if (page < 0 || uint(page) >= a.kv.pages) continue;
      device const uchar *km = kmem + ulong(page) * a.kv.kpage;
      device const uchar *vm = FLAGS & V_IN_K ? km : vmem + ulong(page) * a.kv.vpage;
      const bool seen = p0 + line >= from && p0 + line < to;  // the key of the line; what no row sees may be anything
      float v[8];
      simdgroup_float8x8 s[4], f;
      UNROLL
      for (uint j = 0; j < 4; j++) s[j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
      for (uint d0 = 0; d0 < kdim; d0 += TILE) {
        const uint d = d0 + part;
        const ulong from_q = ulong(ra + line / ht) * a.q_stride + (h0 + line % ht) * kdim + d;
        UNROLL
        for (uint i = 0; i < 8; i++) qs[line * LD + part + i] = line < n && d + i < kdim ? q[from_q + i] : 0.0f, v[i] = 0.0f;
        if (seen) elements(km, a.kv.heads, kdim, kh, (p0 + line) % PAGE, d, v);
        UNROLL
        for (uint i = 0; i < 8; i++) ks[(part + i) * LD + line] = v[i];  // keys side by side
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < TILE; k += 8) {
          simdgroup_load(f, qs + simd * 8 * LD + k, LD);
          UNROLL
          for (uint j = 0; j < 4; j++) {
            simdgroup_float8x8 g;
            simdgroup_load(g, ks + k * LD + 8 * j, LD);
            simdgroup_multiply_accumulate(s[j], f, g, s[j]);
          }
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
      UNROLL
      for (uint j = 0; j < 4; j++) simdgroup_store(s[j], ps + 8 * j, LD);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      bool grown = false;
      UNROLL
      for (uint i = 0; i < 8; i++) {
        const uint at = simd * 8 + i, r = min(ra + at / ht, rb - 1);
        const int p = int(p0 + lane);
        float z = a.scale * ps[i * LD + lane];
        if (FLAGS & CAP) z = a.cap * tanh(z / a.cap);
        if (at >= n || p < lo[r] || p >= hi[r]) z = -INFINITY;
        const float m0 = m[i];
        m[i] = max(m0, simd_max(z));
        const float e = z == -INFINITY ? 0.0f : exp(z - m[i]), factor = m0 == -INFINITY ? 1.0f : exp(m0 - m[i]);
        l[i] = fma(l[i], factor, simd_sum(e));
        ps[i * LD + lane] = e;
        if (lane == i) diagonal[9 * i] = factor;
        grown = grown || factor != 1.0f;
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
      if (grown) {
        simdgroup_load(f, diagonal, 8);
        UNROLL
        for (uint c = 0; c < D; c++)
          UNROLL
          for (uint j = 0; j < 4; j++) simdgroup_multiply(o[c][j], f, o[c][j]);
      }
      UNROLL
      for (uint k = 0; k < 4; k++) simdgroup_load(s[k], ps + 8 * k, LD);
      UNROLL
      for (uint c = 0; c < D; c++) {
        if (c * TILE >= vdim) break;
        UNROLL
        for (uint i = 0; i < 8; i++) v[i] = 0.0f;
        if (seen) elements(vm, a.kv.heads, vwidth, kh, (p0 + line) % PAGE, c * TILE + part, v);
        UNROLL
        for (uint i = 0; i < 8; i++) ks[line * LD + part + i] = v[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        UNROLL
        for (uint k = 0; k < 4; k++)
          UNROLL
          for (uint j = 0; j < 4; j++) {
            simdgroup_load(f, ks + 8 * k * LD + 8 * j, LD);
            simdgroup_multiply_accumulate(o[c][j], s[k], f, o[c][j]);
          }
        threadgroup_barrier(mem_flags::mem_threadgroup);
      }
    }
    UNROLL
    for (uint c = 0; c < D; c++) {
      if (c * TILE >= vdim) break;
      UNROLL
      for (uint j = 0; j < 4; j++) simdgroup_store(o[c][j], ps + 8 * j, LD);
      simdgroup_barrier(mem_flags::mem_threadgroup);
      UNROLL
      for (uint i = 0; i < 8; i++) {
        const uint at = simd * 8 + i, r = ra + at / ht, h = h0 + at % ht, d = c * TILE + lane;
        if (at >= n || d >= vdim) continue;
        const float top = FLAGS & SINKS ? max(m[i], sinks[h]) : m[i];
        const float factor = m[i] == -INFINITY ? 0.0f : exp(m[i] - top);
        float all = fma(l[i], factor, 0.0f);
        if (FLAGS & SINKS) all += exp(sinks[h] - top);
        out.put(ulong(r) * a.out_stride + h * vdim + d, all > 0.0f ? fma(ps[i * LD + lane], factor, 0.0f) / all : 0.0f);
      }
      simdgroup_barrier(mem_flags::mem_threadgroup);
    }
  }
}

#define ATTEND_TILES(D) \
  case D: attend_tiles<D>(a, {qp}, of, table, lo, hi, kmem, vmem, sinks, {op}, shared, tg, lane, simd); break;

// Grid: (1, KV heads * head tiles, row tiles); 128 threads. Threadgroup memory:
// tiles of queries, keys or values, and weights, and four diagonal matrices.
kernel void attention_tiles(constant AttentionArgs &a [[buffer(0)]], device const uchar *qp [[buffer(1)]], device const int *of [[buffer(2)]],
                            device const int *table [[buffer(3)]], device const int *lo [[buffer(4)]], device const int *hi [[buffer(5)]],
                            device const uchar *kmem [[buffer(6)]], device const uchar *vmem [[buffer(7)]], device const float *sinks [[buffer(8)]],
                            device uchar *op [[buffer(9)]], threadgroup float *shared [[threadgroup(0)]], uint3 tg [[threadgroup_position_in_grid]],
                            uint lane [[thread_index_in_simdgroup]], uint simd [[simdgroup_index_in_threadgroup]]) {
  switch (DIMS) {
    ATTEND_TILES(1)
    ATTEND_TILES(2)
    ATTEND_TILES(4)
    ATTEND_TILES(8)
    ATTEND_TILES(16)
  }
}
