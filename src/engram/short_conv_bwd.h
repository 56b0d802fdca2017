/* SPDX-License-Identifier: MIT
 * short_conv_bwd.h - what the CPU loop, the host and the kernel of short_conv_bwd agree on. */
#ifndef TEGULA_ENGRAM_SHORT_CONV_BWD_H
#define TEGULA_ENGRAM_SHORT_CONV_BWD_H

#include "engram/common/short_conv.h"

typedef struct {
    tgl_windows requests; /* with the mask; without ring */
    gate_in x, grad_out;
    conv_weights norm, conv, bias; /* bias.data NULL: none */
    const float *rstd;
    gate_out grad_x; /* these four: NULL where not wanted */
    float *grad_norm, *grad_conv, *grad_bias;
    conv_numbers numbers;
    int64_t num_tokens, num_streams, hidden;
    int64_t num_partials, partial_tokens; /* of one partial: its number times this is its first token */
    int32_t kernel_size, dilation;
    int32_t has_bias;                             /* or its gradient is wanted */
    int32_t cluster_blocks;                       /* short_conv_bwd_cluster */
    struct { int64_t x, grad_out, grad_x; } step; /* bytes from a token to the one `dilation` on */
} short_conv_bwd_args;

/* The gradient of z, of which sigmoid is given. */
TGL_INLINE float conv_grad_z(const conv_numbers *n, float grad_out, float z, float sigmoid)
{
    if (!n->has_activation) return grad_out;
    return grad_out * (sigmoid * fmaf(conv_bounded(z), 1.0f - sigmoid, 1.0f));
}

/* scaled: norm_weight times the gradient of what is convolved. slope: the sum over the row of scaled * x, times
 * rstd^2 / hidden. The columns of a vector are added one after the other, with one fma each; vectors of a group of
 * CONV_GROUP as a tree (vector i and i + 16, then i + 8, 4, 2, 1), groups likewise, 32 of them at a time; the rest in
 * order. */
#define CONV_BWD_VECTOR 4
TGL_INLINE float conv_slope(const conv_numbers *n, float sum, float rstd) { return sum * (rstd * rstd) / n->hidden; }
TGL_INLINE float conv_grad_x(const conv_numbers *n, float x, float rstd, float slope, float scaled, float grad_out)
{
    const float inner = fmaf(-x, slope, scaled);
    return n->adds_input ? fmaf(rstd, inner, grad_out) : rstd * inner;
}
TGL_INLINE float conv_grad_norm(float grad, float x, float rstd, float sum) { return fmaf(grad, x * rstd, sum); }

/* Sums of a partial: its tokens CONV_BWD_TILE at a time; of a tile every dilation-th token from the first one on, then
 * those from the second one on, and so forth: taps reach from one to the next. */
#define CONV_BWD_TILE 256
#define CONV_BWD_THREADS CONV_BWD_TILE
/* Blocks of CONV_CLUSTER_MIN_THREADS that an H200 runs at a time, 4 on each of 132 SMs. That clusters of more than two
 * leave room for only CONV_BWD_CLUSTERED_BLOCKS has no measurement on record. */
#define CONV_BWD_BLOCKS 528
#define CONV_BWD_CLUSTERED_BLOCKS 464

/* short_conv_bwd_cluster: a thread has a vector of columns. */
#define CONV_CLUSTER_TAPS 4          /* it is compiled for */
#define CONV_CLUSTER_REACH 64        /* tokens between the first tap and the last, max */
#define CONV_CLUSTER_THREADS 512     /* of an SM */
#define CONV_CLUSTER_MIN_THREADS 128 /* of a block, which has once, twice or three times as many */
#define CONV_CLUSTER_MAX_THREADS 384
#define CONV_CLUSTER_BLOCKS 8 /* of a cluster, max */
#define CONV_CLUSTER_TURN 4   /* tokens whose sums blocks exchange at once */
#define CONV_CLUSTER_TURNS 3  /* whose rows of x and grad_out are in shared memory */
/* Shared memory of a thread, in bytes: rows, and 8 more; an odd number of vectors of floats: all banks serve a warp. */
#define CONV_CLUSTER_ROW_BYTES (2 * CONV_CLUSTER_TURNS * CONV_CLUSTER_TURN * 2 * CONV_BWD_VECTOR + 8)
#define CONV_CLUSTER_FLOAT_BYTES ((CONV_CLUSTER_TURN + 3) * 4 * CONV_BWD_VECTOR)
#define CONV_CLUSTER_STATIC 16384 /* max bytes of a block besides */

#endif
