/* SPDX-License-Identifier: MIT
 * index.h - indices and ids on the CPU, of 4 or 8 bytes: a constant in loops compiled for both. */
#ifndef TEGULA_INDEX_H
#define TEGULA_INDEX_H

#include "core/cpu.h"
#include "numerics/integer.h"

TGL_ALWAYS_INLINE int64_t tgl_index_get(const void *indices, int64_t i, int index_bytes)
{
    return tgl_integer_at(indices, i, index_bytes);
}

TGL_ALWAYS_INLINE void tgl_index_put(void *indices, int64_t i, int index_bytes, int64_t index)
{
    if (index_bytes == 4) ((int32_t *)indices)[i] = (int32_t)index;
    else ((int64_t *)indices)[i] = index;
}

#endif
