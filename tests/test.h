/* SPDX-License-Identifier: MIT
 * test.h - the harness of the C tests. A test program is a file of TEST(name) { ... } blocks,
 * linked with test.c, which has main():
 *
 *     test_tensor [NAME...]      runs the blocks whose names contain one of NAME (all without)
 *
 * A failed check prints file, line and what was seen, and the block goes on; the last line is "N
 * passed, N failed, N skipped" over blocks. */
#ifndef TEGULA_TEST_H
#define TEGULA_TEST_H

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "tegula/core.h"

#define TEST(name)                                                                                        \
    static void test_##name(void);                                                                        \
    __attribute__((constructor)) static void register_##name(void) { test_register(#name, test_##name); } \
    static void test_##name(void)

/* Leaves the block, which then counts as skipped; the reason is printed. */
#define SKIP(...)               \
    do {                        \
        test_skip(__VA_ARGS__); \
        return;                 \
    } while (0)

#define CHECK(condition) test_check((condition), __FILE__, __LINE__, "%s", #condition)
#define CHECK_THAT(condition, ...) \
    test_check((condition), __FILE__, __LINE__, __VA_ARGS__) /* printf-style: what was seen */
#define CHECK_INT(seen, want) test_check_int((int64_t)(seen), (int64_t)(want), __FILE__, __LINE__, #seen)
#define CHECK_TEXT(seen, want) test_check_text((seen), (want), __FILE__, __LINE__, #seen)
#define CHECK_OK(call) test_check_status((call), TGL_OK, NULL, __FILE__, __LINE__, #call)
/* the status, and the whole message (NULL: any) */
#define CHECK_FAILS(call, status, message) test_check_status((call), (status), (message), __FILE__, __LINE__, #call)
/* REQUIRE leaves the block when the condition does not hold: what follows would make no sense. */
#define REQUIRE(condition)                                                          \
    do {                                                                            \
        if (!test_check((condition), __FILE__, __LINE__, "%s", #condition)) return; \
    } while (0)

void test_register(const char *name, void (*run)(void));
bool test_check(bool ok, const char *file, int line, const char *format, ...) __attribute__((format(printf, 4, 5)));
bool test_check_int(int64_t seen, int64_t want, const char *file, int line, const char *what);
bool test_check_text(const char *seen, const char *want, const char *file, int line, const char *what);
bool test_check_status(tgl_status seen, tgl_status want, const char *message, const char *file, int line,
                       const char *what);
void test_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Random bits. A case seeds from its own name, so it sees the same data whatever runs before it. */
typedef struct { uint64_t state; } test_random;
test_random test_seed(const char *name);
uint64_t test_bits(test_random *r);
int64_t test_below(test_random *r, int64_t n); /* 0 .. n - 1 */

/* Is the slow set wanted (TEGULA_TEST_SLOW=1, set by make test-slow)? */
bool test_slow(void);

#endif
