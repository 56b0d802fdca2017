/* SPDX-License-Identifier: MIT */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"
#include "tool.h"

int tool_complain(const tool_command *command, int code, const char *format, ...)
{
    va_list arguments;
    tool_progress(NULL);
    fprintf(stderr, "tegula %s: ", command->name);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    if (code == TOOL_USAGE) fprintf(stderr, "See: tegula %s --help\n", command->name);
    return code;
}

const char tool_parameters[] = "k=v is a parameter of an op with its value, k=a,b stands for several values; tegula "
                               "list shows the parameters. If all without a default are given, they make the cases, "
                               "otherwise they choose those of the op's list that have these values.";

static void help(const tool_command *command, const tool_option *options)
{
    printf("usage: tegula %s %s\n%s\n", command->name, command->arguments, command->summary);
    if (command->note) {
        printf("\n");
        tool_print_help(command->note, 0);
    }
    if (command->example) printf("\nexample\n  %s\n", command->example);
    if (options->name) printf("\noptions\n");
    for (const tool_option *o = options; o->name; o++) {
        char left[48];
        snprintf(left, sizeof left, "--%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : "");
        printf("  %-22s ", left);
        tool_print_help(o->help, 25);
    }
}

/* What a command takes, for the manual page. That has examples and the note on parameters elsewhere. */
static void help_man(const tool_command *command, const tool_option *options)
{
    printf(".SS ");
    tool_print_troff(tool_text("tegula %s %s", command->name, command->arguments));
    tool_print_troff(command->summary);
    if (command->note && command->note != tool_parameters) tool_print_troff(command->note);
    for (const tool_option *o = options; o->name; o++) {
        printf(".TP\n.B ");
        tool_print_troff(tool_text("--%s%s%s", o->name, o->argument ? " " : "", o->argument ? o->argument : ""));
        tool_print_troff(o->help);
    }
}

/* The same for a shell: a branch of its `case`. */
static void help_words(const tool_command *command, const tool_option *options)
{
    printf("    *:%s) known='--help", command->name);
    for (const tool_option *o = options; o->name; o++) printf(" --%s", o->name);
    const case_op *op;
    for (int i = 0; strstr(command->arguments, "op") && (op = case_op_at(i)); i++) printf(" %s", op->name);
    if (!strcmp(command->name, tool_completion.name)) printf(" bash zsh");
    printf("' ;;\n");
}

/* Finds the option that `word` ("--json=FILE" or "--json") names; *value is what follows '=', or NULL. */
static const tool_option *find_option(const tool_option *options, const char *word, const char **value)
{
    const char *equals = strchr(word, '=');
    const size_t length = equals ? (size_t)(equals - word) : strlen(word);
    *value = equals ? equals + 1 : NULL;
    for (const tool_option *o = options; o->name; o++)
        if (strlen(o->name) == length && !strncmp(o->name, word, length)) return o;
    return NULL;
}

/* "moe_topk_gate": the ops that have this name in their domain, else those that have the word in their name, up to four; ""
 * without any. */
static const char *ops_like(const char *word)
{
    const char *names = "";
    const case_op *op;
    if (strlen(word) < 3) return names;
    for (int pass = 0; !*names && pass < 2; pass++)
        for (int i = 0, found = 0; found < 4 && (op = case_op_at(i)); i++) {
            const char *domain_end = strchr(op->name, '_');
            const bool is_name = domain_end && !strcmp(domain_end + 1, word), has_part = strstr(op->name, word);
            if (!(pass == 0 ? is_name : has_part)) continue;
            names = tool_text("%s%s%s", names, found++ ? ", " : "", op->name);
        }
    return names;
}

/* TOOL_OK, or TOOL_USAGE after a sentence. */
static int add_word(const tool_command *command, char *word, tool_words *words)
{
    if (words && command->takes_files) {
        words->files[words->num_files++] = word;
        return TOOL_OK;
    }
    if (!words) return tool_usage(command, "%s: not understood", word);
    if (strchr(word, '=')) {
        const size_t n = strlen(words->params);
        if (n + strlen(word) + 2 > sizeof words->params) return tool_usage(command, "%s: too many parameters", word);
        snprintf(words->params + n, sizeof words->params - n, "%s%s", n ? " " : "", word);
        return TOOL_OK;
    }
    const case_op *named = case_find(word), *op;
    const size_t length = strlen(word);
    const int before = words->num_ops;
    for (int i = 0; (op = case_op_at(i)); i++) {
        const bool is_in_domain = !named && !strncmp(op->name, word, length) && op->name[length] == '_';
        if (op != named && !is_in_domain) continue;
        if (words->num_ops == TOOL_MAX_OPS) return tool_usage(command, "%s: too many ops", word);
        words->ops[words->num_ops++] = op;
    }
    if (words->num_ops > before) return TOOL_OK;
    const char *alike = ops_like(word);
    if (*alike) return tool_usage(command, "%s: no such op or domain; did you mean %s?", word, alike);
    return tool_usage(command, "%s: no such op or domain; tegula list names them", word);
}

const case_op *tool_op_at(const tool_words *words, int i)
{
    if (words->num_ops == 0) return case_op_at(i);
    return i < words->num_ops ? words->ops[i] : NULL;
}

/* The option at argv[*i], and its value if it takes one. */
static int read_option(const tool_command *command, const tool_option *options, int argc, char **argv, int *i)
{
    const char *word = strcmp(argv[*i], "-o") ? argv[*i] : "--output", *value;
    const tool_option *o = strncmp(word, "--", 2) ? NULL : find_option(options, word + 2, &value);
    if (!o) return tool_usage(command, "%s: no such option", word);
    if (o->flag) {
        if (value) return tool_usage(command, "--%s: takes no value", o->name);
        *o->flag = true;
        return TOOL_OK;
    }
    if (!value && *i + 1 < argc) value = argv[++*i];
    if (!value || !*value) return tool_usage(command, "--%s: wants %s", o->name, o->argument);
    *o->value = value;
    return TOOL_OK;
}

bool tool_parse(const tool_command *command, const tool_option *options, int argc, char **argv, tool_words *words,
                int *code)
{
    if (words) *words = (tool_words){ .files = argv + 1 }; /* which are moved to the front of argv */
    *code = TOOL_OK;
    for (int i = 1; i < argc && *code == TOOL_OK; i++) {
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            help(command, options);
            return false;
        }
        if (!strcmp(argv[i], "--help=man") || !strcmp(argv[i], "--help=words")) {
            (strchr(argv[i], 'm') ? help_man : help_words)(command, options);
            return false;
        }
        *code = argv[i][0] == '-' ? read_option(command, options, argc, argv, &i) : add_word(command, argv[i], words);
    }
    return *code == TOOL_OK;
}

int64_t tool_bytes(const char *word)
{
    char *end;
    const double n = strtod(word, &end);
    if (end == word || !(n >= 0) || n > 1e15) return -1;
    static const char units[] = "KkMmGgTt";
    const char *unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)((unit - units) / 2 + 1) : 0;
    if (unit) end++;
    if (*end == 'i') end++;
    if (*end == 'B' || *end == 'b') end++;
    return *end || n > 9e18 / (double)(1ll << shift) ? -1 : (int64_t)(n * (double)(1ll << shift));
}

/* Does the case have the values that `wanted`, "k=v,w k2=v", names? */
static bool has_values(const case_params *params, const char *wanted)
{
    for (case_pair pair; case_next_pair(&wanted, &pair);) {
        int p = 0;
        while (p < params->count && !case_pair_is(&pair, params->item[p].name)) p++;
        if (p == params->count || !case_pair_has(&pair, params->item[p].value)) return false;
    }
    return true;
}

/* Is each name of `wanted` a parameter of the op? If not, *missing gets the first that is none. */
static bool knows(const case_op *op, const char *wanted, char missing[CASE_WORD])
{
    for (case_pair pair, known; case_next_pair(&wanted, &pair);) {
        const char *declared = op->params;
        bool found = false;
        snprintf(missing, CASE_WORD, "%.*s", pair.name_bytes, pair.name);
        while (!found && case_next_pair(&declared, &known)) found = case_pair_is(&known, missing);
        if (!found) return false;
    }
    return true;
}

typedef struct {
    const tool_command *command;
    unsigned lists;
    tool_visit visit;
    void *context;
    int64_t visited;
} walk;

/* Visits the cases of `lines` that have the values of `wanted`. */
static int visit_lines(walk *w, const case_op *op, const char *const *lines, const char *wanted)
{
    case_params params;
    for (int64_t i = 0, n = lines ? case_count(lines) : 0; i < n; i++) {
        if (case_at(op, lines, i, &params) != TGL_OK)
            return tool_usage(w->command, "%s: %s", op->name, tgl_last_error());
        if (!has_values(&params, wanted)) continue;
        w->visited++;
        const int code = w->visit(w->context, op, &params);
        if (code) return code;
    }
    return TOOL_OK;
}

static int visit_op(walk *w, const case_op *op, const char *line)
{
    char missing[CASE_WORD];
    case_params params;
    const char *const given[] = { line, NULL };
    if (line[0] && !knows(op, line, missing))
        return tool_usage(w->command, "%s: has no parameter %s; it has: %s", op->name, missing, op->params);
    const bool is_complete = line[0] && case_at(op, given, 0, &params) == TGL_OK;
    if (is_complete) return visit_lines(w, op, given, "");
    for (int l = 0; l < CASE_NUM_LISTS; l++) {
        const int code = w->lists & TOOL_LIST(l) ? visit_lines(w, op, op->lists[l], line) : TOOL_OK;
        if (code) return code;
    }
    return TOOL_OK;
}

bool tool_refuses(const case_op *op, const case_pair *pair)
{
    const char *const *list = NULL;
    for (int l = 0; l < CASE_NUM_LISTS && !list; l++) list = case_count(op->lists[l]) ? op->lists[l] : NULL;
    case_params params;
    if (!list || case_at(op, list, 0, &params) != TGL_OK) return false;
    char text[CASE_LABEL + TOOL_LINE];
    case_params_text(op, &params, text, sizeof text);
    const size_t n = strlen(text); /* of two words with one name the later one holds */
    snprintf(text + n, sizeof text - n, " %.*s=%.*s", pair->name_bytes, pair->name, pair->values_bytes, pair->values);
    const char *const changed[] = { text, NULL };
    case_problem *problem = case_memory(1, sizeof *problem);
    bool is_refused = false;
    for (int64_t i = 0; !is_refused && i < case_count(changed); i++)
        is_refused =
            (case_at(op, changed, i, &params) != TGL_OK || case_make_problem(op, &params, problem) != TGL_OK) &&
            !strncmp(tgl_last_error(), pair->name, (size_t)pair->name_bytes) &&
            tgl_last_error()[pair->name_bytes] == ':';
    free(problem);
    return is_refused;
}

/* Is a value of `line` one that the op understands in no case? Then the sentence is tgl_last_error(). */
static bool has_strange_value(const case_op *op, const char *line)
{
    for (case_pair pair; case_next_pair(&line, &pair);)
        if (tool_refuses(op, &pair)) return true;
    return false;
}

/* "num_rows= dtype=": the parameters without a default that `line` does not give. */
static void find_missing(const case_op *op, const char *line, char missing[TOOL_LINE])
{
    const char *declared = op->params;
    size_t n = 0;
    missing[0] = 0;
    for (case_pair known, pair; case_next_pair(&declared, &known);) {
        bool is_given = known.values_bytes > 0;
        for (const char *rest = line; !is_given && case_next_pair(&rest, &pair);)
            is_given = pair.name_bytes == known.name_bytes && !strncmp(pair.name, known.name, (size_t)pair.name_bytes);
        if (!is_given)
            n += (size_t)snprintf(missing + n, TOOL_LINE - n, "%s%.*s=", n ? " " : "", known.name_bytes, known.name);
    }
}

/* Why no case has the parameters of `words`. */
static int complain_of_no_case(const tool_command *command, const tool_words *words)
{
    const case_op *op, *strange = NULL;
    char missing[TOOL_LINE];
    bool is_known = false, is_understood = false; /* by any of the ops that have these parameters */
    for (int i = 0; !is_understood && (op = tool_op_at(words, i)); i++) {
        if (!knows(op, words->params, missing)) continue;
        is_known = true;
        if (!has_strange_value(op, words->params)) is_understood = true;
        else if (!strange) strange = op;
    }
    if (!is_understood && strange) {
        has_strange_value(strange, words->params); /* its sentence again */
        return tool_usage(command, "%s: %s", strange->name, tgl_last_error());
    }
    if (!is_known) return tool_usage(command, "no op has these parameters: %s", words->params);
    if (words->num_ops != 1)
        return tool_usage(command,
                          "no listed case has %s; to make one, name one op and all of its parameters without a default",
                          words->params);
    op = words->ops[0];
    find_missing(op, words->params, missing);
    return tool_usage(command, "no listed case of %s%s%s; to make one, give %s, too", op->name,
                      words->params[0] ? " has " : " is for this", words->params, missing);
}

int tool_each_case(const tool_command *command, const tool_words *words, unsigned lists, tool_visit visit,
                   void *context)
{
    walk w = { command, lists, visit, context, 0 };
    const case_op *op;
    char missing[CASE_WORD];
    int code = TOOL_OK;
    for (int i = 0; code == TOOL_OK && (op = tool_op_at(words, i)); i++)
        if (words->num_ops || knows(op, words->params, missing)) code = visit_op(&w, op, words->params);
    return code == TOOL_OK && !w.visited ? complain_of_no_case(command, words) : code;
}

int tool_count_case(void *count, const case_op *op, const case_params *params)
{
    (void)op;
    (void)params;
    ++*(int64_t *)count;
    return TOOL_OK;
}

int tool_open_device(const tool_command *command, const char *name, backend *out)
{
    int count = 0;
    const tgl_device *device;
    if (!name) {
        const bool has_gpu = tgl_device_count(&count) == TGL_OK && count > 0 && tgl_device_get(0, &device) == TGL_OK &&
                             !device->is_emulated;
        name = has_gpu ? "cuda:0" : "cpu";
    }
    const tgl_status status = backend_open(name, out);
    if (status == TGL_ERR_ARGUMENT)
        return tool_usage(command, "--device: is %s, want cpu, cuda or cuda:<number>", name);
    return status == TGL_OK ? TOOL_OK : tool_failed(command, "%s", tgl_last_error());
}
