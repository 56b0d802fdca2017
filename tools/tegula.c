/* SPDX-License-Identifier: MIT
 * tegula - the command-line tool: what is here, is it right, how fast is it. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

const tool_command *const tool_commands[] = { &tool_info, &tool_list,   &tool_check,      &tool_bench, &tool_compile,
                                              &tool_demo, &tool_report, &tool_completion, NULL };

static const tool_command *command_named(const char *name)
{
    for (const tool_command *const *c = tool_commands; *c; c++)
        if (!strcmp((*c)->name, name)) return *c;
    return NULL;
}

static void help(FILE *file)
{
    fprintf(file,
            "tegula %s - kernels for large language models, on the CPU and on NVIDIA GPUs\n\nusage: tegula "
            "<command> [...]\n\n",
            tgl_version());
    for (const tool_command *const *c = tool_commands; *c; c++)
        fprintf(file, "  %-10s %s\n", (*c)->name, (*c)->summary);
    fprintf(file, "\ntegula help <command> lists a command's options.\ntegula help man prints the manual page.\n");
}

static int no_such_command(const char *name)
{
    fprintf(stderr, "tegula: %s: no such command\nSee: tegula --help\n", name);
    return TOOL_USAGE;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return TOOL_USAGE;
    }
    const tool_command *command;
    const bool is_help = !strcmp(argv[1], "help");
    if (is_help && argc > 2) {
        if (!strcmp(argv[2], "man")) return tool_print_manual();
        if (!strcmp(argv[2], "help")) {
            help(stdout);
            return TOOL_OK;
        }
        if (!(command = command_named(argv[2]))) return no_such_command(argv[2]);
        return command->run(2, (char *[]){ argv[2], "--help", NULL });
    }
    if (is_help || !strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) {
        help(stdout);
        return TOOL_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("tegula %s\n", tgl_version());
        return TOOL_OK;
    }
    command = command_named(argv[1]);
    return command ? command->run(argc - 1, argv + 1) : no_such_command(argv[1]);
}
