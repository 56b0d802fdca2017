/* SPDX-License-Identifier: MIT
 * wrapped_launch.h - tgl_launch() and others in programs whose linker replaces them (--wrap): the replacement and the
 * library's own. */
#ifndef TEGULA_TEST_WRAPPED_LAUNCH_H
#define TEGULA_TEST_WRAPPED_LAUNCH_H

#include "cuda/op.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __real_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __wrap_tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream);
int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);
int __real_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);

/* Launches plan[which] without loading the rest of the plan, except for what replaces it if its clusters do not fit. */
static inline tgl_status launch_alone(const tgl_kernel *plan, int which, const DLTensor *on, const tgl_shape *shape,
                                      tgl_stream stream)
{
    if (!shape->otherwise) return __real_tgl_launch(&plan[which], 1, 0, on, shape, stream);
    const tgl_kernel both[] = { plan[which], plan[shape->otherwise->which] };
    const tgl_other_launch second = { 1, shape->otherwise->shape };
    tgl_shape first = *shape;
    first.otherwise = &second;
    return __real_tgl_launch(both, 2, 0, on, &first, stream);
}

/* Fills in the indices of the kernels that can do a call -> their number. */
static inline int list_fitting(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                               const tgl_target *target, int fitting[TGL_MAX_PLAN])
{
    int n = 0;
    for (int i = 0; i < num_kernels; i++) {
        const tgl_candidate *c = &op->candidates[i];
        if (plan[i].name && c->shape && (!c->fits || c->fits(problem, target))) fitting[n++] = i;
    }
    return n;
}

/* The last choice between kernels, as launch_alone.c (in programs that have it) saw it: how many kernels could do the call,
 * and the index of the chosen one among them. Of several choices since num_fitting was 0, the one between the most. */
typedef struct { int num_fitting, chosen; } test_choices;
extern test_choices test_choice __attribute__((weak));

#endif
