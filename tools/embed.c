/* SPDX-License-Identifier: MIT
 * embed.c - a build step: kernel sources and the headers they include, as byte arrays in a C file.
 *
 *     embed [-I FOLDER] SOURCE_FOLDER OUTPUT.c OUTPUT.d KERNEL.cu...
 *
 * A kernel is named by its path below SOURCE_FOLDER without ".cu", a header as kernels include it: "core/x.h"
 * is SOURCE_FOLDER/core/x.h or SOURCE_FOLDER/cuda/core/x.h, else the same below FOLDER. Only headers that an
 * #include "..." line of a kernel or of an embedded header names are embedded. OUTPUT.d lists the files that
 * were read, for make or ninja. The table is declared in src/cuda/jit.h. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FILES = 4096, MAX_INCLUDES = 256 };

typedef struct {
    char *name, *path, *text;
    size_t bytes;
    int includes[MAX_INCLUDES], num_includes; /* direct ones */
    bool is_kernel;
} file;

static file files[MAX_FILES];
static int num_files;
static const char *source_folder, *more_headers;

static void fail(const char *what, const char *name)
{
    fprintf(stderr, "embed: %s: %s\n", name, what);
    exit(1);
}

static void *check(void *p)
{
    if (!p) fail("no memory", "embed");
    return p;
}

static char *join(const char *a, const char *b, const char *c)
{
    char *s = check(malloc(strlen(a) + strlen(b) + strlen(c) + 1));
    return strcat(strcat(strcpy(s, a), b), c);
}

static char *read_text(const char *path, size_t *bytes)
{
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    size_t capacity = 1 << 16, n = 0;
    char *text = check(malloc(capacity));
    for (size_t k; (k = fread(text + n, 1, capacity - n - 1, f)) > 0;) {
        n += k;
        if (capacity - n < 2) text = check(realloc(text, capacity *= 2));
    }
    if (ferror(f)) fail("cannot be read", path);
    fclose(f);
    text[n] = 0;
    if (strlen(text) != n) fail("has a zero byte", path); /* NVRTC takes zero-terminated text */
    *bytes = n;
    return text;
}

static int add(char *name, char *path, char *text, size_t bytes)
{
    if (num_files == MAX_FILES) fail("too many files", name);
    files[num_files] = (file){ .name = name, .path = path, .text = text, .bytes = bytes };
    return num_files++;
}

/* A header by the name that an #include gives it. */
static int find_header(const char *name, const char *from, int line)
{
    static const char *const places[] = { "/", "/cuda/" };
    for (int i = 0; i < num_files; i++)
        if (!files[i].is_kernel && !strcmp(files[i].name, name)) return i;
    for (int i = 0; i < 4; i++) {
        const char *folder = i < 2 ? source_folder : more_headers;
        if (!folder) continue;
        char *path = join(folder, places[i % 2], name);
        size_t bytes;
        char *text = read_text(path, &bytes);
        if (text) return add(join(name, "", ""), path, text, bytes);
        free(path);
    }
    fprintf(stderr,
            "%s:%d: includes \"%s\", which is neither %s/%s nor %s/cuda/%s (name headers by their path below "
            "src/)\n",
            from, line, name, source_folder, name, source_folder, name);
    exit(1);
}

static void read_includes(int index)
{
    int line = 1;
    for (const char *at = files[index].text, *end; *at; at = end + !!*end, line++) {
        char text[1024], name[512];
        int n = 0;
        end = at + strcspn(at, "\n");
        snprintf(text, sizeof text, "%.*s", (int)(end - at), at);
        if (sscanf(text, " # include \"%511[^\"]%n", name, &n) != 1 || text[n] != '"') continue;
        const int header = find_header(name, files[index].path, line);
        file *f = &files[index];
        if (f->num_includes == MAX_INCLUDES) fail("includes too many files", f->path);
        f->includes[f->num_includes++] = header;
    }
}

static void mark(int index, bool *seen) /* all that it includes, directly or not */
{
    for (int i = 0; i < files[index].num_includes; i++) {
        const int h = files[index].includes[i];
        if (seen[h]) continue;
        seen[h] = true;
        mark(h, seen);
    }
}

static void write_file(FILE *out, int index)
{
    static bool seen[MAX_FILES];
    const file *f = &files[index];
    fprintf(out, "\nstatic const unsigned char text_%d[] = { /* %s */", index, f->name);
    for (size_t i = 0; i <= f->bytes; i++) fprintf(out, "%s%d,", i % 24 ? "" : "\n", (unsigned char)f->text[i]);
    fprintf(out, "\n};\nstatic const int headers_%d[] = {", index);
    memset(seen, 0, sizeof seen);
    mark(index, seen);
    for (int i = 0; i < num_files; i++)
        if (seen[i]) fprintf(out, " %d,", i);
    fprintf(out, " -1 };\n");
}

static void write_path(FILE *out, const char *path) /* as make reads it */
{
    for (; *path; path++) {
        if (*path == ' ' || *path == '#') fputc('\\', out);
        if (*path == '$') fputc('$', out);
        fputc(*path, out);
    }
}

static FILE *create(const char *path)
{
    FILE *f = fopen(path, "w");
    if (!f) fail("cannot be written", path);
    return f;
}

static void finish(FILE *f, const char *path)
{
    if (ferror(f) || fclose(f)) {
        remove(path); /* a half-written file would look up to date */
        fail("cannot be written", path);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "-I")) {
        more_headers = argv[2];
        argv += 2, argc -= 2;
    }
    if (argc < 4) {
        fprintf(stderr, "usage: embed [-I FOLDER] SOURCE_FOLDER OUTPUT.c OUTPUT.d KERNEL.cu...\n");
        return 2;
    }
    source_folder = argv[1];
    const size_t folder_bytes = strlen(source_folder);
    for (int i = 4; i < argc; i++) {
        const char *path = argv[i];
        const size_t n = strlen(path);
        if (strncmp(path, source_folder, folder_bytes) || path[folder_bytes] != '/' || n < folder_bytes + 5 ||
            strcmp(path + n - 3, ".cu"))
            fail("is no .cu file below the source folder", path);
        char *name = join(path + folder_bytes + 1, "", "");
        name[strlen(name) - 3] = 0;
        size_t bytes;
        char *text = read_text(path, &bytes);
        if (!text) fail("cannot be read", path);
        files[add(name, join(path, "", ""), text, bytes)].is_kernel = true;
    }
    for (int i = 0; i < num_files; i++) read_includes(i); /* num_files grows meanwhile */

    FILE *out = create(argv[2]);
    fprintf(out, "/* Made by tools/embed.c from the kernels under src/. */\n#include \"cuda/jit.h\"\n");
    for (int i = 0; i < num_files; i++) write_file(out, i);
    fprintf(out, "\nconst int tgl_num_embedded = %d;\nconst tgl_embedded_file tgl_embedded[] = {\n", num_files);
    for (int i = 0; i < num_files; i++)
        fprintf(out, "    { \"%s\", text_%d, sizeof text_%d - 1, headers_%d },\n", files[i].name, i, i, i);
    fprintf(out, "    { 0, 0, 0, 0 }\n};\n"); /* C wants at least one */
    finish(out, argv[2]);

    FILE *dependencies = create(argv[3]);
    write_path(dependencies, argv[2]);
    fputc(':', dependencies);
    for (int i = 0; i < num_files; i++) {
        fputs(" \\\n  ", dependencies);
        write_path(dependencies, files[i].path);
    }
    fputc('\n', dependencies);
    finish(dependencies, argv[3]);
    return 0;
}
