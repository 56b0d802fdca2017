/* SPDX-License-Identifier: MIT
 * gates.h - what pre_split_mixes and head_compute_mix share: gates and logits of a token from its mixes. Columns of the
 * mixes are n of the pre gate, n of the post gate, n * n of comb; a head has the first group alone. */
#ifndef TEGULA_MHC_GATES_H
#define TEGULA_MHC_GATES_H

#include "mhc/common/mhc.h"

#define GATES_THREADS 256
#define GATES_CHUNK 64        /* tokens whose gradients are added in f32; chunks are added in f64 */
#define GATES_STRANDS 16      /* of a chunk's tokens */
#define GATES_CHUNK_STRANDS 8 /* of chunks */
#define GATES_BWD_LANES(columns) ((columns) <= 32 ? 16 : 8) /* of a column: each has a strand or two of a chunk */
#define GATES_BWD_THREADS(columns) ((GATES_BWD_LANES(columns) * (columns) + 31) / 32 * 32)
#define GATES_MAX_COLUMNS (MHC_MAX_STREAMS * (MHC_MAX_STREAMS + 2))

typedef struct { float pre_eps, post_mult, post_eps; } gates_numbers;

TGL_INLINE int gates_columns(int n, int num_groups) { return num_groups == 3 ? n * (n + 2) : num_groups * n; }
TGL_INLINE int gates_group(int column, int n) { return column < n ? 0 : column < 2 * n ? 1 : 2; }

TGL_INLINE float gates_of(const gates_numbers *g, int group, float z)
{
    if (group == 2) return tgl_one_nan(z);
    const float s = mhc_sigmoid(z); /* once: a kernel's first run waits for its code */
    return tgl_one_nan(group == 0 ? mhc_pre_gate(s, g->pre_eps) : mhc_post_gate(s, g->post_mult, g->post_eps));
}
/* The gradient of z, from that of the gate. */
TGL_INLINE float gates_slope(const gates_numbers *g, int group, float z, float d)
{
    return group == 2 ? d : mhc_gate_slope(z, group == 1 ? d * g->post_mult : d);
}

/* Of the strands of chunks, `stride` numbers apart. */
TGL_INLINE double gates_chunk_tree(const double *l, int stride)
{
    return ((l[0] + l[stride]) + (l[2 * stride] + l[3 * stride])) +
           ((l[4 * stride] + l[5 * stride]) + (l[6 * stride] + l[7 * stride]));
}

typedef struct {
    const float *mixes, *scale, *base;
    float *out[3];                  /* of each group: [num_tokens, n or n * n], packed */
    int64_t num_tokens, row_stride; /* of mixes, in elements */
    int32_t num_streams, num_groups;
    gates_numbers numbers;
} gates_fwd_args;

/* grad_base is the sum of g over tokens, grad_scale that of g * mix over tokens and the columns of a group. Of each
 * column both sums are made alike. In a chunk token t belongs to strand t % GATES_STRANDS: in a strand in order, in f32
 * (g * mix by fma), then strands as a tree. Chunk c belongs to strand c % GATES_CHUNK_STRANDS: the same in f64. Of
 * grad_scale then the columns in order, in f64. */
typedef struct {
    const float *grad_out[3]; /* NULL: zero */
    const float *mixes, *scale, *base;
    float *grad_mixes, *grad_scale, *grad_base;
    int64_t num_tokens, row_stride;
    uint32_t *started; /* blocks; 0 before and after */
    uint32_t *partial; /* [chunks][2][columns]: sums of g, of g * mix; 0 before and after */
    int32_t num_streams, num_groups;
    gates_numbers numbers;
} gates_bwd_args;

#endif
