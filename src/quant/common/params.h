/* SPDX-License-Identifier: MIT
 * params.h - what the signatures of the casts share. */
#ifndef TEGULA_QUANT_PARAMS_H
#define TEGULA_QUANT_PARAMS_H

#include "core/signature.h"
#include "tegula/quant.h"

extern const tgl_params TGL_QUANT_PARAMS; /* the fields of tgl_quant_params */

#define TGL_SWIGLU_CLAMP "has_swiglu_clamp_value: bool, swiglu_clamp_value: float >= 0 with has_swiglu_clamp_value"

#endif
