/* SPDX-License-Identifier: MIT */
#include "core/threads.h"

#include <fenv.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

#include "child.h"

enum { ROWS = 20000, LARGE = 1 << 20 }; /* LARGE bytes a row: worth sharing, however few rows */

/* ---- each row once ---- */

static atomic_int visits[ROWS + 1];

static void visit(const void *context, int64_t begin, int64_t end)
{
    if (begin < 0 || begin >= end || end > ROWS) atomic_fetch_add(&visits[ROWS], 1); /* no such chunk */
    else
        for (int64_t i = begin; i < end; i++) atomic_fetch_add(&visits[i], 1);
}

static void check_visits(int64_t rows, int64_t row_bytes, int times)
{
    for (int64_t i = 0; i < rows; i++)
        if (atomic_load(&visits[i]) != times)
            CHECK_THAT(false, "row %" PRId64 " of %" PRId64 " (%" PRId64 " bytes a row) was visited %d times, want %d",
                       i, rows, row_bytes, atomic_load(&visits[i]), times);
    for (int64_t i = rows; i <= ROWS; i++)
        if (atomic_load(&visits[i])) CHECK_THAT(false, "row %" PRId64 " of %" PRId64 " was visited", i, rows);
    for (int64_t i = 0; i <= ROWS; i++) atomic_store(&visits[i], 0);
}

TEST(every_row_once)
{
    const int64_t rows[] = { 0, 1, 2, 3, 5, 7, 8, 31, 64, 1000, 12345, ROWS }, row_bytes[] = { 0, 1, 100, LARGE };
    for (int threads = 1; threads <= 9; threads++) {
        CHECK_OK(tgl_set_num_threads(threads));
        for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
            for (size_t b = 0; b < sizeof row_bytes / sizeof *row_bytes; b++) {
                CHECK_OK(tgl_parallel_rows(rows[r], row_bytes[b], visit, NULL));
                check_visits(rows[r], row_bytes[b], 1);
            }
    }
    CHECK_OK(tgl_parallel_rows(-5, 1, visit, NULL));
    check_visits(0, 1, 0);
    CHECK_OK(tgl_set_num_threads(0));
}

TEST(huge_counts) /* sizes that would overflow if multiplied */
{
    CHECK_OK(tgl_set_num_threads(4));
    CHECK_OK(tgl_parallel_rows(3, INT64_MAX, visit, NULL));
    check_visits(3, INT64_MAX, 1);
    CHECK_OK(tgl_set_num_threads(0));
}

/* ---- threads are used, and not below the grain ---- */

static atomic_int num_chunks;
static void count_chunks(const void *context, int64_t begin, int64_t end) { atomic_fetch_add(&num_chunks, 1); }

static int chunks(int64_t rows, int64_t row_bytes)
{
    atomic_store(&num_chunks, 0);
    tgl_parallel_rows(rows, row_bytes, count_chunks, NULL);
    return atomic_load(&num_chunks);
}

TEST(large_work_is_shared)
{
    CHECK_OK(tgl_set_num_threads(3));
    if (tgl_get_num_threads() == 1) SKIP("built without OpenMP");
    CHECK_INT(chunks(300, LARGE), 3);
    CHECK_INT(chunks(2, LARGE), 2); /* not more threads than rows */
    CHECK_INT(chunks(300, 1), 1);   /* 300 bytes: not worth a thread */
    CHECK_INT(chunks(1, LARGE), 1);
    CHECK_OK(tgl_set_num_threads(1));
    CHECK_INT(chunks(300, LARGE), 1);
    CHECK_OK(tgl_set_num_threads(0));
}

static void visit_nested(const void *context, int64_t begin, int64_t end)
{
    for (int64_t i = begin; i < end; i++) tgl_parallel_rows(ROWS, LARGE, visit, NULL);
}

TEST(nested)
{
    CHECK_OK(tgl_set_num_threads(4));
    CHECK_OK(tgl_parallel_rows(6, LARGE, visit_nested, NULL));
    check_visits(ROWS, LARGE, 6);
    CHECK_OK(tgl_set_num_threads(0));
}

static void *visit_often(void *context)
{
    for (int i = 0; i < 50; i++) tgl_parallel_rows(1000, LARGE, visit, context);
    return NULL;
}

TEST(several_callers)
{
    pthread_t threads[4];
    CHECK_OK(tgl_set_num_threads(3));
    for (int i = 0; i < 4; i++) REQUIRE(pthread_create(&threads[i], NULL, visit_often, NULL) == 0);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    check_visits(1000, LARGE, 200);
    CHECK_OK(tgl_set_num_threads(0));
}

/* ---- floating-point mode ---- */

#if defined(__x86_64__)
#include <xmmintrin.h>
static bool can_flush(void) { return true; }
static void set_flush(bool on) { _mm_setcsr(on ? _mm_getcsr() | 0x8040 : _mm_getcsr() & ~0x8040u); }
#elif defined(__aarch64__)
static bool can_flush(void) { return true; }
static void set_flush(bool on)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    mode = on ? mode | 1u << 24 : mode & ~(uint64_t)(1u << 24);
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
static bool can_flush(void) { return false; }
static void set_flush(bool on) { }
#endif

/* What this thread does with a subnormal result, a subnormal operand and a result halfway between two
 * numbers. */
enum { FLUSHES_RESULTS = 1, FLUSHES_OPERANDS = 2, ROUNDS_UP = 4, ROUNDS_DOWN = 8 };
static int mode_of_thread(void)
{
    volatile float smallest_normal = 0x1p-126f, half = 0.5f, subnormal = 0x1p-130f, two_30 = 0x1p30f, one = 1,
                   tiny = 0x1p-40f;
    int seen = 0;
    if (smallest_normal * half == 0) seen |= FLUSHES_RESULTS;
    if (subnormal * two_30 == 0) seen |= FLUSHES_OPERANDS;
    if (one + tiny > one) seen |= ROUNDS_UP;
    if (-one - tiny < -one) seen |= ROUNDS_DOWN;
    return seen;
}

static atomic_int modes_seen;
static void note_mode(const void *context, int64_t begin, int64_t end)
{
    atomic_fetch_or(&modes_seen, mode_of_thread());
}

static bool mode_is_reset_and_restored(void)
{
    bool ok = true;
    for (int threads = 1; threads <= 4; threads++)
        for (int k = 0; k < 4; k++) {
            const bool flush = can_flush() && k % 2, upward = k / 2;
            const int wanted = (flush ? FLUSHES_RESULTS | FLUSHES_OPERANDS : 0) | (upward ? ROUNDS_UP : 0);
            tgl_set_num_threads(threads);
            set_flush(flush);
            fesetround(upward ? FE_UPWARD : FE_TONEAREST);
            const int before = mode_of_thread();
            atomic_store(&modes_seen, 0);
            tgl_parallel_rows(300, LARGE, note_mode, NULL);
            const int after = mode_of_thread();
            set_flush(false);
            fesetround(FE_TONEAREST);
            ok &= CHECK_INT(before, wanted); /* the test itself works */
            ok &= CHECK_INT(atomic_load(&modes_seen), 0);
            ok &= CHECK_INT(after, wanted);
        }
    tgl_set_num_threads(0);
    return ok;
}

TEST(float_mode) { mode_is_reset_and_restored(); }

static bool pool_made_in_a_bad_mode(void) /* new threads inherit the mode of the one that makes them */
{
    set_flush(can_flush());
    fesetround(FE_DOWNWARD);
    tgl_set_num_threads(4);
    atomic_store(&modes_seen, 0);
    tgl_parallel_rows(300, LARGE, note_mode, NULL);
    set_flush(false);
    fesetround(FE_TONEAREST);
    return CHECK_INT(atomic_load(&modes_seen), 0);
}

/* ---- after fork ---- */

static bool visits_after_fork(void)
{
    tgl_set_num_threads(4);
    tgl_parallel_rows(ROWS, LARGE, visit, NULL); /* would wait for threads that are gone */
    bool ok = true;
    for (int i = 0; i < ROWS; i++) ok &= atomic_load(&visits[i]) == 1;
    return CHECK(ok) && mode_is_reset_and_restored();
}

TEST(after_fork)
{
    CHECK_OK(tgl_set_num_threads(4));
    CHECK_OK(tgl_parallel_rows(ROWS, LARGE, visit, NULL));
    check_visits(ROWS, LARGE, 1);
    CHECK(in_child(NO_ENVIRONMENT, visits_after_fork, NULL));
    CHECK_OK(tgl_parallel_rows(ROWS, LARGE, visit, NULL)); /* and the parent goes on */
    check_visits(ROWS, LARGE, 1);
    CHECK_OK(tgl_set_num_threads(0));
}

/* ---- a limit on threads ---- */

static _Thread_local int chunks_here;
static atomic_int num_working;

static void count_threads(const void *context, int64_t begin, int64_t end)
{
    visit(context, begin, end);
    if (chunks_here++ == 0) atomic_fetch_add(&num_working, 1);
}

/* In a process of its own, since a forked one is serial. libgomp would end it: "Thread creation failed". */
static void works_with_fewer_threads(void)
{
    struct rlimit before;
    CHECK(getrlimit(RLIMIT_NPROC, &before) == 0);
    const struct rlimit limit = { 5, before.rlim_max };
    CHECK(setrlimit(RLIMIT_NPROC, &limit) == 0);
    CHECK_OK(tgl_set_num_threads(16));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tgl_parallel_rows(ROWS, LARGE, count_threads, NULL));
        check_visits(ROWS, LARGE, 1);
    }
    CHECK_THAT(atomic_load(&num_working) >= 1 && atomic_load(&num_working) <= 5, "%d threads, want 1..5",
               atomic_load(&num_working));
    printf("%d threads worked\n", atomic_load(&num_working));
    CHECK(setrlimit(RLIMIT_NPROC, &before) == 0); /* the search for leaks at the end takes a thread, too */
}

TEST(out_of_threads)
{
    if (getenv("TEGULA_TEST_CHILD")) {
        works_with_fewer_threads();
        return;
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        setenv("TEGULA_TEST_CHILD", "1", 1);
        alarm(60);
        if (geteuid() == 0 && (setgid(12345) || setuid(12345))) _exit(126); /* root has no limit */
        execl("/proc/self/exe", "test", "out_of_threads", (char *)NULL);
        _exit(127);
    }
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFEXITED(status) && WEXITSTATUS(status) >= 126) SKIP("root cannot run this program as another user here");
    CHECK_THAT(status == 0, "a process that may have 5 threads ended with status 0x%x", (unsigned)status);
}

/* Results: the same bits for any number of threads, because a row is computed by one chunk alone. */
static void harmonic(const void *context, int64_t begin, int64_t end)
{
    float *out = *(float *const *)context;
    for (int64_t i = begin; i < end; i++) {
        float sum = 0;
        for (int64_t k = 1; k <= 50 + i % 7; k++) sum += 1 / (float)(i + k);
        out[i] = sum;
    }
}

TEST(results_do_not_depend_on_threads)
{
    static float one[ROWS], many[ROWS];
    float *to = one;
    CHECK_OK(tgl_set_num_threads(1));
    CHECK_OK(tgl_parallel_rows(ROWS, LARGE, harmonic, &to));
    to = many;
    for (int threads = 2; threads <= 5; threads++) {
        CHECK_OK(tgl_set_num_threads(threads));
        CHECK_OK(tgl_parallel_rows(ROWS, LARGE, harmonic, &to));
        CHECK(!memcmp(one, many, sizeof one));
    }
    CHECK_OK(tgl_set_num_threads(0));
}

/* In a child that forks before any block has made the pool. */
static bool first_pool_ok;
__attribute__((constructor(101))) static void try_first_pool(void)
{
    const pid_t child = fork();
    if (child == 0) _exit(pool_made_in_a_bad_mode() ? 0 : 1);
    int status = -1;
    first_pool_ok = child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}
TEST(pool_made_in_a_bad_mode) { CHECK(first_pool_ok); }
