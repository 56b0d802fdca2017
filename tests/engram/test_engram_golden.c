/* SPDX-License-Identifier: MIT
 * The Engram ops against recorded data. */
#include "core/tensor.h"
#include "golden.h"
#include "ops.h"
#include "tegula/engram.h"

static tgl_status hash(const golden_call *c)
{
    return tgl_engram_hash(golden_arg(c, "ngram_token_ids"), golden_arg(c, "multipliers"), golden_arg(c, "vocab_sizes"),
                           golden_arg(c, "offsets"), NULL, golden_arg(c, "out"), c->call->stream);
}

static tgl_status fused_weight(const golden_call *c)
{
    return tgl_engram_fused_weight(golden_arg(c, "weight_hidden"), golden_arg(c, "weight_embed"), golden_arg(c, "out"),
                                   c->call->stream);
}

static tgl_status gate_fwd(const golden_call *c)
{
    const tgl_engram_gate_params params = { .eps = (float)golden_double(c->golden, "eps"),
                                            .clamp_value = (float)golden_double(c->golden, "clamp_value") };
    return tgl_engram_gate_fwd(golden_arg(c, "hidden_states"), golden_arg(c, "k"), golden_arg(c, "v"),
                               golden_arg(c, "weight_fused"), NULL, NULL, golden_arg(c, "output"), golden_arg(c, "dot"),
                               golden_arg(c, "gate_score"), golden_arg(c, "rstd_x"), golden_arg(c, "rstd_k"), &params,
                               c->call->stream);
}

/* The two gradients of weights follow from the partials, which are not recorded. */
static tgl_status gate_bwd(const golden_call *c)
{
    const tgl_engram_gate_params params = { .clamp_value = (float)golden_double(c->golden, "clamp_value") };
    const DLTensor *x = golden_arg(c, "hidden_states");
    const backend b = { .device = x->device, .stream = c->call->stream };
    const int64_t shape[] = { 2, x->shape[1], x->shape[2] };
    DLTensor *grads[] = { golden_arg(c, "grad_weight_hidden"), golden_arg(c, "grad_weight_embed") };
    tensor partial;
    place(&b, &partial, TGL_F32, 3, shape, NULL);
    void *zeros = calloc((size_t)(shape[1] * shape[2]), 4);
    for (int i = 0; i < 2; i++)
        CHECK_OK(backend_upload(&b, tgl_data(grads[i]), zeros, (size_t)(shape[1] * shape[2] * 4)));
    free(zeros);
    const tgl_status status =
        tgl_engram_gate_bwd(golden_arg(c, "grad_out"), x, golden_arg(c, "k"), golden_arg(c, "v"),
                            golden_arg(c, "weight_fused"), NULL, NULL, golden_arg(c, "dot"),
                            golden_arg(c, "gate_score"), golden_arg(c, "rstd_x"), golden_arg(c, "rstd_k"),
                            golden_arg(c, "grad_hidden_states"), golden_arg(c, "grad_k"), golden_arg(c, "grad_v"),
                            &partial.t, &params, c->call->stream);
    if (status == TGL_OK)
        CHECK_OK(tgl_engram_grad_w_reduce(&partial.t, golden_arg(c, "weight_hidden"), golden_arg(c, "weight_embed"),
                                          grads[0], grads[1], false, c->call->stream));
    CHECK_OK(backend_wait(&b, c->call->stream));
    discard(&b, &partial);
    return status;
}

static tgl_status grad_w_reduce(const golden_call *c)
{
    return tgl_engram_grad_w_reduce(golden_arg(c, "grad_w_partial"), golden_arg(c, "weight_hidden"),
                                    golden_arg(c, "weight_embed"), golden_arg(c, "grad_weight_hidden"),
                                    golden_arg(c, "grad_weight_embed"), false, c->call->stream);
}

static void check_recorded(const char *op, golden_run run, int want_count)
{
    int count = 0;
    for (const golden_case *g; (g = golden_at("engram", op, count)); count++)
        FOR_BACKENDS(b) {
            case_report report;
            golden_check(g, run, b, &report);
            CHECK_THAT(report.result == CASE_PASSED, "%s: %s %s: %s", b->name, g->op, g->name, report.text);
        }
    CHECK_INT(count, want_count);
}

TEST(engram_hash) { check_recorded("engram_hash", hash, 7); }
TEST(fused_weight) { check_recorded("fused_weight", fused_weight, 3); }
TEST(engram_gate_fwd) { check_recorded("engram_gate_fwd", gate_fwd, 8); }
TEST(engram_gate_bwd) { check_recorded("engram_gate_bwd", gate_bwd, 8); }
TEST(grad_w_reduce) { check_recorded("grad_w_reduce", grad_w_reduce, 4); }
