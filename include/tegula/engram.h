/* SPDX-License-Identifier: MIT
 * engram.h - Engram, a memory that a layer looks up by the last few token ids: rows of its table from n-grams of
 * ids. docs/engram.md has formulas, examples and speed. */
#ifndef TEGULA_ENGRAM_H
#define TEGULA_ENGRAM_H

#include "tegula/core.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- ids to rows ---- */

/* tgl_engram_ngram_windows() - each token id with the max_ngram - 1 ids before it in its sequence, newest first
 *   input_ids   in   i32 or i64   [num_tokens]                    any stride
 *   cu_seqlens  in   i32 or i64   [num_requests + 1]              packed; NULL: one sequence
 *   history     in   i32 or i64   [num_requests, max_ngram - 1]   rows may be strided; NULL: none. The ids before
 *                                                                 each sequence, oldest first
 *   lookup      in   i32          [vocabulary]                    packed; NULL: identity
 *   out         out  i32 or i64   [num_tokens, max_ngram]         rows may be strided
 * Sequence b has tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1; entries are clamped to 0 .. num_tokens and to the
 * largest entry before them. out[t][i] is the id i tokens before t, from the sequence or from history, mapped by
 * lookup (ids that it does not have, including negative ones, stay), or pad_id if there is none. The first slot
 * i > 0 that holds stop_id and all older ones become pad_id. stop_id is compared before the lookup, pad_id is not
 * looked up. A token in no sequence has a window of pad_id. Ids are truncated to out's bits.
 * 1 <= max_ngram <= 4096. Exact. Since 0.1. */
typedef struct tgl_engram_ngram_windows_params {
    int64_t pad_id;
    bool has_stop_id;
    int64_t stop_id;      /* used if has_stop_id */
    uint64_t reserved[8]; /* zero */
} tgl_engram_ngram_windows_params;
TGL_API tgl_status tgl_engram_ngram_windows(const DLTensor *input_ids, const DLTensor *cu_seqlens,
                                            const DLTensor *history, const DLTensor *lookup, DLTensor *out,
                                            const tgl_engram_ngram_windows_params *params, tgl_stream stream);

/* The requests of a ragged batch: request b has the chunk of tokens cu_seqlens[b] .. cu_seqlens[b + 1] - 1, which
 * may be empty. Entries are clamped to 0 .. num_tokens and to the largest entry before them. */
typedef struct tgl_engram_batch {
    const DLTensor *cu_seqlens; /* i32 or i64 [num_requests + 1], packed; NULL: one request of all tokens */
    const DLTensor *start_pos;  /* i32 or i64 [num_requests], packed: tokens of each request before its chunk */
    const DLTensor *slots;      /* i32 or i64 [num_requests], packed: the rows of a ring; NULL: row b */
    bool has_null_slot;
    int64_t null_slot;    /* used if has_null_slot: stands for no row, as negative slots do */
    uint64_t reserved[8]; /* zero */
} tgl_engram_batch;

/* How ids become rows. */
typedef struct tgl_engram_ngram {
    const DLTensor *token_map;   /* i32 [vocabulary], packed; NULL: ids as they are */
    const DLTensor *multipliers; /* i64 [num_layers, max_ngram], packed */
    const DLTensor *vocab_sizes; /* i32 or i64 [num_layers, max_ngram - 1, num_heads], packed */
    const DLTensor *offsets;     /* i32 or i64 [num_layers, (max_ngram - 1) * num_heads], packed */
    int64_t pad_id;              /* is not mapped */
    bool has_stop_id;
    int64_t stop_id; /* used if has_stop_id; compared before the map */
    bool history_newest_first;
    bool hash_masked;     /* dead tokens have the rows of a window of pad_id, not -1 */
    bool keep_ring;       /* the ring is only read */
    uint64_t reserved[8]; /* zero */
} tgl_engram_ngram;

/* tgl_engram_rows() - from raw token ids to table rows, for all layers, in one launch
 *   input_ids         in      i32 or i64   [num_tokens]                    any stride
 *   image_token_mask  in      bool         [num_tokens]                    packed; NULL: none is masked
 *   history           in      i32 or i64   [num_requests, max_ngram - 1]   rows may be strided; NULL: none. Raw ids
 *                                                                          before each chunk, oldest first
 *   ring              in/out  i32 or i64   [num_slots, ring_size]          rows may be strided; NULL: none. Raw ids
 *                                                                          by position; not together with history
 *   rows              out     i32 or i64   [num_layers, num_tokens, (max_ngram - 1) * num_heads]
 *                                                                          packed columns; any strides of layers and
 *                                                                          tokens for which rows do not overlap
 * batch may be NULL: one request. start_pos[b] (below 0: 0) tokens of request b came before its chunk. The id a
 * tokens back is history[b][max_ngram - 1 - a], or ring[slots[b]][(start_pos[b] - a) mod ring_size]. Without
 * start_pos all of history counts; ring needs it.
 * A token is dead if it is masked, its id is negative or is not in the map. The window of a token is its id and the
 * max_ngram - 1 ids before it in its request, mapped. The first slot whose token is dead, does not exist or (except
 * for the token itself) is stop_id, and all older slots, become pad_id. rows are those of tgl_engram_hash(); -1 for
 * a dead token and for a token in no request.
 * Afterwards the last ring_size tokens of each chunk are stored in the ring: the raw id at position x in entry
 * x mod ring_size, -1 for a dead token or an id that the ring's dtype cannot hold. A rejected draft token is
 * overwritten when its position comes again; nobody has to count accepted tokens. If up to Q tokens of a chunk may
 * be rejected, ring_size must be at least max_ngram - 1 + Q; it is never below max_ngram - 1. A slot that is
 * negative, null_slot or past the last is neither read nor written. The slots of a call must be distinct.
 * 1 <= max_ngram <= 4096; fewer than 2^23 vocab_sizes in all. Exact. Since 0.1. */
TGL_API tgl_status tgl_engram_rows(const DLTensor *input_ids, const DLTensor *image_token_mask, const DLTensor *history,
                                   DLTensor *ring, DLTensor *rows, const tgl_engram_batch *batch,
                                   const tgl_engram_ngram *ngram, tgl_stream stream);

/* tgl_engram_hash() - table rows of windows of token ids, for all layers
 *   ngram_token_ids   in   i32 or i64   [num_tokens, max_ngram]                  rows may be strided; [t][0] is the
 *                                                                                token, [t][i] the one i before it
 *   multipliers       in   i64          [num_layers, max_ngram]                  packed
 *   vocab_sizes       in   i32 or i64   [num_layers, max_ngram - 1, num_heads]   packed
 *   offsets           in   i32 or i64   [num_layers, (max_ngram - 1) * num_heads]   packed
 *   image_token_mask  in   bool         [num_tokens]                             packed; NULL: none is masked
 *   out               out  i32 or i64   [num_layers, num_tokens, (max_ngram - 1) * num_heads]   packed
 * With h[0] = id[0] * multiplier[0] and h[i] = h[i - 1] ^ (id[i] * multiplier[i]), in 64 bits that wrap:
 * out[l][t][(i - 1) * num_heads + j] = h[i] mod vocab_sizes[l][i - 1][j] + offset; the modulo is never negative,
 * the sum is truncated to out's bits. A vocab_size below 1 gives -1, and so does a masked token.
 * 1 <= max_ngram <= 4096; fewer than 2^23 vocab_sizes in all. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_hash(const DLTensor *ngram_token_ids, const DLTensor *multipliers,
                                   const DLTensor *vocab_sizes, const DLTensor *offsets,
                                   const DLTensor *image_token_mask, DLTensor *out, tgl_stream stream);

/* ---- rows ---- */

typedef struct tgl_engram_lookup_params {
    int64_t row_begin;    /* the number of the table's first row; >= 0 */
    int64_t num_rows;     /* lookup_bwd without grad_table: rows owned; 0: all */
    int64_t num_sms;      /* at most as many blocks, an SM each; 0: tgl_get_num_sms() */
    bool constant_table;  /* nothing before this call on the stream writes the table */
    uint64_t reserved[8]; /* zero */
} tgl_engram_lookup_params;

/* tgl_engram_lookup() - rows of a table by index
 *   table     in   e4m3, bf16, f16, f32    [table_rows, dim]            rows may be strided
 *   table_sf  in   u8 or ue8m0, or f32     [table_rows, dim / 32], or [1]  scale factors of e4m3: a UE8M0 for 32 codes
 *                                          (rows may be strided), or one for the table; NULL: none
 *   indices   in   i32 or i64              [num_tokens, num_columns]    any strides; NULL: 0, 1, 2, ... in order
 *   out       out  bf16, or as table       [num_tokens, num_columns, dim]   token and column strides are free
 *             or   u8                      [num_tokens, num_columns, dim + dim / 32]   packed rows: the bytes of a
 *                                          row of table, then those of table_sf
 *   out_sf    out  i32                     [num_tokens, num_columns * dim / 128]   rounded up; strides
 *                                          [1, >= num_tokens]; NULL: none. Wants out of e4m3 with packed columns and
 *                                          table_sf of UE8M0. Gets the scale factors of a token's rows one after the
 *                                          other, four in a word, as quant.h packs them
 * Row r = indices[t][c] - row_begin of the table goes to out[t][c]. If there is no such row, as for any negative
 * index, nothing is read and all bytes are 0: tables that are split over ranks are looked up with the same indices.
 *   e4m3 to bf16   code * 2^(E - 127) with E from table_sf (0 is 2^-127, 255 is NaN), or code * table_sf[0], in f32,
 *                  rounded once; every NaN is 0x7FFF
 *   f16, f32 to bf16   rounded; every NaN is 0x7FFF
 *   otherwise      bits are copied, those of NaN too
 * Packed rows are looked up again with indices NULL: table and table_sf are then two views of the packed bytes.
 * In a CUDA call table, and a table_sf of UE8M0, may also be in host memory that the device reads: page-locked
 * (cuMemHostAlloc, cudaHostRegister), or any where the device uses the host's page tables. Rows are read
 * from there as the kernel runs: no copy is made. constant_table has no effect yet: reads of the table begin when the
 * kernel before this one has ended, in any case. dim < 2^30. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_lookup(const DLTensor *table, const DLTensor *table_sf, const DLTensor *indices,
                                     DLTensor *out, DLTensor *out_sf, const tgl_engram_lookup_params *params,
                                     tgl_stream stream);

/* tgl_engram_lookup_bwd() - the gradient of a table's rows, each the sum over all places where it was looked up
 *   grad_out     in      bf16 or f32   [num_tokens, num_columns, dim]     token and column strides are free
 *   indices      in      i32 or i64    [num_tokens, num_columns]          any strides
 *   grad_table   in/out  f32           [table_rows, dim]                  rows may be strided; added to; NULL: not wanted
 *   unique_rows  out     i32 or i64    [num_tokens * num_columns]         packed; these three all or none: NULL
 *   grad_rows    out     f32           [num_tokens * num_columns, dim]    packed
 *   num_unique   out     i32           [1]
 * Rows row_begin .. row_begin + num_rows - 1 are owned: those of grad_table, or as params say; other indices are left
 * out. unique_rows gets the owned rows that occur, in ascending order, then -1; grad_rows their sums, num_unique their
 * number; the rest of grad_rows is not written. grad_table[r] += sum; rows that do not occur are not touched.
 * The order of a sum is defined: a row's occurrences, by t * num_columns + c, are cut into chunks of 32; each chunk is
 * summed in order from 0, then the chunks' sums are, all in f32. Every NaN has the same bits. Exact: CPU and CUDA agree bit for
 * bit. num_tokens * num_columns < 2^31, dim < 2^30. On the CPU no workspace is used and 40 bytes per index are
 * allocated. Since 0.1. */
TGL_API tgl_status tgl_engram_lookup_bwd(const DLTensor *grad_out, const DLTensor *indices, DLTensor *grad_table,
                                         DLTensor *unique_rows, DLTensor *grad_rows, DLTensor *num_unique,
                                         const tgl_engram_lookup_params *params, void *workspace,
                                         size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_engram_lookup_bwd_workspace_size(const DLTensor *grad_out, const DLTensor *indices,
                                                    const tgl_engram_lookup_params *params);

/* ---- gate ---- */

/* tgl_engram_fused_weight() - the product of the gate's two RMSNorm weights
 *   weight_hidden  in   bf16 or f32     [num_streams, hidden]   rows may be strided
 *   weight_embed   in   weight_hidden's [num_streams, hidden]   rows may be strided
 *   out            out  f32             [num_streams, hidden]   packed
 * out = weight_hidden * weight_embed in f32, which is exact for bf16 unless it over- or underflows. A NaN has all bits
 * set but its sign. Exact. Since 0.1. */
TGL_API tgl_status tgl_engram_fused_weight(const DLTensor *weight_hidden, const DLTensor *weight_embed, DLTensor *out,
                                           tgl_stream stream);

/* What the gate makes of a score of 0, which a row of zeros has. */
typedef enum tgl_engram_sign {
    TGL_ENGRAM_SIGN_ZERO = 0, /* the sign of 0 is 0: gate 0.5 */
    TGL_ENGRAM_SIGN_BIT = 1   /* its sign bit: sigmoid(+-sqrt(clamp_value)) */
} tgl_engram_sign;

typedef struct tgl_engram_gate_params {
    float eps, clamp_value; /* >= 0; 0 means 0 */
    bool no_residual;       /* gate * v alone, without hidden_states */
    bool zero_centered;     /* both weights are stored minus 1 */
    bool constant_weights;  /* nothing before this call on the stream writes the weights */
    tgl_engram_sign sign;   /* of the forward */
    uint64_t reserved[8];   /* zero */
} tgl_engram_gate_params;

/* tgl_engram_gate_fwd() - per token and stream, how much of the value is let in, and the result
 *   hidden_states     in   bf16          [num_tokens, num_streams, hidden]   rows packed, any distance apart
 *   k                 in   bf16          [num_tokens, num_streams, hidden]   likewise
 *   v                 in   bf16          [num_tokens, hidden]                likewise; k and v may be views of one
 *                                                                            [num_tokens, num_streams + 1, hidden]
 *   weight_hidden     in   bf16 or f32   [num_streams, hidden]               rows may be strided
 *   weight_embed      in   as above      [num_streams, hidden]               likewise; NULL: weight_hidden is the fused
 *                                                                            weight, f32
 *   image_token_mask  in   bool          [num_tokens]                        packed; NULL: none is masked
 *   output            out  bf16          [num_tokens, num_streams, hidden]   as hidden_states, which it may be itself
 *                                                                            unless dot is given; NULL: not wanted
 *   dot, gate_score, rstd_x, rstd_k   out   f32   [num_tokens, num_streams]  packed; for the backward; all NULL: none
 * With x, k, w one row (w = weight_hidden * weight_embed, or (1 + weight_hidden) * (1 + weight_embed)):
 *   dot = sum of (x * w) * k; rstd_x = 1 / sqrt(sum of x * x / hidden + eps), rstd_k alike;
 *   s = dot * rstd_x * rstd_k / sqrt(hidden); u = sign(s) * sqrt(max(|s|, clamp_value));
 *   gate_score = 1 / (1 + e^-u); output = hidden_states + gate_score * v, rounded once to bf16.
 * A masked token: output = hidden_states bit for bit (+0 without residual), the others 0; its k and v do not matter.
 * NaN and infinities in x or k make the whole row NaN, in v its own column; a NaN has all bits set but its sign. Sums
 * are f32, in an order that depends on hidden alone (docs/engram.md). Exact: CPU and CUDA agree bit for bit; a result
 * does not depend on the other tokens. 1 <= hidden < 2^31. Since 0.1. */
TGL_API tgl_status tgl_engram_gate_fwd(const DLTensor *hidden_states, const DLTensor *k, const DLTensor *v,
                                       const DLTensor *weight_hidden, const DLTensor *weight_embed,
                                       const DLTensor *image_token_mask, DLTensor *output, DLTensor *dot,
                                       DLTensor *gate_score, DLTensor *rstd_x, DLTensor *rstd_k,
                                       const tgl_engram_gate_params *params, tgl_stream stream);

/* tgl_engram_gate_bwd() - the gradients of tgl_engram_gate_fwd
 *   grad_out            in   bf16   [num_tokens, num_streams, hidden]     rows packed, any distance apart
 *   hidden_states, k, v, weight_hidden, weight_embed, image_token_mask    as in the forward
 *   dot, gate_score, rstd_x, rstd_k   in   f32   [num_tokens, num_streams]   packed; what the forward wrote
 *   grad_hidden_states  out  bf16   [num_tokens, num_streams, hidden]     rows packed, any distance apart
 *   grad_k              out  bf16   [num_tokens, num_streams, hidden]     likewise
 *   grad_v              out  bf16   [num_tokens, hidden]                  likewise; with grad_k it may be a view of one
 *                                                                         [num_tokens, num_streams + 1, hidden]
 *   grad_w_partial      out  f32    [num_partials, num_streams, hidden]   packed; num_partials >= 1. Their sum is the
 *                                                                         gradient of the product of the weights
 * Each output may be NULL: not wanted. Of params, eps and sign do not matter. Per row, with go = grad_out,
 * g = gate_score and s as in the forward:
 *   A = sum of go * v;  q = 0 if |s| < clamp_value or s = 0, otherwise
 *   A * g * (1 - g) * (rstd_x * rstd_k / sqrt(hidden)) / 2 / sqrt(|s|);
 *   grad_hidden_states = go + q * (k * w - x * dot * rstd_x^2 / hidden) (without go if no_residual);
 *   grad_k = q * (x * w - k * dot * rstd_k^2 / hidden);  grad_v = sum over streams of go * g;
 *   grad_w_partial[p] = sum of q * x * k over tokens p, p + num_partials, p + 2 * num_partials, ...
 * All in f32, rounded once. A masked token: grad_hidden_states = grad_out bit for bit (+0 without residual), grad_k and
 * grad_v +0, nothing to grad_w_partial. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_gate_bwd(const DLTensor *grad_out, const DLTensor *hidden_states, const DLTensor *k,
                                       const DLTensor *v, const DLTensor *weight_hidden, const DLTensor *weight_embed,
                                       const DLTensor *image_token_mask, const DLTensor *dot,
                                       const DLTensor *gate_score, const DLTensor *rstd_x, const DLTensor *rstd_k,
                                       DLTensor *grad_hidden_states, DLTensor *grad_k, DLTensor *grad_v,
                                       DLTensor *grad_w_partial, const tgl_engram_gate_params *params,
                                       tgl_stream stream);
/* The num_partials that is fast: 66 for hidden >= 3584, else more, at most 528. It does not depend on the device. */
TGL_API int64_t tgl_engram_gate_num_partials(int64_t hidden);

/* tgl_engram_grad_w_reduce() - adds the gradients of the gate's two weights to buffers
 *   grad_w_partial      in      f32           [num_partials, num_streams, hidden]   packed
 *   weight_hidden       in      bf16 or f32   [num_streams, hidden]                 rows may be strided
 *   weight_embed        in      as above      [num_streams, hidden]                 likewise
 *   grad_weight_hidden  in/out  f32           [num_streams, hidden]                 packed
 *   grad_weight_embed   in/out  f32           [num_streams, hidden]                 packed
 * With S[c] = ((0 + partial[c]) + partial[c + 8]) + ... for c = 0 .. 7 and G = ((0 + S[0]) + S[1]) + ... + S[7],
 * grad_weight_hidden += G * weight_embed and grad_weight_embed += G * weight_hidden; if zero_centered, G * (1 +
 * weight_embed) and G * (1 + weight_hidden). All f32, with a rounding after the product. A NaN has all bits set but its
 * sign. Exact. Since 0.1. */
TGL_API tgl_status tgl_engram_grad_w_reduce(const DLTensor *grad_w_partial, const DLTensor *weight_hidden,
                                            const DLTensor *weight_embed, DLTensor *grad_weight_hidden,
                                            DLTensor *grad_weight_embed, bool zero_centered, tgl_stream stream);

/* ---- short convolution ---- */

typedef struct tgl_engram_short_conv_params {
    int64_t dilation; /* tokens from tap to tap; 0: 3 */
    bool has_eps;
    float eps;            /* used if has_eps, otherwise 1e-5 */
    bool no_activation;   /* without SiLU */
    bool add_input;       /* x is added to the result */
    bool zero_centered;   /* norm_weight is stored minus 1 */
    bool round_each;      /* round to bf16 after the convolution, SiLU and each sum, as eager PyTorch does */
    bool keep_ring;       /* the ring is only read */
    uint64_t reserved[8]; /* zero */
} tgl_engram_short_conv_params;

/* tgl_engram_short_conv_fwd() - RMSNorm of every stream, a causal depthwise convolution over tokens, SiLU
 *   x            in      bf16          [num_tokens, num_streams, hidden]    rows packed, any distance apart
 *   norm_weight  in      bf16 or f32   [num_streams, hidden]                rows may be strided
 *   conv_weight  in      bf16 or f32   [num_streams * hidden, kernel_size]  packed; the last tap is that of the token
 *   bias         in      bf16 or f32   [num_streams * hidden]               packed; NULL: none
 *   residual     in      bf16          [num_tokens, num_streams, hidden]    as x; NULL: none
 *   mask         in      bool          [num_tokens]                         packed; NULL: none is masked
 *   ring         in/out  bf16          [num_slots, ring_size, num_streams, hidden]   packed; NULL: none. Normed rows of
 *                                                                           the tokens before a chunk, by position
 *   out          out     bf16          [num_tokens, num_streams, hidden]    as x; may be residual
 *   rstd         out     f32           [num_tokens, num_streams]            packed; for the backward; NULL: not wanted
 * For a row x of request b, whose position is p = start_pos[b] + its number in the chunk:
 *   rstd = 1 / sqrt(sum of x * x / hidden + eps);  a[p] = x * rstd * norm_weight, rounded to bf16;
 *   z = bias + sum over taps j of conv_weight[j] * a[p - (kernel_size - 1 - j) * dilation], one fma each, j ascending;
 *   out = z * sigmoid(z) [+ x] [+ residual], in f32, the first + in one fma with the product, rounded once (round_each: four
 *   times).
 * a at positions before the chunk is ring[slots[b]][position mod ring_size]; 0 without ring or slot, and before
 * position 0. Afterwards a of the last ring_size tokens of the chunk is stored there, so that a rejected draft token is
 * overwritten when its position comes again; batch as for tgl_engram_rows(). If up to Q tokens of a chunk may be
 * rejected, ring_size must be at least (kernel_size - 1) * dilation + Q; it is never below (kernel_size - 1) *
 * dilation.
 * A masked token, and one in no request: out = residual bit for bit (+0 without), rstd = 0; its x is not read, and its
 * a is 0. The sum of squares has an order that depends on hidden alone (docs/engram.md), sigmoid a relative error of at
 * most 2^-21; below -80 SiLU is that of -80. A NaN has all bits set but its sign. Exact: CPU and CUDA agree bit for
 * bit, and no result depends on how a sequence is cut into chunks. 1 <= kernel_size <= 64, dilation < 2^24, 1 <= hidden
 * < 2^31. Since 0.1. */
TGL_API tgl_status tgl_engram_short_conv_fwd(const DLTensor *x, const DLTensor *norm_weight,
                                             const DLTensor *conv_weight, const DLTensor *bias,
                                             const DLTensor *residual, const DLTensor *mask, DLTensor *ring,
                                             DLTensor *out, DLTensor *rstd, const tgl_engram_batch *batch,
                                             const tgl_engram_short_conv_params *params, tgl_stream stream);

/* tgl_engram_short_conv_bwd() - the gradients of tgl_engram_short_conv_fwd, without a ring
 *   x, norm_weight, conv_weight, bias, mask   in   as in the forward
 *   rstd               in   f32    [num_tokens, num_streams]                         packed; what the forward wrote
 *   grad_out           in   bf16   [num_tokens, num_streams, hidden]                 rows packed, any distance apart
 *   grad_x             out  bf16   [num_tokens, num_streams, hidden]                 likewise
 *   grad_norm_partial  out  f32    [num_partials, num_streams, hidden]               packed; num_partials >= 1; their
 *                                                                                    sum is that of norm_weight
 *   grad_conv_partial  out  f32    [num_partials, num_streams * hidden, kernel_size] likewise, of conv_weight
 *   grad_bias_partial  out  f32    [num_partials, num_streams * hidden]              likewise, of bias
 * Each output may be NULL: not wanted. Of batch only cu_seqlens matters, of params neither eps nor those of the ring:
 * what came before a chunk counts as 0. With go = grad_out, z and the rounded a of the forward (for a gradient rounding
 * counts as the identity), and g the gradient of a:
 *   gz = go * sigmoid(z) * (1 + z * (1 - sigmoid(z)));  g[t] = sum over taps of conv_weight[j] * gz[t + lag of j];
 *   grad_x = rstd * (norm_weight * g - x * rstd^2 / hidden * sum of norm_weight * g * x) [+ go if add_input];
 *   grad_norm_partial[p] = sum of g * x * rstd, grad_conv_partial[p][j] = sum of gz[t] * a[t - lag of j],
 *   grad_bias_partial[p] = sum of gz, each over its tokens, which are p * n .. p * n + n - 1, with n = num_tokens /
 *   num_partials, rounded up.
 * The gradient of residual is grad_out. All in f32, rounded once. A masked token, and one in no request, has grad_x +0
 * and adds nothing. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_short_conv_bwd(const DLTensor *x, const DLTensor *norm_weight,
                                             const DLTensor *conv_weight, const DLTensor *bias, const DLTensor *rstd,
                                             const DLTensor *grad_out, const DLTensor *mask, DLTensor *grad_x,
                                             DLTensor *grad_norm_partial, DLTensor *grad_conv_partial,
                                             DLTensor *grad_bias_partial, const tgl_engram_batch *batch,
                                             const tgl_engram_short_conv_params *params, tgl_stream stream);
/* The num_partials that is fast: 23 for 4 streams of 2560 columns, fewer for more. It does not depend on the device. */
TGL_API int64_t tgl_engram_short_conv_num_partials(int64_t num_streams, int64_t hidden);

/* What tgl_engram_gate_conv_fwd() takes of the gate and of the short convolution. */
typedef struct tgl_engram_gate_conv_params {
    float eps, clamp_value; /* of the gate, >= 0; 0 means 0 */
    bool no_residual;       /* hidden_states is not added */
    bool zero_centered;     /* the gate's weights are stored minus 1 */
    tgl_engram_sign sign;
    int64_t dilation; /* tokens from tap to tap; 0: 3 */
    bool has_norm_eps;
    float norm_eps;          /* used if has_norm_eps, otherwise 1e-5 */
    bool no_activation;      /* without SiLU */
    bool norm_zero_centered; /* norm_weight is stored minus 1 */
    bool round_each;         /* round to bf16 after the convolution, SiLU and each sum */
    bool keep_ring;          /* the ring is only read */
    uint64_t reserved[8];    /* zero */
} tgl_engram_gate_conv_params;

/* tgl_engram_gate_conv_fwd() - gate and short convolution in one pass: all of an Engram layer behind its projections
 *   hidden_states  in      bf16          [num_tokens, num_streams, hidden]    rows packed, any distance apart
 *   k              in      bf16          [num_tokens, num_streams, hidden]    likewise
 *   v              in      bf16          [num_tokens, hidden]                 likewise
 *   weight_hidden, weight_embed   in     as for tgl_engram_gate_fwd()
 *   norm_weight, conv_weight, bias, ring, batch   as for tgl_engram_short_conv_fwd()
 *   mask           in      bool          [num_tokens]                         packed; NULL: none is masked
 *   out            out     bf16          [num_tokens, num_streams, hidden]    as hidden_states; not hidden_states
 * out = hidden_states + gv + silu(conv(norm(gv))) with gv = gate * v, rounded to bf16: bit for bit what
 * tgl_engram_gate_fwd() without residual gives, and tgl_engram_short_conv_fwd() makes of it with add_input and with
 * hidden_states as residual, both with this mask. A masked token, and one in no request: out = hidden_states bit for
 * bit (+0 without residual); neither its k nor its v is read. The same limits as there. Exact: CPU and CUDA agree bit
 * for bit, and no result depends on how a sequence is cut into chunks. Since 0.1. */
TGL_API tgl_status tgl_engram_gate_conv_fwd(const DLTensor *hidden_states, const DLTensor *k, const DLTensor *v,
                                            const DLTensor *weight_hidden, const DLTensor *weight_embed,
                                            const DLTensor *norm_weight, const DLTensor *conv_weight,
                                            const DLTensor *bias, const DLTensor *mask, DLTensor *ring, DLTensor *out,
                                            const tgl_engram_batch *batch, const tgl_engram_gate_conv_params *params,
                                            tgl_stream stream);

/* ---- training: momentum and Sinkhorn normalisation of a table's gradient ---- */

/* tgl_engram_sinkhorn_momentum_update() - a moving average of gradients, and the update that follows from it
 *   grad             in      f32 or bf16   [..., dim]   packed
 *   momentum_buffer  in/out  f32 or bf16   [..., dim]   packed
 *   out              out     f32           [..., dim]   packed; may be grad
 * With c1 = beta1 and c2 = 1 - beta1 (subtracted in double), each rounded to f32, and fma(a, b, c) = a * b + c rounded
 * once: m' = fma(momentum_buffer, c1, c2 * grad), in f32; momentum_buffer = m' rounded to its dtype; out =
 * fma(grad, c2, c1 * m') if nesterov, otherwise m', both from m' before that rounding. Every NaN is 0x7FFFFFFF (bf16:
 * 0x7FFF).
 * Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_sinkhorn_momentum_update(const DLTensor *grad, DLTensor *momentum_buffer, DLTensor *out,
                                                       double beta1, bool nesterov, tgl_stream stream);

/* One step of Sinkhorn's normalisation by rows and columns, in three functions. All work on the scaled matrix
 * x[i][j] = (row_scale[i] * matrix[i][j]) * col_scale[j], rounded to f32 after each product, and on the norms of its
 * rows, norm[i] = sqrt(sum over j of x[i][j]^2). The order of the sum depends on dim alone, so CPU and CUDA agree bit
 * for bit; its relative error is at most (dim / 1024 + 12) * 2^-24, that of a norm half as much. docs/engram.md
 * composes the functions.
 *
 * tgl_engram_sinkhorn_step() - divides rows by their norms, and sums the squares of columns
 *   matrix             in      f32   [num_rows, dim]          rows may be strided
 *   row_scale          in/out  f32   [num_rows]               packed
 *   col_scale          in      f32   [dim]                    packed
 *   row_norm           out     f32   [num_rows]               packed; the norms before
 *   col_sumsq_partial  out     f32   [num_partials, dim]      packed
 *   col_sumsq          out     f32   [dim]                    packed; NULL: not wanted
 * With f = 1 / (norm + eps): row_scale = row_scale * f; col_sumsq_partial[p][j] is the sum of (x * f)^2, in ascending
 * order, over rows p * chunk .. (p + 1) * chunk - 1, where chunk = num_rows / num_partials, rounded up (no rows: 0);
 * col_sumsq[j] is the sum of these over p, in ascending order, in the same launch. Any num_partials from 1 on is
 * allowed; tgl_engram_sinkhorn_num_partials() has the one to use. Every NaN is 0x7FFFFFFF. Exact: CPU and CUDA agree
 * bit for bit. On CUDA col_sumsq needs a workspace (core.h). Since 0.1. */
TGL_API tgl_status tgl_engram_sinkhorn_step(const DLTensor *matrix, DLTensor *row_scale, const DLTensor *col_scale,
                                            DLTensor *row_norm, DLTensor *col_sumsq_partial, DLTensor *col_sumsq,
                                            float eps, void *workspace, size_t workspace_bytes, tgl_stream stream);
TGL_API size_t tgl_engram_sinkhorn_step_workspace_size(const DLTensor *matrix, const DLTensor *col_sumsq);

/* Partial rows for this many rows, on every device: as many as keep a GPU busy, but not one for fewer than 8 rows.
 * At least 1. Since 0.1. */
TGL_API int64_t tgl_engram_sinkhorn_num_partials(int64_t num_rows);

/* tgl_engram_sinkhorn_step_reduce() - the sums of columns over partial rows
 *   col_sumsq_partial  in   f32   [num_partials, dim]   rows may be strided
 *   col_sumsq          out  f32   [dim]                 packed
 * In f32, in ascending order, from 0 on. Every NaN is 0x7FFFFFFF. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_sinkhorn_step_reduce(const DLTensor *col_sumsq_partial, DLTensor *col_sumsq,
                                                   tgl_stream stream);

/* tgl_engram_sinkhorn_finalize() - the scaled matrix with rows of norm alpha
 *   matrix     in   f32   [num_rows, dim]   rows may be strided
 *   row_scale  in   f32   [num_rows]        packed
 *   col_scale  in   f32   [dim]             packed
 *   out        out  f32   [num_rows, dim]   rows may be strided; may be matrix
 * out = x * (alpha / (norm + eps)). Every NaN is 0x7FFFFFFF. Exact: CPU and CUDA agree bit for bit. Since 0.1. */
TGL_API tgl_status tgl_engram_sinkhorn_finalize(const DLTensor *matrix, const DLTensor *row_scale,
                                                const DLTensor *col_scale, DLTensor *out, float eps, float alpha,
                                                tgl_stream stream);

#ifdef __cplusplus
}
#endif
#endif
