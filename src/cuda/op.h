/* SPDX-License-Identifier: MIT
 * op.h - the way of every call: log, checks, then the CPU loop, or the choice of a kernel and its launch.
 *
 *     tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
 *     {
 *         const DLTensor *tensors[] = { x, out };
 *         TGL_TRY(tgl_take(&SIGNATURE, tensors, NULL, NULL));
 *         problem p = { ... };
 *         return tgl_run(&SIGNATURE, &OP, tensors, &p, stream);
 *     }
 *
 * The problem is the op's own struct: what its functions need to know of the call. It is made of empty
 * tensors too, whose data may be NULL. */
#ifndef TEGULA_OP_H
#define TEGULA_OP_H

#include "core/signature.h"
#include "cuda/launch.h"

enum { TGL_MAX_PLAN = 10 };

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
    /* The first that fits and pays is launched, or the last that fits; of every call one must. Kernels of a plan
     * without a shape are only loaded: other ops launch them. */
    tgl_candidate candidates[TGL_MAX_PLAN];
} tgl_op;

/* Logs a call and checks it against the signature. `params` and `sizes` as for tgl_check(). */
tgl_status tgl_take(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes);

/* Runs a call that was taken, on the device of its first tensor. Where there is nothing to write, nothing is
 * done; in prepare mode kernels are loaded, and that is all. */
tgl_status tgl_run(tgl_signature *s, const tgl_op *op, const DLTensor *const *tensors, void *problem,
                   tgl_stream stream);

/* The second half of tgl_run(): chooses a kernel and launches it on the device of `on`, or loads the plan. */
tgl_status tgl_run_on_cuda(const tgl_op *op, void *problem, const DLTensor *on, tgl_stream stream);

/* Which candidate? Tests put another function in its place, to reach kernels that do not pay with small sizes. */
int tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
               const tgl_target *target);

#endif
