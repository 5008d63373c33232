// x86 with AVX-512 as level_avx512.c has it, and the int8 tiles of AMX.
#if defined(__x86_64__)
#include "sb.h"

#include <math.h>
#include <string.h>

#include <immintrin.h>

#define SB_AVX512
#define SB_AMX
#define SB_BASE sb_level_avx512
#define LEVEL sb_level_amx
#define LEVEL_NAME "amx"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c,avx512f,avx512dq,avx512bw,avx512vl,avx512vnni,amx-tile,amx-int8")
#endif

#include "kernels.h"

#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
