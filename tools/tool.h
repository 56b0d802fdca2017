/* SPDX-License-Identifier: MIT
 * tool.h - what the parts of bin/tegula share: its commands, their options, output on a terminal.
 *
 *   tegula.c       main: picks the command
 *   options.c      options and words of a command line
 *   terminal.c     tables, colours, the progress line, numbers for people; facts.c: what machine this is
 *   info.c list.c check.c compile.c demo.c bench.c report.c   the commands; demo_streams.c: a part of demo
 *   help.c         the manual page, completion in shells
 *   scrub_launch.c what check --scrub puts before every launch
 *   timer.c        times of a call: timer_cpu.c, timer_cuda.c; cupti.c: GPU time as NVIDIA's profiler sees it
 *   results.c      bench rows as JSON lines
 *   compare.c      rows against earlier ones or other libraries'
 *   report_html.c  rows as plots */
#ifndef TEGULA_TOOL_H
#define TEGULA_TOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cases/case.h"

/* Exit codes: something failed; the command line makes no sense. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

typedef struct {
    const char *name, *arguments, *summary; /* for the help: "bench", "[op...] [k=v ...]", a line */
    int (*run)(int argc, char **argv);      /* argv[0] is the command's name */
    bool takes_files;                       /* words that are not options are files, not ops */
    const char *note;                       /* what else a user has to know; NULL: nothing */
    const char *example;                    /* a command line; NULL: it needs none */
} tool_command;
extern const tool_command tool_info, tool_list, tool_check, tool_bench, tool_compile, tool_demo, tool_report,
    tool_completion;
extern const tool_command *const tool_commands[]; /* all of them; ends with NULL */
extern const char tool_parameters[];              /* the note of commands that take k=v */

/* ---- help.c ---- */

int tool_print_manual(void);             /* in man's own format */
void tool_print_troff(const char *text); /* one paragraph of it */

/* ---- options.c ---- */

/* "--name" sets *flag; "--name VALUE" and "--name=VALUE" set *value. Ends with a row without a name. */
typedef struct {
    const char *name, *argument, *help;
    bool *flag;
    const char **value;
} tool_option;

/* Words that are not options: ops, domains ("moe": all of its ops), and "k=v" joined to one line of parameters for case_at(). */
enum { TOOL_MAX_OPS = 128, TOOL_LINE = 1024 };
typedef struct {
    int num_ops;
    const case_op *ops[TOOL_MAX_OPS];
    char params[TOOL_LINE]; /* "num_rows=64,128 dtype=bf16", "" without any */
    int num_files;          /* of a command that takes files: its words */
    char **files;
} tool_words;

/* Op number i of the words, of all ops if they name none; NULL past the last. */
const case_op *tool_op_at(const tool_words *words, int i);

/* True: go on. False: exit with *code, after --help or a sentence on stderr. A command that takes no words
 * gives NULL for them. */
bool tool_parse(const tool_command *command, const tool_option *options, int argc, char **argv, tool_words *words,
                int *code);

/* Prints "tegula bench: <sentence>", for TOOL_USAGE also where the help is; gives the code. */
int tool_complain(const tool_command *command, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define tool_usage(command, ...) tool_complain(command, TOOL_USAGE, __VA_ARGS__)
#define tool_failed(command, ...) tool_complain(command, TOOL_FAILED, __VA_ARGS__)

/* A size such as 500, 64K, 100M, 2G (powers of 1024); -1 for a word that is none. */
int64_t tool_bytes(const char *word);

/* Calls `visit` for the cases that a command line means, until it gives other than 0; gives that, or
 * TOOL_USAGE after a sentence. They are cases of the ops in `words`, or of all ops that have its parameters:
 * the ones that the parameters make, if all without a default are named, else those of `lists` that have
 * these values. `lists` is a sum of TOOL_LIST(CASE_BENCH) and the like. */
#define TOOL_LIST(list) (1u << (list))
typedef int (*tool_visit)(void *context, const case_op *op, const case_params *params);
int tool_each_case(const tool_command *command, const tool_words *words, unsigned lists, tool_visit visit,
                   void *context);
int tool_count_case(void *count, const case_op *op, const case_params *params); /* a visit that adds 1 to an int64_t */

/* Does the op understand a value of `pair` in no case? It is put into a listed one. The sentence is tgl_last_error(). */
bool tool_refuses(const case_op *op, const case_pair *pair);

/* Opens the device of --device: "cpu", "cuda", "cuda:1"; NULL is the first GPU, else the CPU (not the
 * emulated device). Gives TOOL_OK, or an exit code after a sentence. */
int tool_open_device(const tool_command *command, const char *name, backend *out);

/* ---- terminal.c ---- */

bool tool_is_terminal(void); /* stdout is one, and wants colours */
const char *tool_bold(void); /* escape sequences, "" where stdout is no terminal */
const char *tool_dim(void);
const char *tool_green(void);
const char *tool_red(void);
const char *tool_plain(void);

/* One line on stderr that the next one overwrites; nothing where stderr is no terminal. NULL clears it. */
void tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "[12/340, 3 min left]" for its begin: how much is done, and what the rest will take at the pace since `begin`
 * (tool_seconds()), once that is known. */
const char *tool_done(int64_t done, int64_t total, double begin);

/* Text in one of a few static buffers, cut at 511 bytes. */
const char *tool_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Numbers for people, in the same buffers: "12.3 MiB", "3.07 us" or "1.20 ms". */
const char *tool_size(double bytes);
const char *tool_time(double us);
const char *tool_count(int n, const char *thing); /* "1 row", "4 rows" */
/* Three or four significant digits; a share as "93 %". "-" for NaN. */
const char *tool_number(double value);
const char *tool_percent(double share);

int tool_width(void); /* columns of the terminal; "no end" where stdout is none */

/* Lines that the terminal can show. The first begins in `column`, where the cursor is; blanks bring the others there. */
void tool_print_wrapped(const char *text, int column);
void tool_print_help(const char *text, int column); /* at most 80 columns wide, also where stdout is no terminal */

/* A table of texts in aligned columns; those whose head begins with '>' are aligned to the right. Where the terminal is
 * too narrow, the widest columns of the others are wrapped. */
typedef struct tool_table tool_table;
tool_table *tool_table_new(int columns, const char *const *heads);
void tool_table_row(tool_table *t, const char *const *cells);
void tool_table_print(tool_table *t); /* if it has rows; then frees it */

double tool_seconds(void); /* of a monotonic clock */

/* ---- facts.c ---- */

/* Texts that live as long as the process; "" or "unknown" where a fact is not known. */
const char *tool_cpu_name(void); /* "Neoverse-N1, 2 cores" */
const char *tool_driver(void);   /* "580.159.04 (CUDA 13.0)" */
const char *tool_nvrtc(void);    /* "13.0" */
const char *tool_commit(void);   /* of the build */
int64_t tool_host_memory(void);  /* bytes */

#endif
