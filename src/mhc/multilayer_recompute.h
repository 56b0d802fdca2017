/* SPDX-License-Identifier: MIT
 * multilayer_recompute.h - what the kernel of multilayer_recompute and the code that launches it agree on. */
#ifndef TEGULA_MHC_MULTILAYER_RECOMPUTE_H
#define TEGULA_MHC_MULTILAYER_RECOMPUTE_H

#include "mhc/common/rows.h"

#define RECOMPUTE_LAYERS 64 /* of one launch: a kernel's arguments are at most 4096 bytes */
/* Ten layers of 4096 x 7168 take an H200 (2026-11) 966 us; with 256 threads 995, and 1030 if no layer is loaded
 * ahead. */
#define RECOMPUTE_THREADS 128

/* All packed. Of a layer without post all but pre_mix and layer_input are NULL. */
typedef struct {
    const float *pre_mix, *post_mix, *comb_mix;
    const uint16_t *x;
    uint16_t *layer_input, *new_residual;
} recompute_layer;

typedef struct {
    rows_in residual;
    int64_t num_tokens, num_streams, hidden;
    int32_t num_layers, num_posts; /* of the layers; num_layers or one less */
    int32_t has_mix_vectors;
    recompute_layer layers[RECOMPUTE_LAYERS];
} multilayer_recompute_args;

#endif
