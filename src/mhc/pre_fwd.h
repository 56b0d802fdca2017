/* SPDX-License-Identifier: MIT
 * pre_fwd.h - what the kernels of pre_fwd, norm_fn_fwd and norm_fn_parts_fwd and the code that launches them agree on.
 * norm_fn_fwd is the part of pre_fwd up to the mixes: GROUPS is 0 in its kernels. norm_fn_parts_fwd leaves out
 * the tree's last levels, too: PARTS is 1. */
#ifndef TEGULA_MHC_PRE_FWD_H
#define TEGULA_MHC_PRE_FWD_H

#include "mhc/common/gates.h"
#include "mhc/common/projection.h"

typedef struct {
    rows_in residual;
    const float *fn, *norm_weight; /* [num_rows, num_streams * hidden], packed; NULL: no gain */
    const float *scale, *base;
    const void *input_weight;        /* [hidden], packed; NULL: no gain */
    float *mixes, *out_mul, *sqrsum; /* each NULL: not wanted; of parts: [num_splits, num_tokens, ..] */
    float *gates[3];                 /* pre_mix, post_mix, comb_mix; each NULL: not wanted */
    rows_out out, raw;               /* raw: no data: not wanted */
    float *rstd;                     /* NULL: not wanted */
    int64_t num_tokens, num_streams, hidden, num_rows;
    int64_t pieces;
    uint32_t *arrived;                    /* of each tile of tokens: blocks; 0 before and after */
    float *partial;                       /* [num_tokens][groups][num_rows + 1]; 0 before and after */
    uint32_t *words;                      /* the workspace of pre_fwd_split; 0 before and after */
    int32_t segments, num_groups, repeat; /* num_groups 0: mixes alone */
    int32_t num_splits;                   /* 0: no parts */
    int32_t has_weight;                   /* norm_weight is given; its data may be missing while kernels are prepared */
    int32_t is_normed, has_bf16_weight;   /* of the input */
    float columns, rms_eps, sinkhorn_eps, norm_eps, norm_scale; /* columns: num_streams * hidden */
    gates_numbers numbers;
} pre_fwd_args;

/* The gain of the input in a column. */
TGL_INLINE float pre_input_weight(const pre_fwd_args *a, int64_t column)
{
    if (!a->input_weight) return a->norm_scale;
    const float w = a->has_bf16_weight ? tgl_bf16_to_f32(((const uint16_t *)a->input_weight)[column])
                                       : ((const float *)a->input_weight)[column];
    return w * a->norm_scale;
}
TGL_INLINE float pre_rstd(const pre_fwd_args *a, float squares)
{
    return tgl_rsqrt(squares / (float)a->hidden + a->norm_eps);
}
TGL_INLINE float pre_normed(float v, float rstd, float weight) { return (v * rstd) * weight; }

/* A warp has a chunk of 8 * PRE_TILES tokens, a block the warps of a segment. Of many streams a block has more warps,
 * and then fewer tokens, so that it fits on an SM. */
#define PRE_TILES(streams) ((streams) <= 4 ? 4 : 2) /* 8 took 148 us on an H200 (2026-11), 4 138 (4096 x 7168) */
#define PRE_TOKENS(streams) (8 * PRE_TILES(streams))
#define PRE_PASS 3 /* tiles of 8 rows of fn at a time */
/* Chunks of a segment that are a subtree, and such groups in a segment. */
#define PRE_SUBTREE(streams) (2 * ((streams) & -(streams)))
#define PRE_SUBTREES(streams) (2 * (streams) / PRE_SUBTREE(streams))
/* pre_fwd_stream.cu: four streams; tiles of 8 tokens flow through a ring of stages in shared memory. */
#define PRE_STREAM_STREAMS 4
#define PRE_STREAM_TILE 8
#define PRE_STREAM_THREADS 512
#define PRE_STREAM_MIN_PIECES 4 /* of a chunk: fewer leave too little work between exchanges */
#define PRE_STREAM_MAX_PIECES 7 /* more do not fit into registers: 24 a piece */
#define PRE_STREAM_MIN_SEGMENTS 4
#define PRE_STREAM_ROW_TILES(rows) (((rows) + 7) / 8)
/* Tiles in the ring, and with a norm tiles whose input is kept until its factors are there. */
#define PRE_STREAM_STAGES(pieces, norm) \
    ((pieces) == 4 ? 12 - 2 * (norm) : (pieces) == 5 ? 10 - 2 * (norm) : (pieces) == 6 ? 8 - (norm) : 7 - (norm))
#define PRE_STREAM_KEPT(pieces) ((pieces) == 7 ? 3 : (pieces) == 6 ? 4 : 6)
#define PRE_STREAM_PASS(pieces) (16 / (pieces) / 2 * 2) /* tokens that 128 threads have, a unit each; an even number */
/* Bytes of shared memory of a stage: 64 columns of 32 rows are 4096. */
#define PRE_STREAM_STAGE(pieces) ((pieces) * 4096)
/* Of a warp's sums of a tile: those of rows, and the squares'. */
#define PRE_STREAM_SUMS(rows) ((8 * PRE_STREAM_ROW_TILES(rows) + 1) * PRE_STREAM_TILE * 4)
/* Only with a norm: a tile's input that is kept; squares of an owned tile's input, from all blocks; and both together,
 * with factors of a tile and with gains. */
#define PRE_STREAM_INPUT(pieces) ((pieces) * 64 * PRE_STREAM_TILE * 2)
#define PRE_STREAM_SQUARES(pieces, segments) ((segments) * (pieces) * PRE_STREAM_PASS(pieces) * 16)
#define PRE_STREAM_NORM_BYTES(pieces, segments)                                   \
    (PRE_STREAM_KEPT(pieces) * (PRE_STREAM_INPUT(pieces) + PRE_STREAM_TILE * 4) + \
     PRE_STREAM_SQUARES(pieces, segments) + (pieces) * 64 * 4)
/* Where things begin, in this order: stages; each warp's sums; those of all blocks, of an owned tile; gates; what a
 * norm needs; 16 bytes that are written and never read; mbarriers. */
#define PRE_STREAM_AT_SUMS(pieces, norm) (PRE_STREAM_STAGES(pieces, norm) * PRE_STREAM_STAGE(pieces))
#define PRE_STREAM_AT_OWNED(pieces, rows, norm) (PRE_STREAM_AT_SUMS(pieces, norm) + 16 * PRE_STREAM_SUMS(rows))
#define PRE_STREAM_AT_GATES(pieces, segments, rows, norm) \
    (PRE_STREAM_AT_OWNED(pieces, rows, norm) + (segments) * PRE_STREAM_SUMS(rows))
#define PRE_STREAM_AT_KEPT(pieces, segments, rows, norm) \
    (PRE_STREAM_AT_GATES(pieces, segments, rows, norm) + PRE_STREAM_STAGES(pieces, norm) * PRE_STREAM_TILE * 16)
#define PRE_STREAM_AT_BARS(pieces, segments, rows, norm) \
    (PRE_STREAM_AT_KEPT(pieces, segments, rows, norm) + (norm) * PRE_STREAM_NORM_BYTES(pieces, segments) + 16)
#define PRE_STREAM_BYTES(pieces, segments, rows, norm)                                                            \
    (PRE_STREAM_AT_BARS(pieces, segments, rows, norm) + 8 * (2 * PRE_STREAM_STAGES(pieces, norm) + 7 + (pieces) + \
                                                             (segments) + (norm) * (1 + 2 * PRE_STREAM_KEPT(pieces))))
/* A tensor map is aligned to 64 bytes; AArch64, on which an emulated device may be, passes no argument so. */
#ifdef EMU_VERSION
#define PRE_STREAM_ALIGNED
#else
#define PRE_STREAM_ALIGNED __attribute__((aligned(64)))
#endif
typedef struct {
    uint64_t map[16] PRE_STREAM_ALIGNED; /* CUtensorMap of the residual: [hidden / 64][token][stream][64] */
    pre_fwd_args args;
    char filler[64 - sizeof(pre_fwd_args) % 64];
} pre_stream_args;

/* pre_fwd_split.cu: sizes as for streams; a block per chunk, at most as many tokens. */
#define PRE_SPLIT_THREADS 256
#define PRE_SPLIT_CHUNKS(segments) (8 * (segments))
#define PRE_SPLIT_BLOCKS(pieces, segments) ((pieces) * (segments)) /* that have 64 columns of the input each */
#define PRE_SPLIT_WIDTH(rows) (8 * PRE_STREAM_ROW_TILES(rows) + 4) /* words of a chunk: rows, squares, filler */
/* Words of the workspace: sums [token][chunk][WIDTH], gates [block][token][4], squares [token][block], factors
 * [block][token]. */
#define PRE_SPLIT_AT_GATES(pieces, segments, rows, tokens) \
    ((int64_t)(tokens) * PRE_SPLIT_CHUNKS(segments) * PRE_SPLIT_WIDTH(rows))
#define PRE_SPLIT_AT_SQUARES(pieces, segments, rows, tokens) \
    (PRE_SPLIT_AT_GATES(pieces, segments, rows, tokens) + (int64_t)(tokens) * PRE_SPLIT_BLOCKS(pieces, segments) * 4)
#define PRE_SPLIT_WORDS(pieces, segments, rows, tokens) \
    (PRE_SPLIT_AT_SQUARES(pieces, segments, rows, tokens) + (int64_t)(tokens) * PRE_SPLIT_BLOCKS(pieces, segments) * 2)
/* Bytes of shared memory: fragments of a step, 64 more so that stores have no conflicts; the owner's totals; of each
 * token its columns of the chunk, rows 64 bytes past a multiple of 128, and the block's columns of the input. */
#define PRE_SPLIT_STEP(rows) (512 * PRE_STREAM_ROW_TILES(rows) + 64)
#define PRE_SPLIT_X_ROW(pieces) (64 * ((pieces) | 1))
#define PRE_SPLIT_AT_TOTALS(pieces, rows) (2 * (pieces) * PRE_SPLIT_STEP(rows))
#define PRE_SPLIT_AT_X(pieces, segments, rows) \
    (PRE_SPLIT_AT_TOTALS(pieces, rows) + 4 * (PRE_SPLIT_CHUNKS(segments) * PRE_SPLIT_WIDTH(rows) + PRE_SPLIT_THREADS))
#define PRE_SPLIT_BYTES(pieces, segments, rows, tokens) \
    (PRE_SPLIT_AT_X(pieces, segments, rows) + (tokens) * (PRE_SPLIT_X_ROW(pieces) + 512))

#define PRE_SHARED_BYTES(streams) (2 * (streams) * PRE_TOKENS(streams) * (8 * PRE_PASS + 1) * 4)

#endif
