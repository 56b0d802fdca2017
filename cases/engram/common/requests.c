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
    TGL_TRY(case_check_word(c, "cu", "whole padded wild"));
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
