/* SPDX-License-Identifier: MIT
 * tgl_engram_lookup, on every device of the tests. Written from the specification: rows of a table by index, zeros
 * where there is no such row, FP8 times its scale factor rounded to bf16. */
#include <math.h>

#include "errors.h"
#include "far.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_lookup")

static const tgl_engram_lookup_params plain = { 0 };

/* ---- examples ---- */

TEST(worked_example) /* codes and scale bytes to bf16 */
{
    /* doc: lookup */
    const struct {
        uint8_t code, e;
        uint16_t want;
    } element[] = {
        { 0x38, 127, 0x3F80 }, { 0x7E, 120, 0x4060 }, { 0xB9, 130, 0xC110 }, { 0x80, 127, 0x8000 },
        { 0x08, 6, 0x0040 },   { 0x01, 1, 0x0000 },   { 0x09, 0, 0x0001 },   { 0x0F, 0, 0x0002 },
        { 0x7E, 254, 0x7F80 }, { 0x7F, 127, 0x7FFF }, { 0x00, 255, 0x7FFF }, { 0x80, 255, 0x7FFF },
    };
    /* end */
    enum { COUNT = sizeof element / sizeof element[0], DIM = 32 };
    uint8_t codes[COUNT][DIM], factors[COUNT];
    uint16_t want[COUNT][DIM];
    int32_t rows[COUNT];
    for (int r = 0; r < COUNT; r++) {
        rows[r] = r;
        factors[r] = element[r].e;
        for (int i = 0; i < DIM; i++) codes[r][i] = element[r].code, want[r][i] = element[r].want;
    }
    FOR_BACKENDS(b) {
        tensor table, sf, indices, out;
        place(b, &table, TGL_E4M3, 2, SHAPE(COUNT, DIM), codes);
        place(b, &sf, TGL_UE8M0, 2, SHAPE(COUNT, 1), factors);
        place(b, &indices, TGL_I32, 2, SHAPE(COUNT, 1), rows);
        place(b, &out, TGL_BF16, 3, SHAPE(COUNT, 1, DIM), NULL);
        CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, &indices.t, &out.t, NULL, &plain, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &table), discard(b, &sf), discard(b, &indices);
    }
}

TEST(all_codes_and_factors) /* 256 x 256, against long double */
{
    static uint8_t codes[256][256], factors[256][8];
    static uint16_t want[256][256];
    for (int e = 0; e < 256; e++)
        for (int code = 0; code < 256; code++) {
            const int exponent = code >> 3 & 15, mantissa = code & 7;
            const double magnitude = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
            const bool is_nan = e == 255 || (code & 127) == 127;
            const double value = ldexp(code & 128 ? -magnitude : magnitude, e - 127);
            codes[e][code] = (uint8_t)code;
            factors[e][code / 32] = (uint8_t)e;
            case_encode(TGL_BF16, value, &want[e][code]);
            if (is_nan) want[e][code] = 0x7FFF;
        }
    FOR_BACKENDS(b) {
        tensor table, sf, out;
        place(b, &table, TGL_E4M3, 2, SHAPE(256, 256), codes);
        place(b, &sf, TGL_U8, 2, SHAPE(256, 8), factors);
        place(b, &out, TGL_BF16, 3, SHAPE(256, 1, 256), NULL);
        CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, NULL, &out.t, NULL, &plain, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &table), discard(b, &sf);
    }
}

TEST(foreign_rows_are_zeros) /* even if the table's one factor is negative, infinite or NaN */
{
    const float factors[] = { -1, INFINITY, NAN };
    const int64_t rows[] = { -1, INT64_MIN, 4, INT64_MAX, 9 };
    uint8_t codes[2][64];
    uint16_t zeros[5][64] = { { 0 } };
    memset(codes, 0x38, sizeof codes);
    FOR_BACKENDS(b)
        for (int f = 0; f < 3; f++) {
            tensor table, sf, indices, out;
            place(b, &table, TGL_E4M3, 2, SHAPE(2, 64), codes);
            place(b, &sf, TGL_F32, 1, SHAPE(1), &factors[f]);
            place(b, &indices, TGL_I64, 2, SHAPE(5, 1), rows);
            place(b, &out, TGL_BF16, 3, SHAPE(5, 1, 64), NULL);
            const tgl_engram_lookup_params shard = { .row_begin = 5 };
            CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, &indices.t, &out.t, NULL, &shard, b->stream));
            check_contents(b, &out, zeros, "out");
            discard(b, &table), discard(b, &sf), discard(b, &indices);
        }
}

/* Packed on the rank that owns a row, exchanged, unpacked: the bits of the direct lookup. */
TEST(packed_and_unpacked)
{
    enum { ROWS = 300, TOKENS = 40, COLUMNS = 6, N = TOKENS * COLUMNS, DIM = 256, BYTES = DIM + DIM / 32 };
    static uint8_t codes[ROWS * DIM], factors[ROWS * DIM / 32], packed[N * BYTES], other[N * BYTES];
    static uint16_t want[N][DIM];
    int32_t rows[N];
    for (int i = 0; i < ROWS * DIM; i++) codes[i] = (uint8_t)case_random(1, i);
    for (int i = 0; i < ROWS * DIM / 32; i++) factors[i] = (uint8_t)case_random(2, i);
    for (int i = 0; i < N; i++) rows[i] = (int32_t)(case_random_below(3, i, ROWS + 20)) - 10;
    FOR_BACKENDS(b) {
        tensor table, sf, indices, out;
        place(b, &table, TGL_E4M3, 2, SHAPE(ROWS, DIM), codes);
        place(b, &sf, TGL_U8, 2, SHAPE(ROWS, DIM / 32), factors);
        place(b, &indices, TGL_I32, 2, SHAPE(TOKENS, COLUMNS), rows);
        place(b, &out, TGL_BF16, 3, SHAPE(TOKENS, COLUMNS, DIM), NULL);
        CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, &indices.t, &out.t, NULL, &plain, b->stream));
        fetch(b, &out, want);
        const int64_t half = ROWS / 2; /* two ranks, whose rows are summed: one of them is zero */
        for (int rank = 0; rank < 2; rank++) {
            tensor part = table, part_sf = sf, bytes;
            part.t.shape = part.shape, part.t.strides = part.strides;
            part_sf.t.shape = part_sf.shape, part_sf.t.strides = part_sf.strides;
            part.shape[0] = part_sf.shape[0] = half;
            part.t.byte_offset = (uint64_t)(rank * half * DIM);
            part_sf.t.byte_offset = (uint64_t)(rank * half * DIM / 32);
            const tgl_engram_lookup_params shard = { .row_begin = rank * half };
            place(b, &bytes, TGL_U8, 3, SHAPE(TOKENS, COLUMNS, BYTES), NULL);
            CHECK_OK(tgl_engram_lookup(&part.t, &part_sf.t, &indices.t, &bytes.t, NULL, &shard, b->stream));
            fetch(b, &bytes, rank ? other : packed);
        }
        for (int i = 0; i < N * BYTES; i++) packed[i] |= other[i];
        tensor bytes, codes_view, sf_view, again;
        place(b, &bytes, TGL_U8, 2, SHAPE(N, BYTES), packed);
        make(&codes_view, bytes.t.data, b->device, TGL_E4M3, 2, SHAPE(N, DIM));
        make(&sf_view, bytes.t.data, b->device, TGL_U8, 2, SHAPE(N, DIM / 32));
        codes_view.strides[0] = sf_view.strides[0] = BYTES;
        sf_view.t.byte_offset = DIM;
        place(b, &again, TGL_BF16, 3, SHAPE(TOKENS, COLUMNS, DIM), NULL);
        CHECK_OK(tgl_engram_lookup(&codes_view.t, &sf_view.t, NULL, &again.t, NULL, &plain, b->stream));
        check_contents(b, &again, want, "unpacked");
        discard(b, &table), discard(b, &sf), discard(b, &indices), discard(b, &bytes);
    }
}

/* Rows 2^28 elements apart, of which only these pages exist: offsets of more than 2^32 bytes. */
enum { FAR_ROWS = 20, FAR_DIM = 32 };
static const int64_t far = (int64_t)1 << 28;

TEST(far_rows)
{
    const size_t bytes = (size_t)(FAR_ROWS * far);
    const int32_t rows[] = { 19, 8, 0, 7, 16 };
    uint16_t want[5][FAR_DIM];
    for (int i = 0; i < 5; i++) /* codes r + 1, times 2^r */
        for (int j = 0; j < FAR_DIM; j++)
            case_encode(TGL_BF16, ldexp(case_decode(TGL_E4M3, &(uint8_t){ (uint8_t)(rows[i] + 1) }), rows[i]),
                        &want[i][j]);
    FOR_BACKENDS(b) {
        const bool is_mapped = backend_is_cpu(b) || b->is_emulated;
        tensor table, sf, indices, out;
        void *memory_of[2]; /* of codes, of factors */
        for (int k = 0; k < 2; k++) {
            if (is_mapped)
                memory_of[k] =
                    mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            else if (backend_alloc(b, bytes, &memory_of[k]) != TGL_OK) SKIP("%s: %s", b->name, tgl_last_error());
            REQUIRE(memory_of[k] != MAP_FAILED);
            far_adopt(b, memory_of[k], bytes);
            for (int r = 0; r < FAR_ROWS; r++) {
                uint8_t line[FAR_DIM];
                memset(line, k ? 127 + r : r + 1, sizeof line);
                CHECK_OK(backend_upload(b, (char *)memory_of[k] + r * far, line, k ? 1 : FAR_DIM));
            }
        }
        make(&table, memory_of[0], b->device, TGL_E4M3, 2, SHAPE(FAR_ROWS, FAR_DIM));
        make(&sf, memory_of[1], b->device, TGL_U8, 2, SHAPE(FAR_ROWS, 1));
        table.strides[0] = sf.strides[0] = far;
        place(b, &indices, TGL_I32, 2, SHAPE(1, 5), rows);
        place(b, &out, TGL_BF16, 3, SHAPE(1, 5, FAR_DIM), NULL);
        CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, &indices.t, &out.t, NULL, &plain, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &indices);
        for (int k = 0; k < 2; k++) {
            far_adopt(b, memory_of[k], 0);
            if (is_mapped) munmap(memory_of[k], bytes);
            else backend_free(b, memory_of[k]);
        }
    }
}

TEST(graph)
{
    check_replayed("engram_lookup", "num_tokens=40 sf=e8m0", 1);
    check_replayed("engram_lookup", "num_tokens=40 sf=e8m0 at=host num_sms=2", 1);
}

TEST(num_sms) { check_num_sms("engram_lookup", CASE_LINES("num_tokens=300 sf=e8m0 out=bf16,packed,gemm")); }

/* ---- host memory ---- */

TEST(pageable_table)
{
    FOR_BACKENDS(b) {
        const tgl_device *facts;
        if (backend_is_cpu(b)) continue;
        REQUIRE(CHECK_OK(tgl_device_get(b->device.device_id, &facts)));
        if (facts->uses_host_page_tables) SKIP("%s reads any host memory", b->name);
        tensor table, sf, out;
        make(&table, memory, cpu, TGL_E4M3, 2, SHAPE(4, 32));
        place(b, &out, TGL_BF16, 3, SHAPE(4, 1, 32), NULL);
        CHECK_FAILS(
            tgl_engram_lookup(&table.t, NULL, NULL, &out.t, NULL, &plain, b->stream), TGL_ERR_ARGUMENT,
            "table: memory is not page-locked, want page-locked (cuMemHostAlloc, cudaHostRegister, pin_memory)");
        tensor there;
        place(b, &there, TGL_E4M3, 2, SHAPE(4, 32), NULL);
        make(&sf, memory, cpu, TGL_U8, 2, SHAPE(4, 1));
        CHECK_FAILS(tgl_engram_lookup(&there.t, &sf.t, NULL, &out.t, NULL, &plain, b->stream), TGL_ERR_ARGUMENT,
                    "table_sf: memory is not page-locked, want page-locked (cuMemHostAlloc, cudaHostRegister, "
                    "pin_memory)");
        discard(b, &out), discard(b, &there);
    }
}

/* The caller's own memory, page-locked: the table and its factors some bytes past a page. */
TEST(registered_table)
{
    enum { ROWS = 9, DIM = 64, PAGE = 4096, OFFSET = 32 };
    uint8_t codes[ROWS][DIM], factors[ROWS][DIM / 32];
    const int64_t rows[] = { 8, 0, -1, 3, 9, 8 };
    for (int r = 0; r < ROWS; r++) {
        for (int i = 0; i < DIM; i++) codes[r][i] = (uint8_t)(17 * r + i) & 0x7E;
        for (int i = 0; i < DIM / 32; i++) factors[r][i] = (uint8_t)(120 + r + i);
    }
    FOR_BACKENDS(b) {
        const tgl_driver_table *cu;
        if (backend_is_cpu(b)) continue;
        REQUIRE(CHECK_OK(tgl_driver(&cu)) && CHECK(cu->MemHostRegister != NULL));
        uint8_t *const own = aligned_alloc(PAGE, PAGE);
        REQUIRE(own != NULL);
        memcpy(own + OFFSET, codes, sizeof codes);
        memcpy(own + OFFSET + sizeof codes, factors, sizeof factors);
        CHECK_OK(backend_pages_lock(b, own, PAGE));
        tensor table, sf, indices, out, there, there_sf, want;
        make(&table, own + OFFSET, cpu, TGL_E4M3, 2, SHAPE(ROWS, DIM));
        make(&sf, own + OFFSET + sizeof codes, cpu, TGL_U8, 2, SHAPE(ROWS, DIM / 32));
        place(b, &indices, TGL_I64, 2, SHAPE(3, 2), rows);
        place(b, &out, TGL_BF16, 3, SHAPE(3, 2, DIM), NULL);
        place(b, &there, TGL_E4M3, 2, SHAPE(ROWS, DIM), codes);
        place(b, &there_sf, TGL_U8, 2, SHAPE(ROWS, DIM / 32), factors);
        place(b, &want, TGL_BF16, 3, SHAPE(3, 2, DIM), NULL);
        CHECK_OK(tgl_engram_lookup(&table.t, &sf.t, &indices.t, &out.t, NULL, &plain, b->stream));
        CHECK_OK(tgl_engram_lookup(&there.t, &there_sf.t, &indices.t, &want.t, NULL, &plain, b->stream));
        uint16_t of_device[3 * 2 * DIM];
        fetch(b, &want, of_device);
        CHECK(of_device[0] != 0 && of_device[2 * DIM] == 0);
        check_contents(b, &out, of_device, "out");
        backend_pages_free(b, own);
        discard(b, &indices), discard(b, &there), discard(b, &there_sf);
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_lookup_signature, tgl_engram_lookup_groups_signature,
    tgl_engram_lookup_packed_signature;

static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_engram_lookup(t[0], t[1], t[2], t[3], NULL, params, NULL);
}
static tgl_status invoke_groups(DLTensor *const *t, const void *params)
{
    return tgl_engram_lookup(t[0], t[1], t[2], t[3], t[4], params, NULL);
}
#define SIZES "table_rows=3 dim=64 num_tokens=3 num_columns=2 "

#define GOOD_CALL &tgl_engram_lookup_signature, SIZES "table=e4m3 out=bf16 table_sf~u8,ue8m0 out~u8", invoke
TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(&tgl_engram_lookup_signature, SIZES "table=bf16 out=bf16 -table_sf out~u8", invoke);
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_E5M2), "table: dtype is e5m2, want f16, bf16, f32 or e4m3");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "table_sf: is given, want NULL for a table of bf16");
    CHECK_ERROR(x[3].dtype = tgl_dtype_to_dlpack(TGL_F32), "out: dtype is f32, want bf16 or that of table, e4m3");
    CHECK_ERROR(x[3].shape[2] = 32; x[3].strides = NULL, "out: shape is [3, 2, 32], want [3, 2, 64]");
    CHECK_ERROR(x[2].shape[1] = 1, "indices: shape is [3, 1], want [3, 2]");
    CHECK_ERROR(((tgl_engram_lookup_params *)(void *)c->params)->row_begin = -1, "row_begin: is -1, want >= 0");
    CHECK_ERROR(((tgl_engram_lookup_params *)(void *)c->params)->num_sms = -2, "num_sms: is -2, want >= 0");
    CHECK_ERROR(((tgl_engram_lookup_params *)(void *)c->params)->reserved[3] = 1, "reserved[3]: is 1, want 0");
    CHECK_ERROR(c->given = NULL, "params: is NULL, want a struct");
}

TEST(errors_of_strides)
{
    const char *const wanted = ", want 1 in the last dimension, and rows that do not overlap";
    const int64_t wrong[][3] = { { 128, 64, 2 }, { 128, 63, 1 },  { 127, 64, 1 }, { 64, 128, 1 },
                                 { 0, 64, 1 },   { -128, 64, 1 }, { 64, 191, 1 } };
    const int64_t right[][3] = { { 128, 64, 1 }, { 200, 64, 1 }, { 192, 128, 1 }, { 64, 192, 1 }, { 70, 1000, 1 } };
    for (int i = 0; i < 7; i++)
        for (int on_cuda = 0; on_cuda < 2; on_cuda++) {
            errors_call *const c = errors_open(GOOD_CALL, on_cuda);
            REQUIRE(c);
            memcpy(c->strides[3], wrong[i], sizeof wrong[i]);
            const char *says = errors_refused(c, "strides of out");
            CHECK_THAT(says && strstr(says, wanted), "strides [%d]: %s", i, says ? says : "no error");
        }
    static uint16_t room[3000];
    for (int i = 0; i < 5; i++) {
        errors_call *const c = errors_open(GOOD_CALL, 0);
        REQUIRE(c);
        memcpy(c->strides[3], right[i], sizeof right[i]);
        c->own[3].data = room;
        CHECK_OK(invoke(c->tensors, c->given));
    }
}
TEST(no_driver) { check_no_driver(GOOD_CALL); }
#undef GOOD_CALL

#define GOOD_CALL &tgl_engram_lookup_groups_signature, SIZES "out=bf16 -out_sf table_sf~f32 out~u8", invoke_groups
TEST(errors_with_groups)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].shape[1] = 48; x[3].shape[2] = 48;
                x[0].strides = x[3].strides = NULL, "dim: is 48, want a multiple of 32");
    CHECK_ERROR(x[1].shape[1] = 1; x[1].strides = NULL, "table_sf: shape is [3, 1], want [3, 2]");
    CHECK_ERROR(c->tensors[4] = &c->own[1], "out_sf: dtype is u8, want i32");
}
#undef GOOD_CALL

#define GOOD_CALL &tgl_engram_lookup_groups_signature, SIZES "out=e4m3", invoke_groups
TEST(errors_with_out_sf)
{
    CHECK_ERROR(x[4].strides[0] = 2, "out_sf: strides are [2, 1], want [1, >= 3]");
    CHECK_ERROR(x[4].strides[0] = 1; x[4].shape[1] = 2; x[4].strides[1] = 3, "out_sf: shape is [3, 2], want [3, 1]");
    CHECK_ERROR(x[4].strides[0] = 1; x[3].strides[1] = 80;
                x[3].strides[0] = 160, "out: columns are 80 elements apart, want 64 with out_sf");
    CHECK_ERROR(x[4].strides[0] = 1; x[3].dtype = tgl_dtype_to_dlpack(TGL_BF16),
                                     "out_sf: is given, want NULL unless out is e4m3 and table_sf UE8M0");
    CHECK_ERROR(x[4].strides[0] = 1;
                c->tensors[1] = NULL, "out_sf: is given, want NULL unless out is e4m3 and table_sf UE8M0");
}
#undef GOOD_CALL

#define GOOD_CALL &tgl_engram_lookup_packed_signature, SIZES " out~bf16,e4m3", invoke
TEST(errors_of_packed_rows)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(c->tensors[1] = NULL, "table_sf: is NULL, want a tensor");
    CHECK_ERROR(x[0].dtype = tgl_dtype_to_dlpack(TGL_BF16), "table: dtype is bf16, want e4m3");
    CHECK_ERROR(x[3].shape[2] = 64, "out: shape is [3, 2, 64], want [3, 2, 66]");
}
