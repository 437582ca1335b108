/* strings.c: the arrays of strings in a GGUF header: vocabularies and merges, some 300,000 strings of a few bytes.
 *
 * A string is a length of 8 bytes, little-endian, and its bytes. The file is untrusted: each length is compared with what is
 * left before it is believed, again when it is read again: the file may be changed meanwhile. Whether the bytes are text is the
 * caller's question.
 */
#include "core.h"

#include <string.h>

int64_t lmk_strings_end(const void *buf, int64_t size, int64_t pos, int64_t count)
{
    const uint8_t *p = buf;
    for (int64_t i = 0; i < count; i++) {
        uint64_t length;
        if (size - pos < 8) return -1;
        memcpy(&length, p + pos, 8);
        pos += 8;
        if (length > (uint64_t)(size - pos)) return -1;
        pos += (int64_t)length;
    }
    return pos;
}

int lmk_strings_join(const void *buf, int64_t pos, int64_t count, char *out, int64_t out_bytes)
{
    const uint8_t *p = (const uint8_t *)buf + pos;
    uint64_t left = (uint64_t)out_bytes;
    for (int64_t i = 0; i < count; i++) {
        uint64_t length;
        if (!left) return -1;
        memcpy(&length, p, 8);
        if (length >= left || memchr(p + 8, 0, length)) return -1;
        memcpy(out, p + 8, length);
        out[length] = 0;
        p += 8 + length;
        out += length + 1;
        left -= length + 1;
    }
    return left ? -1 : 0;
}
