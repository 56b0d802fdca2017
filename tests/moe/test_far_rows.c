/* SPDX-License-Identifier: MIT
 * Rows more than 2^32 elements apart: cases of every op that takes a row stride, with one tensor moved. There
 * is no memory between the rows: on the CPU and the emulated device they are two pages of a range that is
 * only reserved. */
#include "far.h"
#include "support.h"

enum { ROWS = 2, ELEMENT = 4 };
static const int64_t far = ((int64_t)1 << 32) + 8; /* elements from row to row */

/* The case as it is, then with the rows of tensor `name` far apart. */
static void check_instance(case_instance *k, const char *name)
{
    int64_t strides[2] = { far, 1 };
    int i = 0;
    while (!k->problem.tensors[i].name || strcmp(k->problem.tensors[i].name, name)) i++;
    const case_tensor *t = &k->problem.tensors[i];
    REQUIRE(t->ndim == 2 && t->shape[0] == ROWS && t->element_bytes == ELEMENT);
    const size_t row_bytes = (size_t)t->shape[1] * ELEMENT, bytes = (size_t)far * ELEMENT + row_bytes;
    char *rows = far_reserve(k->on, bytes);
    if (!rows) return;
    for (int64_t r = 0; r < ROWS; r++)
        CHECK_OK(backend_upload(k->on, rows + r * far * ELEMENT, case_element(t, (int64_t[]){ r, 0 }), row_bytes));
    for (int is_far = 0; is_far < 2; is_far++) {
        if (is_far) k->tensors[i].data = rows, k->tensors[i].byte_offset = 0, k->tensors[i].strides = strides;
        CHECK_OK(case_poison(k, is_far));
        CHECK_OK(case_call(k));
        verify(k, is_far, is_far ? "far rows" : "packed rows");
    }
    far_release(k->on, rows, bytes);
}

static void check_far(const char *op_name, const char *name, const char *line)
{
    const case_op *op = case_find(op_name);
    const char *const lines[] = { line, NULL };
    FOR_BACKENDS(b)
        for (int64_t i = 0; i < case_count(lines); i++) {
            case_params params;
            case_instance *k;
            REQUIRE(CHECK_OK(case_at(op, lines, i, &params)) && CHECK_OK(case_open(op, &params, b, &k)));
            check_instance(k, name);
            case_close(k);
        }
}

TEST(group_count) /* by elements, by vectors, by several blocks; in shared memory and in the workspace */
{
    check_far("moe_group_count", "group_idx",
              "num_tokens=2 num_topk=7,8,5000 num_groups=9,9000 routing=some_empty dtype=i32");
}

TEST(mask_indices_by_tp)
{
    check_far("moe_mask_indices_by_tp", "indices",
              "num_tokens=2 num_topk=7,8 num_experts=72 num_ep_ranks=8 num_tp_ranks=2 tp_rank=1 dtype=i32");
}

TEST(get_fused_mapping) /* few pairs and many: one of each kernel */
{
    check_far("moe_get_fused_mapping", "topk_idx",
              "num_tokens=2 num_topk=6,2100 num_experts=9 alignment=1 routing=some_empty dtype=i32");
}

TEST(topk_gate) { check_far("moe_topk_gate", "scores", "num_tokens=2 num_experts=72 num_topk=6 dtype=i32"); }
TEST(top2_sum_gate) { check_far("moe_top2_sum_gate", "logits", "num_tokens=2 num_experts=72 num_topk=6 dtype=i32"); }

TEST(normalize_weight) /* a lane per element, by vectors, a warp per row */
{
    check_far("moe_normalize_weight", "topk_weights", "num_tokens=2 num_topk=6,8,40");
}

TEST(expand_to_fused) /* by columns and by bulk stores */
{
    check_far("moe_expand_to_fused", "x", "num_tokens=2 num_topk=2 num_experts=4 hidden=7,8 alignment=1 dtype=f32");
}

TEST(reduce_fused)
{
    check_far("moe_reduce_fused", "x",
              "num_tokens=2 num_topk=1 num_experts=4 hidden=7,8 alignment=1 dtype=f32 out_dtype=f32");
}
