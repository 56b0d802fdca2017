/* SPDX-License-Identifier: MIT
 * tegula - the command-line tool: what is here, is it right, how fast is it. */
#include <stdio.h>
#include <string.h>

#include "tool.h"

static const tool_command *const commands[] = { &tool_info,  &tool_list,    &tool_check,
                                                &tool_bench, &tool_compile, &tool_demo };
enum { NUM_COMMANDS = sizeof commands / sizeof *commands };

static void help(FILE *file)
{
    fprintf(file,
            "tegula %s - kernels for large language models, on the CPU and on NVIDIA GPUs\n\nusage: tegula "
            "<command> [...]\n\n",
            tgl_version());
    for (int i = 0; i < NUM_COMMANDS; i++)
        fprintf(file, "  %-8s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(file, "\ntegula <command> --help lists a command's options.\n");
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        help(stderr);
        return TOOL_USAGE;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        help(stdout);
        return TOOL_OK;
    }
    if (!strcmp(argv[1], "--version")) {
        printf("tegula %s\n", tgl_version());
        return TOOL_OK;
    }
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) return commands[i]->run(argc - 1, argv + 1);
    fprintf(stderr, "tegula: %s: no such command\nSee: tegula --help\n", argv[1]);
    return TOOL_USAGE;
}
