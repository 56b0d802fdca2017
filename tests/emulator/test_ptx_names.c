/* SPDX-License-Identifier: MIT
 * test_ptx_names.c - device/ptx.cuh and the emulator's ptx.hpp define the same names, and builtins.cu tries
 * every wrapper: one that is added to a single file fails here. */
#include "host.h"

#include <ctype.h>

enum { MAX_NAMES = 512, NAME_BYTES = 64 };
typedef struct {
    char name[MAX_NAMES][NAME_BYTES];
    int n;
} names;

static void add(names *s, const char *begin, size_t n)
{
    if (n == 0 || n >= NAME_BYTES || s->n == MAX_NAMES) abort();
    for (int i = 0; i < s->n; i++)
        if (strlen(s->name[i]) == n && !memcmp(s->name[i], begin, n)) return;
    memcpy(s->name[s->n], begin, n);
    s->name[s->n++][n] = 0;
}
static bool contains(const names *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (!strcmp(s->name[i], name)) return true;
    return false;
}
static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }
static size_t word_length(const char *p)
{
    size_t n = 0;
    while (is_word(p[n])) n++;
    return n;
}
static bool starts(const char *line, const char *with) { return !strncmp(line, with, strlen(with)); }

/* What a file defines: functions after DEV at the start of a line, macros, the last word of a typedef; in
 * ptx.hpp also functions made by one of its macros, EMU_SOMETHING(name, ...). The emulator's own names
 * begin with emu_ or EMU_. */
static names defined_in(const char *text)
{
    names s = { .n = 0 };
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        const char *p = line, *end = line + strcspn(line, "\n");
        if (starts(p, "template <")) {
            while (p < end && *p != '>') p++;
            p += p + 1 < end ? 2 : 0;
        }
        if (starts(p, "EMU_QUIET ") || starts(p, "EMU_UNCHECKED ")) p += word_length(p) + 1;
        if (starts(p, "DEV ")) {
            const char *open = strchr(p, '('), *begin = open;
            while (is_word(begin[-1])) begin--;
            if (!starts(begin, "emu_")) add(&s, begin, (size_t)(open - begin));
        } else if (starts(p, "EMU_") && strchr(p, '(') && strchr(p, '(') < end) {
            const char *begin = strchr(p, '(') + 1;
            if (islower((unsigned char)*begin)) add(&s, begin, word_length(begin));
        } else if (starts(p, "#define ")) {
            p += strlen("#define ");
            if (!starts(p, "EMU_") && !starts(p, "TEGULA_")) add(&s, p, word_length(p));
        } else if (starts(p, "typedef ")) {
            const char *semicolon = end;
            while (*semicolon != ';') semicolon--;
            const char *begin = semicolon;
            while (is_word(begin[-1])) begin--;
            add(&s, begin, (size_t)(semicolon - begin));
        }
    }
    return s;
}
static bool mentions(const char *text, const char *name)
{
    for (const char *p = strstr(text, name); p; p = strstr(p + 1, name))
        if ((p == text || !is_word(p[-1])) && !is_word(p[strlen(name)])) return true;
    return false;
}

TEST(same_names)
{
    char *device = read_text("../../src/cuda/device/ptx.cuh"), *emulated = read_text("ptx.hpp");
    static names a, b;
    a = defined_in(device);
    b = defined_in(emulated);
    CHECK_THAT(a.n > 100, "only %d names found in ptx.cuh", a.n);
    CHECK(contains(&a, "ldmatrix_x4_trans") && contains(&a, "copy_async_wait") && contains(&a, "SHARED") &&
          contains(&a, "tensor_map"));
    for (int i = 0; i < a.n; i++)
        CHECK_THAT(contains(&b, a.name[i]), "%s is in device/ptx.cuh, not in tests/emulator/ptx.hpp", a.name[i]);
    for (int i = 0; i < b.n; i++)
        CHECK_THAT(contains(&a, b.name[i]), "%s is in tests/emulator/ptx.hpp, not in device/ptx.cuh", b.name[i]);
    free(device);
    free(emulated);
}

TEST(every_wrapper_is_tried)
{
    char *device = read_text("../../src/cuda/device/ptx.cuh"), *tried = read_text("builtins.cu");
    static names a;
    a = defined_in(device);
    for (int i = 0; i < a.n; i++) {
        /* macros, u32 */
        if (isupper((unsigned char)a.name[i][0]) || a.name[i][1] == 0 || isdigit((unsigned char)a.name[i][1])) continue;
        CHECK_THAT(mentions(tried, a.name[i]), "%s is not tried in tests/emulator/builtins.cu", a.name[i]);
    }
    free(device);
    free(tried);
}
