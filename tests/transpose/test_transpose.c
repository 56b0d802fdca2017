/* SPDX-License-Identifier: MIT
 * tgl_transpose and tgl_batched_transpose, on every device of the tests. Written from the specification: out[b][j][i] is
 * x[b][i][j], bit for bit, for any shape, stride, alignment and element size. */
#include "tegula/transpose.h"

#include <pthread.h>
#include <stdlib.h>

#include "ops.h"

/* ---- the table of cases ---- */

/* doc: lists */
TEST(check_list) { FOR_BACKENDS(b) check_lines("transpose", case_find("transpose")->lists[CASE_CHECK], b); }
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

TEST(middle_sizes)      /* too large for the emulated device, too dear to leave to the slow set */
{
    FOR_BACKENDS(b) {
        if (b->is_emulated && !test_slow()) continue;
        check_lines("transpose", (const char *const[]){
            "num_rows=127,1023 num_cols=129,4097 dtype=e4m3,bf16,f32,i64,c128",
            "num_rows=1023 num_cols=515 dtype=e4m3,bf16,f32,i64,c128 layout=gap,transposed,steps,reversed offset=0,1",
            "num_rows=576 num_cols=7168 dtype=e4m3,bf16,f32 layout=half",
            "num_rows=1 num_cols=100003 dtype=e4m3,f32", "num_rows=100003 num_cols=1 dtype=e4m3,f32", NULL }, b);
        check_lines("batched_transpose", (const char *const[]){
            "num_batches=70000 num_rows=3 num_cols=5 dtype=e4m3,bf16,f32,i64,c128",
            "num_batches=66000 num_rows=2 num_cols=1 dtype=bf16 layout=gap",
            "num_batches=8 num_rows=127 num_cols=576 dtype=e4m3,bf16 layout=packed,interleaved,reversed", NULL }, b);
    }
}

/* ---- tensors made by hand ---- */

static tgl_status transpose_on(const backend *b, tgl_dtype dtype, int64_t rows, int64_t cols,
                               const void *from, void *to, size_t bytes)
{
    void *x = NULL, *out = NULL;
    tensor tx, to_t;
    tgl_status status = backend_alloc(b, bytes, &x);
    if (status == TGL_OK) status = backend_alloc(b, bytes, &out);
    if (status == TGL_OK) status = backend_upload(b, x, from, bytes);
    if (status == TGL_OK)
        status = tgl_transpose(make(&tx, x, b->device, dtype, 2, SHAPE(rows, cols)),
                               make(&to_t, out, b->device, dtype, 2, SHAPE(cols, rows)), b->stream);
    if (status == TGL_OK) status = backend_download(b, to, out, bytes);
    backend_free(b, x);
    backend_free(b, out);
    return status;
}

TEST(worked_example)        /* of the specification: row stride 4, the fourth column is not ours */
{
    FOR_BACKENDS(b) {
        const int32_t x[] = { 1, 2, 3, -7, 4, 5, 6, -7 }, want[] = { 1, 4, 2, 5, 3, 6 };
        int32_t seen[6] = { 0 };
        void *on_device, *out;
        tensor tx, to;
        REQUIRE(CHECK_OK(backend_alloc(b, sizeof x, &on_device)) && CHECK_OK(backend_alloc(b, sizeof seen, &out)));
        CHECK_OK(backend_upload(b, on_device, x, sizeof x));
        make(&tx, on_device, b->device, TGL_I32, 2, SHAPE(2, 3));
        tx.strides[0] = 4;
        CHECK_OK(tgl_transpose(&tx.t, make(&to, out, b->device, TGL_I32, 2, SHAPE(3, 2)), b->stream));
        CHECK_OK(backend_download(b, seen, out, sizeof seen));
        CHECK(!memcmp(seen, want, sizeof want));
        backend_free(b, on_device);
        backend_free(b, out);
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

/* All codes of 8 and 16 bits; of wider ones NaN with payloads, quiet and signalling, -0, subnormals. */
TEST(every_bit_survives)
{
    FOR_BACKENDS(b) {
        static uint16_t x[65536], y[65536];
        for (int i = 0; i < 65536; i++) x[i] = (uint16_t)i;
        for (int k = 0; k < 2; k++) {
            CHECK_OK(transpose_on(b, k ? TGL_F16 : TGL_BF16, 256, 256, x, y, sizeof x));
            for (int i = 0; i < 65536; i++) CHECK_INT(y[i % 256 * 256 + i / 256], i);
        }
        uint8_t e[256], f[256];
        for (int i = 0; i < 256; i++) e[i] = (uint8_t)i;
        const tgl_dtype bytes[] = { TGL_E4M3, TGL_E5M2, TGL_UE8M0, TGL_E2M1X2, TGL_BOOL, TGL_I8, TGL_U8 };
        for (size_t k = 0; k < sizeof bytes / sizeof *bytes; k++) {
            memset(f, 0, sizeof f);
            CHECK_OK(transpose_on(b, bytes[k], 8, 32, e, f, sizeof e));
            for (int i = 0; i < 256; i++) CHECK_INT(f[i % 32 * 8 + i / 32], i);
        }
        const uint32_t bits[] = { 0x7fc00000, 0x7fc12345, 0xffc12345, 0x7f800001, 0xff800001, 0x7fbfffff,
                                  0x80000000, 0x00000001, 0x807fffff, 0x7f800000, 0xff800000, 0xffffffff };
        uint32_t seen[12] = { 0 };
        CHECK_OK(transpose_on(b, TGL_F32, 3, 4, bits, seen, sizeof bits));
        for (int i = 0; i < 12; i++) CHECK_INT(seen[i % 4 * 3 + i / 4], bits[i]);
        const uint64_t wide[] = { 0x7ff0000000000001u, 0xfff8000000abcdefu, 0x8000000000000000u,
                                  0x7ff0000000000000u, 0x0000000000000001u, 0xffffffffffffffffu };
        uint64_t wide_seen[6] = { 0 };
        CHECK_OK(transpose_on(b, TGL_F64, 2, 3, wide, wide_seen, sizeof wide));
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
            CHECK_OK(transpose_on(b, dtypes[k], 37, 101, x, once, bytes));
            CHECK_OK(transpose_on(b, dtypes[k], 101, 37, once, twice, bytes));
            CHECK(memcmp(x, once, bytes) != 0);
            CHECK(!memcmp(x, twice, bytes));
        }
}

TEST(several_lanes_are_one_element)     /* what no dtype of ours names is copied by its width */
{
    FOR_BACKENDS(b) {
        const uint32_t x[] = { 1, 2, 3, 4, 5, 6 }, want[] = { 1, 4, 2, 5, 3, 6 };
        uint32_t seen[6] = { 0 };
        void *px, *pout;
        tensor tx, to;
        REQUIRE(CHECK_OK(backend_alloc(b, sizeof x, &px)) && CHECK_OK(backend_alloc(b, sizeof x, &pout)));
        CHECK_OK(backend_upload(b, px, x, sizeof x));
        make(&tx, px, b->device, TGL_F32, 2, SHAPE(2, 3))->dtype = (DLDataType){ TGL_DL_FLOAT, 16, 2 };
        make(&to, pout, b->device, TGL_F32, 2, SHAPE(3, 2))->dtype = (DLDataType){ TGL_DL_FLOAT, 16, 2 };
        CHECK_OK(tgl_transpose(&tx.t, &to.t, b->stream));
        CHECK_OK(backend_download(b, seen, pout, sizeof seen));
        CHECK(!memcmp(seen, want, sizeof want));
        backend_free(b, px);
        backend_free(b, pout);
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

TEST(empty)     /* no data, no driver, no kernel: on any device, with sizes that would overflow if multiplied */
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

/* ---- errors: the whole message, and nothing written ---- */

typedef struct { tensor x, out; const DLTensor *px; DLTensor *pout; } call;

/* A valid call on x [3, 5] and out [5, 3] in bf16 (batched: [2, 3, 5] and [2, 5, 3]). */
static bool batched;
static void valid(call *c, DLDevice on)
{
    const int64_t *shape = SHAPE(2, 3, 5), *out_shape = SHAPE(2, 5, 3);
    make(&c->x, memory + 256, on, TGL_BF16, 2 + batched, shape + !batched);
    make(&c->out, memory + MEMORY_BYTES / 2, on, TGL_BF16, 2 + batched, out_shape + !batched);
    c->px = &c->x.t;
    c->pout = &c->out.t;
}

static tgl_status invoke(const call *c)
{
    return batched ? tgl_batched_transpose(c->px, c->pout, NULL) : tgl_transpose(c->px, c->pout, NULL);
}

static void errors_of_both(void)
{
    /* NULL */
    ERROR(c.px = NULL, "x: is NULL, want a tensor");
    ERROR(c.pout = NULL, "out: is NULL, want a tensor");
    ERROR(c.x.t.shape = NULL, batched ? "x: shape is NULL, want 3 sizes" : "x: shape is NULL, want 2 sizes");
    ERROR(c.x.t.data = NULL, batched ? "x: data is NULL, want 60 bytes" : "x: data is NULL, want 30 bytes");
    ERROR(c.out.t.data = NULL, batched ? "out: data is NULL, want 60 bytes" : "out: data is NULL, want 30 bytes");
    /* dtype */
    ERROR(c.out.t.dtype.code = TGL_DL_FLOAT, "out: dtype is f16, want bf16 as x");
    ERROR(c.x.t.dtype = ((DLDataType){ TGL_DL_INT, 16, 1 }), "out: dtype is bf16, want i16 as x");
    ERROR(c.x.t.dtype = ((DLDataType){ TGL_DL_E2M1FN, 4, 1 }),
          "x: dtype is code 17 with 4 bits and 1 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    ERROR(c.x.t.dtype = ((DLDataType){ TGL_DL_FLOAT, 16, 3 }),
          "x: dtype is code 2 with 16 bits and 3 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    ERROR(c.x.t.dtype = ((DLDataType){ TGL_DL_BFLOAT, 16, 0 }),
          "x: dtype is code 4 with 16 bits and 0 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    ERROR(c.x.t.dtype = ((DLDataType){ TGL_DL_FLOAT, 255, 65535 }),
          "x: dtype is code 2 with 255 bits and 65535 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    /* device */
    ERROR(c.x.t.device.device_type = (DLDeviceType)7, "x: device is type 7, want cpu or cuda:0..63");
    ERROR(c.x.t.device.device_type = (DLDeviceType)0, "x: device is type 0, want cpu or cuda:0..63");
    ERROR(c.x.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, -1 }), "x: device is cuda:-1, want cpu or cuda:0..63");
    ERROR(c.x.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 64 }), "x: device is cuda:64, want cpu or cuda:0..63");
    ERROR(c.out.t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 1 }),
          on_cuda ? "out: device is cuda:1, want cuda:0" : "out: device is cuda:1, want cpu");
    /* alignment */
    ERROR(c.x.t.byte_offset = 1, "x: data is 1 bytes past a multiple of 2, want 0");
    ERROR(c.out.t.data = (char *)c.out.t.data + 1, "out: data is 1 bytes past a multiple of 2, want 0");
    ERROR(c.x.t.dtype = c.out.t.dtype = ((DLDataType){ TGL_DL_COMPLEX, 128, 1 }); c.x.t.data = (char *)c.x.t.data + 4,
          "x: data is 4 bytes past a multiple of 8, want 0");
    /* overlap */
    /* doc: errors */
    ERROR(c.out.t.data = c.x.t.data, "out: memory is shared with x, want no overlap");
    ERROR(c.out.t.data = (char *)c.x.t.data + 28, "out: memory is shared with x, want no overlap");
    ERROR(c.out.t.data = (char *)c.x.t.data - 28, "out: memory is shared with x, want no overlap");
    /* end */
}

TEST(errors)
{
    batched = false;
    errors_of_both();
    ERROR(c.x.t.ndim = 3, "x: rank is 3, want 2");
    ERROR(c.x.t.ndim = 0, "x: rank is 0, want 2");
    ERROR(c.x.t.ndim = -1, "x: rank is -1, want 2");
    ERROR(c.out.t.ndim = 1, "out: rank is 1, want 2");
    ERROR(c.out.shape[0] = 3, "out: shape is [3, 3], want [5, 3]");
    ERROR(c.out.shape[0] = 3; c.out.shape[1] = 5; c.out.strides[0] = 5, "out: shape is [3, 5], want [5, 3]");
    ERROR(c.out.shape[1] = 0, "out: shape is [5, 0], want [5, 3]");
    ERROR(c.x.shape[0] = -1, "x: shape is [-1, 5], want sizes >= 0");
    ERROR(c.x.shape[0] = 0; c.x.shape[1] = -1, "x: shape is [0, -1], want sizes >= 0");
    ERROR(c.x.shape[0] = INT64_MIN, "x: shape is [-9223372036854775808, 5], want sizes >= 0");
    ERROR(c.x.shape[0] = (int64_t)1 << 61; c.x.shape[1] = 2,
          "x: shape is [2305843009213693952, 2], want fewer than 2^56 bytes");
    ERROR(c.x.shape[0] = INT64_MAX; c.x.shape[1] = INT64_MAX,
          "x: shape is [9223372036854775807, 9223372036854775807], want fewer than 2^56 bytes");
    ERROR(c.x.strides[0] = (int64_t)1 << 62,
          "x: strides are [4611686018427387904, 1], want offsets below 2^56 bytes");
    /* offsets that a product or a negation would take past 63 bits */
    ERROR(c.x.shape[0] = 2; c.x.strides[0] = -((int64_t)1 << 61),
          "x: strides are [-2305843009213693952, 1], want offsets below 2^56 bytes");
    ERROR(c.x.strides[1] = INT64_MIN, "x: strides are [5, -9223372036854775808], want offsets below 2^56 bytes");
    ERROR(c.out.strides[0] = 4, "out: strides are [4, 1], want [3, 1]");
    ERROR(c.out.strides[0] = 1; c.out.strides[1] = 5, "out: strides are [1, 5], want [3, 1]");
    ERROR(c.out.strides[0] = 0, "out: strides are [0, 1], want [3, 1]");
    ERROR(c.out.strides[1] = -1, "out: strides are [3, -1], want [3, 1]");
}

TEST(errors_batched)
{
    batched = true;
    errors_of_both();
    ERROR(c.x.t.ndim = 2, "x: rank is 2, want 3");
    ERROR(c.out.t.ndim = 4, "out: rank is 4, want 3");
    ERROR(c.out.shape[0] = 1, "out: shape is [1, 5, 3], want [2, 5, 3]");
    ERROR(c.out.shape[1] = 3; c.out.shape[2] = 5; c.out.strides[1] = 5, "out: shape is [2, 3, 5], want [2, 5, 3]");
    ERROR(c.x.shape[2] = -5, "x: shape is [2, 3, -5], want sizes >= 0");
    ERROR(c.x.shape[0] = (int64_t)1 << 60, "x: shape is [1152921504606846976, 3, 5], want fewer than 2^56 bytes");
    ERROR(c.x.strides[0] = INT64_MAX, "x: strides are [9223372036854775807, 5, 1], want offsets below 2^56 bytes");
    ERROR(c.out.strides[0] = 16, "out: strides are [16, 3, 1], want [15, 3, 1]");
    ERROR(c.x.strides[0] = 0; c.out.t.data = (char *)c.x.t.data + 28, "out: memory is shared with x, want no overlap");
    ERROR(c.x.strides[0] = -15; c.out.t.data = (char *)c.x.t.data - 30,
          "out: memory is shared with x, want no overlap");
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

TEST_NO_DRIVER()

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

TEST(streams)       /* case_check uses a stream of its own; here the default one, and two at once */
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

TEST(graph)         /* captured once the kernel is loaded, replayed onto fresh poison */
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

typedef struct { const backend *on; int number; int wrong; } worker;

static void *transposes(void *context)      /* harness checks are not for threads: count here, check after */
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
            CHECK_THAT(workers[i].wrong == 0, "%s: %d of 8 calls of thread %d went wrong", b->name,
                       workers[i].wrong, i);
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
        check_lines("transpose", (const char *const[]){
            "num_rows=509 num_cols=1021 dtype=e4m3,bf16,f32 layout=packed,gap,transposed", NULL }, &b);
        check_lines("batched_transpose", (const char *const[]){
            "num_batches=1,7,301 num_rows=61 num_cols=127 dtype=e4m3,bf16 layout=packed,reversed", NULL }, &b);
    }
    CHECK_OK(tgl_set_num_threads(0));
}

TEST(prepared_calls_touch_nothing)
{
    call c;
    CHECK_OK(tgl_prepare_begin(0, "sm_90a"));
    batched = false;
    valid(&c, cpu);
    fill_memory();
    CHECK_OK(invoke(&c));
    for (int i = 0; i < MEMORY_BYTES; i++) REQUIRE(memory[i] == (unsigned char)(i * 7));
    c.x.t.data = c.out.t.data = NULL;                   /* and need no data */
    CHECK_OK(invoke(&c));
    c.out.shape[0] = 4;                                 /* but are checked */
    CHECK_FAILS(invoke(&c), TGL_ERR_ARGUMENT, "out: shape is [4, 3], want [5, 3]");
    CHECK_OK(tgl_prepare_end());
    valid(&c, cpu);
    CHECK_OK(invoke(&c));
    CHECK(memcmp(c.out.t.data, c.x.t.data, 2) == 0);    /* element [0, 0] */
    CHECK(memcmp((char *)c.out.t.data + 2, (char *)c.x.t.data + 10, 2) == 0);   /* [0, 1] of [1, 0] */
}
