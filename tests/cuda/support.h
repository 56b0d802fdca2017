/* SPDX-License-Identifier: MIT
 * support.h - for the tests of src/cuda: blocks that run in a process of their own, folders, files. */
#ifndef TEGULA_TEST_CUDA_SUPPORT_H
#define TEGULA_TEST_CUDA_SUPPORT_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/cache.h"
#include "cuda/jit.h"
#include "cuda/nvrtc.h"
#include "test.h"

#define CHECK_HAS(text, part) CHECK_THAT(strstr((text), (part)), "\"%s\", want one with \"%s\"", (text), (part))
#define CHECK_BEGINS(text, part) \
    CHECK_THAT(!strncmp((text), (part), strlen(part)), "\"%s\", want one that begins with \"%s\"", (text), (part))

#define CHECK_FORMATTED(text, ...)                  \
    do {                                            \
        char want_[1024];                           \
        snprintf(want_, sizeof want_, __VA_ARGS__); \
        CHECK_TEXT(text, want_);                    \
    } while (0)

/* At the top of a block: the rest runs in a new process of this program, where the library is not initialised
 * yet, with these changes of the environment: "NAME=value", or "NAME" to remove it. */
#define IN_CHILD(...)                                                                                          \
    do {                                                                                                       \
        if (!support_in_child(__func__ + strlen("test_"), (const char *const[]){ __VA_ARGS__, NULL })) return; \
    } while (0)

static inline bool support_in_child(const char *block, const char *const *changes)
{
    if (getenv("TEGULA_TEST_CHILD")) return true;
    int out[2];
    if (!CHECK(pipe(out) == 0)) return false;
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        close(out[0]);
        close(out[1]);
        for (; *changes; changes++) {
            char *change = strdup(*changes), *equals = strchr(change, '=');
            if (equals) {
                *equals = 0;
                setenv(change, equals + 1, 1);
            } else {
                unsetenv(change);
            }
        }
        setenv("TEGULA_TEST_CHILD", "1", 1);
        execl("/proc/self/exe", "test", block, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    static char text[1 << 16];
    size_t bytes = 0;
    for (ssize_t n; (n = read(out[0], text + bytes, sizeof text - 1 - bytes)) > 0 || (n < 0 && errno == EINTR);)
        if (n > 0) bytes += (size_t)n;
    text[bytes] = 0;
    close(out[0]);
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    char *skipped = strstr(text, "  skipped: ");
    if (status) {
        test_check(false, __FILE__, __LINE__, "the child of %s ended with status 0x%x and said:\n%s", block,
                   (unsigned)status, text);
    } else if (skipped) {
        skipped += strlen("  skipped: ");
        skipped[strcspn(skipped, "\n")] = 0;
        test_skip("%s", skipped);
    } else {
        CHECK_THAT(strstr(text, "1 passed"), "the child of %s said:\n%s", block, text);
    }
    return false;
}

/* ---- folders ---- */

typedef struct { char path[256]; } support_folder;

static inline support_folder support_make_folder(void)
{
    support_folder f = { "/tmp/tegula-test-XXXXXX" };
    const char *place = getenv("TMPDIR");
    if (place && *place && strlen(place) < 200) snprintf(f.path, sizeof f.path, "%s/tegula-test-XXXXXX", place);
    if (!mkdtemp(f.path)) abort();
    return f;
}

/* The value of an environment variable from here on: in a child, before the library reads it. */
static inline support_folder support_folder_in(const char *variable)
{
    support_folder f = support_make_folder();
    setenv(variable, f.path, 1);
    return f;
}

static inline void support_remove(const char *path) /* a file, or a folder with all that is in it */
{
    struct stat s;
    if (lstat(path, &s)) return;
    if (S_ISDIR(s.st_mode)) {
        chmod(path, 0700);
        DIR *d = opendir(path);
        for (const struct dirent *e; d && (e = readdir(d)) != NULL;) {
            char inner[4096];
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
            support_remove(inner);
        }
        if (d) closedir(d);
        rmdir(path);
    } else {
        unlink(path);
    }
}

/* The number of files whose names end like this ("" for all); -1 if the folder cannot be read. */
static inline int support_count(const char *path, const char *ending)
{
    DIR *d = opendir(path);
    if (!d) return -1;
    int count = 0;
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const size_t n = strlen(e->d_name), m = strlen(ending);
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && n >= m && !strcmp(e->d_name + n - m, ending)) count++;
    }
    closedir(d);
    return count;
}

static inline void support_write(const char *path, const void *data, size_t bytes)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

static inline size_t support_read(const char *path, void *data, size_t capacity)
{
    const int fd = open(path, O_RDONLY);
    const ssize_t n = fd < 0 ? -1 : read(fd, data, capacity);
    if (fd >= 0) close(fd);
    return n < 0 ? 0 : (size_t)n;
}

/* ---- a kernel of the tests' own ---- */

/* NVIDIA's compiler, not the emulated one, whose log, PTX and bytes mean nothing. */
static inline bool support_has_real_nvrtc(void)
{
    const tgl_nvrtc_table *nvrtc = tgl_nvrtc_or_null();
    return nvrtc && !strstr(nvrtc->path, "emulated");
}

static const char *const support_header_names[] = { "device/factor.cuh" };
static const char *const support_header_texts[] = { "#define SCALED(x) ((x) * FACTOR)\n" };
static const tgl_source support_source = { "tests/scale",
                                           "#include \"device/factor.cuh\"\n"
                                           "#ifndef FACTOR\n"
                                           "#error FACTOR is not defined\n"
                                           "#endif\n"
                                           "extern \"C\" __global__ void __launch_bounds__(128) scale(float *p)\n"
                                           "{\n"
                                           "    p[threadIdx.x] = SCALED(p[threadIdx.x]);\n"
                                           "}\n",
                                           1, support_header_names, support_header_texts };

#endif
