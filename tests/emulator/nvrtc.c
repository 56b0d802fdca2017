/* SPDX-License-Identifier: MIT
 * nvrtc.c - an emulated libnvrtc: compiles a kernel with the host's C++ compiler; the "cubin" is a shared
 * object.
 *
 * device.hpp goes before the source, ptx.hpp takes the place of the header named ptx.cuh, and after the
 * source comes one EMU_ENTRY per __global__ function. The kernel gets the sanitizer the process runs under.
 * Settings: settings.h. */
#include <ctype.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "emulator.h"
#include "settings.h"

#define API __attribute__((visibility("default")))
#ifndef EMU_DEFAULT_CXX
#define EMU_DEFAULT_CXX "c++"
#endif
/* Compiling is most of the cost of tests on this device. g++ 12 takes 30 % less time for a kernel with -Og than with -O1,
 * and the kernel runs as fast; -O2 takes 50 % more. A kernel that is not inlined would get its parameters, aligned to 64
 * bytes, in copies with less alignment. clang 14 takes half as long with -O0 as with -Og: 200 ms instead of 470 under
 * TSan, 380 instead of 740 under MSan. A precompiled device.hpp and ptx.hpp would save 10 %, no warnings 3 %. */
#define GCC_OPT "-Og -finline-functions-called-once -g1"
#define CLANG_OPT "-O0 -g1"

enum {
    OK = 0,
    OUT_OF_MEMORY = 1,
    INVALID_INPUT = 3,
    INVALID_PROGRAM = 4,
    INVALID_OPTION = 5,
    COMPILATION = 6,
    INTERNAL = 11
};

typedef struct {
    char *source, *name, *log, *image;
    char **header_text, **header_name;
    int num_headers, portable; /* portable: compiled for compute_XX */
    size_t image_bytes;
} program;
extern char **environ;

/* The three files a kernel is compiled with, so that the library works wherever it was built. */
#define EMBED(symbol, file)                       \
    __asm__(".section .rodata\n"                  \
            ".globl " #symbol "\n"                \
            ".hidden " #symbol "\n" #symbol ":\n" \
            ".incbin \"" file "\"\n"              \
            ".byte 0\n"                           \
            ".text\n");                           \
    extern const char symbol[]
EMBED(text_emulator_h, EMULATOR_DIR "/emulator.h");
EMBED(text_device_hpp, EMULATOR_DIR "/device.hpp");
EMBED(text_ptx_hpp, EMULATOR_DIR "/ptx.hpp");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of the counts of calls */

static int injected(const char *entry)
{
    static int first = 1;
    pthread_mutex_lock(&lock);
    if (first) {
        const char *list = emu_text_setting("EMU_FAIL", NULL), *wrong = emu_fail_set(list);
        first = 0;
        if (wrong) {
            fprintf(stderr, "emulator: EMU_FAIL: cannot read \"%s\"\n", wrong);
            abort();
        }
    }
    const int error = emu_fail(entry);
    pthread_mutex_unlock(&lock);
    return error;
}
#define ENTER()                            \
    do {                                   \
        const int e_ = injected(__func__); \
        if (e_) return e_;                 \
    } while (0)

/* for tests: see control.h */
API const char *emuFail(const char *list)
{
    injected("emuFail"); /* so that a later first call does not read the variable over it */
    pthread_mutex_lock(&lock);
    const char *wrong = emu_fail_set(list);
    pthread_mutex_unlock(&lock);
    return wrong;
}
API uint64_t emuCalls(const char *entry)
{
    pthread_mutex_lock(&lock);
    const uint64_t n = emu_fail_calls(entry);
    pthread_mutex_unlock(&lock);
    return n;
}

/* g++ 12 takes a third less time for calls of ASan's checks than for inline checks. */
#define ASAN_FLAGS "-fsanitize=address -fno-omit-frame-pointer"
#define GCC_ASAN_CALLS " --param=asan-instrumentation-with-call-threshold=0"
static const char *sanitizer(void)
{
    if (dlsym(RTLD_DEFAULT, "__asan_poison_memory_region"))
        return strstr(emu_text_setting("EMU_CXX", EMU_DEFAULT_CXX), "clang") ? ASAN_FLAGS : ASAN_FLAGS GCC_ASAN_CALLS;
    if (dlsym(RTLD_DEFAULT, "__tsan_create_fiber")) return "-fsanitize=thread -DEMU_TSAN";
    if (dlsym(RTLD_DEFAULT, "__msan_init")) return "-fsanitize=memory -DEMU_MSAN";
    /* only its calls: device.hpp answers them */
    if (strcmp(emu_text_setting("EMU_WEAK", "0"), "0")) return "-fsanitize=thread -DEMU_WEAK";
    return "";
}
/* UBSan's checks; their handlers are in device.hpp: they report kernel, block, thread, line. Under TSan and
 * MSan they would make clang's time for a kernel 40 % longer, and all that runs there runs under ASan, with
 * them. */
static const char *undefined(void)
{
    if (dlsym(RTLD_DEFAULT, "__tsan_create_fiber") || dlsym(RTLD_DEFAULT, "__msan_init")) return "";
    return "-fsanitize=alignment,bounds,shift,integer-divide-by-zero -fno-sanitize-recover=all";
}
static const char *optimisation(void)
{
    const bool is_clang = strstr(emu_text_setting("EMU_CXX", EMU_DEFAULT_CXX), "clang");
    return emu_text_setting("EMU_OPT", is_clang ? CLANG_OPT : GCC_OPT);
}
static const char fixed_flags[] =
    "-x c++ -std=c++17 -fPIC -shared -fvisibility=hidden -fno-exceptions -fno-rtti -ffp-contract=off "
    "-fno-strict-aliasing -fwrapv -nodefaultlibs "
    "-Wall -Wextra -Wno-unknown-pragmas -Wno-unused-variable -Wno-unused-function "
    "-Wno-unused-but-set-variable "
    "-Wno-unused-parameter -Wno-missing-field-initializers -Wno-sign-compare";

static uint32_t hash(uint32_t h, const char *s)
{
    while (*s) h = (h ^ (unsigned char)*s++) * 16777619u;
    return h;
}

/* The compiler's file, its size and time: an update changes them. Asking for its version would take a process in each of
 * the thousands of processes that tests start. */
static uint32_t hash_compiler(uint32_t h)
{
    char file[1024] = "", path[2048], real[4096], text[96];
    sscanf(emu_text_setting("EMU_CXX", EMU_DEFAULT_CXX), "%1023s", file);
    const char *folders = strchr(file, '/') ? "" : emu_text_setting("PATH", "/usr/bin:/bin");
    for (;;) {
        const size_t n = strcspn(folders, ":");
        snprintf(path, sizeof path, "%.*s%s%s", (int)n, folders, n ? "/" : "", file);
        struct stat s;
        if (access(path, X_OK) == 0 && realpath(path, real) && stat(real, &s) == 0 && S_ISREG(s.st_mode)) {
            snprintf(text, sizeof text, " %lld %lld.%09ld", (long long)s.st_size, (long long)s.st_mtim.tv_sec,
                     (long)s.st_mtim.tv_nsec);
            return hash(hash(h, real), text);
        }
        if (!folders[n]) return h; /* there is none: compiling says so */
        folders += n + 1;
    }
}

/* The minor version is part of a cache key: it changes with whatever changes the code. */
API int nvrtcVersion(int *major, int *minor)
{
    ENTER();
    const char *parts[] = { text_emulator_h,
                            text_device_hpp,
                            text_ptx_hpp,
                            fixed_flags,
                            sanitizer(),
                            undefined(),
                            emu_text_setting("EMU_CXX", EMU_DEFAULT_CXX),
                            optimisation() };
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) h = hash(h, parts[i]);
    h = hash_compiler(h);
    *major = 13; /* one that the emulated driver can load */
    const char *as = emu_text_setting("EMU_NVRTC", NULL);
    *minor = as ? atoi(as) : (int)(h & 0x7fffffff);
    return OK;
}
API const char *nvrtcGetErrorString(int r)
{
    switch (r) {
    case OK: return "NVRTC_SUCCESS";
    case OUT_OF_MEMORY: return "NVRTC_ERROR_OUT_OF_MEMORY";
    case INVALID_INPUT: return "NVRTC_ERROR_INVALID_INPUT";
    case INVALID_PROGRAM: return "NVRTC_ERROR_INVALID_PROGRAM";
    case INVALID_OPTION: return "NVRTC_ERROR_INVALID_OPTION";
    case COMPILATION: return "NVRTC_ERROR_COMPILATION";
    case INTERNAL: return "NVRTC_ERROR_INTERNAL_ERROR";
    default: return "NVRTC_ERROR unknown";
    }
}
static const int supported[] = { 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121 };
API int nvrtcGetNumSupportedArchs(int *n)
{
    ENTER();
    *n = sizeof supported / sizeof *supported;
    return OK;
}
API int nvrtcGetSupportedArchs(int *archs)
{
    ENTER();
    memcpy(archs, supported, sizeof supported);
    return OK;
}

API int nvrtcCreateProgram(program **out, const char *source, const char *name, int num_headers,
                           const char *const *headers, const char *const *names)
{
    ENTER();
    if (!out || !source || num_headers < 0) return INVALID_INPUT;
    program *p = calloc(1, sizeof *p);
    p->source = strdup(source);
    p->name = strdup(name ? name : "default_program");
    p->header_text = calloc((size_t)num_headers + 1, sizeof *p->header_text);
    p->header_name = calloc((size_t)num_headers + 1, sizeof *p->header_name);
    for (int i = 0; i < num_headers; i++) {
        p->header_text[i] = strdup(headers[i]);
        p->header_name[i] = strdup(names[i]);
    }
    p->num_headers = num_headers;
    p->log = strdup("");
    *out = p;
    return OK;
}
API int nvrtcDestroyProgram(program **pp)
{
    ENTER();
    if (!pp || !*pp) return INVALID_PROGRAM;
    program *p = *pp;
    for (int i = 0; i < p->num_headers; i++) {
        free(p->header_text[i]);
        free(p->header_name[i]);
    }
    free(p->header_text);
    free(p->header_name);
    free(p->source);
    free(p->name);
    free(p->log);
    free(p->image);
    free(p);
    *pp = NULL;
    return OK;
}

/* ---- files ---- */
/* makes the folders of device/x.cuh */
static int write_file(const char *folder, const char *name, const char *text)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    for (char *s = strchr(path + strlen(folder) + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(path, 0700);
        *s = '/';
    }
    FILE *f = fopen(path, "w");
    if (!f) return -1;
    fputs(text, f);
    return fclose(f);
}
/* after `before` bytes of room */
static char *read_file(const char *folder, const char *name, size_t before, size_t *bytes)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    fseek(f, 0, SEEK_END);
    const size_t size = (size_t)ftell(f);
    rewind(f);
    char *p = malloc(before + size + 1);
    *bytes = fread(p + before, 1, size, f);
    p[before + *bytes] = 0;
    fclose(f);
    return p;
}
static int remove_one(const char *path, const struct stat *s, int kind, struct FTW *w) { return remove(path); }
static const char *base_name(const char *p)
{
    const char *s = strrchr(p, '/');
    return s ? s + 1 : p;
}

/* ---- the source ---- */
static char *without_comments(const char *source)
{
    char *s = strdup(source);
    for (char *p = s; *p; p++) {
        if (p[0] == '/' && p[1] == '*') {
            const char *end = strstr(p + 2, "*/");
            const size_t n = end ? (size_t)(end + 2 - p) : strlen(p);
            for (size_t i = 0; i < n; i++)
                if (p[i] != '\n') p[i] = ' ';
            p += n - 1;
        } else if (p[0] == '/' && p[1] == '/') {
            while (*p && *p != '\n') *p++ = ' ';
            if (!*p) break;
        }
    }
    return s;
}

/* For every `__global__ void [__launch_bounds__(a, b)] name(`, wherever the words stand: EMU_ENTRY(name, a,
 * b) */
static void write_entries(FILE *out, const char *source)
{
    char *s = without_comments(source);
    for (const char *p = strstr(s, "__global__"); p; p = strstr(p, "__global__")) {
        p += strlen("__global__");
        char word[128] = "", bounds[256] = "";
        for (;;) {
            while (isspace((unsigned char)*p)) p++;
            if (*p == '(' && !strcmp(word, "__launch_bounds__")) {
                const char *begin = ++p;
                for (int depth = 1; *p && depth; p++) depth += *p == '(' ? 1 : *p == ')' ? -1 : 0;
                snprintf(bounds, sizeof bounds, ", %.*s", (int)(p - 1 - begin), begin);
            } else if (isalnum((unsigned char)*p) || *p == '_') {
                size_t n = 0;
                for (; isalnum((unsigned char)*p) || *p == '_'; p++)
                    if (n + 1 < sizeof word) word[n++] = *p;
                word[n] = 0;
            } else {
                break; /* the parameters: the last word was the name */
            }
        }
        if (*p == '(' && *word) fprintf(out, "EMU_ENTRY(%s%s)\n", word, bounds);
    }
    free(s);
}
static void write_kernel(FILE *out, const program *p)
{
    fprintf(out, "#include \"device.hpp\"\n#line 1 \"%s\"\n%s\n#include \"ptx.hpp\"\n", p->name, p->source);
    write_entries(out, p->source);
}
static int write_source(const program *p, const char *folder)
{
    char path[2048];
    int failed = write_file(folder, "emulator.h", text_emulator_h) | write_file(folder, "device.hpp", text_device_hpp);
    /* also for the entries of a kernel that includes none */
    failed |= write_file(folder, "ptx.hpp", text_ptx_hpp);
    for (int i = 0; i < p->num_headers; i++) {
        const char *name = p->header_name[i];
        failed |= write_file(folder, name, strcmp(base_name(name), "ptx.cuh") ? p->header_text[i] : text_ptx_hpp);
    }
    snprintf(path, sizeof path, "%s/kernel.cpp", folder);
    FILE *f = fopen(path, "w");
    if (!f || failed) return -1;
    write_kernel(f, p);
    return fclose(f);
}

/* ---- the command ---- */
typedef struct {
    char *word[256];
    int n;
} command;
static void add(command *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add(command *c, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *w = NULL;
    if (c->n < 255 && vasprintf(&w, format, args) >= 0) c->word[c->n++] = w;
    va_end(args);
}
static void add_words(command *c, const char *words)
{
    while (*words) {
        const size_t n = strcspn(words, " ");
        if (n) add(c, "%.*s", (int)n, words);
        words += n;
        while (*words == ' ') words++;
    }
}

typedef struct { int arch, exact, portable; } target;
static int add_options(command *c, int num_options, const char *const *options, target *t)
{
    for (int i = 0; i < num_options; i++) {
        const char *o = options[i];
        if (!strncmp(o, "-D", 2) || !strncmp(o, "-I", 2)) {
            add(c, "%s", o);
        } else if (!strncmp(o, "--define-macro=", 15)) {
            add(c, "-D%s", o + 15);
        } else if (strstr(o, "arch=") || strstr(o, "architecture=")) {
            const char *a = strchr(o, '=') + 1;
            t->portable = !strncmp(a, "compute_", 8);
            if (!t->portable && strncmp(a, "sm_", 3)) return INVALID_OPTION;
            a = strchr(a, '_') + 1;
            char *end;
            t->arch = (int)strtol(a, &end, 10);
            t->exact = *end == 'a';
            int known = 0;
            for (size_t k = 0; k < sizeof supported / sizeof *supported; k++) known |= supported[k] == t->arch;
            if (!known || (*end && strcmp(end, "a") && strcmp(end, "f"))) return INVALID_OPTION;
            add(c, "-D__CUDA_ARCH__=%d0", t->arch);
            if (t->exact) add(c, "-D__CUDA_ARCH_FEAT_SM%d_ALL", t->arch);
        }
        /* the rest (--fmad, -std, --maxrregcount ...) has no meaning here: nothing is contracted, the
         * language is C++17 */
    }
    return OK;
}

static int run(command *c, const char *folder) /* -> exit status; the compiler's words are in folder/log */
{
    char log[2048];
    snprintf(log, sizeof log, "%s/log", folder);
    size_t n = 0;
    while (environ[n]) n++;
    /* a sanitizer preloaded into this process is not for the compiler */
    char **clean = calloc(n + 1, sizeof *clean), **out = clean;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "LD_PRELOAD=", 11)) *out++ = environ[i];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 1, log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    pid_t pid;
    int status = -1;
    if (posix_spawnp(&pid, c->word[0], &actions, NULL, c->word, clean) == 0) waitpid(pid, &status, 0);
    posix_spawn_file_actions_destroy(&actions);
    free(clean);
    return status;
}

/* The name in EMU_CACHE of what this is compiled to: the sum of all that goes into it. */
static void name_in_cache(const program *p, const command *c, const char *folder, char name[64])
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    if (!f) abort();
    fprintf(f, "%s%s%s\n%u\n", text_emulator_h, text_device_hpp, text_ptx_hpp, hash_compiler(0));
    write_kernel(f, p);
    for (int i = 0; i < p->num_headers; i++) fprintf(f, "%s\n%s\n", p->header_name[i], p->header_text[i]);
    for (int i = 0; i < c->n; i++)
        if (!strstr(c->word[i], folder)) fprintf(f, "%s\n", c->word[i]);
    if (fclose(f) != 0) abort();
    snprintf(name, 64, "%016llx-%zu.so", emu_sum(text, bytes), bytes);
    free(text);
}
/* A file that is used is young: the oldest go first. */
static char *take_from_cache(const char *cache, const char *name, size_t *bytes)
{
    char path[2048];
    snprintf(path, sizeof path, "%s/%s", cache, name);
    utimensat(AT_FDCWD, path, NULL, 0);
    return read_file(cache, name, sizeof(emu_image), bytes);
}
/* Nobody sees half of a file; one that cannot be written is not there. */
static void put_in_cache(const char *cache, const char *name, const char *data, size_t bytes)
{
    char unique[2048], path[2048];
    snprintf(path, sizeof path, "%s/%s", cache, name);
    snprintf(unique, sizeof unique, "%s/XXXXXX", cache);
    const int file = mkstemp(unique);
    if (file < 0) return;
    const bool is_whole = write(file, data, bytes) == (ssize_t)bytes;
    if (close(file) != 0 || !is_whole || rename(unique, path) != 0) unlink(unique);
}

static void make_image(program *p, const target *t)
{
    emu_image h = {
        .version = EMU_VERSION, .arch = (emu_u32)t->arch, .exact = (emu_u32)t->exact, .portable = (emu_u32)t->portable
    };
    memcpy(h.magic, EMU_IMAGE_MAGIC, sizeof h.magic);
    h.bytes = p->image_bytes;
    h.sum = emu_sum(p->image + sizeof h, p->image_bytes);
    h.header_sum = emu_sum(&h, offsetof(emu_image, header_sum));
    memcpy(p->image, &h, sizeof h);
    p->image_bytes += sizeof h;
    p->portable = t->portable;
}

API int nvrtcCompileProgram(program *p, int num_options, const char *const *options)
{
    const int failure = injected(__func__);
    if (!p) return INVALID_PROGRAM;
    if (failure) {
        free(p->log);
        p->log = strdup("kernel.cu(1): error: injected by EMU_FAIL\n");
        return failure;
    }
    char folder[1024];
    const char *keep = emu_text_setting("EMU_KEEP", NULL), *tmp = emu_text_setting("TMPDIR", "/tmp");
    snprintf(folder, sizeof folder, "%s/emuXXXXXX", keep ? keep : tmp);
    if (!mkdtemp(folder)) return INTERNAL;

    command c = { .n = 0 };
    target t = { 0 };
    add_words(&c, emu_text_setting("EMU_CXX", EMU_DEFAULT_CXX));
    add_words(&c, optimisation());
    add_words(&c, fixed_flags);
    add_words(&c, sanitizer());
    add_words(&c, undefined());
    add(&c, "-I%s", folder);
    add(&c, "-ffile-prefix-map=%s/=", folder); /* a debugger finds headers by their names under src/ */
    int result = add_options(&c, num_options, options, &t);
    if (result == OK && t.arch == 0) { /* NVRTC has a default, too; ours is the default device */
        t.arch = 90;
        add(&c, "-D__CUDA_ARCH__=900");
    }
    add(&c, "%s/kernel.cpp", folder);
    add(&c, "-o");
    add(&c, "%s/kernel.so", folder);
    add(&c, "-lm");
    add(&c, "-lgcc"); /* alone: looking through libstdc++ took most of the linker's time; libc is there */

    const char *cache = keep || result != OK ? NULL : emu_text_setting("EMU_CACHE", NULL);
    char name[64];
    if (cache) name_in_cache(p, &c, folder, name);
    free(p->image);
    p->image = cache ? take_from_cache(cache, name, &p->image_bytes) : NULL;
    if (p->image) {
        free(p->log);
        p->log = strdup("");
    } else if (result == OK && write_source(p, folder)) {
        result = INTERNAL;
    } else if (result == OK) {
        const int status = run(&c, folder);
        size_t bytes = 0;
        free(p->log);
        p->log = read_file(folder, "log", 0, &bytes);
        if (!p->log) p->log = strdup("cannot run the C++ compiler (EMU_CXX)");
        p->image = status == 0 ? read_file(folder, "kernel.so", sizeof(emu_image), &p->image_bytes) : NULL;
        if (!p->image) result = COMPILATION;
        else if (cache && !*p->log) put_in_cache(cache, name, p->image + sizeof(emu_image), p->image_bytes);
    }
    if (p->image) make_image(p, &t);
    for (int i = 0; i < c.n; i++) free(c.word[i]);
    if (!keep) nftw(folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    return result;
}

API int nvrtcGetProgramLogSize(program *p, size_t *n)
{
    ENTER();
    *n = strlen(p->log) + 1;
    return OK;
}
API int nvrtcGetProgramLog(program *p, char *log)
{
    ENTER();
    strcpy(log, p->log);
    return OK;
}
static int image_size(const program *p, int portable, size_t *n)
{
    *n = 0;
    if (!p->image) return INVALID_PROGRAM;
    if (!portable && p->portable) return OK; /* compute_XX gives PTX only: a cubin of size 0 */
    *n = p->image_bytes;
    return OK;
}
API int nvrtcGetCUBINSize(program *p, size_t *n)
{
    ENTER();
    return image_size(p, 0, n);
}
API int nvrtcGetCUBIN(program *p, char *out)
{
    ENTER();
    size_t n;
    const int r = image_size(p, 0, &n);
    if (n) memcpy(out, p->image, n);
    return r;
}
API int nvrtcGetPTXSize(program *p, size_t *n)
{
    ENTER();
    return image_size(p, 1, n);
}
API int nvrtcGetPTX(program *p, char *out)
{
    ENTER();
    size_t n;
    const int r = image_size(p, 1, &n);
    if (n) memcpy(out, p->image, n);
    return r;
}
