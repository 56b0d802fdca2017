/* SPDX-License-Identifier: MIT
 * tools/embed.c: names, headers of headers, bytes, dependencies, and what it refuses. */
int embed_main(int argc, char **argv);
#define main embed_main
#include "tools/embed.c"
#undef main

#include "support.h"

typedef struct {
    support_folder f;
    char text[1 << 16], dependencies[4096], errors[4096];
    int status;
} run;

static void put(const run *r, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", r->f.path, name);
    for (char *s = strchr(path + strlen(r->f.path) + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(path, 0700);
        *s = '/';
    }
    support_write(path, text, strlen(text));
}

/* Runs it on these kernels, in a child: it exits when it fails. */
static void embed(run *r, const char *first, const char *second)
{
    char out[300], dependencies[300], errors[300], kernels[2][512];
    snprintf(out, sizeof out, "%s/out.c", r->f.path);
    snprintf(dependencies, sizeof dependencies, "%s/out.d", r->f.path);
    snprintf(errors, sizeof errors, "%s/errors", r->f.path);
    snprintf(kernels[0], sizeof kernels[0], "%s/%s", r->f.path, first);
    snprintf(kernels[1], sizeof kernels[1], "%s/%s", r->f.path, second ? second : "");
    char *argv[] = { "embed", r->f.path, out, dependencies, kernels[0], kernels[1], NULL };
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        if (!freopen(errors, "w", stderr)) _exit(9);
        const int status = embed_main(second ? 6 : 5, argv);
        fflush(stderr);
        _exit(status);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    r->status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    r->text[support_read(out, r->text, sizeof r->text - 1)] = 0;
    r->dependencies[support_read(dependencies, r->dependencies, sizeof r->dependencies - 1)] = 0;
    r->errors[support_read(errors, r->errors, sizeof r->errors - 1)] = 0;
}

static run begin(void)
{
    run r;
    memset(&r, 0, sizeof r);
    r.f = support_make_folder();
    return r;
}

TEST(headers_of_headers)
{
    run r = begin();
    put(&r, "one/first.cu", "// x\n#include \"device/a.cuh\"\n  #  include \"one/own.cuh\"\n#include <stdint.h>\n");
    put(&r, "one/second.cu", "no includes here: \"#include\"");
    put(&r, "cuda/device/a.cuh", "#pragma once\n#include \"numerics/b.h\"\n");
    put(&r, "numerics/b.h", "#include \"device/a.cuh\"\nb"); /* around in a circle */
    put(&r, "one/own.cuh", "\n");
    put(&r, "one/unused.cuh", "unused\n");
    embed(&r, "one/first.cu", "one/second.cu");
    CHECK_INT(r.status, 0);
    CHECK(strstr(r.text, "tgl_num_embedded = 5;"));
    CHECK(strstr(r.text, "{ \"one/first\", text_0, sizeof text_0 - 1, headers_0 },"));
    CHECK(strstr(r.text, "{ \"one/second\", text_1, sizeof text_1 - 1, headers_1 },"));
    CHECK(strstr(r.text, "{ \"device/a.cuh\", text_2,"));
    CHECK(strstr(r.text, "{ \"one/own.cuh\", text_3,"));
    CHECK(strstr(r.text, "{ \"numerics/b.h\", text_4,"));
    CHECK(strstr(r.text, "headers_0[] = { 2, 3, 4, -1 };"));
    CHECK(strstr(r.text, "headers_1[] = { -1 };"));
    CHECK(strstr(r.text, "headers_3[] = { -1 };"));
    CHECK(strstr(r.text, "text_3[] = { /* one/own.cuh */\n10,0,\n};")); /* the bytes and a zero */
    CHECK(!strstr(r.text, "unused"));
    CHECK(strstr(r.dependencies, "out.c:") && strstr(r.dependencies, "numerics/b.h") &&
          strstr(r.dependencies, "one/second.cu") && strstr(r.dependencies, "cuda/device/a.cuh") &&
          !strstr(r.dependencies, "unused"));
    support_remove(r.f.path);
}

TEST(missing_header)
{
    run r = begin();
    put(&r, "one/first.cu", "\n#include \"own.cuh\"\n");
    put(&r, "one/own.cuh", "\n");
    embed(&r, "one/first.cu", NULL);
    CHECK_INT(r.status, 1);
    CHECK_THAT(strstr(r.errors, "one/first.cu:2: includes \"own.cuh\", which is neither "), "it says \"%s\"", r.errors);
    CHECK_TEXT(r.text, "");
    support_remove(r.f.path);
}

TEST(bad_files)
{
    run r = begin();
    embed(&r, "one/none.cu", NULL);
    CHECK_INT(r.status, 1);
    CHECK_HAS(r.errors, "one/none.cu: cannot be read");
    put(&r, "one/first.c", "");
    embed(&r, "one/first.c", NULL);
    CHECK_INT(r.status, 1);
    CHECK_HAS(r.errors, "is no .cu file below the source folder");
    char path[512];
    snprintf(path, sizeof path, "%s/one/zero.cu", r.f.path);
    support_write(path, "a\0b", 3);
    embed(&r, "one/zero.cu", NULL);
    CHECK_INT(r.status, 1);
    CHECK_HAS(r.errors, "has a zero byte");
    support_remove(r.f.path);
}
