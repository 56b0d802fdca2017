/* SPDX-License-Identifier: MIT
 * mhc.c - tegula.mhc: a row of text per op (parse.c has the grammar), the ranges of its numbers, and a thunk into the C
 * API. */
#include "glue.h"

#include <stdlib.h>

#include "row_args.h"
#include "mhc/common/mhc_limits.h"
#include "tegula/mhc.h"

/* ---- fields of tgl_mhc_params ---- */

#define GATE_FIELDS(a)                                                                                              \
    .has_pre_eps = true, .pre_eps = (float)(a)->pre_eps, .has_post_mult = true, .post_mult = (float)(a)->post_mult, \
    .post_eps = (float)(a)->post_eps
#define SINKHORN_FIELDS(a, eps) .has_sinkhorn_eps = true, .sinkhorn_eps = (float)(eps), .sinkhorn_repeat = (a)->repeat
#define FINISH_FIELDS(a) \
    .has_rms_eps = true, .rms_eps = (float)(a)->rms_eps, GATE_FIELDS(a), SINKHORN_FIELDS(a, (a)->sinkhorn_eps)

/* ---- streams ---- */

CHECK(mhc_expand_fwd) { return is_within("num_streams", a->num_streams, 1, MHC_MAX_STREAMS); }
THUNK(mhc_expand_fwd) { return tgl_mhc_expand_fwd(a->x, a->out, a->stream); }
THUNK(mhc_expand_bwd) { return tgl_mhc_expand_bwd(a->grad_out, a->grad_x, a->stream); }

THUNK(mhc_pre_apply_mix_fwd) { return tgl_mhc_pre_apply_mix_fwd(a->x, a->mix, a->out, a->stream); }
THUNK(mhc_pre_apply_mix_bwd)
{
    return tgl_mhc_pre_apply_mix_bwd(a->grad_out, a->x, a->mix, a->grad_x, a->grad_mix, false, a->stream);
}
THUNK(mhc_pre_apply_mix_bwd_into)
{
    return tgl_mhc_pre_apply_mix_bwd(a->grad_out, a->x, a->mix, a->grad_x, a->grad_mix, true, a->stream);
}

THUNK(mhc_post_fwd) { return tgl_mhc_post_fwd(a->x, a->residual, a->post_mix, a->comb_mix, a->out, a->stream); }
THUNK(mhc_post_bwd_gates)
{
    return tgl_mhc_post_bwd(a->grad_out, a->x, NULL, a->post_mix, NULL, a->grad_x, NULL, a->grad_post_mix, NULL,
                            a->stream);
}
THUNK(mhc_post_bwd)
{
    return tgl_mhc_post_bwd(a->grad_out, a->x, a->residual, a->post_mix, a->comb_mix, a->grad_x, a->grad_residual,
                            a->grad_post_mix, a->grad_comb_mix, a->stream);
}

/* ---- projection ---- */

WORKSPACE(mhc_norm_fn_fwd) { return tgl_mhc_norm_fn_fwd_workspace_size(a->residual, a->fn); }
THUNK(mhc_norm_fn_fwd)
{
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)a->eps };
    return tgl_mhc_norm_fn_fwd(a->residual, a->fn, a->norm_weight, a->mixes, a->out_mul, a->sqrsum, &params,
                               a->workspace, a->workspace_bytes, a->stream);
}

/* Written, or added to; with a gain, or without. */
#define NORM_FN_BWD(op, norm_weight_, grad_norm_weight_, accumulate_)                                               \
    WORKSPACE(op) { return tgl_mhc_norm_fn_bwd_workspace_size(a->residual, a->fn); }                                \
    THUNK(op)                                                                                                       \
    {                                                                                                               \
        const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)a->eps, .accumulate = accumulate_ }; \
        return tgl_mhc_norm_fn_bwd(a->grad_mixes, a->residual, a->fn, norm_weight_, a->out_mul, a->sqrsum,          \
                                   a->grad_residual, a->grad_fn, grad_norm_weight_, &params, a->workspace,          \
                                   a->workspace_bytes, a->stream);                                                  \
    }
NORM_FN_BWD(mhc_norm_fn_bwd, NULL, NULL, false)
NORM_FN_BWD(mhc_norm_fn_bwd_into, NULL, NULL, true)
NORM_FN_BWD(mhc_norm_fn_bwd_weighted, a->norm_weight, a->grad_norm_weight, false)
NORM_FN_BWD(mhc_norm_fn_bwd_weighted_into, a->norm_weight, a->grad_norm_weight, true)

#define PRE_ARGS                                                                                              \
    "residual[T, N, H], fn[P, K], scale[G], base[P], norm_weight[K]?, input_weight[H]?, norm: bool = False, " \
    "rms_eps: float = 1e-6, pre_eps: float = 1e-6, sinkhorn_eps: float = 1e-6, norm_eps: float = 1e-6, "      \
    "post_mult: float = 2.0, post_eps: float = 0.0, norm_scale: float = 1.0, repeat: int = 20"
#define PRE_PARAMS(a)                                                                                                 \
    { FINISH_FIELDS(a), .has_norm_eps = true, .norm_eps = (float)(a)->norm_eps, .norm_scale = (float)(a)->norm_scale, \
      .norm = (a)->norm }

/* In C a norm_scale of 0 is the default, 1. Here the default is written as such, and 0 can only be a mistake. */
static bool can_pre(int64_t repeat, double norm_scale)
{
    if (!is_within("repeat", repeat, 1, INT32_MAX)) return false;
    if (norm_scale == 0) PyErr_SetString(PyExc_ValueError, "norm_scale: is 0, want another number");
    return norm_scale != 0;
}

/* With three scales, with two, and with one: rows have no output that may be missing. */
#define PRE_FWD(op, post_mix_, comb_mix_)                                                                          \
    CHECK(op) { return can_pre(a->repeat, a->norm_scale); }                                                        \
    WORKSPACE(op) { return tgl_mhc_pre_fwd_workspace_size(a->residual, a->fn); }                                   \
    THUNK(op)                                                                                                      \
    {                                                                                                              \
        const tgl_mhc_params params = PRE_PARAMS(a);                                                               \
        return tgl_mhc_pre_fwd(a->residual, a->fn, a->norm_weight, a->scale, a->base, a->input_weight, a->pre_mix, \
                               post_mix_, comb_mix_, a->out, NULL, NULL, NULL, NULL, &params, a->workspace,        \
                               a->workspace_bytes, a->stream);                                                     \
    }
PRE_FWD(mhc_pre_fwd, a->post_mix, a->comb_mix)
PRE_FWD(mhc_pre_fwd_gates, a->post_mix, NULL)
PRE_FWD(mhc_pre_fwd_head, NULL, NULL)

CHECK(mhc_norm_fn_parts_fwd) { return is_within("num_splits", a->num_splits, 1, PROJECTION_MAX_SEGMENTS); }
WORKSPACE(mhc_norm_fn_parts_fwd) { return tgl_mhc_norm_fn_parts_fwd_workspace_size(a->residual, a->fn); }
THUNK(mhc_norm_fn_parts_fwd)
{
    return tgl_mhc_norm_fn_parts_fwd(a->residual, a->fn, a->norm_weight, a->out_mul_parts, a->sqrsum_parts,
                                     a->workspace, a->workspace_bytes, a->stream);
}

THUNK(mhc_norm_fn_finish_fwd)
{
    const tgl_mhc_params params = { .has_rms_eps = true, .rms_eps = (float)a->eps };
    return tgl_mhc_norm_fn_finish_fwd(a->out_mul_parts, a->sqrsum_parts, a->mixes, a->out_mul, a->sqrsum,
                                      a->num_columns, &params, a->stream);
}
#define FINISH_ARGS                                                                                             \
    "residual[T, N, H], out_mul_parts[S, T, P], sqrsum_parts[S, T], scale[G], base[P], rms_eps: float = 1e-6, " \
    "pre_eps: float = 1e-6, sinkhorn_eps: float = 1e-6, post_mult: float = 2.0, post_eps: float = 0.0, repeat: int = 20"
#define PRE_FINISH_FWD(op, post_mix_, comb_mix_)                                                                     \
    CHECK(op) { return is_within("repeat", a->repeat, 1, INT32_MAX); }                                               \
    THUNK(op)                                                                                                        \
    {                                                                                                                \
        const tgl_mhc_params params = { FINISH_FIELDS(a) };                                                          \
        return tgl_mhc_pre_finish_fwd(a->residual, a->out_mul_parts, a->sqrsum_parts, a->scale, a->base, a->pre_mix, \
                                      post_mix_, comb_mix_, a->out, &params, a->stream);                             \
    }
PRE_FINISH_FWD(mhc_pre_finish_fwd, a->post_mix, a->comb_mix)
PRE_FINISH_FWD(mhc_pre_finish_fwd_gates, a->post_mix, NULL)
PRE_FINISH_FWD(mhc_pre_finish_fwd_head, NULL, NULL)

/* ---- gates ---- */

#define PRE_SPLIT_MIXES_FWD(op, comb_)                                                                           \
    CHECK(op) { return is_within("num_streams", a->num_streams, 1, MHC_MAX_STREAMS); }                           \
    THUNK(op)                                                                                                    \
    {                                                                                                            \
        const tgl_mhc_params params = { GATE_FIELDS(a) };                                                        \
        return tgl_mhc_pre_split_mixes_fwd(a->mixes, a->scale, a->base, a->pre_mix, a->post_mix, comb_, &params, \
                                           a->stream);                                                           \
    }
PRE_SPLIT_MIXES_FWD(mhc_pre_split_mixes_fwd, a->comb)
PRE_SPLIT_MIXES_FWD(mhc_pre_split_mixes_fwd_gates, NULL)
WORKSPACE(mhc_pre_split_mixes_bwd) { return tgl_mhc_pre_split_mixes_bwd_workspace_size(a->mixes); }
THUNK(mhc_pre_split_mixes_bwd)
{
    const tgl_mhc_params params = { .has_post_mult = true, .post_mult = (float)a->post_mult };
    return tgl_mhc_pre_split_mixes_bwd(a->mixes, a->scale, a->base, a->grad_pre_mix, a->grad_post_mix, a->grad_comb,
                                       a->grad_mixes, a->grad_scale, a->grad_base, &params, a->workspace,
                                       a->workspace_bytes, a->stream);
}

THUNK(mhc_head_compute_mix_fwd)
{
    const tgl_mhc_params params = { .has_pre_eps = true, .pre_eps = (float)a->pre_eps };
    return tgl_mhc_head_compute_mix_fwd(a->mixes, a->scale, a->base, a->pre_mix, &params, a->stream);
}
WORKSPACE(mhc_head_compute_mix_bwd) { return tgl_mhc_head_compute_mix_bwd_workspace_size(a->mixes); }
THUNK(mhc_head_compute_mix_bwd)
{
    return tgl_mhc_head_compute_mix_bwd(a->mixes, a->scale, a->base, a->grad_pre_mix, a->grad_mixes, a->grad_scale,
                                        a->grad_base, a->workspace, a->workspace_bytes, a->stream);
}

/* ---- recompute ---- Takes lists of tensors, which rows do not have: tegula/modeling makes a torch operator of it. */

enum { LAYER_TENSORS = 6 };
static const struct {
    const char *name;
    int ndim;
} LAYER[LAYER_TENSORS] = { { "pre_mix", 2 },  { "x", 2 },           { "post_mix", 2 },
                           { "comb_mix", 3 }, { "layer_input", 2 }, { "new_residual", 3 } };

static bool read_named(const char *word, int ndim, PyObject *object, tensor_ref *ref)
{
    PyObject *name = PyUnicode_FromString(word);
    const bool ok = name && read_tensor(name, object, entry_of(object), NULL, ref);
    Py_XDECREF(name);
    if (!ok || ref->tensor.ndim == ndim) return ok;
    PyErr_Format(PyExc_ValueError, "%s: has %d dimensions, want %d", word, ref->tensor.ndim, ndim);
    return false;
}

/* Tensors of a tuple, of which those that are None are NULL; counts them. */
static bool read_layer(PyObject *layer, tensor_ref *refs, int *num_refs, tgl_mhc_layer *to)
{
    DLTensor *t[LAYER_TENSORS] = { NULL };
    for (int i = 0; i < LAYER_TENSORS; i++) {
        PyObject *object = PyTuple_GetItem(layer, i);
        if (!object) return false;
        if (object == Py_None) continue;
        tensor_ref *ref = &refs[(*num_refs)++];
        if (!read_named(LAYER[i].name, LAYER[i].ndim, object, ref)) return false;
        hold_dims(ref);
        t[i] = &ref->tensor;
    }
    *to = (tgl_mhc_layer){ t[0], t[1], t[2], t[3], t[4], t[5] };
    return true;
}

/* (residual, a tuple of layers, each a tuple of torch's tensors or None): writes their last two. */
static PyObject *multilayer_recompute(PyObject *module, PyObject *args)
{
    PyObject *residual, *all;
    if (!PyArg_ParseTuple(args, "OO!", &residual, &PyTuple_Type, &all)) return NULL;
    const Py_ssize_t n = PyTuple_Size(all);
    tensor_ref *refs = calloc(1 + LAYER_TENSORS * (size_t)n, sizeof *refs);
    tgl_mhc_layer *layers = calloc((size_t)n + 1, sizeof *layers);
    tgl_stream stream = NULL;
    int num_refs = 1;
    bool ok = refs && layers;
    if (!ok) PyErr_NoMemory();
    ok = ok && read_named("residual", 3, residual, &refs[0]);
    if (ok) hold_dims(&refs[0]);
    ok = ok && (!refs[0].api || stream_of(refs[0].api, &refs[0].tensor, &stream));
    for (Py_ssize_t i = 0; ok && i < n; i++) ok = read_layer(PyTuple_GetItem(all, i), refs, &num_refs, &layers[i]);
    tgl_status status = TGL_OK;
    if (ok) {
        PyThreadState *const thread = PyEval_SaveThread(); /* other threads run Python meanwhile */
        status = tgl_mhc_multilayer_recompute(&refs[0].tensor, layers, n, stream);
        PyEval_RestoreThread(thread);
    }
    for (int i = 0; refs && i < num_refs; i++) drop_tensor(&refs[i]);
    free(refs);
    free(layers);
    if (!ok) return NULL;
    if (status != TGL_OK) return raise_status(status);
    Py_RETURN_NONE;
}

static PyMethodDef others[] = {
    { "mhc_multilayer_recompute", multilayer_recompute, METH_VARARGS, NULL },
    { NULL, NULL, 0, NULL },
};

/* ---- Sinkhorn ---- */

CHECK(mhc_sinkhorn_fwd) { return is_within("repeat", a->repeat, 1, INT32_MAX); }
THUNK(mhc_sinkhorn_fwd)
{
    const tgl_mhc_params params = { SINKHORN_FIELDS(a, a->eps) };
    return tgl_mhc_sinkhorn_fwd(a->x, a->out, &params, a->stream);
}
CHECK(mhc_sinkhorn_bwd) { return is_within("repeat", a->repeat, 1, INT32_MAX); }
THUNK(mhc_sinkhorn_bwd)
{
    const tgl_mhc_params params = { SINKHORN_FIELDS(a, a->eps) };
    return tgl_mhc_sinkhorn_bwd(a->grad_out, a->x, a->grad_x, &params, a->stream);
}

WORKSPACE(mhc_split_sinkhorn_bwd) { return tgl_mhc_split_sinkhorn_bwd_workspace_size(a->mixes); }
CHECK(mhc_split_sinkhorn_bwd) { return is_within("repeat", a->repeat, 1, INT32_MAX); }
THUNK(mhc_split_sinkhorn_bwd)
{
    const tgl_mhc_params params = { .has_post_mult = true,
                                    .post_mult = (float)a->post_mult,
                                    SINKHORN_FIELDS(a, a->eps) };
    return tgl_mhc_split_sinkhorn_bwd(a->mixes, a->scale, a->base, a->grad_pre_mix, a->grad_post_mix, a->grad_comb_mix,
                                      a->grad_mixes, a->grad_scale, a->grad_base, &params, a->workspace,
                                      a->workspace_bytes, a->stream);
}

CHECK(mhc_split_sinkhorn_fwd)
{
    return is_within("num_streams", a->num_streams, 1, MHC_MAX_STREAMS) && is_within("repeat", a->repeat, 1, INT32_MAX);
}
THUNK(mhc_split_sinkhorn_fwd)
{
    const tgl_mhc_params params = { GATE_FIELDS(a), SINKHORN_FIELDS(a, a->eps) };
    return tgl_mhc_split_sinkhorn_fwd(a->mixes, a->scale, a->base, a->pre_mix, a->post_mix, a->comb_mix, &params,
                                      a->stream);
}

static op_row rows[] = {
    { .text = "mhc_expand_fwd(x[T, H], num_streams: int) -> out: x[T, num_streams, H]",
      .doc = "An embedding to all streams: out[t, i] = x[t].",
      .check = check_mhc_expand_fwd,
      .call = call_mhc_expand_fwd },
    { .text = "mhc_expand_bwd(grad_out[T, N, H]) -> grad_x: grad_out[T, H]",
      .doc = "The sum of streams, in order, in float32, rounded once.",
      .call = call_mhc_expand_bwd },
    { .text = "mhc_pre_apply_mix_fwd(x[T, N, H], mix[T, N]) -> out: x[T, H]",
      .doc = "The input of a sublayer: the sum over streams i of mix[t, i] * x[t, i], in float32, rounded once.",
      .call = call_mhc_pre_apply_mix_fwd },
    { .text = "mhc_pre_apply_mix_bwd(grad_out[T, H], x[T, N, H], mix[T, N]) -> grad_x: x[T, N, H], "
              "grad_mix: f32[T, N]",
      .is_wrapped = true,
      .call = call_mhc_pre_apply_mix_bwd },
    { .text = "mhc_pre_apply_mix_bwd_into(grad_out[T, H], x[T, N, H], mix[T, N], grad_x[T, N, H]!) -> "
              "grad_mix: f32[T, N]",
      .is_wrapped = true,
      .call = call_mhc_pre_apply_mix_bwd_into },
    { .text = "mhc_post_fwd(x[T, H], residual[T, N, H], post_mix[T, N], comb_mix[T, N, M]?) -> out: residual[T, N, H]",
      .doc =
          "The output of a sublayer into the residual: post_mix[t, o] * x[t] plus the sum over streams i of "
          "comb_mix[t, i, o] * residual[t, i], or residual[t, o] if comb_mix is None, in float32, rounded once. out may be "
          "residual.",
      .call = call_mhc_post_fwd },
    { .text = "mhc_post_bwd(grad_out[T, N, H], x[T, H], residual[T, N, H], post_mix[T, N], comb_mix[T, N, M]) -> "
              "grad_x: x[T, H], grad_residual: residual[T, N, H], grad_post_mix: f32[T, N], "
              "grad_comb_mix: f32[T, N, M]",
      .is_wrapped = true,
      .call = call_mhc_post_bwd },
    { .text = "mhc_post_bwd_gates(grad_out[T, N, H], x[T, H], post_mix[T, N]) -> grad_x: x[T, H], "
              "grad_post_mix: f32[T, N]",
      .is_wrapped = true,
      .call = call_mhc_post_bwd_gates },
    { .text = "mhc_norm_fn_fwd(residual[T, N, H], fn[P, K], norm_weight[K]?, eps: float = 1e-6) -> mixes: f32[T, P], "
              "out_mul: f32[T, P], sqrsum: f32[T]",
      .doc = "The mixes of a token: RMSNorm of all its columns, with gain norm_weight if given, times the rows of "
             "fn, in TF32. Also their products before the norm, and the sum of squares.",
      .call = call_mhc_norm_fn_fwd,
      .workspace = workspace_mhc_norm_fn_fwd },
    { .text = "mhc_norm_fn_bwd(grad_mixes[T, P], residual[T, N, H], fn[P, K], out_mul[T, P], sqrsum[T], eps: float) -> "
              "grad_residual: residual[T, N, H], grad_fn: f32[P, K]",
      .is_wrapped = true,
      .call = call_mhc_norm_fn_bwd,
      .workspace = workspace_mhc_norm_fn_bwd },
    { .text = "mhc_norm_fn_bwd_weighted(grad_mixes[T, P], residual[T, N, H], fn[P, K], out_mul[T, P], sqrsum[T], "
              "norm_weight[K], eps: float) -> grad_residual: residual[T, N, H], grad_fn: f32[P, K], "
              "grad_norm_weight: f32[K]",
      .is_wrapped = true,
      .call = call_mhc_norm_fn_bwd_weighted,
      .workspace = workspace_mhc_norm_fn_bwd_weighted },
    { .text = "mhc_norm_fn_bwd_into(grad_mixes[T, P], residual[T, N, H], fn[P, K], out_mul[T, P], sqrsum[T], "
              "grad_residual[T, N, H]!, eps: float) -> grad_fn: f32[P, K]",
      .is_wrapped = true,
      .call = call_mhc_norm_fn_bwd_into,
      .workspace = workspace_mhc_norm_fn_bwd_into },
    { .text = "mhc_norm_fn_bwd_weighted_into(grad_mixes[T, P], residual[T, N, H], fn[P, K], out_mul[T, P], sqrsum[T], "
              "norm_weight[K], grad_residual[T, N, H]!, eps: float) -> grad_fn: f32[P, K], grad_norm_weight: f32[K]",
      .is_wrapped = true,
      .call = call_mhc_norm_fn_bwd_weighted_into,
      .workspace = workspace_mhc_norm_fn_bwd_weighted_into },
    { .text = "mhc_pre_fwd(" PRE_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N], post_mix: f32[T, N], "
              "comb_mix: f32[T, N, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_fwd,
      .call = call_mhc_pre_fwd,
      .workspace = workspace_mhc_pre_fwd },
    { .text = "mhc_pre_fwd_gates(" PRE_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N], post_mix: f32[T, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_fwd_gates,
      .call = call_mhc_pre_fwd_gates,
      .workspace = workspace_mhc_pre_fwd_gates },
    { .text = "mhc_pre_fwd_head(" PRE_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_fwd_head,
      .call = call_mhc_pre_fwd_head,
      .workspace = workspace_mhc_pre_fwd_head },
    { .text = "mhc_norm_fn_parts_fwd(residual[T, N, H], fn[P, K], norm_weight[K]?, num_splits: int = 1) -> "
              "out_mul_parts: f32[num_splits, T, P], sqrsum_parts: f32[num_splits, T]",
      .doc = "The products and sums of squares of mhc_norm_fn_fwd as 1, 2, 4, 8 or 16 parts each, of which "
             "mhc_norm_fn_finish_fwd makes the same mixes, to the bit.",
      .check = check_mhc_norm_fn_parts_fwd,
      .call = call_mhc_norm_fn_parts_fwd,
      .workspace = workspace_mhc_norm_fn_parts_fwd },
    { .text = "mhc_norm_fn_finish_fwd(out_mul_parts[S, T, P], sqrsum_parts[S, T], num_columns: int, eps: float = 1e-6) "
              "-> mixes: f32[T, P], out_mul: f32[T, P], sqrsum: f32[T]",
      .doc = "What mhc_norm_fn_fwd gives, from its products and sums of squares as S parts each, such as the splits of "
             "a GEMM, of num_columns (K) columns in all. Parts are added as a binary tree.",
      .call = call_mhc_norm_fn_finish_fwd },
    { .text = "mhc_pre_finish_fwd(" FINISH_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N], post_mix: f32[T, N], "
              "comb_mix: f32[T, N, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_finish_fwd,
      .call = call_mhc_pre_finish_fwd },
    { .text = "mhc_pre_finish_fwd_gates(" FINISH_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N], "
              "post_mix: f32[T, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_finish_fwd_gates,
      .call = call_mhc_pre_finish_fwd_gates },
    { .text = "mhc_pre_finish_fwd_head(" FINISH_ARGS ") -> out: residual[T, H], pre_mix: f32[T, N]",
      .is_wrapped = true,
      .check = check_mhc_pre_finish_fwd_head,
      .call = call_mhc_pre_finish_fwd_head },
    { .text = "mhc_pre_split_mixes_fwd(mixes[T, P], scale[G], base[P], num_streams: int, post_mult: float = 2.0, "
              "pre_eps: float = 1e-6, post_eps: float = 0.0) -> pre_mix: f32[T, num_streams], "
              "post_mix: f32[T, num_streams], comb: f32[T, num_streams, num_streams]",
      .is_wrapped = true,
      .check = check_mhc_pre_split_mixes_fwd,
      .call = call_mhc_pre_split_mixes_fwd },
    { .text = "mhc_pre_split_mixes_fwd_gates(mixes[T, P], scale[G], base[P], num_streams: int, post_mult: float = 2.0, "
              "pre_eps: float = 1e-6, post_eps: float = 0.0) -> pre_mix: f32[T, num_streams], "
              "post_mix: f32[T, num_streams]",
      .is_wrapped = true,
      .check = check_mhc_pre_split_mixes_fwd_gates,
      .call = call_mhc_pre_split_mixes_fwd_gates },
    { .text = "mhc_pre_split_mixes_bwd(mixes[T, P], scale[G], base[P], grad_pre_mix[T, N]?, grad_post_mix[T, N]?, "
              "grad_comb[T, N, M]?, post_mult: float = 2.0) -> grad_mixes: f32[T, P], grad_scale: f32[G], "
              "grad_base: f32[P]",
      .doc = "The gradients of mhc_pre_split_mixes_fwd's tensors; a gradient that is None is zero.",
      .call = call_mhc_pre_split_mixes_bwd,
      .workspace = workspace_mhc_pre_split_mixes_bwd },
    { .text = "mhc_head_compute_mix_fwd(mixes[T, N], scale[G], base[N], pre_eps: float = 1e-6) -> pre_mix: f32[T, N]",
      .doc = "The gate of a head: sigmoid(mixes * scale + base) + pre_eps.",
      .call = call_mhc_head_compute_mix_fwd },
    { .text = "mhc_head_compute_mix_bwd(mixes[T, N], scale[G], base[N], grad_pre_mix[T, N]) -> grad_mixes: f32[T, N], "
              "grad_scale: f32[G], grad_base: f32[N]",
      .doc = "The gradients of mhc_head_compute_mix_fwd's tensors.",
      .call = call_mhc_head_compute_mix_bwd,
      .workspace = workspace_mhc_head_compute_mix_bwd },
    { .text = "mhc_sinkhorn_fwd(x[T, N, M], repeat: int = 20, eps: float = 1e-6) -> out: f32[T, N, M]",
      .doc = "Logits to a nearly doubly stochastic matrix: softmax of rows plus eps, columns divided by their sums "
             "plus eps, then repeat - 1 times rows and columns. out may be x.",
      .check = check_mhc_sinkhorn_fwd,
      .call = call_mhc_sinkhorn_fwd },
    { .text = "mhc_sinkhorn_bwd(grad_out[T, N, M], x[T, N, M], repeat: int = 20, eps: float = 1e-6) -> "
              "grad_x: f32[T, N, M]",
      .doc = "The gradient of mhc_sinkhorn_fwd's x, by all of its steps backwards.",
      .check = check_mhc_sinkhorn_bwd,
      .call = call_mhc_sinkhorn_bwd },
    { .text = "mhc_split_sinkhorn_fwd(mixes[T, P], scale[G], base[P], num_streams: int, post_mult: float = 2.0, "
              "pre_eps: float = 1e-6, post_eps: float = 0.0, repeat: int = 20, eps: float = 1e-6) -> "
              "pre_mix: f32[T, num_streams], post_mix: f32[T, num_streams], "
              "comb_mix: f32[T, num_streams, num_streams]",
      .doc = "mhc_pre_split_mixes_fwd, and mhc_sinkhorn_fwd of its comb, in one launch, the same bits.",
      .check = check_mhc_split_sinkhorn_fwd,
      .call = call_mhc_split_sinkhorn_fwd },
    { .text = "mhc_split_sinkhorn_bwd(mixes[T, P], scale[G], base[P], grad_pre_mix[T, N]?, grad_post_mix[T, N]?, "
              "grad_comb_mix[T, N, M]?, post_mult: float = 2.0, repeat: int = 20, eps: float = 1e-6) -> "
              "grad_mixes: f32[T, P], grad_scale: f32[G], grad_base: f32[P]",
      .doc = "The gradients of mhc_split_sinkhorn_fwd's tensors, in one launch; a gradient that is None is zero.",
      .check = check_mhc_split_sinkhorn_bwd,
      .call = call_mhc_split_sinkhorn_bwd,
      .workspace = workspace_mhc_split_sinkhorn_bwd },
};
DOMAIN_WITH(mhc, others);
