/* SPDX-License-Identifier: MIT
 * map_bound.h - the positions that a mapping may need, which an i32 must hold. The library refuses more, and the
 * Python extension does before it makes outputs. */
#ifndef TEGULA_MOE_MAP_BOUND_H
#define TEGULA_MOE_MAP_BOUND_H

#include <stdint.h>

/* INT64_MAX where they are even more. */
static inline int64_t tgl_map_max_positions(int64_t num_pairs, int64_t num_experts, int64_t alignment)
{
    int64_t padding, total;
    if (__builtin_mul_overflow(alignment - 1, num_experts, &padding) ||
        __builtin_add_overflow(padding, num_pairs, &total))
        return INT64_MAX;
    return total;
}

/* The message about a total of more than INT32_MAX, as a format and what belongs to it. */
#define TGL_MAP_TOO_LARGE(total)                                                                   \
    "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is %s%lld, want < 2^31",     \
        (total) == INT64_MAX ? ">= " : "", (long long)(total)

#endif
