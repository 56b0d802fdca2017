/* SPDX-License-Identifier: MIT
 * lookup_bwd_fast.c - the loop of lookup_bwd_cpu.h over pieces of a row, which compilers vectorise. */
#include "core/math.h"
#include "engram/lookup_bwd_cpu.h"

enum { PIECE = 256, AHEAD = 4 /* occurrences, prefetched */, LINE = 64 };

TGL_ALWAYS_INLINE void add(const void *gradients, int64_t first, int64_t count, bool is_bf16, float *restrict sums)
{
    if (is_bf16)
        for (int64_t i = 0; i < count; i++) sums[i] += tgl_bf16_to_f32(((const uint16_t *)gradients)[first + i]);
    else
        for (int64_t i = 0; i < count; i++) sums[i] += ((const float *)gradients)[first + i];
}

/* Rows are anywhere in memory, so hardware does not prefetch them. 1 to 8 occurrences ahead could not be told apart. */
TGL_ALWAYS_INLINE void prefetch(const lookup_bwd_args *p, const lookup_occurrence *of, int64_t first, int64_t count,
                                bool is_bf16)
{
    const int64_t bytes = is_bf16 ? 2 : 4;
    const char *gradients = (const char *)p->grad_out + (lookup_gradient_of(p, of->position) + first) * bytes;
    for (int64_t i = 0; i < count * bytes; i += LINE) __builtin_prefetch(gradients + i);
    if (!p->grad_table) return;
    const char *row = (const char *)(p->grad_table + (int64_t)of->row * p->table_stride + first);
    for (int64_t i = 0; i < count * 4; i += LINE) __builtin_prefetch(row + i, 1);
}

/* Columns first .. of a row that occurs `times` times: chunks one after the other, then their sums. `left`: occurrences from
 * the row's first on, of other rows, too. */
TGL_ALWAYS_INLINE void sum_piece(const lookup_bwd_args *p, const lookup_occurrence *of, int64_t times, int64_t left,
                                 int64_t first, int64_t count, bool is_bf16, float *restrict total)
{
    for (int64_t chunk = 0; chunk < times; chunk += LOOKUP_CHUNK) {
        float sums[PIECE];
        float *const to = chunk ? sums : total;
        for (int64_t i = 0; i < count; i++) to[i] = 0;
        for (int64_t k = chunk; k < tgl_min(chunk + LOOKUP_CHUNK, times); k++) {
            if (k + AHEAD < left) prefetch(p, &of[k + AHEAD], first, count, is_bf16);
            add(p->grad_out, lookup_gradient_of(p, of[k].position) + first, count, is_bf16, to);
        }
        for (int64_t i = 0; chunk && i < count; i++) total[i] += sums[i];
    }
}

TGL_ALWAYS_INLINE void sum_rows(const lookup_rows *r, int64_t begin, int64_t end, bool is_bf16)
{
    const lookup_bwd_args *p = r->p;
    for (int64_t u = begin; u < end; u++) {
        const lookup_occurrence *of = r->sorted + r->begin[u];
        for (int64_t first = 0; first < p->dim; first += PIECE) {
            const int64_t count = tgl_min(PIECE, p->dim - first);
            float total[PIECE];
            sum_piece(p, of, r->begin[u + 1] - r->begin[u], r->begin[end] - r->begin[u], first, count, is_bf16, total);
            if (p->grad_rows) {
                float *restrict const to = p->grad_rows + u * p->dim + first;
                for (int64_t i = 0; i < count; i++) to[i] = tgl_one_nan(total[i]);
            }
            if (p->grad_table) {
                float *restrict const to = p->grad_table + (int64_t)of->row * p->table_stride + first;
                for (int64_t i = 0; i < count; i++) to[i] = tgl_one_nan(to[i] + total[i]);
            }
        }
    }
}

void TGL_FAST(tgl_lookup_sums)(const lookup_rows *r, int64_t begin, int64_t end, bool is_bf16)
{
    if (is_bf16) sum_rows(r, begin, end, true);
    else sum_rows(r, begin, end, false);
}
