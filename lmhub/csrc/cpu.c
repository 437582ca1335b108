/* cpu.c: which level this machine runs, decided once.
 *
 * On x86-64 a level counts as present when CPUID lists its instructions and XCR0 says that the system saves its registers;
 * for tiles the process must ask for permission too, once and for all of its threads. On arm64 the system lists what there
 * is. LMK_ISA forces a level.
 */
#include "core.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static uint64_t xcr0(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
    __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
    return (uint64_t)d << 32 | a;
}

/* NULL when the level is there, otherwise what is missing. */
static const char *lacks_avx2(void)
{
    uint32_t a, b, c, d;
    if (!__get_cpuid(1, &a, &b, &c, &d)) return "the CPU has no CPUID leaf 1";
    if ((xcr0() & 0x6) != 0x6) return "the system does not save AVX registers";
    if (!(c & bit_FMA) || !(c & bit_F16C)) return "the CPU lacks FMA or F16C";
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return "the CPU lacks AVX2";
    return NULL;
}

static const char *lacks_avx512(void)
{
    const uint32_t need = bit_AVX512F | bit_AVX512BW | bit_AVX512VL | bit_AVX512DQ;
    uint32_t a, b, c, d;
    const char *why = lacks_avx2();
    if (why) return why;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & need) != need) return "the CPU lacks AVX-512 F, BW, VL or DQ";
    if (!(c & bit_AVX512VNNI)) return "the CPU lacks AVX-512 VNNI";
    if ((xcr0() & 0xe6) != 0xe6) return "the system does not save AVX-512 registers";
    return NULL;
}

#define BIT_AMX_TILE (1u << 24)     /* CPUID leaf 7, EDX */
#define BIT_AMX_INT8 (1u << 25)
#define BIT_AMX_BF16 (1u << 22)

static const char *lacks_amx(void)
{
    uint32_t a, b, c, d;
    const char *why = lacks_avx512();
    if (why) return why;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & BIT_AMX_TILE) || !(d & BIT_AMX_INT8)
        || !(d & BIT_AMX_BF16))
        return "the CPU lacks AMX or its INT8 or BF16 products";
    if ((xcr0() & 0x60000) != 0x60000) return "the system does not save AMX tiles";
#if defined(__linux__)
    const long request = 0x1023, tile_data = 18;   /* ARCH_REQ_XCOMP_PERM; idempotent */
    if (syscall(SYS_arch_prctl, request, tile_data)) return "the system does not let this process use AMX tiles";
#endif
    return NULL;
}
#else
static const char *lacks_avx2(void) { return "this is not an x86-64 machine"; }
static const char *lacks_avx512(void) { return "this is not an x86-64 machine"; }
static const char *lacks_amx(void) { return "this is not an x86-64 machine"; }
#endif

#if defined(__aarch64__)
#if defined(__APPLE__)
#include <sys/sysctl.h>

static int has(const char *name)
{
    int value = 0;
    size_t size = sizeof value;
    return !sysctlbyname(name, &value, &size, NULL, 0) && value;
}

static int has_dotprod(void) { return has("hw.optional.arm.FEAT_DotProd"); }
static int has_i8mm(void) { return has("hw.optional.arm.FEAT_I8MM"); }
#else
#include <sys/auxv.h>

static int has_dotprod(void) { return getauxval(AT_HWCAP) >> 20 & 1; }         /* HWCAP_ASIMDDP */
static int has_i8mm(void) { return getauxval(AT_HWCAP2) >> 13 & 1; }           /* HWCAP2_I8MM */
#endif

static const char *lacks_neon(void) { return has_dotprod() ? NULL : "the CPU lacks the dot-product instructions"; }
static const char *lacks_i8mm(void)
{
    const char *why = lacks_neon();
    return why ? why : has_i8mm() ? NULL : "the CPU lacks i8mm";
}
#else
static const char *lacks_neon(void) { return "this is not an arm64 machine"; }
static const char *lacks_i8mm(void) { return "this is not an arm64 machine"; }
#endif

static const char *lacks_nothing(void) { return NULL; }

static const struct {
    const char *name;
    const char *(*lacks)(void);
    const lmk_kernels *kernels;
} levels[] = {                     /* best first */
#if defined(__aarch64__)
    { "i8mm", lacks_i8mm, &lmk_kernels_i8mm },
    { "neon", lacks_neon, &lmk_kernels_neon },
#else
    { "i8mm", lacks_i8mm, NULL },
    { "neon", lacks_neon, NULL },
#endif
#if defined(__x86_64__)
    { "amx", lacks_amx, &lmk_kernels_amx },
    { "avx512", lacks_avx512, &lmk_kernels_avx512 },
    { "avx2", lacks_avx2, &lmk_kernels_avx2 },
#else
    { "amx", lacks_amx, NULL },
    { "avx512", lacks_avx512, NULL },
    { "avx2", lacks_avx2, NULL },
#endif
    { "ref", lacks_nothing, &lmk_kernels_ref },
};
#define N_LEVELS (sizeof levels / sizeof *levels)

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const lmk_kernels *chosen;
static char reason[512];           /* why `chosen`, or why nothing was chosen */

static const lmk_kernels *find(const char *name, char *why, size_t size)
{
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (strcmp(levels[i].name, name)) continue;
        const char *lacks = levels[i].lacks();
        if (!lacks) return levels[i].kernels;
        snprintf(why, size, "The instruction-set level '%s' cannot be used: %s; choose another LMK_ISA or unset it.", name,
                 lacks);
        return NULL;
    }
    snprintf(why, size, "'%.32s' is not an instruction-set level; LMK_ISA takes ref, avx2, avx512, amx, neon or i8mm.", name);
    return NULL;
}

static void choose(void)
{
    const char *wanted = getenv("LMK_ISA");
    if (wanted && *wanted) {
        chosen = find(wanted, reason, sizeof reason);
        if (chosen) snprintf(reason, sizeof reason, "%s was asked for by LMK_ISA", wanted);
        return;
    }
    size_t used = 0;
    for (size_t i = 0; i < N_LEVELS && !chosen; i++) {
        const char *lacks = levels[i].lacks();
        if (!lacks) chosen = levels[i].kernels;
        else if (levels[i].kernels)    /* of this architecture */
            used += (size_t)snprintf(reason + used, sizeof reason - used, "%s%s: %s", used ? "; " : "", levels[i].name, lacks);
    }
    if (!used) snprintf(reason, sizeof reason, "%s is the highest level that lmhub has kernels for", chosen->isa);
}

const lmk_kernels *lmk_kernels_for(const char *level)
{
    if (level) {
        char why[256];
        const lmk_kernels *k = find(level, why, sizeof why);
        if (!k) lmk_fail("%s", why);
        return k;
    }
    pthread_once(&once, choose);
    if (!chosen) lmk_fail("%s", reason);
    return chosen;
}

const char *lmk_isa(void)
{
    const lmk_kernels *k = lmk_kernels_for(NULL);
    return k ? k->isa : "none";
}

const char *lmk_isa_reason(void)
{
    lmk_kernels_for(NULL);
    return reason;
}
