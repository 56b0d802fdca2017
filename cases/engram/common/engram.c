/* SPDX-License-Identifier: MIT */
#include "engram.h"

#include "core/status.h"

/* ---- integers ---- */

int64_t engram_integer(const case_tensor *t, const int64_t *index)
{
    const void *at = case_element(t, index);
    return t->dtype == TGL_BOOL  ? *(const uint8_t *)at
           : t->dtype == TGL_I32 ? *(const int32_t *)at
                                 : *(const int64_t *)at;
}

static void put_slot(case_tensor *t, int64_t i, int64_t value)
{
    if (t->dtype == TGL_BOOL) ((uint8_t *)t->storage)[i] = value != 0;
    else if (t->dtype == TGL_I32) ((int32_t *)t->storage)[i] = (int32_t)value;
    else ((int64_t *)t->storage)[i] = value;
}

/* ---- fills ---- */

static void fill_small_ids(const case_problem *c, case_tensor *t, uint64_t seed)
{
    for (int64_t i = 0; i < t->slots; i++) put_slot(t, i, case_random_below(seed, i, 12) - 3);
}

tgl_status engram_choose_ids(case_problem *c, case_tensor *t, const char *param)
{
    TGL_TRY(case_check_word(c, param, "valid small bits"));
    t->low = 0, t->high = 100000;
    t->fill = case_is(c, param, "valid")   ? case_fill_uniform
              : case_is(c, param, "small") ? fill_small_ids
                                           : case_fill_bits;
    return TGL_OK;
}

static void fill_multipliers(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const bool is_small = case_is(c, "multipliers", "small");
    for (int64_t i = 0; i < t->slots; i++)
        put_slot(t, i,
                 is_small ? case_random_below(seed, i, 100000)
                          : 2 * case_random_below(seed, i, INT64_MAX / 100000 / 2) + 1);
}

static void fill_moduli(const case_problem *c, case_tensor *t, uint64_t seed)
{
    enum { THOUSANDS, MILLIONS, EDGES, ANY };
    const int kind = case_word(c, "moduli", "thousands millions edges any");
    const int64_t largest = t->dtype == TGL_I32 ? INT32_MAX : INT64_MAX;
    const int bits = t->dtype == TGL_I32 ? 31 : 63;
    for (int64_t i = 0; i < t->slots; i++) {
        const int64_t power = (int64_t)1 << case_random_below(seed, i, bits);
        const int64_t edges[] = { 1, 2, 3, power, power - 1, power > largest - 1 ? largest : power + 1, largest };
        const int64_t edge = edges[case_random_below(seed + 1, i, 7)];
        put_slot(t, i,
                 kind == THOUSANDS  ? 100000 + case_random_below(seed, i, 900000)
                 : kind == MILLIONS ? 16000000 + case_random_below(seed, i, 4000200)
                 : kind == EDGES    ? (edge > 0 ? edge : 1)
                                    : 1 + (int64_t)(case_random(seed, i) % (uint64_t)largest));
    }
}

static void fill_offsets(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const case_tensor *sizes = t - ENGRAM_OFFSETS + ENGRAM_VOCAB_SIZES;
    for (int64_t l = 0; l < t->shape[0]; l++) {
        uint64_t sum = 0;
        for (int64_t i = 0; i < t->shape[1]; i++) {
            put_slot(t, l * t->shape[1] + i, (int64_t)sum);
            sum += (uint64_t)engram_integer(sizes, (int64_t[]){ l, 0, i });
        }
    }
}

static void fill_mask(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int kind = case_word(c, "mask", "no all some");
    for (int64_t i = 0; i < t->slots; i++)
        put_slot(t, i, kind == 1 || (kind == 2 && case_random_below(seed, i, 10) == 0));
}

void engram_add_mask(case_problem *c, int index, const char *name, int64_t num_tokens)
{
    if (case_is(c, "mask", "none")) return;
    case_add(c, index, name, CASE_IN, TGL_BOOL, 1, &num_tokens)->fill = fill_mask;
}

/* ---- constants, rows ---- */

tgl_status engram_add_columns(case_problem *c, int first, const char *out_name)
{
    TGL_TRY(case_check_word(c, "multipliers", "small model bits"));
    TGL_TRY(case_check_word(c, "moduli", "thousands millions edges any bits"));
    TGL_TRY(case_check_word(c, "offsets", "sums bits"));
    const int64_t t = case_int(c, "num_tokens"), n = case_int(c, "max_ngram"), l = case_int(c, "num_layers"),
                  j = case_int(c, "num_heads"), columns = (n - 1) * j;
    case_tensor *multipliers =
        case_add(c, first + ENGRAM_MULTIPLIERS, "multipliers", CASE_IN, TGL_I64, 2, (int64_t[]){ l, n });
    case_tensor *sizes = case_add(c, first + ENGRAM_VOCAB_SIZES, "vocab_sizes", CASE_IN, case_dtype(c, "vocab_dtype"),
                                  3, (int64_t[]){ l, n - 1, j });
    case_tensor *offsets = case_add(c, first + ENGRAM_OFFSETS, "offsets", CASE_IN, case_dtype(c, "offset_dtype"), 2,
                                    (int64_t[]){ l, columns });
    case_add(c, first + ENGRAM_OUT, out_name, CASE_OUT, case_dtype(c, "out_dtype"), 3, (int64_t[]){ l, t, columns });
    multipliers->fill = case_is(c, "multipliers", "bits") ? case_fill_bits : fill_multipliers;
    sizes->fill = case_is(c, "moduli", "bits") ? case_fill_bits : fill_moduli;
    offsets->fill = case_is(c, "offsets", "bits") ? case_fill_bits : fill_offsets;
    return TGL_OK;
}

/* The hash as an integer of its value, not of 64 bits; and a modulo that is counted down from no sign. */
static int64_t row_of(__int128 hash, int64_t modulus, int64_t offset)
{
    if (modulus <= 0) return -1;
    const __int128 shifted = hash + ((__int128)modulus << 64); /* positive */
    const uint64_t sum = (uint64_t)(shifted % modulus) + (uint64_t)offset;
    int64_t row;
    memcpy(&row, &sum, sizeof row);
    return row;
}

/* The low 64 bits of a number, as a signed one. */
static __int128 low_bits(__int128 x)
{
    const __int128 one = 1, low = x & ((one << 64) - 1);
    return low >= one << 63 ? low - (one << 64) : low;
}

void engram_put_rows(const case_problem *c, int first, int64_t token, const int64_t *window)
{
    const case_tensor *multipliers = &c->tensors[first + ENGRAM_MULTIPLIERS];
    const case_tensor *sizes = &c->tensors[first + ENGRAM_VOCAB_SIZES];
    const case_tensor *offsets = &c->tensors[first + ENGRAM_OFFSETS], *out = &c->tensors[first + ENGRAM_OUT];
    for (int64_t l = 0; l < out->shape[0]; l++)
        for (int64_t k = 0; k < out->shape[2]; k++) {
            const int64_t order = k / sizes->shape[2] + 1, head = k % sizes->shape[2];
            __int128 hash = 0;
            for (int64_t i = 0; i <= order && window; i++)
                hash ^= low_bits((__int128)window[i] * engram_integer(multipliers, (int64_t[]){ l, i }));
            const int64_t row = window ? row_of(hash, engram_integer(sizes, (int64_t[]){ l, order - 1, head }),
                                                engram_integer(offsets, (int64_t[]){ l, k }))
                                       : -1;
            memcpy(case_element(out, (int64_t[]){ l, token, k }), &row, (size_t)out->element_bytes);
        }
}
