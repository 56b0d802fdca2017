/* SPDX-License-Identifier: MIT
 * gate_cpu.h - the loops of gate_fwd and gate_bwd over a row's columns, which are plain in gate.c and the ops' files,
 * fast in gate_fast.c. */
#ifndef TEGULA_ENGRAM_GATE_CPU_H
#define TEGULA_ENGRAM_GATE_CPU_H

#include "core/cpu.h"
#include "engram/common/gate_host.h"
#include "engram/common/row_cpu.h"
#include "engram/gate_bwd.h"

/* ---- gate_fwd: of a row ---- */

TGL_DECLARE_FAST(gate_sums, tgl_gate_fast_sums, const gate_weights *w, int64_t hidden, int64_t h, const uint16_t *x,
                 const uint16_t *k);
TGL_DECLARE_FAST(void, tgl_gate_fast_results, const uint16_t *x, const uint16_t *v, float gate, bool has_residual,
                 int64_t hidden, uint16_t *out);

/* ---- gate_bwd: row t, h; of grad_v, token t ---- */

TGL_DECLARE_FAST(void, tgl_gate_gradients, const gate_bwd_args *p, int64_t t, int64_t h, const gate_slopes *s,
                 float *grad_w);
TGL_DECLARE_FAST(void, tgl_gate_grad_v, const gate_bwd_args *p, int64_t t);

static inline const uint16_t *gate_row_in(gate_in rows, int64_t t, int64_t h)
{
    return rows.data + t * rows.token + h * rows.stream;
}
static inline uint16_t *gate_row_out(gate_out rows, int64_t t, int64_t h) /* NULL: not wanted */
{
    return rows.data ? rows.data + t * rows.token + h * rows.stream : NULL;
}

#endif
