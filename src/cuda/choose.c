/* SPDX-License-Identifier: MIT
 * choose.c - chooses a kernel of a plan. A file of its own, so that tests can link another one instead. */
#include "cuda/op.h"

int tgl_choose(const tgl_op *op, const tgl_kernel *plan, int num_kernels, const void *problem, const tgl_target *target)
{
    int last = -1;
    for (int i = 0; i < num_kernels; i++) {
        const tgl_candidate *c = &op->candidates[i];
        if (!plan[i].name || !c->shape || (c->fits && !c->fits(problem, target))) continue;
        if (!c->pays || c->pays(problem, target)) return i;
        last = i;
    }
    return last;
}
