/* SPDX-License-Identifier: MIT
 * jit.c - from a kernel's name and macros to machine code.
 *
 * No lock is held while compiling, so kernels compile in parallel. (kernels.c sees to it that two threads
 * do not compile the same one.) */
#include "cuda/jit.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/cancel.h"
#include "core/log.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cuda/sha256.h"

/* Added to -arch and the macros. ptxas -v costs nothing, and tests read registers and spills from its log;
 * 177 is "declared but never referenced", as many functions of headers are. */
static const char *const fixed_options[] = { "--std=c++17", "--fmad=false", "--ptxas-options=-v",
                                             "--diag-suppress=177" };
enum { NUM_FIXED = sizeof fixed_options / sizeof fixed_options[0], OPTION_BYTES = 96 };

/* NVRTC 12.9 and newer caches what it compiles in the driver's disk cache (if a driver is loaded). That
 * cache has other rules of ownership than ours, and would make a first compilation look fast. The option
 * changes no code, so it is not part of the key; older versions reject it. */
static const char no_cache_option[] = "--no-cache";
static bool has_cache(const tgl_nvrtc_table *nvrtc)
{
    return nvrtc->major > 12 || (nvrtc->major == 12 && nvrtc->minor >= 9);
}

static atomic_uint_fast64_t compile_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the static data below */
static struct {
    tgl_compile_callback callback;
    void *context;
} reporting;

/* A child inherits NVRTC's own locks as they are: after a fork during a compilation it must not call
 * NVRTC. */
static atomic_int num_compiling;
static atomic_bool nvrtc_is_spoiled;

static void in_child(void)
{
    pthread_mutex_init(&lock, NULL);
    if (atomic_load(&num_compiling) > 0) atomic_store(&nvrtc_is_spoiled, true);
}
__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }

void tgl_image_free(tgl_image *image)
{
    free(image->image);
    free(image->log);
    *image = (tgl_image){ 0 };
}

void tgl_macro_text(const tgl_macro macros[TGL_MAX_MACROS], char text[TGL_MACRO_TEXT_BYTES])
{
    size_t n = 0;
    text[0] = 0;
    for (int i = 0; i < TGL_MAX_MACROS && n < TGL_MACRO_TEXT_BYTES; i++)
        if (macros[i].name)
            n += (size_t)snprintf(text + n, TGL_MACRO_TEXT_BYTES - n, "%s%s=%" PRId64, n ? " " : "", macros[i].name,
                                  macros[i].value);
}

/* ---- architectures ---- */

int tgl_jit_architecture_number(const char *architecture)
{
    const char *s = architecture;
    if (!strncmp(s, "sm_", 3)) s += 3;
    else if (!strncmp(s, "compute_", 8)) s += 8;
    else return 0;
    const size_t digits = strspn(s, "0123456789");
    if (digits < 2 || digits > 3) return 0;
    const char *end = s + digits;
    if (*end == 'a' || *end == 'f') end++;
    return *end ? 0 : atoi(s);
}

void tgl_jit_architecture_given(int major, int minor, const int *known, int num_known,
                                char name[TGL_ARCHITECTURE_BYTES])
{
    const int number = major * 10 + minor;
    int newest = 0; /* known to NVRTC and not newer than the device */
    for (int i = 0; i < num_known; i++)
        if (known[i] <= number) newest = known[i];
    if (newest && newest != number) snprintf(name, TGL_ARCHITECTURE_BYTES, "compute_%d", newest);
    else snprintf(name, TGL_ARCHITECTURE_BYTES, "sm_%d%s", number, number >= 90 ? "a" : "");
}

tgl_status tgl_jit_architecture(int major, int minor, char name[TGL_ARCHITECTURE_BYTES])
{
    if (major < 8)
        return tgl_fail(TGL_ERR_DEVICE, "this GPU has compute capability %d.%d, want 8.0 (A100) or newer", major,
                        minor);
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    tgl_jit_architecture_given(major, minor, nvrtc ? nvrtc->archs : NULL, nvrtc ? nvrtc->num_archs : 0, name);
    return TGL_OK;
}

static bool knows(const tgl_nvrtc_table *nvrtc, int number)
{
    for (int i = 0; i < nvrtc->num_archs; i++)
        if (nvrtc->archs[i] == number) return true;
    return nvrtc->num_archs == 0; /* unknown: let it try */
}

bool tgl_jit_is_unknown(int number, char known[TGL_KNOWN_BYTES])
{
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    if (!nvrtc || knows(nvrtc, number)) return false;
    size_t n = (size_t)snprintf(known, TGL_KNOWN_BYTES, "NVRTC %d.%d knows:", nvrtc->major, nvrtc->minor);
    const char *before = " ";
    for (int i = 0; i < nvrtc->num_archs && n < TGL_KNOWN_BYTES; i++) {
        char name[TGL_ARCHITECTURE_BYTES];
        if (nvrtc->archs[i] < 80) continue; /* too old for us */
        tgl_jit_architecture_given(nvrtc->archs[i] / 10, nvrtc->archs[i] % 10, NULL, 0, name);
        n += (size_t)snprintf(known + n, TGL_KNOWN_BYTES - n, "%s%s", before, name);
        before = ", ";
    }
    return true;
}

tgl_status tgl_jit_architectures(const char *const **names, int *count)
{
    static const char *const all[] = {
        "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_121a"
    };
    enum { NUM_ALL = sizeof all / sizeof all[0] };
    static const char *some[NUM_ALL];
    static int num_some;
    const tgl_nvrtc_table *nvrtc;
    TGL_TRY(tgl_nvrtc(&nvrtc));
    pthread_mutex_lock(&lock);
    if (!num_some)
        for (int i = 0; i < NUM_ALL; i++)
            if (knows(nvrtc, tgl_jit_architecture_number(all[i]))) some[num_some++] = all[i];
    pthread_mutex_unlock(&lock);
    *names = some;
    *count = num_some;
    return TGL_OK;
}

/* ---- the key ---- */

static void add_text(tgl_sha256 *s, const char *text) /* with its zero byte, as a separator */
{
    tgl_sha256_add(s, text, strlen(text) + 1);
}

/* All of a key but NVRTC's version, which comes last: of twenty versions, tried in turn, each then costs a
 * block and not the text of kernel and headers, some 100 KB. */
static void begin_key(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                      tgl_sha256 *s)
{
    char versions[96], value[32];
    snprintf(versions, sizeof versions, "tegula %s headers %d", tgl_version(), source->num_headers);
    tgl_sha256_begin(s);
    add_text(s, versions);
    add_text(s, source->name);
    add_text(s, source->text);
    for (int i = 0; i < source->num_headers; i++) {
        add_text(s, source->header_names[i]);
        add_text(s, source->header_texts[i]);
    }
    add_text(s, architecture);
    for (int i = 0; i < NUM_FIXED; i++) add_text(s, fixed_options[i]);
    for (int i = 0; i < TGL_MAX_MACROS; i++) {
        if (!macros[i].name) continue;
        snprintf(value, sizeof value, "%" PRId64, macros[i].value);
        add_text(s, macros[i].name);
        add_text(s, value);
    }
    add_text(s, "");
}

static void end_key(tgl_sha256 s, int nvrtc_major, int nvrtc_minor, tgl_cache_key *key)
{
    char version[32];
    snprintf(version, sizeof version, "nvrtc %d.%d", nvrtc_major, nvrtc_minor);
    add_text(&s, version);
    tgl_sha256_end(&s, key->bytes);
}

void tgl_jit_key(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                 int nvrtc_major, int nvrtc_minor, tgl_cache_key *key)
{
    tgl_sha256 s;
    begin_key(source, macros, architecture, &s);
    end_key(s, nvrtc_major, nvrtc_minor, key);
}

/* ---- compiling ---- */

typedef struct {
    const tgl_source *source;
    const tgl_macro *macros;
    const char *architecture;
    char what[TGL_MACRO_TEXT_BYTES + 128]; /* "transpose/transpose (ELEMENT_BYTES=2) for sm_90a" */
} job;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static char *copy_log(const tgl_nvrtc_table *nvrtc, tgl_nvrtc_program program)
{
    size_t bytes = 0;
    if (nvrtc->GetProgramLogSize(program, &bytes)) bytes = 0;
    char *log = calloc(1, bytes + 1);
    if (log && bytes && nvrtc->GetProgramLog(program, log)) log[0] = 0;
    return log;
}

/* The first line with "error", else the first line. */
static int first_error(const char *log, const char **line)
{
    const char *at = strstr(log, "error");
    while (at && at > log && at[-1] != '\n') at--;
    *line = at ? at : log;
    return (int)strcspn(*line, "\n");
}

static tgl_status take_image(const tgl_nvrtc_table *nvrtc, tgl_nvrtc_program program, const job *j, tgl_image *out)
{
    const bool is_ptx = !strncmp(j->architecture, "compute_", 8);
    tgl_nvrtc_result (*const get_size)(tgl_nvrtc_program, size_t *) = is_ptx ? nvrtc->GetPTXSize : nvrtc->GetCUBINSize;
    tgl_nvrtc_result (*const get)(tgl_nvrtc_program, char *) = is_ptx ? nvrtc->GetPTX : nvrtc->GetCUBIN;
    if (!get_size || !get || get_size(program, &out->bytes) || !out->bytes)
        return tgl_fail(TGL_ERR_COMPILE, "%s: NVRTC %d.%d gave no %s", j->what, nvrtc->major, nvrtc->minor,
                        is_ptx ? "PTX" : "cubin");
    out->image = malloc(out->bytes);
    if (!out->image) return tgl_fail(TGL_ERR_MEMORY, "%s: no memory for %zu bytes of code", j->what, out->bytes);
    if (get(program, out->image)) return tgl_fail(TGL_ERR_COMPILE, "%s: NVRTC gave no image", j->what);
    return TGL_OK;
}

static tgl_status run_compiler(const tgl_nvrtc_table *nvrtc, const job *j, tgl_image *out)
{
    char options[TGL_MAX_MACROS + 1][OPTION_BYTES], name[160];
    const char *list[TGL_MAX_MACROS + 1 + NUM_FIXED + 1];
    int n = 0;
    bool fits = snprintf(options[n], OPTION_BYTES, "--gpu-architecture=%s", j->architecture) < OPTION_BYTES;
    list[n] = options[n], n++;
    for (int i = 0; i < TGL_MAX_MACROS; i++) {
        if (!j->macros[i].name) continue;
        fits &=
            snprintf(options[n], OPTION_BYTES, "-D%s=%" PRId64, j->macros[i].name, j->macros[i].value) < OPTION_BYTES;
        list[n] = options[n], n++;
    }
    for (int i = 0; i < NUM_FIXED; i++) list[n++] = fixed_options[i];
    if (has_cache(nvrtc)) list[n++] = no_cache_option;
    fits &= snprintf(name, sizeof name, "%s.cu", j->source->name) < (int)sizeof name;
    if (!fits) return tgl_fail(TGL_ERR_INTERNAL, "%s: a name is too long", j->what);

    tgl_nvrtc_program program;
    tgl_nvrtc_result result = nvrtc->CreateProgram(&program, j->source->text, name, j->source->num_headers,
                                                   j->source->header_texts, j->source->header_names);
    if (result) return tgl_fail(TGL_ERR_COMPILE, "%s: nvrtcCreateProgram: %s", j->what, nvrtc->GetErrorString(result));
    const double begin = now_ms();
    result = nvrtc->CompileProgram(program, n, list);
    out->milliseconds = now_ms() - begin;
    out->compiled = true;
    out->log = copy_log(nvrtc, program);
    tgl_status status;
    if (!out->log) {
        status = tgl_fail(TGL_ERR_MEMORY, "%s: no memory for the compiler's log", j->what);
    } else if (result) {
        const char *line;
        const int bytes = first_error(out->log, &line);
        tgl_log(TGL_LOG_ERROR, "%s: the compiler says:\n%s", j->what, out->log);
        status = tgl_fail(TGL_ERR_COMPILE, "%s: %s: %.*s", j->what, nvrtc->GetErrorString(result), bytes, line);
    } else {
        status = take_image(nvrtc, program, j, out);
    }
    nvrtc->DestroyProgram(&program);
    return status;
}

static _Thread_local tgl_compile_report *kept_report;
void tgl_jit_keep_report(tgl_compile_report *report) { kept_report = report; }

void tgl_jit_deliver(const tgl_compile_report *r)
{
    pthread_mutex_lock(&lock);
    const tgl_compile_callback callback = reporting.callback;
    void *context = reporting.context;
    pthread_mutex_unlock(&lock);
    if (callback && r->is_set) callback(context, r->kernel, r->macros, r->architecture, r->milliseconds);
}

static void report(const job *j, double milliseconds)
{
    atomic_fetch_add(&compile_count, 1);
    tgl_log(TGL_LOG_INFO, "compiled %s in %.1f ms", j->what, milliseconds);
    tgl_compile_report own, *const r = kept_report ? kept_report : &own;
    r->is_set = true;
    r->milliseconds = milliseconds;
    snprintf(r->kernel, sizeof r->kernel, "%s", j->source->name);
    snprintf(r->architecture, sizeof r->architecture, "%s", j->architecture);
    tgl_macro_text(j->macros, r->macros);
    if (!kept_report) tgl_jit_deliver(r);
}

static tgl_status compile(const tgl_nvrtc_table *nvrtc, const job *j, tgl_image *out)
{
    if (atomic_load(&nvrtc_is_spoiled))
        return tgl_fail(TGL_ERR_COMPILE,
                        "%s: this process was forked while a thread was compiling, so it cannot compile; "
                        "prepare kernels before the fork",
                        j->what);
    char known[TGL_KNOWN_BYTES];
    if (tgl_jit_is_unknown(tgl_jit_architecture_number(j->architecture), known))
        return tgl_fail(TGL_ERR_COMPILE, "%s: %.200s does not know this architecture (%s); use another NVRTC", j->what,
                        nvrtc->path, known);
    atomic_fetch_add(&num_compiling, 1);
    const tgl_status status = run_compiler(nvrtc, j, out);
    atomic_fetch_sub(&num_compiling, 1);
    if (status != TGL_OK) return status;
    report(j, out->milliseconds);
    return TGL_OK;
}

/* A cache that was filled elsewhere is used whichever NVRTC filled it: the kernel of the newest version that the driver
 * loads. If this process may compile, only the read-only folder, which somebody filled so that it need not; its own
 * folder then gets a kernel of the NVRTC that is here. */
static bool get_of_any_version(const job *j, bool may_compile, tgl_image *out)
{
    bool (*const get)(const tgl_cache_key *, void **, size_t *) = may_compile ? tgl_cache_get_readonly : tgl_cache_get;
    const bool is_driver_12 = tgl_driver_version() / 1000 == 12; /* refuses images of 13: they come last */
    tgl_cache_key key;
    tgl_sha256 s;
    begin_key(j->source, j->macros, j->architecture, &s);
    for (int i = 0; i < (is_driver_12 && may_compile ? 1 : 2); i++)
        for (int minor = 9; minor >= 0; minor--) {
            end_key(s, is_driver_12 ? 12 + i : 13 - i, minor, &key);
            if (get(&key, &out->image, &out->bytes)) return true;
        }
    return false;
}

static bool get_cached(const job *j, const tgl_cache_key *key, unsigned how, tgl_image *out)
{
    if (how & TGL_JIT_REBUILD) return false;
    if (key && tgl_cache_get(key, &out->image, &out->bytes)) return true;
    return get_of_any_version(j, key && (how & TGL_JIT_MAY_COMPILE) && tgl_get_jit_mode() != TGL_JIT_NEVER, out);
}

static tgl_status find_or_compile(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS],
                                  const char *architecture, unsigned how, tgl_image *out)
{
    *out = (tgl_image){ 0 };
    job j = { source, macros, architecture, "" };
    char text[TGL_MACRO_TEXT_BYTES];
    tgl_macro_text(macros, text);
    snprintf(j.what, sizeof j.what, "%.64s%s%s%s for %.16s", source->name, text[0] ? " (" : "", text,
             text[0] ? ")" : "", architecture);
    if (!tgl_jit_architecture_number(architecture))
        return tgl_fail(TGL_ERR_ARGUMENT, "architecture: is \"%.32s\", want one such as sm_90a", architecture);

    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    tgl_cache_key key;
    if (nvrtc) tgl_jit_key(source, macros, architecture, nvrtc->major, nvrtc->minor, &key);
    if (get_cached(&j, nvrtc ? &key : NULL, how, out)) {
        tgl_log(TGL_LOG_INFO, "found %s in the cache", j.what);
        out->log = calloc(1, 1);
        if (out->log) return TGL_OK;
        tgl_image_free(out);
        return tgl_fail(TGL_ERR_MEMORY, "%s: no memory", j.what);
    }
    if (tgl_get_jit_mode() == TGL_JIT_NEVER) {
        char places[TGL_CACHE_TEXT_BYTES];
        tgl_cache_explain(nvrtc ? &key : NULL, places);
        return tgl_fail(TGL_ERR_COMPILE,
                        "%s: not in the cache (%s), and TEGULA_JIT=never forbids compiling it; fill the "
                        "cache with `tegula compile`",
                        j.what, places);
    }
    if (!(how & TGL_JIT_MAY_COMPILE))
        return tgl_fail(TGL_ERR_CAPTURE,
                        "%s: would have to be compiled during a stream capture; call the op once before the "
                        "capture, or between tgl_prepare_begin and tgl_prepare_end",
                        j.what);
    TGL_TRY(tgl_nvrtc(&nvrtc));
    const tgl_status status = compile(nvrtc, &j, out);
    if (status == TGL_OK) tgl_cache_put(&key, out->image, out->bytes);
    else tgl_image_free(out);
    return status;
}

tgl_status tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS], const char *architecture,
                          unsigned how, tgl_image *out)
{
    const int cancelling = tgl_cancel_hold();
    const tgl_status status = find_or_compile(source, macros, architecture, how, out);
    tgl_cancel_restore(cancelling);
    return status;
}

/* ---- public ---- */

uint64_t tgl_compile_count(void) { return atomic_load(&compile_count); }

tgl_status tgl_set_compile_callback(tgl_compile_callback callback, void *context)
{
    pthread_mutex_lock(&lock);
    reporting.callback = callback;
    reporting.context = context;
    pthread_mutex_unlock(&lock);
    return TGL_OK;
}
