/* SPDX-License-Identifier: MIT */
#include "core/threads.h"

#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "core/cancel.h"
#include "core/log.h"
#include "core/settings.h"

/* For fewer bytes per thread, waking the thread costs more than it saves. */
enum { GRAIN_BYTES = 64 << 10 };

/* ---- floating-point mode ---- */

/* Casts rely on subnormals and on rounding to nearest; torch.set_flush_denormal() and -ffast-math
 * libraries change both for a whole thread. */
#if defined(__x86_64__)
#include <xmmintrin.h>
typedef unsigned float_mode;
enum { MXCSR_FTZ = 0x8000, MXCSR_DAZ = 0x0040, MXCSR_ROUNDING = 0x6000 };
static float_mode get_mode(void) { return _mm_getcsr(); }
static void set_mode(float_mode mode) { _mm_setcsr(mode); }
static float_mode plain(float_mode mode) { return mode & ~(unsigned)(MXCSR_FTZ | MXCSR_DAZ | MXCSR_ROUNDING); }
#elif defined(__aarch64__)
typedef uint64_t float_mode;
/* RMode, FZ, FZ16, AH, FIZ */
static const float_mode FPCR_CHANGED = 3u << 22 | 1u << 24 | 1u << 19 | 1u << 1 | 1u << 0;
static float_mode get_mode(void)
{
    float_mode mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_mode(float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
static float_mode plain(float_mode mode) { return mode & ~FPCR_CHANGED; }
#else
typedef int float_mode; /* C has no name for flush-to-zero: rounding only */
static float_mode get_mode(void) { return fegetround(); }
static void set_mode(float_mode mode) { fesetround(mode); }
static float_mode plain(float_mode mode) { return FE_TONEAREST; }
#endif

static void run_chunk(tgl_rows_function f, const void *context, int64_t begin, int64_t end)
{
    const float_mode before = get_mode(), wanted = plain(before);
    if (wanted != before) set_mode(wanted);
    f(context, begin, end);
    if (wanted != before) set_mode(before);
}

/* ---- threads ---- */

#ifdef _OPENMP
/* libgomp's thread pool does not survive a fork: the child's next parallel region would wait for threads
 * that are gone. Other code may have created the pool, so every child runs serially, and the handler is
 * registered at load time. */
static atomic_bool forked;
static void after_fork_in_child(void) { atomic_store(&forked, true); }
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork_in_child); }

static void *wait_at(void *gate)
{
    pthread_mutex_lock(gate);
    pthread_mutex_unlock(gate);
    return NULL;
}

/* libgomp ends the process if the system refuses a thread (RLIMIT_NPROC, a container's limit, no memory
 * for a stack). So the first time that this thread wants this many, they are created here, all at once,
 * and joined again: libgomp will get as many a moment later, unless another process takes them. After a
 * refusal this thread never wants more. */
static int available_threads(int wanted)
{
    static _Thread_local int known = 1, limit = TGL_MAX_THREADS; /* including this thread */
    if (wanted > limit) wanted = limit;
    if (wanted <= known) return wanted;
    pthread_t made[TGL_MAX_THREADS];
    pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
    int n = 0;
    const int cancelling = tgl_cancel_hold(); /* the threads use this stack */
    pthread_mutex_lock(&gate);
    while (n < wanted - 1 && pthread_create(&made[n], NULL, wait_at, &gate) == 0) n++;
    pthread_mutex_unlock(&gate);
    for (int i = 0; i < n; i++) pthread_join(made[i], NULL);
    tgl_cancel_restore(cancelling);
    if (n + 1 > known) known = n + 1;
    if (n + 1 < wanted) {
        limit = known;
        tgl_log(TGL_LOG_INFO, "the system refuses %d threads; using %d", wanted, known);
    }
    return known;
}

static int threads_for(int64_t rows, int64_t row_bytes, bool is_beside)
{
    if (omp_in_parallel() || atomic_load(&forked)) return 1;
    int64_t max = tgl_get_num_threads() / (is_beside ? 2 : 1);
    if (max > rows) max = rows;
    if (row_bytes < 1) row_bytes = 1;
    const int64_t rows_per_grain = GRAIN_BYTES / row_bytes + 1, grains = rows / rows_per_grain;
    return grains < 2 || max < 2 ? 1 : available_threads((int)(grains < max ? grains : max));
}
#endif

static tgl_status run(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context, bool is_beside)
{
    if (rows <= 0) return TGL_OK;
#ifdef _OPENMP
    const int threads = threads_for(rows, row_bytes, is_beside);
    if (threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            /* OpenMP may give fewer threads than requested */
            const int64_t n = omp_get_num_threads(), i = omp_get_thread_num();
            const int64_t each = rows / n, rest = rows % n;
            const int64_t begin = i * each + (i < rest ? i : rest);
            run_chunk(f, context, begin, begin + each + (i < rest));
        }
        return TGL_OK;
    }
#endif
    run_chunk(f, context, 0, rows);
    return TGL_OK;
}

tgl_status tgl_parallel_rows(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context)
{
    return run(rows, row_bytes, f, context, false);
}
tgl_status tgl_parallel_rows_beside(int64_t rows, int64_t row_bytes, tgl_rows_function f, const void *context)
{
    return run(rows, row_bytes, f, context, true);
}

/* ---- few pieces of long work ---- */

static atomic_int num_helpers; /* in this process */
static void no_helpers_in_child(void) { atomic_store(&num_helpers, 0); }
__attribute__((constructor)) static void watch_forks_of_helpers(void)
{
    pthread_atfork(NULL, NULL, no_helpers_in_child);
}

static int reserve_helpers(int wanted)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    int used = atomic_load(&num_helpers), n;
    do {
        const int limit = cores - 1 < TGL_MAX_HELPERS ? (int)cores - 1 : TGL_MAX_HELPERS, left = limit - used;
        n = wanted < left ? wanted : left;
        if (n <= 0) return 0;
    } while (!atomic_compare_exchange_weak(&num_helpers, &used, used + n));
    return n;
}

typedef struct {
    int n;
    void (*f)(void *context, int i);
    void *context;
    atomic_int next;
} each;

static void *take_turns(void *work)
{
    each *e = work;
    for (int i; (i = atomic_fetch_add(&e->next, 1)) < e->n;) e->f(e->context, i);
    return NULL;
}

void tgl_parallel_each(int n, void (*f)(void *context, int i), void *context)
{
    each e = { .n = n, .f = f, .context = context };
    pthread_t made[TGL_MAX_HELPERS];
    const int reserved = reserve_helpers(n - 1);
    int started = 0;
    const int cancelling = tgl_cancel_hold(); /* the threads use this stack */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread inherits the mask */
    while (started < reserved && pthread_create(&made[started], NULL, take_turns, &e) == 0) started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    take_turns(&e);
    for (int i = 0; i < started; i++) pthread_join(made[i], NULL);
    atomic_fetch_sub(&num_helpers, reserved);
    tgl_cancel_restore(cancelling);
}
