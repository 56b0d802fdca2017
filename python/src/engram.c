/* SPDX-License-Identifier: MIT
 * engram.c - tegula.engram: a row of text per op (parse.c has the grammar), the ranges of its numbers, and a thunk into
 * the C API. */
#include "glue.h"
#include "row_args.h"
#include "tegula/engram.h"

/* ---- ids to rows ---- */

#define COLUMNS "multipliers[L, N], vocab_sizes[L, M, J], offsets[L, C]"

CHECK(ngram_windows) { return is_within("max_ngram_size", a->max_ngram_size, 1, 4096); }
THUNK(ngram_windows)
{
    const tgl_engram_ngram_windows_params params = { .pad_id = a->pad_id, .has_stop_id = a->has_stop_id,
                                                     .stop_id = a->stop_id };
    return tgl_engram_ngram_windows(a->input_ids, a->cu_seqlens, a->history, a->lookup, a->out, &params, a->stream);
}

THUNK(engram_rows)
{
    const tgl_engram_batch batch = { .cu_seqlens = a->cu_seqlens, .start_pos = a->start_pos, .slots = a->slots,
                                     .has_null_slot = a->has_null_slot, .null_slot = a->null_slot };
    const tgl_engram_ngram ngram = { .token_map = a->token_map, .multipliers = a->multipliers,
                                     .vocab_sizes = a->vocab_sizes, .offsets = a->offsets, .pad_id = a->pad_id,
                                     .has_stop_id = a->has_stop_id, .stop_id = a->stop_id,
                                     .history_newest_first = a->history_newest_first != 0,
                                     .hash_masked = a->hash_masked != 0, .keep_ring = a->keep_ring != 0 };
    return tgl_engram_rows(a->input_ids, a->image_token_mask, a->history, a->ring, a->rows, &batch, &ngram, a->stream);
}

THUNK(engram_hash)
{
    return tgl_engram_hash(a->ngram_token_ids, a->multipliers, a->vocab_sizes, a->offsets, a->image_token_mask,
                           a->out, a->stream);
}

/* ---- rows ---- */

THUNK(engram_lookup)
{
    const tgl_engram_lookup_params params = { .row_begin = a->row_begin, .num_sms = a->num_sms };
    DLTensor one;                       /* factor: comes as a matrix of one element */
    const bool is_one = a->table_sf && a->table_sf->dtype.code == TGL_DL_FLOAT;
    if (is_one) one = *a->table_sf, one.ndim = 1;
    return tgl_engram_lookup(a->table, is_one ? &one : a->table_sf, a->indices, a->out, a->out_sf, &params, a->stream);
}

static op_row rows[] = {
    { .text = "ngram_windows(input_ids[T], max_ngram_size: int, pad_id: int, cu_seqlens[E]?, history[B, M]?, "
              "lookup[V]?, stop_id: int? = None) -> out: i32[T, max_ngram_size]",
      .doc = "Each token id with the max_ngram_size - 1 ids before it in its sequence, newest first, mapped by lookup; "
             "pad_id if there is none. history has the ids before each sequence, oldest first. The first slot, except "
             "the token's own, that holds stop_id (compared before the lookup) and all older ones become pad_id.",
      .check = check_ngram_windows, .call = call_ngram_windows },
    { .text = "engram_rows(input_ids[T], " COLUMNS ", pad_id: int, token_map[V]?, stop_id: int? = None, "
              "cu_seqlens[E]?, start_pos[B]?, history[B, M]?, ring[S, R]?!, slots[B]?, image_token_mask[T]?, tlc: bool = False, "
              "history_newest_first: bool = False, hash_masked: bool = False, keep_ring: bool = False, "
              "null_slot: int? = None) -> rows: offsets[L, T, C; C, L * C, 1 if tlc]",
      .is_wrapped = true, .call = call_engram_rows },
    { .text = "engram_hash(ngram_token_ids[T, N], " COLUMNS ", image_token_mask[T]?) -> out: offsets[L, T, C]",
      .doc = "Table rows of windows of token ids, for all layers: of each order 2 .. N the hash of its ids modulo each "
             "vocab_size, plus the offset, in offsets' dtype. Rows of masked tokens are -1.",
      .call = call_engram_hash },
    { .text = "engram_lookup(indices[T, C], table[R, D] host, table_sf[Q, G]? host, row_begin: int = 0, "
              "packed: bool = False, fmt: {bf16|e4m3|f16|f32} = bf16, num_sms: int = 0, out_sf[U, W]?!) -> "
              "out: u8[T, C, D + D / 32] if packed else fmt[T, C, D]",
      .is_wrapped = true, .call = call_engram_lookup },
};
DOMAIN(engram);
