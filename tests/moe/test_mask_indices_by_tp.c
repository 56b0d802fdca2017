/* SPDX-License-Identifier: MIT
 * tgl_moe_mask_indices_by_tp, on every device of the tests. Written from the specification: each rank has g =
 * num_experts / num_ep_ranks experts; those on ranks equal to tp_rank modulo num_tp_ranks stay, numbered as
 * if only these ranks existed. */
#include "support.h"

TESTS_OF_TABLE("moe_mask_indices_by_tp")

/* ---- examples ---- */

static void check_mask(tgl_moe_mask_indices_by_tp_params params, const int64_t *indices, const int64_t *want,
                       int64_t count)
{
    int32_t narrow[64], narrow_want[64];
    REQUIRE(count <= 64);
    for (int64_t i = 0; i < count; i++) narrow[i] = (int32_t)indices[i], narrow_want[i] = (int32_t)want[i];
    FOR_BACKENDS(b)
        for (int is_narrow = 0; is_narrow < 2; is_narrow++) {
            const tgl_dtype dtype = is_narrow ? TGL_I32 : TGL_I64;
            const void *from = is_narrow ? (const void *)narrow : indices;
            const void *to = is_narrow ? (const void *)narrow_want : want;
            tensor in, out, both;
            place(b, &in, dtype, 2, SHAPE(1, count), from);
            place(b, &out, dtype, 2, SHAPE(1, count), from);
            place(b, &both, dtype, 2, SHAPE(count, 1), from);
            CHECK_OK(tgl_moe_mask_indices_by_tp(&in.t, &out.t, &params, b->stream));
            CHECK_OK(tgl_moe_mask_indices_by_tp(&both.t, &both.t, &params, b->stream));
            check_contents(b, &in, from, "indices");
            check_contents(b, &out, to, "out");
            check_contents(b, &both, to, "in place");
        }
}
#define INDICES(...) ((int64_t[]){ __VA_ARGS__ })
#define PARAMS(...) ((tgl_moe_mask_indices_by_tp_params){ __VA_ARGS__ })

TEST(worked_example)
{
    /* doc: mask_indices_by_tp */
    const int64_t indices[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7 };
    const int64_t rank_0[] = { -1, 0, 1, -1, -1, 2, 3, -1, -1 };
    const int64_t rank_1[] = { -1, -1, -1, 0, 1, -1, -1, 2, 3 };
    tgl_moe_mask_indices_by_tp_params params = { .num_experts = 8, .num_ep_ranks = 4, .num_tp_ranks = 2 };
    check_mask(params, indices, rank_0, 9);
    params.tp_rank = 1;
    check_mask(params, indices, rank_1, 9);
    /* end */
}

TEST(every_index_belongs_to_one_rank) /* and each rank numbers its own from 0 without a gap */
{
    const struct {
        int64_t num_experts, num_ep_ranks, num_tp_ranks;
    } sizes[] = {
        { 48, 8, 2 }, { 48, 8, 4 }, { 48, 8, 8 }, { 48, 48, 3 }, { 48, 1, 1 }, { 48, 12, 1 }, { 48, 2, 2 },
    };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int64_t all[48], owners[48] = { 0 };
        for (int i = 0; i < 48; i++) all[i] = i;
        for (int64_t rank = 0; rank < sizes[s].num_tp_ranks; rank++) {
            tensor in, out;
            int64_t seen[48], next = 0;
            const tgl_moe_mask_indices_by_tp_params params = {
                sizes[s].num_experts, sizes[s].num_ep_ranks, sizes[s].num_tp_ranks, rank, { 0 }
            };
            make(&in, all, cpu, TGL_I64, 2, SHAPE(6, 8));
            make(&out, seen, cpu, TGL_I64, 2, SHAPE(6, 8));
            CHECK_OK(tgl_moe_mask_indices_by_tp(&in.t, &out.t, &params, NULL));
            for (int i = 0; i < 48; i++) {
                if (seen[i] < 0) {
                    CHECK_INT(seen[i], -1);
                    continue;
                }
                CHECK_INT(seen[i], next++);
                owners[i]++;
            }
            CHECK_INT(next, 48 / sizes[s].num_tp_ranks);
        }
        for (int i = 0; i < 48; i++) CHECK_INT(owners[i], 1);
    }
}

TEST(zero_means_one_rank)
{
    const int64_t indices[] = { 5, -1, 0, 7, -9, 100 }, want[] = { 5, -1, 0, 7, -1, 100 };
    check_mask(PARAMS(.num_experts = 8), indices, want, 6);
    check_mask(PARAMS(.num_experts = 8, .num_ep_ranks = 4), indices, want, 6);
    check_mask(PARAMS(.num_experts = 8, .num_ep_ranks = 4, .num_tp_ranks = 1), indices, want, 6);
}

TEST(every_negative_index_is_empty)
{
    check_mask(PARAMS(.num_experts = 8, .num_ep_ranks = 4, .num_tp_ranks = 2),
               INDICES(-1, -2, -3, -4, -5, -8, -100, INT32_MIN), INDICES(-1, -1, -1, -1, -1, -1, -1, -1), 8);
}

TEST(indices_past_the_experts_follow_the_formula)
{
    /* 7 experts on 3 ranks: g = 2, so experts from 6 on are on ranks 3, 4, ... */
    check_mask(PARAMS(.num_experts = 7, .num_ep_ranks = 3, .num_tp_ranks = 2, .tp_rank = 1),
               INDICES(2, 3, 4, 5, 6, 7, 8, 10, 11, 14, 15), INDICES(0, 1, -1, -1, 2, 3, -1, 4, 5, 6, 7), 11);
    check_mask(PARAMS(.num_experts = 8, .num_ep_ranks = 8, .num_tp_ranks = 2, .tp_rank = 1),
               INDICES(INT32_MAX, INT32_MAX - 1), INDICES(INT32_MAX / 2, -1), 2);
}

TEST(numbers_of_64_bits)
{
    FOR_BACKENDS(b) {
        const int64_t big = (int64_t)1 << 40;
        const int64_t indices[] = { INT64_MAX, INT64_MAX - 1, big, big + 1, 3 * big, INT64_MIN };
        const int64_t want[] = { INT64_MAX / 2, -1, -1, big / 2, -1, -1 };
        const tgl_moe_mask_indices_by_tp_params params = { big, big, 2, 1, { 0 } };
        tensor t;
        place(b, &t, TGL_I64, 2, SHAPE(2, 3), indices);
        CHECK_OK(tgl_moe_mask_indices_by_tp(&t.t, &t.t, &params, b->stream));
        check_contents(b, &t, want, "out");
        /* one rank has more experts than fit in 32 bits */
        const tgl_moe_mask_indices_by_tp_params one = { .num_experts = INT64_MAX };
        place(b, &t, TGL_I64, 2, SHAPE(2, 3), indices);
        CHECK_OK(tgl_moe_mask_indices_by_tp(&t.t, &t.t, &one, b->stream));
        check_contents(b, &t, INDICES(INT64_MAX, INT64_MAX - 1, big, big + 1, 3 * big, -1), "one rank");
        place(b, &t, TGL_I64, 2, SHAPE(2, 3), indices);
        const tgl_moe_mask_indices_by_tp_params many = { 3 * big, 3, INT64_MAX, 1, { 0 } };
        CHECK_OK(tgl_moe_mask_indices_by_tp(&t.t, &t.t, &many, b->stream));
        check_contents(b, &t, INDICES(-1, -1, 0, 1, -1, -1), "ranks");
    }
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_mask_indices_by_tp",
                   "num_tokens=70 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2 tp_rank=1", 1);
}

/* ---- errors ---- */

OP(moe_mask_indices_by_tp, t[0], t[1], params)
#define GOOD_CALL \
    CALL_OF(moe_mask_indices_by_tp, "num_tokens=3 num_topk=2 num_experts=8 num_ep_ranks=4 num_tp_ranks=2 tp_rank=1")
#define GIVEN ((tgl_moe_mask_indices_by_tp_params *)(void *)c->params)

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype.bits = 32, "out: dtype is i32, want i64 as indices");
    /* out may be indices, but not a part of it */
    CHECK_ERROR(x[1].data = (char *)x[0].data - 40, "out: memory is shared with indices, want no overlap");
    CHECK_ERROR(x[0].strides[0] = 3; x[1].data = x[0].data, "out: memory is shared with indices, want no overlap");
}

TEST(errors_of_params)
{
    CHECK_ERROR(GIVEN->num_experts = 3, "num_experts: is 3, want >= 4 (num_ep_ranks)");
    CHECK_ERROR(GIVEN->num_experts = GIVEN->num_ep_ranks = 0, "num_experts: is 0, want >= 1 (num_ep_ranks)");
    CHECK_ERROR(GIVEN->tp_rank = 2, "tp_rank: is 2, want 0..1");
    CHECK_ERROR(GIVEN->num_tp_ranks = 0, "tp_rank: is 1, want 0..0");
    CHECK_ERROR(GIVEN->reserved[7] = (uint64_t)1 << 63, "reserved[7]: is 9223372036854775808, want 0");
}

TEST(empty)
{
    check_empty(CALL_OF(moe_mask_indices_by_tp, "num_tokens=0 num_topk=6 num_experts=8"));
    check_empty(CALL_OF(moe_mask_indices_by_tp, "num_tokens=5 num_topk=0 num_experts=8"));
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
