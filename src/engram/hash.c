/* SPDX-License-Identifier: MIT
 * hash.c - tgl_engram_hash: table rows of windows of token ids. */
#include "engram/hash.h"

#include "core/threads.h"
#include "engram/common/columns_host.h"
#include "tegula/engram.h"

typedef hash_args problem;

/* ---- CPU ---- */

static void run_tokens(const void *context, int64_t begin, int64_t end)
{
    const problem *p = context;
    int64_t window[COLUMN_MAX_NGRAM];
    for (int64_t t = begin; t < end; t++) {
        const bool is_masked = p->image_token_mask && p->image_token_mask[t];
        for (int64_t i = 0; i < p->columns.max_ngram && !is_masked; i++)
            window[i] = tgl_integer_at(p->ngram_token_ids, t * p->id_stride + i, p->id_bytes);
        tgl_columns_put(&p->columns, t, is_masked ? NULL : window);
    }
}

static tgl_status cpu(const void *context)
{
    const problem *p = context;
    return tgl_parallel_rows(p->columns.num_tokens, tgl_columns_token_bytes(&p->columns), run_tokens, p);
}

tgl_signature tgl_engram_hash_signature =
    TGL_SIGNATURE("engram_hash(ngram_token_ids: i32|i64[num_tokens, max_ngram] rows, " COLUMN_TENSORS ","
                  " image_token_mask: bool[num_tokens]?)"
                  " -> out: i32|i64[num_layers, num_tokens, (max_ngram - 1) * num_heads] where " COLUMN_RULES,
                  NULL);

/* ---- launch ---- */

static int plan(const void *context, tgl_kernel *kernels)
{
    const problem *p = context;
    if (p->columns.num_columns == 0) return 0;
    kernels[0] = tgl_columns_kernel(&p->columns, "engram/hash");
    tgl_add_macro(&kernels[0], "ID_BYTES", p->id_bytes);
    return 1;
}

static tgl_shape shape(void *context, const tgl_target *target)
{
    problem *p = context;
    tgl_shape made = tgl_columns_shape(&p->columns, COLUMN_HASH_BLOCKS, 1, 0, 0, target);
    made.shared_bytes = 0; /* windows stay in registers */
    return tgl_shape_with(made, p, sizeof *p);
}

static const tgl_op OP = { cpu, plan, { { .shape = shape } } };

tgl_status tgl_engram_hash(const DLTensor *ngram_token_ids, const DLTensor *multipliers, const DLTensor *vocab_sizes,
                           const DLTensor *offsets, const DLTensor *image_token_mask, DLTensor *out, tgl_stream stream)
{
    const DLTensor *tensors[] = { ngram_token_ids, multipliers, vocab_sizes, offsets, image_token_mask, out };
    TGL_TRY(tgl_take(&tgl_engram_hash_signature, tensors, NULL, NULL));
    problem p = { .ngram_token_ids = tgl_data(ngram_token_ids),
                  .id_stride = tgl_stride(ngram_token_ids, 0),
                  .id_bytes = tgl_dtype_bits(ngram_token_ids->dtype) / 8 };
    TGL_TRY(tgl_columns_of(multipliers, vocab_sizes, offsets, out, &p.columns));
    if (image_token_mask) p.image_token_mask = tgl_data(image_token_mask);
    return tgl_run(&tgl_engram_hash_signature, &OP, tensors, &p, stream);
}
