/* SPDX-License-Identifier: MIT */
#include "numerics/rank.h"

#include "oracle.h"

/* By the rule, in floats: is score a at index i ranked before score b at index j? */
static bool is_before(float a, uint32_t i, float b, uint32_t j)
{
    const float x = isnan(a) ? -INFINITY : a, y = isnan(b) ? -INFINITY : b;
    return x != y ? x > y : i < j;
}

static bool check_pair(float a, uint32_t i, float b, uint32_t j)
{
    const bool before = tgl_rank(a, i) > tgl_rank(b, j), after = tgl_rank(a, i) < tgl_rank(b, j);
    return CHECK_THAT(before == is_before(a, i, b, j) && after == is_before(b, j, a, i),
                      "%a at %" PRIu32 " and %a at %" PRIu32 ": ranks 0x%016" PRIx64 ", 0x%016" PRIx64, (double)a, i,
                      (double)b, j, tgl_rank(a, i), tgl_rank(b, j));
}

static bool check_parts(float score, uint32_t index)
{
    const uint64_t rank = tgl_rank(score, index);
    const float value = tgl_rank_value(rank), want = isnan(score) ? -INFINITY : score == 0 ? 0.0f : score;
    return CHECK_THAT(rank > 0xFFFFFFFF && tgl_rank_index(rank) == index && bits_of(value) == bits_of(want),
                      "%a at %" PRIu32 ": rank 0x%016" PRIx64 " gives %a at %" PRIu32, (double)score, index, rank,
                      (double)value, tgl_rank_index(rank));
}

/* Around everything where the order of floats and that of their bits part. */
static const uint32_t edges[] = {
    0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,
    0x3F800000, 0xBF800000, 0x3F800001, 0xBF800001, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000,
    0x7F800001, 0xFF800001, 0x7FC00000, 0xFFC00000, 0x7FFFFFFF, 0xFFFFFFFF,
};
static const uint32_t indices[] = { 0, 1, 255, 256, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF };

TEST(rank_of_edges)
{
    const size_t num_edges = sizeof edges / sizeof *edges, num_indices = sizeof indices / sizeof *indices;
    for (size_t a = 0; a < num_edges; a++)
        for (size_t i = 0; i < num_indices; i++) {
            check_parts(float_of(edges[a]), indices[i]);
            for (size_t b = 0; b < num_edges; b++)
                for (size_t j = 0; j < num_indices; j++)
                    check_pair(float_of(edges[a]), indices[i], float_of(edges[b]), indices[j]);
        }
}

TEST(rank_examples)
{
    CHECK(tgl_rank_key(-INFINITY) == 0x007FFFFF);
    CHECK(tgl_rank_key(NAN) == 0x007FFFFF);
    CHECK(tgl_rank_key(0.0f) == 0x80000000);
    CHECK(tgl_rank_key(-0.0f) == 0x80000000);
    CHECK(tgl_rank_key(INFINITY) == 0xFF800000);
    CHECK(tgl_rank(1.0f, 0) == 0xBF800000FFFFFFFF);
    CHECK(tgl_rank(-INFINITY, 0xFFFFFFFF) > TGL_RANK_NONE);
}

TEST(rank_of_random_pairs)
{
    test_random r = test_seed("rank_of_random_pairs");
    for (int i = 0; i < 1000000; i++) {
        const uint64_t bits = test_bits(&r), at = test_bits(&r);
        const uint32_t far = (uint32_t)(bits >> 32), close = (uint32_t)bits + (uint32_t)(bits >> 62);
        const float a = float_of((uint32_t)bits), b = float_of(i % 2 ? far : close);
        if (!check_parts(a, (uint32_t)at) || !check_pair(a, (uint32_t)at, b, (uint32_t)(at >> 32))) return;
    }
}

/* Neighbouring floats have neighbouring keys: so the order holds for all of them. */
TEST(rank_keys_of_all_floats)
{
    if (!test_slow()) SKIP("2^32 floats are in the slow set");
    uint32_t key = 0x007FFFFF; /* of -inf */
    for (uint32_t bits = 0xFF800000; bits > 0x80000000; bits--)
        if (!CHECK_THAT(tgl_rank_key(float_of(bits)) == key++, "key of 0x%08" PRIX32, bits)) return;
    for (uint32_t bits = 0; bits <= 0x7F800000; bits++) {
        const float score = float_of(bits);
        if (!CHECK_THAT(tgl_rank_key(score) == 0x80000000 + bits, "key of 0x%08" PRIX32, bits)) return;
        if (!check_parts(score, bits) || !check_parts(-score, bits)) return;
    }
    for (uint32_t payload = 1; payload <= 0x7FFFFF; payload++)
        for (uint32_t sign = 0; sign < 2; sign++)
            if (!check_parts(float_of(sign << 31 | 0x7F800000 | payload), payload)) return;
}
