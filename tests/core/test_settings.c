/* SPDX-License-Identifier: MIT
 * Every setting: its default, its variable, its setter, bad values. The environment is read once per process,
 * so each check runs in a child. */
#include "core/settings.h"

#include <sys/auxv.h>
#include <sys/stat.h>

#include "child.h"
#include "core/cpu.h"
#include "core/log.h"
#include "tegula/transpose.h"

static char text[CHILD_TEXT];
#define IN_CHILD(f, ...) CHECK(in_child(ENVIRONMENT(__VA_ARGS__), f, text))

static bool cache_dir_is(const char *want)
{
    char path[TGL_PATH_BYTES];
    tgl_settings_cache_dir(path);
    return CHECK_TEXT(path, want);
}

/* ---- defaults ---- */

static bool defaults(void)
{
    const tgl_environment *s = tgl_environment_get();
    bool ok = CHECK_INT(s->log_level, TGL_LOG_OFF) && CHECK_TEXT(s->libcuda, "") && CHECK_TEXT(s->libnvrtc, "");
    ok &= CHECK_TEXT(s->cache_readonly, "") && CHECK_TEXT(s->home, "") && CHECK_TEXT(s->xdg_cache_home, "");
    ok &= CHECK(tgl_get_num_threads() >= 1) && CHECK_INT(tgl_settings_num_sms(0, 132), 132);
    ok &= CHECK(tgl_get_pdl()) && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_AUTO);
    return ok && cache_dir_is("");
}

TEST(defaults)
{
    CHECK(in_child(NO_ENVIRONMENT, defaults, text));
    CHECK_TEXT(text, "");
    /* an empty variable counts as not set */
    IN_CHILD(defaults,
             "TEGULA_LOG=", "TEGULA_CPU=", "TEGULA_NUM_THREADS=", "TEGULA_NUM_SMS=", "TEGULA_PDL=", "TEGULA_JIT=",
             "TEGULA_LIBCUDA=", "TEGULA_LIBNVRTC=", "TEGULA_CACHE_READONLY=", "HOME=", "XDG_CACHE_HOME=");
    CHECK_TEXT(text, "");
}

/* ---- threads ---- */

static bool has_threads(void) /* without OpenMP there is always one */
{
    const int before = tgl_get_num_threads();
    tgl_set_num_threads(before + 2);
    const bool changed = tgl_get_num_threads() == before + 2;
    tgl_set_num_threads(0);
    return changed;
}

static bool threads_from_environment(void)
{
    const int seen = tgl_get_num_threads();
    return CHECK_INT(seen, has_threads() ? 3 : 1);
}

static bool thread_setter(void)
{
    if (!has_threads()) return CHECK_INT(tgl_get_num_threads(), 1);
    const int otherwise = tgl_get_num_threads();
    bool ok = CHECK_OK(tgl_set_num_threads(5)) && CHECK_INT(tgl_get_num_threads(), 5);
    ok &= CHECK_FAILS(tgl_set_num_threads(-1), TGL_ERR_ARGUMENT, "num_threads: is -1, want 0 (the default) to 1024");
    ok &=
        CHECK_FAILS(tgl_set_num_threads(1025), TGL_ERR_ARGUMENT, "num_threads: is 1025, want 0 (the default) to 1024");
    ok &= CHECK_INT(tgl_get_num_threads(), 5);
    return ok && CHECK_OK(tgl_set_num_threads(0)) && CHECK_INT(tgl_get_num_threads(), otherwise);
}

TEST(num_threads)
{
    IN_CHILD(threads_from_environment, "TEGULA_NUM_THREADS=3");
    IN_CHILD(thread_setter, "TEGULA_LOG=off");
}

static bool default_threads(void)
{
    const int seen = tgl_get_num_threads();
    tgl_set_num_threads(0);
    return CHECK_INT(seen, tgl_get_num_threads());
}

static bool fails(void) { return CHECK_INT(tgl_transpose(NULL, NULL, NULL), TGL_ERR_ARGUMENT); }

TEST(bad_values_fall_back_with_a_line)
{
    static const char *const words[] = { "-1", "abc", "3x", "1025", "99999999999", "1.5", " " };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        char variable[64], line[128];
        snprintf(variable, sizeof variable, "TEGULA_NUM_THREADS=%s", words[i]);
        snprintf(line, sizeof line, "tegula: TEGULA_NUM_THREADS: is \"%s\", want a number from 0 to 1024\n", words[i]);
        IN_CHILD(default_threads, variable, "TEGULA_LOG=error");
        CHECK_TEXT(text, line);
        IN_CHILD(default_threads, variable); /* nothing is printed unless asked for */
        CHECK_TEXT(text, "");
    }
    IN_CHILD(defaults, "TEGULA_LOG=loud");
    IN_CHILD(default_threads, "TEGULA_LOG=error", "TEGULA_NUM_SMS=many", "TEGULA_PDL=yes", "TEGULA_JIT=Never");
    CHECK_TEXT(text, "tegula: TEGULA_NUM_SMS: is \"many\", want a number from 0 to 2147483647; TEGULA_PDL: is "
                     "\"yes\", want 0 or 1; TEGULA_JIT: is \"Never\", want auto or never\n");
    IN_CHILD(fails, "TEGULA_LOG=error", "TEGULA_JIT=Never"); /* before the first line, whatever it is about */
    CHECK_TEXT(text, "tegula: TEGULA_JIT: is \"Never\", want auto or never\n"
                     "tegula: TGL_ERR_ARGUMENT: x: is NULL, want a tensor\n");
}

static bool defaults_but_log(void)
{
    bool ok = CHECK_INT(tgl_settings_num_sms(0, 132), 132) && CHECK(tgl_get_pdl());
    return ok && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_AUTO);
}

TEST(bad_values_change_nothing)
{
    IN_CHILD(defaults_but_log, "TEGULA_NUM_SMS=-4", "TEGULA_PDL=2", "TEGULA_JIT=always");
}

/* ---- CPU loops ---- */

static bool is_plain(void)
{
    bool ok = CHECK_INT(tgl_cpu(), TGL_CPU_PLAIN);
    tgl_cpu_limit(TGL_CPU_BASE);
    ok &= CHECK_INT(tgl_cpu(), TGL_CPU_BASE);
    tgl_cpu_limit(TGL_CPU_PLAIN);
    return ok && CHECK_INT(tgl_cpu(), TGL_CPU_PLAIN);
}
static bool is_base(void) { return CHECK_INT(tgl_cpu(), TGL_CPU_BASE); }
static bool is_best(void)
{
    const tgl_cpu_level seen = tgl_cpu();
    tgl_cpu_limit(TGL_CPU_AVX512);
    return CHECK(seen >= TGL_CPU_BASE) && CHECK_INT(seen, tgl_cpu());
}

TEST(cpu_loops)
{
    IN_CHILD(is_plain, "TEGULA_CPU=plain");
    IN_CHILD(is_base, "TEGULA_CPU=base");
    IN_CHILD(is_best, "TEGULA_CPU=auto");
    IN_CHILD(is_best, "TEGULA_CPU=avx512");
    IN_CHILD(is_best, "TEGULA_CPU=sse2", "TEGULA_LOG=error");
    CHECK_TEXT(text, "tegula: TEGULA_CPU: is \"sse2\", want auto, plain, base, avx2 or avx512\n");
}

/* ---- SMs ---- */

static bool twenty_sms(void)
{
    bool ok = CHECK_INT(tgl_settings_num_sms(0, 132), 20) && CHECK_INT(tgl_settings_num_sms(63, 16), 16);
    ok &= CHECK_OK(tgl_set_num_sms(1, 64)) && CHECK_INT(tgl_settings_num_sms(1, 132), 64);
    ok &= CHECK_INT(tgl_settings_num_sms(0, 132), 20); /* the others as before */
    ok &= CHECK_OK(tgl_set_num_sms(1, 500)) && CHECK_INT(tgl_settings_num_sms(1, 132), 132);
    ok &= CHECK_OK(tgl_set_num_sms(1, 0)) && CHECK_INT(tgl_settings_num_sms(1, 132), 132); /* 0 is all: it wins too */
    ok &= CHECK_FAILS(tgl_set_num_sms(0, -1), TGL_ERR_ARGUMENT, "num_sms: is -1, want 0 (all) or more");
    ok &= CHECK_FAILS(tgl_set_num_sms(-1, 4), TGL_ERR_ARGUMENT, "device: is -1, want 0..63");
    ok &= CHECK_FAILS(tgl_set_num_sms(64, 4), TGL_ERR_ARGUMENT, "device: is 64, want 0..63");
    return ok && CHECK_INT(tgl_settings_num_sms(0, 132), 20);
}

TEST(num_sms) { IN_CHILD(twenty_sms, "TEGULA_NUM_SMS=20"); }

/* ---- switches ---- */

static bool switched(void)
{
    bool ok = CHECK(!tgl_get_pdl()) && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_NEVER);
    ok &= CHECK_OK(tgl_set_pdl(true)) && CHECK(tgl_get_pdl());
    ok &= CHECK_OK(tgl_set_jit_mode(TGL_JIT_AUTO)) && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_AUTO);
    ok &= CHECK_FAILS(tgl_set_jit_mode((tgl_jit_mode)2), TGL_ERR_ARGUMENT,
                      "mode: is 2, want TGL_JIT_AUTO or TGL_JIT_NEVER");
    return ok && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_AUTO);
}

TEST(switches) { IN_CHILD(switched, "TEGULA_PDL=0", "TEGULA_JIT=never"); }

/* ---- folders and files ---- */

static bool from_xdg(void) { return cache_dir_is("/x/cache/tegula"); }
static bool from_home(void) { return cache_dir_is("/home/me/.cache/tegula"); }
static bool named(void) { return cache_dir_is("/some/folder"); }
static bool no_folder(void) { return cache_dir_is(""); }

static bool folder_setter(void)
{
    bool ok = CHECK_OK(tgl_set_cache_dir("/a/b")) && cache_dir_is("/a/b");
    ok &= CHECK_OK(tgl_set_cache_dir("")) && cache_dir_is("");
    char long_path[TGL_PATH_BYTES + 1];
    memset(long_path, 'p', TGL_PATH_BYTES);
    long_path[TGL_PATH_BYTES] = 0;
    ok &= CHECK_FAILS(tgl_set_cache_dir(long_path), TGL_ERR_ARGUMENT, "path: has 4096 bytes, want fewer than 4096");
    ok &= cache_dir_is("");
    long_path[TGL_PATH_BYTES - 1] = 0;
    ok &= CHECK_OK(tgl_set_cache_dir(long_path)) && cache_dir_is(long_path);
    return ok && CHECK_OK(tgl_set_cache_dir(NULL)) && cache_dir_is("/home/me/.cache/tegula");
}

TEST(cache_dir)
{
    IN_CHILD(from_xdg, "HOME=/home/me", "XDG_CACHE_HOME=/x/cache");
    IN_CHILD(from_home, "HOME=/home/me");
    IN_CHILD(from_home, "HOME=/home/me", "XDG_CACHE_HOME=relative"); /* its specification: to be ignored */
    IN_CHILD(no_folder, "HOME=relative");
    IN_CHILD(named, "HOME=/home/me", "TEGULA_CACHE_DIR=/some/folder");
    IN_CHILD(no_folder, "HOME=/home/me", "TEGULA_CACHE_DIR="); /* set and empty: no disk cache */
    IN_CHILD(folder_setter, "HOME=/home/me", "TEGULA_CACHE_DIR=/some/folder");
    static char long_variable[TGL_PATH_BYTES + 64] = "TEGULA_CACHE_DIR=/";
    memset(long_variable + strlen(long_variable), 'p', TGL_PATH_BYTES);
    IN_CHILD(from_home, "HOME=/home/me", long_variable);
}

static bool files(void)
{
    const tgl_environment *s = tgl_environment_get();
    setenv("TEGULA_LIBCUDA", "/changed/since", 1); /* read once */
    return CHECK_TEXT(s->libcuda, "/l/libcuda.so") && CHECK_TEXT(s->libnvrtc, "/l/libnvrtc.so") &&
           CHECK_TEXT(s->cache_readonly, "/baked") && CHECK_TEXT(tgl_environment_get()->libcuda, "/l/libcuda.so");
}

TEST(library_files)
{
    IN_CHILD(files, "TEGULA_LIBCUDA=/l/libcuda.so", "TEGULA_LIBNVRTC=/l/libnvrtc.so", "TEGULA_CACHE_READONLY=/baked");
}

/* ---- the table for people ---- */

static bool rows(void)
{
    static const struct {
        const char *variable, *value;
    } want[] = {
        { "TEGULA_LOG", "off" },
        { "TEGULA_CPU", "plain" },
        { "TEGULA_NUM_THREADS", NULL },
        { "TEGULA_NUM_SMS", "7" },
        { "TEGULA_PDL", "0" },
        { "TEGULA_JIT", "never" },
        { "TEGULA_CACHE_DIR", "/some/folder" },
        { "TEGULA_CACHE_READONLY", "/baked" },
        { "TEGULA_LIBCUDA", "/l/libcuda.so" },
        { "TEGULA_LIBNVRTC", "" },
    };
    bool ok = true;
    static tgl_setting_row row;
    for (int i = 0; i < 10; i++) {
        ok &= CHECK(tgl_settings_row(i, &row)) && CHECK_TEXT(row.variable, want[i].variable);
        ok &= !want[i].value || CHECK_TEXT(row.value, want[i].value);
        ok &= CHECK(row.meaning && *row.meaning);
        ok &= CHECK_INT(row.from_environment, i != 0 && i != 2 && i != 9);
    }
    return ok && CHECK(!tgl_settings_row(10, &row)) && CHECK(!tgl_settings_row(-1, &row));
}

TEST(table)
{
    IN_CHILD(rows, "TEGULA_NUM_SMS=7", "TEGULA_PDL=0", "TEGULA_JIT=never", "TEGULA_CACHE_DIR=/some/folder",
             "TEGULA_CACHE_READONLY=/baked", "TEGULA_LIBCUDA=/l/libcuda.so", "TEGULA_CPU=plain");
}

/* ---- a program with more rights than its caller ---- */

enum { CALLER = 12345, OWNER = 12346, NOT_SETUID = 9 };

/* In the copy of this program: nothing of the caller's environment counts. */
static bool ignores_the_environment(void)
{
    const tgl_environment *s = tgl_environment_get();
    bool ok = CHECK_TEXT(s->libcuda, "") && CHECK_TEXT(s->libnvrtc, "") && CHECK_TEXT(s->cache_readonly, "");
    ok &= CHECK_TEXT(s->home, "") && CHECK_TEXT(s->xdg_cache_home, "") && cache_dir_is("");
    ok &= CHECK_INT(s->log_level, TGL_LOG_OFF) && CHECK_INT(tgl_get_jit_mode(), TGL_JIT_AUTO);
    tgl_setting_row row;
    for (int i = 0; tgl_settings_row(i, &row); i++) ok &= CHECK(!row.from_environment);
    return ok;
}

/* Thread and memory sanitizers start a program anew to lay out its memory, which a setuid one cannot be
 * told. */
#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define STARTS_ANEW 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(STARTS_ANEW)
static const bool starts_anew = true;
#else
static const bool starts_anew = false;
#endif

TEST(setuid)
{
    if (starts_anew) SKIP("this sanitizer does not run in a setuid program");
    if (getenv("TEGULA_TEST_CHILD")) {
        const bool is_secure = getauxval(AT_SECURE) != 0, ok = is_secure && ignores_the_environment();
        fflush(stdout);
        _exit(!is_secure ? NOT_SETUID : ok ? 0 : 1); /* at once: the leak sanitizer may not trace such a process */
    }
    if (geteuid() != 0) SKIP("only root can make a program of another user's");
    char folder[] = "/tmp/tegula-setuid-XXXXXX", copy[64], line[256];
    REQUIRE(mkdtemp(folder));
    snprintf(copy, sizeof copy, "%s/test", folder);
    snprintf(line, sizeof line, "cp /proc/%ld/exe %s", (long)getpid(), copy);
    CHECK_INT(system(line), 0);
    if (chown(copy, OWNER, OWNER)) { /* root of a container that has one user */
        unlink(copy);
        rmdir(folder);
        SKIP("root cannot make a program of another user's here");
    }
    CHECK(chmod(folder, 0755) == 0 && chmod(copy, 04755) == 0);
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        static const char *const variables[] = {
            "TEGULA_LIBCUDA", "TEGULA_LIBNVRTC", "TEGULA_CACHE_READONLY", "TEGULA_CACHE_DIR", "HOME", "XDG_CACHE_HOME"
        };
        for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) setenv(variables[i], "/tmp/evil", 1);
        setenv("TEGULA_LOG", "call", 1);
        setenv("TEGULA_JIT", "never", 1);
        setenv("TEGULA_TEST_CHILD", "1", 1);
        if (setgid(CALLER) || setuid(CALLER)) _exit(126);
        execl(copy, "test", "setuid", (char *)NULL);
        _exit(NOT_SETUID); /* a folder whose programs may not run */
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t n; (n = read(ends[0], text + used, sizeof text - 1 - used)) > 0;) used += (size_t)n;
    text[used] = 0;
    close(ends[0]);
    int status = -1;
    CHECK(waitpid(child, &status, 0) == child);
    unlink(copy);
    rmdir(folder);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_SETUID) SKIP("no program can be setuid here");
    CHECK_THAT(status == 0, "the setuid program ended with status 0x%x and said:\n%s", (unsigned)status, text);
}
