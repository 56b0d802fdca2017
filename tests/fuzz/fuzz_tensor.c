/* SPDX-License-Identifier: MIT
 * fuzz_tensor.c - the checks of tensors and the transposes, on DLTensors made from any bytes. A libFuzzer
 * target; without libFuzzer, test_fuzz_tensor.c runs the same function.
 *
 * Beyond not crashing, every call is compared with a second opinion, written here in 128-bit arithmetic:
 * whether the arguments are valid and, if all their memory lies in the arena, what every byte of the arena
 * is after the call. */
#include <string.h>

#include "core/tensor.h"
#include "fuzz.h"
#include "tegula/transpose.h"

/* Products of two int64_t fit. Unchecked, because clang's check of a 128-bit product needs compiler-rt. */
typedef __int128 wide;
#define UNCHECKED __attribute__((no_sanitize("signed-integer-overflow")))

enum { ARENA = 1024, DIMS = 8 };
static _Alignas(256) unsigned char arena[ARENA], pattern[ARENA];
#define PATTERN(i) ((unsigned char)((i) * 151 + 7))

typedef struct {
    DLTensor t;
    int64_t shape[DIMS], strides[DIMS];
} tensor;

/* ---- tensors from bytes ---- */

static int64_t take_number(bytes *b) /* mostly small, else one that may overflow */
{
    // clang-format off: many numbers
    static const int64_t hard[16] = {
        0, -1, 1, 255, 1024, -1024, 65536, ((int64_t)1 << 31) - 1, -((int64_t)1 << 31), (int64_t)1 << 32,
        ((int64_t)1 << 56) - 1, (int64_t)1 << 56, INT64_MAX / 4 + 1, INT64_MAX / 2, INT64_MAX, INT64_MIN,
    };
    // clang-format on
    const unsigned v = take(b);
    if (v < 192) return v % 12;
    if (v < 208) return (int64_t)v - 208;
    if (v < 224) return hard[v - 208];
    return (int64_t)take_word(b);
}

static DLDataType take_dtype(bytes *b)
{
    static const DLDataType usual[] = { { TGL_DL_UINT, 8, 1 },   { TGL_DL_BFLOAT, 16, 1 },   { TGL_DL_FLOAT, 32, 1 },
                                        { TGL_DL_INT, 64, 1 },   { TGL_DL_COMPLEX, 128, 1 }, { TGL_DL_E4M3FN, 8, 1 },
                                        { TGL_DL_E2M1FN, 4, 2 }, { TGL_DL_FLOAT, 16, 4 } };
    const unsigned v = take(b);
    if (v < 240) return usual[v % 8];
    const uint8_t code = (uint8_t)take(b), bits = (uint8_t)take(b);
    return (DLDataType){ code, bits, (uint16_t)(take(b) << 8 | take(b)) };
}

static void take_tensor(bytes *b, tensor *t, int ndim)
{
    static const int devices[] = { TGL_DL_CPU,  TGL_DL_CPU,          TGL_DL_CPU, TGL_DL_CUDA_HOST,
                                   TGL_DL_CUDA, TGL_DL_CUDA_MANAGED, 4,          0 };
    const unsigned flags = take(b), device = take(b);
    *t = (tensor){ .t = { .ndim = ndim, .dtype = take_dtype(b), .shape = t->shape, .strides = t->strides } };
    if (flags < 8) t->t.ndim = (int32_t)take_number(b);
    t->t.device =
        (DLDevice){ (DLDeviceType)devices[device < 192 ? 0 : device % 8], device < 250 ? 0 : (int32_t)take_number(b) };
    for (int i = 0; i < DIMS; i++) t->shape[i] = i < ndim ? take_number(b) : 1;
    int64_t stride = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        t->strides[i] = stride;
        stride = (int64_t)((uint64_t)stride * (uint64_t)t->shape[i]);
    }
    if (flags & 64)
        for (int i = 0; i < ndim; i++) t->strides[i] = take_number(b);
    if (flags & 128) t->t.strides = NULL;
    if (flags % 32 == 9) t->t.shape = NULL;
    const unsigned place = take(b) * 4;
    if (flags % 32 != 10) t->t.data = arena + place % ARENA;
    t->t.byte_offset = flags & 32 ? take(b) : 0;
}

/* ---- the second opinion ---- */

static bool is_wide_enough(DLDataType d)
{
    const int bits = d.bits * d.lanes;
    return bits == 8 || bits == 16 || bits == 32 || bits == 64 || bits == 128;
}

UNCHECKED static wide stride_of(const DLTensor *t, int dim)
{
    if (t->strides) return t->strides[dim];
    wide stride = 1;
    for (int i = dim + 1; i < t->ndim; i++) stride *= t->shape[i];
    return stride;
}

typedef struct {
    bool ok, empty, on_cpu;
    int64_t size;   /* of an element */
    wide low, high; /* addresses low .. high - 1 */
} opinion;

UNCHECKED static opinion judge(const DLTensor *t, int ndim, bool packed)
{
    opinion o = { .ok = false };
    const wide limit = (wide)1 << 56;
    if (!t || !is_wide_enough(t->dtype) || t->ndim != ndim || !t->shape) return o;
    o.size = t->dtype.bits * t->dtype.lanes / 8;
    wide total = o.size, low = 0, high = 0;
    for (int i = 0; i < ndim; i++) {
        if (t->shape[i] < 0) return o;
        o.empty |= t->shape[i] == 0;
    }
    for (int i = 0; i < ndim && !o.empty; i++)
        if ((total *= t->shape[i]) >= limit) return o;
    const int type = (int)t->device.device_type;
    o.on_cpu = type == TGL_DL_CPU || type == TGL_DL_CUDA_HOST;
    const bool on_cuda =
        (type == TGL_DL_CUDA || type == TGL_DL_CUDA_MANAGED) && t->device.device_id >= 0 && t->device.device_id < 64;
    if (!o.on_cpu && !on_cuda) return o;
    if (o.empty) return (o.ok = true), o;
    wide wanted = 1;
    for (int i = ndim - 1; i >= 0; i--) {
        const wide stride = stride_of(t, i), reach = stride * (t->shape[i] - 1);
        if (packed && t->shape[i] != 1 && stride != wanted) return o;
        wanted *= t->shape[i];
        if (reach < 0) low += reach;
        else high += reach;
    }
    const wide most = (limit - 1) / o.size; /* elements before the first one, and from it on */
    if (-low > most || high + 1 > most || !t->data) return o;
    const uintptr_t at = (uintptr_t)t->data + (uintptr_t)t->byte_offset;
    if (at % (uintptr_t)(o.size < 8 ? o.size : 8)) return o;
    o.low = (wide)at + low * o.size;
    o.high = (wide)at + (high + 1) * o.size;
    o.ok = true;
    return o;
}

static bool in_arena(const opinion *o)
{
    return o->empty || (o->low >= (wide)(uintptr_t)arena && o->high <= (wide)(uintptr_t)arena + ARENA);
}

static bool same_dtype(DLDataType a, DLDataType b)
{
    return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

/* What the arena is after the call, element by element; false if x and out share a byte. */
UNCHECKED static bool model(const DLTensor *x, const DLTensor *out, int64_t size, bool batched,
                            unsigned char want[ARENA])
{
    bool is_out[ARENA] = { false };
    const int64_t b = batched ? x->shape[0] : 1, m = x->shape[batched], n = x->shape[batched + 1];
    const unsigned char *from = (unsigned char *)x->data + x->byte_offset;
    unsigned char *to = want + ((unsigned char *)out->data + out->byte_offset - arena);
    memcpy(want, arena, ARENA);
    memset(is_out + (to - want), 1, (size_t)(b * m * n * size));
    for (int64_t k = 0; k < b * m * n; k++) {
        const int64_t i = k % m, j = k / m % n, batch = k / m / n;
        wide offset = i * stride_of(x, batched) + j * stride_of(x, batched + 1);
        if (batched) offset += batch * stride_of(x, 0);
        const unsigned char *element = from + (int64_t)offset * size;
        for (int64_t byte = 0; byte < size; byte++)
            if (is_out[element + byte - arena]) return false;
        memcpy(to + k * size, element, (size_t)size);
    }
    return true;
}

/* ---- one input ---- */

static void try_checks(const tensor *t, int ndim, bool describe)
{
    char text[64];
    bool ok[3];
    for (int layout = TGL_PACKED; layout <= TGL_STRIDED; layout++)
        ok[layout] = tgl_expect("t", &t->t, TGL_ANY, ndim, (tgl_layout)layout) == TGL_OK;
    INSIST(ok[TGL_PACKED] == judge(&t->t, ndim, true).ok && ok[TGL_STRIDED] == judge(&t->t, ndim, false).ok);
    INSIST(ok[TGL_PACKED] <= ok[TGL_ROWS] && ok[TGL_ROWS] <= ok[TGL_STRIDED]); /* each allows more */
    if (!describe) return;
    tgl_describe(&t->t, text, sizeof text);
    INSIST(memchr(text, 0, sizeof text));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bytes b = { data, data + size };
    const unsigned flags = take(&b);
    const bool batched = flags & 1;
    const int ndim = batched ? 3 : 2;
    tensor x, out;
    take_tensor(&b, &x, ndim);
    take_tensor(&b, &out, ndim);
    if (flags & 2) { /* an output that fits, so that most calls get far */
        out.t.dtype = x.t.dtype;
        out.t.device = x.t.device;
        out.shape[0] = x.shape[0];
        out.shape[batched] = x.shape[batched + 1];
        out.shape[batched + 1] = x.shape[batched];
        if (flags & 4) out.t.strides = NULL;
    }
    try_checks(&x, ndim, flags & 8);
    try_checks(&out, ndim, flags & 8);

    const DLTensor *px = flags >= 252 ? NULL : &x.t;
    DLTensor *pout = flags % 64 == 35 ? NULL : &out.t;
    const opinion ox = judge(px, ndim, false), oo = judge(pout, ndim, true);
    bool ok = ox.ok && oo.ok && same_dtype(px->dtype, pout->dtype) && ox.on_cpu == oo.on_cpu &&
              (ox.on_cpu || px->device.device_id == pout->device.device_id) &&
              pout->shape[batched] == px->shape[batched + 1] && pout->shape[batched + 1] == px->shape[batched] &&
              (!batched || px->shape[0] == pout->shape[0]);
    const bool ranges_meet = ok && !ox.empty && ox.low < oo.high && oo.low < ox.high;
    if (ok && !ox.empty && (!ox.on_cpu || !in_arena(&ox) || !in_arena(&oo))) return 0; /* not our memory */

    if (!pattern[0])
        for (int i = 0; i < ARENA; i++) pattern[i] = PATTERN(i);
    unsigned char want[ARENA];
    memcpy(arena, pattern, ARENA);
    const bool writes = ok && !ox.empty, apart = !writes || model(px, pout, ox.size, batched, want);
    const tgl_status status = batched ? tgl_batched_transpose(px, pout, NULL) : tgl_transpose(px, pout, NULL);
    INSIST(status == TGL_OK || status == TGL_ERR_ARGUMENT);
    if (!ok || !apart) INSIST(status == TGL_ERR_ARGUMENT);
    else if (!ranges_meet) INSIST(status == TGL_OK); /* where ranges meet the check may be too careful */
    if (status != TGL_OK) {
        const char *message = tgl_last_error();
        INSIST(!strncmp(message, "x: ", 3) || !strncmp(message, "out: ", 5));
        INSIST(strstr(message, ", want "));
        INSIST(!memcmp(arena, pattern, ARENA)); /* nothing was written */
    } else {
        INSIST(!memcmp(arena, writes ? want : pattern, ARENA));
    }
    return 0;
}
