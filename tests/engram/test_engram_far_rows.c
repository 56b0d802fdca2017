/* SPDX-License-Identifier: MIT
 * Tokens, table rows and ring slots more than 2^32 elements apart: a case of every kernel that takes them, then the same
 * with one tensor moved; the outputs must have the same bits. There is no memory between the rows: on the CPU and the
 * emulated device they are pages of a range that is only reserved. */
#include "far_rows.h"

TEST(lookup_bwd) /* i32 and i64, bf16 and f32; vectors of columns and single ones */
{
    check_far("engram_lookup_bwd", "grad_out indices grad_table",
              "num_tokens=2 num_columns=3 dim=7,32 num_rows=2 dtype=bf16,f32 outputs=both");
}

TEST(rows) /* one request, in lanes, and several */
{
    check_far("engram_rows", "input_ids rows",
              "num_tokens=3 max_ngram=3,9 num_layers=2 requests=none,2 id_dtype=i32,i64");
    check_far_in(1, "engram_rows", "rows", "num_tokens=3 max_ngram=3 num_heads=1,4 requests=none,2");
    check_far("engram_rows", "input_ids history",
              "num_tokens=3 max_ngram=3,9 requests=2 past=history past_dtype=i32,i64");
    check_far("engram_rows", "ring", "num_tokens=4 max_ngram=3,9 requests=3 past=ring start=small slots=none,shuffled");
}
TEST(ngram_windows)
{
    check_far("engram_ngram_windows", "input_ids history out", "num_tokens=3 max_ngram=3,9 requests=2 history=i32,i64");
}
TEST(hash) { check_far("engram_hash", "ngram_token_ids", "num_tokens=3 max_ngram=3,9 id_dtype=i32,i64"); }

TEST(lookup) /* vectors and single elements; codes with factors, one factor, and copies */
{
#define TWO_ROWS "num_tokens=3 num_columns=3 num_rows=2 dim=32,7 indices=valid "
    check_far("engram_lookup", "table indices out", TWO_ROWS "sf=one out=bf16,same index_dtype=i32,i64");
    check_far_in(1, "engram_lookup", "indices out", TWO_ROWS "dtype=bf16 out=same");
    check_far("engram_lookup", "table table_sf out",
              "num_tokens=3 num_columns=3 num_rows=2 dim=32 indices=valid sf=e8m0 out=bf16,same");
}
TEST(sinkhorn) /* rows in registers, and longer ones */
{
    check_far("engram_sinkhorn_step", "matrix", "num_rows=3 dim=4,7,8200 reduce=0,1");
    check_far("engram_sinkhorn_finalize", "matrix out", "num_rows=3 dim=4,7,8200");
}

TEST(gate_fwd) { check_far("engram_gate_fwd", "hidden_states k v output", "num_tokens=3 num_streams=2 hidden=7,64"); }
TEST(gate_bwd)
{
    check_far("engram_gate_bwd", "grad_out hidden_states k v grad_hidden_states grad_k grad_v",
              "num_tokens=3 num_streams=2 hidden=7,64 num_partials=2");
}

TEST(short_conv_fwd) /* few rows and more: one of each kernel */
{
    check_far("engram_short_conv_fwd", "x residual out", "num_tokens=3 num_streams=2,40 hidden=7,64 residual=given");
}
TEST(short_conv_bwd)
{
    check_far("engram_short_conv_bwd", "x grad_out grad_x",
              "num_tokens=3 num_streams=2 hidden=7,64 dilation=1,3 num_partials=2");
}
TEST(gate_conv_fwd)
{
    check_far("engram_gate_conv_fwd", "hidden_states k v out", "num_tokens=3 num_streams=2 hidden=7,64");
}

/* ---- a ring, which is packed, of more than 2^32 elements ---- */

/* All slots that the case uses come last. */
static void move_slots(case_instance *k)
{
    char *outputs[CASE_MAX_TENSORS] = { NULL };
    const int i = tensor_named(&k->problem, "ring"), s = tensor_named(&k->problem, "slots");
    REQUIRE(i >= 0 && s >= 0);
    const case_tensor *ring = &k->problem.tensors[i], *slots = &k->problem.tensors[s];
    const far_rows packed = packed_rows(ring, 0);
    const size_t slot_bytes = packed.bytes;
    const int64_t before = far * ring->element_bytes / (int64_t)slot_bytes + 1;
    const size_t bytes = (size_t)(before + ring->shape[0]) * slot_bytes;
    REQUIRE(slots->dtype == TGL_I64);
    char *slots_before = far_reserve(k->on, bytes);
    if (!slots_before) return;
    run_packed(k, outputs);
    char *const moved = slots_before + (size_t)before * slot_bytes, *contents = copy_of(k, packed, start_of(k, i));
    CHECK_OK(backend_upload(k->on, moved, contents, (size_t)ring->shape[0] * slot_bytes));
    free(contents);
    for (int64_t r = 0; r < slots->shape[0]; r++) {
        int64_t slot;
        memcpy(&slot, slots->data + r * 8, 8);
        if (slot >= 0) slot += before;
        CHECK_OK(backend_upload(k->on, start_of(k, s) + r * 8, &slot, 8));
    }
    int64_t shape[] = { before + ring->shape[0], ring->shape[1], ring->shape[2], ring->shape[3] };
    const DLTensor was = k->tensors[i];
    k->tensors[i].data = slots_before, k->tensors[i].byte_offset = 0, k->tensors[i].shape = shape;
    run_far(k, outputs, i, packed, moved);
    k->tensors[i] = was;
    far_release(k->on, slots_before, bytes);
}

static void check_far_slots(const char *op_name, const char *line)
{
    const case_op *op = case_find(op_name);
    const char *const lines[] = { line, NULL };
    FOR_BACKENDS(b)
        for (int64_t i = 0; i < case_count(lines); i++) {
            case_params params;
            case_instance *k;
            REQUIRE(CHECK_OK(case_at(op, lines, i, &params)) && CHECK_OK(case_open(op, &params, b, &k)));
            move_slots(k);
            case_close(k);
        }
}

#define RING " num_streams=2 hidden=7,64 requests=3 past=ring start=large slots=shuffled batch_dtype=i64 drafts=2"
TEST(ring_of_short_conv) { check_far_slots("engram_short_conv_fwd", "num_tokens=3,60" RING); }
TEST(ring_of_gate_conv) { check_far_slots("engram_gate_conv_fwd", "num_tokens=3,60" RING); }
