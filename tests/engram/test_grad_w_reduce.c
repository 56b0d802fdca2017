/* SPDX-License-Identifier: MIT
 * tgl_engram_grad_w_reduce, on every device of the tests: partials are added in the order defined, and go crosswise to
 * the gradients of the two weights. test_gate_bwd.c has it behind the gate. */
#include "gate_support.h"

TESTS_OF_TABLE("engram_grad_w_reduce")

static void reduce(const backend *b, int64_t partials, const float *partial, float wh, float we, bool zero_centered,
                   float *to_hidden, float *to_embed, int times)
{
    tensor p, h, e, gh, ge;
    place(b, &p, TGL_F32, 3, SHAPE(partials, 1, 1), partial);
    put(b, &h, TGL_BF16, 2, SHAPE(1, 1), &wh);
    put(b, &e, TGL_BF16, 2, SHAPE(1, 1), &we);
    place(b, &gh, TGL_F32, 2, SHAPE(1, 1), to_hidden);
    place(b, &ge, TGL_F32, 2, SHAPE(1, 1), to_embed);
    for (int i = 0; i < times; i++)
        CHECK_OK(tgl_engram_grad_w_reduce(&p.t, &h.t, &e.t, &gh.t, &ge.t, zero_centered, b->stream));
    fetch(b, &gh, to_hidden), fetch(b, &ge, to_embed);
    discard(b, &p), discard(b, &h), discard(b, &e);
}

TEST(worked_example)
{
    /* doc: grad_w_reduce */
    const float partial[] = { 1, 2, /**/ 0.5f, -1, /**/ 0.25f, 0 }, wh[] = { 2, -1 }, we[] = { 0.5f, 4 };
    const float grad_hidden[] = { 10, 20 }, grad_embed[] = { -1, 0 }; /* before; the sums are 1.75 and 1 */
    const float want_hidden[] = { 10.875f, 24 }, want_embed[] = { 2.5f, -1 };
    /* end */
    FOR_BACKENDS(b) {
        tensor p, h, e, gh, ge;
        place(b, &p, TGL_F32, 3, SHAPE(3, 1, 2), partial);
        put(b, &h, TGL_BF16, 2, SHAPE(1, 2), wh);
        put(b, &e, TGL_BF16, 2, SHAPE(1, 2), we);
        place(b, &gh, TGL_F32, 2, SHAPE(1, 2), grad_hidden);
        place(b, &ge, TGL_F32, 2, SHAPE(1, 2), grad_embed);
        CHECK_OK(tgl_engram_grad_w_reduce(&p.t, &h.t, &e.t, &gh.t, &ge.t, false, b->stream));
        check_contents(b, &gh, want_hidden, "grad_weight_hidden");
        check_contents(b, &ge, want_embed, "grad_weight_embed");
        discard(b, &p), discard(b, &h), discard(b, &e);
    }
}

TEST(crosswise_and_accumulating)
{
    const float partial[] = { 1, 2, 4 };
    FOR_BACKENDS(b)
        for (int times = 1; times < 3; times++) {
            float gh = 10, ge = 20;
            reduce(b, 3, partial, 3, 5, false, &gh, &ge, times);
            CHECK(gh == 10 + 35 * (float)times && ge == 20 + 21 * (float)times);
        }
}

TEST(one_is_added) /* in f32 */
{
    const float partial[] = { 1 };
    FOR_BACKENDS(b) {
        float gh = 0, ge = 0;
        reduce(b, 1, partial, 0x1p-9f, 0x1p-10f, true, &gh, &ge, 1);
        CHECK(gh == 1 + 0x1p-10f && ge == 1 + 0x1p-9f);
    }
}

/* Eight sums (partials p, p + 8, ...) are added up in order. Which of the small numbers are lost shows when they were
 * added to 2^24. */
TEST(order_of_sums)
{
    static const struct {
        int64_t partials, big_at;
        int step; /* small numbers are at 0, step, ... */
        float want;
    } cases[] = {
        { 8, 0, 1, 16777216 },       /* one after the other to the big one: all lost */
        { 8, 7, 1, 16777216 + 8 },   /* 7, then the big one */
        { 16, 0, 1, 16777216 + 14 }, /* one lost in its sum, then seven times 2 */
        { 24, 0, 8, 16777216 },      /* of one sum, all lost */
        { 24, 16, 8, 16777216 + 2 }, /* of one sum, 2, then the big one */
    };
    FOR_BACKENDS(b)
        for (size_t n = 0; n < sizeof cases / sizeof *cases; n++) {
            float partial[24] = { 0 }, gh = 0, ge = 0;
            for (int i = 0; i < 24; i += cases[n].step) partial[i] = 1;
            partial[cases[n].big_at] = 16777216;
            reduce(b, cases[n].partials, partial, 1, 1, false, &gh, &ge, 1);
            CHECK(gh == cases[n].want && ge == cases[n].want);
        }
}

TEST(no_partials)
{
    const float none = 0;
    FOR_BACKENDS(b) {
        float gh = 7, ge = 7;
        reduce(b, 0, &none, 1, 1, false, &gh, &ge, 1);
        CHECK(gh == 7 && ge == 7);
    }
}

static tgl_status call_again(void *context)
{
    DLTensor **t = context;
    return tgl_engram_grad_w_reduce(t[0], t[1], t[2], t[3], t[4], false, ((backend *)(void *)t[5])->stream);
}

TEST(graph) /* every replay adds */
{
    const float partial[] = { 1, 2 }, weight = 3;
    FOR_BACKENDS(b) {
        float zero = 0, seen = 0;
        tensor p, h, e, gh, ge;
        if (!backend_has_graphs(b)) {
            test_skip("%s has no graphs", b->name);
            continue;
        }
        place(b, &p, TGL_F32, 3, SHAPE(2, 1, 1), partial);
        put(b, &h, TGL_BF16, 2, SHAPE(1, 1), &weight);
        put(b, &e, TGL_BF16, 2, SHAPE(1, 1), &weight);
        place(b, &gh, TGL_F32, 2, SHAPE(1, 1), &zero);
        place(b, &ge, TGL_F32, 2, SHAPE(1, 1), &zero);
        DLTensor *t[] = { &p.t, &h.t, &e.t, &gh.t, &ge.t, (DLTensor *)(void *)b };
        CHECK_OK(call_again(t));
        CHECK_OK(backend_replay(b, call_again, t, 2));
        fetch(b, &gh, &seen);
        CHECK(seen == 27);
        discard(b, &p), discard(b, &h), discard(b, &e), discard(b, &ge);
    }
}

extern tgl_signature tgl_engram_grad_w_reduce_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_engram_grad_w_reduce(t[0], t[1], t[2], t[3], t[4], false, NULL);
}
#define GOOD_CALL &tgl_engram_grad_w_reduce_signature, "num_partials=3 num_streams=2 hidden=8", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "grad_w_partial: dtype is bf16, want f32");
    CHECK_ERROR(x[3].shape[1] = 7; x[3].strides = NULL, "grad_weight_hidden: shape is [2, 7], want [2, 8]");
}

TEST(empty) { check_empty(&tgl_engram_grad_w_reduce_signature, "num_partials=3 num_streams=2 hidden=0", invoke); }

TEST(no_driver) { check_no_driver(GOOD_CALL); }
