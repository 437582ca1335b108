/* Expanding GGUF tensor types to float32: what is known about each type, and the calls.
 *
 * The bodies are in dequant.c, which is compiled once for the baseline and again for any instruction set that wants it:
 *
 *     #pragma GCC target("avx2")
 *     #define LMK_SUFFIX(name) name##_avx2
 *     #include "dequant.c"                     gives lmk_dequant_row_avx2, and nothing else that is visible
 *
 * Every build must use -ffp-contract=off: the results are the same bits as those of the `gguf` Python package. */
#ifndef LMK_DEQUANT_H
#define LMK_DEQUANT_H

#include <stdint.h>

/* X(number in ggml, name, elements per block, bytes per block) */
#define LMK_DEQUANT_TYPES(X) \
    X(0, f32, 1, 4)          \
    X(1, f16, 1, 2)          \
    X(2, q4_0, 32, 18)       \
    X(3, q4_1, 32, 20)       \
    X(6, q5_0, 32, 22)       \
    X(7, q5_1, 32, 24)       \
    X(8, q8_0, 32, 34)       \
    X(10, q2_k, 256, 84)     \
    X(11, q3_k, 256, 110)    \
    X(12, q4_k, 256, 144)    \
    X(13, q5_k, 256, 176)    \
    X(14, q6_k, 256, 210)    \
    X(16, iq2_xxs, 256, 66)  \
    X(17, iq2_xs, 256, 74)   \
    X(18, iq3_xxs, 256, 98)  \
    X(19, iq1_s, 256, 50)    \
    X(20, iq4_nl, 32, 18)    \
    X(21, iq3_s, 256, 110)   \
    X(22, iq2_s, 256, 82)    \
    X(23, iq4_xs, 256, 136)  \
    X(29, iq1_m, 256, 56)    \
    X(30, bf16, 1, 2)        \
    X(34, tq1_0, 256, 54)    \
    X(35, tq2_0, 256, 66)    \
    X(39, mxfp4, 32, 17)     \
    X(40, nvfp4, 64, 36)     \
    X(41, q1_0, 128, 18)     \
    X(42, q2_0, 64, 18)      \
    X(142, pq2_0, 128, 34)

/* Expand n consecutive elements, a multiple of the type's block, from src (any alignment) to dst[n].
 * 0, or -1 for a type without expansion or an n that is negative or not a multiple. Bytes of any value are safe. */
int lmk_dequant_row(int32_t type, const void *src, float *dst, int64_t n);

/* Elements and bytes per block; -1 for a type without expansion. */
int64_t lmk_type_block(int32_t type);
int64_t lmk_type_bytes(int32_t type);

#endif
