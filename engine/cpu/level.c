// Finds the levels that this machine can run.
#include "sb.h"

#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t xcr0(void) {
	uint32_t lo, hi;
	__asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
	return (uint64_t)hi << 32 | lo;
}

// Asks the system for the large registers of AMX; every process must.
static int allowed_amx(void) {
#if defined(__linux__)
	enum { REQUEST = 0x1023, TILES = 18 };
	return syscall(SYS_arch_prctl, REQUEST, TILES) == 0;
#else
	return 0;
#endif
}

typedef struct {
	int avx2, avxvnni, avx512, amx;
} features;

static features detect(void) {
	uint32_t a, b, c, d;
	features f = {0};
	if (!__get_cpuid(1, &a, &b, &c, &d))
		return f;
	const uint32_t need = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29; // FMA, OSXSAVE, AVX, F16C
	if ((c & need) != need || (xcr0() & 6) != 6 || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
		return f;
	f.avx2 = b >> 5 & 1;
	const uint32_t wide = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31; // F, DQ, BW, VL
	f.avx512 = f.avx2 && (b & wide) == wide && (c >> 11 & 1) /* VNNI */ && (xcr0() & 0xe6) == 0xe6;
	const uint32_t tiles = 1u << 24 | 1u << 25; // TILE, INT8
	f.amx = f.avx512 && (d & tiles) == tiles && (xcr0() & 0x60000) == 0x60000;
	f.avxvnni = f.avx2 && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
	return f;
}
#elif defined(__aarch64__)
#if defined(__APPLE__)
#include <sys/sysctl.h>
static int has(const char *name) {
	int yes = 0;
	size_t size = sizeof yes;
	return sysctlbyname(name, &yes, &size, NULL, 0) == 0 && yes;
}
static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }
#elif defined(__linux__)
#include <sys/auxv.h>
static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }
static int has_i8mm(void) { return has_dotprod() && (getauxval(AT_HWCAP2) >> 13 & 1); }
#else
static int has_dotprod(void) { return 0; }
static int has_i8mm(void) { return 0; }
#endif
#endif

const sb_level *sb_level_find(const char *name) {
#if defined(__x86_64__)
	const features f = detect();
	if (f.amx && strcmp(name, "amx") == 0 && allowed_amx())
		return &sb_level_amx;
	if (f.avx512 && strcmp(name, "avx512") == 0)
		return &sb_level_avx512;
	if (f.avxvnni && strcmp(name, "avxvnni") == 0)
		return &sb_level_avxvnni;
	if (f.avx2 && strcmp(name, "avx2") == 0)
		return &sb_level_avx2;
#elif defined(__aarch64__)
	if (strcmp(name, "i8mm") == 0 && has_i8mm())
		return &sb_level_i8mm;
	if (strcmp(name, "dotprod") == 0 && has_dotprod())
		return &sb_level_dotprod;
	if (strcmp(name, "neon") == 0)
		return &sb_level_neon;
#endif
	return strcmp(name, "scalar") == 0 ? &sb_level_scalar : NULL;
}

int64_t sb_pack_size(const sb_level *level, sb_weight *w) { return level->pack ? level->pack(w) : 0; }
