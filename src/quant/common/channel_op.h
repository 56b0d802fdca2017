/* SPDX-License-Identifier: MIT
 * channel_op.h - the host's half of channel.h: one problem struct and one table of kernels for all ops that
 * cast with a factor per column. */
#ifndef TEGULA_QUANT_CHANNEL_OP_H
#define TEGULA_QUANT_CHANNEL_OP_H

#include "cuda/op.h"
#include "quant/common/cast.h"
#include "quant/common/channel.h"

typedef struct {
    tgl_status (*cpu)(const void *problem);
    int (*plan)(const void *problem, tgl_kernel *kernels);
    int64_t num_tokens;         /* rows of x, if there is a map */
    int64_t num_rows, num_cols; /* of the codes, as if not transposed */
    bool has_codes;             /* x has e4m3 codes, else values */
    tgl_values values;          /* if is_swiglu, twice the columns: gates, then ups */
    tgl_codes codes;
    bool has_map; /* else row i is token i */
    const int32_t *pos_to_token;
    bool is_swiglu;
    float clamp; /* of SwiGLU; infinite: none */
    tgl_blocks blocks;
    tgl_scale_rule rule;
    tgl_sf sf; /* row-major */
    bool is_transposed;
    uint8_t *out;             /* [num_cols, num_rows] if transposed, else [num_rows, num_cols] */
    channel_staged_args args; /* the staged kernel takes all of it, others take `cast` */
} tgl_channel_problem;

/* Macro X. */
int tgl_channel_x(const tgl_channel_problem *p);

/* Macro BLOCK_ROWS: 32, 64 or 128; 0: any other number. */
int64_t tgl_channel_block_rows(const tgl_channel_problem *p);

/* The plan. `kernel` is the op's, without the macros STRIP_LANES, STRIP_ROWS and PATCH_ROWS; `may_stage`: the
 * plan has quant/per_channel_cast_staged too. */
int tgl_channel_plan(const tgl_channel_problem *p, tgl_kernel kernel, bool may_stage, tgl_kernel *kernels);

/* Runs a problem: its `cpu`, or the kernel of its `plan` that is the fastest. */
extern const tgl_op tgl_channel_op;

#endif
