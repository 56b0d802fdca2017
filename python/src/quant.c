/* SPDX-License-Identifier: MIT
 * quant.c - tegula.quant: a row of text per op (grammar: parse.c), the ranges of its numbers, and a thunk into the C
 * API. Format words are in the order of tgl_quant_format. */
#include "glue.h"
#include "row_args.h"
#include "tegula/quant.h"

/* ---- text that rows share ---- */

#define TOKEN_CAST                                                             \
    "x[T, W], x_sf[A, B]?, x_num_per_tokens: int?, x_num_per_channels: int?, " \
    "fmt: {e4m3|e2m1|e5m6}, num_per_channels: int, "
#define BLOCK_CAST "x[T, H], fmt: {e4m3|e2m1}, num_per_tokens: int, num_per_channels: int, "
#define X_BLOCK_SIZE "x_block_size: x_num_per_tokens & x_num_per_channels"
#define BLOCK_SIZE "block_size: num_per_tokens & num_per_channels"

/* The last arguments of a cast, and the output for the factors; packed factors are column-major. */
#define SF_FLAGS                                                           \
    "use_tma_aligned_col_major_sf: bool = False, round_sf: bool = False, " \
    "use_packed_ue8m0: bool = False"
#define SF_FLAG_NAMES "use_tma_aligned_col_major_sf, round_sf, use_packed_ue8m0"
#define OUT_SF(rows, cols)                                                               \
    "out_sf: i32[" rows ", " cols " / 4; 1, " rows " / 4 * 4] if use_packed_ue8m0 else " \
    "f32[" rows ", " cols "; 1, " rows " / 4 * 4 if use_tma_aligned_col_major_sf]"

static bool is_block_size(const char *name, int64_t height, int64_t width)
{
    if (height >= 1 && width >= 1) return true;
    PyErr_Format(PyExc_ValueError, "%s: is (%lld, %lld), want two integers >= 1", name, (long long)height,
                 (long long)width);
    return false;
}
#define CAN_PACK(a) can_pack((a)->use_tma_aligned_col_major_sf, (a)->round_sf, (a)->use_packed_ue8m0)
static bool can_pack(bool is_col_major, bool is_rounded, bool is_packed)
{
    if (!is_packed || (is_col_major && is_rounded)) return true;
    PyErr_SetString(PyExc_ValueError,
                    "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf and round_sf True, too");
    return false;
}
#define CLAMP(a) \
    .has_swiglu_clamp_value = (a)->has_swiglu_clamp_value, .swiglu_clamp_value = (float)(a)->swiglu_clamp_value

/* ---- per_token_cast ---- */

#define TOKEN_PARAMS(a)                                                                       \
    .x_num_per_tokens = (a)->x_num_per_tokens, .x_num_per_channels = (a)->x_num_per_channels, \
    .format = (tgl_quant_format)(a)->fmt, .num_per_channels = (a)->num_per_channels

/* A pair (data, sf) needs x_block_size, a tensor alone must come without. All rows that begin with TOKEN_CAST have
 * these arguments in the same places. */
static bool check_pair(const per_token_cast_args *a)
{
    if (!a->x_sf && !a->has_x_num_per_tokens && !a->has_x_num_per_channels) return true;
    if (!a->x_sf)
        PyErr_Format(PyExc_ValueError, "x_block_size: is (%lld, %lld), want None where x comes without sf",
                     (long long)a->x_num_per_tokens, (long long)a->x_num_per_channels);
    else if (a->fmt == TGL_QUANT_E5M6)
        PyErr_SetString(PyExc_ValueError, "x: is a pair (data, sf), want a tensor for e5m6");
    else if (!a->has_x_num_per_tokens || !a->has_x_num_per_channels)
        PyErr_SetString(PyExc_ValueError, "x_block_size: is None, want two integers where x is a pair (data, sf)");
    else return is_block_size("x_block_size", a->x_num_per_tokens, a->x_num_per_channels);
    return false;
}
_Static_assert(offsetof(per_token_cast_args, fmt) == offsetof(per_token_cast_with_precomputed_sf_args, fmt) &&
                   sizeof(per_token_cast_args) == sizeof(per_token_cast_with_sf_only_args),
               "TOKEN_CAST");

CHECK(per_token_cast) { return CAN_PACK(a) && check_pair(a); }
THUNK(per_token_cast)
{
    const tgl_quant_params params = { TOKEN_PARAMS(a), .round_sf = a->round_sf };
    return tgl_quant_per_token_cast(a->x, a->x_sf, a->out, a->out_sf, &params, a->stream);
}
THUNK(per_token_cast_with_sf_only)
{
    const tgl_quant_params params = { TOKEN_PARAMS(a), .round_sf = a->round_sf };
    return tgl_quant_per_token_cast(a->x, a->x_sf, NULL, a->out_sf, &params, a->stream);
}
CHECK(per_token_cast_with_precomputed_sf)
{
    return CAN_PACK(a) && check_pair((const void *)a) &&
           is_within("num_per_channels", a->num_per_channels, 1, INT64_MAX);
}
THUNK(per_token_cast_with_precomputed_sf)
{
    const tgl_quant_params params = { TOKEN_PARAMS(a) };
    return tgl_quant_per_token_cast_with_precomputed_sf(a->x, a->x_sf, a->sf, a->out, &params, a->stream);
}

/* ---- per_block_cast ---- */

#define BLOCK_PARAMS(a)                                                          \
    .format = (tgl_quant_format)(a)->fmt, .num_per_tokens = (a)->num_per_tokens, \
    .num_per_channels = (a)->num_per_channels

CHECK(per_block_cast) { return CAN_PACK(a) && is_block_size("block_size", a->num_per_tokens, a->num_per_channels); }
THUNK(per_block_cast)
{
    const tgl_quant_params params = { BLOCK_PARAMS(a), .round_sf = a->round_sf };
    return tgl_quant_per_block_cast(a->x, a->out, a->out_sf, &params, a->stream);
}
THUNK(per_block_cast_with_sf_only)
{
    const tgl_quant_params params = { BLOCK_PARAMS(a), .round_sf = a->round_sf };
    return tgl_quant_per_block_cast(a->x, NULL, a->out_sf, &params, a->stream);
}
CHECK(per_block_cast_with_precomputed_sf)
{
    if (!a->use_tma_aligned_col_major_sf && !a->use_packed_ue8m0)
        return is_block_size("block_size", a->num_per_tokens, a->num_per_channels);
    PyErr_Format(PyExc_ValueError, "%s: is True, want False: sf's dtype and strides tell its layout",
                 a->use_tma_aligned_col_major_sf ? "use_tma_aligned_col_major_sf" : "use_packed_ue8m0");
    return false;
}
THUNK(per_block_cast_with_precomputed_sf)
{
    const tgl_quant_params params = { BLOCK_PARAMS(a) };
    return tgl_quant_per_block_cast_with_precomputed_sf(a->x, a->sf, a->out, &params, a->stream);
}

CHECK(per_block_cast_lossless)
{
    const long long x_height = a->x_num_per_tokens, x_width = a->x_num_per_channels;
    const long long height = a->num_per_tokens, width = a->num_per_channels;
    if (a->use_packed_ue8m0 && !a->use_tma_aligned_col_major_sf) {
        PyErr_SetString(PyExc_ValueError, "use_packed_ue8m0: is True, want use_tma_aligned_col_major_sf True, too");
        return false;
    }
    if (!is_block_size("x_block_size", x_height, x_width) || !is_block_size("out_block_size", height, width))
        return false;
    const bool is_whole_row = width / 2 >= a->x->shape[1]; /* of pairs */
    if (height % x_height == 0 && (width % x_width == 0 || is_whole_row)) return true;
    PyErr_Format(PyExc_ValueError, "out_block_size: is (%lld, %lld), want multiples of x_block_size, (%lld, %lld)",
                 height, width, x_height, x_width);
    return false;
}
THUNK(per_block_cast_lossless)
{
    const tgl_quant_params params = {
        .x_num_per_tokens = a->x_num_per_tokens,
        .x_num_per_channels = a->x_num_per_channels,
        .num_per_tokens = a->num_per_tokens,
        .num_per_channels = a->num_per_channels,
    };
    return tgl_quant_per_block_cast_lossless(a->x, a->x_sf, a->out, a->out_sf, a->inexact, &params, a->stream);
}

/* ---- per_channel_cast ---- */

THUNK(per_channel_cast)
{
    const tgl_quant_params params = { .num_per_tokens = a->num_per_tokens, .round_sf = a->round_sf };
    return tgl_quant_per_channel_cast(a->x, NULL, NULL, a->out, a->out_sf, &params, a->stream);
}
CHECK(per_channel_cast_fused)
{
    if (!a->x_sf && a->has_num_per_channels)
        PyErr_Format(PyExc_ValueError, "num_per_channels: is %lld, want None where x comes without sf",
                     (long long)a->num_per_channels);
    else if (a->x_sf && !a->has_num_per_channels)
        PyErr_SetString(PyExc_ValueError, "num_per_channels: is None, want an integer where x is a pair (data, sf)");
    else return !a->x_sf || is_within("num_per_channels", a->num_per_channels, 1, INT64_MAX);
    return false;
}
THUNK(per_channel_cast_fused)
{
    const tgl_quant_params params = { .num_per_tokens = a->num_per_tokens,
                                      .round_sf = a->round_sf,
                                      .x_num_per_channels = a->num_per_channels };
    return tgl_quant_per_channel_cast(a->x, a->x_sf, a->pos_to_token, a->out, a->out_sf, &params, a->stream);
}
THUNK(per_channel_cast_and_transpose)
{
    const tgl_quant_params params = { .num_per_tokens = a->num_per_tokens, .round_sf = a->round_sf };
    return tgl_quant_per_channel_cast_and_transpose(a->x, a->out, a->out_sf, &params, a->stream);
}

/* ---- back ---- */

/* The format is taken from x's dtype, so the op's own message would name only one dtype. While tracing, the dtype is
 * unknown (bits is 0). */
static bool check_codes(const DLTensor *x, bool is_e5m6)
{
    const DLDataType is = x->dtype;
    const bool is_byte = (is.code == TGL_DL_INT || is.code == TGL_DL_UINT) && is.bits == 8;
    if (is_byte || is.code == TGL_DL_E4M3FN || is.code == TGL_DL_E2M1FN || is.bits == 0 || is_e5m6) return true;
    char name[32];
    PyErr_Format(PyExc_ValueError, "x: dtype is %s, want i8, u8, e4m3 or e2m1x2", name_of_dtype(is, name));
    return false;
}
static tgl_quant_format format_of(const DLTensor *x, bool is_e5m6)
{
    return is_e5m6 ? TGL_QUANT_E5M6 : x->dtype.code == TGL_DL_E4M3FN ? TGL_QUANT_E4M3 : TGL_QUANT_E2M1;
}

CHECK(cast_back)
{
    return is_block_size("x_block_size", a->x_num_per_tokens, a->x_num_per_channels) &&
           check_codes(a->x, a->has_x_special_fmt);
}
THUNK(cast_back)
{
    const tgl_quant_params params = { .format = format_of(a->x, a->has_x_special_fmt),
                                      .x_num_per_tokens = a->x_num_per_tokens,
                                      .x_num_per_channels = a->x_num_per_channels };
    return tgl_quant_cast_back(a->x, a->x_sf, a->out, &params, a->stream);
}
CHECK(per_token_cast_back)
{
    return is_within("num_per_channels", a->num_per_channels, 1, INT64_MAX) && check_codes(a->x, a->has_x_special_fmt);
}
THUNK(per_token_cast_back)
{
    const tgl_quant_params params = { .format = format_of(a->x, a->has_x_special_fmt),
                                      .x_num_per_tokens = 1,
                                      .x_num_per_channels = a->num_per_channels };
    return tgl_quant_cast_back(a->x, a->x_sf, a->out, &params, a->stream);
}
THUNK(unpack_from_e2m1fn_x2) { return tgl_quant_unpack_from_e2m1fn_x2(a->x, a->out, a->stream); }

/* ---- with SwiGLU ---- */

CHECK(swiglu_forward_and_per_token_cast)
{
    if (!CAN_PACK(a)) return false;
    if (!a->clamped_count || a->has_swiglu_clamp_value) return true;
    PyErr_SetString(PyExc_ValueError, "clamped_count: is given, want None where swiglu_clamp_value is None");
    return false;
}
THUNK(swiglu_forward_and_per_token_cast)
{
    const tgl_quant_params params = {
        .format = (tgl_quant_format)a->fmt,
        .num_per_channels = a->num_per_channels,
        .round_sf = a->round_sf,
        CLAMP(a),
        .has_sf_clamp_min = a->has_sf_clamp_min,
        .sf_clamp_min = (float)a->sf_clamp_min,
    };
    return tgl_quant_swiglu_forward_and_per_token_cast(a->x, a->pos_to_token_topk, a->topk_weights, a->pos_to_expert,
                                                       a->clamped_count, a->out, a->out_sf, &params, a->stream);
}
THUNK(swiglu_forward_and_per_channel_cast_and_transpose)
{
    const tgl_quant_params params = { .num_per_tokens = a->num_per_tokens,
                                      .round_sf = a->round_sf,
                                      .without_transpose = a->without_transpose,
                                      CLAMP(a) };
    return tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(a->x, a->out, a->out_sf, &params, a->stream);
}
THUNK(swiglu_backward_and_per_token_cast)
{
    const tgl_quant_params params = { .num_per_channels = a->num_per_channels, .round_sf = a->round_sf, CLAMP(a) };
    return tgl_quant_swiglu_backward_and_per_token_cast(a->x, a->x_sf, a->grad_out, a->weight, a->pos_to_token_topk,
                                                        a->token_topk_to_pos, a->out, a->x_grad_fp8, a->x_grad_sf,
                                                        a->x_grad, a->weight_grad, &params, a->stream);
}

static op_row rows[] = {
    { .text = "per_token_cast(" TOKEN_CAST SF_FLAGS
              ") -> out: fmt[T, W * x * fmt / 8], " OUT_SF("T", "W * x / num_per_channels"),
      .face = "x & x_sf, fmt, num_per_channels, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "(out, out_sf): x in 'e4m3', 'e2m1' or 'e5m6' with a factor per num_per_channels values of a "
             "row. x is bfloat16 or float32, or a pair (data, sf) with blocks of x_block_size, which is "
             "dequantised first. float16 is converted to float32 before; x may have more dimensions, outputs then have "
             "them too.",
      .adapts = true,
      .check = check_per_token_cast,
      .call = call_per_token_cast },
    { .text = "per_token_cast_with_sf_only(" TOKEN_CAST SF_FLAGS ") -> " OUT_SF("T", "W * x / num_per_channels"),
      .face = "x & x_sf, fmt, num_per_channels, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "The out_sf of per_token_cast.",
      .check = check_per_token_cast,
      .call = call_per_token_cast_with_sf_only },
    { .text = "per_token_cast_with_precomputed_sf(" TOKEN_CAST "sf[C, D], " SF_FLAGS ") -> "
              "out: fmt[T, W * x * fmt / 8]",
      .face = "x & x_sf, fmt, num_per_channels, sf, " X_BLOCK_SIZE " = None, " SF_FLAG_NAMES,
      .doc = "The out of per_token_cast with given factors. Their layout follows from their dtype and strides; "
             "the flags do not matter.",
      .check = check_per_token_cast_with_precomputed_sf,
      .call = call_per_token_cast_with_precomputed_sf },
    { .text = "per_block_cast(" BLOCK_CAST SF_FLAGS
              ") -> out: fmt[T, H * fmt / 8], " OUT_SF("T / num_per_tokens", "H / num_per_channels"),
      .face = "x, fmt, " BLOCK_SIZE ", " SF_FLAG_NAMES,
      .doc = "(out, out_sf): x, bfloat16 or float32, in 'e4m3' or 'e2m1' with a factor per block of "
             "block_size, rows and columns.",
      .check = check_per_block_cast,
      .call = call_per_block_cast },
    { .text = "per_block_cast_with_sf_only(" BLOCK_CAST SF_FLAGS
              ") -> " OUT_SF("T / num_per_tokens", "H / num_per_channels"),
      .face = "x, fmt, " BLOCK_SIZE ", " SF_FLAG_NAMES,
      .doc = "The out_sf of per_block_cast.",
      .check = check_per_block_cast,
      .call = call_per_block_cast_with_sf_only },
    { .text = "per_block_cast_with_precomputed_sf(" BLOCK_CAST "sf[A, B], " SF_FLAGS ") -> "
              "out: fmt[T, H * fmt / 8]",
      .face = "x, fmt, " BLOCK_SIZE ", sf, " SF_FLAG_NAMES,
      .doc = "The out of per_block_cast with given factors. Their layout follows from their dtype and strides; "
             "round_sf is ignored, the other flags must be False.",
      .check = check_per_block_cast_with_precomputed_sf,
      .call = call_per_block_cast_with_precomputed_sf },
    { .text = "per_block_cast_lossless(x[T, W], x_sf[A, B], fmt: {e4m3}, x_num_per_tokens: int, "
              "x_num_per_channels: int, num_per_tokens: int, num_per_channels: int, " SF_FLAGS
              ", inexact[One]?!) -> out: fmt[T, W * x], " OUT_SF("T / num_per_tokens", "W * x / num_per_channels"),
      .face = "x & x_sf, fmt, " X_BLOCK_SIZE ", out_block_size: num_per_tokens & num_per_channels, " SF_FLAG_NAMES
              ", *, inexact",
      .doc = "(out, out_sf): a pair of e2m1 and powers of two with blocks of x_block_size as 'e4m3' with "
             "larger blocks of out_block_size. Values stay the same if exponents in a block differ by at most 14; "
             "otherwise inexact, an int32 tensor of one element, is set to 1. Factors are powers of two even "
             "without round_sf.",
      .check = check_per_block_cast_lossless,
      .call = call_per_block_cast_lossless },
    { .text = "per_channel_cast(x[T, H], fmt: {e4m3}, num_per_tokens: int, round_sf: bool = False) -> "
              "out: fmt[T, H], out_sf: f32[T / num_per_tokens, H]",
      .doc = "(out, out_sf): a factor per num_per_tokens values of a column.",
      .call = call_per_channel_cast },
    { .text = "per_channel_cast_fused(x[T, H], x_sf[A, B]?, fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False, num_per_channels: int? = None, pos_to_token[P]?) -> "
              "out: fmt[P, H] if pos_to_token else fmt[T, H], "
              "out_sf: f32[P / num_per_tokens, H] if pos_to_token else f32[T / num_per_tokens, H]",
      .face = "x & x_sf, fmt, num_per_tokens, round_sf, num_per_channels, pos_to_token",
      .doc = "(out, out_sf): as per_channel_cast, of the rows x[pos_to_token]; a negative index is a row of "
             "padding. x may be a pair of e4m3 and a factor per num_per_channels values of a row.",
      .check = check_per_channel_cast_fused,
      .call = call_per_channel_cast_fused },
    { .text = "per_channel_cast_and_transpose(x[T, H], fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False) -> out: fmt[H, T], out_sf: f32[T / num_per_tokens, H]",
      .doc = "(out, out_sf): as per_channel_cast, with out transposed; out_sf is not.",
      .call = call_per_channel_cast_and_transpose },
    { .text = "cast_back(x[T, W], x_sf[A, B], fmt: {bf16|fp32}, x_num_per_tokens: int, "
              "x_num_per_channels: int, x_special_fmt: {e5m6}? = None) -> "
              "out: fmt[T, W * 2 / 3] if x_special_fmt else fmt[T, W * x]",
      .face = "x & x_sf, fmt, " X_BLOCK_SIZE ", x_special_fmt",
      .doc = "The values of a pair (data, sf) with blocks of x_block_size, in 'bf16' or 'fp32'. Data in e5m6 "
             "(uint8) needs x_special_fmt='e5m6'.",
      .check = check_cast_back,
      .call = call_cast_back },
    { .text = "per_token_cast_back(x[T, W], x_sf[A, B], fmt: {bf16|fp32}, num_per_channels: int, "
              "x_special_fmt: {e5m6}? = None) -> out: fmt[T, W * 2 / 3] if x_special_fmt else fmt[T, W * x]",
      .op = "cast_back",
      .face = "x & x_sf, fmt, num_per_channels, x_special_fmt",
      .doc = "cast_back with blocks of 1 x num_per_channels.",
      .check = check_per_token_cast_back,
      .call = call_per_token_cast_back },
    { .text = "unpack_from_e2m1fn_x2(x[N], fmt: {f32|bf16|f16|e4m3}) -> out: fmt[N * 2]",
      .doc = "tegula.quant.unpack_from_e2m1fn_x2 of one dimension.",
      .is_wrapped = true,
      .call = call_unpack_from_e2m1fn_x2 },
    { .text = "swiglu_forward_and_per_token_cast(x[T, W], fmt: {e4m3|e2m1}, num_per_channels: int, "
              "pos_to_token_topk[T]?, topk_weights[N, K]?, pos_to_expert[T]?, " SF_FLAGS
              ", swiglu_clamp_value: float? = None, clamped_count[Three]?!, sf_clamp_min: float? = None) -> "
              "out: fmt[T, W / 2 * fmt / 8], " OUT_SF("T", "W / 2 / num_per_channels"),
      .doc = "(out, out_sf): silu(gate) * up of rows of gates and ups, times "
             "topk_weights.flatten()[pos_to_token_topk[i]], cast to 'e4m3' or 'e2m1' as by per_token_cast. Rows with a "
             "negative pos_to_expert are skipped. swiglu_clamp_value c clamps gates to at most c and ups to -c .. c; "
             "the counts of gates above c, ups above c and ups below -c are added to clamped_count, three int64. "
             "sf_clamp_min replaces the floor of 1e-4.",
      .check = check_swiglu_forward_and_per_token_cast,
      .call = call_swiglu_forward_and_per_token_cast },
    { .text = "swiglu_forward_and_per_channel_cast_and_transpose(x[T, W], fmt: {e4m3}, num_per_tokens: int, "
              "round_sf: bool = False, without_transpose: bool = False, swiglu_clamp_value: float? = None) "
              "-> out: fmt[T, W / 2] if without_transpose else fmt[W / 2, T], "
              "out_sf: f32[T / num_per_tokens, W / 2]",
      .doc = "(out, out_sf): silu(gate) * up of rows of gates and ups, rounded to bf16, then as "
             "per_channel_cast; out is transposed unless without_transpose, out_sf never is.",
      .call = call_swiglu_forward_and_per_channel_cast_and_transpose },
    { .text = "swiglu_backward_and_per_token_cast(x[E, W], x_sf[A, B], grad_out[E, H], weight[N, K], "
              "pos_to_token_topk[E], token_topk_to_pos[N, K], num_per_channels: int, round_sf: bool = False, "
              "swiglu_clamp_value: float? = None) -> out: bf16[E, H], x_grad_fp8: e4m3[E, W], "
              "x_grad_sf: f32[E, H / num_per_channels * 2], x_grad: bf16[E, W], weight_grad: f32[N, K]",
      .face = "x & x_sf, grad_out, weight, pos_to_token_topk, token_topk_to_pos, num_per_channels, round_sf, "
              "swiglu_clamp_value",
      .doc = "tegula.quant.swiglu_backward_and_per_token_cast of matrices, with five outputs.",
      .is_wrapped = true,
      .call = call_swiglu_backward_and_per_token_cast },
};
DOMAIN(quant);
