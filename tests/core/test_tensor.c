/* SPDX-License-Identifier: MIT
 * Every rule of core/tensor.h with its message, one broken at a time. */
#include "core/tensor.h"

#include "test.h"

static _Alignas(256) char memory[1024];
typedef struct {
    DLTensor t;
    int64_t shape[10], strides[10];
} tensor;

static DLTensor *make(tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape)
{
    const DLDevice cpu = { (DLDeviceType)TGL_DL_CPU, 0 };
    *t = (tensor){ .t = { memory, cpu, ndim, tgl_dtype_to_dlpack(dtype), t->shape, t->strides, 0 } };
    int64_t stride = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        t->shape[d] = shape[d];
        t->strides[d] = stride;
        stride *= shape[d];
    }
    return &t->t;
}
#define SHAPE(...) ((int64_t[]){ __VA_ARGS__ })
#define FAILS(call, message) CHECK_FAILS(call, TGL_ERR_ARGUMENT, message)
/* tgl_expect() of `t`. */
#define GOOD(dtypes, ndim, layout) CHECK_OK(tgl_expect("x", &t.t, dtypes, ndim, layout))
#define BAD(dtypes, ndim, layout, message) FAILS(tgl_expect("x", &t.t, dtypes, ndim, layout), "x: " message)
/* tgl_expect_no_overlap() of `a` and `b`. */
#define APART() CHECK_OK(tgl_expect_no_overlap("b", &b.t, "a", &a.t))
#define OVERLAP() FAILS(tgl_expect_no_overlap("b", &b.t, "a", &a.t), "b: memory is shared with a, want no overlap")

TEST(good_ones)
{
    tensor t;
    for (int layout = TGL_PACKED; layout <= TGL_STRIDED; layout++) {
        CHECK_OK(tgl_expect("x", make(&t, TGL_F32, 2, SHAPE(3, 5)), TGL_F32, 2, (tgl_layout)layout));
        CHECK_OK(tgl_expect("x", make(&t, TGL_F32, 0, NULL), TGL_F32 | TGL_BF16, 0, (tgl_layout)layout));
        t.t.shape = t.t.strides = NULL; /* a scalar needs neither */
        CHECK_OK(tgl_expect("x", &t.t, TGL_F32, 0, (tgl_layout)layout));
        make(&t, TGL_F32, 8, SHAPE(1, 2, 1, 2, 1, 2, 1, 2))->strides = NULL;
        CHECK_OK(tgl_expect("x", &t.t, TGL_ANY, 8, (tgl_layout)layout));
    }
    const int devices[] = { TGL_DL_CPU, TGL_DL_CUDA, TGL_DL_CUDA_HOST, TGL_DL_CUDA_MANAGED };
    for (int i = 0; i < 4; i++) {
        make(&t, TGL_E4M3, 1, SHAPE(7))->device.device_type = (DLDeviceType)devices[i];
        GOOD(TGL_E4M3, 1, TGL_PACKED);
    }
}

TEST(null_dtype_rank)
{
    tensor t;
    FAILS(tgl_expect("x", NULL, TGL_F32, 2, TGL_PACKED), "x: is NULL, want a tensor");
    make(&t, TGL_F16, 2, SHAPE(3, 5));
    BAD(TGL_F32, 2, TGL_PACKED, "dtype is f16, want f32");
    BAD(TGL_F32 | TGL_BF16, 2, TGL_PACKED, "dtype is f16, want bf16 or f32");
    BAD(TGL_F32 | TGL_BF16 | TGL_E4M3, 2, TGL_PACKED, "dtype is f16, want bf16, f32 or e4m3");
    t.t.dtype = (DLDataType){ 2, 24, 1 };
    BAD(TGL_ANY, 2, TGL_PACKED, "dtype is code 2 with 24 bits and 1 lanes, want elements of 1, 2, 4, 8 or 16 bytes");
    t.t.dtype = (DLDataType){ 99, 8, 1 };
    GOOD(TGL_ANY, 2, TGL_PACKED);
    BAD(TGL_U8, 2, TGL_PACKED, "dtype is code 99 with 8 bits and 1 lanes, want u8");
    make(&t, TGL_F32, 2, SHAPE(3, 5));
    BAD(TGL_F32, 3, TGL_PACKED, "rank is 2, want 3");
    t.t.ndim = -3;
    BAD(TGL_F32, 2, TGL_PACKED, "rank is -3, want 2");
    t.t.ndim = 2, t.t.shape = NULL;
    BAD(TGL_F32, 2, TGL_PACKED, "shape is NULL, want 2 sizes");
}

TEST(sizes)
{
    tensor t;
    make(&t, TGL_F32, 2, SHAPE(3, -5));
    BAD(TGL_F32, 2, TGL_PACKED, "shape is [3, -5], want sizes >= 0");
    make(&t, TGL_F32, 2, SHAPE(0, -1));
    BAD(TGL_F32, 2, TGL_PACKED, "shape is [0, -1], want sizes >= 0");
    /* 2^56 bytes are one too many, one element fewer is not */
    make(&t, TGL_U8, 2, SHAPE(1, 1));
    t.t.strides = NULL;
    t.shape[0] = (int64_t)1 << 62, t.shape[1] = 2;
    BAD(TGL_U8, 2, TGL_PACKED, "shape is [4611686018427387904, 2], want fewer than 2^56 bytes");
    t.shape[0] = ((int64_t)1 << 56) - 1, t.shape[1] = 1;
    GOOD(TGL_U8, 2, TGL_PACKED);
    t.t.dtype = tgl_dtype_to_dlpack(TGL_U16);
    BAD(TGL_U16, 2, TGL_PACKED, "shape is [72057594037927935, 1], want fewer than 2^56 bytes");
    /* empty: the other sizes may be anything */
    t.shape[0] = INT64_MAX, t.shape[1] = 0;
    GOOD(TGL_U16, 2, TGL_PACKED);
    CHECK_INT(tgl_num_elements(&t.t), 0);
    CHECK(tgl_is_empty(&t.t));
}

TEST(devices)
{
    tensor t;
    make(&t, TGL_F32, 1, SHAPE(4));
    const struct {
        int type, id;
        const char *message;
    } wrong[] = {
        { 0, 0, "x: device is type 0, want cpu or cuda:0..63" },
        { 8, 0, "x: device is type 8, want cpu or cuda:0..63" },
        { TGL_DL_CUDA, -1, "x: device is cuda:-1, want cpu or cuda:0..63" },
        { TGL_DL_CUDA, 64, "x: device is cuda:64, want cpu or cuda:0..63" },
        { TGL_DL_CUDA_MANAGED, 64, "x: device is cuda_managed:64, want cpu or cuda:0..63" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        t.t.device = (DLDevice){ (DLDeviceType)wrong[i].type, wrong[i].id };
        FAILS(tgl_expect("x", &t.t, TGL_F32, 1, TGL_PACKED), wrong[i].message);
        t.shape[0] = 0; /* where an empty tensor is matters too: it says where the op runs */
        FAILS(tgl_expect("x", &t.t, TGL_F32, 1, TGL_PACKED), wrong[i].message);
        t.shape[0] = 4;
    }
}

TEST(layouts)
{
    tensor t;
    make(&t, TGL_F32, 2, SHAPE(3, 5));
    t.strides[0] = 6;
    BAD(TGL_F32, 2, TGL_PACKED, "strides are [6, 1], want [5, 1]");
    GOOD(TGL_F32, 2, TGL_ROWS);
    t.strides[0] = 0;
    BAD(TGL_F32, 2, TGL_PACKED, "strides are [0, 1], want [5, 1]");
    GOOD(TGL_F32, 2, TGL_ROWS);
    t.strides[0] = -5;
    BAD(TGL_F32, 2, TGL_ROWS, "strides are [-5, 1], want 1 in the last dimension and >= 0 in the others");
    GOOD(TGL_F32, 2, TGL_STRIDED);
    t.strides[0] = 10, t.strides[1] = 2;
    BAD(TGL_F32, 2, TGL_ROWS, "strides are [10, 2], want 1 in the last dimension and >= 0 in the others");
    GOOD(TGL_F32, 2, TGL_STRIDED);
    /* sizes of 1, and empty tensors, have no stride */
    make(&t, TGL_F32, 3, SHAPE(1, 3, 1));
    t.strides[0] = -77, t.strides[1] = 1, t.strides[2] = 99;
    GOOD(TGL_F32, 3, TGL_PACKED);
    GOOD(TGL_F32, 3, TGL_ROWS);
    make(&t, TGL_F32, 2, SHAPE(0, 5));
    t.strides[0] = INT64_MIN, t.strides[1] = INT64_MIN;
    GOOD(TGL_F32, 2, TGL_PACKED);
    /* offsets: in elements, and in bytes */
    make(&t, TGL_U8, 2, SHAPE(3, 5));
    t.strides[0] = INT64_MAX / 2 + 1;
    BAD(TGL_U8, 2, TGL_STRIDED, "strides are [4611686018427387904, 1], want offsets below 2^56 bytes");
    BAD(TGL_U8, 2, TGL_ROWS, "strides are [4611686018427387904, 1], want offsets below 2^56 bytes");
    t.strides[0] = INT64_MIN;
    BAD(TGL_U8, 2, TGL_STRIDED, "strides are [-9223372036854775808, 1], want offsets below 2^56 bytes");
    t.strides[0] = (INT64_MAX - 4) / 2;
    t.t.dtype = tgl_dtype_to_dlpack(TGL_F32);
    BAD(TGL_F32, 2, TGL_STRIDED, "strides are [4611686018427387901, 1], want offsets below 2^56 bytes");
    /* no memory has so much, and twice as much would not fit in 64 bits */
    const int64_t most = ((int64_t)1 << 56) / 4 / 2;
    t.strides[0] = most;
    BAD(TGL_F32, 2, TGL_ROWS, "strides are [9007199254740992, 1], want offsets below 2^56 bytes");
    t.strides[0] = most - 3;
    GOOD(TGL_F32, 2, TGL_ROWS);
    t.strides[0] = -most;
    BAD(TGL_F32, 2, TGL_STRIDED, "strides are [-9007199254740992, 1], want offsets below 2^56 bytes");
    t.strides[0] = 1 - most;
    GOOD(TGL_F32, 2, TGL_STRIDED);
}

TEST(data)
{
    tensor t;
    make(&t, TGL_F32, 2, SHAPE(3, 5))->data = NULL;
    BAD(TGL_F32, 2, TGL_PACKED, "data is NULL, want 60 bytes");
    tgl_set_preparing(true);
    GOOD(TGL_F32, 2, TGL_PACKED);
    tgl_set_preparing(false);
    BAD(TGL_F32, 2, TGL_PACKED, "data is NULL, want 60 bytes");
    t.shape[1] = 0;
    GOOD(TGL_F32, 2, TGL_PACKED);
    CHECK(tgl_data(&t.t) == NULL);

    const struct {
        tgl_dtype dtype;
        int past;
        const char *message;
    } rows[] = {
        { TGL_U8, 1, NULL },
        { TGL_BF16, 1, "x: address is 1 bytes past a multiple of 2, want a multiple of 2" },
        { TGL_BF16, 2, NULL },
        { TGL_F32, 2, "x: address is 2 bytes past a multiple of 4, want a multiple of 4" },
        { TGL_C64, 4, "x: address is 4 bytes past a multiple of 8, want a multiple of 8" },
        { TGL_I64, 7, "x: address is 7 bytes past a multiple of 8, want a multiple of 8" },
        { TGL_C128, 8, NULL }, /* wider ones: 8 is enough */
        { TGL_C128, 4, "x: address is 4 bytes past a multiple of 8, want a multiple of 8" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int by_offset = 0; by_offset < 2; by_offset++) {
            make(&t, rows[i].dtype, 1, SHAPE(2));
            if (by_offset) t.t.byte_offset = (uint64_t)rows[i].past;
            else t.t.data = memory + rows[i].past;
            if (rows[i].message) FAILS(tgl_expect("x", &t.t, rows[i].dtype, 1, TGL_PACKED), rows[i].message);
            else GOOD(rows[i].dtype, 1, TGL_PACKED);
            CHECK(tgl_data(&t.t) == memory + rows[i].past);
        }
    make(&t, TGL_U8, 1, SHAPE(2))->byte_offset = UINT64_MAX;
    BAD(TGL_U8, 1, TGL_PACKED, "byte_offset is 18446744073709551615, want one that does not overflow the address");
    make(&t, TGL_U8, 1, SHAPE(64))->data = memory + 16;
    CHECK_OK(tgl_expect_aligned("x", &t.t, 16));
    FAILS(tgl_expect_aligned("x", &t.t, 32), "x: address is 16 bytes past a multiple of 32, want a multiple of 32");
}

/* Of an empty tensor nothing but the shape means anything; UBSan sees an address that wraps. */
TEST(data_of_empty_tensors)
{
    tensor t;
    make(&t, TGL_F32, 2, SHAPE(3, 0))->byte_offset = UINT64_MAX;
    GOOD(TGL_F32, 2, TGL_PACKED);
    CHECK(tgl_data(&t.t) == memory);
    t.t.data = NULL;
    CHECK(tgl_data(&t.t) == NULL);
    make(&t, TGL_F32, 2, SHAPE(3, 1))->byte_offset = 8;
    CHECK(tgl_data(&t.t) == memory + 8);
    t.t.data = NULL; /* as in prepare mode */
    CHECK(tgl_data(&t.t) == NULL);
}

TEST(shapes)
{
    tensor t;
    make(&t, TGL_F32, 2, SHAPE(3, 5));
    CHECK_OK(tgl_expect_shape("y", &t.t, (tgl_dim[]){ { 3, 3 }, { 5, 5 } }));
    CHECK_OK(tgl_expect_shape("y", &t.t, (tgl_dim[]){ { 0, 3 }, { 5, 9 } }));
    FAILS(tgl_expect_shape("y", &t.t, (tgl_dim[]){ { 3, 3 }, { 0, 4 } }), "y: shape is [3, 5], want [3, 0..4]");
    FAILS(tgl_expect_shape("y", &t.t, (tgl_dim[]){ { 4, 4 }, { 5, 5 } }), "y: shape is [3, 5], want [4, 5]");
    FAILS(tgl_expect_shape("y", &t.t, (tgl_dim[]){ { 4, 8 }, { 0, 9 } }), "y: shape is [3, 5], want [4..8, 0..9]");
    CHECK_OK(tgl_expect_shape("y", make(&t, TGL_F32, 0, NULL), NULL));
}

TEST(same_device)
{
    tensor a, b;
    make(&a, TGL_F32, 1, SHAPE(4));
    make(&b, TGL_F32, 1, SHAPE(4));
    CHECK_OK(tgl_expect_same_device("b", &b.t, &a.t));
    b.t.device.device_type = (DLDeviceType)TGL_DL_CUDA_HOST;
    CHECK_OK(tgl_expect_same_device("b", &b.t, &a.t));
    b.t.device.device_type = (DLDeviceType)TGL_DL_CUDA;
    FAILS(tgl_expect_same_device("b", &b.t, &a.t), "b: device is cuda:0, want cpu");
    FAILS(tgl_expect_same_device("a", &a.t, &b.t), "a: device is cpu, want cuda:0");
    a.t.device = (DLDevice){ (DLDeviceType)TGL_DL_CUDA_MANAGED, 0 };
    CHECK_OK(tgl_expect_same_device("b", &b.t, &a.t));
    a.t.device.device_id = 3;
    FAILS(tgl_expect_same_device("b", &b.t, &a.t), "b: device is cuda:0, want cuda_managed:3");
    CHECK(!tgl_on_cpu(&a.t) && !tgl_on_cpu(&b.t));
}

TEST(same_dtype)
{
    tensor a, b;
    make(&a, TGL_E4M3, 1, SHAPE(4));
    CHECK_OK(tgl_expect_same_dtype("b", make(&b, TGL_E4M3, 1, SHAPE(4)), "a", &a.t));
    FAILS(tgl_expect_same_dtype("b", make(&b, TGL_U8, 1, SHAPE(4)), "a", &a.t), "b: dtype is u8, want e4m3 as a");
    /* two that the library has no name for are not the same for that */
    a.t.dtype = (DLDataType){ 3, 64, 1 }, b.t.dtype = (DLDataType){ 2, 32, 2 };
    FAILS(tgl_expect_same_dtype("b", &b.t, "a", &a.t),
          "b: dtype is code 2 with 32 bits and 2 lanes, want code 3 with 64 bits and 1 lanes as a");
}

/* Byte by byte, from the definition. */
static bool share_a_byte(const DLTensor *a, const DLTensor *b)
{
    static unsigned char owner[2][4096]; /* relative to 2048 bytes before `memory` */
    memset(owner, 0, sizeof owner);
    const DLTensor *both[2] = { a, b };
    for (int k = 0; k < 2; k++) {
        const DLTensor *t = both[k];
        const int size = tgl_dtype_bits(t->dtype) / 8;
        for (int64_t i = 0; i < t->shape[0]; i++)
            for (int64_t j = 0; j < t->shape[1]; j++) {
                const int64_t at = (char *)tgl_data(t) - memory + 2048 + (i * t->strides[0] + j * t->strides[1]) * size;
                for (int64_t byte = at; byte < at + size; byte++) owner[k][byte] = 1;
            }
    }
    for (int i = 0; i < 4096; i++)
        if (owner[0][i] && owner[1][i]) return true;
    return false;
}

TEST(overlap_of_packed_and_windows_is_exact)
{
    tensor a, b;
    test_random r = test_seed("overlap");
    int num_shared = 0, num_between = 0;
    for (int i = 0; i < 200000; i++) {
        /* windows of rows of one buffer: the same row stride in bytes, anywhere in it */
        const int64_t pitch = 8 + 4 * test_below(&r, 5), rows[2] = { 1 + test_below(&r, 4), 1 + test_below(&r, 4) };
        tensor *both[2] = { &a, &b };
        const tgl_dtype dtypes[] = { TGL_U8, TGL_BF16, TGL_F32 };
        for (int k = 0; k < 2; k++) {
            const int which = (int)test_below(&r, 3), size = 1 << which;
            make(both[k], dtypes[which], 2, SHAPE(rows[k], 1 + test_below(&r, pitch / size)));
            both[k]->strides[0] = pitch / size;
            both[k]->t.data = memory + 4 * test_below(&r, 40);
        }
        /* a window that runs over the end of its rows is two windows, which the rule does not promise to
         * see as such */
        const int64_t begin_a = ((char *)a.t.data - memory) % pitch, begin_b = ((char *)b.t.data - memory) % pitch;
        if (begin_a + a.shape[1] * tgl_dtype_bits(a.t.dtype) / 8 > pitch) continue;
        if (begin_b + b.shape[1] * tgl_dtype_bits(b.t.dtype) / 8 > pitch) continue;
        if (rows[0] == 1 || rows[1] == 1) continue;
        const bool shared = share_a_byte(&a.t, &b.t);
        if (shared) OVERLAP();
        else APART();
        num_shared += shared, num_between += !shared;
    }
    CHECK(num_shared > 1000 && num_between > 1000);
}

TEST(overlap_is_never_missed) /* whatever the strides: a shared byte is always refused */
{
    tensor a, b;
    test_random r = test_seed("overlap any strides");
    int num_shared = 0;
    for (int i = 0; i < 200000; i++) {
        tensor *both[2] = { &a, &b };
        for (int k = 0; k < 2; k++) {
            make(both[k], test_below(&r, 2) ? TGL_U8 : TGL_BF16, 2,
                 SHAPE(1 + test_below(&r, 4), 1 + test_below(&r, 6)));
            both[k]->strides[0] = test_below(&r, 41) - 20;
            both[k]->strides[1] = test_below(&r, 7) - 3;
            both[k]->t.data = memory + 256 + 2 * test_below(&r, 60);
        }
        if (!share_a_byte(&a.t, &b.t)) continue;
        num_shared++;
        CHECK_FAILS(tgl_expect_no_overlap("b", &b.t, "a", &a.t), TGL_ERR_ARGUMENT, NULL);
        CHECK_FAILS(tgl_expect_no_overlap("a", &a.t, "b", &b.t), TGL_ERR_ARGUMENT, NULL);
    }
    CHECK(num_shared > 1000);
    make(&a, TGL_U8, 2, SHAPE(2, 2));
    make(&b, TGL_U8, 2, SHAPE(2, 0));
    CHECK_OK(tgl_expect_no_overlap("b", &b.t, "a", &a.t)); /* nothing is shared with nothing */
}

TEST(overlap_in_three_dimensions)
{
    tensor a, b;
    make(&a, TGL_F32, 3, SHAPE(2, 3, 4));
    make(&b, TGL_F32, 3, SHAPE(2, 3, 4));
    a.strides[0] = b.strides[0] = 24, a.strides[1] = b.strides[1] = 8; /* left and right half of [2, 3, 8] */
    b.t.data = memory + 16;
    APART();
    b.t.data = memory + 12;
    OVERLAP();
    b.t.data = memory + 20; /* reaches into a's next row */
    OVERLAP();
}

TEST(overlap_of_parts_of_items) /* rows 0 .. 2 and row 3 of every item of [4, 4, 8]; and one element more */
{
    tensor a, b;
    make(&a, TGL_BF16, 3, SHAPE(4, 3, 8));
    a.strides[0] = 32;
    make(&b, TGL_BF16, 2, SHAPE(4, 8));
    b.strides[0] = 32;
    b.t.data = (uint16_t *)a.t.data + 24;
    APART();
    b.t.data = (uint16_t *)a.t.data + 23;
    OVERLAP();
    b.t.data = (uint16_t *)a.t.data + 25; /* reaches into the next item */
    OVERLAP();
}

TEST(overlap_with_strides_of_single_rows) /* which may be anything; found by fuzzing */
{
    tensor a, b;
    make(&a, TGL_F32, 2, SHAPE(1, 4));
    make(&b, TGL_F32, 2, SHAPE(1, 4))->data = memory + 16;
    a.strides[0] = b.strides[0] = INT64_MAX / 2;
    APART();
    b.t.data = memory + 12;
    OVERLAP();
    make(&a, TGL_U8, 3, SHAPE(1, 2, 1));
    make(&b, TGL_U8, 3, SHAPE(1, 2, 1));
    a.strides[0] = b.strides[0] = INT64_MIN, a.strides[1] = b.strides[1] = -1;
    OVERLAP();
    make(&a, TGL_U8, 2, SHAPE(1, 16))->data = memory + 4;
    make(&b, TGL_U8, 2, SHAPE(1, 16));
    a.strides[0] = b.strides[0] = INT64_MAX; /* b begins 4 bytes before a's next row would end */
    OVERLAP();
}

#define SAME_OR_APART(b) CHECK_OK(tgl_expect_same_or_no_overlap("b", b, "a", &a.t))
#define NEITHER(b) \
    FAILS(tgl_expect_same_or_no_overlap("b", b, "a", &a.t), "b: memory is shared with a, want no overlap")

TEST(the_same_tensor_or_no_overlap)
{
    tensor a, b;
    make(&a, TGL_F32, 2, SHAPE(3, 5));
    SAME_OR_APART(make(&b, TGL_F32, 2, SHAPE(3, 5)));
    a.t.data = memory + 4;
    b.t.strides = NULL, b.t.byte_offset = 4; /* the same, said otherwise */
    SAME_OR_APART(&b.t);
    make(&b, TGL_F32, 2, SHAPE(3, 5))->data = memory + 64;
    SAME_OR_APART(&b.t);
    b.t.data = memory + 60;
    NEITHER(&b.t);
    a.t.data = memory;
    NEITHER(make(&b, TGL_F32, 2, SHAPE(2, 5)));
    NEITHER(make(&b, TGL_F32, 1, SHAPE(15)));
    NEITHER(make(&b, TGL_U8, 2, SHAPE(3, 5)));
    make(&b, TGL_F32, 2, SHAPE(3, 5))->strides[0] = 6;
    NEITHER(&b.t);
    make(&a, TGL_F32, 2, SHAPE(1, 5));
    make(&b, TGL_F32, 2, SHAPE(1, 5))->strides[0] = 77; /* one row: any stride */
    SAME_OR_APART(&b.t);
    make(&a, TGL_F32, 2, SHAPE(3, 0))->data = NULL;
    make(&b, TGL_F32, 2, SHAPE(3, 0))->data = NULL;
    SAME_OR_APART(&b.t);
}

TEST(reserved_words)
{
    uint64_t reserved[TGL_RESERVED_WORDS] = { 0 };
    CHECK_OK(tgl_expect_reserved(reserved));
    for (int i = 0; i < TGL_RESERVED_WORDS; i++) {
        char message[64];
        snprintf(message, sizeof message, "reserved[%d]: is 18446744073709551615, want 0", i);
        reserved[i] = UINT64_MAX;
        FAILS(tgl_expect_reserved(reserved), message);
        reserved[i] = 0;
    }
}

TEST(strides_and_counts)
{
    tensor t;
    make(&t, TGL_F32, 3, SHAPE(2, 3, 4))->strides = NULL;
    CHECK_INT(tgl_stride(&t.t, 0), 12);
    CHECK_INT(tgl_stride(&t.t, 1), 4);
    CHECK_INT(tgl_stride(&t.t, 2), 1);
    CHECK_INT(tgl_num_elements(&t.t), 24);
    t.t.strides = t.strides;
    t.strides[1] = -9;
    CHECK_INT(tgl_stride(&t.t, 1), -9);
    CHECK_INT(tgl_num_elements(make(&t, TGL_F32, 0, NULL)), 1);
}

TEST(descriptions)
{
    tensor t;
    char text[256];
    make(&t, TGL_BF16, 2, SHAPE(8064, 7168))->strides = NULL;
    tgl_describe(&t.t, text, sizeof text);
    CHECK_TEXT(text, "bf16 [8064, 7168] on cpu");
    t.t.strides = t.strides;
    t.strides[0] = 14336;
    t.t.device = (DLDevice){ (DLDeviceType)TGL_DL_CUDA, 2 };
    tgl_describe(&t.t, text, sizeof text);
    CHECK_TEXT(text, "bf16 [8064, 7168] strides [14336, 1] on cuda:2");
    tgl_describe(NULL, text, sizeof text);
    CHECK_TEXT(text, "NULL");
    tgl_describe(make(&t, TGL_F32, 0, NULL), text, sizeof text);
    CHECK_TEXT(text, "f32 [] on cpu");
    t.t.ndim = 2, t.t.shape = NULL, t.t.strides = NULL;
    tgl_describe(&t.t, text, sizeof text);
    CHECK_TEXT(text, "f32 rank 2 without a shape on cpu");
    /* more dimensions than are printed, and a text that is too small */
    make(&t, TGL_U8, 10, SHAPE(1, 2, 3, 4, 5, 6, 7, 8, 9, 10))->strides = NULL;
    tgl_describe(&t.t, text, sizeof text);
    CHECK_TEXT(text, "u8 [1, 2, 3, 4, 5, 6, 7, 8, ...] on cpu");
    char small[8] = "1234567";
    tgl_describe(&t.t, small, sizeof small - 1);
    CHECK_TEXT(small, "u8 [1,");
    CHECK(small[7] == 0);
}

TEST(workspaces)
{
    static _Alignas(256) char space[1024];
    CHECK_OK(tgl_expect_workspace(space, 512, 512));
    CHECK_OK(tgl_expect_workspace(space + 256, 513, 512));
    CHECK_OK(tgl_expect_workspace(NULL, 0, 0));
    CHECK_OK(tgl_expect_workspace(space + 1, 0, 0)); /* none is wanted */
    CHECK_FAILS(tgl_expect_workspace(NULL, 512, 512), TGL_ERR_WORKSPACE,
                "workspace: is NULL, want 512 bytes of device memory");
    CHECK_FAILS(tgl_expect_workspace(space, 511, 512), TGL_ERR_WORKSPACE, "workspace_bytes: is 511, want >= 512");
    CHECK_FAILS(tgl_expect_workspace(space + 128, 512, 512), TGL_ERR_WORKSPACE, NULL);
    CHECK(strstr(tgl_last_error(), ", want a multiple of 256") != NULL);
    tgl_set_preparing(true);
    CHECK_OK(tgl_expect_workspace(NULL, 0, 512));
    tgl_set_preparing(false);
}

TEST(long_messages_are_cut)
{
    tensor t;
    make(&t, TGL_F32, 8, SHAPE(1, 1, 1, 1, 1, 1, 1, 1));
    for (int i = 0; i < 8; i++) t.shape[i] = INT64_MAX - i;
    CHECK_FAILS(tgl_expect("x", &t.t, TGL_F32, 8, TGL_PACKED), TGL_ERR_ARGUMENT, NULL);
    CHECK(!strncmp(tgl_last_error(), "x: shape is [9223372036854775807, 9223372036854775806, ", 55));
    CHECK(strstr(tgl_last_error(), "want fewer than 2^56 bytes") != NULL);
}
