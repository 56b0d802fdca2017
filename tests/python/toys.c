/* SPDX-License-Identifier: MIT
 * toys.c - rows that use every part of the table's grammar, on the CPU: the glue is tested with them
 * before any op needs it. */
#include <time.h>

#include "glue.h"
#include "row_args.h"

static void *data(const DLTensor *t) { return (char *)t->data + t->byte_offset; }
static int64_t stride(const DLTensor *t, int d)
{
    int64_t step = 1;
    for (int i = d + 1; i < t->ndim; i++) step *= t->shape[i];
    return t->strides ? t->strides[d] : step;
}

/* out = 1 or 2 by fmt, plus 10 with round_sf; sf = group + eps + 1000 * its column */
THUNK(cast)
{
    const DLTensor *x = a->x, *out = a->out, *sf = a->sf;
    for (int64_t t = 0; t < x->shape[0]; t++) {
        for (int64_t h = 0; h < x->shape[1]; h++)
            ((uint8_t *)data(out))[t * stride(out, 0) + h] = (uint8_t)(a->fmt + 1 + 10 * a->round_sf);
        for (int64_t g = 0; g < sf->shape[1]; g++)
            ((float *)data(sf))[t * stride(sf, 0) + g * stride(sf, 1)] =
                (float)((double)a->group + a->eps + 1000 * (double)g);
    }
    return TGL_OK;
}

/* x * weight + bias, at most clamp; packed f32 */
THUNK(scale)
{
    const DLTensor *x = a->x, *weight = a->weight, *bias = a->bias;
    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++) {
        const int64_t h = i % x->shape[1];
        float y = ((float *)data(x))[i];
        if (weight) y *= ((float *)data(weight))[h];
        if (bias) y += ((float *)data(bias))[h];
        if (a->has_clamp && y > (float)a->clamp) y = (float)a->clamp;
        ((float *)data(a->out))[i] = y;
    }
    return TGL_OK;
}

THUNK(add_inplace)
{
    const DLTensor *x = a->x;
    for (int64_t i = 0; i < x->shape[0]; i++) ((int64_t *)data(x))[i] += a->number;
    return TGL_OK;
}

THUNK(wait)
{
    const struct timespec span = { 0, (long)a->milliseconds * 1000000 };
    nanosleep(&span, NULL);
    return TGL_OK;
}

/* out = x, then columns of zeros; sizes = the shape of it; seen += 1 */
THUNK(pad)
{
    const DLTensor *x = a->x, *out = a->out, *sizes = a->sizes, *seen = a->seen;
    for (int64_t t = 0; t < out->shape[0]; t++) {
        for (int64_t h = 0; h < out->shape[1]; h++)
            ((float *)data(out))[t * out->shape[1] + h] =
                h < x->shape[1] ? ((float *)data(x))[t * x->shape[1] + h] : 0.0f;
        for (int d = 0; d < 2; d++)
            ((int32_t *)data(sizes))[t * stride(sizes, 0) + d * stride(sizes, 1)] = (int32_t)out->shape[d];
    }
    for (int64_t i = 0; seen && i < seen->shape[0]; i++) ((int64_t *)data(seen))[i]++;
    return TGL_OK;
}

/* out, sizes = 0 */
THUNK(pick)
{
    for (int i = 0; i < 2; i++) {
        const DLTensor *t = a->outputs[i];
        for (int64_t k = 0; k < t->shape[0] * t->shape[1]; k++)
            for (int b = 0; b < t->dtype.bits / 8; b++)
                ((uint8_t *)data(
                    t))[(k / t->shape[1] * stride(t, 0) + k % t->shape[1] * stride(t, 1)) * (t->dtype.bits / 8) + b] =
                    0;
    }
    return TGL_OK;
}

/* out = x * sf of its row + 100 * rows + cols; seen += 1 */
THUNK(weigh)
{
    const DLTensor *x = a->x, *sf = a->sf, *seen = a->seen;
    for (int64_t i = 0; i < x->shape[0] * x->shape[1]; i++)
        ((float *)data(a->out))[i] = ((float *)data(x))[i] * (sf ? ((float *)data(sf))[i / x->shape[1]] : 1.0f) +
                                     (float)(100 * a->rows + a->cols);
    for (int64_t i = 0; seen && i < seen->shape[0]; i++) ((int64_t *)data(seen))[i]++;
    return TGL_OK;
}
CHECK(weigh)
{
    if (a->sf || !a->has_rows) return true;
    PyErr_SetString(PyExc_ValueError, "block_size: is given, want None without sf");
    return false;
}

/* out = (address of the workspace, its bytes, how many of them are not 0); what it leaves behind is `leave`.
 * For the emulated device, whose memory the host can read. */
THUNK(scratch)
{
    unsigned char *bytes = a->workspace;
    int64_t *out = data(a->out), dirty = 0;
    for (size_t i = 0; i < a->workspace_bytes; i++) dirty += bytes[i] != 0;
    out[0] = (int64_t)(uintptr_t)bytes;
    out[1] = (int64_t)a->workspace_bytes;
    out[2] = dirty;
    for (size_t i = 0; i < a->workspace_bytes; i++) bytes[i] = (unsigned char)a->leave;
    return (tgl_status)a->status;
}
WORKSPACE(scratch) { return (size_t)a->bytes; }

THUNK(fail) { return (tgl_status)a->status; }

static op_row rows[] = {
    { .text = "cast(x[T, H], group: int = 128, fmt: {e4m3|e5m2} = e4m3, round_sf: bool = False, eps: float = "
              "1e-4)"
              " -> out: fmt[T, H], sf: f32[T, H / group; 1, T / 4 * 4]",
      .call = call_cast },
    { .text = "scale(x[T, H], weight[H]?, bias[H]?, clamp: float? = None) -> out: x[T, H]", .call = call_scale },
    { .text = "add_inplace(x[N]!, number: int) -> None", .call = call_add_inplace },
    { .text = "wait(x[N], milliseconds: int) -> None", .call = call_wait },
    { .text = "pad(x[T, H], weight[T, H]?, extra: int, is_padded: bool = True, seen[N]?!, col_major: bool = "
              "False) -> out: x[T, H + extra * is_padded], sizes: i32[T, 2; 1, T / 4 * 4 if col_major]",
      .call = call_pad },
    { .text = "pick(x[T, W], fmt: {e4m3|e2m1|e5m6}, indices[P]?, is_wide: bool = False) -> "
              "out: fmt[P, W * x * fmt / 8] if indices else fmt[T, W * x * fmt / 8], "
              "sizes: f32[T, W; 1, T / 4 * 4] if is_wide else i32[T, W / 2]",
      .call = call_pick },
    { .text = "weigh(x[T, H], sf[T]?, rows: int?, cols: int?, kind: {plain}? = None, seen[N]?!) -> "
              "out: x[T, H] if kind else f32[T, H]",
      .face = "x & sf, block_size: rows & cols = None, kind, *, seen",
      .check = check_weigh,
      .call = call_weigh },
    { .text = "scratch(x[N], bytes: int, leave: int = 0, status: int = 0) -> out: i64[3]",
      .call = call_scratch,
      .workspace = workspace_scratch },
    { .text = "fail(x[N], status: int) -> out: i64[N * 2]", .call = call_fail },
};
DOMAIN(toys);
