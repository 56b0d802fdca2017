/* SPDX-License-Identifier: MIT
 * launch_alone.c - with TEGULA_TEST_SHARE, a launch loads no other kernel of its plan; with TEGULA_TEST_GRID, kernels with
 * a grid-stride loop have fewer blocks; with TEGULA_TEST_KERNEL, another kernel is chosen.
 *
 * An op's first launch compiles its whole plan, so that later calls of other sizes need not. On the emulated device, where
 * compiling is most of a test's cost, no case would launch a third of those kernels. The linker replaces tgl_launch() and
 * others (--wrap). A test that needs the plan would fail: nothing compiles during a capture. */
#include <stdlib.h>

#include "cuda/jit.h"
#include "wrapped_launch.h"

tgl_status __wrap_tgl_launch(const tgl_kernel *plan, int num_kernels, int which, const DLTensor *on,
                             const tgl_shape *shape, tgl_stream stream)
{
    if (!getenv("TEGULA_TEST_SHARE") || tgl_preparing())
        return __real_tgl_launch(plan, num_kernels, which, on, shape, stream);
    return launch_alone(plan, which, on, shape, stream);
}

/* TEGULA_TEST_GRID=2: at most 2 blocks (along an axis) for a kernel with a grid-stride loop, so that small sizes make it
 * run more than once. */
int64_t __wrap_tgl_strided_grid(int64_t blocks, int64_t max);
int64_t __real_tgl_strided_grid(int64_t blocks, int64_t max);
int64_t __wrap_tgl_strided_grid(int64_t blocks, int64_t max)
{
    const char *limit = getenv("TEGULA_TEST_GRID");
    const int64_t grid = __real_tgl_strided_grid(blocks, max);
    return limit && atoi(limit) > 0 && grid > atoi(limit) ? atoi(limit) : grid;
}

/* TEGULA_TEST_KERNEL=5: number 5 (modulo their number) of the kernels that can do the call, whether it pays or not, so that
 * small cases reach the kernels for large ones. */
test_choices test_choice;
int __wrap_tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem,
                      const tgl_target *target)
{
    const char *wanted = getenv("TEGULA_TEST_KERNEL");
    const int chosen = __real_tgl_choose(op, plan, num_kernels, problem, target);
    int fitting[TGL_MAX_PLAN], at = 0;
    const int n = list_fitting(op, plan, num_kernels, problem, target, fitting);
    while (at < n && fitting[at] != chosen) at++;
    if (test_choice.num_fitting < n) test_choice = (test_choices){ n, at };
    return wanted && n ? fitting[strtoul(wanted, NULL, 10) % (unsigned)n] : chosen;
}
