/* SPDX-License-Identifier: MIT
 * list.c - the ops, their parameters and how many cases each list has. */
#include "tool.h"

static int run(int argc, char **argv)
{
    const tool_option options[] = { { 0 } };
    tool_words words;
    int code;
    if (!tool_parse(&tool_list, options, argc, argv, &words, &code)) return code;
    if (words.params[0]) return tool_usage(&tool_list, "%s: not understood", words.params);
    static const char *const heads[] = { "op", ">check", ">slow", ">bench", ">kernels", "parameters (with defaults)" };
    tool_table *table = tool_table_new(6, heads);
    const case_op *op;
    for (int i = 0; (op = tool_op_at(&words, i)); i++) {
        const char *count[CASE_NUM_LISTS];
        for (int l = 0; l < CASE_NUM_LISTS; l++) count[l] = tool_text("%lld", (long long)case_count(op->lists[l]));
        tool_table_row(table, (const char *const[]){ op->name, count[CASE_CHECK], count[CASE_SLOW], count[CASE_BENCH],
                                                     count[CASE_KERNELS], op->params });
    }
    tool_table_print(table);
    return TOOL_OK;
}

const tool_command tool_list = {
    .name = "list",
    .arguments = "[op|domain ...]",
    .summary = "the ops, with their parameters and numbers of cases",
    .run = run,
    .note = "check, slow, bench, kernels: how many cases are listed for tegula check, check --slow, "
            "bench and compile. num_tokens= has no default, dtype=i64 has one.",
    .example = "tegula list moe transpose",
};
