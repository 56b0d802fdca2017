/* SPDX-License-Identifier: MIT
 * channel_op.h - the host's half of channel.h: one problem struct and one table of kernels for all ops that
 * cast with a factor per column. */
#ifndef TEGULA_QUANT_CHANNEL_OP_H
#define TEGULA_QUANT_CHANNEL_OP_H

#include "cuda/op.h"
#include "quant/common/cast.h"
#include "quant/common/channel.h"

typedef struct {
    int64_t num_tokens;             /* rows of x, if there is a map */
    int64_t num_rows, num_cols;     /* of the codes, as if not transposed */
    bool has_codes;                 /* x has e4m3 codes, else values */
    tgl_values values;              /* if is_swiglu, twice the columns: gates, then ups */
    tgl_codes codes;
    bool has_map;                   /* else row i is token i */
    const int32_t *pos_to_token;
    bool is_swiglu;
    float clamp;                    /* of SwiGLU; infinite: none */
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf;                      /* row-major */
    bool is_transposed;
    uint8_t *out;                   /* [num_cols, num_rows] if transposed, else [num_rows, num_cols] */
    channel_staged_args args;       /* the staged kernel takes all of it, others take `cast` */
} tgl_channel_problem;

/* Macro X. */
int tgl_channel_x(const tgl_channel_problem *p);

/* Macro BLOCK_ROWS: 32, 64 or 128; 0: any other number. */
int64_t tgl_channel_block_rows(const tgl_channel_problem *p);

/* The plan. `kernel` is the op's, without the macros STRIP_LANES, STRIP_ROWS and PATCH_ROWS; `may_stage`: the
 * plan has quant/per_channel_cast_staged too. */
int tgl_channel_plan(const tgl_channel_problem *p, tgl_kernel kernel, bool may_stage, tgl_kernel *kernels);

/* The candidates, in order. */
enum { CHANNEL_STAGED, CHANNEL_MANY, CHANNEL_WIDE, CHANNEL_MIDDLE, CHANNEL_NARROW, CHANNEL_NUM_KERNELS };
bool tgl_channel_fits_staged(const void *problem, const tgl_target *target);
bool tgl_channel_pays_staged(const void *problem, const tgl_target *target);
tgl_shape tgl_channel_shape_staged(void *problem, const tgl_target *target);
bool tgl_channel_fits_many(const void *problem, const tgl_target *target);
bool tgl_channel_pays_many(const void *problem, const tgl_target *target);
tgl_shape tgl_channel_shape_many(void *problem, const tgl_target *target);
bool tgl_channel_pays_wide(const void *problem, const tgl_target *target);
tgl_shape tgl_channel_shape_wide(void *problem, const tgl_target *target);
bool tgl_channel_pays_middle(const void *problem, const tgl_target *target);
tgl_shape tgl_channel_shape_middle(void *problem, const tgl_target *target);
tgl_shape tgl_channel_shape_narrow(void *problem, const tgl_target *target);
#define TGL_CHANNEL_CANDIDATES                                                                             \
    {                                                                                                      \
        [CHANNEL_STAGED] = { tgl_channel_fits_staged, tgl_channel_pays_staged, tgl_channel_shape_staged }, \
        [CHANNEL_MANY] = { tgl_channel_fits_many, tgl_channel_pays_many, tgl_channel_shape_many },         \
        [CHANNEL_WIDE] = { NULL, tgl_channel_pays_wide, tgl_channel_shape_wide },                          \
        [CHANNEL_MIDDLE] = { NULL, tgl_channel_pays_middle, tgl_channel_shape_middle },                    \
        [CHANNEL_NARROW] = { NULL, NULL, tgl_channel_shape_narrow },                                       \
    }

#endif
