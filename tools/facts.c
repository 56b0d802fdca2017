/* SPDX-License-Identifier: MIT
 * facts.c - what machine this is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "tool.h"

#ifndef TEGULA_COMMIT
#define TEGULA_COMMIT "" /* the build system names it where it knows */
#endif

const char *tool_commit(void) { return TEGULA_COMMIT; }

/* The value of the first line of a file that begins with `key`, after its ':'. */
static bool line_of(const char *path, const char *key, char *value, size_t bytes)
{
    FILE *file = fopen(path, "r");
    char line[512];
    bool found = false;
    while (file && !found && fgets(line, sizeof line, file)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, key, strlen(key)) || !colon) continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(value, bytes, "%.*s", (int)strcspn(colon, "\n"), colon);
        found = true;
    }
    if (file) fclose(file);
    return found;
}

/* Arm's cores give numbers in place of names. */
static const char *arm_name(const char *part)
{
    static const struct {
        unsigned part;
        const char *name;
    } cores[] = {
        { 0xd03, "Cortex-A53" },  { 0xd08, "Cortex-A72" },  { 0xd0c, "Neoverse-N1" }, { 0xd40, "Neoverse-V1" },
        { 0xd49, "Neoverse-N2" }, { 0xd4f, "Neoverse-V2" }, { 0xd83, "Neoverse-V3" }, { 0xd8e, "Neoverse-N3" },
    };
    const unsigned long number = strtoul(part, NULL, 16);
    for (size_t i = 0; i < sizeof cores / sizeof *cores; i++)
        if (cores[i].part == number) return cores[i].name;
    return "Arm";
}

const char *tool_cpu_name(void)
{
    static char text[160];
    if (text[0]) return text;
    char name[120], part[32];
    if (!line_of("/proc/cpuinfo", "model name", name, sizeof name)) {
        const bool is_arm = line_of("/proc/cpuinfo", "CPU part", part, sizeof part);
        snprintf(name, sizeof name, "%s", is_arm ? arm_name(part) : "unknown");
    }
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    snprintf(text, sizeof text, "%s, %ld core%s", name, cores, cores == 1 ? "" : "s");
    return text;
}

const char *tool_driver(void)
{
    static char text[64];
    if (text[0]) return text;
    /* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.159.04  Tue ...": the first word of digits
     * and dots */
    char line[256], number[32] = "";
    if (line_of("/proc/driver/nvidia/version", "NVRM version", line, sizeof line)) {
        char *rest = NULL;
        for (char *word = strtok_r(line, " ", &rest); word && !number[0]; word = strtok_r(NULL, " ", &rest))
            if (strspn(word, "0123456789.") == strlen(word) && strchr(word, '.'))
                snprintf(number, sizeof number, "%.31s", word);
    }
    const int version = tgl_driver_version();
    if (version == 0) return "";
    snprintf(text, sizeof text, "%s%sCUDA %d.%d%s", number, number[0] ? " (" : "", version / 1000, version % 1000 / 10,
             number[0] ? ")" : "");
    return text;
}

const char *tool_nvrtc(void)
{
    static char text[32];
    int major, minor;
    const char *path;
    if (!text[0] && tgl_nvrtc_version(&major, &minor, &path) == TGL_OK)
        snprintf(text, sizeof text, "%d.%d", major, minor);
    return text;
}

int64_t tool_host_memory(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (int64_t)pages * bytes : 0;
}
