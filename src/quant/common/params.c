/* SPDX-License-Identifier: MIT */
#include "quant/common/params.h"

#define FIELD(name) TGL_FIELD(tgl_quant_params, name)
static const tgl_field FIELDS[] = { FIELD(format),
                                    FIELD(num_per_tokens),
                                    FIELD(num_per_channels),
                                    FIELD(x_num_per_tokens),
                                    FIELD(x_num_per_channels),
                                    FIELD(round_sf),
                                    FIELD(without_transpose),
                                    FIELD(has_swiglu_clamp_value),
                                    FIELD(swiglu_clamp_value),
                                    FIELD(has_sf_clamp_min),
                                    FIELD(sf_clamp_min) };
const tgl_params TGL_QUANT_PARAMS = TGL_PARAMS(tgl_quant_params, FIELDS);
