/* SPDX-License-Identifier: MIT
 * op.c - the path of every call. */
#include "cuda/op.h"

#include "core/signature_table.h"

tgl_status tgl_take(tgl_signature *s, const DLTensor *const *tensors, const void *params, int64_t *sizes)
{
    tgl_log_signature(s, tensors);
    return tgl_check(s, tensors, params, sizes);
}

tgl_status tgl_run(tgl_signature *s, const tgl_op *op, const DLTensor *const *tensors, void *problem, tgl_stream stream)
{
    if (!tgl_preparing() && tgl_writes_nothing(s, tensors)) return TGL_OK; /* data may be NULL */
    const DLTensor *on = tensors[tgl_signature_table(s)->home];
    if (!tgl_on_cpu(on)) return tgl_run_on_cuda(op, problem, on, stream);
    return tgl_preparing() ? TGL_OK : op->cpu(problem);
}

tgl_status tgl_run_on_cuda(const tgl_op *op, void *problem, const DLTensor *on, tgl_stream stream)
{
    tgl_kernel plan[TGL_MAX_PLAN];
    const int num_kernels = op->plan(problem, plan);
    if (tgl_preparing()) return tgl_load(plan, num_kernels, on, stream);
    tgl_target target;
    TGL_TRY(tgl_target_of(on, &target));
    tgl_status status = TGL_OK;
    for (;;) {
        const int which = tgl_choose(op, plan, num_kernels, problem, &target);
        if (which < 0 && status != TGL_OK) return status;
        if (which < 0) return tgl_fail(TGL_ERR_INTERNAL, "no kernel fits this call; please report this");
        tgl_shape shape = op->candidates[which].shape(problem, &target);
        bool is_refused = false;
        shape.is_refused = &is_refused;
        status = tgl_launch(plan, num_kernels, which, on, &shape, stream);
        if (!is_refused) return status;
        /* This context has fewer SMs than its device. */
        if (shape.cluster > 1 && !shape.otherwise)
            plan[which].name = NULL; /* fewer SMs would not make clusters smaller: another kernel */
        else if (target.num_sms > 1) target.num_sms /= 2;
        else return status;
    }
}
