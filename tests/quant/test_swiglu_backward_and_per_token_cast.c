/* SPDX-License-Identifier: MIT
 * tgl_quant_swiglu_backward_and_per_token_cast, on every device of the tests. */
#include "support.h"

TESTS_OF_TABLE("quant_swiglu_backward_and_per_token_cast")

/* ---- one element ---- */

/* A row of one gate and one up, with a factor each and one weight; all outputs. */
typedef struct { uint16_t out, x_grad[2]; uint8_t fp8[2]; float sf[2], weight_grad; } result;
static result backward(const backend *b, const tgl_quant_params *params, const uint8_t codes[2],
                       const float x_sf[2], float grad, float weight, int32_t slot)
{
    result r;
    const int32_t pos = slot < 0 ? -1 : 0;
    const uint16_t g = to_bf16(grad);
    tensor x, sf, grad_out, w, map, slots, out, fp8, grad_sf, x_grad, weight_grad;
    place(b, &x, TGL_E4M3, 2, SHAPE(1, 2), codes);
    place(b, &sf, TGL_F32, 2, SHAPE(1, 2), x_sf);
    place(b, &grad_out, TGL_BF16, 2, SHAPE(1, 1), &g);
    place(b, &w, TGL_F32, 2, SHAPE(1, 1), &weight);
    place(b, &map, TGL_I32, 1, SHAPE(1), &slot);
    place(b, &slots, TGL_I32, 2, SHAPE(1, 1), &pos);
    place(b, &out, TGL_BF16, 2, SHAPE(1, 1), NULL);
    place(b, &fp8, TGL_E4M3, 2, SHAPE(1, 2), NULL);
    place(b, &grad_sf, TGL_F32, 2, SHAPE(1, 2), NULL);
    place(b, &x_grad, TGL_BF16, 2, SHAPE(1, 2), NULL);
    place(b, &weight_grad, TGL_F32, 2, SHAPE(1, 1), NULL);
    CHECK_OK(tgl_quant_swiglu_backward_and_per_token_cast(&x.t, &sf.t, &grad_out.t, &w.t, &map.t, &slots.t,
                                                          &out.t, &fp8.t, &grad_sf.t, &x_grad.t,
                                                          &weight_grad.t, params, b->stream));
    fetch(b, &out, &r.out);
    fetch(b, &fp8, r.fp8);
    fetch(b, &grad_sf, r.sf);
    fetch(b, &x_grad, r.x_grad);
    fetch(b, &weight_grad, &r.weight_grad);
    tensor *inputs[] = { &x, &sf, &grad_out, &w, &map, &slots };
    for (int i = 0; i < COUNT_OF(inputs); i++) discard(b, inputs[i]);
    return r;
}

static void check_result(const backend *b, result r, uint16_t out, uint16_t gate_grad, uint16_t up_grad,
                         double weight_grad)
{
    CHECK_THAT(r.out == out, "%s: out is 0x%04x, want 0x%04x", b->name, r.out, out);
    CHECK_THAT(r.x_grad[0] == gate_grad, "%s: gate's gradient is 0x%04x, want 0x%04x", b->name, r.x_grad[0],
               gate_grad);
    CHECK_THAT(r.x_grad[1] == up_grad, "%s: up's gradient is 0x%04x, want 0x%04x", b->name, r.x_grad[1],
               up_grad);
    CHECK_THAT(fabs((double)r.weight_grad - weight_grad) <= 1e-6 * fabs(weight_grad),
               "%s: weight_grad is %.9g, want %.9g", b->name, (double)r.weight_grad, weight_grad);
    for (int i = 0; i < 2; i++) {
        const bool is_zero = (r.x_grad[i] & 0x7fff) == 0, is_negative = r.x_grad[i] >> 15;
        CHECK_INT(r.fp8[i], (is_zero ? 0 : 0x7e) | is_negative << 7);
        if (is_zero) CHECK_INT(bits_of(r.sf[i]), 0x346facad);
    }
}

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        const float ones[2] = { 1, 1 };
        /* doc: swiglu_backward_and_per_token_cast */
        /* gate 1, up 2, gradient 1, weight 0.5: s = 0.7310586, act = 1.4621172, so out = 0.7310586, the
         * gate's gradient is 0.9276705, the up's 0.3655293 and the weight's 1.4621172 */
        result r = backward(b, PARAMS(0), BYTES(0x38, 0x40), ones, 1, 0.5f, 0);
        check_result(b, r, 0x3f3b, 0x3f6d, 0x3ebb, 1.4621172);
        /* clamped to 1.5, the up is 1.5 and has no gradient */
        r = backward(b, PARAMS(.has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f), BYTES(0x38, 0x40),
                     ones, 1, 0.5f, 0);
        check_result(b, r, 0x3f0c, 0x3f32, 0x0000, 1.096588);
        /* gate 2, up -3, gradient -1: both are clamped */
        r = backward(b, PARAMS(.has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f), BYTES(0x40, 0xc4),
                     ones, -1, 0.5f, 0);
        check_result(b, r, 0xbf6b, 0x0000, 0x0000, 1.839542);
        /* end */
    }
}

TEST(padding_rows_are_computed)     /* with a weight of 0: zeros have signs */
{
    FOR_BACKENDS(b) {
        const float ones[2] = { 1, 1 };
        check_result(b, backward(b, PARAMS(0), BYTES(0, 0), ones, -1, 0.5f, -1), 0x0000, 0x8000, 0x8000, 0);
        check_result(b, backward(b, PARAMS(0), BYTES(0x38, 0xb8), ones, 1, 0.5f, -7), 0x8000, 0x8000, 0x0000,
                     0);
        check_result(b, backward(b, PARAMS(0), BYTES(0xb8, 0x38), ones, 1, 0.5f, -1), 0x8000, 0x0000, 0x8000,
                     0);
    }
}

/* Slots 0 and 1 of two rows: where a slot is empty, or its row belongs to another one, nothing is added. */
TEST(slots_that_are_not_theirs)
{
    const struct { int32_t pos[2], slots[3]; bool is_set[3]; } rows[] = {
        { { 0, 1 }, { 0, 1, -1 }, { true, true, false } },
        { { 2, 0 }, { 1, -1, 0 }, { true, false, true } },
        { { 0, -1 }, { 0, 1, -5 }, { true, false, false } },    /* row 1 is padding */
        { { 0, 0 }, { 0, 0, 1 }, { true, false, false } },      /* both point to slot 0 */
        { { 0, 1 }, { -1, -1, -1 }, { false, false, false } },
    };
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(rows); i++) {
            const uint16_t grad[2] = { 0x3f80, 0x3f80 };
            float seen[3];
            tensor x, sf, grad_out, w, map, slots, out, fp8, grad_sf, x_grad, weight_grad;
            place(b, &x, TGL_E4M3, 2, SHAPE(2, 2), BYTES(0x38, 0x40, 0x38, 0x40));      /* gates 1, ups 2 */
            place(b, &sf, TGL_F32, 2, SHAPE(2, 2), F32S(1, 1, 1, 1));
            place(b, &grad_out, TGL_BF16, 2, SHAPE(2, 1), grad);
            place(b, &w, TGL_F32, 2, SHAPE(3, 1), F32S(1, 1, 1));
            place(b, &map, TGL_I32, 1, SHAPE(2), rows[i].pos);
            place(b, &slots, TGL_I32, 2, SHAPE(3, 1), rows[i].slots);
            place(b, &out, TGL_BF16, 2, SHAPE(2, 1), NULL);
            place(b, &fp8, TGL_E4M3, 2, SHAPE(2, 2), NULL);
            place(b, &grad_sf, TGL_F32, 2, SHAPE(2, 2), NULL);
            place(b, &x_grad, TGL_BF16, 2, SHAPE(2, 2), NULL);
            place(b, &weight_grad, TGL_F32, 2, SHAPE(3, 1), NULL);
            CHECK_OK(tgl_quant_swiglu_backward_and_per_token_cast(
                &x.t, &sf.t, &grad_out.t, &w.t, &map.t, &slots.t, &out.t, &fp8.t, &grad_sf.t, &x_grad.t,
                &weight_grad.t, PARAMS(0), b->stream));
            fetch(b, &weight_grad, seen);
            for (int k = 0; k < 3; k++)
                CHECK_THAT(fabs(seen[k] - (rows[i].is_set[k] ? 1.4621172 : 0)) < 1e-5,
                           "%s: maps %d: weight_grad[%d] is %g", b->name, i, k, (double)seen[k]);
            tensor *rest[] = { &x, &sf, &grad_out, &w, &map, &slots, &out, &fp8, &grad_sf, &x_grad };
            for (int k = 0; k < COUNT_OF(rest); k++) discard(b, rest[k]);
        }
}

TEST(at_the_clamp_value)    /* nothing is clamped there */
{
    FOR_BACKENDS(b) {
        const tgl_quant_params params = { .has_swiglu_clamp_value = true, .swiglu_clamp_value = 1.5f };
        const float ones[2] = { 1, 1 };
        const result free = backward(b, PARAMS(0), BYTES(0x3c, 0xbc), ones, 1, 0.5f, 0);
        const result held = backward(b, &params, BYTES(0x3c, 0xbc), ones, 1, 0.5f, 0);
        check_result(b, held, free.out, free.x_grad[0], free.x_grad[1], (double)free.weight_grad);
        CHECK(held.x_grad[0] != 0 && held.x_grad[1] != 0);
    }
}

TEST(large_gates)       /* exp is infinite, or nothing beside 1 */
{
    FOR_BACKENDS(b) {
        const float factors[2] = { 1, 1 };
        /* gate 96: silu is the identity. out = 96 * 2 * 0.5, gradients 0.5 * 2 and 0.5 * 96 */
        check_result(b, backward(b, PARAMS(0), BYTES(0x6c, 0x40), factors, 1, 0.5f, 0), 0x42c0, 0x3f80,
                     0x4240, 192);
        /* gate -96: s = 0, so that act = -0 * 2, ws = 0, 0 * 2 * (1 - 96) = -0, 0 * -96 = -0 */
        check_result(b, backward(b, PARAMS(0), BYTES(0xec, 0x40), factors, 1, 0.5f, 0), 0x8000, 0x8000,
                     0x8000, 0);
    }
}

/* ---- a multiply-add that rounds once ---- */

/* Values of x are any float where factors have blocks of one; then a gradient's factor is its magnitude /
 * 448. What exp gives is not known to the last bit, but results agree far more often with the formula that
 * has the fma than with the one that rounds the product. */
TEST(the_slope_is_an_fma)
{
    enum { ROWS = 32, COLS = 128 };
    static uint8_t x[ROWS][2 * COLS], fp8[ROWS][2 * COLS];
    static float x_sf[ROWS][2 * COLS], sf[ROWS][2 * COLS];
    static uint16_t grad[ROWS][COLS];
    static int32_t pos[ROWS];
    test_random r = test_seed("the_slope_is_an_fma");
    for (int i = 0; i < ROWS; i++) {
        pos[i] = i;
        for (int j = 0; j < COLS; j++) {
            x[i][j] = test_below(&r, 2) ? 0x38 : 0xb8;          /* 1 or -1, times 0.25 to 4 */
            x[i][COLS + j] = 0x38;
            x_sf[i][j] = float_of((uint32_t)test_below(&r, 0x02000000) + 0x3e800000);
            x_sf[i][COLS + j] = 1;
            grad[i][j] = 0x3f80;
        }
    }
    FOR_BACKENDS(b) {
        tensor in, in_sf, grad_out, weight, map, slots, out, codes, grad_sf, x_grad, weight_grad;
        static float ones[ROWS];
        for (int i = 0; i < ROWS; i++) ones[i] = 1;
        const int64_t rows = b->is_emulated ? 8 : ROWS;
        place(b, &in, TGL_E4M3, 2, SHAPE(rows, 2 * COLS), x);
        place(b, &in_sf, TGL_F32, 2, SHAPE(rows, 2 * COLS), x_sf);
        place(b, &grad_out, TGL_BF16, 2, SHAPE(rows, COLS), grad);
        place(b, &weight, TGL_F32, 2, SHAPE(rows, 1), ones);
        place(b, &map, TGL_I32, 1, SHAPE(rows), pos);
        place(b, &slots, TGL_I32, 2, SHAPE(rows, 1), pos);
        place(b, &out, TGL_BF16, 2, SHAPE(rows, COLS), NULL);
        place(b, &codes, TGL_E4M3, 2, SHAPE(rows, 2 * COLS), NULL);
        place(b, &grad_sf, TGL_F32, 2, SHAPE(rows, 2 * COLS), NULL);
        place(b, &x_grad, TGL_BF16, 2, SHAPE(rows, 2 * COLS), NULL);
        place(b, &weight_grad, TGL_F32, 2, SHAPE(rows, 1), NULL);
        CHECK_OK(tgl_quant_swiglu_backward_and_per_token_cast(
            &in.t, &in_sf.t, &grad_out.t, &weight.t, &map.t, &slots.t, &out.t, &codes.t, &grad_sf.t,
            &x_grad.t, &weight_grad.t, PARAMS(.num_per_channels = 1), b->stream));
        fetch(b, &grad_sf, sf);
        fetch(b, &codes, fp8);
        int with_fma = 0, without = 0;
        for (int64_t i = 0; i < rows; i++)
            for (int j = 0; j < COLS; j++) {
                const float a = quant_decode(TGL_QUANT_E4M3, x[i][j]) * x_sf[i][j];
                const float s = 1 / (1 + (float)exp(-(double)a)), rest = 1 - s, product = a * rest;
                const float once = fabsf(s * fmaf(a, rest, 1)) / 448, twice = fabsf(s * (product + 1)) / 448;
                CHECK_THAT(fabs(sf[i][j] - (double)once) <= 1e-6 * (double)once + 1e-9,
                           "%s: gate %a: %a, want %a", b->name, (double)a, (double)sf[i][j], (double)once);
                with_fma += once != twice && sf[i][j] == once;
                without += once != twice && sf[i][j] == twice;
            }
        CHECK_THAT(with_fma > 30 && with_fma > 4 * without, "%s: %d as with an fma, %d as without", b->name,
                   with_fma, without);
        tensor *inputs[] = { &in, &in_sf, &grad_out, &weight, &map, &slots, &out, &x_grad, &weight_grad };
        for (int i = 0; i < COUNT_OF(inputs); i++) discard(b, inputs[i]);
    }
}

/* ---- nothing to do ---- */

TEST(no_rows)       /* weight_grad is still all zeros */
{
    FOR_BACKENDS(b) {
        tensor x, x_sf, grad_out, weight, pos, slots, out, fp8, sf, x_grad, weight_grad;
        make(&x, NULL, b->device, TGL_E4M3, 2, SHAPE(0, 256));
        make(&x_sf, NULL, b->device, TGL_F32, 2, SHAPE(0, 2));
        make(&grad_out, NULL, b->device, TGL_BF16, 2, SHAPE(0, 128));
        make(&pos, NULL, b->device, TGL_I32, 1, SHAPE(0));
        make(&out, NULL, b->device, TGL_BF16, 2, SHAPE(0, 128));
        make(&fp8, NULL, b->device, TGL_E4M3, 2, SHAPE(0, 256));
        make(&sf, NULL, b->device, TGL_F32, 2, SHAPE(0, 2));
        make(&x_grad, NULL, b->device, TGL_BF16, 2, SHAPE(0, 256));
        place(b, &weight, TGL_F32, 2, SHAPE(2, 2), F32S(1, 2, 3, 4));
        place(b, &slots, TGL_I32, 2, SHAPE(2, 2), ((const int32_t[]){ -1, -1, -1, -1 }));
        place(b, &weight_grad, TGL_F32, 2, SHAPE(2, 2), NULL);
        CHECK_OK(tgl_quant_swiglu_backward_and_per_token_cast(
            &x.t, &x_sf.t, &grad_out.t, &weight.t, &pos.t, &slots.t, &out.t, &fp8.t, &sf.t, &x_grad.t,
            &weight_grad.t, PARAMS(.num_per_channels = 128), b->stream));
        check_contents(b, &weight_grad, F32S(0, 0, 0, 0), "weight_grad");
        discard(b, &weight);
        discard(b, &slots);
    }
}

TEST(num_sms)       /* blocks of any kind of rows loop */
{
    check_num_sms("quant_swiglu_backward_and_per_token_cast", (const char *const[]){
        "num_rows=70 num_cols=9 num_tokens=35 num_topk=2 num_picks=70 clamp=0.5 values=mixed",
        "num_rows=33 num_cols=128 num_tokens=40 num_topk=8 num_picks=30 round=1 values=mixed", NULL });
}

/* ---- errors ---- */

typedef struct {
    tensor x, x_sf, grad, weight, pos, slots, out, fp8, sf, x_grad, weight_grad;
    const DLTensor *px, *px_sf, *pgrad, *pweight, *ppos, *pslots;
    DLTensor *pout, *pfp8, *psf, *px_grad, *pweight_grad;
    tgl_quant_params params, *pparams;
} call;

static void valid(call *c, DLDevice on)
{
    *c = (call){ 0 };
    c->px = make(&c->x, memory + 256, on, TGL_E4M3, 2, SHAPE(3, 256));
    c->px_sf = make(&c->x_sf, memory + 1280, on, TGL_F32, 2, SHAPE(3, 4));
    c->pgrad = make(&c->grad, memory + 1536, on, TGL_BF16, 2, SHAPE(3, 128));
    c->pweight = make(&c->weight, memory + 2560, on, TGL_F32, 2, SHAPE(5, 2));
    c->ppos = make(&c->pos, memory + 2816, on, TGL_I32, 1, SHAPE(3));
    c->pslots = make(&c->slots, memory + 3072, on, TGL_I32, 2, SHAPE(5, 2));
    c->pout = make(&c->out, memory + 4096, on, TGL_BF16, 2, SHAPE(3, 128));
    c->pfp8 = make(&c->fp8, memory + 6144, on, TGL_E4M3, 2, SHAPE(3, 256));
    c->psf = make(&c->sf, memory + 8192, on, TGL_F32, 2, SHAPE(3, 4));
    c->px_grad = make(&c->x_grad, memory + 9216, on, TGL_BF16, 2, SHAPE(3, 256));
    c->pweight_grad = make(&c->weight_grad, memory + 12288, on, TGL_F32, 2, SHAPE(5, 2));
    c->params = (tgl_quant_params){ .num_per_channels = 64 };
    c->pparams = &c->params;
}

static tgl_status invoke(const call *c)
{
    return tgl_quant_swiglu_backward_and_per_token_cast(c->px, c->px_sf, c->pgrad, c->pweight, c->ppos,
                                                        c->pslots, c->pout, c->pfp8, c->psf, c->px_grad,
                                                        c->pweight_grad, c->pparams, NULL);
}

TEST(errors)
{
    TENSOR_ERRORS(x, px, "x", "2", "768", "e4m3");
    TENSOR_ERRORS(x_sf, px_sf, "x_sf", "2", "48", "i32 or f32");
    TENSOR_ERRORS(grad, pgrad, "grad_out", "2", "768", "bf16");
    TENSOR_ERRORS(weight, pweight, "weight", "2", "40", "f32");
    TENSOR_ERRORS(pos, ppos, "pos_to_token_topk", "1", "12", "i32");
    TENSOR_ERRORS(slots, pslots, "token_topk_to_pos", "2", "40", "i32");
    TENSOR_ERRORS(out, pout, "out", "2", "768", "bf16");
    TENSOR_ERRORS(fp8, pfp8, "x_grad_fp8", "2", "768", "e4m3");
    TENSOR_ERRORS(sf, psf, "x_grad_sf", "2", "48", "i32 or f32");
    TENSOR_ERRORS(x_grad, px_grad, "x_grad", "2", "1536", "bf16");
    TENSOR_ERRORS(weight_grad, pweight_grad, "weight_grad", "2", "40", "f32");
    ROWS_ERRORS(x, "x", "256");
    ROWS_ERRORS(grad, "grad_out", "128");
    OTHER_DEVICE(x_sf, "x_sf");
    OTHER_DEVICE(grad, "grad_out");
    OTHER_DEVICE(weight, "weight");
    OTHER_DEVICE(pos, "pos_to_token_topk");
    OTHER_DEVICE(slots, "token_topk_to_pos");
    OTHER_DEVICE(out, "out");
    OTHER_DEVICE(fp8, "x_grad_fp8");
    OTHER_DEVICE(sf, "x_grad_sf");
    OTHER_DEVICE(x_grad, "x_grad");
    OTHER_DEVICE(weight_grad, "weight_grad");
}

TEST(errors_of_shapes)
{
    ERROR(c.x.shape[1] = 255, "x: columns are 255, want an even number (gates, ups)");
    ERROR(c.x_sf.shape[1] = c.x_sf.strides[0] = 2, "x_sf: shape is [3, 2], want [3, 4]");
    ERROR(c.grad.shape[0] = 2, "grad_out: shape is [2, 128], want [3, 128]");
    ERROR(c.grad.shape[1] = 64, "grad_out: shape is [3, 64], want [3, 128]");
    ERROR(c.pos.shape[0] = 2, "pos_to_token_topk: shape is [2], want [3]");
    ERROR(c.slots.shape[0] = 4, "token_topk_to_pos: shape is [4, 2], want [5, 2]");
    ERROR(c.weight.strides[0] = 3, "weight: strides are [3, 1], want [2, 1]");
    ERROR(c.out.shape[0] = 2, "out: shape is [2, 128], want [3, 128]");
    ERROR(c.fp8.shape[0] = 2, "x_grad_fp8: shape is [2, 256], want [3, 256]");
    ERROR(c.x_grad.shape[0] = 2, "x_grad: shape is [2, 256], want [3, 256]");
    ERROR(c.sf.shape[0] = 2, "x_grad_sf: shape is [2, 4], want [3, 4]");
    ERROR(c.weight_grad.shape[0] = 4, "weight_grad: shape is [4, 2], want [5, 2]");
    ERROR(c.out.strides[0] = 130, "out: strides are [130, 1], want [128, 1]");
    ERROR(c.x_sf.strides[1] = 2, "x_sf: strides are [4, 2], want [1, >= 0] or [>= 0, 1]");
    ERROR(c.sf.strides[1] = 2, "x_grad_sf: strides are [4, 2], want [1, >= 3] or [>= 4, 1]");
    ERROR(make(&c.sf, memory + 8192, on, TGL_I32, 2, SHAPE(3, 1)),
          "round_sf: is false, want true for x_grad_sf of i32 (packed)");
    ERROR(c.out.t.data = c.grad.t.data, "out: memory is shared with grad_out, want no overlap");
    ERROR(c.fp8.t.data = c.x.t.data, "x_grad_fp8: memory is shared with x, want no overlap");
    ERROR(c.sf.t.data = c.x_sf.t.data, "x_grad_sf: memory is shared with x_sf, want no overlap");
    ERROR(c.x_grad.t.data = c.out.t.data, "x_grad: memory is shared with out, want no overlap");
    ERROR(c.weight_grad.t.data = c.weight.t.data,
          "weight_grad: memory is shared with weight, want no overlap");
    ERROR(c.weight_grad.t.data = c.slots.t.data,
          "weight_grad: memory is shared with token_topk_to_pos, want no overlap");
}

TEST(errors_of_params)
{
    PARAMS_ERRORS();
    ERROR(c.params.num_per_channels = -1, "num_per_channels: is -1, want >= 0");
    ERROR(c.params.num_per_channels = 128, "x_sf: shape is [3, 4], want [3, 2]");
    ERROR(c.params.has_swiglu_clamp_value = true; c.params.swiglu_clamp_value = -1,
          "swiglu_clamp_value: is -1, want >= 0");
    ERROR(c.params.has_swiglu_clamp_value = true; c.params.swiglu_clamp_value = NAN,
          "swiglu_clamp_value: is nan, want >= 0");
}

TEST_NO_DRIVER()
