// x86 with AVX-512 F, DQ, BW, VL and VNNI.
#if defined(__x86_64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <immintrin.h>

#define SB_AVX512
#define LEVEL sb_level_avx512
#define LEVEL_NAME "avx512"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
