/* SPDX-License-Identifier: MIT
 * gate_cpu.h - the loops over a row's columns of gate_fwd and gate_bwd, which are plain in the ops' files, fast in
 * gate_fast.c. */
#ifndef TEGULA_ENGRAM_GATE_CPU_H
#define TEGULA_ENGRAM_GATE_CPU_H

#include "core/cpu.h"
#include "engram/gate_bwd.h"
#include "engram/gate_fwd.h"

/* ---- gate_fwd: row t, h ---- */

typedef struct { float squares_x, squares_k, dot; } gate_sums;
TGL_DECLARE_FAST(gate_sums, tgl_gate_sums, const gate_fwd_args *p, int64_t t, int64_t h);
TGL_DECLARE_FAST(void, tgl_gate_results, const gate_fwd_args *p, int64_t t, int64_t h, float gate);

/* ---- gate_bwd: row t, h; of grad_v, token t ---- */

TGL_DECLARE_FAST(float, tgl_gate_products, const gate_bwd_args *p, int64_t t, int64_t h);
TGL_DECLARE_FAST(void, tgl_gate_gradients, const gate_bwd_args *p, int64_t t, int64_t h, const gate_slopes *s,
                 float *grad_w);
TGL_DECLARE_FAST(void, tgl_gate_grad_v, const gate_bwd_args *p, int64_t t);

static inline const uint16_t *gate_row_in(gate_in rows, int64_t t, int64_t h)
{
    return rows.data + t * rows.token + h * rows.stream;
}
static inline uint16_t *gate_row_out(gate_out rows, int64_t t, int64_t h)   /* NULL: not wanted */
{
    return rows.data ? rows.data + t * rows.token + h * rows.stream : NULL;
}

#endif
