/* SPDX-License-Identifier: MIT */
#include "expand.h"

#include <stdlib.h>
#include <string.h>

#include "core/status.h"

case_role expand_role_of_output(const case_problem *c) { return case_is(c, "slots", "lost") ? CASE_INOUT : CASE_OUT; }

tgl_status expand_setup(case_problem *c)
{
    const int64_t hidden = case_int(c, "hidden");
    const tgl_dtype dtype = case_dtype(c, "dtype");
    TGL_TRY(routing_check_sizes(c, ROUTING_SIZES("num_experts", "alignment", "num_positions", "hidden", NULL)));
    TGL_TRY(case_check_word(c, "slots", "mapped lost wild padded"));
    routing r = routing_make(c);
    const int64_t num_positions = routing_num_positions(c, &r);
    free(r.expert);
    const int64_t slots[2] = { r.num_tokens, r.num_topk };
    case_add(c, TO_POS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, slots)->fill = mapping_fill_to_pos;
    case_add(c, TO_EXPERT, "pos_to_expert", CASE_IN, TGL_I32, 1, &num_positions)->fill = mapping_fill_to_expert;
    case_tensor *x = case_add(c, TOKENS, "x", CASE_IN, dtype, 2, (int64_t[]){ r.num_tokens, hidden });
    x->offset = case_int(c, "offset");
    case_tensor *out =
        case_add(c, EXPANDED, "out", expand_role_of_output(c), dtype, 2, (int64_t[]){ num_positions, hidden });
    out->offset = case_int(c, "out_offset");
    return moe_lay_out(case_text(c, "layout"), hidden, x->strides);
}

/* Copies row t of one tensor to row p of another, or zeros if t < 0; packed rows at once. */
static void put_row(const case_tensor *to, int64_t p, const case_tensor *from, int64_t t)
{
    const int64_t size = to->element_bytes, cols = to->shape[1];
    const int64_t run = cols && to->strides[1] == 1 && from->strides[1] == 1 ? cols : 1;
    for (int64_t i = 0; i < cols; i += run) {
        void *row = case_element(to, (int64_t[]){ p, i });
        if (t < 0) memset(row, 0, (size_t)(run * size));
        else memcpy(row, case_element(from, (int64_t[]){ t, i }), (size_t)(run * size));
    }
}

void expand_rows(const case_problem *c, const case_tensor *from, const case_tensor *to)
{
    const case_tensor *to_pos = &c->tensors[TO_POS], *to_expert = &c->tensors[TO_EXPERT];
    for (int64_t p = 0; p < to->shape[0]; p++)
        if (((const int32_t *)to_expert->data)[p] < 0) put_row(to, p, from, -1);
    for (int64_t t = 0; t < from->shape[0]; t++)
        for (int64_t k = 0; k < to_pos->shape[1]; k++) {
            const int64_t p = moe_index_at(to_pos, t, k);
            if (p < 0 || p >= to->shape[0] || ((const int32_t *)to_expert->data)[p] < 0) continue;
            put_row(to, p, from, t);
        }
}
