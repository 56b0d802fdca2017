/* SPDX-License-Identifier: MIT
 * help.c - the manual page and completion in shells. Commands say what they take in one place, the tables of tegula.c and
 * of tool_parse(); a command that is run with --help=man or --help=words prints its part of either. */
#include <stdio.h>
#include <string.h>

#include "core/settings.h"
#include "tool.h"

static int run_each(char *option)
{
    int code = TOOL_OK;
    for (const tool_command *const *c = tool_commands; *c && code == TOOL_OK; c++)
        code = (*c)->run(2, (char *[]){ (char *)(*c)->name, option, NULL });
    return code;
}

/* Text of a manual page: troff takes a backslash and a dot or quote at the beginning of a line for its own. */
void tool_print_troff(const char *text)
{
    if (*text == '.' || *text == '\'') printf("\\&");
    for (; *text; text++) {
        if (*text == '\\' || *text == '-') putchar('\\');
        putchar(*text == '\\' ? 'e' : *text);
    }
    putchar('\n');
}

/* The cache's folder without a setting: src/core/settings.c. */
static void print_files(void)
{
    printf(".SH FILES\n.TP\n.I $XDG_CACHE_HOME/tegula, ~/.cache/tegula\n");
    tool_print_troff("Compiled kernels: the first where XDG_CACHE_HOME is set, and neither where TEGULA_CACHE_DIR is.");
}

static void print_environment(void)
{
    static tgl_setting_row row;
    printf(".SH ENVIRONMENT\n");
    for (int i = 0; tgl_settings_row(i, &row); i++) {
        printf(".TP\n.B %s\n", row.variable);
        tool_print_troff(row.meaning);
    }
}

static void print_examples(void)
{
    printf(".SH EXAMPLES\n");
    for (const tool_command *const *c = tool_commands; *c; c++) {
        if (!(*c)->example) continue;
        printf(".PP\n%s:\n.PP\n.EX\n", (*c)->summary);
        tool_print_troff((*c)->example);
        printf(".EE\n");
    }
}

int tool_print_manual(void)
{
    printf(".TH TEGULA 1 \"\" \"tegula %s\" \"User Commands\"\n.SH NAME\ntegula \\- kernels for large language models: "
           "what is here, is it right, how fast is it\n.SH SYNOPSIS\n.B tegula\n.I command\n[...]\n.SH COMMANDS\n",
           tgl_version());
    const int code = run_each("--help=man");
    printf(".SH PARAMETERS\n");
    tool_print_troff(tool_parameters);
    printf(".SH EXIT STATUS\n0: all is well. 1: something failed. 2: the command line makes no sense.\n");
    print_environment();
    print_files();
    print_examples();
    return code;
}

/* Sets `known` to the words that may come: options, then ops. One branch of the shells' `case` for each command. */
static int print_words(const char *position, const char *command)
{
    printf("    local known\n    case %s:%s in\n    1:*) known='help", position, command);
    for (const tool_command *const *c = tool_commands; *c; c++) printf(" %s", (*c)->name);
    printf("' ;;\n    *:help) known='man");
    for (const tool_command *const *c = tool_commands; *c; c++) printf(" %s", (*c)->name);
    printf("' ;;\n");
    const int code = run_each("--help=words");
    printf("    esac\n");
    return code;
}

static int print_bash(void)
{
    printf("# bash completion for tegula, printed by `tegula completion bash`\n_tegula() {\n");
    const int code = print_words("$COMP_CWORD", "${COMP_WORDS[1]}");
    printf("    COMPREPLY=($(compgen -W \"$known\" -- \"${COMP_WORDS[COMP_CWORD]}\"))\n}\n"
           "complete -o default -F _tegula tegula\n");
    return code;
}

/* As a file _tegula in a folder of $fpath, where its first line counts, or read by a shell. */
static int print_zsh(void)
{
    printf("#compdef tegula\n# zsh completion for tegula, printed by `tegula completion zsh`\n_tegula() {\n");
    const int code = print_words("$((CURRENT - 1))", "$words[2]");
    printf("    compadd -- ${=known} || _files\n}\n"
           "if [[ $funcstack[1] == _tegula ]]; then _tegula \"$@\"; else compdef _tegula tegula; fi\n");
    return code;
}

static int run(int argc, char **argv)
{
    const tool_option options[] = { { 0 } };
    if (argc == 2 && !strcmp(argv[1], "bash")) return print_bash();
    if (argc == 2 && !strcmp(argv[1], "zsh")) return print_zsh();
    int code;
    if (!tool_parse(&tool_completion, options, argc, argv, NULL, &code)) return code;
    return tool_usage(&tool_completion, "wants a shell: bash or zsh");
}

const tool_command tool_completion = {
    .name = "completion",
    .arguments = "bash|zsh",
    .summary = "prints a script that completes tegula's words in a shell",
    .run = run,
    .example = "source <(tegula completion bash)",
};
