/* SPDX-License-Identifier: MIT */
#include "requests.h"

#include <stdlib.h>

#include "core/status.h"

int64_t engram_num_requests(case_problem *c) { return case_is(c, "requests", "none") ? 1 : case_int(c, "requests"); }

static int ascending(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Cuts at random places, of which several may be the same. */
static void fill_cu_seqlens(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t tokens = atoll(case_text(c, "num_tokens")), last = t->shape[0] - 1;
    const bool is_wild = case_is(c, "cu", "wild");
    const int64_t end = case_is(c, "cu", "padded") ? tokens - tokens / 5 : tokens;
    int64_t *cuts = case_memory(t->shape[0], sizeof *cuts);
    for (int64_t i = 0; i <= last; i++) {
        cuts[i] = case_random_below(seed, i, end + 1);
        if (case_random_below(seed + 1, i, 3) == 0 && i > 0) cuts[i] = cuts[i - 1];
    }
    qsort(cuts, (size_t)t->shape[0], sizeof *cuts, ascending);
    if (last >= 0) cuts[0] = 0, cuts[last] = last > 0 ? end : 0;
    for (int64_t i = 0; case_is(c, "cu", "even") && i <= last; i++) cuts[i] = last > 0 ? tokens * i / last : 0;
    for (int64_t i = 0; i <= last; i++) {
        const uint64_t r = case_random(seed + 2, i);
        if (is_wild && r % 4 == 0) cuts[i] = (int64_t)(r / 4 % (uint64_t)(tokens + 20)) - 10;
        if (is_wild && r % 32 == 1) cuts[i] = r % 64 == 1 ? INT32_MIN : INT32_MAX;
        if (t->element_bytes == 4) ((int32_t *)t->storage)[i] = (int32_t)cuts[i];
        else ((int64_t *)t->storage)[i] = cuts[i];
    }
    free(cuts);
}

tgl_status engram_add_cu_seqlens(case_problem *c, int index)
{
    TGL_TRY(case_check_word(c, "cu", "whole even padded wild"));
    if (case_is(c, "requests", "none")) return TGL_OK;
    const int64_t entries = engram_num_requests(c) + 1;
    case_add(c, index, "cu_seqlens", CASE_IN, case_dtype(c, "cu_dtype"), 1, &entries)->fill = fill_cu_seqlens;
    return TGL_OK;
}

/* From the last entry back: the request is the last one that begins at or before the token, of those that no larger
 * entry before them hides. */
engram_request engram_request_of(const case_tensor *cu_seqlens, int64_t num_tokens, int64_t token)
{
    if (!cu_seqlens->name) return (engram_request){ 0, 0, num_tokens - 1 };
    int64_t begin = 0, number = -1;
    for (int64_t i = 0; i < cu_seqlens->shape[0]; i++) {
        int64_t entry = engram_integer(cu_seqlens, &i);
        if (entry < 0) entry = 0;
        if (entry > num_tokens) entry = num_tokens;
        if (entry > token) return (engram_request){ number, begin, entry - 1 };
        number = i;
        if (entry > begin) begin = entry;
    }
    return (engram_request){ -1, 0, -1 };
}

static const case_tensor *ring_of(const case_problem *c)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && !strcmp(c->tensors[i].name, "ring")) return &c->tensors[i];
    abort();
}

void engram_fill_starts(const case_problem *c, case_tensor *t, uint64_t seed)
{
    enum { SMALL, ZERO, LARGE, BITS };
    const int kind = case_word(c, "start", "small zero large bits");
    for (int64_t i = 0; i < t->slots; i++) {
        const uint64_t r = case_random(seed, i);
        const int64_t small = (int64_t)(r % 8) - 1, large = ((int64_t)1 << 40) + (int64_t)(r % 1000);
        const int64_t start = kind == SMALL ? small : kind == ZERO ? 0 : kind == LARGE ? large : (int64_t)r;
        if (t->element_bytes == 4) ((int32_t *)t->storage)[i] = (int32_t)start;
        else ((int64_t *)t->storage)[i] = start;
    }
}

void engram_fill_slots(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int64_t n = ring_of(c)->shape[0], wild[] = { -1, INT32_MIN, n, INT32_MAX, ENGRAM_NULL_SLOT };
    int64_t *all = case_memory(n, sizeof *all);
    for (int64_t i = 0; i < n; i++) {
        const int64_t other = case_random_below(seed, i, i + 1);
        all[i] = all[other], all[other] = i;
    }
    for (int64_t i = 0; i < t->slots; i++) {
        const bool is_wild = case_is(c, "slots", "wild") && case_random_below(seed + 1, i, 3) == 0;
        const int64_t slot = is_wild ? wild[case_random_below(seed + 2, i, 5)] : i < n ? all[i] : -1;
        if (t->element_bytes == 4) ((int32_t *)t->storage)[i] = (int32_t)slot;
        else ((int64_t *)t->storage)[i] = slot;
    }
    free(all);
}
