/* SPDX-License-Identifier: MIT */
#include "mhc/common/rows_host.h"

float tgl_rows_dot(const uint16_t *a, const uint16_t *b, int64_t count)
{
    float whole[64] = { 0 }; /* sums of 2^l units, if bit l of `units` is set */
    int64_t units = 0;
    for (int64_t first = 0; first < count; first += ROWS_UNIT, units++) {
        float sum = 0;
        for (int64_t i = first; i < tgl_min(first + ROWS_UNIT, count); i++)
            sum = tgl_fma(tgl_bf16_to_f32(a[i]), tgl_bf16_to_f32(b[i]), sum);
        int level = 0;
        for (; units >> level & 1; level++) sum = whole[level] + sum;
        whole[level] = sum;
    }
    if (units >= ROWS_SPAN && (units & (units - 1)) == 0) {
        int level = 0;
        while (units >> level > 1) level++;
        return whole[level];
    }
    float sum = 0; /* what is missing on the right is +0 */
    for (int level = 0; units >> level; level++)
        if (units >> level & 1) sum = whole[level] + sum;
    return sum;
}
