/* SPDX-License-Identifier: MIT
 * test_signature.c - signatures: every part of the grammar, every message of a check, the place of every
 * mistake in a text, and the quick way of checking against the slow one. */
#include "core/signature_table.h"

#include <pthread.h>
#include <stdlib.h>

#include "errors.h"
#include "test.h"

/* ---- calls ---- */

enum { MAX = 12, ROOM = 4096 };
static _Alignas(256) char memory[MAX][ROOM];
typedef struct {
    DLTensor t;
    int64_t shape[9], strides[9];
} tensor;
static const DLDevice cpu = { (DLDeviceType)TGL_DL_CPU, 0 };

/* Tensor i of a call: its data is memory[i]. */
typedef struct {
    tensor own[MAX];
    const DLTensor *t[MAX];
} call;
static void put(call *c, int i, tgl_dtype dtype, int ndim, const int64_t *shape)
{
    tensor *t = &c->own[i];
    *t = (tensor){ .t = { memory[i], cpu, ndim, tgl_dtype_to_dlpack(dtype), t->shape, t->strides, 0 } };
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->strides[d] = stride;
        stride *= shape[d];
    }
    c->t[i] = &t->t;
}
#define PUT(i, dtype, ...) \
    put(c, i, dtype, (int)(sizeof((int64_t[]){ __VA_ARGS__ }) / sizeof(int64_t)), (int64_t[]){ __VA_ARGS__ })

typedef struct {
    int format;
    int64_t width, ranks, rank;
    bool has_clamp, is_round;
    float clamp;
    uint64_t reserved[8];
} params;
#define FIELD(name) TGL_FIELD(params, name)
static const tgl_field fields[] = { FIELD(format),    FIELD(width),    FIELD(ranks), FIELD(rank),
                                    FIELD(has_clamp), FIELD(is_round), FIELD(clamp) };
static const tgl_params PARAMS = TGL_PARAMS(params, fields);

static int64_t sizes[TGL_MAX_VALUES];

/* A text, a good call of it, and what a change of the call leads to. */
#define CHECKED(signature, good_call, params_, change, message)                                            \
    do {                                                                                                   \
        call call_, *c = &call_;                                                                           \
        memset(c, 0, sizeof *c);                                                                           \
        good_call(c);                                                                                      \
        change;                                                                                            \
        const char *want_ = message;                                                                       \
        const tgl_status status_ = tgl_check(&(signature), c->t, params_, sizes);                          \
        if (!want_) CHECK_THAT(status_ == TGL_OK, "%s: %s", #change, tgl_last_error());                    \
        else                                                                                               \
            CHECK_THAT(status_ == TGL_ERR_ARGUMENT && !strcmp(tgl_last_error(), want_),                    \
                       "%s: says \"%s\", want \"%s\"", #change, status_ ? tgl_last_error() : "ok", want_); \
    } while (0)

/* ---- sizes, dtypes, layouts ---- */

static tgl_signature PLAIN =
    TGL_SIGNATURE("plain(x: f32|bf16[n, m] rows, w: f32[m]?, y: any[k, n] strided, flags: bool[n]!)"
                  " -> out: x[m, n + 2], codes: y[2 * k]?, more: i64|i32[n, j]? rows"
                  " where n < 2^31, k in 2..n + 1, j <= m, n >= 1, out may be y",
                  NULL);
static void plain(call *c)
{
    PUT(0, TGL_BF16, 4, 6);
    PUT(1, TGL_F32, 6);
    PUT(2, TGL_BF16, 3, 4);
    PUT(3, TGL_BOOL, 4);
    PUT(4, TGL_BF16, 6, 6);
    PUT(5, TGL_BF16, 6);
    PUT(6, TGL_I32, 4, 5);
}

TEST(sizes_are_bound_in_the_order_of_the_text)
{
    CHECKED(PLAIN, plain, NULL, (void)0, NULL);
    CHECK_INT(sizes[0], 4);
    CHECK_INT(sizes[1], 6);
    CHECK_INT(sizes[2], 3);
    CHECK_INT(sizes[3], 5);
    CHECKED(PLAIN, plain, NULL, c->t[6] = NULL, NULL);
    CHECK_INT(sizes[3], 0); /* nobody says */
}

TEST(tensors_alone)
{
    CHECKED(PLAIN, plain, NULL, c->t[0] = NULL, "x: is NULL, want a tensor");
    CHECKED(PLAIN, plain, NULL, c->t[4] = NULL, "out: is NULL, want a tensor");
    CHECKED(PLAIN, plain, NULL, c->t[1] = NULL, NULL);
    CHECKED(PLAIN, plain, NULL, c->t[5] = NULL, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[0].t.dtype.code = TGL_DL_FLOAT, "x: dtype is f16, want bf16 or f32");
    CHECKED(PLAIN, plain, NULL, c->own[1].t.dtype.bits = 64, "w: dtype is f64, want f32");
    CHECKED(PLAIN, plain, NULL, c->own[2].t.dtype.lanes = 3,
            "y: dtype is code 4 with 16 bits and 3 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    CHECKED(PLAIN, plain, NULL, c->own[0].t.ndim = 3, "x: rank is 3, want 2");
    CHECKED(PLAIN, plain, NULL, c->own[0].t.shape = NULL, "x: shape is NULL, want 2 sizes");
    CHECKED(PLAIN, plain, NULL, c->own[1].shape[0] = -1, "w: shape is [-1], want sizes >= 0");
    CHECKED(PLAIN, plain, NULL, c->own[0].strides[0] = 9, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[0].strides[0] = 0, NULL); /* rows that are read may overlap */
    CHECKED(PLAIN, plain, NULL, c->own[0].strides[1] = 2,
            "x: strides are [6, 2], want 1 in the last dimension and >= 0 in the others");
    CHECKED(PLAIN, plain, NULL, c->own[1].strides[0] = 2, "w: strides are [2], want [1]");
    CHECKED(PLAIN, plain, NULL, c->own[2].strides[0] = 1; c->own[2].strides[1] = 3, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[2].t.data = memory[2] + 256; c->own[2].strides[0] = -4, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[6].strides[0] = 5, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[6].strides[0] = 9, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[6].strides[0] = 4, "more: strides are [4, 1], want >= 5 between rows");
    CHECKED(PLAIN, plain, NULL, c->own[0].t.data = NULL, "x: data is NULL, want 48 bytes");
    CHECKED(PLAIN, plain, NULL, c->own[4].t.byte_offset = 1,
            "out: address is 1 bytes past a multiple of 2, want a multiple of 2");
    CHECKED(PLAIN, plain, NULL, c->own[4].t.byte_offset = UINT64_MAX - 1,
            "out: byte_offset is 18446744073709551614, want one that does not overflow the address");
    CHECKED(PLAIN, plain, NULL, c->own[3].t.device.device_type = (DLDeviceType)7,
            "flags: device is type 7, want cpu or cuda:0..63");
}

TEST(tensors_together)
{
    CHECKED(PLAIN, plain, NULL, c->own[1].shape[0] = 5, "w: shape is [5], want [6]");
    CHECKED(PLAIN, plain, NULL, c->own[3].shape[0] = 3, "flags: shape is [3], want [4]");
    CHECKED(PLAIN, plain, NULL, c->own[4].shape[0] = 7, "out: shape is [7, 6], want [6, 6]");
    CHECKED(PLAIN, plain, NULL, c->own[4].shape[1] = c->own[4].strides[0] = 5, "out: shape is [6, 5], want [6, 6]");
    CHECKED(PLAIN, plain, NULL, c->own[5].shape[0] = 7, "codes: shape is [7], want [6]");
    CHECKED(PLAIN, plain, NULL, c->own[6].shape[1] = c->own[6].strides[0] = 7, "more: shape is [4, 7], want [4, 0..6]");
    CHECKED(PLAIN, plain, NULL, c->own[6].shape[1] = c->own[6].strides[0] = 6, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[2].shape[0] = 1, "y: shape is [1, 4], want [2..5, 4]");
    CHECKED(PLAIN, plain, NULL, c->own[2].shape[0] = 6, "y: shape is [6, 4], want [2..5, 4]");
    CHECKED(PLAIN, plain, NULL, c->own[0].shape[0] = 0, "x: shape is [0, 6], want [1..2147483647, 6]");
    CHECKED(PLAIN, plain, NULL, c->own[4].t.dtype = tgl_dtype_to_dlpack(TGL_F32), "out: dtype is f32, want bf16 as x");
    CHECKED(PLAIN, plain, NULL, c->own[5].t.dtype = tgl_dtype_to_dlpack(TGL_I8), "codes: dtype is i8, want bf16 as y");
    CHECKED(PLAIN, plain, NULL, c->own[3].t.device = ((DLDevice){ (DLDeviceType)TGL_DL_CUDA, 1 }),
            "flags: device is cuda:1, want cpu");
    CHECKED(PLAIN, plain, NULL, c->own[3].t.device.device_type = (DLDeviceType)TGL_DL_CUDA_HOST, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[3].t.data = memory[0], "flags: memory is shared with x, want no overlap");
    CHECKED(PLAIN, plain, NULL, c->own[5].t.data = memory[4] + 70, "codes: memory is shared with out, want no overlap");
    CHECKED(PLAIN, plain, NULL, c->own[5].t.data = memory[4] + 72, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[1].t.data = memory[2], NULL); /* both are read */
    /* rows of one buffer: 5 of 16 elements are one's, the next 6 the other's */
    CHECKED(PLAIN, plain, NULL, c->own[6].strides[0] = 16; c->own[0].t.data = memory[6] + 20;
            c->own[0].strides[0] = 32, NULL);
    CHECKED(PLAIN, plain, NULL, c->own[6].strides[0] = 16; c->own[0].t.data = memory[6] + 18;
            c->own[0].strides[0] = 32, "more: memory is shared with x, want no overlap");
}

static tgl_signature IN_PLACE = TGL_SIGNATURE("in_place(x: f32[n, m] rows) -> out: f32[n, m] where out may be x", NULL);
static void in_place(call *c)
{
    PUT(0, TGL_F32, 3, 5);
    PUT(1, TGL_F32, 3, 5);
}

TEST(same_or_apart)
{
    CHECKED(IN_PLACE, in_place, NULL, (void)0, NULL);
    CHECKED(IN_PLACE, in_place, NULL, c->own[1].t.data = memory[0], NULL);
    CHECKED(IN_PLACE, in_place, NULL, c->t[1] = c->t[0], NULL);
    CHECKED(IN_PLACE, in_place, NULL, c->own[1].t.data = memory[0] + 4,
            "out: memory is shared with x, want no overlap");
    CHECKED(IN_PLACE, in_place, NULL, c->own[1].t.data = memory[0];
            c->own[0].strides[0] = 6, "out: memory is shared with x, want no overlap");
}

/* ---- scalars ---- */

static tgl_signature INTS =
    TGL_SIGNATURE("ints(x: f32[n, m], a: int >= 1, b: int >= a, c: int in 1..m, d: int, e: int = 1, f: int in 0..e - 1)"
                  " where d < 2^31, d divides m, e in 1..8, a % e, b % 3 if n > 2",
                  NULL, .sizes = "n, m");
static void ints(call *c) { PUT(0, TGL_F32, 3, 6); }
#define OF(...) ((int64_t[]){ __VA_ARGS__ })

TEST(scalars_without_a_struct)
{
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 2, 1), (void)0, NULL);
    CHECKED(INTS, ints, NULL, (void)0, "params: is NULL, want a struct");
    CHECKED(INTS, ints, OF(0, 6, 6, 3, 2, 1), (void)0, "a: is 0, want >= 1");
    CHECKED(INTS, ints, OF(4, 3, 6, 3, 2, 1), (void)0, "b: is 3, want >= 4 (a)");
    CHECKED(INTS, ints, OF(4, 6, 7, 3, 2, 1), (void)0, "c: is 7, want 1..6");
    CHECKED(INTS, ints, OF(4, 6, 0, 3, 2, 1), (void)0, "c: is 0, want 1..6");
    CHECKED(INTS, ints, OF(4, 6, 6, -1, 2, 1), (void)0, "d: is -1, want >= 0");
    CHECKED(INTS, ints, OF(4, 6, 6, (int64_t)1 << 31, 2, 1), (void)0, "d: is 2147483648, want fewer than 2^31");
    CHECKED(INTS, ints, OF(4, 6, 6, 4, 2, 1), (void)0, "d: is 4, want a divisor of 6 (m)");
    CHECKED(INTS, ints, OF(4, 6, 6, 0, 2, 1), (void)0, NULL);
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 9, 1), (void)0, "e: is 9, want 1..8");
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 0, 0), (void)0, NULL); /* 0 is 1 */
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 0, 1), (void)0, "f: is 1, want 0..0");
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 2, 2), (void)0, "f: is 2, want 0..1");
    CHECKED(INTS, ints, OF(4, 6, 6, 3, 3, 2), (void)0, "a: is 4, want a multiple of 3 (e)");
    CHECKED(INTS, ints, OF(4, 8, 6, 3, 2, 1), (void)0, "b: is 8, want a multiple of 3");
    CHECKED(INTS, ints, OF(4, 8, 6, 3, 2, 1), c->own[0].shape[0] = 2, NULL);
}

static tgl_signature STRUCT = TGL_SIGNATURE(
    "of_struct(x: (e4m3 if sf else bf16|f32)[n, 2 * m (both)] rows, sf: sf[n / 2, m / width]?, ids: i32[k]?,"
    " format: {e4m3|e2m1} if sf else {e4m3|e2m1|e5m6}, width: int = m, ranks: int = 1, rank: int in 0..ranks - 1,"
    " is_round: bool, has_clamp: bool, clamp: float >= 0 with has_clamp)"
    " -> codes: format[k if ids else n, m]?, out_sf: sf[n, m / width]"
    " where m < 2^59, width % 8 for e5m6, rank == 0, ids needs has_clamp, sf needs ids, is_round needs codes,"
    " out_sf of i32 needs is_round",
    &PARAMS);
static params P;
static void of_struct(call *c)
{
    P = (params){ .width = 8 };
    PUT(0, TGL_F32, 4, 32);
    PUT(3, TGL_E4M3, 4, 16);
    PUT(4, TGL_F32, 4, 2);
}
static void with_sf(call *c)
{
    P = (params){ .width = 8, .has_clamp = true };
    PUT(0, TGL_E4M3, 4, 32);
    PUT(1, TGL_F32, 2, 2);
    PUT(2, TGL_I32, 3);
    PUT(3, TGL_E4M3, 3, 16);
    PUT(4, TGL_F32, 4, 2);
}
#define STRUCT_SAYS(change, message) CHECKED(STRUCT, of_struct, &P, change, message)
#define SF_SAYS(change, message) CHECKED(STRUCT, with_sf, &P, change, message)

TEST(scalars_of_a_struct)
{
    STRUCT_SAYS((void)0, NULL);
    SF_SAYS((void)0, NULL);
    CHECKED(STRUCT, of_struct, NULL, (void)0, "params: is NULL, want a struct");
    STRUCT_SAYS(P.reserved[3] = 7, "reserved[3]: is 7, want 0");
    STRUCT_SAYS(P.format = 3, "format: is 3, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
    STRUCT_SAYS(P.format = -1, "format: is -1, want 0 (e4m3), 1 (e2m1) or 2 (e5m6)");
    SF_SAYS(P.format = 2, "format: is 2, want 0 (e4m3) or 1 (e2m1)");
    STRUCT_SAYS(P.width = -1, "width: is -1, want >= 0");
    STRUCT_SAYS(P.width = 0, "out_sf: shape is [4, 2], want [4, 1]"); /* all columns */
    STRUCT_SAYS(P.width = 100, "out_sf: shape is [4, 2], want [4, 1]");
    STRUCT_SAYS(P.width = 5, "out_sf: shape is [4, 2], want [4, 4]"); /* rounds up */
    STRUCT_SAYS(P.ranks = -1, "ranks: is -1, want >= 0");
    STRUCT_SAYS(P.rank = 1, "rank: is 1, want 0..0");
    STRUCT_SAYS(P.ranks = 2; P.rank = 1, "rank: is 1, want 0");
    STRUCT_SAYS(P.clamp = -1, NULL);
    SF_SAYS(P.clamp = -1, "clamp: is -1, want >= 0");
    SF_SAYS(P.clamp = __builtin_nanf(""), "clamp: is nan, want >= 0");
    SF_SAYS(P.has_clamp = false, "has_clamp: is false, want true with ids");
    SF_SAYS(c->t[2] = NULL, "ids: is NULL, want a tensor with sf");
    STRUCT_SAYS(P.is_round = true; c->t[3] = NULL, "codes: is NULL, want a tensor with is_round");
    STRUCT_SAYS(c->t[3] = NULL, NULL);
}

TEST(codes_and_factors)
{
    STRUCT_SAYS(c->own[0].shape[1] = 31, "x: columns are 31, want an even number (both)");
    STRUCT_SAYS(c->own[0].t.dtype = tgl_dtype_to_dlpack(TGL_E4M3), "x: dtype is e4m3, want bf16 or f32");
    SF_SAYS(c->own[0].t.dtype = tgl_dtype_to_dlpack(TGL_F32), "x: dtype is f32, want e4m3");
    SF_SAYS(c->own[3].shape[0] = 4, "codes: shape is [4, 16], want [3, 16]");
    SF_SAYS(c->own[2].shape[0] = 4, "codes: shape is [3, 16], want [4, 16]");
    STRUCT_SAYS(c->own[3].shape[0] = 3, "codes: shape is [3, 16], want [4, 16]");
    STRUCT_SAYS(P.format = 1, "codes: dtype is e4m3, want i8, u8 or e2m1x2");
    STRUCT_SAYS(P.format = 1; PUT(3, TGL_I8, 4, 8), NULL);
    STRUCT_SAYS(P.format = 1; PUT(3, TGL_I8, 4, 9), "codes: shape is [4, 9], want [4, 8]");
    STRUCT_SAYS(P.format = 1; PUT(3, TGL_I8, 4, 8); PUT(0, TGL_F32, 4, 30); P.width = 16;
                PUT(4, TGL_F32, 4, 1), "x: columns are 15, want a multiple of 2 for e2m1");
    STRUCT_SAYS(P.format = 1; c->t[3] = NULL; PUT(0, TGL_F32, 4, 30); P.width = 16;
                PUT(4, TGL_F32, 4, 1), "x: columns are 15, want a multiple of 2 for e2m1");
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 24), NULL);
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 23), "codes: rows are 23 bytes, want a multiple of 12 for e5m6");
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 36), "codes: shape is [4, 36], want [4, 24]");
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 24);
                c->own[3].t.byte_offset = 2, "codes: address is 2 bytes past a multiple of 4, want a multiple of 4");
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 24); P.width = 4, "width: is 4, want a multiple of 8 for e5m6");
    STRUCT_SAYS(P.format = 2; PUT(3, TGL_U8, 4, 24); P.width = 0; PUT(4, TGL_F32, 4, 1), NULL);
    STRUCT_SAYS(PUT(0, TGL_F32, 0, (int64_t)1 << 59),
                "x: shape is [0, 576460752303423488], want [0, 0..576460752303423487]");
}

static tgl_signature PAIRS =
    TGL_SIGNATURE("pairs(x: (e4m3|e2m1 if sf else bf16)[n, m] rows, sf: sf[n, m / 4]?) -> out: f32[n, m]", NULL);
static void pairs(call *c)
{
    PUT(0, TGL_E2M1X2, 3, 8);
    PUT(1, TGL_F32, 3, 4);
    PUT(2, TGL_F32, 3, 16);
}
TEST(pairs_of_codes)
{
    CHECKED(PAIRS, pairs, NULL, (void)0, NULL);
    CHECK_INT(sizes[1], 16);
    CHECKED(PAIRS, pairs, NULL, PUT(0, TGL_E4M3, 3, 16), NULL);
    CHECKED(PAIRS, pairs, NULL, PUT(0, TGL_I8, 3, 16), "sf: shape is [3, 4], want [3, 8]");
    CHECKED(PAIRS, pairs, NULL, PUT(0, TGL_BF16, 3, 16), "x: dtype is bf16, want i8, u8, e4m3 or e2m1x2");
    CHECKED(PAIRS, pairs, NULL, PUT(0, TGL_BF16, 3, 16); c->t[1] = NULL, NULL);
    CHECKED(PAIRS, pairs, NULL, c->t[1] = NULL, "x: dtype is e2m1x2, want bf16");
}

TEST(scale_factors)
{
    STRUCT_SAYS(c->own[4].strides[0] = 3, NULL);
    STRUCT_SAYS(c->own[4].strides[0] = 1; c->own[4].strides[1] = 4, NULL);
    STRUCT_SAYS(c->own[4].strides[0] = 1; c->own[4].strides[1] = 9, NULL);
    STRUCT_SAYS(c->own[4].strides[0] = 1;
                c->own[4].strides[1] = 3, "out_sf: strides are [1, 3], want [1, >= 4] or [>= 2, 1]");
    STRUCT_SAYS(c->own[4].strides[0] = 0, "out_sf: strides are [0, 1], want [1, >= 4] or [>= 2, 1]");
    SF_SAYS(c->own[1].strides[0] = 0, NULL); /* is read */
    SF_SAYS(c->own[1].strides[1] = 2, "sf: strides are [2, 2], want [1, >= 0] or [>= 0, 1]");
    STRUCT_SAYS(PUT(4, TGL_I32, 4, 1), "is_round: is false, want true for out_sf of i32 (packed)");
    STRUCT_SAYS(P.is_round = true; PUT(4, TGL_I32, 4, 1), NULL); /* two factors are a word */
    STRUCT_SAYS(P.is_round = true; PUT(4, TGL_I32, 4, 2), "out_sf: shape is [4, 2], want [4, 1]");
    STRUCT_SAYS(P.is_round = true; P.width = 3; PUT(4, TGL_I32, 4, 2), "out_sf: strides are [2, 1], want [1, >= 4]");
    STRUCT_SAYS(P.is_round = true; P.width = 3; PUT(4, TGL_I32, 4, 2); c->own[4].strides[0] = 1;
                c->own[4].strides[1] = 4, NULL);
}

/* ---- any number of dimensions, members of a struct, host memory ---- */

static tgl_signature LEADING = TGL_SIGNATURE("leading(x: e2m1[..., n]) -> out: f32|bf16[..., n] where n < 2^59", NULL);
static void leading(call *c)
{
    PUT(0, TGL_U8, 2, 3, 4);
    PUT(1, TGL_F32, 2, 3, 8);
}

TEST(leading_dimensions)
{
    CHECKED(LEADING, leading, NULL, (void)0, NULL);
    CHECK_INT(sizes[0], 8);
    CHECKED(LEADING, leading, NULL, PUT(0, TGL_U8, 4); PUT(1, TGL_F32, 8), NULL);
    CHECKED(LEADING, leading, NULL, PUT(0, TGL_U8, 1, 1, 1, 1, 1, 1, 1, 4);
            PUT(1, TGL_F32, 1, 1, 1, 1, 1, 1, 1, 8), NULL);
    CHECKED(LEADING, leading, NULL, c->own[0].t.ndim = 0, "x: rank is 0, want 1..8");
    CHECKED(LEADING, leading, NULL, c->own[0].t.ndim = 9, "x: rank is 9, want 1..8");
    CHECKED(LEADING, leading, NULL, c->own[1].t.ndim = 2, "out: rank is 2, want 3");
    CHECKED(LEADING, leading, NULL, c->own[1].shape[0] = 3, "out: shape is [3, 3, 8], want [2, 3, 8]");
    CHECKED(LEADING, leading, NULL, c->own[1].shape[1] = 2;
            c->own[1].strides[0] = 16, "out: shape is [2, 2, 8], want [2, 3, 8]");
    CHECKED(LEADING, leading, NULL, PUT(1, TGL_F32, 2, 3, 7), "out: shape is [2, 3, 7], want [2, 3, 8]");
    CHECKED(LEADING, leading, NULL, c->t[0] = NULL, "x: is NULL, want a tensor");
}

static tgl_signature MEMBERS =
    TGL_SIGNATURE("members(x: i32[n]) -> map{first: i32[m], second: i32[m], last: i32[m]? host}, out: i32[n]", NULL);
static void members(call *c)
{
    PUT(0, TGL_I32, 3);
    PUT(1, TGL_I32, 5);
    PUT(2, TGL_I32, 5);
    PUT(3, TGL_I32, 5);
    PUT(4, TGL_I32, 3);
}

TEST(members_of_a_struct)
{
    const DLDevice cuda = { (DLDeviceType)TGL_DL_CUDA, 0 };
    CHECKED(MEMBERS, members, NULL, (void)0, NULL);
    CHECKED(MEMBERS, members, NULL, c->own[2].shape[0] = 4, "second: shape is [4], want [5]");
    CHECKED(MEMBERS, members, NULL, c->own[2].t.data = memory[3],
            "last: memory is shared with second, want no overlap");
    CHECKED(MEMBERS, members, NULL, for (int i = 0; i < 5; i++) c->own[i].t.device = cuda,
            "last: is i32 [5] strides [1] on cuda:0, want host memory");
    CHECKED(MEMBERS, members, NULL, for (int i = 0; i < 5; i++) if (i != 3) c->own[i].t.device = cuda, NULL);
}

static tgl_signature ANYWHERE =
    TGL_SIGNATURE("anywhere(table: i32[n, m] rows anywhere, more: i32[n]? anywhere) -> out: i32[m]", NULL);
static void anywhere(call *c)
{
    PUT(0, TGL_I32, 5, 3);
    PUT(1, TGL_I32, 5);
    PUT(2, TGL_I32, 3);
}

TEST(tensors_anywhere) /* in host memory, even if the others are on a device */
{
    const DLDevice cuda = { (DLDeviceType)TGL_DL_CUDA, 0 }, other = { (DLDeviceType)TGL_DL_CUDA, 1 };
    const DLDevice pinned = { (DLDeviceType)TGL_DL_CUDA_HOST, 0 };
    CHECKED(ANYWHERE, anywhere, NULL, (void)0, NULL);
    CHECKED(ANYWHERE, anywhere, NULL, c->own[2].t.device = cuda, NULL);
    CHECKED(ANYWHERE, anywhere, NULL, c->own[0].t.device = c->own[2].t.device = cuda, NULL);
    CHECKED(ANYWHERE, anywhere, NULL, c->own[0].t.device = pinned;
            c->own[1].t.device = c->own[2].t.device = cuda, NULL);
    CHECKED(ANYWHERE, anywhere, NULL, c->own[0].t.device = pinned, NULL);
    CHECKED(ANYWHERE, anywhere, NULL, c->own[0].t.device = cuda, "table: device is cuda:0, want cpu");
    CHECKED(ANYWHERE, anywhere, NULL, c->own[1].t.device = other;
            c->own[2].t.device = cuda, "more: device is cuda:1, want cuda:0");
}

/* ---- texts that are not of the grammar ---- */

static void check_text(const char *text, const char *message)
{
    static tgl_table t;
    const tgl_status status = tgl_parse_signature(text, &PARAMS, NULL, &t);
    CHECK_THAT(status == TGL_ERR_INTERNAL && !strcmp(tgl_last_error(), message),
               "%s\n    says \"%s\",\n    want \"%s\"", text, status ? tgl_last_error() : "ok", message);
}

TEST(mistakes_have_a_place)
{
#define SAYS(text, place, want) check_text(text, "signature of f: at character " place ", want " want)
    SAYS("f", "1 is \"\"", "(");
    SAYS("f(", "2 is \"\"", "a name");
    SAYS("f(x)", "3 is \")\"", ":");
    SAYS("f(x: f33[n])", "5 is \"f33[n])\"", "a dtype, a tensor or a scalar with words");
    SAYS("f(x: f32|f33[n])", "9 is \"f33[n])\"", "a dtype");
    SAYS("f(x: e5m6|u8[n])", "5 is \"e5m6|u8[n])\"", "a dtype");
    SAYS("f(x: f32)", "8 is \")\"", "[");
    SAYS("f(x: f32[n, m + 1)", "17 is \")\"", "]");
    SAYS("f(x: f32[n] strid)", "12 is \"strid)\"", ")");
    SAYS("f(x: f32[n], x: f32[n])", "13 is \"x: f32[n])\"", "a name of its own");
    SAYS("f(x: f32[n]?)", "13 is \"\"", "a first tensor that is always given: its device counts");
    SAYS("f(x: f32[a, b, c, d, e, g])", "24 is \"g])\"", "fewer dimensions");
    SAYS("f(x: f32[n, 2 / k])", "16 is \"k])\"", "a size, a scalar or a tensor");
    SAYS("f(x: f32[n, (n + 1])", "18 is \"])\"", ")");
    SAYS("f(x: f32[n, 3^4])", "12 is \"3^4])\"", "a power of two below 2^63");
    SAYS("f(x: f32[n, 2^63])", "12 is \"2^63])\"", "a power of two below 2^63");
    SAYS("f(x: f32[n, n if n])", "18 is \"])\"", "else");
    SAYS("f(x: sf[n])", "10 is \")\"", "two dimensions of scale factors");
    SAYS("f(x: f32[n]) -> y: f32[n] rows", "30 is \"\"", "two dimensions of rows that are written");
    SAYS("f(x: (f32 if y else i32)[n])", "13 is \"y else i32)[n])\"", "a tensor");
    SAYS("f(x: f32[n], weight: int)", "13 is \"weight: int)\"", "a field of the params struct");
    SAYS("f(x: f32[n], width: bool)", "13 is \"width: bool)\"", "the type that the field has");
    SAYS("f(x: f32[n], format: {a|b|c|d|e})", "30 is \"e})\"", "fewer words");
    SAYS("f(x: f32[n], format: {a|b} if x else {a|c|b})", "40 is \"c|b})\"", "the words in the same order");
    SAYS("f(x: f32[n], format: {a|b} if x else {a})", "40 is \")\"", "more words where it is not given");
    SAYS("f(x: f32[n], width: int with n)", "29 is \"n)\"", "a tensor or a bool");
    SAYS("f(x: f32[n], clamp: float >= n)", "30 is \")\"", "a constant before this");
    SAYS("f(x: f32[n]) -> width: int", "16 is \"width: int\"", "a tensor");
    SAYS("f(x: f32[n]) - y: f32[n]", "13 is \"- y: f32[n]\"", "the end");
    SAYS("f(x: f32[n]) where m < 3", "19 is \"m < 3\"", "a tensor, a size or a scalar");
    SAYS("f(x: f32[n]) where n", "20 is \"\"", "a rule");
    SAYS("f(x: f32[n]) where n == 3", "21 is \"== 3\"", "a range of a size");
    SAYS("f(x: f32[n, m]) where n < m / 2", "24 is \"< m / 2\"", "<= for such an expression");
    SAYS("f(x: f32[n]) where n < 3, n in 1..2", "28 is \"in 1..2\"", "one bound, not two");
    SAYS("f(x: f32[n]) where x needs n", "27 is \"n\"", "a tensor or a bool");
    SAYS("f(x: f32[n]) where x may be n", "28 is \"n\"", "a tensor");
    SAYS("f(x: f32[n]) where x of f32 needs x", "34 is \"x\"", "a bool");
    SAYS("f(x: f32[n]) where n % 8 for e5m6", "29 is \"e5m6\"", "a word of a scalar");
    SAYS("f(x: f32[n]) where n divides x", "29 is \"x\"", "a size or a scalar");
    SAYS("f(x: f32[n, n / (n / (n / (n / (n / (n / (n / (n / n)))))))])",
         "12 is \"n / (n / (n / (n / (n / (n / (n / (n / n\"", "an expression that is less nested");
}

/* More of something than a table holds: an error at the first that is too many. */
static void check_too_many(const char *begin, const char *item, int max, const char *end, const char *want)
{
    static char text[16384];
    for (int count = max; count <= max + 1; count++) {
        static tgl_table t;
        int n = snprintf(text, sizeof text, "%s", begin);
        for (int i = 0; i < count; i++) n += snprintf(text + n, sizeof text - (size_t)n, item, i, i, i);
        snprintf(text + n, sizeof text - (size_t)n, "%s", end);
        const tgl_status status = tgl_parse_signature(text, NULL, NULL, &t);
        if (count == max) CHECK_THAT(status == TGL_OK, "%d of %s: %s", count, item, tgl_last_error());
        else
            CHECK_THAT(status == TGL_ERR_INTERNAL && strstr(tgl_last_error(), want), "%d of %s: %s", count, item,
                       status ? tgl_last_error() : "ok");
    }
}

TEST(limits_are_errors)
{
    check_too_many("f(x: f32[n]", ", x%d: i32[n]", TGL_MAX_TENSORS - 1, ")", "want fewer tensors");
    check_too_many("f(x: f32[n]", ", i%d: int", TGL_MAX_VALUES - 1, ")", "want fewer sizes and scalars");
    check_too_many("f(x: f32[n]", ", x%d: f32[n%d]", TGL_MAX_TENSORS - 1, ")", "want fewer tensors");
    check_too_many("f(x: f32[n], i: int) where i in 0..9", ", i in 1..%d", TGL_MAX_RULES - 1, "", "want fewer rules");
    check_too_many("f(x: f32[n], i: int = 1", " + n / %d", (TGL_MAX_STEPS - 2) / 4, ")", "want shorter expressions");
    char text[TGL_MAX_NAMES + 64];
    static tgl_table t;
    for (int length = TGL_MAX_NAMES - 4; length <= TGL_MAX_NAMES; length++) { /* f, x and n take six bytes */
        char name[TGL_MAX_NAMES + 1];
        memset(name, 'a', sizeof name);
        name[length - 6] = 0;
        snprintf(text, sizeof text, "f(x: f32[n], %s: i32[n])", name);
        const tgl_status status = tgl_parse_signature(text, NULL, NULL, &t);
        CHECK_INT(status, length < TGL_MAX_NAMES ? TGL_OK : TGL_ERR_INTERNAL);
    }
    CHECK(strstr(tgl_last_error(), "want fewer or shorter names"));
}

TEST(a_bad_text_fails_every_call)
{
    static tgl_signature bad = TGL_SIGNATURE("bad(x: f33[n])", NULL);
    static tgl_signature sized = TGL_SIGNATURE("sized(x: f32[n, m])", NULL, .sizes = "m, n");
    static tgl_signature fewer = TGL_SIGNATURE("fewer(x: f32[n, m])", NULL, .sizes = "n");
    static tgl_signature more = TGL_SIGNATURE("more(x: f32[n, m])", NULL, .sizes = "n, m, k");
    const DLTensor *const none[1] = { NULL };
    for (int i = 0; i < 2; i++)
        CHECK_FAILS(tgl_check(&bad, none, NULL, sizes), TGL_ERR_INTERNAL,
                    "signature of bad: at character 7 is \"f33[n])\", want a dtype, a tensor or a scalar with words");
    CHECK_FAILS(tgl_check(&sized, none, NULL, sizes), TGL_ERR_INTERNAL,
                "signature of sized: size 0 of the struct is \"m\", want \"n\"");
    CHECK_FAILS(tgl_check(&fewer, none, NULL, sizes), TGL_ERR_INTERNAL,
                "signature of fewer: size 1 of the struct is \"\", want \"m\"");
    CHECK_FAILS(tgl_check(&more, none, NULL, sizes), TGL_ERR_INTERNAL,
                "signature of more: size 2 of the struct is \"k\", want \"\"");
}

/* ---- errors that follow from a signature (errors.h) ----
 * Here checks and test read the same table: of interest is that all of it is asked. */

static tgl_signature *checked;
static tgl_status check_it(DLTensor *const *t, const void *p)
{
    return tgl_check(checked, (const DLTensor *const *)t, p, sizes);
}

static void check_generated(tgl_signature *s, const char *sample, int min_mistakes)
{
    checked = s;
    const int mistakes = check_errors(s, sample, check_it);
    CHECK_THAT(mistakes >= min_mistakes, "%s: %d mistakes, want %d", s->text, mistakes, min_mistakes);
}

TEST(generated_errors)
{
    check_generated(&PLAIN, "n=4 m=6 k=3 j=5", 500);
    check_generated(&PLAIN, "n=4 m=6 k=3 x=bf16 y=u8 -w -codes -more", 250);
    check_generated(&IN_PLACE, "n=3 m=5", 140);
    check_generated(&INTS, "n=3 m=6 a=4 b=6 c=6 d=3 e=2 f=1", 90);
    check_generated(&STRUCT, "n=4 m=16 width=8 -sf -ids", 250);
    check_generated(&STRUCT, "n=4 m=16 k=3 width=8 has_clamp=1", 400);
    check_generated(&STRUCT, "n=4 m=16 width=2 is_round=1 format=1 out_sf=i32 -sf -ids", 250);
    check_generated(&PAIRS, "n=3 m=16 x=u8 sf=i32", 180);
    check_generated(&LEADING, "n=16 ...=2", 120);
    check_generated(&MEMBERS, "n=3 m=5", 300);
}

/* ---- the first call of several threads ---- */

static void *check_plain(void *context)
{
    tgl_signature *s = context;
    call *c = malloc(sizeof *c);
    int64_t own[TGL_MAX_VALUES];
    if (!c) return NULL;
    plain(c);
    const bool ok = tgl_check(s, c->t, NULL, own) == TGL_OK && own[0] == 4 && own[3] == 5;
    free(c);
    return ok ? s : NULL;
}

TEST(threads)
{
    for (int round = 0; round < 20; round++) {
        tgl_signature s = TGL_SIGNATURE(PLAIN.text, NULL);
        pthread_t threads[4];
        void *result;
        for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, check_plain, &s) == 0);
        for (int i = 0; i < 4; i++) CHECK(pthread_join(threads[i], &result) == 0 && result == &s);
        free((void *)tgl_signature_table(&s));
    }
}

/* ---- the quick way against the slow one ---- */

// clang-format off: many numbers
static const int64_t NUMBERS[] = { -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 100, (int64_t)1 << 31, (int64_t)1 << 40,
                                   (int64_t)1 << 58, (int64_t)1 << 62, INT64_MAX, INT64_MIN };
// clang-format on
static int64_t any_number(test_random *r)
{
    return NUMBERS[test_below(r, (int64_t)(sizeof NUMBERS / sizeof *NUMBERS))];
}

static void change_tensor(call *c, int num_tensors, test_random *r)
{
    const int i = (int)test_below(r, num_tensors), j = (int)test_below(r, num_tensors);
    tensor *t = &c->own[i];
    if (!c->t[i]) return;
    const int d = t->t.ndim > 0 && t->t.ndim <= 8 ? (int)test_below(r, t->t.ndim) : 0;
    switch (test_below(r, 14)) {
    case 0: c->t[i] = NULL; break;
    case 1: t->t.dtype = tgl_dtype_to_dlpack(1u << test_below(r, 19)); break;
    case 2: t->t.dtype.lanes = (uint16_t)test_below(r, 4); break;
    case 3: t->t.ndim += test_below(r, 2) ? 1 : -1; break;
    case 4: t->shape[d] = any_number(r); break;
    case 5: t->shape[d] ^= 1; break;
    case 6: t->strides[d] = any_number(r); break;
    case 7: t->strides[d] = t->strides[d] % 1000 + test_below(r, 20) - 10; break;
    case 8: t->t.strides = NULL; break;
    case 9: t->t.data = test_below(r, 3) ? memory[j] + 4 * test_below(r, 32) : NULL; break;
    case 10: t->t.byte_offset = (uint64_t)test_below(r, 64) - (test_below(r, 4) ? 0 : 64); break;
    case 11: t->t.device.device_type = (DLDeviceType)(1 + test_below(r, 3)); break;
    case 12: t->t.device.device_id = (int)test_below(r, 80) - 8; break;
    default: t->t.shape = test_below(r, 4) ? t->shape : NULL; break;
    }
}

static int64_t scalars[8];
static void change_scalar(const tgl_table *t, test_random *r)
{
    switch (test_below(r, 8)) {
    case 0: P.format = (int)test_below(r, 5) - 1; break;
    case 1: P.width = any_number(r); break;
    case 2: P.ranks = any_number(r); break;
    case 3: P.rank = test_below(r, 3); break;
    case 4: P.has_clamp = !P.has_clamp; break;
    case 5: P.is_round = !P.is_round; break;
    case 6: P.clamp = (float)test_below(r, 3) - 1; break;
    default: P.reserved[test_below(r, 8)] = test_below(r, 2); break;
    }
    if (t->num_scalars) scalars[test_below(r, t->num_scalars)] = any_number(r);
}

/* Of each text: good calls are passed quickly; of changed ones none that the slow way refuses, and sizes are
 * the same. */
static void check_quick(tgl_signature *s, void (*good)(call *), test_random *r)
{
    enum { CALLS = 40000 };
    const tgl_table *t = tgl_signature_table(s);
    int64_t slow[TGL_MAX_VALUES], quick[TGL_MAX_VALUES];
    int num_quick = 0, num_passed = 0;
    REQUIRE(t);
    for (int i = 0; i < CALLS; i++) {
        static call c;
        memset(&c, 0, sizeof c);
        good(&c);
        memcpy(scalars, OF(4, 6, 6, 3, 2, 1), 6 * sizeof *scalars);
        const void *p = s->params ? (const void *)&P : scalars;
        for (int64_t changes = i ? test_below(r, 4) : 0; changes > 0; changes--)
            if (t->num_scalars && test_below(r, 3) == 0) change_scalar(t, r);
            else change_tensor(&c, t->num_tensors, r);
        const bool is_quick = tgl_check_quickly(t, s->params, c.t, p, quick);
        const bool is_passed = tgl_check_slowly(t, s->params, c.t, p, slow) == TGL_OK;
        if (i == 0) CHECK_THAT(is_quick, "%s: a good call is not quick", t->name);
        if (is_quick) CHECK_THAT(is_passed, "%s: call %d is passed quickly, but \"%s\"", t->name, i, tgl_last_error());
        if (is_quick && is_passed)
            for (int k = 0; k < t->num_values; k++)
                if (t->values[k].type != TGL_VALUE_FLOAT && !CHECK_INT(quick[k], slow[k])) return;
        num_quick += is_quick;
        num_passed += is_passed;
    }
    CHECK_THAT(num_passed > CALLS / 8, "%s: %d calls passed", t->name, num_passed);
    CHECK_THAT(num_quick > num_passed / 2, "%s: %d of %d calls that passed were quick", t->name, num_quick, num_passed);
}

TEST(quick_is_never_lax)
{
    test_random r = test_seed("quick_is_never_lax");
    check_quick(&PLAIN, plain, &r);
    check_quick(&IN_PLACE, in_place, &r);
    check_quick(&INTS, ints, &r);
    check_quick(&STRUCT, of_struct, &r);
    check_quick(&STRUCT, with_sf, &r);
    check_quick(&PAIRS, pairs, &r);
    check_quick(&LEADING, leading, &r);
    check_quick(&MEMBERS, members, &r);
}
