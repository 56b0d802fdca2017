/* SPDX-License-Identifier: MIT
 * tgl_moe_expand_to_fused and tgl_moe_expand_to_fused_with_sf, on every device of the tests. Written from the
 * specification: every token's row at all of its positions, zeros where there is no expert, other rows
 * untouched. */
#include "mapping.h"

static const char rows[] = "moe_expand_to_fused", rows_and_sf[] = "moe_expand_to_fused_with_sf";

TEST(check_list)
{
    FOR_BACKENDS(b) check_lines(rows, case_find(rows)->lists[CASE_CHECK], b);
}
TEST(check_list_with_sf)
{
    FOR_BACKENDS(b) check_lines(rows_and_sf, case_find(rows_and_sf)->lists[CASE_CHECK], b);
}

TEST(slow_list)
{
    if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");
    FOR_BACKENDS(b) {
        if (b->is_emulated) continue;
        check_lines(rows, case_find(rows)->lists[CASE_SLOW], b);
        check_lines(rows_and_sf, case_find(rows_and_sf)->lists[CASE_SLOW], b);
    }
}

/* ---- examples ---- */

/* The mapping of get_fused_mapping's example: four tokens of two slots, six positions. */
static const int32_t to_pos[] = { 0, 4, /**/ 5, 1, /**/ 2, -1, /**/ -1, -1 };
static const int32_t to_expert[] = { 0, 0, 0, -1, 2, 2 };

TEST(worked_example)
{
    FOR_BACKENDS(b) {
        tensor tx, tpos, texpert, tout;
        float poison[12];
        memset(poison, 0xa5, sizeof poison);
        place(b, &tpos, TGL_I32, 2, SHAPE(4, 2), to_pos);
        place(b, &texpert, TGL_I32, 1, SHAPE(6), to_expert);
        place(b, &tout, TGL_F32, 2, SHAPE(6, 2), poison);
        /* doc: expand_to_fused */
        const float x[] = { 10, 11, /**/ 20, 21, /**/ 30, 31, /**/ 40, 41 };
        const float out[] = { 10, 11, /**/ 20, 21, /**/ 30, 31, /**/ 0, 0, /**/ 10, 11, /**/ 20, 21 };
        /* end */
        place(b, &tx, TGL_F32, 2, SHAPE(4, 2), x);
        CHECK_OK(tgl_moe_expand_to_fused(&tx.t, &tpos.t, &texpert.t, &tout.t, b->stream));
        check_contents(b, &tout, out, "out");
        discard(b, &tx), discard(b, &tpos), discard(b, &texpert);
    }
}

TEST(worked_example_with_sf) /* columns of eight: six positions, rounded up to a multiple of four */
{
    FOR_BACKENDS(b) {
        tensor tx, tsf, tpos, texpert, tout, tout_sf;
        int32_t poison[16];
        for (int i = 0; i < 16; i++) poison[i] = -77;
        const uint8_t x[] = { 1, 2, /**/ 3, 4, /**/ 5, 6, /**/ 7, 8 };
        const uint8_t out[] = { 1, 2, /**/ 3, 4, /**/ 5, 6, /**/ 0, 0, /**/ 1, 2, /**/ 3, 4 };
        const int32_t sf[] = { 10, 11, /**/ 20, 21, /**/ 30, 31, /**/ 40, 41 };
        const int32_t storage[] = { 10, 20, 30, 0, 10, 20, -77, -77, /**/ 11, 21, 31, 0, 11, 21, -77, -77 };
        place(b, &tx, TGL_E4M3, 2, SHAPE(4, 2), x);
        place(b, &tsf, TGL_I32, 2, SHAPE(4, 2), sf);
        place(b, &tpos, TGL_I32, 2, SHAPE(4, 2), to_pos);
        place(b, &texpert, TGL_I32, 1, SHAPE(6), to_expert);
        place(b, &tout, TGL_E4M3, 2, SHAPE(6, 2), poison);
        place(b, &tout_sf, TGL_I32, 2, SHAPE(2, 8), poison);
        tensor columns = tout_sf;
        columns.t.shape = columns.shape, columns.t.strides = columns.strides;
        columns.shape[0] = 6, columns.shape[1] = 2;
        columns.strides[0] = 1, columns.strides[1] = 8;
        /* two words of factors per token, which eight values need */
        tensor wide_x, wide_out;
        uint8_t many[64 * 6] = { 0 };
        place(b, &wide_x, TGL_E4M3, 2, SHAPE(4, 8), many);
        place(b, &wide_out, TGL_E4M3, 2, SHAPE(6, 8), many);
        CHECK_OK(tgl_moe_expand_to_fused_with_sf(&wide_x.t, &tsf.t, &tpos.t, &texpert.t, &wide_out.t, &columns.t, 1,
                                                 b->stream));
        check_contents(b, &tout_sf, storage, "out_sf, eight factors in two words");
        place(b, &tout_sf, TGL_I32, 2, SHAPE(6, 1), poison);
        tensor one_sf;
        place(b, &one_sf, TGL_I32, 2, SHAPE(4, 1), sf);
        CHECK_OK(tgl_moe_expand_to_fused_with_sf(&tx.t, &one_sf.t, &tpos.t, &texpert.t, &tout.t, &tout_sf.t, 1,
                                                 b->stream));
        check_contents(b, &tout, out, "out");
        check_contents(b, &tout_sf, ((const int32_t[]){ 10, 11, 20, 0, 10, 11 }), "out_sf, packed");
        discard(b, &tx), discard(b, &tsf), discard(b, &tpos), discard(b, &texpert), discard(b, &one_sf);
        discard(b, &wide_x), discard(b, &wide_out);
    }
}

/* ---- properties ---- */

TEST(follows_the_mapping) /* of get_fused_mapping: row p is that of token pos_to_token[p] */
{
    enum { TOKENS = 50, TOPK = 6, EXPERTS = 11, POSITIONS = TOKENS * TOPK + 15 * EXPERTS, HIDDEN = 40 };
    static uint16_t x[TOKENS * HIDDEN], seen[POSITIONS * HIDDEN];
    int64_t topk_idx[TOKENS * TOPK];
    test_random r = test_seed("follows_the_mapping");
    for (int i = 0; i < TOKENS * TOPK; i++) topk_idx[i] = test_below(&r, EXPERTS + 5) - 3;
    for (int i = 0; i < TOKENS * HIDDEN; i++) x[i] = (uint16_t)test_bits(&r);
    FOR_BACKENDS(b) {
        mapped m = { TOKENS, TOPK, EXPERTS, 16, POSITIONS, { 0 } };
        map_tokens(b, topk_idx, &m);
        tensor tx, tpos, texpert, tout;
        place(b, &tx, TGL_BF16, 2, SHAPE(TOKENS, HIDDEN), x);
        place(b, &tpos, TGL_I32, 2, SHAPE(TOKENS, TOPK), m.at[TOKEN_TOPK_TO_POS]);
        place(b, &texpert, TGL_I32, 1, SHAPE(POSITIONS), m.at[POS_TO_EXPERT]);
        memset(seen, 0xa5, sizeof seen);
        place(b, &tout, TGL_BF16, 2, SHAPE(POSITIONS, HIDDEN), seen);
        CHECK_OK(tgl_moe_expand_to_fused(&tx.t, &tpos.t, &texpert.t, &tout.t, b->stream));
        CHECK_OK(backend_download(b, seen, tout.t.data, sizeof seen));
        for (int p = 0; p < POSITIONS; p++)
            for (int i = 0; i < HIDDEN; i++) {
                const int32_t token = m.at[POS_TO_TOKEN][p];
                REQUIRE(seen[p * HIDDEN + i] == (token < 0 ? 0 : x[token * HIDDEN + i]));
            }
        discard(b, &tx), discard(b, &tpos), discard(b, &texpert), discard(b, &tout);
        free_mapped(&m);
    }
}

TEST(huge_rows_without_a_position) /* the estimate of work must not overflow */
{
    enum { TOPK = 1023 };
    const int64_t hidden = (int64_t)1 << 55;
    int32_t positions[TOPK], expert = 0;
    memset(positions, -1, sizeof positions);
    tensor x, pos, experts, out;
    make(&x, (void *)(uintptr_t)hidden, cpu, TGL_U8, 2, SHAPE(1, hidden));
    make(&out, (void *)(uintptr_t)(4 * hidden), cpu, TGL_U8, 2, SHAPE(1, hidden));
    make(&pos, positions, cpu, TGL_I32, 2, SHAPE(1, TOPK));
    make(&experts, &expert, cpu, TGL_I32, 1, SHAPE(1));
    CHECK_OK(tgl_moe_expand_to_fused(&x.t, &pos.t, &experts.t, &out.t, NULL));
}

TEST(num_sms)
{
    check_num_sms(rows,
                  (const char *const[]){ "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16", NULL });
    check_num_sms(rows_and_sf, (const char *const[]){
                                   "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16 num_per_channels=32 "
                                   "out_sf_layout=packed,columns",
                                   NULL });
}

TEST(graph)
{
    check_replayed(rows, "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16", 1);
    check_replayed(rows, "num_tokens=3000 num_topk=2 num_experts=40 hidden=144 alignment=16", 1);
    check_replayed(rows_and_sf, "num_tokens=40 num_topk=8 num_experts=9 hidden=576 alignment=16", 1);
    check_replayed(rows_and_sf, "num_tokens=40 num_topk=8 num_experts=9 hidden=7 alignment=16 out_sf_layout=columns",
                   1);
}

/* ---- errors ---- */

extern tgl_signature tgl_moe_expand_to_fused_signature, tgl_moe_expand_to_fused_with_sf_signature;
static tgl_status expand(DLTensor *const *t, const void *params)
{
    return tgl_moe_expand_to_fused(t[0], t[1], t[2], t[3], NULL);
}
static tgl_status expand_with_sf(DLTensor *const *t, const void *params)
{
    return tgl_moe_expand_to_fused_with_sf(t[0], t[1], t[2], t[3], t[4], t[5], *(const int64_t *)params, NULL);
}

#define SAMPLE "num_tokens=3 hidden=8 num_topk=2 num_positions=7"
#define GOOD_CALL &tgl_moe_expand_to_fused_signature, SAMPLE, expand
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype.bits = 24, "x: dtype is code 2 with 24 bits and 1 lanes, want elements of 1, 2, 4, 8 or "
                                      "16 bytes");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_BF16), "out: dtype is bf16, want f16 as x");
    CHECK_ERROR(x[3].data = (char *)x[2].data + 24, "out: memory is shared with pos_to_expert, want no overlap");
}
TEST(empty)
{
    check_empty(&tgl_moe_expand_to_fused_signature, "num_tokens=3 hidden=64 num_topk=2 num_positions=0", expand);
    check_empty(&tgl_moe_expand_to_fused_signature, "num_tokens=3 hidden=0 num_topk=2 num_positions=6", expand);
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL &tgl_moe_expand_to_fused_with_sf_signature, SAMPLE " num_sf=4 num_per_channels=2", expand_with_sf
TEST(errors_with_sf)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].dtype = tgl_dtype_to_dlpack(TGL_BF16), "x_sf: dtype is bf16, want i32 or f32");
    CHECK_ERROR(scalar[0] = 0, "num_per_channels: is 0, want >= 1");
}

TEST(errors_of_the_number_of_factors)
{
    CHECK_ERROR(x[1].shape[1] = x[5].shape[1] = 3, "x_sf: shape is [3, 3], want [3, 4]");
    CHECK_ERROR(scalar[0] = 4, "x_sf: shape is [3, 4], want [3, 2]");
    CHECK_ERROR(scalar[0] = INT64_MAX, "x_sf: shape is [3, 4], want [3, 1]");
    CHECK_ERROR(x[1].dtype = x[5].dtype = tgl_dtype_to_dlpack(TGL_I32), "x_sf: shape is [3, 4], want [3, 1]");
    CHECK_ERROR(x[0].dtype = x[4].dtype = tgl_dtype_to_dlpack(TGL_U8);
                scalar[0] = 1, "x_sf: shape is [3, 4], want [3, 8] or [3, 16]");
    CHECK_ERROR(x[0].dtype = x[4].dtype = tgl_dtype_to_dlpack(TGL_E2M1X2), /* a factor for two bytes, not one */
                "x_sf: shape is [3, 4], want [3, 8]");
}

TEST(errors_of_the_layout_of_factors)
{
    CHECK_ERROR(x[5].strides[0] = 5, "out_sf: strides are [5, 1], want [4, 1] or [1, >= 7]");
    CHECK_ERROR(x[5].strides[0] = 1; x[5].strides[1] = 6, "out_sf: strides are [1, 6], want [4, 1] or [1, >= 7]");
    CHECK_ERROR(x[5].strides[0] = 2; x[5].strides[1] = 14, "out_sf: strides are [2, 14], want [4, 1] or [1, >= 7]");
}
TEST(empty_with_sf)
{
    check_empty(&tgl_moe_expand_to_fused_with_sf_signature,
                "num_tokens=3 hidden=64 num_topk=2 num_positions=0 num_sf=64 num_per_channels=1", expand_with_sf);
    check_empty(&tgl_moe_expand_to_fused_with_sf_signature,
                "num_tokens=3 hidden=0 num_topk=2 num_positions=6 num_sf=0 num_per_channels=1", expand_with_sf);
}
TEST(no_driver_with_sf) { check_no_driver(GOOD_CALL); }
