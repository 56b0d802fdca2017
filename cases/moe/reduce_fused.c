/* SPDX-License-Identifier: MIT
 * reduce_fused.c - the oracle rounds exact sums, where the op uses fma.
 *
 * What must not be read is NaN: weights of empty slots, rows of x and factors without a slot.
 * Values, of x and of weights and factors alike:
 *   normal, bits  as in moe.h
 *   special       NaN, infinities, zeros, subnormals, the largest
 *   order         sums that depend on the order, products that need all bits
 *   halfway       halfway between two numbers of the output's dtype, or next to it; weights and factors are 1
 *   large         around the largest numbers of e4m3, f16 and bf16; weights and factors are 1 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/moe/common/routing.h"
#include "core/status.h"

enum { TO_POS, ROWS, ROW_SF, WEIGHTS, SCALE, REDUCED };

enum { NORMAL, BITS, SPECIAL, ORDER, HALFWAY, LARGE };
#define VALUES "normal bits special order halfway large"

typedef struct {
    case_tensor *t;
    uint64_t seed;
    int kind; /* of values */
    bool is_x;
    tgl_dtype out_dtype;
} filling;

static double halfway_value(tgl_dtype dtype, uint64_t random)
{
    unsigned char code[2][16] = { { 0 } };
    const bool is_byte = dtype == TGL_E4M3;
    const unsigned magnitude = (unsigned)(random % (is_byte ? 0x7e : dtype == TGL_F16 ? 0x7bff : 0x7f7f));
    for (unsigned i = 0; i < 2; i++) {
        code[i][0] = (unsigned char)((magnitude + i) & 0xff);
        code[i][1] = (unsigned char)((magnitude + i) >> 8);
    }
    const tgl_dtype format = dtype == TGL_F32 ? TGL_BF16 : dtype;
    const float middle = (float)((case_decode(format, code[0]) + case_decode(format, code[1])) / 2);
    const float beside = random >> 40 & 1 ? nextafterf(middle, INFINITY) : nextafterf(middle, 0);
    return (random >> 32 & 1 ? -1.0 : 1.0) * (double)(random >> 41 & 1 ? beside : middle);
}

static double value_of(const filling *f, uint64_t random)
{
    static const float special[] = { NAN,     -NAN,   INFINITY,      -INFINITY,      0, -0.0f, 1e-40f,
                                     -1e-45f, 1e-38f, 3.4028235e38f, -3.4028235e38f, 1, -1,    0.3f };
    static const float order[] = { 16777216,       -16777216,      1,       1.0000001f, -0.99999994f,
                                   4097,           0.00024420023f, 8388609, 3e-8f,      1.1754944e-38f,
                                   -5.9604645e-8f, 0.1f,           1e-30f,  1e20f,      -1e20f };
    static const float large[] = { 448,           449,           463.99997f,    464,          464.00003f,
                                   465,           479.99997f,    480,           1e6f,         INFINITY,
                                   NAN,           65504,         65519.996f,    65520,        65536,
                                   3.3895314e38f, 3.3961775e38f, 3.3961773e38f, 3.4028235e38f };
    const uint64_t pick = random >> 8;
    const float sign = random & 1 ? -1.0f : 1.0f;
    if (f->kind == SPECIAL) return (double)special[pick % (sizeof special / sizeof *special)];
    if (f->kind == ORDER) return (double)order[pick % (sizeof order / sizeof *order)];
    if (!f->is_x) return 1;
    if (f->kind == LARGE) return (double)(sign * large[pick % (sizeof large / sizeof *large)]);
    return halfway_value(f->out_dtype, random);
}

static void values_chunk(void *context, int64_t begin, int64_t end)
{
    const filling *f = context;
    for (int64_t i = begin; i < end; i++)
        case_encode(f->t->dtype, value_of(f, case_random(f->seed, i)), f->t->storage + i * f->t->element_bytes);
}

static void fill_values(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const int kind = case_word(c, "values", VALUES);
    if (kind == NORMAL) case_fill_normal(c, t, seed);
    else if (kind == BITS) case_fill_bits(c, t, seed);
    else
        case_parallel(t->slots, 64, values_chunk,
                      &(filling){ t, seed, kind, t == &c->tensors[ROWS], c->tensors[REDUCED].dtype });
}

static bool is_position(const case_problem *c, int64_t p) { return p >= 0 && p < c->tensors[ROWS].shape[0]; }

static void fill_weights(const case_problem *c, case_tensor *t, uint64_t seed)
{
    fill_values(c, t, seed);
    for (int64_t i = 0; i < t->shape[0] * t->shape[1]; i++) {
        const int64_t at[2] = { i / t->shape[1], i % t->shape[1] };
        if (t->strides[0] && !is_position(c, moe_index_at(&c->tensors[TO_POS], at[0], at[1])))
            case_encode(TGL_F32, NAN, case_element(t, at));
    }
}

/* Rows of x and their factors. */
static void fill_rows(const case_problem *c, case_tensor *t, uint64_t seed)
{
    const case_tensor *to_pos = &c->tensors[TO_POS];
    bool *is_read = case_memory(t->shape[0], sizeof *is_read);
    fill_values(c, t, seed);
    for (int64_t i = 0; i < to_pos->shape[0] * to_pos->shape[1]; i++) {
        const int64_t p = ((const int32_t *)to_pos->data)[i];
        if (is_position(c, p)) is_read[p] = true;
    }
    const int64_t width = t->ndim > 1 ? t->shape[1] : 1;
    char *nans = case_memory(width, (size_t)t->element_bytes);
    for (int64_t i = 0; i < width; i++) case_encode(t->dtype, NAN, nans + i * t->element_bytes);
    for (int64_t p = 0; p < t->shape[0] && width; p++)
        if (!is_read[p] && (t->ndim == 1 || t->strides[0]))
            memcpy(case_element(t, (int64_t[]){ p, 0 }), nans, (size_t)(width * t->element_bytes));
    free(nans);
    free(is_read);
}

static void fill_scale(const case_problem *c, case_tensor *t, uint64_t seed)
{
    *(float *)t->data = strtof(case_text(c, "sf"), NULL);
}

static tgl_status setup(case_problem *c)
{
    const int64_t hidden = case_int(c, "hidden");
    const tgl_dtype dtype = case_dtype(c, "dtype"), out_dtype = case_dtype(c, "out_dtype");
    TGL_TRY(routing_check_sizes(c, ROUTING_SIZES("num_experts", "alignment", "num_positions", "hidden", NULL)));
    TGL_TRY(case_check_word(c, "slots", "mapped lost wild"));
    TGL_TRY(case_check_word(c, "values", VALUES));
    mapping m = mapping_of_case(c);
    const int64_t slots[2] = { m.num_tokens, m.num_topk };
    for (int64_t i = 0; i < slots[0] * slots[1]; i++)
        c->scalar += m.at[TOKEN_TOPK_TO_POS][i] >= 0 && m.at[TOKEN_TOPK_TO_POS][i] < m.num_positions;
    mapping_free(&m);
    case_add(c, TO_POS, "token_topk_to_pos", CASE_IN, TGL_I32, 2, slots)->fill = mapping_fill_to_pos;
    case_tensor *x = case_add(c, ROWS, "x", CASE_IN, dtype, 2, (int64_t[]){ m.num_positions, hidden });
    x->fill = fill_rows;
    x->offset = case_int(c, "offset");
    if (case_int(c, "x_sf")) case_add(c, ROW_SF, "x_sf", CASE_IN, TGL_F32, 1, &m.num_positions)->fill = fill_rows;
    if (case_int(c, "weights")) {
        case_tensor *w = case_add(c, WEIGHTS, "topk_weights", CASE_IN, TGL_F32, 2, slots);
        w->fill = fill_weights;
        w->offset = x->offset;
        TGL_TRY(moe_lay_out(case_text(c, "layout"), slots[1], w->strides));
    }
    if (!case_is(c, "sf", "none")) case_add(c, SCALE, "sf", CASE_IN, TGL_F32, 1, (int64_t[]){ 1 })->fill = fill_scale;
    case_tensor *out = case_add(c, REDUCED, "out", CASE_OUT, out_dtype, 2, (int64_t[]){ m.num_tokens, hidden });
    out->offset = case_int(c, "out_offset");
    TGL_TRY(moe_lay_out(case_text(c, "layout"), hidden, x->strides));
    return moe_lay_out(case_text(c, "out_layout"), hidden, out->strides);
}

static tgl_status run(const case_arguments *a)
{
    return tgl_moe_reduce_fused(a->arg[ROWS], a->arg[ROW_SF], a->arg[WEIGHTS], a->arg[TO_POS], a->arg[SCALE],
                                a->arg[REDUCED], a->stream);
}

/* a * b + c with one rounding. The product of two floats is exact in double. The sum is rounded to odd: if it
 * is inexact, its last bit is set. Then it is on the same side of every float and of every midpoint of two
 * floats as the exact sum, and rounds to the same float. */
static float fused(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = (double)c;
    const double sum = product + addend;
    if (!isfinite(sum) || sum == 0) return (float)sum;
    const double part = sum - product;
    const double error = (product - (sum - part)) + (addend - part);
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    if (error != 0 && bits % 2 == 0) bits += (error > 0) == (sum > 0) ? 1 : -1;
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}

/* `decoded` has the values of all codes of x's dtype, if that is narrower than f32. */
typedef struct {
    const case_problem *c;
    float *decoded;
} reduction;

static float element_of(const reduction *r, const case_tensor *t, const char *from)
{
    if (t->element_bytes == 4) return *(const float *)from;
    return r->decoded[t->element_bytes == 2 ? *(const uint16_t *)from : *(const uint8_t *)from];
}

static void reduce_rows(void *context, int64_t begin, int64_t end)
{
    const reduction *r = context;
    const case_tensor *const t = r->c->tensors, *const x = &t[ROWS], *const out = &t[REDUCED];
    const int64_t hidden = out->shape[1];
    const uint32_t nan = UINT32_MAX >> (33 - 8 * out->element_bytes); /* all bits but the sign */
    float *sum = case_memory(hidden, sizeof *sum);
    for (int64_t token = begin; token < end; token++) {
        for (int64_t i = 0; i < hidden; i++) sum[i] = 0;
        for (int64_t k = 0; k < t[TO_POS].shape[1]; k++) {
            const int64_t p = moe_index_at(&t[TO_POS], token, k);
            if (!is_position(r->c, p)) continue;
            double factor = 1;
            if (t[WEIGHTS].name) factor = *(const float *)case_element(&t[WEIGHTS], (int64_t[]){ token, k });
            if (t[ROW_SF].name) factor = (double)(float)(factor * (double)((const float *)t[ROW_SF].data)[p]);
            const char *row = case_element(x, (int64_t[]){ p, 0 });
            for (int64_t i = 0; i < hidden; i++)
                sum[i] = fused(element_of(r, x, row + i * x->element_bytes), (float)factor, sum[i]);
        }
        for (int64_t i = 0; i < hidden; i++) {
            void *to = case_element(out, (int64_t[]){ token, i });
            if (t[SCALE].name) sum[i] = (float)((double)sum[i] * (double)*(const float *)t[SCALE].data);
            if (isnan(sum[i])) memcpy(to, &nan, (size_t)out->element_bytes);
            else case_encode(out->dtype, (double)sum[i], to);
        }
    }
    free(sum);
}

static void oracle(case_problem *c)
{
    const case_tensor *x = &c->tensors[ROWS];
    reduction r = { c, NULL };
    if (x->element_bytes < 4) {
        r.decoded = case_memory(65536, sizeof *r.decoded);
        for (uint32_t code = 0; code < (x->element_bytes == 2 ? 65536u : 256u); code++)
            r.decoded[code] = (float)case_decode(x->dtype, &code);
    }
    case_parallel(c->tensors[TO_POS].shape[0], 64 * x->shape[1], reduce_rows, &r);
    free(r.decoded);
}

/* Counts only the rows of x in slots, c->scalar of them; all other tensors whole. */
static int64_t bytes(const case_problem *c)
{
    const case_tensor *x = &c->tensors[ROWS];
    const int64_t row = x->shape[1] * (tgl_dtype_bits(tgl_dtype_to_dlpack(x->dtype)) / 8);
    return case_all_bytes(c) - case_tensor_bytes(x) + c->scalar * row;
}

// clang-format off: lines of cases
const case_op reduce_fused_cases = {
    "moe_reduce_fused",
    ROUTING_PARAMS "hidden= alignment= num_positions=exact slots=mapped dtype=bf16 out_dtype=bf16 weights=1 "
    "x_sf=0 sf=none "
    "values=normal layout=packed out_layout=packed offset=0 out_offset=0",
    setup, run, oracle, bytes, NULL,
    .lists[CASE_CHECK] = CASE_LINES(
        "num_tokens=9 num_topk=2,6,8,9 num_experts=9,4 num_ranks=8 hidden=256,576 alignment=1 "
        "dtype=bf16,f32 out_dtype=bf16,f32",
        "num_tokens=9 num_topk=6 num_experts=9 hidden=256 alignment=1 dtype=bf16,f32 out_dtype=bf16,e4m3 "
        "weights=0,1 x_sf=0,1 sf=none,0.37",
        "num_tokens=5 num_topk=3 num_experts=5 hidden=1,7,64,100 alignment=3 dtype=f32,bf16,f16,e4m3 "
        "out_dtype=f32,bf16,f16,e4m3 x_sf=1 sf=1.7 routing=some_empty",
        "num_tokens=5 num_topk=3 num_experts=5 hidden=72 alignment=3 dtype=f32,bf16,f16,e4m3 "
        "out_dtype=f32,bf16,f16,e4m3 values=bits,special routing=some_empty",
        "num_tokens=33 num_topk=1 num_experts=5 hidden=300 alignment=1 dtype=f32 "
        "out_dtype=f32,bf16,f16,e4m3 values=halfway,large weights=0,1",
        "num_tokens=33 num_topk=1 num_experts=5 hidden=64 alignment=1 dtype=bf16,f16,e4m3 "
        "out_dtype=f32,bf16,f16,e4m3 values=halfway,large",
        "num_tokens=9 num_topk=1,2,8,32 num_experts=40 hidden=136 alignment=1 dtype=f32,bf16 "
        "out_dtype=f32,e4m3 x_sf=0,1 values=order",
        "num_tokens=7 num_topk=8 num_experts=5 hidden=64 alignment=1 dtype=f32 out_dtype=f32,bf16,f16,e4m3 "
        "values=order,special sf=0,-0.0,-2,nan,inf,1e-38,3e38 x_sf=1",
        "num_tokens=9 num_topk=0,1,2,3,4,5,7,8,9,16,31,32,33,70 num_experts=80 hidden=24 alignment=1 "
        "routing=some_empty values=order dtype=f32 out_dtype=f32",
        "num_tokens=7 num_topk=4 num_experts=5 hidden=4100,7168 alignment=16 dtype=bf16,f32 out_dtype=bf16",
        "num_tokens=0 num_topk=2 num_experts=5 hidden=64 alignment=16 num_positions=0,9",
        "num_tokens=7 num_topk=2 num_experts=5 hidden=0 alignment=16",
        "num_tokens=7 num_topk=4 num_experts=5 hidden=40 alignment=16 routing=empty,one,gaps,garbage "
        "num_positions=exact,less,none,bound x_sf=1 sf=none,-3",
        "num_tokens=20 num_topk=3 num_experts=4 hidden=7,72 alignment=5 slots=lost,wild "
        "dtype=e4m3,bf16,f32 num_positions=exact,less,more routing=some_empty",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=64,65 alignment=4 layout=half,gap,repeated "
        "out_layout=packed,half,gap dtype=e4m3,bf16,f32 out_dtype=bf16",
        "num_tokens=6 num_topk=3 num_experts=5 hidden=64 alignment=4 offset=0,1,2,4,8 out_offset=0,1,2,4,8 "
        "dtype=bf16,f32 out_dtype=bf16,e4m3",
        "num_tokens=700 num_topk=4 num_experts=16 hidden=9 alignment=16",
        "num_tokens=513 num_topk=1,8,9,32,33 num_experts=40 hidden=80 alignment=4 routing=some_empty",
        "num_tokens=515 num_topk=4 num_experts=16 hidden=4112 alignment=1 slots=mapped,wild x_sf=1 sf=-3 "
        "dtype=e4m3 out_dtype=f32,e4m3",
        "num_tokens=515 num_topk=2 num_experts=16 hidden=4112 alignment=1 slots=mapped,wild x_sf=1 sf=-3 "
        "dtype=f32 out_dtype=f32,e4m3",
        "num_tokens=515 num_topk=4 num_experts=16 hidden=80 alignment=1 dtype=f16 out_dtype=f16",
        "num_tokens=4097 num_topk=3 num_experts=40 hidden=8 alignment=1 x_sf=1"),    /* two per block */
    .lists[CASE_SLOW] = CASE_LINES(
        /* more blocks than gridDim.y allows: a second trip */
        "num_tokens=131100 num_topk=8,32 num_experts=16 hidden=8 alignment=1",
        "num_tokens=4001 num_topk=2,6,8,9 num_experts=9,32,4 num_ranks=8 hidden=2048,7168 alignment=1 "
        "dtype=bf16,f32 out_dtype=bf16",
        "num_tokens=8001 num_topk=6 num_experts=9,4 num_ranks=8,64 hidden=2560,3072,4096,6144 "
        "alignment=1 out_dtype=bf16,e4m3",
        "num_tokens=4001 num_topk=8 num_experts=32 num_ranks=8 hidden=2560 alignment=1 dtype=bf16,f32 "
        "out_dtype=bf16,f32,e4m3 weights=0,1 x_sf=0,1 sf=none,0.37",
        "num_tokens=4001 num_topk=6,32 num_experts=72 hidden=576 alignment=1 dtype=f32,f16,e4m3 "
        "out_dtype=f32,bf16,f16,e4m3 values=order,special,bits x_sf=1",
        "num_tokens=4001 num_topk=1 num_experts=72 hidden=2048 alignment=1 dtype=f32 "
        "out_dtype=bf16,f16,e4m3 values=halfway,large weights=0",
        /* past 2^31 elements: x, out */
        "num_tokens=64 num_topk=4 num_experts=8 hidden=7168 alignment=45000 dtype=e4m3 out_dtype=bf16",
        "num_tokens=33000 num_topk=2 num_experts=4 hidden=16 alignment=16 dtype=e4m3 out_dtype=e4m3 "
        "out_layout=far"),
    .lists[CASE_BENCH] = CASE_LINES(
        "num_tokens=1,128,4096 num_topk=8 num_experts=256 hidden=7168 alignment=16",
        "num_tokens=4096,8192 num_topk=8 num_experts=32 num_ranks=8 hidden=7168 alignment=128",
        "num_tokens=4096 num_topk=6 num_experts=384 hidden=4096 alignment=16",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 weights=0",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 x_sf=1",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 out_dtype=e4m3 sf=0.37",
        "num_tokens=4096 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=f32 out_dtype=f32",
        "num_tokens=8,64 num_topk=8 num_experts=256 hidden=7168 alignment=16",
        "num_tokens=1024 num_topk=2 num_experts=9 num_ranks=8 hidden=2048 alignment=1",
        "num_tokens=1024 num_topk=9 num_experts=9 num_ranks=8 hidden=2048,6144 alignment=1"),
    .lists[CASE_KERNELS] = CASE_LINES(
        "num_tokens=64 num_topk=8 num_experts=256 hidden=7168 alignment=16 dtype=f32,bf16,f16,e4m3 "
        "out_dtype=f32,bf16,f16,e4m3",
        "num_tokens=64 num_topk=1,6,33 num_experts=256 hidden=7,576,7168 alignment=16",
        "num_tokens=64 num_topk=8 num_experts=256 hidden=4096 alignment=16 weights=0,1 x_sf=0,1 sf=none,1"),
    .models = CASE_LINES(
        "num_tokens=64 num_topk={num_topk} num_experts={experts_per_rank} hidden={hidden} alignment=1"),
};
// clang-format on
