/* SPDX-License-Identifier: MIT
 * results.h - measured rows as JSON lines: one flat object per line, strings and numbers only.
 * docs/benchmarking.md explains every field. */
#ifndef TEGULA_RESULTS_H
#define TEGULA_RESULTS_H

#include <stdio.h>

#include "tool.h"

/* Numbers that were not measured are NaN, and null in a file. Times are of one call. */
typedef struct {
    char op[64], row[256], params[256]; /* row: the case's label, by which rows are matched */
    char device[128], backend[16], architecture[16], driver[32], nvrtc[16];
    char library[16], commit[48]; /* of our rows; those of peers have `peer` instead */
    char peer[96];
    char timer[16], flush[16];                /* "cupti", "events", "clock"; "write", "read" */
    double bytes;                             /* that the op has to move */
    double calls;                             /* timed cold */
    double cold_us, cold_min_us, cold_p90_us; /* cold_us is the median */
    double cold_spread;                       /* (90 % point - 10 % point) / median */
    double warm_us, graph_us, host_ns;
    double gb_per_s;            /* bytes / cold_us */
    double copy_us, copy_share; /* a plain copy of as many bytes, cold; copy_us / cold_us */
    double gather_us;           /* a plain gather of the same rows from host memory, all SMs, cold */
    double gather_codes_us;     /* of rows that have scale factors elsewhere: without those */
    double empty_us;            /* an empty kernel of the same grid, cold */
    double threads;             /* on the CPU */
    double checked;             /* 1: the result was compared with the oracle's first */
} tool_row;

typedef struct {
    tool_row *rows;
    int count;
} tool_rows;

void tool_row_clear(tool_row *row); /* texts "", numbers NaN */
tool_row *tool_rows_add(tool_rows *rows, const tool_row *row);
const tool_row *tool_rows_find(const tool_rows *rows, const char *label);
void tool_rows_free(tool_rows *rows);

/* Is it the plain copy that a bench measures before the rows of ops? And how many rows are not. */
bool tool_row_is_copy(const tool_row *row);
int tool_rows_of_ops(const tool_rows *rows);

void tool_row_write(const tool_row *row, FILE *file); /* a line */

/* Reads what tool_row_write() wrote, and peers' rows in the same form: one object per line, without nesting,
 * arrays, booleans or escapes other than \" and \\. Unknown fields are skipped; anything else is an error
 * that names file and line. */
tgl_status tool_rows_read(const char *path, tool_rows *rows);

/* ---- compare.c ---- */

/* Prints the rows beside those of `other` (the fastest of a label if there are several) with the verdicts of
 * docs/benchmarking.md. Gives the number of rows that missed their goal. */
int tool_compare(const tool_rows *rows, const tool_rows *other, const char *other_name);

/* The verdict on one row: neither met nor missed if it was not timed, or on another device. */
typedef struct {
    bool is_met, is_missed;
    const char *text;
    char ratio[32]; /* of the times, ours to theirs; "-" if not timed */
} tool_verdict;
tool_verdict tool_judge(const tool_row *ours, const tool_row *theirs);
const char *tool_goal(const tool_row *theirs); /* what a row has to be, in words */

/* ---- report_html.c ---- */

/* A page of its own: no scripts, nothing fetched. `other` may be NULL. */
tgl_status tool_report_html(const char *path, const tool_rows *rows, const tool_rows *other);

#endif
