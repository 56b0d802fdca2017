/* SPDX-License-Identifier: MIT */
#include "engram/common/lookup_params.h"

#define FIELD(name) TGL_FIELD(tgl_engram_lookup_params, name)
static const tgl_field FIELDS[] = { FIELD(row_begin), FIELD(num_rows), FIELD(num_sms), FIELD(constant_table) };
const tgl_params TGL_ENGRAM_LOOKUP_PARAMS = TGL_PARAMS(tgl_engram_lookup_params, FIELDS);
