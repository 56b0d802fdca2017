/* SPDX-License-Identifier: MIT
 * mhc_support.h - what the tests of the mHC ops share. */
#ifndef TEGULA_TEST_MHC_SUPPORT_H
#define TEGULA_TEST_MHC_SUPPORT_H

#include "calls.h"
#include "replay.h"
#include "tegula/mhc.h"

/* The i-th of a sequence of numbers with mean 0 and deviation 1. */
static inline double normal(uint64_t seed, int64_t i)
{
    double sum = -6;
    for (int k = 0; k < 12; k++) sum += (double)(case_random(seed + (uint64_t)k, i) >> 11) * 0x1p-53;
    return sum;
}

/* The blocks of an op and its gradient. */
#define TESTS_OF_TABLES(op_name)                                                                      \
    TEST(check_list)                                                                                  \
    {                                                                                                 \
        FOR_BACKENDS(b) check_lines(op_name "_fwd", case_find(op_name "_fwd")->lists[CASE_CHECK], b); \
    }                                                                                                 \
    TEST(check_list_bwd)                                                                              \
    {                                                                                                 \
        FOR_BACKENDS(b) check_lines(op_name "_bwd", case_find(op_name "_bwd")->lists[CASE_CHECK], b); \
    }                                                                                                 \
    TEST(slow_list)                                                                                   \
    {                                                                                                 \
        if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");                                        \
        FOR_BACKENDS(b) {                                                                             \
            if (b->is_emulated) continue;                                                             \
            check_lines(op_name "_fwd", case_find(op_name "_fwd")->lists[CASE_SLOW], b);              \
            check_lines(op_name "_bwd", case_find(op_name "_bwd")->lists[CASE_SLOW], b);              \
        }                                                                                             \
    }

/* ---- calls ---- */

/* The columns of norm_fn_finish_fwd. */
static int64_t num_columns = 100;

OP(mhc_expand_fwd, t[0], t[1])
OP(mhc_expand_bwd, t[0], t[1])
OP(mhc_head_compute_mix_fwd, t[0], t[1], t[2], t[3], params)
OP_WITH_WORKSPACE(mhc_head_compute_mix_bwd, (t[0]), t[0], t[1], t[2], t[3], t[4], t[5], t[6])
OP_WITH_WORKSPACE(mhc_norm_fn_fwd, (t[0], t[1]), t[0], t[1], t[2], t[3], t[4], t[5], params)
OP_WITH_WORKSPACE(mhc_norm_fn_bwd, (t[1], t[2]), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)
OP_WITH_WORKSPACE(mhc_norm_fn_parts_fwd, (t[0], t[1]), t[0], t[1], t[2], t[3], t[4])
OP(mhc_norm_fn_finish_fwd, t[0], t[1], t[2], t[3], t[4], num_columns, params)
OP(mhc_post_fwd, t[0], t[1], t[2], t[3], t[4])
OP(mhc_post_bwd, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8])
OP(mhc_pre_apply_mix_fwd, t[0], t[1], t[2])
OP(mhc_pre_apply_mix_bwd, t[0], t[1], t[2], t[3], t[4], params && *(const bool *)params)
OP(mhc_pre_finish_fwd, t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)
OP_WITH_WORKSPACE(mhc_pre_fwd, (t[0], t[1]), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], t[9], t[10], t[11],
                  t[12], t[13], params)
OP(mhc_pre_split_mixes_fwd, t[0], t[1], t[2], t[3], t[4], t[5], params)
OP_WITH_WORKSPACE(mhc_pre_split_mixes_bwd, (t[0]), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)
OP(mhc_sinkhorn_fwd, t[0], t[1], params)
OP(mhc_sinkhorn_bwd, t[0], t[1], t[2], params)
OP(mhc_split_sinkhorn_fwd, t[0], t[1], t[2], t[3], t[4], t[5], params)
OP_WITH_WORKSPACE(mhc_split_sinkhorn_bwd, (t[0]), t[0], t[1], t[2], t[3], t[4], t[5], t[6], t[7], t[8], params)

#define PARAMS(...) (&(tgl_mhc_params){ __VA_ARGS__ })
/* An argument of f32, exact or within a bound, and one of bf16. */
#define F32(contents, ...) IN(TGL_F32, contents, __VA_ARGS__)
#define F32_NEAR(want, bound, ...) NEAR(TGL_F32, want, bound, 0, __VA_ARGS__)
#define BF16(floats, ...) FLOATS(TGL_BF16, floats, __VA_ARGS__)
#define BF16_IS(want, ...) NEAR(TGL_BF16, want, 0, 0, __VA_ARGS__)

#endif
