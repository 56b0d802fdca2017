/* SPDX-License-Identifier: MIT
 * quant_pending.h - ops that are declared and not written yet; gone with the last of them. */
#include "core/status.h"
static inline tgl_status quant_pending(const void *first, ...)
{
    return tgl_fail(TGL_ERR_INTERNAL, "%s: not written yet", first ? "op" : "");
}
#if !__has_include("quant/per_block_cast_lossless.c")
#define tgl_quant_per_block_cast_lossless(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/per_channel_cast.c")
#define tgl_quant_per_channel_cast(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/per_channel_cast_and_transpose.c")
#define tgl_quant_per_channel_cast_and_transpose(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/unpack_from_e2m1fn_x2.c")
#define tgl_quant_unpack_from_e2m1fn_x2(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/swiglu_forward_and_per_token_cast.c")
#define tgl_quant_swiglu_forward_and_per_token_cast(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/swiglu_forward_and_per_channel_cast_and_transpose.c")
#define tgl_quant_swiglu_forward_and_per_channel_cast_and_transpose(...) quant_pending(__VA_ARGS__)
#endif
#if !__has_include("quant/swiglu_backward_and_per_token_cast.c")
#define tgl_quant_swiglu_backward_and_per_token_cast(...) quant_pending(__VA_ARGS__)
#endif
