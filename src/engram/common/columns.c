/* SPDX-License-Identifier: MIT */
#include "engram/common/columns_host.h"

#include "core/index.h"
#include "core/math.h"

tgl_status tgl_columns_of(const DLTensor *multipliers, const DLTensor *vocab_sizes, const DLTensor *offsets,
                          const DLTensor *out, tgl_columns *c)
{
    const int64_t num_moduli = tgl_is_empty(vocab_sizes) ? 0 : tgl_num_elements(vocab_sizes);
    if (num_moduli >= COLUMN_MAX_COUNT)
        return tgl_fail(TGL_ERR_ARGUMENT, "vocab_sizes: has %lld elements, want fewer than 2^23",
                        (long long)num_moduli);
    *c = (tgl_columns){ .multipliers = tgl_data(multipliers),
                        .vocab_sizes = tgl_data(vocab_sizes),
                        .offsets = tgl_data(offsets),
                        .out = tgl_data(out),
                        .num_tokens = out->shape[1],
                        .max_ngram = (int32_t)multipliers->shape[1],
                        .vocab_bytes = tgl_dtype_bits(vocab_sizes->dtype) / 8,
                        .offset_bytes = tgl_dtype_bits(offsets->dtype) / 8,
                        .out_bytes = tgl_dtype_bits(out->dtype) / 8 };
    if (num_moduli == 0) return TGL_OK; /* nothing to write; and a size may be any */
    c->num_layers = (int32_t)vocab_sizes->shape[0];
    c->num_heads = (int32_t)vocab_sizes->shape[2];
    c->num_columns = (int32_t)offsets->shape[1];
    c->layer_stride = tgl_step_of(out, 0);
    c->token_stride = tgl_step_of(out, 1);
    return TGL_OK;
}

/* ---- CPU ---- */

/* The sum wraps. */
static int64_t row_of(const tgl_columns *c, int64_t column, int64_t hash)
{
    const int64_t modulus = tgl_integer_at(c->vocab_sizes, column, c->vocab_bytes);
    if (modulus <= 0) return -1;
    const int64_t rest = hash % modulus, floored = rest < 0 ? rest + modulus : rest;
    return (int64_t)((uint64_t)floored + (uint64_t)tgl_integer_at(c->offsets, column, c->offset_bytes));
}

void tgl_columns_put(const tgl_columns *c, int64_t token, const int64_t *window)
{
    for (int64_t l = 0; l < c->num_layers; l++) {
        const int64_t *multipliers = c->multipliers + l * c->max_ngram;
        const int64_t first = l * c->num_columns, out = l * c->layer_stride + token * c->token_stride;
        uint64_t hash = window ? (uint64_t)window[0] * (uint64_t)multipliers[0] : 0;
        for (int64_t i = 1, column = 0; i < c->max_ngram; i++) {
            if (window) hash ^= (uint64_t)window[i] * (uint64_t)multipliers[i];
            for (int64_t j = 0; j < c->num_heads; j++, column++)
                tgl_index_put(c->out, out + column, c->out_bytes,
                              window ? row_of(c, first + column, (int64_t)hash) : -1);
        }
    }
}

int64_t tgl_columns_token_bytes(const tgl_columns *c)
{
    return 8 * (int64_t)c->max_ngram + 16 * (int64_t)c->num_layers * c->num_columns;
}

/* ---- launch ---- */

static int width_of(const tgl_columns *c) /* columns of a unit: at most 16 bytes, and of one order */
{
    int width = 16 / c->out_bytes;
    while (c->num_heads % width) width /= 2;
    return width;
}

tgl_kernel tgl_columns_kernel(const tgl_columns *c, const char *name)
{
    return (tgl_kernel){ name,
                         { { "MAX_NGRAM", c->max_ngram <= COLUMN_UNROLLED ? c->max_ngram : 0 },
                           { "WIDTH", width_of(c) },
                           { "OUT_BYTES", c->out_bytes },
                           { "VOCAB_BYTES", c->vocab_bytes },
                           { "OFFSET_BYTES", c->offset_bytes } } };
}

/* Few tokens are spread over all SMs. With many, a block has several rounds, and the reciprocals that it computes first
 * serve all of them. (One block of 768 threads per SM is not faster on an H200 (2026-11) than 3 of 256.) The tokens
 * that a tile has beside its own must not cost another wave. */
tgl_shape tgl_columns_shape(tgl_columns *c, int sm_blocks, int window_threads, int64_t more_tokens, int64_t more_bytes,
                            const tgl_target *target)
{
    const int width = width_of(c), unit_bytes = width * c->out_bytes;
    const int32_t layer_units = c->num_columns / width;
    c->num_units = c->num_layers * layer_units;
    c->chunk_units = (int32_t)tgl_max(1, tgl_min(c->num_units, COLUMN_CHUNK));
    c->num_chunks = (int32_t)tgl_max(1, tgl_ceil_div(c->num_units, c->chunk_units));
    const int64_t blocks = (int64_t)sm_blocks * target->num_sms;
    const int64_t tile = tgl_max(1, tgl_ceil_div(c->num_tokens, blocks)) + more_tokens; /* no tokens: no tiles */
    const int64_t wanted = tgl_min(tile, COLUMN_THREADS) * c->chunk_units;
    const int64_t threads = wanted < COLUMN_MIN_THREADS ? COLUMN_MIN_THREADS : COLUMN_THREADS;
    c->slots = (int32_t)(threads / c->chunk_units);
    c->slots_stride = c->slots * c->token_stride;
    const int64_t window_bytes = 8 * tgl_window_words(c->max_ngram), room = COLUMN_WINDOW_BYTES / window_bytes;
    const int64_t rounds = tgl_ceil_div(tile, c->slots);
    const int64_t max_windows =
        tgl_min(tgl_min(room, threads / window_threads), c->slots * tgl_min(rounds, COLUMN_MAX_ROUNDS));
    c->tile_tokens = (int32_t)(max_windows > 2 * more_tokens ? max_windows - more_tokens : max_windows);
    c->num_windows = (int32_t)max_windows;
    c->by_layer_units = tgl_divisor_of(tgl_max(1, layer_units));
    c->by_chunk_units = tgl_divisor_of(c->chunk_units);
    c->by_heads = tgl_divisor_of(tgl_max(1, c->num_heads));
    c->has_vectors = (int64_t)(uintptr_t)c->out % unit_bytes == 0 &&
                     (c->layer_stride * c->out_bytes | c->token_stride * c->out_bytes) % unit_bytes == 0;
    const int64_t tiles = tgl_ceil_div(c->num_tokens, c->tile_tokens);
    return (tgl_shape){ { tgl_strided_grid(tiles, 2 * blocks), c->num_chunks },
                        .block = (int)threads,
                        .shared_bytes = c->num_windows * window_bytes + more_bytes };
}
