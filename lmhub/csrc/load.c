/* load.c: packs a file's weights slice by slice and gives the file's pages back behind each slice.
 *
 * One call packs many slices: whoever loads a model has other threads that run Python, and between two slices would wait
 * for the interpreter. Knows no file: what it gives back are the pages that a slice lies in, whatever they map.
 */
#if defined(__linux__) && !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#include "core.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

static void give_back(const void *data, int64_t bytes)
{
#if defined(__linux__)
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data & ~(page - 1);
    madvise((void *)begin, (uintptr_t)data + (uintptr_t)bytes - begin, MADV_DONTNEED);
#else
    (void)data, (void)bytes;
#endif
}

int lmk_pack_slices(const lmk_slice *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int failed = lmk_pack(&s[i].w, s[i].dst);
        if (failed) return failed;
        give_back(s[i].w.data, s[i].bytes);
    }
    return 0;
}
