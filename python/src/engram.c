/* SPDX-License-Identifier: MIT
 * engram.c - tegula.engram: a row of text per op (parse.c has the grammar), the ranges of its numbers, and a thunk into
 * the C API. */
#include "glue.h"
#include "row_args.h"
#include "engram/common/engram_limits.h"
#include "tegula/engram.h"
#include "tegula/experimental.h"

/* ---- ids to rows ---- */

#define COLUMNS "multipliers[L, N], vocab_sizes[L, M, J], offsets[L, C]"

CHECK(ngram_windows) { return is_within("max_ngram_size", a->max_ngram_size, 1, COLUMN_MAX_NGRAM); }
THUNK(ngram_windows)
{
    const tgl_engram_ngram_windows_params params = { .pad_id = a->pad_id,
                                                     .has_stop_id = a->has_stop_id,
                                                     .stop_id = a->stop_id };
    return tgl_engram_ngram_windows(a->input_ids, a->cu_seqlens, a->history, a->lookup, a->out, &params, a->stream);
}

THUNK(engram_rows)
{
    const tgl_engram_batch batch = { .cu_seqlens = a->cu_seqlens,
                                     .start_pos = a->start_pos,
                                     .slots = a->slots,
                                     .has_null_slot = a->has_null_slot,
                                     .null_slot = a->null_slot };
    const tgl_engram_ngram ngram = { .token_map = a->token_map,
                                     .multipliers = a->multipliers,
                                     .vocab_sizes = a->vocab_sizes,
                                     .offsets = a->offsets,
                                     .pad_id = a->pad_id,
                                     .has_stop_id = a->has_stop_id,
                                     .stop_id = a->stop_id,
                                     .history_newest_first = a->history_newest_first != 0,
                                     .hash_masked = a->hash_masked != 0,
                                     .keep_ring = a->keep_ring != 0 };
    return tgl_engram_rows(a->input_ids, a->image_token_mask, a->history, a->ring, a->rows, &batch, &ngram, a->stream);
}

THUNK(engram_hash)
{
    return tgl_engram_hash(a->ngram_token_ids, a->multipliers, a->vocab_sizes, a->offsets, a->image_token_mask, a->out,
                           a->stream);
}

/* ---- rows ---- */

static bool is_one_factor(const DLTensor *sf) { return sf && sf->dtype.code == TGL_DL_FLOAT; }
static bool has_factors(const DLTensor *sf)
{
    if (!sf || sf->dtype.code != TGL_DL_FLOAT || (sf->shape[0] == 1 && sf->shape[1] == 1)) return true;
    PyErr_Format(PyExc_ValueError, "table_sf: shape is [%lld, %lld], want [1] (f32 is one factor for the table)",
                 (long long)sf->shape[0], (long long)sf->shape[1]);
    return false;
}
static DLTensor as_vector(const DLTensor *sf) /* one factor comes as a matrix of one element */
{
    DLTensor made = *sf;
    made.ndim = 1;
    return made;
}
#define LOOKUP_FACTORS (is_one_factor(a->table_sf) ? (DLTensor[]){ as_vector(a->table_sf) } : a->table_sf)

CHECK(engram_lookup) { return has_factors(a->table_sf); }
THUNK(engram_lookup)
{
    const tgl_engram_lookup_params params = { .row_begin = a->row_begin, .num_sms = a->num_sms };
    return tgl_engram_lookup(a->table, LOOKUP_FACTORS, a->indices, a->out, a->out_sf, &params, a->stream);
}

CHECK(engram_lookup_all) { return has_factors(a->table_sf); }
THUNK(engram_lookup_all)
{
    const tgl_engram_lookup_params params = { .num_sms = a->num_sms };
    return tgl_engram_lookup(a->table, LOOKUP_FACTORS, NULL, a->out, a->out_sf, &params, a->stream);
}

THUNK(engram_lookup_staged)
{
    const tgl_engram_lookup_params params = { .row_begin = a->row_begin };
    return tgl_engram_lookup_staged(a->table, a->table_sf, a->indices, a->staging, a->out, &params, a->stream);
}

WORKSPACE(engram_lookup_bwd)
{
    return tgl_engram_lookup_bwd_workspace_size(a->grad_out, a->indices, &(tgl_engram_lookup_params){ 0 });
}
THUNK(engram_lookup_bwd)
{
    const tgl_engram_lookup_params params = { .row_begin = a->row_begin, .num_rows = a->num_rows };
    return tgl_engram_lookup_bwd(a->grad_out, a->indices, NULL, a->unique_rows, a->grad_rows, a->num_unique, &params,
                                 a->workspace, a->workspace_bytes, a->stream);
}

WORKSPACE(engram_lookup_bwd_into)
{
    return tgl_engram_lookup_bwd_workspace_size(a->grad_out, a->indices, &(tgl_engram_lookup_params){ 0 });
}
THUNK(engram_lookup_bwd_into)
{
    const tgl_engram_lookup_params params = { .row_begin = a->row_begin };
    return tgl_engram_lookup_bwd(a->grad_out, a->indices, a->grad_table, NULL, NULL, NULL, &params, a->workspace,
                                 a->workspace_bytes, a->stream);
}

/* ---- gate ---- */

#define GATE_K "k[T, H, D], v[T, D], "
#define GATE_KV "kv[T, G, D], "
#define GATE_WEIGHTS "weight_hidden[H, D], weight_embed[H, D]?, image_token_mask[T]?, "
#define GATE_ARGS(k) "hidden_states[T, H, D], " k GATE_WEIGHTS GATE_NUMBERS
#define GATE_ARGS_IN_PLACE(k) "hidden_states[T, H, D]!, " k GATE_WEIGHTS GATE_NUMBERS
#define GATE_NUMBERS "eps: float, clamp_value: float, add_residual: bool, zero_centered: bool, sign: {zero|bit}"
#define GATE_SAVED "dot: f32[T, H], gate_score: f32[T, H], rstd_x: f32[T, H], rstd_k: f32[T, H]"
#define GATE_BWD_ARGS(k)                                                                                \
    "grad_out[T, H, D], hidden_states[T, H, D], " k GATE_WEIGHTS                                        \
    "dot[T, H], gate_score[T, H], rstd_x[T, H], rstd_k[T, H], clamp_value: float, add_residual: bool, " \
    "zero_centered: bool"
/* Gradients that are not wanted are empty; those of the weights if num_partials is 0. */
#define GATE_GRAD_X "grad_hidden_states: bf16[T * want_x, H, D], "
#define GATE_PARTIAL "grad_w_partial: f32[num_partials, H, D]"

#define GATE_PARAMS(a)                          \
    { .eps = (float)(a)->eps,                   \
      .clamp_value = (float)(a)->clamp_value,   \
      .no_residual = !(a)->add_residual,        \
      .zero_centered = (a)->zero_centered != 0, \
      .sign = (tgl_engram_sign)(a)->sign }
#define GATE_BWD_PARAMS(a)                    \
    { .clamp_value = (float)(a)->clamp_value, \
      .no_residual = !(a)->add_residual,      \
      .zero_centered = (a)->zero_centered != 0 }

/* Keys and value as two views of a tensor [T, H + 1, D]. */
typedef struct {
    DLTensor k, v;
    int64_t k_shape[3], k_strides[3], v_shape[2], v_strides[2];
} key_and_value;
static void split(const DLTensor *kv, key_and_value *made)
{
    const int64_t tokens = kv->shape[0], streams = kv->shape[1] - 1, hidden = kv->shape[2];
    const int64_t packed[] = { kv->shape[1] * hidden, hidden, 1 }, *strides = kv->strides ? kv->strides : packed;
    *made = (key_and_value){ *kv,
                             *kv,
                             { tokens, streams, hidden },
                             { strides[0], strides[1], strides[2] },
                             { tokens, hidden },
                             { strides[0], strides[2] } };
    made->k.shape = made->k_shape, made->k.strides = made->k_strides;
    made->v.ndim = 2, made->v.shape = made->v_shape, made->v.strides = made->v_strides;
    if (tokens > 0 && hidden > 0) made->v.byte_offset += (uint64_t)(streams * strides[1] * (kv->dtype.bits / 8));
}

static bool has_value(const DLTensor *hidden_states, const DLTensor *kv)
{
    const int64_t *is = kv->shape, *x = hidden_states->shape;
    if (is[0] == x[0] && is[1] == x[1] + 1 && is[2] == x[2]) return true;
    PyErr_Format(PyExc_ValueError, "kv: shape is [%lld, %lld, %lld], want [%lld, %lld, %lld]", (long long)is[0],
                 (long long)is[1], (long long)is[2], (long long)x[0], (long long)x[1] + 1, (long long)x[2]);
    return false;
}

THUNK(fused_weight) { return tgl_engram_fused_weight(a->weight_hidden, a->weight_embed, a->out, a->stream); }

/* The last five arguments are the output, then what is saved for the gradient. */
#define GATE_FWD_OF(k_, v_, ...)                                                                                       \
    tgl_engram_gate_fwd(a->hidden_states, k_, v_, a->weight_hidden, a->weight_embed, a->image_token_mask, __VA_ARGS__, \
                        &(tgl_engram_gate_params)GATE_PARAMS(a), a->stream)
#define GATE_FWD(op, ...) \
    THUNK(op) { return GATE_FWD_OF(a->k, a->v, __VA_ARGS__); }
#define GATE_KV_FWD(op, ...)                                 \
    CHECK(op) { return has_value(a->hidden_states, a->kv); } \
    THUNK(op)                                                \
    {                                                        \
        key_and_value kv;                                    \
        split(a->kv, &kv);                                   \
        return GATE_FWD_OF(&kv.k, &kv.v, __VA_ARGS__);       \
    }
GATE_FWD(engram_gate_fwd, a->output, a->dot, a->gate_score, a->rstd_x, a->rstd_k)
GATE_FWD(engram_gate_fwd_alone, a->output, NULL, NULL, NULL, NULL)
THUNK(engram_gate_scores) /* any value will do: it is not read */
{
    DLTensor v = *a->k;
    int64_t packed[] = { v.shape[1] * v.shape[2], v.shape[2], 1 }, *strides = v.strides ? v.strides : packed;
    int64_t v_shape[] = { v.shape[0], v.shape[2] }, v_strides[] = { strides[0], strides[2] };
    v.ndim = 2, v.shape = v_shape, v.strides = v_strides;
    const tgl_engram_gate_params params = { .eps = (float)a->eps,
                                            .clamp_value = (float)a->clamp_value,
                                            .zero_centered = a->zero_centered != 0,
                                            .sign = (tgl_engram_sign)a->sign };
    return tgl_engram_gate_fwd(a->hidden_states, a->k, &v, a->weight_hidden, a->weight_embed, a->image_token_mask, NULL,
                               a->dot, a->gate_score, a->rstd_x, a->rstd_k, &params, a->stream);
}
GATE_KV_FWD(engram_gate_kv_fwd, a->output, a->dot, a->gate_score, a->rstd_x, a->rstd_k)
GATE_KV_FWD(engram_gate_kv_fwd_alone, a->output, NULL, NULL, NULL, NULL)
GATE_KV_FWD(engram_gate_kv_fwd_inplace, a->hidden_states, NULL, NULL, NULL, NULL)

CHECK(engram_gate_bwd) { return is_within("num_partials", a->num_partials, 0, INT32_MAX); }
THUNK(engram_gate_bwd)
{
    const tgl_engram_gate_params params = GATE_BWD_PARAMS(a);
    return tgl_engram_gate_bwd(a->grad_out, a->hidden_states, a->k, a->v, a->weight_hidden, a->weight_embed,
                               a->image_token_mask, a->dot, a->gate_score, a->rstd_x, a->rstd_k,
                               a->want_x ? a->grad_hidden_states : NULL, a->want_k ? a->grad_k : NULL,
                               a->want_v ? a->grad_v : NULL, a->num_partials ? a->grad_w_partial : NULL, &params,
                               a->stream);
}
CHECK(engram_gate_kv_bwd)
{
    return has_value(a->hidden_states, a->kv) && is_within("num_partials", a->num_partials, 0, INT32_MAX);
}
THUNK(engram_gate_kv_bwd)
{
    const tgl_engram_gate_params params = GATE_BWD_PARAMS(a);
    key_and_value kv, grad;
    split(a->kv, &kv);
    split(a->grad_kv, &grad);
    return tgl_engram_gate_bwd(a->grad_out, a->hidden_states, &kv.k, &kv.v, a->weight_hidden, a->weight_embed,
                               a->image_token_mask, a->dot, a->gate_score, a->rstd_x, a->rstd_k,
                               a->want_x ? a->grad_hidden_states : NULL, a->want_kv ? &grad.k : NULL,
                               a->want_kv ? &grad.v : NULL, a->num_partials ? a->grad_w_partial : NULL, &params,
                               a->stream);
}

THUNK(grad_w_reduce)
{
    return tgl_engram_grad_w_reduce(a->grad_w_partial, a->weight_hidden, a->weight_embed, a->grad_weight_hidden,
                                    a->grad_weight_embed, a->zero_centered != 0, a->stream);
}

/* ---- short convolution ---- */

#define CONV_ARGS                                                                                           \
    "x[T, H, D], norm_weight[H, D], conv_weight[C, K], bias[C]?, residual[T, H, D]?, mask[T]?, "            \
    "ring[S, R, H, D]?!, cu_seqlens[E]?, start_pos[B]?, slots[B]?, dilation: int, eps: float, silu: bool, " \
    "add_input: bool, zero_centered: bool, round_each: bool, keep_ring: bool, null_slot: int? = None"
#define CONV_BATCH(a)                      \
    { .cu_seqlens = (a)->cu_seqlens,       \
      .start_pos = (a)->start_pos,         \
      .slots = (a)->slots,                 \
      .has_null_slot = (a)->has_null_slot, \
      .null_slot = (a)->null_slot }
#define CONV_PARAMS(a)                          \
    { .dilation = (a)->dilation,                \
      .has_eps = true,                          \
      .eps = (float)(a)->eps,                   \
      .no_activation = !(a)->silu,              \
      .add_input = (a)->add_input != 0,         \
      .zero_centered = (a)->zero_centered != 0, \
      .round_each = (a)->round_each != 0,       \
      .keep_ring = (a)->keep_ring != 0 }
#define CONV_PARTIALS                                          \
    "grad_norm_partial: f32[num_partials * want_norm, H, D], " \
    "grad_conv_partial: f32[num_partials * want_conv, C, K], " \
    "grad_bias_partial: f32[num_partials * want_bias, C]"

static bool is_dilation(int64_t is) { return is_within("dilation", is, 1, (1 << CONV_DILATION_BITS) - 1); }
#define SHORT_CONV(op, rstd_)                                                                                          \
    CHECK(op) { return is_dilation(a->dilation); }                                                                     \
    THUNK(op)                                                                                                          \
    {                                                                                                                  \
        const tgl_engram_batch batch = CONV_BATCH(a);                                                                  \
        const tgl_engram_short_conv_params params = CONV_PARAMS(a);                                                    \
        return tgl_engram_short_conv_fwd(a->x, a->norm_weight, a->conv_weight, a->bias, a->residual, a->mask, a->ring, \
                                         a->out, rstd_, &batch, &params, a->stream);                                   \
    }
SHORT_CONV(short_conv, a->rstd)
SHORT_CONV(short_conv_alone, NULL)

/* ---- gate and short convolution ---- */

#define GATE_CONV_ARGS                                                                                           \
    "hidden_states[T, H, D], k[T, H, D], v[T, D], weight_hidden[H, D], weight_embed[H, D]?, norm_weight[H, D], " \
    "conv_weight[C, K], bias[C]?, mask[T]?, ring[S, R, H, D]?!, cu_seqlens[E]?, start_pos[B]?, slots[B]?, "      \
    "eps: float, clamp_value: float, dilation: int, norm_eps: float, silu: bool, add_residual: bool, "           \
    "zero_centered: bool, sign: {zero|bit}, norm_zero_centered: bool, round_each: bool, keep_ring: bool, "       \
    "null_slot: int? = None"
CHECK(engram_gate_conv_fwd) { return is_dilation(a->dilation); }
THUNK(engram_gate_conv_fwd)
{
    const tgl_engram_batch batch = CONV_BATCH(a);
    const tgl_engram_gate_conv_params params = { .eps = (float)a->eps,
                                                 .clamp_value = (float)a->clamp_value,
                                                 .no_residual = !a->add_residual,
                                                 .zero_centered = a->zero_centered != 0,
                                                 .sign = (tgl_engram_sign)a->sign,
                                                 .dilation = a->dilation,
                                                 .has_norm_eps = true,
                                                 .norm_eps = (float)a->norm_eps,
                                                 .no_activation = !a->silu,
                                                 .norm_zero_centered = a->norm_zero_centered != 0,
                                                 .round_each = a->round_each != 0,
                                                 .keep_ring = a->keep_ring != 0 };
    return tgl_engram_gate_conv_fwd(a->hidden_states, a->k, a->v, a->weight_hidden, a->weight_embed, a->norm_weight,
                                    a->conv_weight, a->bias, a->mask, a->ring, a->out, &batch, &params, a->stream);
}
CHECK(short_conv_bwd) { return is_dilation(a->dilation) && is_within("num_partials", a->num_partials, 1, INT32_MAX); }
THUNK(short_conv_bwd)
{
    const tgl_engram_batch batch = { .cu_seqlens = a->cu_seqlens };
    const tgl_engram_short_conv_params params = { .dilation = a->dilation,
                                                  .no_activation = !a->silu,
                                                  .add_input = a->add_input != 0,
                                                  .zero_centered = a->zero_centered != 0 };
    return tgl_engram_short_conv_bwd(a->x, a->norm_weight, a->conv_weight, a->bias, a->rstd, a->grad_out, a->mask,
                                     a->want_x ? a->grad_x : NULL, a->want_norm ? a->grad_norm_partial : NULL,
                                     a->want_conv ? a->grad_conv_partial : NULL,
                                     a->want_bias ? a->grad_bias_partial : NULL, &batch, &params, a->stream);
}

/* ---- optimiser ---- */

THUNK(engram_sinkhorn_momentum_update)
{
    return tgl_engram_sinkhorn_momentum_update(a->grad, a->momentum_buffer, a->out, a->beta1, a->nesterov, a->stream);
}

CHECK(engram_sinkhorn_step) { return is_within("num_partials", a->num_partials, 1, INT32_MAX); }
THUNK(engram_sinkhorn_step)
{
    return tgl_engram_sinkhorn_step(a->matrix, a->row_scale, a->col_scale, a->row_norm, a->col_sumsq_partial,
                                    a->col_sumsq, (float)a->eps, a->workspace, a->workspace_bytes, a->stream);
}
WORKSPACE(engram_sinkhorn_step) { return tgl_engram_sinkhorn_step_workspace_size(a->matrix, a->col_sumsq); }

THUNK(engram_sinkhorn_step_reduce)
{
    return tgl_engram_sinkhorn_step_reduce(a->col_sumsq_partial, a->col_sumsq, a->stream);
}

THUNK(engram_sinkhorn_finalize)
{
    return tgl_engram_sinkhorn_finalize(a->matrix, a->row_scale, a->col_scale, a->out, (float)a->eps, (float)a->alpha,
                                        a->stream);
}

static op_row rows[] = {
    { .text = "ngram_windows(input_ids[T], max_ngram_size: int, pad_id: int, cu_seqlens[E]?, history[B, M]?, "
              "lookup[V]?, stop_id: int? = None) -> out: i32[T, max_ngram_size]",
      .doc = "Each token id with the max_ngram_size - 1 ids before it in its sequence, newest first, mapped by lookup; "
             "pad_id if there is none. history has the ids before each sequence, oldest first. The first slot, except "
             "the token's own, that holds stop_id (compared before the lookup) and all older ones become pad_id.",
      .check = check_ngram_windows,
      .call = call_ngram_windows },
    { .text =
          "engram_rows(input_ids[T], " COLUMNS ", pad_id: int, token_map[V]?, stop_id: int? = None, "
          "cu_seqlens[E]?, start_pos[B]?, history[B, M]?, ring[S, R]?!, slots[B]?, image_token_mask[T]?, tlc: bool = False, "
          "history_newest_first: bool = False, hash_masked: bool = False, keep_ring: bool = False, "
          "null_slot: int? = None) -> rows: offsets[L, T, C; C, L * C, 1 if tlc]",
      .is_wrapped = true,
      .call = call_engram_rows },
    { .text = "engram_hash(ngram_token_ids[T, N], " COLUMNS ", image_token_mask[T]?) -> out: offsets[L, T, C]",
      .doc = "Table rows of windows of token ids, for all layers: of each order 2 .. N the hash of its ids modulo each "
             "vocab_size, plus the offset, in offsets' dtype. Rows of masked tokens are -1.",
      .call = call_engram_hash },
    { .text = "engram_lookup(indices[T, C], table[R, D] host, table_sf[Q, G]? host, row_begin: int = 0, "
              "packed: bool = False, fmt: {bf16|e4m3|f16|f32} = bf16, num_sms: int = 0, out_sf[U, W]?!) -> "
              "out: u8[T, C, D + D / 32] if packed else fmt[T, C, D]",
      .is_wrapped = true,
      .check = check_engram_lookup,
      .call = call_engram_lookup },
    { .text = "engram_lookup_all(table[R, D], table_sf[Q, G]? host, fmt: {bf16|e4m3|f16|f32} = bf16, "
              "num_sms: int = 0, out_sf[U, W]?!) -> out: fmt[R, 1, D]",
      .is_wrapped = true,
      .check = check_engram_lookup_all,
      .call = call_engram_lookup_all },
    { .text = "engram_lookup_staged(indices[T, C], table[R, D] host, table_sf[Q, G] host, staging[S]! host, "
              "row_begin: int = 0) -> out: u8[T, C, D + D / 32]",
      .is_wrapped = true,
      .call = call_engram_lookup_staged },
    { .text = "engram_lookup_bwd(grad_out[T, C, D], indices[T, C], num_rows: int, row_begin: int = 0) -> "
              "unique_rows: indices[T * C], grad_rows: f32[T * C, D], num_unique: i32[1]",
      .is_wrapped = true,
      .call = call_engram_lookup_bwd,
      .workspace = workspace_engram_lookup_bwd },
    { .text = "engram_lookup_bwd_into(grad_out[T, C, D], indices[T, C], grad_table[R, D]!, row_begin: int = 0) -> None",
      .is_wrapped = true,
      .call = call_engram_lookup_bwd_into,
      .workspace = workspace_engram_lookup_bwd_into },
    { .text = "fused_weight(weight_hidden[H, D], weight_embed[H, D]) -> out: f32[H, D]",
      .doc = "The product of the gate's two RMSNorm weights, in float32.",
      .call = call_fused_weight },
    { .text = "engram_gate_fwd(" GATE_ARGS(GATE_K) ") -> output: bf16[T, H, D], " GATE_SAVED,
      .is_wrapped = true,
      .call = call_engram_gate_fwd },
    { .text = "engram_gate_fwd_alone(" GATE_ARGS(GATE_K) ") -> output: bf16[T, H, D]",
      .is_wrapped = true,
      .call = call_engram_gate_fwd_alone },
    { .text = "engram_gate_scores(hidden_states[T, H, D], k[T, H, D], " GATE_WEIGHTS
              "eps: float, clamp_value: float, zero_centered: bool, sign: {zero|bit}) -> " GATE_SAVED,
      .op = "engram_gate_fwd",
      .is_wrapped = true,
      .call = call_engram_gate_scores },
    { .text = "engram_gate_kv_fwd(" GATE_ARGS(GATE_KV) ") -> output: bf16[T, H, D], " GATE_SAVED,
      .op = "engram_gate_fwd",
      .is_wrapped = true,
      .check = check_engram_gate_kv_fwd,
      .call = call_engram_gate_kv_fwd },
    { .text = "engram_gate_kv_fwd_alone(" GATE_ARGS(GATE_KV) ") -> output: bf16[T, H, D]",
      .op = "engram_gate_fwd",
      .is_wrapped = true,
      .check = check_engram_gate_kv_fwd_alone,
      .call = call_engram_gate_kv_fwd_alone },
    { .text = "engram_gate_kv_fwd_inplace(" GATE_ARGS_IN_PLACE(GATE_KV) ") -> None",
      .op = "engram_gate_fwd",
      .is_wrapped = true,
      .check = check_engram_gate_kv_fwd_inplace,
      .call = call_engram_gate_kv_fwd_inplace },
    { .text = "engram_gate_bwd(" GATE_BWD_ARGS(GATE_K) ", want_x: bool, want_k: bool, want_v: bool, num_partials: int) "
                                                       "-> " GATE_GRAD_X "grad_k: bf16[T * want_k, H, D], "
                                                       "grad_v: bf16[T * want_v, D], " GATE_PARTIAL,
      .is_wrapped = true,
      .check = check_engram_gate_bwd,
      .call = call_engram_gate_bwd },
    { .text = "engram_gate_kv_bwd(" GATE_BWD_ARGS(GATE_KV) ", want_x: bool, want_kv: bool, num_partials: int) "
                                                           "-> " GATE_GRAD_X
                                                           "grad_kv: bf16[T * want_kv, G, D], " GATE_PARTIAL,
      .op = "engram_gate_bwd",
      .is_wrapped = true,
      .check = check_engram_gate_kv_bwd,
      .call = call_engram_gate_kv_bwd },
    { .text = "grad_w_reduce(grad_w_partial[P, H, D], weight_hidden[H, D], weight_embed[H, D], "
              "grad_weight_hidden[H, D]!, grad_weight_embed[H, D]!, zero_centered: bool = False) -> None",
      .doc = "Adds the gradients of the gate's two weights to float32 tensors: the sum of the partial gradients of "
             "their product, times the other weight (plus 1, if they are stored minus 1).",
      .call = call_grad_w_reduce },
    { .text = "short_conv(" CONV_ARGS ") -> out: bf16[T, H, D], rstd: f32[T, H]",
      .op = "engram_short_conv_fwd",
      .is_wrapped = true,
      .check = check_short_conv,
      .call = call_short_conv },
    { .text = "short_conv_alone(" CONV_ARGS ") -> out: bf16[T, H, D]",
      .op = "engram_short_conv_fwd",
      .is_wrapped = true,
      .check = check_short_conv_alone,
      .call = call_short_conv_alone },
    { .text = "engram_gate_conv_fwd(" GATE_CONV_ARGS ") -> out: bf16[T, H, D]",
      .is_wrapped = true,
      .check = check_engram_gate_conv_fwd,
      .call = call_engram_gate_conv_fwd },
    { .text = "short_conv_bwd(grad_out[T, H, D], x[T, H, D], norm_weight[H, D], conv_weight[C, K], rstd[T, H], "
              "bias[C]?, mask[T]?, cu_seqlens[E]?, dilation: int, silu: bool, add_input: bool, zero_centered: bool, "
              "want_x: bool, want_norm: bool, want_conv: bool, want_bias: bool, num_partials: int) -> "
              "grad_x: bf16[T * want_x, H, D], " CONV_PARTIALS,
      .op = "engram_short_conv_bwd",
      .is_wrapped = true,
      .check = check_short_conv_bwd,
      .call = call_short_conv_bwd },
    { .text = "engram_sinkhorn_momentum_update(grad[N, D], momentum_buffer[N, D]!, beta1: float, "
              "nesterov: bool = True) -> out: f32[N, D]",
      .doc = "tegula.engram.engram_sinkhorn_momentum_update of matrices.",
      .is_wrapped = true,
      .call = call_engram_sinkhorn_momentum_update },
    { .text = "engram_sinkhorn_step(matrix[N, D], row_scale[N]!, col_scale[D], eps: float, num_partials: int, "
              "col_sumsq[D]?!) -> row_norm: f32[N], col_sumsq_partial: f32[num_partials, D]",
      .doc = "tegula.engram.engram_sinkhorn_step with the number of partial rows.",
      .check = check_engram_sinkhorn_step,
      .is_wrapped = true,
      .call = call_engram_sinkhorn_step,
      .workspace = workspace_engram_sinkhorn_step },
    { .text = "engram_sinkhorn_step_reduce(col_sumsq_partial[P, D], col_sumsq[D]!) -> None",
      .doc = "Writes the sum of the partial rows to col_sumsq.",
      .call = call_engram_sinkhorn_step_reduce },
    { .text = "engram_sinkhorn_finalize(matrix[N, D], row_scale[N], col_scale[D], eps: float, alpha: float) -> "
              "out: f32[N, D]",
      .doc = "row_scale * matrix * col_scale with every row divided by its norm plus eps, times alpha. out may be "
             "matrix.",
      .call = call_engram_sinkhorn_finalize },
};
DOMAIN(engram);
