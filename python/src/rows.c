/* SPDX-License-Identifier: MIT
 * rows.c - every op, as Python sees it: a row of text and a thunk into the C API.
 *
 *   x[T, H]                  a tensor; names its dimensions
 *   x[T, H]?                 an optional one: None when absent; its default, unless a parameter without one
 *                            follows
 *   x[T, H]!                 one that the op changes in place; ?! if there is one
 *   group: int = 128         also float and bool; `?` after the kind allows None
 *   fmt: {e4m3|e5m2} = e4m3  one of some words
 *   -> fmt[T, H], f32[T, H / group; 1, T / 4 * 4 if col_major]
 *                            the outputs: dtype (one of parse.c's words, a tensor's, or what a word argument
 * says), sizes and, after `;`, strides where they are not packed (or only `if` a bool argument is true).
 * Sizes are sums of products of dimension names, int and bool arguments and numbers; `/` rounds up; a product
 * is taken from left to right. A word argument counts the bits of a value (fmt[T, H * fmt / 8]), a tensor the
 * values in an element: 2 in a byte, which holds a pair of e2m1, else 1.
 *   -> x[P, H] if map else x[T, H]
 *                            either of two, by a bool argument, or by whether an optional tensor or word is
 *                            given
 *   -> None                  no output: the op works in place
 *
 * Every function with outputs also takes out=, a tensor or a tuple of them, where None stands for one that is
 * to be made. Thunks take arguments in the row's order.
 *
 * The public function takes the same arguments as the operator, or those of a face:
 *   fmt                      a parameter
 *   x & x_sf                 a pair (tuple or list) of two; where the second is an optional tensor also a
 *                            tensor alone
 *   block_size: rows & cols = None
 *                            the same with a name and, if both may be None, a default
 *   *                        from here on by keyword only */
#include "glue.h"
#include "tegula/moe.h"
#include "tegula/quant.h"
#include "tegula/transpose.h"

/* doc: thunk */
static tgl_status call_transpose(const frame *f)
{
    return tgl_transpose(f->arg[0].tensor, f->out[0], f->stream);
}
/* end */
static tgl_status call_batched_transpose(const frame *f)
{
    return tgl_batched_transpose(f->arg[0].tensor, f->out[0], f->stream);
}

/* ---- routing. The ops know sizes by their outputs, and take 0 ranks for the default: here they are
 * arguments with names. ---- */

static bool is_within(const char *name, long long is, long long low, long long high)
{
    if (is >= low && is <= high) return true;
    if (high == INT64_MAX) PyErr_Format(PyExc_ValueError, "%s: is %lld, want >= %lld", name, is, low);
    else PyErr_Format(PyExc_ValueError, "%s: is %lld, want %lld..%lld", name, is, low, high);
    return false;
}
/* How many there may be of what i32 counts. */
static bool is_count(const char *name, const value *v)
{
    if (v->i <= INT32_MAX) return is_within(name, v->i, 0, INT64_MAX);
    PyErr_Format(PyExc_ValueError, "%s: is %lld, want < 2^31", name, (long long)v->i);
    return false;
}
static bool check_topk_gate(const value *a)
{
    return is_within("num_topk", a[1].i, 0, a[0].tensor->shape[1]);
}
static bool check_topk_sum_and_topk_group_idx(const value *a)
{
    return is_within("num_topk_groups", a[2].i, 0, a[0].tensor->shape[1]);
}
static bool check_ranks(const value *num_ep_ranks, const value *num_tp_ranks)
{
    return is_within("num_ep_ranks", num_ep_ranks->i, 1, INT64_MAX) &&
           is_within("num_tp_ranks", num_tp_ranks->i, 1, INT64_MAX);
}
static bool check_mask_indices_by_tp(const value *a)
{
    return check_ranks(&a[2], &a[4]) && is_within("n", a[1].i, a[2].i, INT64_MAX);
}
static bool check_gate(const value *a) /* of top2_sum_gate and route */
{
    const int64_t num_experts = a[0].tensor->shape[1], num_topk_groups = a[3].i, num_groups = a[4].i;
    const bool has_groups =
        num_topk_groups > 0 && num_topk_groups < num_groups && num_experts % num_groups == 0;
    const int64_t limit = has_groups ? num_experts / num_groups * num_topk_groups : num_experts;
    return check_ranks(&a[9], &a[11]) && is_within("num_topk", a[2].i, 0, limit) &&
           (!a[5].i || is_count("num_shared_experts", &a[6]));
}
static bool check_hash_gate(const value *a)
{
    return check_ranks(&a[10], &a[12]) && (!a[7].i || is_count("num_shared_experts", &a[8]));
}
static bool check_group_count(const value *a) { return is_count("num_groups", &a[1]); }
static bool check_aux_fi(const value *a) { return is_count("num_experts", &a[1]); }

/* The library's own bound, map_check.c, before outputs are made: positions are i32. */
static bool check_sizes_of_mapping(int64_t num_tokens, int64_t num_topk, const value *num_experts,
                                   const value *num_expanded_tokens, const value *alignment)
{
    int64_t num_pairs, total;
    if (!is_count("num_experts", num_experts) || !is_within("alignment", alignment->i, 1, INT64_MAX))
        return false;
    if (__builtin_mul_overflow(num_tokens, num_topk, &num_pairs) ||
        __builtin_mul_overflow(alignment->i - 1, num_experts->i, &total) ||
        __builtin_add_overflow(total, num_pairs, &total))
        total = INT64_MAX;
    if (total <= INT32_MAX) return is_count("num_expanded_tokens", num_expanded_tokens);
    PyErr_Format(PyExc_ValueError,
                 "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is %s%lld, want < 2^31",
                 total == INT64_MAX ? ">= " : "", (long long)total);
    return false;
}
static bool check_mapping(const value *a)
{
    const int64_t *shape = a[0].tensor->shape;
    return check_sizes_of_mapping(shape[0], shape[1], &a[1], &a[2], &a[3]);
}
static bool check_route(const value *a)
{
    if (!check_gate(a)) return false;
    const int64_t num_shared = a[5].i ? a[6].i : 0;
    return check_sizes_of_mapping(a[0].tensor->shape[0], a[2].i + num_shared, &a[13], &a[14], &a[15]);
}

static tgl_status call_topk_gate(const frame *f)
{
    return tgl_moe_topk_gate(f->arg[0].tensor, f->out[0], f->stream);
}
static tgl_status call_topk_sum_and_topk_group_idx(const frame *f)
{
    return tgl_moe_topk_sum_and_topk_group_idx(f->arg[0].tensor, f->out[0], f->arg[1].i, f->stream);
}
static tgl_status call_mask_indices_by_tp(const frame *f)
{
    const tgl_moe_mask_indices_by_tp_params params = { .num_experts = f->arg[1].i,
                                                       .num_ep_ranks = f->arg[2].i,
                                                       .num_tp_ranks = f->arg[4].i,
                                                       .tp_rank = f->arg[3].i };
    return tgl_moe_mask_indices_by_tp(f->arg[0].tensor, f->out[0], &params, f->stream);
}
static tgl_status call_normalize_weight(const frame *f)
{
    return tgl_moe_normalize_weight(f->arg[0].tensor, f->out[0], f->out[1], f->stream);
}
static tgl_status call_inplace_unique_group_indices(const frame *f)
{
    DLTensor group_indices = *f->arg[0].tensor;
    return tgl_moe_inplace_unique_group_indices(&group_indices, f->arg[1].i, f->stream);
}

/* What top2_sum_gate and route have alike: their first 13 arguments. */
static tgl_moe_gate_params gate_params(const value *arg)
{
    return (tgl_moe_gate_params){
        .num_topk_groups = arg[3].i, .num_groups = arg[4].i,
        .num_shared_experts = arg[5].i ? arg[6].i : 0,
        .has_routed_scaling_factor = true, .routed_scaling_factor = (float)arg[7].f,
        .ep_rank = arg[8].i, .num_ep_ranks = arg[9].i, .tp_rank = arg[10].i, .num_tp_ranks = arg[11].i,
        .scoring = (tgl_moe_scoring)arg[12].i,
    };
}
/* An optional tensor that is written to. */
static DLTensor *written(const value *v, DLTensor *copy)
{
    if (!v->tensor) return NULL;
    *copy = *v->tensor;
    return copy;
}
/* The outputs of a mapping, in the order of its struct; the last two where the row has them. */
static tgl_moe_mapping mapping(DLTensor *const *out, bool has_psum)
{
    return (tgl_moe_mapping){
        .pos_to_expert = out[0], .pos_to_token = out[1], .pos_to_token_topk = out[2],
        .token_topk_to_pos = out[3],
        .expert_start = out[4], .expert_end = out[5], .num_tokens_per_expert = out[6],
        .count = has_psum ? out[7] : NULL, .psum_end = has_psum ? out[8] : NULL,
    };
}

static tgl_status call_top2_sum_gate(const frame *f)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = gate_params(a);
    DLTensor unmapped;
    return tgl_moe_top2_sum_gate(a[0].tensor, a[1].tensor, a[13].tensor, a[14].tensor, a[15].tensor,
                                 a[16].tensor, written(&a[17], &unmapped), f->out[0], f->out[1], &params,
                                 f->stream);
}
static tgl_status call_hash_gate(const frame *f)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = {
        .has_routed_scaling_factor = true, .routed_scaling_factor = (float)a[3].f,
        .scoring = (tgl_moe_scoring)a[4].i, .no_renormalize = !a[5].i,
        .num_shared_experts = a[7].i ? a[8].i : 0,
        .ep_rank = a[9].i, .num_ep_ranks = a[10].i, .tp_rank = a[11].i, .num_tp_ranks = a[12].i,
        .has_shared_weight = true, .shared_weight = (float)a[16].f,
    };
    DLTensor unmapped;
    return tgl_moe_hash_gate(a[0].tensor, a[1].tensor, a[2].tensor, a[6].tensor, a[13].tensor, a[14].tensor,
                             written(&a[15], &unmapped), f->out[0], f->out[1], &params, f->stream);
}

static tgl_status call_group_count(const frame *f)
{
    return tgl_moe_group_count(f->arg[0].tensor, f->out[0], f->workspace, f->workspace_bytes, f->stream);
}
static size_t group_count_workspace(const frame *f)
{
    return tgl_moe_group_count_workspace_size(f->arg[0].tensor, f->out[0]);
}
static tgl_status call_aux_fi(const frame *f)
{
    return tgl_moe_aux_fi(f->arg[0].tensor, f->out[0], f->arg[2].i, f->workspace, f->workspace_bytes,
                          f->stream);
}
static size_t aux_fi_workspace(const frame *f)
{
    return tgl_moe_aux_fi_workspace_size(f->arg[0].tensor, f->out[0]);
}

static tgl_status map(const frame *f, bool has_psum)
{
    DLTensor host;
    tgl_moe_mapping m = mapping(f->out, has_psum);
    m.num_tokens_per_expert_host = written(&f->arg[4], &host);
    return tgl_moe_get_fused_mapping(f->arg[0].tensor, &m, f->arg[3].i, f->workspace, f->workspace_bytes,
                                     f->stream);
}
static size_t map_workspace(const frame *f)
{
    const tgl_moe_mapping m = mapping(f->out, false);
    return tgl_moe_get_fused_mapping_workspace_size(f->arg[0].tensor, &m);
}
static tgl_status call_get_fused_mapping(const frame *f) { return map(f, false); }
static tgl_status call_get_fused_mapping_with_psum(const frame *f) { return map(f, true); }

static tgl_status route(const frame *f, bool has_psum)
{
    const value *a = f->arg;
    const tgl_moe_gate_params params = gate_params(a);
    const tgl_moe_mapping m = mapping(f->out + 2, has_psum);
    DLTensor unmapped;
    return tgl_moe_route(a[0].tensor, a[1].tensor, a[16].tensor, a[17].tensor, a[18].tensor, a[19].tensor,
                         written(&a[20], &unmapped), f->out[0], f->out[1], &m, a[15].i, &params, f->workspace,
                         f->workspace_bytes, f->stream);
}
static size_t route_workspace(const frame *f)
{
    const tgl_moe_mapping m = mapping(f->out + 2, false);
    return tgl_moe_route_workspace_size(f->arg[0].tensor, f->out[0], &m);
}
static tgl_status call_route(const frame *f) { return route(f, false); }
static tgl_status call_route_with_psum(const frame *f) { return route(f, true); }

static tgl_status call_expand_to_fused(const frame *f)
{
    return tgl_moe_expand_to_fused(f->arg[0].tensor, f->arg[1].tensor, f->arg[2].tensor, f->out[0],
                                   f->stream);
}
static tgl_status call_expand_to_fused_with_sf(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_expand_to_fused_with_sf(a[0].tensor, a[1].tensor, a[3].tensor, a[4].tensor, f->out[0],
                                           f->out[1], a[2].i, f->stream);
}
static tgl_status call_reduce_fused(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_reduce_fused(a[0].tensor, a[1].tensor, a[2].tensor, a[3].tensor, NULL, f->out[0],
                                f->stream);
}
static tgl_status call_reduce_fused_e4m3(const frame *f)
{
    const value *a = f->arg;
    return tgl_moe_reduce_fused(a[0].tensor, a[1].tensor, a[2].tensor, a[3].tensor, a[4].tensor, f->out[0],
                                f->stream);
}

/* ---- casts. Words of formats are in the order of tgl_quant_format. ---- */

static bool check_packed(const value *col_major, const value *round, const value *packed)
{
    if (!packed->i || (col_major->i && round->i)) return true;
    PyErr_SetString(PyExc_ValueError,
                    "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf and round_sf True, too");
    return false;
}
static bool check_size(const char *name, const value *size)
{
    if (size->i >= 1) return true;
    PyErr_Format(PyExc_ValueError, "%s: is %lld, want >= 1", name, (long long)size->i);
    return false;
}
static bool check_sizes(const char *name, const value *height, const value *width)
{
    if (height->i >= 1 && width->i >= 1) return true;
    PyErr_Format(PyExc_ValueError, "%s: is (%lld, %lld), want two integers >= 1", name, (long long)height->i,
                 (long long)width->i);
    return false;
}
static bool check_pair(const value *a) /* x, x_sf, x_num_per_tokens, x_num_per_channels, fmt */
{
    if (!a[1].tensor && !a[2].given && !a[3].given) return true;
    if (!a[1].tensor)
        PyErr_Format(PyExc_ValueError, "x_block_size: is (%lld, %lld), want None where x comes without sf",
                     (long long)a[2].i, (long long)a[3].i);
    else if (a[4].i == TGL_QUANT_E5M6)
        PyErr_SetString(PyExc_ValueError, "x: is a pair (data, sf), want a tensor for e5m6");
    else if (!a[2].given || !a[3].given)
        PyErr_SetString(PyExc_ValueError,
                        "x_block_size: is None, want two integers where x is a pair (data, sf)");
    else return check_sizes("x_block_size", &a[2], &a[3]);
    return false;
}
static bool check_token_cast(const value *a) { return check_packed(&a[6], &a[7], &a[8]) && check_pair(a); }
static bool check_given_token_cast(const value *a)
{
    return check_packed(&a[7], &a[8], &a[9]) && check_pair(a) && check_size("num_per_channels", &a[5]);
}
static bool check_block_cast(const value *a)
{
    return check_packed(&a[4], &a[5], &a[6]) && check_sizes("block_size", &a[2], &a[3]);
}
static bool check_given_block_cast(const value *a)
{
    if (!a[5].i && !a[7].i) return check_sizes("block_size", &a[2], &a[3]);
    PyErr_Format(PyExc_ValueError, "%s: is True, want False: sf's dtype and strides tell its layout",
                 a[5].i ? "use_tma_aligned_col_major_sf" : "use_packed_ue8m0");
    return false;
}
static bool check_lossless(const value *a)
{
    if (a[9].i && !a[7].i) {
        PyErr_SetString(PyExc_ValueError,
                        "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too");
        return false;
    }
    if (!check_sizes("x_block_size", &a[3], &a[4]) || !check_sizes("out_block_size", &a[5], &a[6]))
        return false;
    const long long x_height = a[3].i, x_width = a[4].i, height = a[5].i, width = a[6].i;
    const bool is_whole_row = width / 2 >= a[0].tensor->shape[1];   /* of pairs */
    if (height % x_height == 0 && (width % x_width == 0 || is_whole_row)) return true;
    PyErr_Format(PyExc_ValueError,
                 "out_block_size: is (%lld, %lld), want multiples of x_block_size, (%lld, %lld)", height,
                 width, x_height, x_width);
    return false;
}
/* x's dtype tells its format, so the op would know but one of them. While tracing there is no dtype. */
static bool check_codes(const DLTensor *x, const value *x_special_fmt)
{
    const DLDataType is = x->dtype;
    const bool is_byte = (is.code == TGL_DL_INT || is.code == TGL_DL_UINT) && is.bits == 8;
    if (is_byte || is.code == TGL_DL_E4M3FN || is.code == TGL_DL_E2M1FN || is.bits == 0 ||
        x_special_fmt->given)
        return true;
    char name[32];
    PyErr_Format(PyExc_ValueError, "x: dtype is %s, want i8, u8, e4m3 or e2m1x2", name_of_dtype(is, name));
    return false;
}
static bool check_cast_back(const value *a)
{
    return check_sizes("x_block_size", &a[3], &a[4]) && check_codes(a[0].tensor, &a[5]);
}
static bool check_token_cast_back(const value *a)
{
    return check_size("num_per_channels", &a[3]) && check_codes(a[0].tensor, &a[4]);
}
static bool check_channel_cast(const value *a)
{
    if (!a[1].tensor && a[5].given)
        PyErr_Format(PyExc_ValueError, "num_per_channels: is %lld, want None where x comes without sf",
                     (long long)a[5].i);
    else if (a[1].tensor && !a[5].given)
        PyErr_SetString(PyExc_ValueError,
                        "num_per_channels: is None, want an integer where x is a pair (data, sf)");
    else return !a[5].given || check_size("num_per_channels", &a[5]);
    return false;
}
static bool check_swiglu_forward(const value *a)
{
    if (!check_packed(&a[6], &a[7], &a[8])) return false;
    if (!a[10].tensor || a[9].given) return true;
    PyErr_SetString(PyExc_ValueError, "clamped_count: is given, want None where swiglu_clamp_value is None");
    return false;
}

/* What per_token_cast and its variants have alike: their first 6 arguments. */
static tgl_quant_params token_params(const value *a)
{
    return (tgl_quant_params){ .x_num_per_tokens = a[2].i, .x_num_per_channels = a[3].i,
                               .format = (tgl_quant_format)a[4].i, .num_per_channels = a[5].i };
}
static tgl_status call_per_token_cast(const frame *f)
{
    tgl_quant_params params = token_params(f->arg);
    params.round_sf = f->arg[7].i;
    return tgl_quant_per_token_cast(f->arg[0].tensor, f->arg[1].tensor, f->out[0], f->out[1], &params,
                                    f->stream);
}
static tgl_status call_per_token_cast_with_sf_only(const frame *f)
{
    tgl_quant_params params = token_params(f->arg);
    params.round_sf = f->arg[7].i;
    return tgl_quant_per_token_cast(f->arg[0].tensor, f->arg[1].tensor, NULL, f->out[0], &params, f->stream);
}
static tgl_status call_per_token_cast_with_precomputed_sf(const frame *f)
{
    const tgl_quant_params params = token_params(f->arg);
    return tgl_quant_per_token_cast_with_precomputed_sf(f->arg[0].tensor, f->arg[1].tensor, f->arg[6].tensor,
                                                        f->out[0], &params, f->stream);
}

/* What per_block_cast and its variants have alike: their first 4 arguments. */
static tgl_quant_params block_params(const value *a)
{
    return (tgl_quant_params){ .format = (tgl_quant_format)a[1].i, .num_per_tokens = a[2].i,
                               .num_per_channels = a[3].i };
}
static tgl_status call_per_block_cast(const frame *f)
{
    tgl_quant_params params = block_params(f->arg);
    params.round_sf = f->arg[5].i;
    return tgl_quant_per_block_cast(f->arg[0].tensor, f->out[0], f->out[1], &params, f->stream);
}
static tgl_status call_per_block_cast_with_sf_only(const frame *f)
{
    tgl_quant_params params = block_params(f->arg);
    params.round_sf = f->arg[5].i;
    return tgl_quant_per_block_cast(f->arg[0].tensor, NULL, f->out[0], &params, f->stream);
}
static tgl_status call_per_block_cast_with_precomputed_sf(const frame *f)
{
    const tgl_quant_params params = block_params(f->arg);
    return tgl_quant_per_block_cast_with_precomputed_sf(f->arg[0].tensor, f->arg[4].tensor, f->out[0],
                                                        &params, f->stream);
}
static tgl_status call_per_block_cast_lossless(const frame *f)
{
    const value *a = f->arg;
    const tgl_quant_params params = { .x_num_per_tokens = a[3].i, .x_num_per_channels = a[4].i,
                                      .num_per_tokens = a[5].i, .num_per_channels = a[6].i };
    DLTensor inexact;
    return tgl_quant_per_block_cast_lossless(a[0].tensor, a[1].tensor, f->out[0], f->out[1],
                                             written(&a[10], &inexact), &params, f->stream);
}

static tgl_status call_per_channel_cast(const frame *f)
{
    const tgl_quant_params params = { .num_per_tokens = f->arg[2].i, .round_sf = f->arg[3].i };
    return tgl_quant_per_channel_cast(f->arg[0].tensor, NULL, NULL, f->out[0], f->out[1], &params, f->stream);
}
static tgl_status call_per_channel_cast_fused(const frame *f)
{
    const value *a = f->arg;
    const tgl_quant_params params = { .num_per_tokens = a[3].i, .round_sf = a[4].i,
                                      .x_num_per_channels = a[5].i };
    return tgl_quant_per_channel_cast(a[0].tensor, a[1].tensor, a[6].tensor, f->out[0], f->out[1], &params,
                                      f->stream);
}
static tgl_status call_per_channel_cast_and_transpose(const frame *f)
{
    const tgl_quant_params params = { .num_per_tokens = f->arg[2].i, .round_sf = f->arg[3].i };
    return tgl_quant_per_channel_cast_and_transpose(f->arg[0].tensor, f->out[0], f->out[1], &params,
                                                    f->stream);
}

static tgl_status cast_back(const frame *f, int64_t num_per_tokens, int64_t num_per_channels, bool is_e5m6)
{
    const DLTensor *x = f->arg[0].tensor;
    const tgl_quant_params params = {
        .format = is_e5m6                            ? TGL_QUANT_E5M6
                  : x->dtype.code == TGL_DL_E4M3FN ? TGL_QUANT_E4M3
                                                   : TGL_QUANT_E2M1,
        .x_num_per_tokens = num_per_tokens, .x_num_per_channels = num_per_channels
    };
    return tgl_quant_cast_back(x, f->arg[1].tensor, f->out[0], &params, f->stream);
}
static tgl_status call_cast_back(const frame *f)
{
    return cast_back(f, f->arg[3].i, f->arg[4].i, f->arg[5].given);
}
static tgl_status call_per_token_cast_back(const frame *f)
{
    return cast_back(f, 1, f->arg[3].i, f->arg[4].given);
}
static tgl_status call_unpack_from_e2m1fn_x2(const frame *f)
{
    return tgl_quant_unpack_from_e2m1fn_x2(f->arg[0].tensor, f->out[0], f->stream);
}

static tgl_status call_swiglu_forward_and_per_token_cast(const frame *f)
{
    const value *a = f->arg;
    const tgl_quant_params params = {
        .format = (tgl_quant_format)a[1].i, .num_per_channels = a[2].i, .round_sf = a[7].i,
        .has_swiglu_clamp_value = a[9].given, .swiglu_clamp_value = a[9].given ? (float)a[9].f : 0,
        .has_sf_clamp_min = a[11].given, .sf_clamp_min = a[11].given ? (float)a[11].f : 0,
    };
    DLTensor clamped_count;
    return tgl_quant_swiglu_forward_and_per_token_cast(a[0].tensor, a[3].tensor, a[4].tensor, a[5].tensor,
                                                       written(&a[10], &clamped_count), f->out[0], f->out[1],
                                                       &params, f->stream);
}
static tgl_status call_swiglu_forward_and_per_channel_cast_and_transpose(const frame *f)
{
    const value *a = f->arg;
    const tgl_quant_params params = {
        .num_per_tokens = a[2].i, .round_sf = a[3].i, .without_transpose = a[4].i,
        .has_swiglu_clamp_value = a[5].given, .swiglu_clamp_value = a[5].given ? (float)a[5].f : 0,
    };
    return tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(a[0].tensor, f->out[0], f->out[1],
                                                                       &params, f->stream);
}
static tgl_status call_swiglu_backward_and_per_token_cast(const frame *f)
{
    const value *a = f->arg;
    const tgl_quant_params params = {
        .num_per_channels = a[6].i, .round_sf = a[7].i,
        .has_swiglu_clamp_value = a[8].given, .swiglu_clamp_value = a[8].given ? (float)a[8].f : 0,
    };
    return tgl_quant_swiglu_backward_and_per_token_cast(
        a[0].tensor, a[1].tensor, a[2].tensor, a[3].tensor, a[4].tensor, a[5].tensor, f->out[0], f->out[1],
        f->out[2], f->out[3], f->out[4], &params, f->stream);
}

/* What route has with psum and without. */
#define ROUTE                                                                                           \
    "logits[T, E], bias[E]?, num_topk: int, num_topk_groups: int, num_groups: int, "                    \
    "use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, "               \
    "ep_rank: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, "                                \
    "scoring_func: {sigmoid|sqrtsoftplus|softmax}, num_experts: int, num_expanded_tokens: int, "        \
    "alignment: int, mask[T]?, fix_routing_mask[T]?, to_physical_map[L, R]?, logical_count[L]?, "       \
    "unmapped_topk_idx[T, K]?!) -> "                                                                    \
    "i64[T, num_topk + num_shared_experts * use_shared_as_routed], "                                    \
    "f32[T, num_topk + num_shared_experts * use_shared_as_routed], "                                    \
    "i32[num_expanded_tokens], i32[num_expanded_tokens], i32[num_expanded_tokens], "                    \
    "i32[T, num_topk + num_shared_experts * use_shared_as_routed], "                                    \
    "i32[num_experts], i32[num_experts], i32[num_experts]"

/* The last three arguments of a cast, and the factors that they ask for; packed ones are column-major. */
#define SF_FLAGS "use_tma_aligned_col_major_sf: bool = False, round_sf: bool = False, " \
                 "use_packed_ue8m0: bool = False"
#define SF(rows, cols)                                                           \
    "i32[" rows ", " cols " / 4; 1, " rows " / 4 * 4] if use_packed_ue8m0 else " \
    "f32[" rows ", " cols "; 1, " rows " / 4 * 4 if use_tma_aligned_col_major_sf]"
#define SF_FLAG_NAMES "use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0"
#define TOKEN_CAST "x[T, W], x_sf[A, B]?, x_num_per_tokens: int?, x_num_per_channels: int?, " \
                   "fmt: {e4m3|e2m1|e5m6}, num_per_channels: int, "
#define X_BLOCK_SIZE "x_block_size: x_num_per_tokens & x_num_per_channels"
#define BLOCK_CAST "x[T, H], fmt: {e4m3|e2m1}, num_per_tokens: int, num_per_channels: int, "
#define BLOCK_SIZE "block_size: num_per_tokens & num_per_channels"

op_row rows[] = {
    /* doc: row */
    { .module = "transpose",
      .text = "transpose(x[M, N]) -> x[N, M]",
      .doc =
          "out[j, i] = x[i, j], packed. Any dtype of 1, 2, 4, 8 or 16 bytes, any strides; bits are copied.",
      .call = call_transpose },
    /* end */
    { .module = "transpose",
      .text = "batched_transpose(x[B, M, N]) -> x[B, N, M]",
      .doc = "out[b, j, i] = x[b, i, j], packed, in one launch. Any dtype of 1, 2, 4, 8 or 16 bytes, any "
             "strides.",
      .call = call_batched_transpose },
    { .module = "moe",
      .text = "topk_gate(scores[T, E], num_topk: int) -> i64[T, num_topk]",
      .doc = "The num_topk best experts of every token, best first. The lower index wins a tie; NaN counts "
             "as -inf.",
      .check = check_topk_gate,
      .call = call_topk_gate },
    { .module = "moe",
      .text = "topk_sum_and_topk_group_idx(scores[T, G, P], num_topk_sum: int, num_topk_groups: int) -> "
              "i64[T, num_topk_groups]",
      .doc = "The best groups of experts of every token, best first; a group is worth the sum of its "
             "num_topk_sum best scores.",
      .check = check_topk_sum_and_topk_group_idx,
      .call = call_topk_sum_and_topk_group_idx },
    { .module = "moe",
      .text = "mask_indices_by_tp(indices[T, K], n: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int) "
              "-> indices[T, K]",
      .doc = "Keeps the experts, of n on num_ep_ranks, whose rank belongs to tp_rank, renumbered; the others "
             "become -1.",
      .check = check_mask_indices_by_tp,
      .call = call_mask_indices_by_tp },
    { .module = "moe",
      .text = "normalize_weight(topk_weights[T, K]) -> f32[T], f32[T, K]",
      .doc = "(denominator, normalized_weights): 1e-20 plus a row's sum, and the row divided by it.",
      .call = call_normalize_weight },
    { .module = "moe",
      .text = "inplace_unique_group_indices(group_indices[T, K]!, num_groups: int) -> None",
      .doc = "Keeps the first occurrence of every group in a row; later ones become -1, in place.",
      .call = call_inplace_unique_group_indices },
    { .module = "moe",
      .text = "top2_sum_gate(logits[T, E], bias[E]?, num_topk: int, num_topk_groups: int, num_groups: int, "
              "use_shared_as_routed: bool, num_shared_experts: int, routed_scaling_factor: float, "
              "ep_rank: int, num_ep_ranks: int, tp_rank: int, num_tp_ranks: int, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax}, mask[T]?, fix_routing_mask[T]?, "
              "to_physical_map[L, R]?, logical_count[L]?, unmapped_topk_idx[T, K]?!) -> "
              "i64[T, num_topk + num_shared_experts * use_shared_as_routed], "
              "f32[T, num_topk + num_shared_experts * use_shared_as_routed]",
      .doc = "(topk_idx, topk_weights): the num_topk best experts of every token by score + bias, best "
             "first, and their normalised scores; then the shared experts, the physical map and the "
             "tensor-parallel mask. The chosen experts before the map are written to unmapped_topk_idx.",
      .check = check_gate,
      .call = call_top2_sum_gate },
    { .module = "moe",
      .text = "hash_gate(logits[T, E], input_ids[T], tid2eid[V, K], routed_scaling_factor: float, "
              "scoring_func: {sigmoid|sqrtsoftplus|softmax|identity} = sqrtsoftplus, "
              "renormalize: bool = True, mask[T]?, use_shared_as_routed: bool = False, "
              "num_shared_experts: int = 0, ep_rank: int = 0, num_ep_ranks: int = 1, tp_rank: int = 0, "
              "num_tp_ranks: int = 1, to_physical_map[L, R]?, logical_count[L]?, unmapped_topk_idx[T, K]?!, "
              "shared_weight: float = 1.0) -> "
              "i64[T, K + num_shared_experts * use_shared_as_routed], "
              "f32[T, K + num_shared_experts * use_shared_as_routed]",
      .doc = "(topk_idx, topk_weights): as top2_sum_gate, but the experts of a token are those that the "
             "table tid2eid has for its id.",
      .check = check_hash_gate,
      .call = call_hash_gate },
    { .module = "moe",
      .text = "group_count(group_idx[T, K], num_groups: int) -> i32[num_groups]",
      .doc = "How often each group occurs. Indices that are no group are not counted.",
      .check = check_group_count,
      .call = call_group_count,
      .workspace = group_count_workspace },
    { .module = "moe",
      .text = "aux_fi(topk_idx[T, K], num_experts: int, num_aux_topk: int) -> f32[num_experts]",
      .doc = "Each expert's share of the tokens: count * num_experts / (num_tokens * num_aux_topk).",
      .check = check_aux_fi,
      .call = call_aux_fi,
      .workspace = aux_fi_workspace },
    { .module = "moe",
      .text = "get_fused_mapping(topk_idx[T, K], num_experts: int, num_expanded_tokens: int, alignment: int, "
              "num_tokens_per_expert_host[E]?!) -> i32[num_expanded_tokens], i32[num_expanded_tokens], "
              "i32[num_expanded_tokens], i32[T, K], i32[num_experts], i32[num_experts], i32[num_experts]",
      .doc = "tegula.moe.get_fused_mapping without its list. The lengths of the experts' segments are also "
             "written to num_tokens_per_expert_host, which for CUDA is pinned memory.",
      .check = check_mapping,
      .call = call_get_fused_mapping,
      .workspace = map_workspace },
    { .module = "moe",
      .text = "get_fused_mapping_with_psum(topk_idx[T, K], num_experts: int, num_expanded_tokens: int, "
              "alignment: int, num_tokens_per_expert_host[E]?!) -> i32[num_expanded_tokens], "
              "i32[num_expanded_tokens], i32[num_expanded_tokens], i32[T, K], i32[num_experts], "
              "i32[num_experts], i32[num_experts], i32[num_experts], i32[num_experts]",
      .doc = "The same, then count and psum_end.",
      .check = check_mapping,
      .call = call_get_fused_mapping_with_psum,
      .workspace = map_workspace },
    { .module = "moe",
      .text = "route(" ROUTE,
      .doc = "tegula.moe.route.",
      .check = check_route,
      .call = call_route,
      .workspace = route_workspace },
    { .module = "moe",
      .text = "route_with_psum(" ROUTE ", i32[num_experts], i32[num_experts]",
      .doc = "The same, then count and psum_end.",
      .check = check_route,
      .call = call_route_with_psum,
      .workspace = route_workspace },
    { .module = "moe",
      .text = "expand_to_fused(x[T, H], token_topk_to_pos[T, K], pos_to_expert[N]) -> x[N, H]",
      .doc = "Copies every token's row to its positions; rows of padding are zero.",
      .call = call_expand_to_fused },
    { .module = "moe",
      .text = "expand_to_fused_with_sf(x[T, H], x_sf[T, S], num_per_channels: int, token_topk_to_pos[T, K], "
              "pos_to_expert[N], use_tma_aligned_col_major_sf: bool = False) -> x[N, H], "
              "x_sf[N, S; 1, N / 4 * 4 if use_tma_aligned_col_major_sf]",
      .face = "x & x_sf, num_per_channels, token_topk_to_pos, pos_to_expert, use_tma_aligned_col_major_sf",
      .doc = "(out, out_sf): copies every token's row, and its scale factors, to its positions; rows of "
             "padding are zero. x is the pair (data, sf), one factor per num_per_channels values in float32, "
             "or four of them packed in an int32. out_sf is column-major with columns of a multiple of 4 if "
             "asked for; the ends of its columns are zero then.",
      .zeroes_ends = true,
      .call = call_expand_to_fused_with_sf },
    { .module = "moe",
      .text = "reduce_fused(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K]) -> x[T, H]",
      .doc = "tegula.moe.reduce_fused with the pair as two arguments.",
      .call = call_reduce_fused },
    { .module = "moe",
      .text = "reduce_fused_e4m3(x[N, H], x_sf[N]?, topk_weights[T, K]?, token_topk_to_pos[T, K], sf[One]?) "
              "-> e4m3[T, H]",
      .doc = "The same, times sf, in e4m3.",
      .call = call_reduce_fused_e4m3 },
    { .module = "quant",
      .text = "per_token_cast(" TOKEN_CAST SF_FLAGS ") -> fmt[T, W * x * fmt / 8], "
              SF("T", "W * x / num_per_channels"),
      .face = "x & x_sf, fmt, num_per_channels, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "(out, out_sf): x in 'e4m3', 'e2m1' or 'e5m6' with a factor per num_per_channels values of a "
             "row. x is bfloat16 or float32, or a pair (data, sf) with blocks of x_block_size, which is "
             "dequantised first.",
      .check = check_token_cast,
      .call = call_per_token_cast },
    { .module = "quant",
      .text = "per_token_cast_with_sf_only(" TOKEN_CAST SF_FLAGS ") -> " SF("T", "W * x / num_per_channels"),
      .face = "x & x_sf, fmt, num_per_channels, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "The out_sf of per_token_cast.",
      .check = check_token_cast,
      .call = call_per_token_cast_with_sf_only },
    { .module = "quant",
      .text = "per_token_cast_with_precomputed_sf(" TOKEN_CAST "sf[C, D], " SF_FLAGS ") -> "
              "fmt[T, W * x * fmt / 8]",
      .face = "x & x_sf, fmt, num_per_channels, sf, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "The out of per_token_cast with given factors. Their dtype and strides tell their layout, "
             "whatever the flags say.",
      .check = check_given_token_cast,
      .call = call_per_token_cast_with_precomputed_sf },
    { .module = "quant",
      .text = "per_block_cast(" BLOCK_CAST SF_FLAGS ") -> fmt[T, H * fmt / 8], "
              SF("T / num_per_tokens", "H / num_per_channels"),
      .face = "x, fmt, " BLOCK_SIZE ", " SF_FLAG_NAMES,
      .doc = "(out, out_sf): x, bfloat16 or float32, in 'e4m3' or 'e2m1' with a factor per block of "
             "block_size, rows and columns.",
      .check = check_block_cast,
      .call = call_per_block_cast },
    { .module = "quant",
      .text = "per_block_cast_with_sf_only(" BLOCK_CAST SF_FLAGS ") -> "
              SF("T / num_per_tokens", "H / num_per_channels"),
      .face = "x, fmt, " BLOCK_SIZE ", " SF_FLAG_NAMES,
      .doc = "The out_sf of per_block_cast.",
      .check = check_block_cast,
      .call = call_per_block_cast_with_sf_only },
    { .module = "quant",
      .text = "per_block_cast_with_precomputed_sf(" BLOCK_CAST "sf[A, B], " SF_FLAGS ") -> "
              "fmt[T, H * fmt / 8]",
      .face = "x, fmt, " BLOCK_SIZE ", sf, " SF_FLAG_NAMES,
      .doc = "The out of per_block_cast with given factors. Their dtype and strides tell their layout; "
             "round_sf makes no difference, the other flags must be False.",
      .check = check_given_block_cast,
      .call = call_per_block_cast_with_precomputed_sf },
    { .module = "quant",
      .text = "per_block_cast_lossless(x[T, W], x_sf[A, B], fmt: {e4m3}, x_num_per_tokens: int, "
              "x_num_per_channels: int, num_per_tokens: int, num_per_channels: int, " SF_FLAGS
              ", inexact[One]?!) -> fmt[T, W * 2], " SF("T / num_per_tokens", "W * 2 / num_per_channels"),
      .face = "x & x_sf, fmt, " X_BLOCK_SIZE ", out_block_size: num_per_tokens & num_per_channels, "
              SF_FLAG_NAMES ", *, inexact",
      .doc = "(out, out_sf): a pair of e2m1 and powers of two with blocks of x_block_size as 'e4m3' with "
             "larger blocks of out_block_size, without a change of value while exponents in a block differ "
             "by at most 14. inexact, an int32 tensor of one element, is set to 1 where a value changed. "
             "Factors are powers of two without round_sf, too.",
      .check = check_lossless,
      .call = call_per_block_cast_lossless },
    { .module = "quant",
      .text = "per_channel_cast(x[T, H], fmt: {e4m3}, num_per_tokens: int, round_sf: bool = False) -> "
              "fmt[T, H], f32[T / num_per_tokens, H]",
      .doc = "(out, out_sf): a factor per num_per_tokens values of a column.",
      .call = call_per_channel_cast },
    { .module = "quant",
      .text = "per_channel_cast_fused(x[T, H], x_sf[A, B]?, fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False, num_per_channels: int? = None, pos_to_token[P]?) -> "
              "fmt[P, H] if pos_to_token else fmt[T, H], "
              "f32[P / num_per_tokens, H] if pos_to_token else f32[T / num_per_tokens, H]",
      .face = "x & x_sf, fmt, num_per_tokens, round_sf, num_per_channels, pos_to_token",
      .doc = "(out, out_sf): as per_channel_cast, of the rows x[pos_to_token], where a negative one is "
             "padding. x may be a pair of e4m3 and a factor per num_per_channels values of a row.",
      .check = check_channel_cast,
      .call = call_per_channel_cast_fused },
    { .module = "quant",
      .text = "per_channel_cast_and_transpose(x[T, H], fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False) -> fmt[H, T], f32[T / num_per_tokens, H]",
      .doc = "(out, out_sf): as per_channel_cast, with out transposed; out_sf is not.",
      .call = call_per_channel_cast_and_transpose },
    { .module = "quant",
      .text = "cast_back(x[T, W], x_sf[A, B], fmt: {bf16|fp32}, x_num_per_tokens: int, "
              "x_num_per_channels: int, x_special_fmt: {e5m6}? = None) -> "
              "fmt[T, W * 2 / 3] if x_special_fmt else fmt[T, W * x]",
      .face = "x & x_sf, fmt, " X_BLOCK_SIZE ", x_special_fmt",
      .doc = "The values of a pair (data, sf) with blocks of x_block_size, in 'bf16' or 'fp32'. Bytes "
             "(uint8) of e5m6 want x_special_fmt='e5m6'.",
      .check = check_cast_back,
      .call = call_cast_back },
    { .module = "quant",
      .text = "per_token_cast_back(x[T, W], x_sf[A, B], fmt: {bf16|fp32}, num_per_channels: int, "
              "x_special_fmt: {e5m6}? = None) -> fmt[T, W * 2 / 3] if x_special_fmt else fmt[T, W * x]",
      .face = "x & x_sf, fmt, num_per_channels, x_special_fmt",
      .doc = "cast_back with blocks of 1 x num_per_channels.",
      .check = check_token_cast_back,
      .call = call_per_token_cast_back },
    { .module = "quant",
      .text = "unpack_from_e2m1fn_x2(x[N], fmt: {f32|bf16|f16|e4m3}) -> fmt[N * 2]",
      .doc = "tegula.quant.unpack_from_e2m1fn_x2 of one dimension.",
      .call = call_unpack_from_e2m1fn_x2 },
    { .module = "quant",
      .text = "swiglu_forward_and_per_token_cast(x[T, W], fmt: {e4m3|e2m1}, num_per_channels: int, "
              "pos_to_token_topk[T]?, topk_weights[N, K]?, pos_to_expert[T]?, " SF_FLAGS
              ", swiglu_clamp_value: float? = None, clamped_count[Three]?!, sf_clamp_min: float? = None) -> "
              "fmt[T, W / 2 * fmt / 8], " SF("T", "W / 2 / num_per_channels"),
      .doc = "(out, out_sf): silu(gate) * up of rows of gates and ups, times the weight number "
             "pos_to_token_topk[i], in 'e4m3' or 'e2m1' as per_token_cast has it. Rows whose pos_to_expert "
             "is negative are not computed. swiglu_clamp_value c holds gates to at most c and ups to "
             "-c .. c; clamped_count, three int64, grows by the number of gates and ups above c and ups "
             "below -c. sf_clamp_min replaces the floor of 1e-4.",
      .check = check_swiglu_forward,
      .call = call_swiglu_forward_and_per_token_cast },
    { .module = "quant",
      .text = "swiglu_forward_and_per_channel_cast_and_transpose(x[T, W], fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False, without_transpose: bool = False, swiglu_clamp_value: float? = None) "
              "-> fmt[T, W / 2] if without_transpose else fmt[W / 2, T], f32[T / num_per_tokens, W / 2]",
      .doc = "(out, out_sf): silu(gate) * up of rows of gates and ups, rounded to bf16, then as "
             "per_channel_cast; out is transposed unless without_transpose, out_sf never is.",
      .call = call_swiglu_forward_and_per_channel_cast_and_transpose },
    { .module = "quant",
      .text = "swiglu_backward_and_per_token_cast(x[E, W], x_sf[A, B], grad_out[E, H], weight[N, K], "
              "pos_to_token_topk[E], token_topk_to_pos[N, K], num_per_channels: int, round_sf: bool = False, "
              "swiglu_clamp_value: float? = None) -> bf16[E, H], e4m3[E, W], "
              "f32[E, H / num_per_channels * 2], bf16[E, W], f32[N, K]",
      .face = "x & x_sf, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf, "
              "swiglu_clamp_value",
      .doc = "tegula.quant.swiglu_backward_and_per_token_cast of matrices, with five outputs.",
      .call = call_swiglu_backward_and_per_token_cast },
};
const int num_rows = sizeof rows / sizeof rows[0];
