/* SPDX-License-Identifier: MIT
 * tp_mask.h - the number of an expert among those of one tensor-parallel rank, as tgl_moe_mask_indices_by_tp
 * computes it on the CPU and on CUDA.
 *
 * Index v lies in group q = v / group. That group belongs to rank q % num_tp_ranks, where it is number
 * q / num_tp_ranks. */
#ifndef TEGULA_MOE_TP_MASK_H
#define TEGULA_MOE_TP_MASK_H

#include "numerics/divide.h"

typedef struct {
    int64_t group, num_tp_ranks, tp_rank;
    tgl_divisor by_group, by_num_tp_ranks;
    uint32_t narrow_rank; /* tp_rank, clamped to one that no index below 2^31 has */
} tgl_tp_mask;

TGL_INLINE tgl_tp_mask tgl_tp_mask_of(int64_t group, int64_t num_tp_ranks, int64_t tp_rank)
{
    const tgl_tp_mask mask = { group,
                               num_tp_ranks,
                               tp_rank,
                               tgl_divisor_of(group),
                               tgl_divisor_of(num_tp_ranks),
                               (uint32_t)(tp_rank < TGL_DIVIDE_LIMIT ? tp_rank : TGL_DIVIDE_LIMIT) };
    return mask;
}

/* For v < 2^31. Products modulo 2^32 suffice: a group or a number of ranks beyond 32 bits is multiplied by 0.
 * A negative v is computed too and then discarded, so that loops have no branch. */
TGL_INLINE int64_t tgl_tp_mask_narrow(const tgl_tp_mask *m, int64_t v)
{
    const uint32_t x = (uint32_t)v, q = tgl_divide(x, m->by_group), kept = tgl_divide(q, m->by_num_tp_ranks);
    const uint32_t rank = q - kept * (uint32_t)m->num_tp_ranks;
    const uint32_t index = kept * (uint32_t)m->group + (x - q * (uint32_t)m->group);
    return v >= 0 && rank == m->narrow_rank ? (int64_t)index : -1;
}

/* Any v. */
TGL_INLINE int64_t tgl_tp_mask_wide(const tgl_tp_mask *m, int64_t v)
{
    if (v < TGL_DIVIDE_LIMIT) return tgl_tp_mask_narrow(m, v);
    const int64_t q = v / m->group, kept = q / m->num_tp_ranks;
    return q - kept * m->num_tp_ranks == m->tp_rank ? kept * m->group + (v - q * m->group) : -1;
}

#endif
