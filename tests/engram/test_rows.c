/* SPDX-License-Identifier: MIT
 * tgl_engram_rows, on every device of the tests. Written from the specification: windows of raw ids, cut where a token is
 * dead or a stop, hashed as by tgl_engram_hash; ids before a chunk from history, or from a ring by position. */
#include "errors.h"
#include "replay.h"
#include "tegula/engram.h"

TESTS_OF_TABLE("engram_rows")

/* ---- calls on tensors written by hand ---- */

typedef struct {
    int64_t num_tokens, max_ngram, num_heads, num_requests, vocabulary, num_slots, ring_size;
    const int32_t *ids, *cu_seqlens, *history, *start_pos, *slots, *map, *vocab_sizes, *offsets;
    const int64_t *multipliers;
    const bool *mask;
    int32_t *ring;          /* gets what the call makes of it */
    tgl_engram_ngram ngram; /* its scalars */
} call;

static DLTensor *place_given(const backend *b, tensor *t, tgl_dtype dtype, int ndim, const int64_t *shape,
                             const void *contents)
{
    t->t.data = NULL;
    return contents ? place(b, t, dtype, ndim, shape, contents) : NULL;
}

/* One layer -> rows[num_tokens, columns]. */
static void call_rows(const backend *b, const call *c, int32_t *rows)
{
    const int64_t columns = (c->max_ngram - 1) * c->num_heads;
    tensor ids, mask, history, ring, cu, start, slots, map, multipliers, sizes, offsets, out;
    tgl_engram_ngram ngram = c->ngram;
    const tgl_engram_batch batch = {
        .cu_seqlens = place_given(b, &cu, TGL_I32, 1, SHAPE(c->num_requests + 1), c->cu_seqlens),
        .start_pos = place_given(b, &start, TGL_I32, 1, SHAPE(c->num_requests), c->start_pos),
        .slots = place_given(b, &slots, TGL_I32, 1, SHAPE(c->num_requests), c->slots),
    };
    ngram.token_map = place_given(b, &map, TGL_I32, 1, SHAPE(c->vocabulary), c->map);
    ngram.multipliers = place(b, &multipliers, TGL_I64, 2, SHAPE(1, c->max_ngram), c->multipliers);
    ngram.vocab_sizes = place(b, &sizes, TGL_I32, 3, SHAPE(1, c->max_ngram - 1, c->num_heads), c->vocab_sizes);
    ngram.offsets = place(b, &offsets, TGL_I32, 2, SHAPE(1, columns), c->offsets);
    DLTensor *const t_ring = place_given(b, &ring, TGL_I32, 2, SHAPE(c->num_slots, c->ring_size), c->ring);
    CHECK_OK(tgl_engram_rows(place(b, &ids, TGL_I32, 1, SHAPE(c->num_tokens), c->ids),
                             place_given(b, &mask, TGL_BOOL, 1, SHAPE(c->num_tokens), c->mask),
                             place_given(b, &history, TGL_I32, 2, SHAPE(c->num_requests, c->max_ngram - 1), c->history),
                             t_ring, place(b, &out, TGL_I32, 3, SHAPE(1, c->num_tokens, columns), NULL), &batch, &ngram,
                             b->stream));
    fetch(b, &out, rows);
    if (t_ring) fetch(b, &ring, c->ring);
    tensor *const rest[] = { &ids, &mask, &history, &cu, &start, &slots, &map, &multipliers, &sizes, &offsets };
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (rest[i]->t.data) discard(b, rest[i]);
}

static void check_same(const backend *b, const char *what, const int32_t *seen, const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!CHECK_THAT(seen[i] == want[i], "%s: %s: number %lld is %d, want %d", b->name, what, (long long)i, seen[i],
                        want[i]))
            return;
}

static void check_rows(call c, const int32_t *want)
{
    int32_t rows[256], ring[256];
    const int64_t count = c.num_tokens * (c.max_ngram - 1) * c.num_heads;
    const int32_t *const before = c.ring;
    REQUIRE(count <= 256 && c.num_slots * c.ring_size <= 256);
    FOR_BACKENDS(b) {
        if (before) memcpy(ring, before, (size_t)(c.num_slots * c.ring_size) * 4), c.ring = ring;
        call_rows(b, &c, rows);
        check_same(b, "rows", rows, want, count);
    }
}
#define INTS(...) ((int32_t[]){ __VA_ARGS__ })

/* ---- examples ---- */

TEST(worked_example)
{
    /* doc: rows */
    const int64_t multipliers[] = { 3, 5, 7, 9 };
    const int32_t vocab_sizes[] = { 19, 23, 29 }, offsets[] = { 0, 19, 42 }; /* N = 4, J = 1 */
    const int32_t map[] = { 0, 3, 6, 9, 2, 5, 8, 1, 4, 7 };                  /* id -> 3 id mod 10 */
    const int32_t ids[] = { 4, 7, 1, 8, /**/ 5, 2, /**/ 6 }, cu_seqlens[] = { 0, 4, 6 };
    const bool image_token_mask[] = { false, false, true, false, false, false, false };
    const int32_t history[] = { 3, -1, 9, /**/ 7, 7, 8 }; /* oldest first */
    call c = { .num_tokens = 7,
               .max_ngram = 4,
               .num_heads = 1,
               .num_requests = 2,
               .vocabulary = 10,
               .ids = ids,
               .mask = image_token_mask,
               .cu_seqlens = cu_seqlens,
               .history = history,
               .map = map,
               .multipliers = multipliers,
               .vocab_sizes = vocab_sizes,
               .offsets = offsets,
               .ngram = { .pad_id = 6 } };
    // clang-format off: rows of tokens
    check_rows(c, INTS(18, 34, 70,              /* window 2 7 6 6: 4 and 9 mapped, -1 cuts; hashes 6, 37, 15, 57 */
                       9, 29, 56, /**/ -1, -1, -1, /**/ 18, 29, 56, /**/ 8, 24, 63, /**/ 11, 19, 43,
                       -1, -1, -1));            /* a token of no request */
    // clang-format on
    c.ngram.hash_masked = true;
    check_rows(c, INTS(18, 34, 70, 9, 29, 56, /**/ 12, 34, 58, /**/ 18, 29, 56, 8, 24, 63, 11, 19, 43, -1, -1, -1));
    /* end */
    c.ngram.hash_masked = false, c.ngram.history_newest_first = true;
    c.history = INTS(9, -1, 3, /**/ 8, 7, 7);
    check_rows(c, INTS(18, 34, 70, 9, 29, 56, -1, -1, -1, 18, 29, 56, 8, 24, 63, 11, 19, 43, -1, -1, -1));
}

TEST(stop_id)
{
    /* doc: stop */
    const int64_t multipliers[] = { 3, 5, 7 };
    const int32_t vocab_sizes[] = { 19, 23 }, offsets[] = { 0, 19 }, ids[] = { 5, 9, 2, 9, 9, 4 };
    call c = { .num_tokens = 6,
               .max_ngram = 3,
               .num_heads = 1,
               .num_requests = 1,
               .ids = ids,
               .multipliers = multipliers,
               .vocab_sizes = vocab_sizes,
               .offsets = offsets,
               .ngram = { .pad_id = 9, .has_stop_id = true, .stop_id = 9 } };
    check_rows(c, INTS(15, 25, /**/ 2, 34, /**/ 5, 39, /**/ 17, 19, /**/ 16, 28, /**/ 14, 26));
    /* end */
}

static bool is_prime(int32_t n)
{
    for (int32_t d = 2; d * d <= n; d++)
        if (n % d == 0) return false;
    return n > 1;
}

/* Consecutive primes above `from`, and their sums before each. */
static int32_t make_columns(int32_t from, int count, int32_t *sizes, int32_t *offsets)
{
    int32_t sum = 0;
    for (int i = 0; i < count; i++) {
        do from++;
        while (!is_prime(from));
        sizes[i] = from, offsets[i] = sum, sum += from;
    }
    return from;
}

static void check_columns(const backend *b, const int32_t *rows, int64_t columns, int64_t token, const int *which,
                          int count, const int32_t *want)
{
    int32_t seen[8];
    for (int i = 0; i < count; i++) seen[i] = rows[token * columns + which[i]];
    check_same(b, "rows of a model", seen, want, count);
}

TEST(constants_of_deepseek_v4_1) /* columns of order 2, 3 and 4: the first and the last of each */
{
    static const int which[] = { 0, 7, 8, 15, 16, 23 };
    static const int64_t multipliers[2][4] = { { 76632096046245, 4839876093313, 35959672319349, 73987337458391 },
                                               { 67716810739261, 51510806800915, 30921347202721, 82619226485591 } };
    static const int32_t first[2][6] = { { 5682171, 115820927, 142076848, 240134201, 260966577, 374197335 },
                                         { 166974, 125415830, 130253585, 240132205, 267214733, 375070595 } };
    static const int32_t fourth[2][6] = { { 11738160, 127614195, 133636487, 250767794, 257062418, 382673924 },
                                          { 13474695, 118403621, 137209734, 246653625, 256501427, 369500849 } };
    int32_t sizes[24], offsets[24], rows[4 * 24], last = 16000000;
    for (int l = 0; l < 2; l++) {
        last = make_columns(last, 24, sizes, offsets);
        CHECK_INT(sizes[0], l ? 16000477 : 16000057);
        CHECK_INT(last, l ? 16000889 : 16000463);
        CHECK_INT(offsets[23], l ? 368015793 : 368005705);
        const call c = { .num_tokens = 4,
                         .max_ngram = 4,
                         .num_heads = 8,
                         .num_requests = 1,
                         .ids = INTS(17, 4, 99091, 0),
                         .multipliers = multipliers[l],
                         .vocab_sizes = sizes,
                         .offsets = offsets,
                         .ngram = { .pad_id = 2 } };
        FOR_BACKENDS(b) {
            call_rows(b, &c, rows);
            check_columns(b, rows, 24, 0, which, 6, first[l]);
            check_columns(b, rows, 24, 3, which, 6, fourth[l]);
        }
    }
}

TEST(constants_of_qwen3_8)
{
    static const int which[] = { 0, 7, 8, 15 };
    static const int64_t multipliers[] = { 23703573157769, 20109073645365, 8052911324071 };
    static const int32_t want[5][4] = { { 9663979, 151022725, 170054832, 300986548 },
                                        { 5727835, 157314943, 162363667, 305180972 },
                                        { 6669481, 143415227, 164675732, 318456244 },
                                        { 16967003, 159321812, 163387296, 307080048 },
                                        { 4401500, 157487094, 164417016, 310576508 } };
    int32_t sizes[16], offsets[16], rows[5 * 16];
    CHECK_INT(make_columns(20000000, 16, sizes, offsets), 20000171);
    const call c = { .num_tokens = 5,
                     .max_ngram = 3,
                     .num_heads = 8,
                     .num_requests = 1,
                     .ids = INTS(248044, 100, 200, 248044, 300),
                     .multipliers = multipliers,
                     .vocab_sizes = sizes,
                     .offsets = offsets,
                     .ngram = { .pad_id = 248044, .has_stop_id = true, .stop_id = 248044 } };
    FOR_BACKENDS(b) {
        call_rows(b, &c, rows);
        for (int t = 0; t < 5; t++) check_columns(b, rows, 16, t, which, 4, want[t]);
    }
}

/* ---- constants that show the window, a slot a call ---- */

/* With multipliers of 0 but one, a modulus that is larger than any id, and no offset, the last columns are that slot of
 * the window. */
static void check_window(call c, int64_t token, const int32_t *want)
{
    for (int64_t n = 2; n <= c.max_ngram; n++) {
        int64_t multipliers[8] = { 0 };
        int32_t sizes[8], offsets[8] = { 0 }, rows[256], ring[256];
        call one = c;
        for (int i = 0; i < 8; i++) sizes[i] = 1000000007;
        multipliers[n - 1] = 1;
        one.num_heads = 1, one.multipliers = multipliers, one.vocab_sizes = sizes, one.offsets = offsets;
        FOR_BACKENDS(b) {
            if (c.ring) memcpy(ring, c.ring, (size_t)(c.num_slots * c.ring_size) * 4), one.ring = ring;
            call_rows(b, &one, rows);
            const int32_t seen = rows[token * (c.max_ngram - 1) + n - 2];
            CHECK_THAT(seen == want[n - 1], "%s: slot %lld of token %lld is %d, want %d", b->name, (long long)n - 1,
                       (long long)token, seen, want[n - 1]);
        }
    }
}
#define WINDOW(...) INTS(0, __VA_ARGS__) /* slot 0 has no column of its own */

TEST(what_cuts_a_window)
{
    call c = {
        .num_tokens = 6, .max_ngram = 4, .num_requests = 1, .ids = INTS(1, 2, 3, 4, 5, 6), .ngram = { .pad_id = 77 }
    };
    check_window(c, 5, WINDOW(5, 4, 3));
    check_window(c, 1, WINDOW(1, 77, 77));
    c.mask = (bool[]){ false, false, false, true, false, false }; /* that slot and all older ones */
    check_window(c, 5, WINDOW(5, 77, 77));
    c.mask = NULL, c.ngram.has_stop_id = true, c.ngram.stop_id = 4;
    check_window(c, 5, WINDOW(5, 77, 77));
    check_window(c, 3, WINDOW(3, 2, 1));                      /* the token itself is the stop */
    c.map = INTS(0, 4, 14, 13, 11, 15, 16), c.vocabulary = 7; /* what is mapped to 4 is none, what 4 becomes is */
    check_window(c, 3, WINDOW(13, 14, 4));
    check_window(c, 5, WINDOW(15, 77, 77));
    c.ngram.has_stop_id = false, c.ngram.pad_id = 3; /* is not mapped again */
    check_window(c, 2, WINDOW(14, 4, 3));
    c.vocabulary = 5; /* 5 and 6 are not in the map: dead */
    check_window(c, 3, WINDOW(13, 14, 4));
    c.ngram.hash_masked = true;
    check_window(c, 5, WINDOW(3, 3, 3));
}

TEST(requests_do_not_see_each_other)
{
    call c = { .num_tokens = 6,
               .max_ngram = 4,
               .num_requests = 4,
               .ids = INTS(1, 2, 3, 4, 5, 6),
               .cu_seqlens = INTS(0, 2, 2, 2, 6),
               .ngram = { .pad_id = 77 } };
    check_window(c, 2, WINDOW(77, 77, 77));
    check_window(c, 3, WINDOW(3, 77, 77));
    c.history = INTS(11, 12, 13, /**/ 21, 22, 23, /**/ 31, 32, 33, /**/ 41, 42, 43);
    check_window(c, 0, WINDOW(13, 12, 11));
    check_window(c, 1, WINDOW(1, 13, 12)); /* the chunk's second token */
    check_window(c, 2, WINDOW(43, 42, 41));
    check_window(c, 4, WINDOW(4, 3, 43));
    c.start_pos = INTS(1, 0, 0, -5); /* so much of it is of the request */
    check_window(c, 0, WINDOW(13, 77, 77));
    check_window(c, 1, WINDOW(1, 13, 77));
    check_window(c, 2, WINDOW(77, 77, 77));
}

TEST(a_ring_by_position)
{
    int32_t ring[] = { 10, 11, 12, 13, 14, /**/ 20, 21, 22, 23, 24, /**/ 30, 31, 32, 33, 34 };
    call c = { .num_tokens = 4,
               .max_ngram = 4,
               .num_requests = 2,
               .ids = INTS(1, 2, 3, 4),
               .cu_seqlens = INTS(0, 2, 4),
               .start_pos = INTS(6, 2),
               .slots = INTS(2, 0),
               .ring = ring,
               .num_slots = 3,
               .ring_size = 5,
               .ngram = { .pad_id = 77 } };
    check_window(c, 0, WINDOW(30, 34, 33)); /* positions 5, 4, 3 */
    check_window(c, 1, WINDOW(1, 30, 34));
    check_window(c, 2, WINDOW(11, 10, 77)); /* position -1 is none, whatever the slot's last owner left there */
    c.slots = INTS(-1, 3);
    check_window(c, 0, WINDOW(77, 77, 77));
    check_window(c, 3, WINDOW(3, 77, 77));
}

TEST(what_the_ring_keeps)
{
    const int64_t multipliers[] = { 1, 1, 1 };
    const bool mask[] = { false, true, false, false, false, false, false };
    call c = { .num_tokens = 7,
               .max_ngram = 3,
               .num_heads = 1,
               .num_requests = 3,
               .ids = INTS(1, 2, -4, 9, 5, 6, 7),
               .mask = mask,
               .cu_seqlens = INTS(0, 5, 5, 7),
               .start_pos = INTS(4, 1, 2),
               .num_slots = 3,
               .ring_size = 4,
               .vocabulary = 8,
               .map = INTS(0, 0, 0, 0, 0, 0, 0, 0),
               .multipliers = multipliers,
               .vocab_sizes = INTS(5, 5),
               .offsets = INTS(0, 0) };
    FOR_BACKENDS(b) {
        int32_t ring[] = { 10, 11, 12, 13, 20, 21, 22, 23, 30, 31, 32, 33 }, rows[14];
        c.ring = ring;
        call_rows(b, &c, rows);
        /* positions 5 .. 8 of the first, raw: masked, negative and unmapped ones are -1; 2 and 3 of the last */
        check_same(b, "ring", ring, INTS(5, -1, -1, -1, 20, 21, 22, 23, 30, 31, 6, 7), 12);
        memcpy(ring, INTS(10, 11, 12, 13), 16);
        c.ngram.keep_ring = true;
        call_rows(b, &c, rows);
        check_same(b, "kept", ring, INTS(10, 11, 12, 13), 4);
        c.ngram.keep_ring = false;
    }
}

/* ---- state that rolls back by itself ---- */

enum { LONGEST = 48, REQUESTS = 3, MAX_CHUNK = 24 };
typedef struct {
    int32_t ids[LONGEST];
    bool mask[LONGEST];
    int32_t rows[LONGEST * 3];
    int64_t length, next;
} sequence;

static const int64_t sequence_multipliers[] = { 76632096046245, 4839876093313, 35959672319349, 73987337458391 };
static const int32_t sequence_sizes[] = { 16000057, 16000063, 16000067 },
                     sequence_offsets[] = { 0, 16000057, 32000120 };

/* A new one, and the rows of all its tokens at once. */
static void start_sequence(const backend *b, test_random *r, sequence *s, call c)
{
    s->length = 1 + test_below(r, LONGEST), s->next = 0;
    for (int i = 0; i < LONGEST; i++) s->ids[i] = (int32_t)test_below(r, 9) - 1, s->mask[i] = test_below(r, 8) == 0;
    c.num_tokens = s->length, c.num_requests = 1, c.ids = s->ids, c.mask = s->mask;
    call_rows(b, &c, s->rows);
}

/* One run of prefills, drafts and roll-backs, with requests that begin again in a slot -> chunks whose rows were wrong. */
static int run_schedule(const backend *b, int number, int64_t max_ngram, int64_t max_draft, int64_t ring_size)
{
    char name[64];
    snprintf(name, sizeof name, "schedule %d", number);
    test_random r = test_seed(name);
    static sequence all[REQUESTS];
    int32_t ring[REQUESTS * 32], slots[REQUESTS], ids[REQUESTS * MAX_CHUNK], cu[REQUESTS + 1], start[REQUESTS];
    int32_t rows[REQUESTS * MAX_CHUNK * 3];
    bool mask[REQUESTS * MAX_CHUNK];
    int num_wrong = 0;
    call c = { .max_ngram = max_ngram,
               .num_heads = 1,
               .multipliers = sequence_multipliers,
               .vocab_sizes = sequence_sizes,
               .offsets = sequence_offsets,
               .ngram = { .pad_id = 4, .has_stop_id = true, .stop_id = 6 } };
    for (int i = 0; i < REQUESTS * 32; i++) ring[i] = (int32_t)test_below(&r, 9);
    for (int i = 0; i < REQUESTS; i++) slots[i] = (i + number) % REQUESTS, start_sequence(b, &r, &all[i], c);
    c.ids = ids, c.mask = mask, c.cu_seqlens = cu, c.start_pos = start, c.slots = slots, c.num_requests = REQUESTS;
    c.ring = ring, c.num_slots = REQUESTS, c.ring_size = ring_size;
    for (int step = 0; step < 10; step++) {
        int64_t right[REQUESTS], accepted[REQUESTS];
        cu[0] = 0;
        for (int i = 0; i < REQUESTS; i++) {
            sequence *s = &all[i];
            if (s->next == s->length) {
                call alone = c;
                alone.ring = NULL, alone.cu_seqlens = alone.start_pos = alone.slots = NULL;
                start_sequence(b, &r, s, alone);
            }
            const int64_t left = s->length - s->next;
            const bool is_draft = test_below(&r, 3) > 0;
            int64_t q = test_below(&r, (is_draft ? max_draft : MAX_CHUNK) + 1);
            if (!is_draft && q > left) q = left;
            right[i] = q < left ? q : left; /* tokens that are the sequence's */
            if (is_draft && right[i] > 0) right[i] = test_below(&r, right[i] + 1);
            accepted[i] = is_draft ? test_below(&r, right[i] + 1) : q;
            start[i] = (int32_t)s->next, cu[i + 1] = cu[i] + (int32_t)q;
            for (int64_t p = 0; p < q; p++) {
                ids[cu[i] + p] = p < right[i] ? s->ids[s->next + p] : (int32_t)test_below(&r, 9);
                mask[cu[i] + p] = p < right[i] ? s->mask[s->next + p] : test_below(&r, 8) == 0;
            }
        }
        c.num_tokens = cu[REQUESTS];
        if (c.num_tokens > 0) call_rows(b, &c, rows);
        for (int i = 0; i < REQUESTS; i++) {
            const size_t row = (size_t)(max_ngram - 1);
            num_wrong += memcmp(rows + (size_t)cu[i] * row, all[i].rows + (size_t)all[i].next * row,
                                (size_t)right[i] * row * 4) != 0;
            all[i].next += accepted[i];
        }
    }
    return num_wrong;
}

TEST(schedules) /* give the rows of the uncut run, whatever was rejected */
{
    FOR_BACKENDS(b) {
        const int count = b->is_emulated && !test_slow() ? 40 : 300;
        for (int i = 0; i < count; i++) {
            const int64_t n = 2 + i % 3, q = 1 + i / 3 % 6;
            CHECK_THAT(run_schedule(b, i, n, q, n - 1 + q) == 0, "%s: schedule %d, %lld drafts", b->name, i,
                       (long long)q);
        }
    }
}

TEST(a_ring_that_is_too_short_shows) /* so the test above can fail */
{
    int num_wrong = 0;
    for (int i = 0; i < 300; i++) {
        const int64_t n = 2 + i % 3, q = 1 + i / 3 % 6;
        num_wrong += run_schedule(backend_of_tests(0), i, n, q, n - 2 + q) > 0;
    }
    CHECK(num_wrong > 0);
}

/* ---- one launch ---- */

TEST(graph) /* a replay reads what changed: start_pos and ids are the caller's, the ring is its own */
{
    check_replayed("engram_rows", "num_tokens=70 max_ngram=4 requests=7 past=history mask=some vocabulary=90000", 1);
    check_replayed("engram_rows",
                   "num_tokens=70 max_ngram=4 requests=7 past=ring start=small slots=shuffled ids=small keep_ring=1",
                   1);
}

TEST(num_sms)
{
    check_num_sms("engram_rows", CASE_LINES("num_tokens=300 max_ngram=4 requests=3,40 past=ring start=small drafts=0,6 "
                                            "ids=small mask=some"));
}

/* ---- nothing to do ---- */

TEST(empty) /* no data and no driver */
{
    const DLDevice devices[] = { cpu, { (DLDeviceType)TGL_DL_CUDA, 0 } };
    for (int d = 0; d < 2; d++) {
        tensor ids, multipliers, sizes, offsets, rows;
        const tgl_engram_ngram ngram = {
            .multipliers = make(&multipliers, memory, devices[d], TGL_I64, 2, SHAPE(2, 3)),
            .vocab_sizes = make(&sizes, memory, devices[d], TGL_I32, 3, SHAPE(2, 2, 8)),
            .offsets = make(&offsets, memory, devices[d], TGL_I32, 2, SHAPE(2, 16)),
        };
        make(&ids, NULL, devices[d], TGL_I32, 1, SHAPE(0));
        CHECK_OK(tgl_engram_rows(&ids.t, NULL, NULL, NULL, make(&rows, NULL, devices[d], TGL_I32, 3, SHAPE(2, 0, 16)),
                                 NULL, &ngram, NULL));
    }
}

/* ---- errors ---- */

extern tgl_signature tgl_engram_rows_signature;
static tgl_status invoke(DLTensor *const *t, const void *params)
{
    const tgl_engram_batch batch = { .cu_seqlens = t[4], .start_pos = t[5], .slots = t[6] };
    if (!params) return tgl_fail(TGL_ERR_ARGUMENT, "params: is NULL, want a struct"); /* which has tensors, too */
    tgl_engram_ngram ngram;
    memcpy(&ngram, params, sizeof ngram);
    ngram.token_map = t[7], ngram.multipliers = t[8], ngram.vocab_sizes = t[9], ngram.offsets = t[10];
    return tgl_engram_rows(t[0], t[1], t[2], t[3], t[11], &batch, &ngram, NULL);
}
#define SAMPLE "num_tokens=3 num_requests=2 max_ngram=3 num_layers=2 num_heads=2 vocabulary=5 num_slots=4 ring_size=5"
#define GOOD_CALL &tgl_engram_rows_signature, SAMPLE " -history", invoke

TEST(errors)
{
    check_errors(GOOD_CALL);
    check_errors(&tgl_engram_rows_signature, SAMPLE " -ring -slots", invoke);
    errors_call *const both = errors_open(&tgl_engram_rows_signature, SAMPLE, invoke, 0);
    REQUIRE(both);
    CHECK_FAILS(invoke(both->tensors, both->given), TGL_ERR_ARGUMENT, "history: is given, want NULL with ring");
    CHECK_ERROR(c->tensors[5] = NULL, "start_pos: is NULL, want a tensor with ring");
    CHECK_ERROR(c->tensors[3] = NULL, "ring: is NULL, want a tensor with slots");
    CHECK_ERROR(c->tensors[4] = NULL, "cu_seqlens: is NULL, want a tensor with 2 requests");
    CHECK_ERROR(x[3].shape[1] = 1, "ring: shape is [4, 1], want [4, >= 2]");
    CHECK_ERROR(x[3].strides[0] = 4, "ring: strides are [4, 1], want >= 5 between rows");
}

TEST(errors_of_strides)
{
#define STRIDES(text) "rows: strides are " text ", want 1 in the last dimension, and rows that do not overlap"
    CHECK_ERROR(x[11].strides[2] = 2, STRIDES("[12, 4, 2]"));
    CHECK_ERROR(x[11].strides[0] = 11, STRIDES("[11, 4, 1]"));
    CHECK_ERROR(x[11].strides[1] = 3, STRIDES("[12, 3, 1]"));
    CHECK_ERROR(x[11].strides[0] = 0, STRIDES("[0, 4, 1]"));
    CHECK_ERROR(x[11].strides[0] = 4; x[11].strides[1] = 7, STRIDES("[4, 7, 1]"));
    CHECK_ERROR(x[11].strides[0] = -12, STRIDES("[-12, 4, 1]"));
}

TEST(errors_of_structs)
{
    tensor t;
    make(&t, memory, cpu, TGL_I32, 1, SHAPE(1));
    CHECK_FAILS(tgl_engram_rows(&t.t, NULL, NULL, NULL, &t.t, NULL, NULL, NULL), TGL_ERR_ARGUMENT,
                "ngram: is NULL, want a struct");
    tensor ids, multipliers, sizes, offsets, rows;
    const tgl_engram_batch batch = { .reserved = { 0, 0, 5 } };
    const tgl_engram_ngram ngram = {
        .multipliers = make(&multipliers, memory, cpu, TGL_I64, 2, SHAPE(2, 3)),
        .vocab_sizes = make(&sizes, memory, cpu, TGL_I32, 3, SHAPE(2, 2, 8)),
        .offsets = make(&offsets, memory, cpu, TGL_I32, 2, SHAPE(2, 16)),
    };
    make(&ids, NULL, cpu, TGL_I32, 1, SHAPE(0));
    CHECK_FAILS(tgl_engram_rows(&ids.t, NULL, NULL, NULL, make(&rows, NULL, cpu, TGL_I32, 3, SHAPE(2, 0, 16)), &batch,
                                &ngram, NULL),
                TGL_ERR_ARGUMENT, "reserved[2]: is 5, want 0");
}

TEST(no_driver) { check_no_driver(GOOD_CALL); }
