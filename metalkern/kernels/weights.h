// Reading weights where they lie. A chunk is 8 consecutive columns of a row; its
// value is scale*code + bias, one scale and bias for the chunk in every layout.
#pragma once
#include "common.h"

constant uint SCHEME [[function_constant(1)]];  // layout.Scheme
constant uint BITS [[function_constant(2)]];    // affine: bits of a code
constant uint GROUP [[function_constant(3)]];   // columns of a scale
constant uint DTYPE [[function_constant(4)]];   // layout.DType of dense elements and of affine scales

constant constexpr uint DENSE = 1, AFFINE = 2, MXFP4 = 3, MXFP8 = 4, NVFP4 = 5, Q4_0 = 6, Q4_1 = 7, Q5_0 = 8, Q5_1 = 9, Q8_0 = 10, Q2_K = 11,
                        Q3_K = 12, Q4_K = 13, Q5_K = 14, Q6_K = 15, IQ4_NL = 16, GGUF_MXFP4 = 17;
constant constexpr uint F32 = 1, F16 = 2, BF16 = 3;

constant float E2M1[16] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
constant float NL4[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f, 1.0f, 13.0f, 25.0f, 38.0f, 53.0f, 69.0f, 89.0f, 113.0f};

inline float e8m0(uint c) { return as_type<float>(c == 0 ? 0x00400000u : c == 255 ? 0x7fc00000u : c << 23); }
inline float e4m3(uint c) {
  const uint e = c >> 3 & 15, m = c & 7;
  const float v = e == 0 ? float(m) * 0.001953125f : (c & 127) == 127 ? NAN : as_type<float>((e + 120) << 23 | m << 20);
  return c & 128 ? -v : v;
}

// Element i of an array of the given type.
inline float number(uint type, device const uchar* p, ulong i) {
  switch (type) {
    case F32: return ((device const float*)p)[i];
    case F16: return float(((device const half*)p)[i]);
  }
  return bf16(((device const ushort*)p)[i]);
}
// A half float at any even or odd byte.
inline float half_at(device const uchar* p) { return float(as_type<half>(ushort(ushort(p[0]) | ushort(p[1]) << 8))); }

// The 6-bit scale and minimum g of Q4_K and Q5_K.
inline void scale_min(device const uchar* p, uint g, thread float& s, thread float& m) {
  if (g < 4) {
    s = float(p[g] & 63), m = float(p[g + 4] & 63);
  } else {
    s = float((p[g + 4] & 15) | (p[g - 4] >> 6) << 4), m = float(p[g + 4] >> 4 | (p[g] >> 6) << 4);
  }
}

// Chunk c of a stored row. w, s and b are the codes, scales and biases of the
// whole weight, row counts over all of its matrices, q gets 8 codes. Columns past
// the row are 0 (only dense rows can end inside a chunk).
inline void chunk(device const uchar* w, device const uchar* s, device const uchar* b, ulong row, uint c, uint cols, float whole, thread float* q,
                  thread float& scale, thread float& bias) {
  scale = 1.0f, bias = 0.0f;
  const uint col = c * 8;
  switch (SCHEME) {
    case DENSE: {
      const ulong at = row * cols + col;
      const uint n = min(cols - col, 8u);
      for (uint i = 0; i < 8; i++) q[i] = i < n ? number(DTYPE, w, at + i) : 0.0f;
      return;
    }
    case AFFINE: {
      const ulong g = row * (cols / GROUP) + col / GROUP;
      scale = number(DTYPE, s, g), bias = number(DTYPE, b, g);
      device const uchar* p = w + (row * (cols / 8) + c) * BITS;
      if (BITS == 4) {
        const uint v = *(device const uint*)p;
        for (uint i = 0; i < 8; i++) q[i] = float(v >> (4 * i) & 15);
      } else if (BITS == 8) {
        const uint lo = ((device const uint*)p)[0], hi = ((device const uint*)p)[1];
        for (uint i = 0; i < 4; i++) q[i] = float(lo >> (8 * i) & 255), q[i + 4] = float(hi >> (8 * i) & 255);
      } else {
        ulong v = 0;
        for (uint i = 0; i < BITS; i++) v |= ulong(p[i]) << (8 * i);
        for (uint i = 0; i < 8; i++) q[i] = float(uint(v >> (BITS * i)) & ((1u << BITS) - 1));
      }
      return;
    }
    case MXFP4:
    case NVFP4: {
      const uint v = *(device const uint*)(w + (row * (cols / 8) + c) * 4);
      const uint e = s[row * (cols / GROUP) + col / GROUP];
      scale = SCHEME == MXFP4 ? e8m0(e) : e4m3(e) * whole;
      for (uint i = 0; i < 8; i++) q[i] = E2M1[v >> (4 * i) & 15];
      return;
    }
    case MXFP8: {
      device const uint* p = (device const uint*)(w + (row * (cols / 8) + c) * 8);
      scale = e8m0(s[row * (cols / GROUP) + col / GROUP]);
      for (uint i = 0; i < 4; i++) q[i] = e4m3(p[0] >> (8 * i) & 255), q[i + 4] = e4m3(p[1] >> (8 * i) & 255);
      return;
    }
    default: break;
  }
  // GGUF blocks of 32: columns j and j+16 share a byte
  const uint i0 = col % GROUP, hi = i0 / 16 % 2 * 4;
  const ulong block = row * (cols / GROUP) + col / GROUP;
  switch (SCHEME) {
    case Q4_0:
    case IQ4_NL: {
      device const uchar* p = w + block * 18;
      scale = half_at(p);
      for (uint i = 0; i < 8; i++) {
        const uint v = p[2 + i0 % 16 + i] >> hi & 15;
        q[i] = SCHEME == Q4_0 ? float(int(v) - 8) : NL4[v];
      }
      return;
    }
    case Q4_1: {
      device const uchar* p = w + block * 20;
      scale = half_at(p), bias = half_at(p + 2);
      for (uint i = 0; i < 8; i++) q[i] = float(p[4 + i0 % 16 + i] >> hi & 15);
      return;
    }
    case Q5_0:
    case Q5_1: {
      const uint head = SCHEME == Q5_0 ? 2 : 4;
      device const uchar* p = w + block * (20 + head);
      scale = half_at(p);
      if (SCHEME == Q5_1) bias = half_at(p + 2);
      const uint fifth = p[head + i0 / 8];
      for (uint i = 0; i < 8; i++) {
        const int v = int((p[head + 4 + i0 % 16 + i] >> hi & 15) | (fifth >> i & 1) << 4);
        q[i] = float(SCHEME == Q5_0 ? v - 16 : v);
      }
      return;
    }
    case Q8_0: {
      device const uchar* p = w + block * 34;
      scale = half_at(p);
      for (uint i = 0; i < 8; i++) q[i] = float(int(p[2 + i0 + i] ^ 128u) - 128);
      return;
    }
    case GGUF_MXFP4: {
      device const uchar* p = w + block * 17;
      scale = e8m0(p[0]);
      for (uint i = 0; i < 8; i++) q[i] = E2M1[p[1 + i0 % 16 + i] >> hi & 15];
      return;
    }
    case Q2_K: {
      device const uchar* p = w + block * 84;
      const uint sm = p[i0 / 16];
      scale = half_at(p + 80) * float(sm & 15), bias = -(half_at(p + 82) * float(sm >> 4));
      for (uint i = 0; i < 8; i++) q[i] = float(p[16 + i0 / 128 * 32 + i0 % 32 + i] >> (i0 / 32 % 4 * 2) & 3);
      return;
    }
    case Q3_K: {
      device const uchar* p = w + block * 110;
      const uint g = i0 / 16;
      const uint sc = (p[96 + g % 8] >> (g / 8 * 4) & 15) | (p[104 + g % 4] >> (g / 4 * 2) & 3) << 4;
      scale = half_at(p + 108) * float(int(sc) - 32);
      for (uint i = 0; i < 8; i++) {
        const uint lo = p[32 + i0 / 128 * 32 + i0 % 32 + i] >> (i0 / 32 % 4 * 2) & 3;
        q[i] = float(int(lo | (p[i0 % 32 + i] >> (i0 / 32) & 1) << 2) - 4);
      }
      return;
    }
    case Q4_K:
    case Q5_K: {
      device const uchar* p = w + block * (SCHEME == Q4_K ? 144 : 176);
      float sc, mn;
      scale_min(p + 4, i0 / 32, sc, mn);
      scale = half_at(p) * sc, bias = -(half_at(p + 2) * mn);
      device const uchar* codes = p + (SCHEME == Q4_K ? 16 : 48) + i0 / 64 * 32 + i0 % 32;
      for (uint i = 0; i < 8; i++) {
        uint v = codes[i] >> (i0 / 32 % 2 * 4) & 15;
        if (SCHEME == Q5_K) v |= uint(p[16 + i0 % 32 + i] >> (i0 / 32) & 1) << 4;
        q[i] = float(v);
      }
      return;
    }
    case Q6_K: {
      device const uchar* p = w + block * 210;
      const uint quarter = i0 / 32 % 4, h = i0 / 128;
      scale = half_at(p + 208) * float(int(p[192 + i0 / 16] ^ 128u) - 128);
      for (uint i = 0; i < 8; i++) {
        const uint lo = p[h * 64 + quarter % 2 * 32 + i0 % 32 + i] >> (quarter / 2 * 4) & 15;
        q[i] = float(int(lo | (p[128 + h * 32 + i0 % 32 + i] >> (2 * quarter) & 3) << 4) - 32);
      }
      return;
    }
  }
}
