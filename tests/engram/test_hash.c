/* SPDX-License-Identifier: MIT
 * tgl_engram_hash, on every device of the tests. Written from the specification: a prefix of a window is hashed
 * by multiplications and XOR in 64 bits, and taken modulo the size of each table. */
#include "errors.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_hash")

/* ---- examples ---- */

typedef struct {
    int64_t num_tokens, max_ngram, num_heads;
    const int64_t *ids, *multipliers;
    const int32_t *vocab_sizes, *offsets;
    const bool *mask;
} windows;

/* One layer; with ids, moduli, offsets and rows of 64 bits, too. */
static void check_rows(windows w, const int32_t *want)
{
    const int64_t n = w.num_tokens * w.max_ngram, columns = (w.max_ngram - 1) * w.num_heads;
    int32_t narrow_ids[64];
    int64_t sizes[64], offsets[64], wide_want[64];
    REQUIRE(n <= 64 && columns <= 64 && w.num_tokens * columns <= 64);
    for (int64_t i = 0; i < n; i++) narrow_ids[i] = (int32_t)w.ids[i];
    for (int64_t i = 0; i < columns; i++) sizes[i] = w.vocab_sizes[i], offsets[i] = w.offsets[i];
    for (int64_t i = 0; i < w.num_tokens * columns; i++) wide_want[i] = want[i];
    FOR_BACKENDS(b)
        for (int is_wide = 0; is_wide < 2; is_wide++) {
            const tgl_dtype dtype = is_wide ? TGL_I64 : TGL_I32;
            tensor ids, multipliers, vocab, off, mask, out;
            place(b, &ids, dtype, 2, SHAPE(w.num_tokens, w.max_ngram), is_wide ? (const void *)w.ids : narrow_ids);
            place(b, &multipliers, TGL_I64, 2, SHAPE(1, w.max_ngram), w.multipliers);
            place(b, &vocab, dtype, 3, SHAPE(1, w.max_ngram - 1, w.num_heads),
                  is_wide ? (const void *)sizes : w.vocab_sizes);
            place(b, &off, dtype, 2, SHAPE(1, columns), is_wide ? (const void *)offsets : w.offsets);
            if (w.mask) place(b, &mask, TGL_BOOL, 1, SHAPE(w.num_tokens), w.mask);
            place(b, &out, dtype, 3, SHAPE(1, w.num_tokens, columns), NULL);
            CHECK_OK(tgl_engram_hash(&ids.t, &multipliers.t, &vocab.t, &off.t, w.mask ? &mask.t : NULL, &out.t,
                                     b->stream));
            check_contents(b, &out, is_wide ? (const void *)wide_want : want, "out");
            discard(b, &ids), discard(b, &multipliers), discard(b, &vocab), discard(b, &off);
            if (w.mask) discard(b, &mask);
        }
}
#define ROWS(...) ((int32_t[]){ __VA_ARGS__ })

TEST(worked_example)
{
    /* doc: hash */
    const int64_t multipliers[] = { 3, 1000003, 17 };
    const int32_t vocab_sizes[] = { 101, 103, /**/ 107, 109 }, offsets[] = { 0, 101, 204, 311 };
    const int64_t ids[] = { 5, 7, 11 }; /* h = 15, 7000026, 6999905 */
    windows w = { 1, 3, 2, ids, multipliers, vocab_sizes, offsets, NULL };
    check_rows(w, ROWS(19, 144, 276, 345));

    const int64_t wraps[] = { ((int64_t)1 << 62) + 1, 3, 5 };
    const int64_t negative[] = { 2, 9, 4 }; /* h = 2 - 2^63, 25 - 2^63, 13 - 2^63: the modulo is from 0 on */
    w.multipliers = wraps, w.ids = negative;
    check_rows(w, ROWS(36, 150, 278, 400));
    /* end */
}

TEST(masked_tokens) /* -1, whatever their ids are */
{
    const int64_t multipliers[] = { 3, 1000003, 17 }, ids[] = { 5, 7, 11, INT32_MIN, INT32_MAX, -1, 5, 7, 11 };
    const int32_t vocab_sizes[] = { 101, 103, 107, 109 }, offsets[] = { 0, 101, 204, 311 };
    const bool mask[] = { false, true, false };
    check_rows((windows){ 3, 3, 2, ids, multipliers, vocab_sizes, offsets, mask },
               ROWS(19, 144, 276, 345, -1, -1, -1, -1, 19, 144, 276, 345));
}

TEST(moduli_that_are_none) /* -1, whatever their offset is; the others are as always */
{
    const int64_t multipliers[] = { 3, 1000003, 17 }, ids[] = { 5, 7, 11, 2, 9, -4 };
    const int32_t vocab_sizes[] = { 0, 103, INT32_MIN, -109 }, offsets[] = { 7, 101, 204, 311 };
    check_rows((windows){ 2, 3, 2, ids, multipliers, vocab_sizes, offsets, NULL },
               ROWS(-1, 144, -1, -1, -1, 101 + (9000027 ^ 6) % 103, -1, -1));
}

TEST(modulus_1_and_the_largest)
{
    const int64_t multipliers[] = { 1, 1 }, ids[] = { 0, -1, INT32_MAX, 0, -1, 0, INT32_MIN, INT32_MAX };
    const int32_t vocab_sizes[] = { 1, INT32_MAX }, offsets[] = { 5, 0 };
    /* h = -1, 2^31 - 1, -1, -1 */
    check_rows((windows){ 4, 2, 2, ids, multipliers, vocab_sizes, offsets, NULL },
               ROWS(5, INT32_MAX - 1, 5, 0, 5, INT32_MAX - 1, 5, INT32_MAX - 1));
}

TEST(all_bits_of_ids_and_multipliers) /* a modulus of 2^62 shows those of a hash but two */
{
    const int64_t big = (int64_t)1 << 62;
    FOR_BACKENDS(b) {
        const int64_t ids[] = { INT64_MIN, INT64_MAX, INT64_MAX, INT64_MIN, -1, 1 };
        const int64_t multipliers[] = { -1, 3 }, sizes[] = { big, INT64_MAX }, offsets[] = { 0, INT64_MAX };
        /* h = 2^63 ^ (3 * 2^63 - 3), -(2^63 - 1) ^ (3 * 2^63), 1 ^ 3: all modulo 2^64 */
        const uint64_t hashes[] = { (uint64_t)-3, 1, 2 };
        int64_t want[6];
        for (int i = 0; i < 3; i++) {
            const __int128 h = (int64_t)hashes[i];
            want[2 * i] = (int64_t)(hashes[i] % (uint64_t)big);
            want[2 * i + 1] = (int64_t)((uint64_t)((h + INT64_MAX) % INT64_MAX) + (uint64_t)INT64_MAX);
        }
        tensor t_ids, t_multipliers, t_sizes, t_offsets, out;
        place(b, &t_ids, TGL_I64, 2, SHAPE(3, 2), ids);
        place(b, &t_multipliers, TGL_I64, 2, SHAPE(1, 2), multipliers);
        place(b, &t_sizes, TGL_I64, 3, SHAPE(1, 1, 2), sizes);
        place(b, &t_offsets, TGL_I64, 2, SHAPE(1, 2), offsets);
        place(b, &out, TGL_I64, 3, SHAPE(1, 3, 2), NULL);
        CHECK_OK(tgl_engram_hash(&t_ids.t, &t_multipliers.t, &t_sizes.t, &t_offsets.t, NULL, &out.t, b->stream));
        check_contents(b, &out, want, "out");
        discard(b, &t_ids), discard(b, &t_multipliers), discard(b, &t_sizes), discard(b, &t_offsets);
    }
}

TEST(graph) { check_replayed("engram_hash", "num_tokens=70 mask=some", 1); }

TEST(num_sms) { check_num_sms("engram_hash", CASE_LINES("num_tokens=300 num_layers=7 mask=some")); }

/* ---- nothing to do ---- */

TEST(empty) /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    const int64_t sizes[][4] = { { 0, 3, 2, 8 }, { 5, 1, 2, 8 }, { 5, 3, 0, 8 }, { 5, 3, 2, 0 } }; /* t, n, l, j */
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 4; i++) {
            const int64_t t = sizes[i][0], n = sizes[i][1], l = sizes[i][2], j = sizes[i][3];
            tensor ids, multipliers, vocab, offsets, out;
            make(&ids, memory, devices[d], TGL_I32, 2, SHAPE(t, n));
            make(&multipliers, memory, devices[d], TGL_I64, 2, SHAPE(l, n));
            make(&vocab, memory, devices[d], TGL_I32, 3, SHAPE(l, n - 1, j));
            make(&offsets, memory, devices[d], TGL_I32, 2, SHAPE(l, (n - 1) * j));
            make(&out, NULL, devices[d], TGL_I32, 3, SHAPE(l, t, (n - 1) * j));
            CHECK_OK(tgl_engram_hash(&ids.t, &multipliers.t, &vocab.t, &offsets.t, NULL, &out.t, NULL));
        }
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_hash_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    return tgl_engram_hash(t[0], t[1], t[2], t[3], t[4], t[5], NULL);
}
#define GOOD_CALL &tgl_engram_hash_signature, "num_tokens=3 max_ngram=3 num_layers=2 num_heads=2", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    CHECK_ERROR(x[0].dtype.bits = 16, "ngram_token_ids: dtype is i16, want i32 or i64");
    CHECK_ERROR(x[1].dtype.bits = 32, "multipliers: dtype is i32, want i64");
    CHECK_ERROR(x[2].shape[1] = 3; x[2].strides = NULL, "vocab_sizes: shape is [2, 3, 2], want [2, 2, 2]");
    CHECK_ERROR(x[3].shape[1] = 5; x[3].strides = NULL, "offsets: shape is [2, 5], want [2, 4]");
    CHECK_ERROR(x[4].shape[0] = 2, "image_token_mask: shape is [2], want [3]");
    CHECK_ERROR(x[5].shape[2] = 3; x[5].strides = NULL, "out: shape is [2, 3, 3], want [2, 3, 4]");
}

TEST(errors_of_sizes)
{
    const int64_t many = (int64_t)1 << 22;
    CHECK_ERROR(x[0].shape[1] = x[0].strides[0] = 0, "ngram_token_ids: shape is [3, 0], want [3, 1..4096]");
    CHECK_ERROR(x[0].shape[1] = x[0].strides[0] = 4097, "ngram_token_ids: shape is [3, 4097], want [3, 1..4096]");
    CHECK_ERROR(x[2].shape[2] = many / 2; x[3].shape[1] = x[5].shape[2] = many;
                x[2].strides = x[3].strides = x[5].strides = NULL;
                x[5].data = (void *)((uintptr_t)1 << 40), "vocab_sizes: has 8388608 elements, want fewer than 2^23");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
