/* SPDX-License-Identifier: MIT
 * Tokens, table rows and ring slots more than 2^32 elements apart: a case of every kernel that takes them, then the same
 * with one tensor moved; the outputs must have the same bits. There is no memory between the rows: on the CPU and the
 * emulated device they are pages of a range that is only reserved. */
#include "far.h"

static const int64_t far = ((int64_t)1 << 32) + 8;      /* elements */

/* ---- rows of a tensor: its elements by the first dimension ---- */

static size_t row_bytes(const case_tensor *t)
{
    int64_t elements = 1;
    for (int d = 1; d < t->ndim; d++) elements *= t->shape[d];
    CHECK(t->shape[0] <= 1 || t->strides[0] == elements);
    return (size_t)(elements * t->element_bytes);
}

/* Where the case has row r of tensor i. */
static char *row_of(const case_instance *k, int i, int64_t r)
{
    return (char *)k->tensors[i].data + k->tensors[i].byte_offset + (size_t)r * row_bytes(&k->problem.tensors[i]);
}

static char *copy_of(const case_instance *k, const case_tensor *t, const char *from, size_t distance)
{
    const size_t bytes = row_bytes(t);
    char *made = case_memory(t->shape[0] * (int64_t)bytes, 1);
    for (int64_t r = 0; r < t->shape[0]; r++)
        CHECK_OK(backend_download(k->on, made + (size_t)r * bytes, from + (size_t)r * distance, bytes));
    return made;
}

static int tensor_named(const case_problem *c, const char *name)
{
    for (int i = 0; i < c->num_tensors; i++)
        if (c->tensors[i].name && !strcmp(c->tensors[i].name, name)) return i;
    return -1;
}

/* The case as it is: right by its oracle. Its outputs are kept. */
static void run_packed(case_instance *k, char **outputs)
{
    case_report report;
    CHECK_OK(case_poison(k, 0));
    CHECK_OK(case_call(k));
    CHECK_OK(case_verify(k, 0, &report, NULL));
    CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", k->on->name, k->problem.label, report.text);
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (t->name && t->role != CASE_IN) outputs[i] = copy_of(k, t, row_of(k, i, 0), row_bytes(t));
    }
    CHECK_OK(case_poison(k, 0));
}

/* Again, with rows of tensor `moved` so many bytes apart at `rows`. */
static void run_far(case_instance *k, char **outputs, int moved, const char *rows, size_t distance)
{
    CHECK_OK(case_call(k));
    CHECK_OK(backend_wait(k->on, k->on->stream));
    for (int i = 0; i < k->problem.num_tensors; i++) {
        const case_tensor *t = &k->problem.tensors[i];
        if (!outputs[i]) continue;
        char *seen = i == moved ? copy_of(k, t, rows, distance) : copy_of(k, t, row_of(k, i, 0), row_bytes(t));
        CHECK_THAT(!memcmp(seen, outputs[i], (size_t)t->shape[0] * row_bytes(t)), "%s: %s: %s far apart: %s differs",
                   k->on->name, k->problem.label, k->problem.tensors[moved].name, t->name);
        free(seen);
        free(outputs[i]);
    }
}

static void move_rows(case_instance *k, const char *name)
{
    char *outputs[CASE_MAX_TENSORS] = { NULL };
    const int i = tensor_named(&k->problem, name);
    REQUIRE(i >= 0);
    const case_tensor *t = &k->problem.tensors[i];
    const size_t distance = (size_t)(far * t->element_bytes);
    const size_t bytes = (size_t)(t->shape[0] - 1) * distance + row_bytes(t);
    REQUIRE(t->shape[0] > 1);
    char *rows = far_reserve(k->on, bytes);
    if (!rows) return;
    run_packed(k, outputs);
    for (int64_t r = 0; r < t->shape[0]; r++) {
        char *row = case_memory((int64_t)row_bytes(t), 1);
        CHECK_OK(backend_download(k->on, row, row_of(k, i, r), row_bytes(t)));
        CHECK_OK(backend_upload(k->on, rows + (size_t)r * distance, row, row_bytes(t)));
        free(row);
    }
    int64_t strides[CASE_MAX_DIMS];
    const DLTensor was = k->tensors[i];
    memcpy(strides, t->strides, sizeof strides);
    strides[0] = far;
    k->tensors[i].data = rows, k->tensors[i].byte_offset = 0, k->tensors[i].strides = strides;
    run_far(k, outputs, i, rows, distance);
    k->tensors[i] = was;
    far_release(k->on, rows, bytes);
}

static void check_far(const char *op_name, const char *names, const char *line)
{
    const case_op *op = case_find(op_name);
    const char *const lines[] = { line, NULL };
    FOR_BACKENDS(b)
        for (int64_t i = 0; i < case_count(lines); i++)
            for (const char *name = names; *name; name += strspn(name, " ")) {
                char word[CASE_WORD] = "";
                case_params params;
                case_instance *k;
                memcpy(word, name, strcspn(name, " "));
                name += strcspn(name, " ");
                REQUIRE(CHECK_OK(case_at(op, lines, i, &params)) && CHECK_OK(case_open(op, &params, b, &k)));
                move_rows(k, word);
                case_close(k);
            }
}

TEST(lookup_bwd) /* i32 and i64, bf16 and f32; vectors of columns and single ones */
{
    check_far("engram_lookup_bwd", "grad_out grad_table",
              "num_tokens=2 num_columns=3 dim=7,32 num_rows=2 dtype=bf16,f32 outputs=both");
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
    check_far("engram_short_conv_bwd", "x grad_out grad_x", "num_tokens=3 num_streams=2 hidden=7,64 num_partials=2");
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
    const size_t slot_bytes = row_bytes(ring);
    const int64_t before = far * ring->element_bytes / (int64_t)slot_bytes + 1;
    const size_t bytes = (size_t)(before + ring->shape[0]) * slot_bytes;
    REQUIRE(slots->dtype == TGL_I64);
    char *slots_before = far_reserve(k->on, bytes);
    if (!slots_before) return;
    run_packed(k, outputs);
    char *const moved = slots_before + (size_t)before * slot_bytes, *contents = copy_of(k, ring, row_of(k, i, 0), slot_bytes);
    CHECK_OK(backend_upload(k->on, moved, contents, (size_t)ring->shape[0] * slot_bytes));
    free(contents);
    for (int64_t r = 0; r < slots->shape[0]; r++) {
        int64_t slot;
        memcpy(&slot, slots->data + r * 8, 8);
        if (slot >= 0) slot += before;
        CHECK_OK(backend_upload(k->on, row_of(k, s, r), &slot, 8));
    }
    int64_t shape[] = { before + ring->shape[0], ring->shape[1], ring->shape[2], ring->shape[3] };
    const DLTensor was = k->tensors[i];
    k->tensors[i].data = slots_before, k->tensors[i].byte_offset = 0, k->tensors[i].shape = shape;
    run_far(k, outputs, i, moved, slot_bytes);
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
