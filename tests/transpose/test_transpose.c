/* SPDX-License-Identifier: MIT
 * tgl_transpose and tgl_batched_transpose, on every device of the tests. Written from the specification:
 * out[b][j][i] is x[b][i][j], bit for bit, for any shape, strides, alignment and element size. */
#include "tegula/transpose.h"

#include <pthread.h>

#include "errors.h"
#include "ops.h"

/* ---- the table of cases ---- */

/* doc: lists */
TEST(check_list)
{
    FOR_BACKENDS(b) check_lines("transpose", case_find("transpose")->lists[CASE_CHECK], b);
}
TEST(check_list_batched)
{
    FOR_BACKENDS(b) check_lines("batched_transpose", case_find("batched_transpose")->lists[CASE_CHECK], b);
}

TEST(slow_list)
{
    if (!test_slow()) SKIP("TEGULA_TEST_SLOW is not set");
    FOR_BACKENDS(b) {
        if (b->is_emulated) continue;
        check_lines("transpose", case_find("transpose")->lists[CASE_SLOW], b);
        check_lines("batched_transpose", case_find("batched_transpose")->lists[CASE_SLOW], b);
    }
}
/* end */

TEST(middle_sizes) /* too large for the emulated device, too important for the slow set alone */
{
    FOR_BACKENDS(b) {
        if (b->is_emulated && !test_slow()) continue;
        check_lines(
            "transpose",
            (const char *const[]){
                "num_rows=127,1023 num_cols=129,4097 dtype=e4m3,bf16,f32,i64,c128",
                "num_rows=1023 num_cols=515 dtype=e4m3,bf16,f32,i64,c128 layout=gap,transposed,steps,reversed offset=0,1",
                "num_rows=576 num_cols=7168 dtype=e4m3,bf16,f32 layout=half",
                "num_rows=1 num_cols=100003 dtype=e4m3,f32", "num_rows=100003 num_cols=1 dtype=e4m3,f32", NULL },
            b);
        check_lines("batched_transpose",
                    (const char *const[]){
                        "num_batches=70000 num_rows=3 num_cols=5 dtype=e4m3,bf16,f32,i64,c128",
                        "num_batches=66000 num_rows=2 num_cols=1 dtype=bf16 layout=gap",
                        "num_batches=8 num_rows=127 num_cols=576 dtype=e4m3,bf16 layout=packed,interleaved,reversed",
                        NULL },
                    b);
    }
}

/* ---- tensors made by hand ---- */

/* Transposes a matrix; `dtype` is what both tensors say they have, of the width of `place_as`. */
static void transpose_as(const backend *b, tgl_dtype place_as, DLDataType dtype, int64_t rows, int64_t cols,
                         int64_t row_stride, const void *from, void *to)
{
    tensor x, out;
    place_strided(b, &x, place_as, 2, SHAPE(rows, cols), SHAPE(row_stride, 1), from)->dtype = dtype;
    place(b, &out, place_as, 2, SHAPE(cols, rows), NULL)->dtype = dtype;
    CHECK_OK(tgl_transpose(&x.t, &out.t, b->stream));
    fetch(b, &out, to);
    discard(b, &x);
}
static void transpose_on(const backend *b, tgl_dtype dtype, int64_t rows, int64_t cols, const void *from, void *to)
{
    transpose_as(b, dtype, tgl_dtype_to_dlpack(dtype), rows, cols, cols, from, to);
}

TEST(worked_example) /* of the specification: row stride 4, the fourth column is not ours */
{
    FOR_BACKENDS(b) {
        const int32_t x[] = { 1, 2, 3, -7, 4, 5, 6 }, want[] = { 1, 4, 2, 5, 3, 6 };
        int32_t seen[6];
        transpose_as(b, TGL_I32, tgl_dtype_to_dlpack(TGL_I32), 2, 3, 4, x, seen);
        CHECK(!memcmp(seen, want, sizeof want));
    }
}

TEST(several_lanes_are_one_element) /* a dtype without a name of ours is copied by its width */
{
    FOR_BACKENDS(b) {
        const uint32_t x[] = { 1, 2, 3, 4, 5, 6 }, want[] = { 1, 4, 2, 5, 3, 6 };
        uint32_t seen[6];
        transpose_as(b, TGL_F32, (DLDataType){ TGL_DL_FLOAT, 16, 2 }, 2, 3, 3, x, seen);
        CHECK(!memcmp(seen, want, sizeof want));
    }
}

TEST(null_strides_are_packed)
{
    int16_t x[6] = { 1, 2, 3, 4, 5, 6 }, out[6] = { 0 }, want[6] = { 1, 4, 2, 5, 3, 6 };
    tensor tx, to;
    make(&tx, x, cpu, TGL_I16, 2, SHAPE(2, 3));
    make(&to, out, cpu, TGL_I16, 2, SHAPE(3, 2));
    tx.t.strides = to.t.strides = NULL;
    CHECK_OK(tgl_transpose(&tx.t, &to.t, NULL));
    CHECK(!memcmp(out, want, sizeof want));
}

/* All codes of 8 and 16 bits; wider: NaN with payloads, quiet and signalling, -0, subnormals. */
TEST(every_bit_survives)
{
    FOR_BACKENDS(b) {
        static uint16_t x[65536], y[65536];
        for (int i = 0; i < 65536; i++) x[i] = (uint16_t)i;
        for (int k = 0; k < 2; k++) {
            transpose_on(b, k ? TGL_F16 : TGL_BF16, 256, 256, x, y);
            for (int i = 0; i < 65536; i++) CHECK_INT(y[i % 256 * 256 + i / 256], i);
        }
        uint8_t e[256], f[256];
        for (int i = 0; i < 256; i++) e[i] = (uint8_t)i;
        const tgl_dtype bytes[] = { TGL_E4M3, TGL_E5M2, TGL_UE8M0, TGL_E2M1X2, TGL_BOOL, TGL_I8, TGL_U8 };
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
            transpose_on(b, bytes[k], 8, 32, e, f);
            for (int i = 0; i < 256; i++) CHECK_INT(f[i % 32 * 8 + i / 32], i);
        }
        const uint32_t bits[] = { 0x7fc00000, 0x7fc12345, 0xffc12345, 0x7f800001, 0xff800001, 0x7fbfffff,
                                  0x80000000, 0x00000001, 0x807fffff, 0x7f800000, 0xff800000, 0xffffffff };
        uint32_t seen[12] = { 0 };
        transpose_on(b, TGL_F32, 3, 4, bits, seen);
        for (int i = 0; i < 12; i++) CHECK_INT(seen[i % 4 * 3 + i / 4], bits[i]);
        const uint64_t wide[] = { 0x7ff0000000000001u, 0xfff8000000abcdefu, 0x8000000000000000u,
                                  0x7ff0000000000000u, 0x0000000000000001u, 0xffffffffffffffffu };
        uint64_t wide_seen[6] = { 0 };
        transpose_on(b, TGL_F64, 2, 3, wide, wide_seen);
        for (int i = 0; i < 6; i++) CHECK(wide_seen[i % 3 * 2 + i / 3] == wide[i]);
    }
}

TEST(twice_is_the_identity)
{
    test_random r = test_seed("twice_is_the_identity");
    static unsigned char x[37 * 101 * 16], once[sizeof x], twice[sizeof x];
    const tgl_dtype dtypes[] = { TGL_E4M3, TGL_BF16, TGL_F32, TGL_I64, TGL_C128 };
    FOR_BACKENDS(b)
        for (int k = 0; k < 5; k++) {
            const size_t bytes = 37 * 101 * ((size_t)1 << k);
            for (size_t i = 0; i < bytes; i++) x[i] = (unsigned char)test_bits(&r);
            transpose_on(b, dtypes[k], 37, 101, x, once);
            transpose_on(b, dtypes[k], 101, 37, once, twice);
            CHECK(memcmp(x, once, bytes) != 0);
            CHECK(!memcmp(x, twice, bytes));
        }
}

TEST(pinned_host_memory_is_cpu)
{
    uint8_t x[6] = { 1, 2, 3, 4, 5, 6 }, out[6] = { 0 };
    tensor tx, to;
    make(&tx, x, (DLDevice){ (DLDeviceType)TGL_DL_CUDA_HOST, 0 }, TGL_U8, 2, SHAPE(2, 3));
    CHECK_OK(tgl_transpose(&tx.t, make(&to, out, cpu, TGL_U8, 2, SHAPE(3, 2)), NULL));
    CHECK(out[0] == 1 && out[1] == 4 && out[5] == 6);
}

/* ---- nothing to do ---- */

TEST(empty) /* no data, no driver, no kernel: on any device, with sizes that would overflow if multiplied */
{
    const int64_t sizes[] = { 0, 1, 5, (int64_t)1 << 40, INT64_MAX };
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 }, { (DLDeviceType)TGL_DL_CUDA_MANAGED, 0 } };
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 125; i++) {
            const int64_t b = sizes[i / 25], m = sizes[i / 5 % 5], n = sizes[i % 5];
            const DLDevice on = devices[d];
            tensor x = { .shape = { b, m, n } }, out = { .shape = { b, n, m } };
            x.t = (DLTensor){ NULL, on, 3, { TGL_DL_BFLOAT, 16, 1 }, x.shape, NULL, 0 };
            out.t = (DLTensor){ NULL, on, 3, { TGL_DL_BFLOAT, 16, 1 }, out.shape, NULL, 0 };
            if (b == 0 || m == 0 || n == 0) CHECK_OK(tgl_batched_transpose(&x.t, &out.t, NULL));
            x.t.ndim = out.t.ndim = 2;
            x.t.shape++, out.t.shape++;
            if (m == 0 || n == 0) CHECK_OK(tgl_transpose(&x.t, &out.t, NULL));
        }
}

TEST(empty_is_checked_too)
{
    tensor x, out;
    make(&x, NULL, cpu, TGL_BF16, 2, SHAPE(0, 5));
    CHECK_FAILS(tgl_transpose(&x.t, make(&out, NULL, cpu, TGL_BF16, 2, SHAPE(5, 1)), NULL), TGL_ERR_ARGUMENT, NULL);
    CHECK_FAILS(tgl_transpose(&x.t, make(&out, NULL, cpu, TGL_F16, 2, SHAPE(5, 0)), NULL), TGL_ERR_ARGUMENT,
                "out: dtype is f16, want bf16 as x");
}

/* ---- errors ---- */

extern tgl_signature tgl_transpose_signature, tgl_batched_transpose_signature;
static tgl_status call_transpose(DLTensor *const *t, const void *params) { return tgl_transpose(t[0], t[1], NULL); }
static tgl_status call_batched_transpose(DLTensor *const *t, const void *params)
{
    return tgl_batched_transpose(t[0], t[1], NULL);
}

#define GOOD_CALL &tgl_transpose_signature, "num_rows=3 num_cols=5 x=bf16", call_transpose
TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].ndim = 3, "x: rank is 3, want 2");
    CHECK_ERROR(x[1].dtype.code = TGL_DL_FLOAT, "out: dtype is f16, want bf16 as x");
    CHECK_ERROR(x[0].dtype = ((DLDataType){ TGL_DL_E2M1FN, 4, 1 }),
                "x: dtype is code 17 with 4 bits and 1 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    CHECK_ERROR(x[0].dtype = ((DLDataType){ TGL_DL_FLOAT, 16, 3 }),
                "x: dtype is code 2 with 16 bits and 3 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    CHECK_ERROR(x[0].dtype = ((DLDataType){ TGL_DL_FLOAT, 255, 65535 }),
                "x: dtype is code 2 with 255 bits and 65535 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    CHECK_ERROR(x[0].dtype = x[1].dtype = ((DLDataType){ TGL_DL_COMPLEX, 128, 1 });
                x[0].byte_offset = 4, "x: address is 4 bytes past a multiple of 8, want a multiple of 8");
    CHECK_ERROR(x[1].shape[0] = 3; x[1].shape[1] = 5; x[1].strides[0] = 5, "out: shape is [3, 5], want [5, 3]");
    CHECK_ERROR(x[0].shape[0] = 0; x[0].shape[1] = -1, "x: shape is [0, -1], want sizes >= 0");
    CHECK_ERROR(x[0].shape[0] = INT64_MIN, "x: shape is [-9223372036854775808, 5], want sizes >= 0");
    CHECK_ERROR(x[1].strides[0] = 1; x[1].strides[1] = 5, "out: strides are [1, 5], want [3, 1]");
    CHECK_ERROR(x[1].strides[0] = 0, "out: strides are [0, 1], want [3, 1]");
    /* sizes and offsets that a product or a negation would take past 63 bits */
    CHECK_ERROR(x[0].shape[0] = (int64_t)1 << 61;
                x[0].shape[1] = 2, "x: shape is [2305843009213693952, 2], want fewer than 2^56 bytes");
    CHECK_ERROR(x[0].shape[0] = INT64_MAX;
                x[0].shape[1] = INT64_MAX,
                "x: shape is [9223372036854775807, 9223372036854775807], want fewer than 2^56 bytes");
    CHECK_ERROR(x[0].shape[0] = 2; x[0].strides[0] = -((int64_t)1 << 61),
                                   "x: strides are [-2305843009213693952, 1], want offsets below 2^56 bytes");
    CHECK_ERROR(x[0].strides[1] = INT64_MIN, "x: strides are [5, -9223372036854775808], want offsets below 2^56 bytes");
    CHECK_ERROR(x[1].data = (char *)x[0].data + 28, "out: memory is shared with x, want no overlap");
    CHECK_ERROR(x[1].data = (char *)x[0].data - 28, "out: memory is shared with x, want no overlap");
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }

#undef GOOD_CALL
#define GOOD_CALL &tgl_batched_transpose_signature, "num_batches=2 num_rows=3 num_cols=5 x=bf16", call_batched_transpose
TEST(errors_batched)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[1].shape[1] = 3; x[1].shape[2] = 5; x[1].strides[1] = 5, "out: shape is [2, 3, 5], want [2, 5, 3]");
    CHECK_ERROR(x[0].shape[0] = (int64_t)1 << 60,
                "x: shape is [1152921504606846976, 3, 5], want fewer than 2^56 bytes");
    CHECK_ERROR(x[0].strides[0] = 0;
                x[1].data = (char *)x[0].data + 28, "out: memory is shared with x, want no overlap");
    CHECK_ERROR(x[0].strides[0] = -15;
                x[1].data = (char *)x[0].data - 30, "out: memory is shared with x, want no overlap");
}

TEST(neighbours_are_no_overlap)
{
    static uint16_t buffer[64];
    tensor x, out;
    make(&x, buffer, cpu, TGL_BF16, 2, SHAPE(3, 5));
    CHECK_OK(tgl_transpose(&x.t, make(&out, buffer + 15, cpu, TGL_BF16, 2, SHAPE(5, 3)), NULL));
    make(&x, buffer + 15, cpu, TGL_BF16, 2, SHAPE(3, 5));
    CHECK_OK(tgl_transpose(&x.t, make(&out, buffer, cpu, TGL_BF16, 2, SHAPE(5, 3)), NULL));
    /* a dimension of size 1 may have any stride, in out too */
    make(&x, buffer, cpu, TGL_BF16, 2, SHAPE(1, 5));
    make(&out, buffer + 15, cpu, TGL_BF16, 2, SHAPE(5, 1));
    x.strides[0] = 999, out.strides[1] = -7;
    CHECK_OK(tgl_transpose(&x.t, &out.t, NULL));
}

/* ---- streams, graphs, threads ---- */

static tgl_status open_one(const backend *b, const char *op_name, const char *line, case_instance **k)
{
    const case_op *op = case_find(op_name);
    case_params params;
    const tgl_status status = case_at(op, (const char *const[]){ line, NULL }, 0, &params);
    return status == TGL_OK ? case_open(op, &params, b, k) : status;
}

static void check_verified(case_instance *k, int round, const char *what)
{
    case_report report;
    if (CHECK_OK(case_verify(k, round, &report, NULL)))
        CHECK_THAT(report.result == CASE_PASSED, "%s: %s: %s", k->on->name, what, report.text);
}

TEST(streams) /* case_check uses a stream of its own; here the default one, and two at once */
{
    FOR_BACKENDS(b) {
        case_instance *k[3] = { NULL };
        tgl_stream streams[3] = { NULL };
        CHECK_OK(backend_stream_create(b, &streams[1]));
        CHECK_OK(backend_stream_create(b, &streams[2]));
        for (int i = 0; i < 3; i++) {
            REQUIRE(CHECK_OK(open_one(b, "transpose", "num_rows=130 num_cols=67 dtype=bf16", &k[i])));
            k[i]->arguments.stream = streams[i];
            CHECK_OK(case_poison(k[i], 1));
        }
        for (int i = 0; i < 3; i++) CHECK_OK(case_call(k[i]));
        for (int i = 0; i < 3; i++) check_verified(k[i], 1, "streams"), case_close(k[i]);
        backend_stream_destroy(b, streams[1]);
        backend_stream_destroy(b, streams[2]);
    }
}

static tgl_status call_it(void *k) { return case_call(k); }

TEST(graph) /* captured once the kernel is loaded, replayed onto fresh poison */
{
    FOR_BACKENDS(b) {
        if (!backend_has_graphs(b)) {
            test_skip("%s has no graphs", b->name);
            continue;
        }
        case_instance *k;
        REQUIRE(CHECK_OK(open_one(b, "batched_transpose", "num_batches=3 num_rows=65 num_cols=70 dtype=f32", &k)));
        CHECK_OK(case_poison(k, 0));
        CHECK_OK(case_call(k));
        check_verified(k, 0, "before the capture");
        CHECK_OK(case_poison(k, 1));
        CHECK_OK(backend_replay(b, call_it, k, 3));
        check_verified(k, 1, "replayed");
        case_close(k);
    }
}

typedef struct {
    const backend *on;
    int number;
    int wrong;
} worker;

static void *transposes(void *context) /* harness checks are not for threads: count here, check after */
{
    worker *w = context;
    for (int i = 0; i < 8; i++) {
        case_instance *k = NULL;
        case_report report;
        char line[128];
        snprintf(line, sizeof line, "num_rows=%d num_cols=%d dtype=%s", 40 + 17 * w->number, 33 + i,
                 i % 2 ? "bf16" : "e4m3");
        const bool ok = open_one(w->on, "transpose", line, &k) == TGL_OK && case_poison(k, i % 2) == TGL_OK &&
                        case_call(k) == TGL_OK && case_verify(k, i % 2, &report, NULL) == TGL_OK &&
                        report.result == CASE_PASSED;
        w->wrong += !ok;
        case_close(k);
    }
    return NULL;
}

TEST(calls_from_several_threads)
{
    enum { WORKERS = 4 };
    FOR_BACKENDS(b) {
        pthread_t threads[WORKERS];
        worker workers[WORKERS];
        for (int i = 0; i < WORKERS; i++) {
            workers[i] = (worker){ b, i, 0 };
            REQUIRE(pthread_create(&threads[i], NULL, transposes, &workers[i]) == 0);
        }
        for (int i = 0; i < WORKERS; i++) {
            pthread_join(threads[i], NULL);
            CHECK_THAT(workers[i].wrong == 0, "%s: %d of 8 calls of thread %d went wrong", b->name, workers[i].wrong,
                       i);
        }
    }
}

TEST(any_number_of_cpu_threads)
{
    if (strcmp(backend_of_tests(0)->name, "cpu")) SKIP("this is the run on a device");
    backend b;
    CHECK_OK(backend_open("cpu", &b));
    for (int n = 1; n <= 5; n++) {
        CHECK_OK(tgl_set_num_threads(n));
        check_lines("transpose",
                    (const char *const[]){
                        "num_rows=509 num_cols=1021 dtype=e4m3,bf16,f32 layout=packed,gap,transposed", NULL },
                    &b);
        check_lines("batched_transpose",
                    (const char *const[]){
                        "num_batches=1,7,301 num_rows=61 num_cols=127 dtype=e4m3,bf16 layout=packed,reversed", NULL },
                    &b);
    }
    CHECK_OK(tgl_set_num_threads(0));
}

TEST(prepared_calls_touch_nothing)
{
    uint16_t from[6] = { 1, 2, 3, 4, 5, 6 }, to[6] = { 7, 7, 7, 7, 7, 7 }, want[6] = { 1, 4, 2, 5, 3, 6 };
    tensor x, out;
    make(&x, from, cpu, TGL_BF16, 2, SHAPE(2, 3));
    make(&out, to, cpu, TGL_BF16, 2, SHAPE(3, 2));
    CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
    CHECK_OK(tgl_transpose(&x.t, &out.t, NULL));
    for (int i = 0; i < 6; i++) CHECK_INT(to[i], 7);
    x.t.data = out.t.data = NULL; /* they need no data */
    CHECK_OK(tgl_transpose(&x.t, &out.t, NULL));
    out.shape[0] = 4; /* but are checked */
    CHECK_FAILS(tgl_transpose(&x.t, &out.t, NULL), TGL_ERR_ARGUMENT, "out: shape is [4, 2], want [3, 2]");
    CHECK_OK(tgl_prepare_end());
    x.t.data = from, out.t.data = to, out.shape[0] = 3;
    CHECK_OK(tgl_transpose(&x.t, &out.t, NULL));
    CHECK(!memcmp(to, want, sizeof want));
}
