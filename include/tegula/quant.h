/* SPDX-License-Identifier: MIT
 * quant.h - casts to FP8, FP4 and E5M6 with scale factors, casts back, and casts fused with SwiGLU.
 * docs/quant.md has formats, drawings of the layouts, examples and speed.
 *
 * Data. [num_rows, num_cols] values, num_rows tokens of num_cols channels:
 *   e4m3   [num_rows, num_cols] of e4m3
 *   e2m1   [num_rows, num_cols / 2] of e2m1x2, i8 or u8: two values a byte, the even column in the low
 *          nibble; num_cols is even
 *   e5m6   [num_rows, num_cols * 3 / 2] of u8: eight values in three 32-bit words (numerics/e5m6.h); num_cols
 *          is a multiple of 8 and data is aligned to 4 bytes
 * Row strides are in elements of the tensor.
 *
 * Scale factors. A block of block_rows x block_cols values has one factor: value = code * sf. Blocks at
 * the right and bottom edges may be partial. There are M x K factors, M = ceil(num_rows / block_rows) and
 * K = ceil(num_cols / block_cols), in one of three layouts, recognised by dtype and strides:
 *   row-major      f32 [M, K]            strides (K or more, 1)
 *   column-major   f32 [M, K]            strides (1, ld), ld >= M; DeepGEMM wants ld = M rounded up to 4
 *   packed         i32 [M, ceil(K / 4)]  strides (1, ld): four UE8M0 codes a word, the first in the
 *                  lowest byte; codes past K are written as 0
 * f32 with a row stride of 1 is column-major, unless there is a single row or column, where both layouts
 * are the same. Of an input, the other stride may be any number >= 0. Gaps between factors are not
 * written.
 *
 * How sf is computed. a = max(largest |value| of the block, floor), ignoring NaN. Without round_sf, sf = a
 * / max and inv = max / a (0 if a = 0). With round_sf, sf is the smallest power of two that is not below a
 * / max, clamped to 2^-126 .. 2^127, and inv = 1 / sf (0 for 2^127). Packed factors need round_sf. Then
 * code = encode(value * inv), to nearest even, saturating (e5m6: numerics/e5m6.h). Each step rounds to
 * f32. So in a block with an infinity, finite values become zeros and infinities NaN (e2m1: 6). If max / a
 * overflows f32, which only a small sf_clamp_min makes possible, zeros become NaN and all other values
 * saturate.
 *            max     floor
 *   e4m3     448     1e-4
 *   e2m1     6       6 * 2^-126
 *   e5m6     65024   1e-4
 *
 * Exact: CPU and CUDA agree bit for bit, except for the SwiGLU ops, where exp may differ in its last bits,
 * and for the sign and payload of a NaN that cast_back writes in f32. */
#ifndef TEGULA_QUANT_H
#define TEGULA_QUANT_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tgl_quant_format { TGL_QUANT_E4M3 = 0, TGL_QUANT_E2M1 = 1, TGL_QUANT_E5M6 = 2 } tgl_quant_format;

/* Parameters of the ops of this header. Each op says which fields it reads; it ignores the others. */
typedef struct tgl_quant_params {
    tgl_quant_format format;
    int64_t num_per_tokens;     /* block_rows of the output's factors; 0: 1 */
    int64_t num_per_channels;   /* block_cols; 0: all columns */
    int64_t x_num_per_tokens;   /* the same for the factors of x; 0: 1 */
    int64_t x_num_per_channels; /* 0: all columns */
    bool round_sf;              /* factors are powers of two */
    bool without_transpose;
    bool has_swiglu_clamp_value;
    float swiglu_clamp_value; /* >= 0 */
    bool has_sf_clamp_min;
    float sf_clamp_min;   /* replaces the floor of the largest magnitude; >= 0 */
    uint64_t reserved[8]; /* zero */
} tgl_quant_params;

/* ---- casts ---- */

/* tgl_quant_per_token_cast() - blocks of 1 x num_per_channels
 *   x       in   bf16 or f32; or e4m3 or e2m1 with x_sf   [num_rows, num_cols]   rows may be strided
 *   x_sf    in   any layout, blocks x_num_per_tokens x x_num_per_channels          NULL: x has none
 *   out     out  `format`                                 [num_rows, num_cols]   packed; NULL: only factors
 *   out_sf  out  any layout
 * Reads format, num_per_channels, x_num_per_*, round_sf. A quantised x is dequantised first: code * x_sf
 * rounded to f32, then cast. e5m6: only from bf16 and f32, num_per_channels a multiple of 8. Since 0.1. */
TGL_API tgl_status tgl_quant_per_token_cast(const DLTensor *x, const DLTensor *x_sf, DLTensor *out, DLTensor *out_sf,
                                            const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_per_token_cast_with_precomputed_sf() - the same with given factors: inv = 1 / sf
 *   x, x_sf, out   as above
 *   sf      in   any layout
 * Since 0.1. */
TGL_API tgl_status tgl_quant_per_token_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *x_sf,
                                                                const DLTensor *sf, DLTensor *out,
                                                                const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_per_block_cast() - blocks of num_per_tokens x num_per_channels
 *   x       in   bf16 or f32        [num_rows, num_cols]   rows may be strided
 *   out     out  e4m3 or e2m1       [num_rows, num_cols]   packed; NULL: only factors
 *   out_sf  out  any layout
 * Reads format, num_per_tokens, num_per_channels, round_sf. Since 0.1. */
TGL_API tgl_status tgl_quant_per_block_cast(const DLTensor *x, DLTensor *out, DLTensor *out_sf,
                                            const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_per_block_cast_with_precomputed_sf() - the same with given factors: inv = 1 / sf
 *   x, out   as above
 *   sf      in   any layout
 * Since 0.1. */
TGL_API tgl_status tgl_quant_per_block_cast_with_precomputed_sf(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                                                                const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_per_block_cast_lossless() - FP4 with small blocks of power-of-two factors to FP8 with larger
 * blocks
 *   x         in     e2m1            [num_rows, num_cols]   rows may be strided
 *   x_sf      in     any layout, blocks x_num_per_*; powers of two or 0 (of f32 only the exponent is read)
 *   out       out    e4m3            [num_rows, num_cols]   packed
 *   out_sf    out    any layout, blocks num_per_*, whole multiples of x's blocks (or all columns)
 *   inexact   inout  i32             [1]                    set to 1 where a value changed; NULL: not wanted
 * Let E be the exponent codes (UE8M0) of the input blocks within an output block. The output block's
 * exponent code is F = max(max E - 6, 1), and an element becomes code * 2^(E - F) in e4m3: exact if the
 * exponents differ by at most 14, otherwise rounded. Where E is 0 (factor 0), elements become zeros with
 * their sign, which is exact. Output factors are always powers of two; round_sf is not read. Since 0.1. */
TGL_API tgl_status tgl_quant_per_block_cast_lossless(const DLTensor *x, const DLTensor *x_sf, DLTensor *out,
                                                     DLTensor *out_sf, DLTensor *inexact,
                                                     const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_per_channel_cast() - blocks of num_per_tokens x 1, of gathered rows
 *   x             in   bf16 or f32; or e4m3 with x_sf   [num_tokens, num_cols]   rows may be strided
 *   x_sf          in   any layout, blocks 1 x x_num_per_channels                   NULL: x has none
 *   pos_to_token  in   i32                              [num_rows]               packed; NULL: every row of x
 *   out           out  e4m3                             [num_rows, num_cols]     packed
 *   out_sf        out  f32                              [M, num_cols]            packed
 * Row i is x[pos_to_token[i]]. If that index is negative or past the last token, the row is ignored by sf and
 * becomes +0. Reads num_per_tokens, x_num_per_channels, round_sf. Since 0.1. */
TGL_API tgl_status tgl_quant_per_channel_cast(const DLTensor *x, const DLTensor *x_sf, const DLTensor *pos_to_token,
                                              DLTensor *out, DLTensor *out_sf, const tgl_quant_params *params,
                                              tgl_stream stream);

/* tgl_quant_per_channel_cast_and_transpose() - blocks of num_per_tokens x 1, codes transposed
 *   x       in   bf16 or f32   [num_rows, num_cols]   rows may be strided
 *   out     out  e4m3          [num_cols, num_rows]   packed
 *   out_sf  out  f32           [M, num_cols]          packed; not transposed
 * Reads num_per_tokens, round_sf. Since 0.1. */
TGL_API tgl_status tgl_quant_per_channel_cast_and_transpose(const DLTensor *x, DLTensor *out, DLTensor *out_sf,
                                                            const tgl_quant_params *params, tgl_stream stream);

/* ---- back ---- */

/* tgl_quant_cast_back() - codes to numbers
 *   x     in   `format`, which is e4m3, e2m1 or e5m6   [num_rows, num_cols]   rows may be strided
 *   x_sf  in   any layout, blocks x_num_per_tokens x x_num_per_channels
 *   out   out  bf16 or f32                             [num_rows, num_cols]   packed
 * out = code * sf in f32, then to nearest even for bf16. Since 0.1. */
TGL_API tgl_status tgl_quant_cast_back(const DLTensor *x, const DLTensor *x_sf, DLTensor *out,
                                       const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_unpack_from_e2m1fn_x2() - pairs of e2m1 to numbers, without factors
 *   x    in   e2m1x2, i8 or u8          [..., n]       packed, at least one dimension
 *   out  out  f32, bf16, f16 or e4m3    [..., 2 * n]   packed
 * Exact. Since 0.1. */
TGL_API tgl_status tgl_quant_unpack_from_e2m1fn_x2(const DLTensor *x, DLTensor *out, tgl_stream stream);

/* ---- fused with SwiGLU ----
 * A row of x is num_cols gate values l, then num_cols up values r. With a clamp value c, first l = min(l,
 * c) and r is clamped to -c .. c (NaN stays). The activation is v = l / (1 + exp(-l)) * r, each step in
 * f32. */

/* tgl_quant_swiglu_forward_and_per_token_cast() - the activation, weighted, in blocks of 1 x num_per_channels
 *   x                  in     bf16 or f32   [num_rows, 2 * num_cols]   rows may be strided
 *   pos_to_token_topk  in     i32           [num_rows]                 packed; NULL: no weights
 *   topk_weights       in     f32           [num_tokens, num_topk]     packed; given with pos_to_token_topk
 *   pos_to_expert      in     i32           [num_rows]                 packed; NULL: every row counts
 *   clamped_count      inout  i64           [3]                        packed; NULL: not wanted; needs a
 *                      clamp value
 *   out                out    e4m3 or e2m1  [num_rows, num_cols]       packed
 *   out_sf             out    any layout
 * v is multiplied by the weight with flat index pos_to_token_topk[i] (0 if that is out of range) before it is
 * cast. Rows whose pos_to_expert is negative are neither written nor counted. clamped_count is incremented by
 * the numbers of l > c, r > c and r < -c. Reads format, num_per_channels, round_sf, swiglu_clamp_value,
 * sf_clamp_min. Since 0.1. */
TGL_API tgl_status tgl_quant_swiglu_forward_and_per_token_cast(const DLTensor *x, const DLTensor *pos_to_token_topk,
                                                               const DLTensor *topk_weights,
                                                               const DLTensor *pos_to_expert, DLTensor *clamped_count,
                                                               DLTensor *out, DLTensor *out_sf,
                                                               const tgl_quant_params *params, tgl_stream stream);

/* tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose() - the activation, rounded to bf16, in blocks
 * of num_per_tokens x 1
 *   x       in   bf16 or f32   [num_rows, 2 * num_cols]   rows may be strided
 *   out     out  e4m3          [num_cols, num_rows]       packed; [num_rows, num_cols] without_transpose
 *   out_sf  out  f32           [M, num_cols]              packed; never transposed
 * Reads num_per_tokens, round_sf, without_transpose, swiglu_clamp_value. Since 0.1. */
TGL_API tgl_status tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(const DLTensor *x, DLTensor *out,
                                                                               DLTensor *out_sf,
                                                                               const tgl_quant_params *params,
                                                                               tgl_stream stream);

/* tgl_quant_swiglu_backward_and_per_token_cast() - recomputes the weighted activation, and all gradients
 *   x                  in   e4m3         [num_rows, 2 * num_cols]   rows may be strided
 *   x_sf               in   any layout, blocks 1 x num_per_channels of each half, the gates' first
 *   grad_out           in   bf16         [num_rows, num_cols]       rows may be strided
 *   weight             in   f32          [num_tokens, num_topk]     packed
 *   pos_to_token_topk  in   i32          [num_rows]                 packed
 *   token_topk_to_pos  in   i32          [num_tokens, num_topk]     packed; where negative, weight_grad is 0
 *   out                out  bf16         [num_rows, num_cols]       packed
 *   x_grad_fp8         out  e4m3         [num_rows, 2 * num_cols]   packed
 *   x_grad_sf          out  any layout, as x_sf
 *   x_grad             out  bf16         [num_rows, 2 * num_cols]   packed
 *   weight_grad        out  f32          [num_tokens, num_topk]     packed
 * Per element, let w be the weight with flat index pos_to_token_topk[i] (0 if that is out of range), s = 1
 * / (1 + exp(-l)), act the activation and g = grad_out. Then out = act * w and ws = g * w * s; the gate's
 * gradient is (ws * r) * fma(l, 1 - s, 1), the up's is ws * l, each +0 if the clamp changed the value.
 * weight_grad is the sum of g * act over the row, in an order that does not depend on the launch. FP8
 * codes are rounded from the f32 gradients. The two maps are inverse to each other; a slot whose row does
 * not point back to it has weight_grad 0. Reads num_per_channels, round_sf, swiglu_clamp_value. Since 0.1. */
TGL_API tgl_status tgl_quant_swiglu_backward_and_per_token_cast(
    const DLTensor *x, const DLTensor *x_sf, const DLTensor *grad_out, const DLTensor *weight,
    const DLTensor *pos_to_token_topk, const DLTensor *token_topk_to_pos, DLTensor *out, DLTensor *x_grad_fp8,
    DLTensor *x_grad_sf, DLTensor *x_grad, DLTensor *weight_grad, const tgl_quant_params *params, tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
