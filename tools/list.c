/* SPDX-License-Identifier: MIT
 * list.c - the ops, their parameters and how many cases each list has. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

enum { VALUES = 1024 };

static bool has_word(const char *words, const char *word, size_t bytes)
{
    for (const char *w = words; (w = strstr(w, word)); w++)
        if ((w == words || w[-1] == ' ') && (!w[bytes] || w[bytes] == ',')) return true;
    return false;
}

/* Appends the values of "a,b" that are not there. */
static void add_values(char text[VALUES], const char *values, int bytes)
{
    for (const char *end = values + bytes; values < end;) {
        const size_t rest = (size_t)(end - values), n = strcspn(values, ", "), length = n < rest ? n : rest;
        char word[CASE_WORD];
        snprintf(word, sizeof word, "%.*s", (int)length, values);
        const size_t used = strlen(text);
        if (*word && !has_word(text, word, strlen(word)))
            snprintf(text + used, VALUES - used, "%s%s", used ? ", " : "", word);
        values += length + 1;
    }
}

/* Values of a parameter in the op's lists, its default first. */
static void add_listed(char text[VALUES], const case_op *op, const case_pair *known)
{
    add_values(text, known->values, known->values_bytes);
    for (int l = 0; l < CASE_NUM_LISTS; l++)
        for (const char *const *line = op->lists[l]; line && *line; line++) {
            const char *words = *line;
            for (case_pair pair; case_next_pair(&words, &pair);)
                if (pair.name_bytes == known->name_bytes && !strncmp(pair.name, known->name, (size_t)pair.name_bytes))
                    add_values(text, pair.values, pair.values_bytes);
        }
}

/* Listed numbers stand for any; a word that is alone in the lists says nothing. */
static void widen(char text[VALUES])
{
    char *end;
    strtod(text, &end);
    if (end > text && (!*end || *end == ',')) strcpy(text, "a number");
    else if (!strchr(text, ',')) text[0] = 0;
}

/* What a parameter may be: what is wanted where it is "?"; the listed values where that does not say it. */
static void describe_values(char text[VALUES], const case_op *op, const case_pair *known)
{
    static const char words[] = "one of: ";
    const case_pair strange = { known->name, "?", known->name_bytes, 1 };
    const char *want = tool_refuses(op, &strange) ? strstr(tgl_last_error(), ", want ") : NULL;
    text[0] = 0;
    if (want) want += strlen(", want ");
    if (want && !strncmp(want, words, strlen(words))) {
        for (const char *w = want + strlen(words); *w; w += strcspn(w, " "), w += strspn(w, " "))
            add_values(text, w, (int)strcspn(w, " "));
    } else if (want && strncmp(want, "a dtype", strlen("a dtype"))) {
        snprintf(text, VALUES, "%s", want);
    } else {
        add_listed(text, op, known);
        if (!want) widen(text);
    }
}

static void print_parameters(const case_op *op)
{
    static const char *const heads[] = { "parameter", "default", "values" };
    tool_table *table = tool_table_new(3, heads);
    const char *declared = op->params;
    for (case_pair known; case_next_pair(&declared, &known);) {
        char values[VALUES];
        describe_values(values, op, &known);
        tool_table_row(table, (const char *const[]){ tool_text("%.*s", known.name_bytes, known.name),
                                                     tool_text("%.*s", known.values_bytes, known.values), values });
    }
    printf("\n");
    tool_table_print(table);
}

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
    if (words.num_ops == 1) print_parameters(words.ops[0]);
    return TOOL_OK;
}

const tool_command tool_list = {
    .name = "list",
    .arguments = "[op|domain ...]",
    .summary = "the ops, with their parameters and numbers of cases",
    .run = run,
    .note = "check, slow, bench, kernels: how many cases are listed for tegula check, check --slow, "
            "bench and compile. num_tokens= has no default, dtype=i64 has one. Of a single op, also the "
            "values of each parameter.",
    .example = "tegula list moe transpose",
};
