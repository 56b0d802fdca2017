/* SPDX-License-Identifier: MIT
 * launch_alone.c - with TEGULA_TEST_SHARE, a launch that leaves the rest of its plan alone; with TEGULA_TEST_GRID, fewer
 * blocks for kernels that stride over their work; with TEGULA_TEST_KERNEL, a kernel that would not have been chosen.
 *
 * An op's first launch compiles its whole plan, so that later calls of other sizes need not. On the emulated
 * device, where compiling is what tests cost, a third of the kernels that lists of cases compile that way is
 * launched by none of them, and other tests compile more of the kind. The linker puts this in the place of
 * tgl_launch() (--wrap). A test that needs the plan fails: what is captured in a graph must not compile. */
#include <stdlib.h>

#include "cuda/jit.h"
#include "cuda/op.h"
#include "wrapped_launch.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream)
{
    if (!getenv("TEGULA_TEST_SHARE") || tgl_preparing())
        return __real_tgl_launch(plan, num_kernels, which, on, shape, stream);
    return launch_alone(plan, which, on, shape, stream);
}

/* TEGULA_TEST_GRID=2: at most 2 blocks (along an axis) where a kernel has a loop for the rest, which else only sizes
 * beyond a test's means would take a second time. */
int64_t __wrap_tgl_strided_grid(int64_t blocks, int64_t most);
int64_t __real_tgl_strided_grid(int64_t blocks, int64_t most);
int64_t __wrap_tgl_strided_grid(int64_t blocks, int64_t most)
{
    const char *limit = getenv("TEGULA_TEST_GRID");
    const int64_t grid = __real_tgl_strided_grid(blocks, most);
    return limit && atoi(limit) > 0 && grid > atoi(limit) ? atoi(limit) : grid;
}

/* TEGULA_TEST_KERNEL=5: number 5 of the kernels that can do the call, counted round and round, whether it pays or not: so
 * small cases reach those that are for large ones. */
test_choices test_choice;
int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);
int __real_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target);
int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target)
{
    const char *wanted = getenv("TEGULA_TEST_KERNEL");
    const int chosen = __real_tgl_choose(op, plan, num_kernels, problem, target);
    int fitting[TGL_MAX_PLAN], n = 0, at = 0;
    for (int i = 0; i < num_kernels; i++) {
        const tgl_candidate *c = &op->candidates[i];
        if (!plan[i].name || !c->shape || (c->fits && !c->fits(problem, target))) continue;
        if (i == chosen) at = n;
        fitting[n++] = i;
    }
    if (test_choice.num_fitting < n) test_choice = (test_choices){ n, at };
    return wanted && n ? fitting[strtoul(wanted, NULL, 10) % (unsigned)n] : chosen;
}
