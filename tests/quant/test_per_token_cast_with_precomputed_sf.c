/* SPDX-License-Identifier: MIT
 * tgl_quant_per_token_cast_with_precomputed_sf, on every device of the tests. With a factor of 1 it is the
 * encoder of a format alone: elements are tested here. */
#include <float.h>

#include "elements.h"
#include "errors.h"

TESTS_OF_TABLE("quant_per_token_cast_with_precomputed_sf")

/* Casts rows of eight values with one factor for all, and compares with codes that quant_encode() gives for
 * value * (1 / factor). */
static void check_values(const backend *b, tgl_quant_format format, tgl_dtype dtype, const float *x,
                         int64_t rows, float factor)
{
    const int64_t bytes = quant_data_cols(format, 8);
    uint8_t *want = calloc((size_t)(rows * bytes), 1);
    const case_tensor codes = {
        .ndim = 2, .shape = { rows, bytes }, .strides = { bytes, 1 }, .data = (char *)want, .element_bytes = 1
    };
    REQUIRE(want);
    const float inv = 1 / factor;
    for (int64_t i = 0; i < 8 * rows; i++)
        quant_put_code(&codes, format, i / 8, i % 8, quant_encode(format, x[i] * inv));
    tensor in, out, sf;
    place_floats(b, &in, dtype, rows, 8, x);
    place(b, &out, quant_data_dtype(format, TGL_U8), 2, SHAPE(rows, bytes), NULL);
    place(b, &sf, TGL_F32, 2, SHAPE(1, 1), &factor);
    sf.shape[0] = rows, sf.strides[0] = 0;      /* one factor for all rows */
    CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&in.t, NULL, &sf.t, &out.t,
                                                          PARAMS(.format = format), b->stream));
    check_contents(b, &out, want, "out");
    discard(b, &in);
    discard(b, &sf);
    free(want);
}

static void check_every_bf16(tgl_quant_format format)
{
    static float x[65536];
    for (uint32_t bits = 0; bits < 65536; bits++) x[bits] = float_of(bits << 16);
    FOR_BACKENDS(b) {
        check_values(b, format, TGL_BF16, x, 8192, 1);
        check_values(b, format, TGL_F32, x, 8192, 1);
        check_values(b, format, TGL_BF16, x, 8192, 0x1p-9f);
        check_values(b, format, TGL_F32, x, 8192, 3);
    }
}

TEST(every_bf16_as_e4m3) { check_every_bf16(TGL_QUANT_E4M3); }
TEST(every_bf16_as_e2m1) { check_every_bf16(TGL_QUANT_E2M1); }
TEST(every_bf16_as_e5m6) { check_every_bf16(TGL_QUANT_E5M6); }

/* Every number of a format, every middle of two, and the floats on either side of both. */
static void check_boundaries(tgl_quant_format format, unsigned num_codes)
{
    float *x = malloc(num_codes * 12 * sizeof *x + 8 * sizeof *x);
    int64_t count = 0;
    REQUIRE(x);
    for (unsigned code = 0; code < num_codes; code++) {
        const float at = quant_decode(format, code), next = quant_decode(format, code + 1);
        const float points[] = { at, code + 1 < num_codes ? (at + next) / 2 : at };
        for (int p = 0; p < 2; p++)
            for (int side = -1; side < 2; side++) {
                const float value = side < 0 ? nextafterf(points[p], -FLT_MAX)
                                  : side ? nextafterf(points[p], FLT_MAX) : points[p];
                x[count++] = value;
                x[count++] = -value;
            }
    }
    while (count % 8) x[count++] = 0;
    FOR_BACKENDS(b) check_values(b, format, TGL_F32, x, count / 8, 1);
    free(x);
}

TEST(boundaries_of_e4m3) { check_boundaries(TGL_QUANT_E4M3, 0x7f); }
TEST(boundaries_of_e2m1) { check_boundaries(TGL_QUANT_E2M1, 8); }
TEST(boundaries_of_e5m6) { check_boundaries(TGL_QUANT_E5M6, 0x7c0); }

TEST(random_floats)
{
    static float x[65536];
    test_random r = test_seed("random_floats");
    for (int i = 0; i < 65536; i++) x[i] = float_of((uint32_t)test_bits(&r));
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++)
            for (int e = -80; e <= 80; e += 40)
                check_values(b, (tgl_quant_format)f, TGL_F32, x, b->is_emulated ? 512 : 8192,
                             ldexpf(1.75f, e));
}

/* By hand, not by the oracle's encoder. */
TEST(ties_of_e2m1)
{
    const float x[16] = { 0.25f,  0.75f,  1.25f,  1.75f,  2.5f,  3.5f,  5,  6,
                          -0.25f, -0.75f, -1.25f, -1.75f, -2.5f, -3.5f, -5, -7 };
    const uint8_t want[8] = { 0x20, 0x42, 0x64, 0x76, 0xa8, 0xca, 0xec, 0xfe };
    FOR_BACKENDS(b) {
        tensor in, out, sf;
        place_floats(b, &in, TGL_BF16, 1, 16, x);
        place(b, &out, TGL_I8, 2, SHAPE(1, 8), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 1), F32S(1));
        CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&in.t, NULL, &sf.t, &out.t,
                                                              PARAMS(.format = TGL_QUANT_E2M1), b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &in);
        discard(b, &sf);
    }
}

TEST(saturation_of_e4m3)
{
    const float x[8] = { 448, 463, 464, 480, 1e30f, INFINITY, -FLT_MAX, -INFINITY };
    FOR_BACKENDS(b) {
        tensor in, out, sf;
        place_floats(b, &in, TGL_F32, 1, 8, x);
        place(b, &out, TGL_E4M3, 2, SHAPE(1, 8), NULL);
        place(b, &sf, TGL_F32, 2, SHAPE(1, 1), F32S(1));
        CHECK_OK(
            tgl_quant_per_token_cast_with_precomputed_sf(&in.t, NULL, &sf.t, &out.t, PARAMS(0), b->stream));
        check_contents(b, &out, BYTES(0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0x7e, 0xfe, 0xfe), "out");
        discard(b, &in);
        discard(b, &sf);
    }
}

/* inv = 1 / sf in f32: a factor of 0 makes infinities, and NaN of zeros; an infinite one makes zeros. */
TEST(factors_at_the_ends)
{
    const float x[8] = { 1, -1, 0, -0.0f, 1e-30f, -1e30f, INFINITY, NAN };
    const struct { float sf; uint8_t want[8]; } rows[] = {
        { 0, { 0x7e, 0xfe, 0x7f, 0x7f, 0x7e, 0xfe, 0x7e, 0x7f } },
        { INFINITY, { 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x7f, 0x7f } },
        { 0x1p-149f, { 0x7e, 0xfe, 0x7f, 0x7f, 0x7e, 0xfe, 0x7e, 0x7f } },      /* 2^149 is no float */
        { 0x1p127f, { 0x00, 0x80, 0x00, 0x80, 0x00, 0x80, 0x7e, 0x7f } },
    };
    FOR_BACKENDS(b)
        for (int i = 0; i < COUNT_OF(rows); i++) {
            tensor in, out, sf;
            place_floats(b, &in, TGL_F32, 1, 8, x);
            place(b, &out, TGL_E4M3, 2, SHAPE(1, 8), NULL);
            place(b, &sf, TGL_F32, 2, SHAPE(1, 1), &rows[i].sf);
            CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&in.t, NULL, &sf.t, &out.t, PARAMS(0),
                                                                  b->stream));
            check_contents(b, &out, rows[i].want, "out");
            discard(b, &in);
            discard(b, &sf);
        }
}

static tgl_status cast_given(const DLTensor *x, const DLTensor *sf, DLTensor *out,
                             const tgl_quant_params *params, tgl_stream stream)
{
    return tgl_quant_per_token_cast_with_precomputed_sf(x, NULL, sf, out, params, stream);
}

TEST(every_packed_factor)       /* in a warp, a row, and anything */
{
    check_given_codes(128, 4, cast_given);
    check_given_codes(8, 1, cast_given);
    check_given_codes(7, 4, cast_given);
}

/* The factors that per_token_cast found give its codes again where they are powers of two. */
TEST(its_own_factors)
{
    enum { N = 1024 };
    static float x[4 * N];
    test_random r = test_seed("its_own_factors");
    for (int i = 0; i < 4 * N; i++)
        x[i] = ldexpf((float)test_below(&r, 2001) - 1000, (int)test_below(&r, 20) - 20);
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++) {
            const tgl_quant_format format = (tgl_quant_format)f;
            const tgl_quant_params params = { .format = format, .num_per_channels = 128, .round_sf = true };
            const int64_t bytes = quant_data_cols(format, N);
            tensor in, out, sf, again;
            uint8_t want[4 * N * 3 / 2];
            place_floats(b, &in, TGL_F32, 4, N, x);
            place(b, &out, quant_data_dtype(format, TGL_U8), 2, SHAPE(4, bytes), NULL);
            place(b, &again, quant_data_dtype(format, TGL_U8), 2, SHAPE(4, bytes), NULL);
            place(b, &sf, TGL_I32, 2, SHAPE(4, 2), NULL);
            sf.strides[0] = 1, sf.strides[1] = 4;
            CHECK_OK(tgl_quant_per_token_cast(&in.t, NULL, &out.t, &sf.t, &params, b->stream));
            CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&in.t, NULL, &sf.t, &again.t, &params,
                                                                  b->stream));
            fetch(b, &out, want);
            check_contents(b, &again, want, "again");
            discard(b, &in);
            discard(b, &sf);
        }
}

/* ---- nothing to do ---- */

TEST(num_sms)       /* 5 blocks are few from 3 of them on */
{
    check_num_sms("quant_per_token_cast_with_precomputed_sf", (const char *const[]){
        "num_rows=33 num_cols=256 sf=packed values=mixed", NULL });
}

TEST(empty)
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor x, out, sf;
        make(&x, NULL, devices[d], TGL_BF16, 2, SHAPE(0, 256));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(0, 256));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(0, 1));
        CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&x.t, NULL, &sf.t, &out.t, PARAMS(0), NULL));
        make(&x, NULL, devices[d], TGL_BF16, 2, SHAPE(3, 0));
        make(&out, NULL, devices[d], TGL_E4M3, 2, SHAPE(3, 0));
        make(&sf, NULL, devices[d], TGL_F32, 2, SHAPE(3, 0));
        CHECK_OK(tgl_quant_per_token_cast_with_precomputed_sf(&x.t, NULL, &sf.t, &out.t, PARAMS(0), NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_quant_per_token_cast_with_precomputed_sf_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_quant_per_token_cast_with_precomputed_sf(t[0], t[1], t[2], t[3], params, NULL);
}
#define SIGNATURE &tgl_quant_per_token_cast_with_precomputed_sf_signature
#define GOOD_CALL SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 -x_sf", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=4 format=1 -x_sf sf=i32", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 format=2 -x_sf", invoke);
    check_errors(SIGNATURE, "num_rows=3 num_cols=32 num_per_channels=16 x_num_per_channels=8", invoke);
    CHECK_ERROR(x[2].strides[0] = -2, "sf: strides are [-2, 1], want [1, >= 0] or [>= 0, 1]");
    CHECK_ERROR(x[2].dtype = tgl_dtype_to_dlpack(TGL_I32), "sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
