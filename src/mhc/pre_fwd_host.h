/* SPDX-License-Identifier: MIT
 * pre_fwd_host.h - pre_fwd as an op, for norm_fn_fwd, too. */
#ifndef TEGULA_MHC_PRE_FWD_HOST_H
#define TEGULA_MHC_PRE_FWD_HOST_H

#include "cuda/op.h"
#include "mhc/pre_fwd.h"

typedef struct {
    pre_fwd_args args;
    /* filled in by the launch */
    pre_stream_args stream;
    tgl_copied_tensor copied;
    tgl_shape any;
    tgl_other_launch otherwise;
} pre_problem;
extern const tgl_op TGL_PRE_FWD; /* on pre_problem */

/* Fills in what comes from these tensors. Their shapes have been checked. */
void tgl_pre_take(pre_fwd_args *a, const DLTensor *residual, const DLTensor *fn, const DLTensor *norm_weight,
                  void *workspace);

#endif
