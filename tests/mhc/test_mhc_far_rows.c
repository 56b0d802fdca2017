/* SPDX-License-Identifier: MIT
 * Tokens, and streams, more than 2^32 elements apart: a case of every kernel whose rows may be strided, then the same with
 * one tensor moved; the outputs must have the same bits. */
#include "far_rows.h"

#define SIZES "num_tokens=3 num_streams=2 hidden=7,64"

static void tokens_and_streams(const char *op, const char *names, const char *names_of_streams, const char *line)
{
    check_far_in(0, op, names, line);
    check_far_in(1, op, names_of_streams, line);
}

TEST(expand)
{
    tokens_and_streams("mhc_expand_fwd", "x out", "out", SIZES);
    tokens_and_streams("mhc_expand_bwd", "grad_out grad_x", "grad_out", SIZES);
}

TEST(pre_apply_mix)
{
    tokens_and_streams("mhc_pre_apply_mix_fwd", "x out", "x", SIZES);
    tokens_and_streams("mhc_pre_apply_mix_bwd", "grad_out x grad_x", "x grad_x", SIZES " accumulate=0,1");
}

TEST(post)
{
    tokens_and_streams("mhc_post_fwd", "x residual out", "residual out", SIZES " comb=0,1");
    tokens_and_streams("mhc_post_bwd", "grad_out x residual grad_x grad_residual", "grad_out residual grad_residual",
                       SIZES);
    tokens_and_streams("mhc_post_bwd", "grad_out x grad_x", "grad_out", SIZES " comb=0");
}

TEST(multilayer_recompute)
{
    tokens_and_streams("mhc_multilayer_recompute", "residual", "residual", SIZES " num_layers=2");
}

/* any shape; a block per chunk, and clusters, of four streams of a tuned size */
TEST(norm_fn_fwd)
{
    tokens_and_streams("mhc_norm_fn_fwd", "residual", "residual", SIZES " sums=exact");
    tokens_and_streams("mhc_norm_fn_fwd", "residual", "residual", "num_tokens=2,33 hidden=1280 sums=exact");
}

TEST(pre_fwd)
{
    tokens_and_streams("mhc_pre_fwd", "residual out raw", "residual", SIZES " sums=exact norm=plain wanted=abcd");
    tokens_and_streams("mhc_pre_fwd", "residual out", "residual", "num_tokens=2,33 hidden=1280 sums=exact repeat=2");
}

TEST(pre_finish_fwd) { tokens_and_streams("mhc_pre_finish_fwd", "residual out", "residual", SIZES); }

/* rows of whole vectors go through the ring */
TEST(norm_fn_bwd)
{
    tokens_and_streams("mhc_norm_fn_bwd", "residual grad_residual", "residual grad_residual", SIZES " accumulate=0,1");
}

TEST(gates)
{
    check_far("mhc_pre_split_mixes_fwd", "mixes", "num_tokens=2 num_streams=2");
    check_far("mhc_pre_split_mixes_bwd", "mixes", "num_tokens=2 num_streams=2");
    check_far("mhc_head_compute_mix_fwd", "mixes", "num_tokens=2 num_streams=2");
    check_far("mhc_head_compute_mix_bwd", "mixes", "num_tokens=2 num_streams=2");
    check_far("mhc_split_sinkhorn_fwd", "mixes", "num_tokens=2 num_streams=2");
    check_far("mhc_split_sinkhorn_bwd", "mixes", "num_tokens=2 num_streams=2");
}
