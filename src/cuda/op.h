/* SPDX-License-Identifier: MIT
 * op.h - the way of every call: the CPU loop, or the choice of a kernel and its launch.
 *
 * The problem is the op's own struct: what its functions need to know of the call. It is made of empty
 * tensors too, whose data may be NULL. */
#ifndef TEGULA_OP_H
#define TEGULA_OP_H

#include "cuda/launch.h"

enum { TGL_MAX_PLAN = 8 };

/* One of an op's kernels. */
typedef struct {
    /* Can it do this call at all? NULL: any. */
    bool (*fits)(const void *problem, const tgl_target *target);
    /* Is it faster than those that follow? Measured: nothing but time depends on it. NULL: yes. */
    bool (*pays)(const void *problem, const tgl_target *target);
    /* Its launch shape. Its arguments (TGL_ARGS) live in the problem, where this completes them. */
    tgl_shape (*shape)(void *problem, const tgl_target *target);
} tgl_candidate;

typedef struct {
    tgl_status (*cpu)(const void *problem);
    /* Fills in the kernels of a configuration (dtypes, flags, sizes that a model fixes), in the order of the
     * candidates, and gives their number. One without a name is none: that candidate does not apply. */
    int (*plan)(const void *problem, tgl_kernel kernels[TGL_MAX_PLAN]);
    /* The first that fits and pays is launched; the last that a plan has does, always. */
    tgl_candidate candidates[TGL_MAX_PLAN];
} tgl_op;

/* Chooses a kernel and launches it on the device of `on`; in prepare mode loads the plan, and that is all. */
tgl_status tgl_run_on_cuda(const tgl_op *op, void *problem, const DLTensor *on, tgl_stream stream);

/* Which candidate? Tests put another function in its place, to reach kernels that do not pay with small sizes. */
int tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
               const tgl_target *target);

#endif
