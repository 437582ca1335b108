/* blocks.h: how the vectors of a KV cache lie in memory. What appends them, moves them and multiplies them shares it.
 *
 * A cache consists of tiles of 64 positions. A tile has one block for each layer and kv head, in this order, so that a
 * sequence grows at one end of the memory. A block of F32 and Q8_0 caches is 64 vectors, one after the other, a Q8_0
 * vector as in a file (blocks of an F16 scale and 32 int8).
 *
 * A block of an F16 cache has 64 bytes of exponents, one for each position, and integers. Element x of a vector with the
 * exponent e is 2^(e - 127 - bits) times an integer, with bits = 13 for keys and 14 for values: base * high + low, two
 * signed bytes, with base = 128 for keys and 256 for values. e = 255 says that the vector is not finite. These bytes lie as
 * the products want them, in pairs of lines of 64: high bytes, low bytes.
 *   - Keys: for each group of 16 positions and each four dimensions, the four bytes of each position.
 *   - Values: for each 16 columns and each j < 16, the bytes of positions j, j + 32, j + 16 and j + 48 of each column.
 */
#ifndef LMK_BLOCKS_H
#define LMK_BLOCKS_H

#include "core.h"

#define LMK_LINE 64                /* bytes of exponents, and of either half of a pair of lines */
#define LMK_KEY_BITS 13
#define LMK_VALUE_BITS 14
#define LMK_NOT_FINITE 255

/* Pairs of lines for a group of 16 keys, and for 64 values */
static inline int64_t lmk_key_pairs(int64_t k_dim) { return (k_dim + 3) / 4; }
static inline int64_t lmk_value_pairs(int64_t v_dim) { return (v_dim + LMK_LANES - 1) / LMK_LANES * LMK_LANES; }

/* Bytes of a block of keys, or of values; and of one vector that leaves the cache (cache.c) */
static inline int64_t lmk_block_bytes(int32_t dtype, int64_t dim, int keys)
{
    if (dtype == LMK_F16)
        return LMK_LINE + 2 * LMK_LINE * (keys ? LMK_TILE / LMK_LANES * lmk_key_pairs(dim) : lmk_value_pairs(dim));
    return LMK_TILE * (dim / lmk_type_block(dtype) * lmk_type_bytes(dtype));
}

static inline int64_t lmk_vector_bytes(int32_t dtype, int64_t dim)
{
    return dtype == LMK_F16 ? 1 + 2 * dim : lmk_block_bytes(dtype, dim, 0) / LMK_TILE;
}

/* Where the high bytes of a key's dimensions 4 quad ... 4 quad + 3 are, and the low ones LMK_LINE behind them */
static inline int64_t lmk_key_at(int64_t k_dim, int slot, int64_t quad)
{
    return LMK_LINE + (slot / LMK_LANES * lmk_key_pairs(k_dim) + quad) * 2 * LMK_LINE + slot % LMK_LANES * 4;
}

/* Where the high byte of a value's column is */
static inline int64_t lmk_value_at(int slot, int64_t column)
{
    static const int8_t byte[LMK_TILE / LMK_LANES] = { 0, 2, 1, 3 };
    return LMK_LINE + (column / LMK_LANES * LMK_LANES + slot % LMK_LANES) * 2 * LMK_LINE + column % LMK_LANES * 4 +
           byte[slot / LMK_LANES];
}

/* Floats that the sums of attention of so many pairs of row and head take (attend_float.h) */
static inline int64_t lmk_sums_size(int64_t pairs, int64_t v_dim)
{
    return pairs * (lmk_value_pairs(v_dim) + LMK_LANES) + (pairs + LMK_LANES - 1) / LMK_LANES * LMK_LANES;
}

#endif
