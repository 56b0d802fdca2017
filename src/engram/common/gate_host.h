/* SPDX-License-Identifier: MIT
 * gate_host.h - the parts of the gate's ops that only the host needs. */
#ifndef TEGULA_ENGRAM_GATE_HOST_H
#define TEGULA_ENGRAM_GATE_HOST_H

#include "core/signature.h"
#include "cuda/launch.h"
#include "engram/common/gate.h"
#include "tegula/engram.h"

extern const tgl_params TGL_ENGRAM_GATE_PARAMS;

/* Inputs that both directions take, with the sizes num_tokens, num_streams, hidden. */
#define GATE_ROWS "bf16[num_tokens, num_streams, hidden]"
#define GATE_INPUTS                                                                               \
    "hidden_states: " GATE_ROWS " rows, k: " GATE_ROWS " rows, v: bf16[num_tokens, hidden] rows," \
    " weight_hidden: (bf16|f32 if weight_embed else f32)[num_streams, hidden] rows,"              \
    " weight_embed: weight_hidden[num_streams, hidden]? rows, image_token_mask: bool[num_tokens]?"
#define GATE_RULES "hidden in 1..2147483647, num_streams < 2^31, zero_centered needs weight_embed"

gate_in tgl_gate_in(const DLTensor *t);   /* of two dimensions: one stream */
gate_out tgl_gate_out(const DLTensor *t); /* NULL: not wanted */
gate_weights tgl_gate_weights(const DLTensor *hidden, const DLTensor *embed, const tgl_engram_gate_params *params);
gate_numbers tgl_gate_numbers(int64_t hidden, const tgl_engram_gate_params *params);

/* The sums of a row, in the order of gate.h. */
typedef struct { float squares_x, squares_k, dot; } gate_sums;
gate_sums tgl_gate_sums(const gate_weights *weights, int64_t hidden, int64_t h, const uint16_t *x, const uint16_t *k);

/* The results of a row, rounded; out may be x, which may be NULL without residual. */
void tgl_gate_results(const uint16_t *x, const uint16_t *v, float gate, bool has_residual, int64_t hidden,
                      uint16_t *out);

/* Are all rows whole vectors at aligned addresses? */
bool tgl_gate_has_vectors(gate_in rows);
static inline bool tgl_gate_out_has_vectors(gate_out r)
{
    return tgl_gate_has_vectors((gate_in){ r.data, r.token, r.stream });
}
bool tgl_gate_weights_have_vectors(const gate_weights *w);

#endif
