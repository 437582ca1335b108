/* level_i8mm.c: NEON with dot products and i8mm. */
#define LMK_I8MM
#include "level_neon.c"
