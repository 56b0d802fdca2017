/* SPDX-License-Identifier: MIT */
#include "test.h"

#include <stdarg.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

enum { MAX_BLOCKS = 1024, MAX_REPORTS = 20 }; /* reports per block: a wrong tensor would fill the screen */

static struct {
    const char *name;
    void (*run)(void);
} blocks[MAX_BLOCKS];
static int num_blocks, failures;
static bool skipped;

void test_register(const char *name, void (*run)(void))
{
    if (num_blocks == MAX_BLOCKS) abort();
    blocks[num_blocks].name = name;
    blocks[num_blocks++].run = run;
}

bool test_check(bool ok, const char *file, int line, const char *format, ...)
{
    if (ok) return true;
    if (failures++ < MAX_REPORTS) {
        va_list args;
        va_start(args, format);
        printf("  %s:%d: ", file, line);
        vprintf(format, args);
        printf("\n");
        va_end(args);
    }
    if (getenv("TEGULA_TEST_STOP")) { /* for planted faults: one failure is enough */
        fflush(stdout);
        _exit(1);
    }
    return false;
}

bool test_check_int(int64_t seen, int64_t want, const char *file, int line, const char *what)
{
    return test_check(seen == want, file, line, "%s is %" PRId64 ", want %" PRId64, what, seen, want);
}

bool test_check_text(const char *seen, const char *want, const char *file, int line, const char *what)
{
    if (!seen) seen = "(null)";
    return test_check(!strcmp(seen, want), file, line, "%s is \"%s\", want \"%s\"", what, seen, want);
}

bool test_check_status(tgl_status seen, tgl_status want, const char *message, const char *file, int line,
                       const char *what)
{
    if (seen != want)
        return test_check(false, file, line, "%s gives %s (%s), want %s", what, tgl_status_name(seen),
                          seen == TGL_OK ? "no message" : tgl_last_error(), tgl_status_name(want));
    return !message || test_check(!strcmp(tgl_last_error(), message), file, line, "%s says \"%s\", want \"%s\"", what,
                                  tgl_last_error(), message);
}

void test_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("  skipped: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    skipped = true;
}

test_random test_seed(const char *name) /* FNV-1a */
{
    uint64_t h = 14695981039346656037u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return (test_random){ h };
}

uint64_t test_bits(test_random *r) /* splitmix64 */
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int64_t test_below(test_random *r, int64_t n) { return (int64_t)(test_bits(r) % (uint64_t)n); }

bool test_slow(void)
{
    const char *s = getenv("TEGULA_TEST_SLOW");
    return s && *s && strcmp(s, "0");
}

/* TEGULA_TEST_BLOCKS="list graph": the blocks whose names contain one of these words, which may be none. */
static bool is_among(const char *words, const char *name)
{
    char text[256], *rest = text;
    if (!words) return true;
    snprintf(text, sizeof text, "%s", words);
    for (const char *word; (word = strsep(&rest, " "));)
        if (*word && strstr(name, word)) return true;
    return false;
}

static double cpu_seconds(int whose)
{
    struct rusage used;
    getrusage(whose, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
           1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* So that growth is seen where it is made: of blocks that take a while and of the program, which tests/run adds up. */
static void print_cpu_seconds(const char *indent, double all_before, double children_before)
{
    const double children = cpu_seconds(RUSAGE_CHILDREN) - children_before;
    const double all = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN) - all_before;
    if (*indent && all < 1) return;
    printf("%s%.2f s of CPU, %.2f s of them in compilers and other children\n", indent, all, children);
}

int main(int argc, char **argv)
{
    const char *words = getenv("TEGULA_TEST_BLOCKS");
    int passed = 0, failed = 0, num_skipped = 0;
    for (int i = 0; i < num_blocks; i++) {
        bool wanted = argc < 2;
        for (int k = 1; k < argc; k++) wanted |= strstr(blocks[i].name, argv[k]) != NULL;
        if (!wanted || !is_among(words, blocks[i].name)) continue;
        failures = 0;
        skipped = false;
        printf("%s\n", blocks[i].name);
        fflush(stdout);
        const double children = cpu_seconds(RUSAGE_CHILDREN), all = cpu_seconds(RUSAGE_SELF) + children;
        blocks[i].run();
        print_cpu_seconds("  ", all, children);
        if (failures > MAX_REPORTS) printf("  and %d more failed checks\n", failures - MAX_REPORTS);
        if (failures) failed++;
        else if (skipped) num_skipped++;
        else passed++;
    }
    print_cpu_seconds("", 0, 0);
    printf("%d passed, %d failed, %d skipped\n", passed, failed, num_skipped);
    return failed || (passed + num_skipped == 0 && !words);
}
