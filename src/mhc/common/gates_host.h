/* SPDX-License-Identifier: MIT
 * gates_host.h - the two directions of gates as ops, for any groups. */
#ifndef TEGULA_MHC_GATES_HOST_H
#define TEGULA_MHC_GATES_HOST_H

#include "cuda/op.h"
#include "mhc/common/gates.h"

extern const tgl_op TGL_GATES_FWD, TGL_GATES_BWD;

size_t tgl_gates_bwd_workspace_size(const DLTensor *mixes);
/* Checks a workspace and gives it to the problem. */
tgl_status tgl_gates_take_workspace(gates_bwd_args *a, const DLTensor *mixes, void *workspace, size_t workspace_bytes);

#endif
