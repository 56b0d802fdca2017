/* SPDX-License-Identifier: MIT
 * integer.h - ids and indices of either width. */
#ifndef TEGULA_NUMERICS_INTEGER_H
#define TEGULA_NUMERICS_INTEGER_H

#include "numerics/base.h"

/* Element i of integers of 4 or 8 bytes. */
TGL_INLINE int64_t tgl_integer_at(const void *integers, int64_t i, int bytes)
{
    return bytes == 4 ? ((const int32_t *)integers)[i] : ((const int64_t *)integers)[i];
}

#endif
