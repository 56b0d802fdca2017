/* SPDX-License-Identifier: MIT
 * gates_host.h - the two directions of gates as ops, for any groups. */
#ifndef TEGULA_MHC_GATES_HOST_H
#define TEGULA_MHC_GATES_HOST_H

#include "cuda/op.h"
#include "mhc/common/gates.h"
#include "tegula/mhc.h"

extern const tgl_op TGL_GATES_FWD, TGL_GATES_BWD;

/* The backward. Tokens of grad_out[2] are comb_stride floats apart; it may lie in grad_mixes, at its columns. */
tgl_status tgl_gates_bwd_on_cpu(const gates_bwd_args *a, int64_t comb_stride);
/* A launch of the backward's chunks. */
tgl_shape tgl_gates_bwd_shape(const gates_bwd_args *a, int block, int64_t shared_bytes, const void *args, size_t size);
/* From a backward's tensors: mixes, scale, base, three gradients that arrive, the last named `comb`, three that are made. */
tgl_status tgl_gates_take_grads(gates_bwd_args *a, const DLTensor *const *tensors, const char *comb, int64_t num_tokens,
                                int64_t num_columns, int64_t num_streams, const tgl_mhc_params *params);
size_t tgl_gates_bwd_workspace_size(const DLTensor *mixes);
/* Checks a workspace and gives it to the problem. */
tgl_status tgl_gates_take_workspace(gates_bwd_args *a, const DLTensor *mixes, void *workspace, size_t workspace_bytes);

#endif
