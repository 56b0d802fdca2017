/* SPDX-License-Identifier: MIT
 * mapping.h - what the tests of counts and of the mapping share: workspaces that must stay zero, a mapping
 * made on a device and read back. */
#ifndef TEGULA_TEST_MAPPING_H
#define TEGULA_TEST_MAPPING_H

#include <stdlib.h>

#include "support.h"

/* ---- workspaces ---- */

typedef struct {
    void *data;
    size_t bytes;
} scratch;

static inline scratch make_scratch(const backend *b, size_t bytes)
{
    scratch s = { NULL, bytes };
    void *zeros = calloc(bytes + 1, 1);
    CHECK_OK(backend_alloc(b, bytes, &s.data));
    CHECK_OK(backend_upload(b, s.data, zeros, bytes));
    free(zeros);
    return s;
}

static inline void check_scratch(const backend *b, const scratch *s, const char *after)
{
    unsigned char *seen = calloc(s->bytes + 1, 1);
    CHECK_OK(backend_download(b, seen, s->data, s->bytes));
    size_t i = 0;
    while (i < s->bytes && !seen[i]) i++;
    CHECK_THAT(i == s->bytes, "%s: byte %zu of the workspace is 0x%02x after %s", b->name, i, seen[i], after);
    free(seen);
}

/* ---- a mapping on a device ---- */

/* The arrays of tgl_moe_mapping, in its order. The last is in host memory. */
enum {
    POS_TO_EXPERT,
    POS_TO_TOKEN,
    POS_TO_TOKEN_TOPK,
    TOKEN_TOPK_TO_POS,
    EXPERT_START,
    EXPERT_END,
    LENGTH,
    COUNT,
    PSUM_END,
    LENGTH_ON_HOST,
    NUM_ARRAYS
};
static const char *const array_names[NUM_ARRAYS] = {
    "pos_to_expert",
    "pos_to_token",
    "pos_to_token_topk",
    "token_topk_to_pos",
    "expert_start",
    "expert_end",
    "num_tokens_per_expert",
    "count",
    "psum_end",
    "num_tokens_per_expert_host",
};

typedef struct {
    int64_t num_tokens, num_topk, num_experts, alignment, num_positions;
    int32_t *at[NUM_ARRAYS];
} mapped;

static inline int64_t array_length(const mapped *m, int i)
{
    if (i == TOKEN_TOPK_TO_POS) return m->num_tokens * m->num_topk;
    return i < TOKEN_TOPK_TO_POS ? m->num_positions : m->num_experts;
}

static inline tgl_moe_mapping as_mapping(tensor t[NUM_ARRAYS])
{
    return (tgl_moe_mapping){ &t[0].t, &t[1].t, &t[2].t, &t[3].t, &t[4].t, &t[5].t,
                              &t[6].t, &t[7].t, &t[8].t, &t[9].t, { 0 } };
}

/* All tensors of a mapping on a device, poisoned; `m` has the sizes and gets the arrays, until
 * free_mapped(). */
static inline tgl_moe_mapping open_mapping(const backend *b, mapped *m, tensor t[NUM_ARRAYS])
{
    for (int i = 0; i < NUM_ARRAYS; i++) {
        const int64_t length = array_length(m, i);
        void *data = NULL;
        m->at[i] = malloc((size_t)length * 4 + 4);
        if (i == LENGTH_ON_HOST) {
            CHECK_OK(backend_host_alloc(b, (size_t)length * 4, &data));
            make(&t[i], data, backend_host(b), TGL_I32, 1, &length);
        } else if (i == TOKEN_TOPK_TO_POS) {
            place(b, &t[i], TGL_I32, 2, SHAPE(m->num_tokens, m->num_topk), NULL);
        } else {
            place(b, &t[i], TGL_I32, 1, &length, NULL);
        }
    }
    return as_mapping(t);
}

static inline void close_mapping(const backend *b, mapped *m, tensor t[NUM_ARRAYS])
{
    for (int i = 0; i < LENGTH_ON_HOST; i++) fetch(b, &t[i], m->at[i]);
    memcpy(m->at[LENGTH_ON_HOST], t[LENGTH_ON_HOST].t.data, (size_t)m->num_experts * 4);
    backend_host_free(b, t[LENGTH_ON_HOST].t.data);
}

static inline void map_tokens(const backend *b, const int64_t *topk_idx, mapped *m)
{
    tensor idx, t[NUM_ARRAYS];
    place(b, &idx, TGL_I64, 2, SHAPE(m->num_tokens, m->num_topk), topk_idx);
    const tgl_moe_mapping mapping = open_mapping(b, m, t);
    const scratch s = make_scratch(b, tgl_moe_get_fused_mapping_workspace_size(&idx.t, &mapping));
    CHECK_OK(tgl_moe_get_fused_mapping(&idx.t, &mapping, m->alignment, s.data, s.bytes, b->stream));
    close_mapping(b, m, t);
    check_scratch(b, &s, "get_fused_mapping");
    backend_free(b, s.data);
    discard(b, &idx);
}

static inline void free_mapped(mapped *m)
{
    for (int i = 0; i < NUM_ARRAYS; i++) free(m->at[i]);
}

static inline void check_array(const backend *b, const mapped *m, int which, const int32_t *want)
{
    for (int64_t i = 0; i < array_length(m, which); i++)
        if (!CHECK_THAT(m->at[which][i] == want[i], "%s: %s[%d] is %d, want %d", b->name, array_names[which], (int)i,
                        (int)m->at[which][i], (int)want[i]))
            return;
}

#endif
