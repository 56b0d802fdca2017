/* SPDX-License-Identifier: MIT
 * lookup_params.h - the fields of tgl_engram_lookup_params, for signatures. */
#ifndef TEGULA_ENGRAM_LOOKUP_PARAMS_H
#define TEGULA_ENGRAM_LOOKUP_PARAMS_H

#include "core/signature.h"
#include "tegula/engram.h"

extern const tgl_params TGL_ENGRAM_LOOKUP_PARAMS;

#endif
