// Finds the levels that this machine can run.
#include "sb.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

static uint64_t xcr0(void) {
	uint32_t lo, hi;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

static void detect(int *avx2, int *avx512) {
	uint32_t a, b, c, d;
	*avx2 = *avx512 = 0;
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return;
	const uint32_t need = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; // FMA, OSXSAVE, AVX, F16C
	if ((c & need) != need || (xcr0() & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return;
	*avx2 = b >> 5 & 1;
	const uint32_t wide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; // F, DQ, BW, VL
	*avx512 = *avx2 && (b & wide) == wide && (c >> 11 & 1) /* VNNI */ && (xcr0() & 0xe6) == 0xe6;
}
#endif

const sb_level *sb_level_find(const char *name) {
#if defined(__x86_64__)
	int avx2, avx512;
	detect(&avx2, &avx512);
	if (avx512 && strcmp(name, "avx512") == 0)
		return &sb_level_avx512;
	if (avx2 && strcmp(name, "avx2") == 0)
		return &sb_level_avx2;
#elif defined(__aarch64__)
	if (strcmp(name, "neon") == 0)
		return &sb_level_neon;
#endif
	return strcmp(name, "scalar") == 0 ? &sb_level_scalar : NULL;
}

int64_t sb_pack(const sb_level *level, sb_weight *w, uint8_t *dst) { return level->pack(w, dst); }
