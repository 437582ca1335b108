/* table.c: the public table. It is the same at every level, because an op finds its kernels through the context. */
#include "core.h"

static int aborted(lmk_ctx *c)
{
    return atomic_exchange(&c->abort, 0);
}

static void parallel_for(lmk_ctx *c, int64_t n, int64_t grain, lmk_range_fn fn, void *arg)
{
    (void)c;
    lmk_parallel(lmk_threads(), n, grain, fn, arg);
}

static lmk_api api = {
    .abi_major = LMK_ABI_MAJOR,
    .abi_minor = LMK_ABI_MINOR,
    .size = sizeof(lmk_api),
    .fail = lmk_fail,
    .aborted = aborted,
    .alloc = lmk_alloc,
    .mark = lmk_mark,
    .release = lmk_release,
    .parallel_for = parallel_for,
    .get_rows = lmk_get_rows,
    .linear = lmk_linear,
    .route = lmk_route_experts,
    .linear_experts = lmk_linear_experts,
    .moe_sum = lmk_moe_sum,
    .rms_norm = lmk_rms_norm,
    .silu_mul = lmk_silu_mul,
    .add = lmk_add,
    .add_bias = lmk_add_bias,
    .rope_angles = lmk_rope_angles,
    .rope = lmk_rope,
    .kv_append = lmk_kv_append,
    .attend = lmk_attend,
    .linear_many = lmk_linear_many,
    .gelu_mul = lmk_gelu_mul,
    .softcap = lmk_softcap,
    .linear_experts_many = lmk_linear_experts_many,
    .attend_biased = lmk_attend_biased,
    .sigmoid_mul = lmk_sigmoid_mul,
    .short_conv = lmk_short_conv,
    .delta_rule = lmk_delta_rule,
    .linear_add = lmk_linear_add,
    .linear_gated = lmk_linear_gated,
    .linear_experts_gated = lmk_linear_experts_gated,
    .norm_rope = lmk_norm_rope,
};

uintptr_t lmk_table(void)
{
    const lmk_kernels *k = lmk_kernels_for(NULL);
    if (!k) return 0;
    api.isa = k->isa;
    return (uintptr_t)&api;
}

void lmk_profile(int on)
{
    static lmk_api plain;
    if (!plain.size) plain = api;
    lmk_api next = plain;
    next.isa = api.isa;
    if (on) lmk_time_ops(&next);
    api = next;
}
