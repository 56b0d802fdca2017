/* SPDX-License-Identifier: MIT
 * mhc_host.h - the parts of the mHC ops that only the host needs. */
#ifndef TEGULA_MHC_HOST_H
#define TEGULA_MHC_HOST_H

#include "core/signature.h"
#include "mhc/common/gates.h"
#include "mhc/common/projection.h"
#include "tegula/mhc.h"

extern const tgl_params TGL_MHC_PARAMS;

/* Fields of tgl_mhc_params in a signature, and their values with defaults. */
#define MHC_SINKHORN                                                          \
    "has_sinkhorn_eps: bool, sinkhorn_eps: float >= 0 with has_sinkhorn_eps," \
    " sinkhorn_repeat: int in 0..2147483647 = 20"
#define MHC_PRE "has_pre_eps: bool, pre_eps: float >= 0 with has_pre_eps"
#define MHC_POST "has_post_mult: bool, post_mult: float >= 0 with has_post_mult, post_eps: float >= 0"
/* A size in parentheses is only compared: num_streams is defined by the dimension before. */
#define MHC_SQUARE "f32[num_tokens, num_streams, (num_streams)]"
/* Mixes of a token: n of pre, n of post, n * n of comb; of num_groups of them. */
#define MHC_MIXES "num_streams * (num_streams + 2 if num_groups > 2 else num_groups)"
#define MHC_RULES "num_streams in 1.." TGL_TEXT(MHC_MAX_STREAMS)
#define MHC_ROWS "num_rows in 1.." TGL_TEXT(PROJECTION_MAX_ROWS)
static inline float tgl_mhc_rms_eps(const tgl_mhc_params *p) { return p->has_rms_eps ? p->rms_eps : 1e-6f; }
static inline float tgl_mhc_sinkhorn_eps(const tgl_mhc_params *p)
{
    return p->has_sinkhorn_eps ? p->sinkhorn_eps : 1e-6f;
}
static inline int32_t tgl_mhc_sinkhorn_repeat(const tgl_mhc_params *p)
{
    return p->sinkhorn_repeat ? (int32_t)p->sinkhorn_repeat : 20;
}
static inline gates_numbers tgl_mhc_gates(const tgl_mhc_params *p)
{
    return (gates_numbers){ p->has_pre_eps ? p->pre_eps : 1e-6f, p->has_post_mult ? p->post_mult : 2, p->post_eps };
}

#endif
