/* SPDX-License-Identifier: MIT
 * tgl_moe_normalize_weight, on every device of the tests. Written from the specification: a row's sum, in f32
 * from 1e-20 on and from left to right, and the row divided by it. */
#include <math.h>

#include "support.h"

TESTS_OF_TABLE("moe_normalize_weight")

/* ---- examples ---- */

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* The only NaN that comes out. */
static float the_nan(void)
{
    const uint32_t bits = 0x7fffffff;
    float nan;
    memcpy(&nan, &bits, 4);
    return nan;
}

/* One row, by its bits. Once with outputs of its own and once in place. */
static void check_row(const float *weights, int64_t count, float denominator, const float *want)
{
    FOR_BACKENDS(b)
        for (int in_place = 0; in_place < 2; in_place++) {
            tensor w, sum, out;
            float seen[64], seen_sum = 0, poison[64] = { 0 };
            place(b, &w, TGL_F32, 2, SHAPE(1, count), weights);
            place(b, &sum, TGL_F32, 1, SHAPE(1), &poison);
            place(b, &out, TGL_F32, 2, SHAPE(1, count), poison);
            CHECK_OK(tgl_moe_normalize_weight(&w.t, &sum.t, in_place ? &w.t : &out.t, b->stream));
            CHECK_OK(backend_download(b, seen, in_place ? w.t.data : out.t.data, (size_t)count * 4));
            CHECK_OK(backend_download(b, &seen_sum, sum.t.data, 4));
            CHECK_THAT(bits_of(seen_sum) == bits_of(denominator), "%s: denominator is %a (%x), want %a (%x)", b->name,
                       (double)seen_sum, bits_of(seen_sum), (double)denominator, bits_of(denominator));
            for (int64_t i = 0; i < count; i++)
                CHECK_THAT(bits_of(seen[i]) == bits_of(want[i]), "%s: element %d is %a (%x), want %a (%x)", b->name,
                           (int)i, (double)seen[i], bits_of(seen[i]), (double)want[i], bits_of(want[i]));
            if (!in_place) check_contents(b, &w, weights, "topk_weights");
            else discard(b, &w);
            discard(b, &sum);
            discard(b, &out);
        }
}
#define WEIGHTS(...) ((float[]){ __VA_ARGS__ }), sizeof((float[]){ __VA_ARGS__ }) / sizeof(float)
#define WANT(...) ((float[]){ __VA_ARGS__ })

TEST(worked_examples)
{
    /* doc: normalize_weight */
    check_row(WEIGHTS(1, 3), 4, WANT(0.25f, 0.75f));
    check_row(WEIGHTS(0, 0), 1e-20f, WANT(0, 0));
    check_row(WEIGHTS(0.1f, 0.2f), 0.3f, WANT(0.33333331f, 0.66666663f));
    /* end */
    CHECK_INT(bits_of(1e-20f), 0x1e3ce508);
}

TEST(order_of_the_sum)
{
    check_row(WEIGHTS(16777216, 1, 1), 16777216, WANT(1, 0x1p-24f, 0x1p-24f)); /* each 1 is lost */
    check_row(WEIGHTS(1, 1, 16777216), 16777218, WANT(1 / 16777218.0f, 1 / 16777218.0f, 16777216 / 16777218.0f));
    check_row(WEIGHTS(1e30f, -1e30f, 1), 1, WANT(1e30f, -1e30f, 1));
    check_row(WEIGHTS(1, 1e30f, -1e30f), 0, WANT(INFINITY, INFINITY, -INFINITY));
    check_row(WEIGHTS(-1e-20f), 0, WANT(-INFINITY)); /* the 1e-20 comes first */
    check_row(WEIGHTS(1e-20f), 2e-20f, WANT(0.5f));
}

TEST(rows_side_by_side) /* four at a time on the CPU, in squares and lines of columns */
{
    test_random r = test_seed("rows side by side");
    enum { MOST_ROWS = 9, MOST_COLS = 37 };
    const int64_t cols[] = { 1, 3, 4, 5, 8, 15, 16, 17, 20, 32, MOST_COLS };
    FOR_BACKENDS(b)
        for (int64_t rows = 1; rows <= MOST_ROWS; rows++)
            for (size_t c = 0; c < sizeof cols / sizeof *cols; c++) {
                const int64_t count = cols[c];
                float weights[MOST_ROWS * MOST_COLS], want[MOST_ROWS * MOST_COLS], sums[MOST_ROWS];
                float poison[MOST_ROWS * MOST_COLS] = { 0 };
                for (int64_t t = 0; t < rows; t++) {
                    float *row = weights + t * count;
                    sums[t] = 1e-20f;
                    for (int64_t k = 0; k < count; k++) {
                        row[k] = ldexpf((float)test_below(&r, 1 << 24), (int)test_below(&r, 20) - 30);
                        sums[t] += row[k];
                    }
                    for (int64_t k = 0; k < count; k++) want[t * count + k] = row[k] / sums[t];
                }
                for (int in_place = 0; in_place < 2; in_place++) {
                    tensor w, sum, out;
                    place(b, &w, TGL_F32, 2, SHAPE(rows, count), weights);
                    place(b, &sum, TGL_F32, 1, SHAPE(rows), poison);
                    place(b, &out, TGL_F32, 2, SHAPE(rows, count), poison);
                    CHECK_OK(tgl_moe_normalize_weight(&w.t, &sum.t, in_place ? &w.t : &out.t, b->stream));
                    check_contents(b, &w, in_place ? want : weights, "topk_weights");
                    check_contents(b, &sum, sums, "denominator");
                    check_contents(b, &out, in_place ? poison : want, "normalized_weights");
                }
            }
}

TEST(division_is_exact) /* no product with a reciprocal: 5 * (1 / 5.0000001) and such differ */
{
    for (int i = 1; i < 2000; i += 37) {
        const float a = (float)i / 7, b = (float)(2000 - i) / 3, sum = a + b; /* 1e-20 vanishes beside them */
        check_row(WEIGHTS(a, b), sum, WANT((float)((double)a / (double)sum), (float)((double)b / (double)sum)));
    }
}

TEST(special_values)
{
    check_row(WEIGHTS(-0.0f, 0), 1e-20f, WANT(-0.0f, 0));
    check_row(WEIGHTS(-1, -3), -4, WANT(0.25f, 0.75f));
    check_row(WEIGHTS(-3, 1), -2, WANT(1.5f, -0.5f));
    const float nan = the_nan();
    check_row(WEIGHTS(INFINITY, 1), INFINITY, WANT(nan, 0));
    check_row(WEIGHTS(INFINITY, -1), INFINITY, WANT(nan, -0.0f));
    check_row(WEIGHTS(INFINITY, -INFINITY), nan, WANT(nan, nan));
    check_row(WEIGHTS(1, NAN, 2), nan, WANT(nan, nan, nan));
    check_row(WEIGHTS(-NAN, NAN, 2, 1, 1), nan, WANT(nan, nan, nan, nan, nan));
    check_row(WEIGHTS(3e38f, 3e38f), INFINITY, WANT(0, 0));
    check_row(WEIGHTS(1e-38f, 1), 1, WANT(1e-38f, 1)); /* subnormals are kept */
    check_row(WEIGHTS(1e-45f, 4), 4, WANT(0, 1));
    check_row(WEIGHTS(6e-45f, 2), 2, WANT(3e-45f, 1));
    check_row(WEIGHTS(5), 5, WANT(1));
}

TEST(graph) /* a launch a call */
{
    check_replayed("moe_normalize_weight", "num_tokens=70 num_topk=8", 1);
    check_replayed("moe_normalize_weight", "num_tokens=8195 num_topk=8", 1);
    check_replayed("moe_normalize_weight", "num_tokens=9 num_topk=100", 1);
}

TEST(no_weights_give_the_first_summand)
{
    FOR_BACKENDS(b) {
        tensor w, sum, out;
        make(&w, NULL, b->device, TGL_F32, 2, SHAPE(3, 0));
        make(&out, NULL, b->device, TGL_F32, 2, SHAPE(3, 0));
        place(b, &sum, TGL_F32, 1, SHAPE(3), (float[3]){ 7, 7, 7 });
        CHECK_OK(tgl_moe_normalize_weight(&w.t, &sum.t, &out.t, b->stream));
        check_contents(b, &sum, WANT(1e-20f, 1e-20f, 1e-20f), "denominator");
    }
}

/* ---- errors ---- */

OP(moe_normalize_weight, t[0], t[1], t[2])
#define GOOD_CALL CALL_OF(moe_normalize_weight, "num_tokens=3 num_topk=2")
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[0] = 2, "denominator: shape is [2], want [3]");
    /* normalized_weights may be topk_weights, but not a part of it */
    CHECK_ERROR(x[2].data = (char *)x[0].data + 4,
                "normalized_weights: memory is shared with topk_weights, want no overlap");
    CHECK_ERROR(x[0].strides[0] = 3;
                x[2].data = x[0].data, "normalized_weights: memory is shared with topk_weights, want no overlap");
}

TEST(empty) { check_empty(CALL_OF(moe_normalize_weight, "num_tokens=0 num_topk=4")); }
TEST(no_driver) { check_no_driver(GOOD_CALL); }
