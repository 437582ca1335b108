/* error.c: the sentence that the last failing call of this thread left behind. */
#include "core.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[512];

int lmk_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return -1;
}

const char *lmk_last_error(void)
{
    return sentence;
}
