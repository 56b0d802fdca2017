/* SPDX-License-Identifier: MIT */
#include "mhc/common/mhc_host.h"

#define FIELD(name) TGL_FIELD(tgl_mhc_params, name)
static const tgl_field FIELDS[] = {
    FIELD(has_rms_eps), FIELD(has_pre_eps), FIELD(has_sinkhorn_eps), FIELD(has_norm_eps), FIELD(has_post_mult),
    FIELD(rms_eps),     FIELD(pre_eps),     FIELD(sinkhorn_eps),     FIELD(norm_eps),     FIELD(post_mult),
    FIELD(post_eps),    FIELD(norm_scale),  FIELD(sinkhorn_repeat),  FIELD(norm),         FIELD(accumulate),
};
const tgl_params TGL_MHC_PARAMS = TGL_PARAMS(tgl_mhc_params, FIELDS);
