// x86 with AVX2 and the 256-bit dot products of AVX-VNNI.
#if defined(__x86_64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <immintrin.h>

#define SB_AVX2
#define SB_VNNI
#define SB_BASE sb_level_avx2
#define LEVEL sb_level_avxvnni
#define LEVEL_NAME "avxvnni"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avxvnni"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avxvnni")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
