/* SPDX-License-Identifier: MIT
 * op.h - the path of every call: log, checks, then the CPU loop, or the choice of a kernel and its launch.
 *
 *     tgl_status tgl_transpose(const DLTensor *x, DLTensor *out, tgl_stream stream)
 *     {
 *         const DLTensor *tensors[] = { x, out };
 *         TGL_TRY(tgl_take(&SIGNATURE, tensors, NULL, NULL));
 *         problem p = { ... };
 *         return tgl_run(&SIGNATURE, &OP, tensors, &p, stream);
 *     }
 *
 * The problem is the op's own struct: what its functions need to know of the call. Tensors may be empty,
 * with NULL data. */
#ifndef TEGULA_OP_H
#define TEGULA_OP_H

#include "core/signature.h"
#include "cuda/launch.h"

enum { TGL_MAX_PLAN = 10 };

/* One of an op's kernels. */
typedef struct {
    /* Can it run this call at all? NULL: any. */
    bool (*fits)(const void *problem, const tgl_target *target);
    /* Is it faster than the following ones? A measured threshold: only time depends on it. NULL: yes. */
    bool (*pays)(const void *problem, const tgl_target *target);
    /* Its launch shape, with its arguments (TGL_ARGS), which live in the problem. */
    tgl_shape (*shape)(void *problem, const tgl_target *target);
} tgl_candidate;

typedef struct {
    tgl_status (*cpu)(const void *problem);
    /* Fills in the kernels of a configuration (dtypes, flags, sizes fixed by the model), in the order of the
     * candidates, and returns their number. No name: that candidate does not apply. */
    int (*plan)(const void *problem, tgl_kernel kernels[TGL_MAX_PLAN]);
    /* The first candidate that fits and pays is launched, otherwise the last that fits; one must. A candidate whose
     * clusters do not fit, and that has no alternative launch, is left out. Kernels without a shape are only loaded:
     * other ops launch them. */
    tgl_candidate candidates[TGL_MAX_PLAN];
} tgl_op;

/* Logs a call and checks it against the signature. `params` and `sizes` as for tgl_check(). */
tgl_status tgl_take(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes);

/* Runs a call that passed tgl_take(), on the device of the signature's first tensor that is neither optional nor
 * allowed elsewhere. If all outputs are empty, does nothing; in prepare mode, only loads kernels. */
tgl_status tgl_run(tgl_signature *s, const tgl_op *op, const DLTensor *const *tensors, void *problem,
                   tgl_stream stream);

/* The CUDA half of tgl_run(): chooses a kernel and launches it on the device of `on`, or loads the plan. */
tgl_status tgl_run_on_cuda(const tgl_op *op, void *problem, const DLTensor *on, tgl_stream stream);

/* The candidate to launch, or -1. Tests replace this function, to reach kernels that do not pay at small
 * sizes. */
int tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
               const tgl_target *target);

#endif
