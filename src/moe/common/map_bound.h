/* SPDX-License-Identifier: MIT
 * map_bound.h - max positions of a mapping, which must fit in an i32. The library checks it, and the Python
 * extension before it makes outputs. */
#ifndef TEGULA_MOE_MAP_BOUND_H
#define TEGULA_MOE_MAP_BOUND_H

#include <stdint.h>

/* Saturates at INT64_MAX. */
static inline int64_t tgl_map_max_positions(int64_t num_pairs, int64_t num_experts, int64_t alignment)
{
    int64_t padding, total;
    if (__builtin_mul_overflow(alignment - 1, num_experts, &padding) ||
        __builtin_add_overflow(padding, num_pairs, &total))
        return INT64_MAX;
    return total;
}

/* The error for a total above INT32_MAX: format and arguments. */
#define TGL_MAP_TOO_LARGE(total)                                                               \
    "alignment: num_tokens * num_topk + (alignment - 1) * num_experts is %s%lld, want < 2^31", \
        (total) == INT64_MAX ? ">= " : "", (long long)(total)

#endif
