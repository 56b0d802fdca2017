/* SPDX-License-Identifier: MIT */
#include "cases/engram/common/gate_cases.h"
#include "core/status.h"

enum { OUTPUT = GATE_NUM_INPUTS, DOT, GATE, RSTD_X, RSTD_K };

static tgl_status setup(case_problem *c)
{
    TGL_TRY(gate_add_inputs(c, "image_token_mask"));
    TGL_TRY(case_check_word(c, "output", "new none same"));
    TGL_TRY(case_check_word(c, "sign", "zero bit"));
    TGL_TRY(case_check_word(c, "eps", "tiny small zero"));
    const int64_t shape[] = { case_int(c, "num_tokens"), case_int(c, "num_streams") };
    const float eps = case_is(c, "eps", "tiny") ? 1e-20f : case_is(c, "eps", "small") ? 1e-6f : 0;
    const tgl_engram_gate_params params = { .eps = eps,
                                            .clamp_value = gate_clamp(c),
                                            .no_residual = !case_int(c, "residual"),
                                            .zero_centered = case_int(c, "zero_centered") != 0,
                                            .constant_weights = case_int(c, "constant") != 0,
                                            .sign = case_is(c, "sign", "bit") ? TGL_ENGRAM_SIGN_BIT
                                                                              : TGL_ENGRAM_SIGN_ZERO };
    memcpy(c->scalars, &params, sizeof params);
    /* A gate within two units in the last place moves a result by that much of gate * v. */
    const double atol = 8 * gate_scale(c) * 0x1p-21;
    const case_compare close_to_bf16 = { .mode = CASE_BF16, .ulp = 1, .atol = atol, .mismatch = 2e-3 };
    if (case_is(c, "output", "same")) {
        c->tensors[GATE_X].role = CASE_INOUT;
        c->tensors[GATE_X].compare = close_to_bf16;
    } else if (case_is(c, "output", "new")) {
        gate_add_rows(c, OUTPUT, "output", CASE_OUT, true)->compare = close_to_bf16;
    }
    if (!case_int(c, "save")) return TGL_OK;
    case_add(c, DOT, "dot", CASE_OUT, TGL_F32, 2, shape);
    case_add(c, GATE, "gate_score", CASE_OUT, TGL_F32, 2, shape)->compare =
        (case_compare){ .mode = CASE_CLOSE, .rtol = 3 * 0x1p-24 };
    case_add(c, RSTD_X, "rstd_x", CASE_OUT, TGL_F32, 2, shape);
    case_add(c, RSTD_K, "rstd_k", CASE_OUT, TGL_F32, 2, shape);
    return TGL_OK;
}

static tgl_status run(const case_arguments *a)
{
    const tgl_engram_gate_params *params = (const void *)a->problem->scalars;
    const bool is_in_place = a->problem->tensors[GATE_X].role == CASE_INOUT;
    return tgl_engram_gate_fwd(a->arg[GATE_X], a->arg[GATE_K], a->arg[GATE_V], a->arg[GATE_WEIGHT_HIDDEN],
                               a->arg[GATE_WEIGHT_EMBED], a->arg[GATE_MASK],
                               is_in_place ? a->arg[GATE_X] : a->arg[OUTPUT], a->arg[DOT], a->arg[GATE], a->arg[RSTD_X],
                               a->arg[RSTD_K], params, a->stream);
}

/* ---- oracle ---- */

static void oracle_row(case_problem *c, int64_t t, int64_t h)
{
    const tgl_engram_gate_params *p = (const void *)c->scalars;
    case_tensor *tensors = c->tensors, *out = tensors[GATE_X].role == CASE_INOUT ? &tensors[GATE_X] : &tensors[OUTPUT];
    const int64_t hidden = tensors[GATE_X].shape[2], index[] = { t, h };
    const bool is_masked = gate_is_masked(c, t);
    gate_numbers_of_row n = { 0, 0, 0, 0 };
    if (!is_masked) n = gate_find_numbers(c, p, t, h);
    if (tensors[DOT].name) {
        gate_put(&tensors[DOT], index, n.dot), gate_put(&tensors[GATE], index, n.gate);
        gate_put(&tensors[RSTD_X], index, n.rstd_x), gate_put(&tensors[RSTD_K], index, n.rstd_k);
    }
    for (int64_t i = 0; out->name && i < hidden; i++) {
        const int64_t at[] = { t, h, i };
        const double x = gate_at(&tensors[GATE_X], t, h, i);
        if (is_masked) {
            if (p->no_residual) memset(case_element(out, at), 0, 2);
            else memmove(case_element(out, at), case_element(&tensors[GATE_X], at), 2);
            continue;
        }
        const float added = (float)n.gate * (float)gate_at(&tensors[GATE_V], t, h, i);
        gate_put(out, at, p->no_residual ? added : (float)x + added);
    }
}

static void oracle_tokens(void *context, int64_t begin, int64_t end)
{
    case_problem *c = context;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < c->tensors[GATE_X].shape[1]; h++) oracle_row(c, t, h);
}

static void oracle(case_problem *c)
{
    const int64_t *shape = c->tensors[GATE_X].shape;
    case_parallel(shape[0], 64 * shape[1] * shape[2], oracle_tokens, c);
}

/* A masked token has neither k nor v; in place it is not touched. */
static int64_t bytes(const case_problem *c)
{
    const case_tensor *x = &c->tensors[GATE_X];
    const bool is_in_place = x->role == CASE_INOUT;
    const int64_t all = case_all_bytes(c) + (is_in_place ? case_tensor_bytes(x) : 0), rows = case_tensor_bytes(x);
    const int64_t spared = rows + case_tensor_bytes(&c->tensors[GATE_V]) + (is_in_place ? 2 * rows : 0);
    return case_is(c, "mask", "all") ? all - spared : case_is(c, "mask", "some") ? all - spared / 10 : all;
}

// clang-format off: lines of cases
const case_op gate_fwd_cases = {
    "engram_gate_fwd", GATE_CASE " output=new save=1 sign=zero eps=tiny constant=0", setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=0,1,2,3 num_streams=1,4 hidden=1,7,8,9,64,100,255,257 save=0,1",
        "num_tokens=3 num_streams=0,1,2,3,8 hidden=256,576,2048,2056 weights=fused,bf16 mask=none,some",
        "num_tokens=3 hidden=2560,5120 residual=0,1 output=new,same,none save=0 mask=some",
        "num_tokens=3 num_streams=2 hidden=2064,2055 residual=0,1 output=new,none save=1 mask=none,no,all,some",
        "num_tokens=3 num_streams=3 hidden=128,130 output=same save=0 mask=none,all,some residual=0,1 "
        "layout=packed,gaps",
        "num_tokens=3 num_streams=3 hidden=128,100 weights=fused,bf16,f32 sign=zero,bit values=zeros eps=tiny,small",
        "num_tokens=3 num_streams=3 hidden=128,131 weights=bf16,f32 zero_centered=0,1 mask=some constant=0,1",
        "num_tokens=2 num_streams=2 hidden=136 weights=bf16,f32 zero_centered=1",
        "num_tokens=5 num_streams=3 hidden=136,129 values=special,large,tiny,zeros eps=tiny,small,zero "
        "clamp=small,half,zero",
        "num_tokens=4 num_streams=4 hidden=192,97 layout=packed,kv,gaps,outside gap=1,8 offset=0,1,8 mask=some",
        "num_tokens=4 num_streams=4 hidden=1024 layout=kv weights=bf16 output=same,new save=0",
        /* rows that a block holds in registers, at most, and longer ones; what a ring has in flight */
        "num_tokens=2 num_streams=2 hidden=7168,8192,8200,16384,16392",
        "num_tokens=9 num_streams=1 hidden=8200 residual=0,1 output=new,same save=0 mask=some",
        "num_tokens=60 num_streams=4 hidden=512 mask=some weights=bf16",
        "num_tokens=60 num_streams=4 hidden=128 weights=bf16,f32 zero_centered=0,1",
        "num_tokens=133 num_streams=4 hidden=64 mask=some output=same save=0",
        "num_tokens=50 num_streams=4 hidden=520 mask=all,some", /* too many rows for gate_fwd_few */
        "num_tokens=31 num_streams=1 hidden=4096,4104 values=zeros",
        /* gate_fwd_pipeline, where SMs are few */
        "num_tokens=65 num_streams=4 hidden=72,1096,2568,4096,5120 mask=none,some",
        "num_tokens=65 num_streams=4 hidden=136,2056,4104 weights=bf16,f32 zero_centered=0,1",
        "num_tokens=125 num_streams=2 hidden=328 output=new,same,none mask=some residual=0,1 save=0 layout=packed,kv",
        /* more streams than a ring has blocks, where SMs are few */
        "num_tokens=1 num_streams=37 hidden=64,2056,5120,7168 mask=none,all",
        "num_tokens=3 num_streams=6 hidden=6152 save=0,1 mask=some"),    /* and more rows than are resident at once */
    .lists[CASE_SLOW] = CASE_LINES(
        "num_tokens=4001 hidden=2048,2560,3072,4096,6144,7168 mask=none,some",
        "num_tokens=8001 hidden=2560,5120,7168 weights=bf16 layout=kv output=same save=0",
        "num_tokens=132,133 num_streams=1,2,3,8 hidden=64,100,257,512,576,8192,16384",
        /* past 2^31 elements: gate_fwd, gate_fwd_pipeline */
        "num_tokens=76000 num_streams=4 hidden=7168 save=0 output=same",
        "num_tokens=105000 num_streams=4 hidden=5120 save=0 output=same"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=4096,8192 hidden=7168,5120,2560 save=0",
        "num_tokens=4096 hidden=7168,4096 save=1", "num_tokens=8192 hidden=7168 save=1",
        "num_tokens=1,16,128 hidden=7168,5120,2560 save=0", "num_tokens=128 hidden=4096 save=0",
        "num_tokens=4096 hidden=7168 save=0 mask=some", "num_tokens=4096 hidden=7168 save=0 output=same",
        "num_tokens=4096 hidden=7168 save=0 weights=bf16", "num_tokens=4096 hidden=7168 output=none",
        "num_tokens=8192 hidden=5120 save=0 layout=kv weights=bf16 output=same sign=bit mask=some",
        "num_tokens=8192 hidden=2560 save=0 weights=bf16 zero_centered=1 residual=0 eps=small",
        "num_tokens=1,16,128 hidden=5120 save=0 layout=kv weights=bf16 output=same sign=bit"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 hidden=256,2560,4096,5120,7168,16384,100 weights=fused,bf16",
        "num_tokens=64 hidden=2560,7168 weights=bf16,f32 zero_centered=1"),
    .models = CASE_LINES(
        "num_tokens=1,128,4096 num_streams={engram_streams} hidden={hidden} weights=bf16 "
        "zero_centered={engram_centered} residual={engram_residual} save=0,1"),
};
// clang-format on
