/* SPDX-License-Identifier: MIT
 * wrapped_launch.h - tgl_launch(), tgl_load() in programs that the linker gives others in their place (--wrap):
 * theirs, and the library's. */
#ifndef TEGULA_TEST_WRAPPED_LAUNCH_H
#define TEGULA_TEST_WRAPPED_LAUNCH_H

#include "cuda/launch.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __real_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream);
tgl_status __wrap_tgl_load(const tgl_kernel *plan, int num_kernels, const DLTensor *on, tgl_stream stream);

/* A launch that leaves the rest of its plan alone, but for what is launched where the device has no room for a cluster. */
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

/* What launch_alone.c, where a program has it, saw of choices between kernels since num_fitting was 0: so many could do the
 * call, and the op chose this one of them. If there are several choices, the first of the most kernels. */
typedef struct { int num_fitting, chosen; } test_choices;
extern test_choices test_choice __attribute__((weak));

#endif
