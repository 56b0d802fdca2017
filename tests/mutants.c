/* SPDX-License-Identifier: MIT
 * mutants.c - with TEGULA_TEST_MUTANTS=FILE, every case is tried again with each mutant of its kernels that can matter.
 *
 * mutate.py compiles kernels in which any comparison can be moved by one (emulator/mutants.hpp); both forms differ only
 * where the two sides are equal. A case first runs unchanged, which shows the comparisons with equal sides; then once per
 * such mutant, in a child process, since a wrong kernel may crash or hang. FILE, which several programs may share, gets a
 * line "noticed NUMBER how" for each mutant with which a case fails, and at the end "seen NUMBER 1 PROGRAM", or 3 if the
 * sides were equal once. Mutants that FILE says are noticed, or to be left out ("skip NUMBER"), are not tried; nor is one that
 * 25 cases of the program, or TEGULA_TEST_TRIES, did not notice.
 *
 * TEGULA_TEST_MUTANT=NUMBER instead: the program runs with this one. The linker replaces case_check() (--wrap). */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases/case.h"
#include "cuda/driver.h"
#include "emulator/control.h"

enum { MAX_MUTANTS = 4092, WAS_EQUAL = 2 };
typedef struct {
    int chosen;
    unsigned char seen[MAX_MUTANTS];
} mutants; /* as in emulator/mutants.hpp */
static mutants *table;
static const char *results;
static unsigned char is_left_out[MAX_MUTANTS], seen_before[MAX_MUTANTS];
static int tries[MAX_MUTANTS], max_tries = 25;
static unsigned num_cases;

static void write_seen(void)
{
    FILE *f = fopen(results, "a");
    for (int i = 0; f && i < MAX_MUTANTS; i++)
        if (seen_before[i] | table->seen[i])
            fprintf(f, "seen %d %d %s\n", i, seen_before[i] | table->seen[i], program_invocation_short_name);
    if (f) fclose(f);
}

__attribute__((constructor)) static void make_table(void)
{
    char address[32], line[1024];
    const char *only = getenv("TEGULA_TEST_MUTANT");
    results = getenv("TEGULA_TEST_MUTANTS");
    if (getenv("TEGULA_TEST_TRIES")) max_tries = atoi(getenv("TEGULA_TEST_TRIES"));
    if (!results && !only) return;
    table = mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (table == MAP_FAILED) abort();
    table->chosen = only ? atoi(only) : -1;
    snprintf(address, sizeof address, "%llx", (unsigned long long)(uintptr_t)table);
    setenv("TEGULA_TEST_MUTANTS_AT", address, 1);
    if (!results) return;
    FILE *f = fopen(results, "r");
    for (int i; f && fgets(line, sizeof line, f);)
        if ((sscanf(line, "noticed %d", &i) == 1 || sscanf(line, "skip %d", &i) == 1) && i >= 0 && i < MAX_MUTANTS)
            is_left_out[i] = 1;
    if (f) fclose(f);
    atexit(write_seen);
}

case_result __wrap_case_check(const case_op *op, const case_params *params, const backend *on, case_report *report);
case_result __real_case_check(const case_op *op, const case_params *params, const backend *on, case_report *report);

enum { NONE = -1 };
typedef struct {
    const case_op *op;
    const case_params *params;
    const backend *on;
    case_result want;
    rlim_t seconds;
} again;

/* The status of a child that runs the case again with a mutant: 0 if the result is the wanted one. The library refuses CUDA in
 * a child, as a driver would; the emulated device can go on there. So fork()'s handlers must not run. */
static int status_with(int number, const again *c)
{
    fflush(NULL);
    table->chosen = number;
    const pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child < 0) abort();
    if (child == 0) {
        case_report report;
        const tgl_driver_table *cu;
        emuInherit_function inherit = NULL;
        const int nowhere = open("/dev/null", O_WRONLY);
        dup2(nowhere, 1);
        dup2(nowhere, 2);
        setrlimit(RLIMIT_CPU, &(struct rlimit){ 5 + 4 * c->seconds, RLIM_INFINITY });
        if (tgl_driver(&cu) == TGL_OK) *(void **)&inherit = dlsym(cu->handle, "emuInherit");
        if (inherit) inherit();
        _exit(__real_case_check(c->op, c->params, c->on, &report) != c->want);
    }
    int status = 0;
    waitpid(child, &status, 0);
    table->chosen = NONE;
    return status;
}

static void try_mutant(int number, const again *c)
{
    char text[CASE_LABEL];
    const int status = status_with(number, c);
    tries[number]++;
    if (status == 0) return;
    is_left_out[number] = 1;
    case_params_text(c->op, c->params, text, sizeof text);
    FILE *f = fopen(results, "a");
    if (!f) abort();
    fprintf(f, "noticed %d %s: %s %s\n", number,
            WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU ? "hangs"
            : WIFEXITED(status) && WEXITSTATUS(status) == 1    ? "wrong"
                                                               : "stopped",
            c->op->name, text);
    fclose(f);
}

case_result __wrap_case_check(const case_op *op, const case_params *params, const backend *on, case_report *report)
{
    if (!results || !on->is_emulated) return __real_case_check(op, params, on, report);
    for (int i = 0; i < MAX_MUTANTS; i++) seen_before[i] |= table->seen[i];
    memset(table->seen, 0, sizeof table->seen);
    const clock_t begin = clock();
    const case_result result = __real_case_check(op, params, on, report);
    const again c = { op, params, on, result, (rlim_t)((clock() - begin) / CLOCKS_PER_SEC) };
    unsigned char seen[MAX_MUTANTS];
    memcpy(seen, table->seen, sizeof seen);
    if (num_cases++ % 32 == 0 && status_with(NONE, &c) != 0) {
        fprintf(stderr, "emulator: a case fails in a child process even without a mutant\n");
        abort();
    }
    for (int i = 0; i < MAX_MUTANTS; i++)
        if (seen[i] & WAS_EQUAL && !is_left_out[i] && tries[i] < max_tries) try_mutant(i, &c);
    return result;
}
