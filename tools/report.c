/* SPDX-License-Identifier: MIT
 * report.c - one page of many measurements, such as those of record: tegula report bench/results/h200/moe.jsonl ... */
#include <stdio.h>

#include "core/status.h"
#include "results.h"

static int run(int argc, char **argv)
{
    const char *against = NULL, *page = NULL;
    const tool_option options[] = {
        { "output", "PAGE", "(or -o) the page to write", NULL, &page },
        { "against", "FILE", "compare with JSON lines: an earlier run, or bench/peers", NULL, &against },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_report, options, argc, argv, &words, &code)) return code;
    if (words.num_files == 0)
        return tool_usage(&tool_report, "wants files of JSON lines, as tegula bench --json writes them");
    if (!page) return tool_usage(&tool_report, "--output: wants PAGE");
    tool_rows rows = { 0 }, other = { 0 };
    for (int i = 0; i < words.num_files && code == TOOL_OK; i++)
        if (tool_rows_read(words.files[i], &rows) != TGL_OK) code = tool_usage(&tool_report, "%s", tgl_last_error());
    if (code == TOOL_OK && against && tool_rows_read(against, &other) != TGL_OK)
        code = tool_usage(&tool_report, "--against: %s", tgl_last_error());
    if (code == TOOL_OK && rows.count == 0) code = tool_usage(&tool_report, "%s: no rows", words.files[0]);
    if (code == TOOL_OK && tool_report_html(page, &rows, against ? &other : NULL) != TGL_OK)
        code = tool_failed(&tool_report, "%s", tgl_last_error());
    if (code == TOOL_OK) printf("%s: %s\n", page, tool_count(tool_rows_of_ops(&rows), "row"));
    tool_rows_free(&rows);
    tool_rows_free(&other);
    return code;
}

const tool_command tool_report = {
    .name = "report",
    .arguments = "FILE... -o PAGE [--against FILE]",
    .summary = "a page with plots of measurements that are there",
    .run = run,
    .example = "tegula report rows.jsonl -o page.html",
    .takes_files = true,
};
