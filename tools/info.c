/* SPDX-License-Identifier: MIT
 * info.c - what is here: the library, the machine, the GPUs, the compiler, the cache, the settings. */
#include <stdio.h>
#include <string.h>

#include "core/settings.h"
#include "cuda/cache.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cupti.h"
#include "tool.h"

static void show(const char *name, const char *text)
{
    printf("%s%-12s%s %s\n", tool_bold(), name, tool_plain(), text);
}

static void show_devices(void)
{
    int count = 0;
    const tgl_driver_table *driver;
    char text[512];
    if (tgl_device_count(&count) != TGL_OK || tgl_driver(&driver) != TGL_OK) {
        show("driver", tgl_last_error());
        return;
    }
    snprintf(text, sizeof text, "%s, %.400s", tool_driver(), driver->path);
    show("driver", text);
    for (int i = 0; i < count; i++) {
        const tgl_device *d;
        char name[16];
        snprintf(name, sizeof name, "cuda:%d", i);
        if (tgl_device_get(i, &d) != TGL_OK) {
            show(name, tgl_last_error());
            continue;
        }
        snprintf(text, sizeof text, "%s%s, %s, %d SMs, %s of memory, %s of L2, %s of shared memory per block",
                 d->is_emulated ? "emulated device (for tests, not a GPU): " : "", d->name, d->architecture,
                 d->num_sms, tool_size((double)d->total_memory), tool_size((double)d->l2_bytes),
                 tool_size((double)d->max_smem_per_block_optin));
        show(name, text);
    }
}

static void show_compiler(void)
{
    int major, minor;
    const char *path;
    char text[TGL_PATH_BYTES + 32];
    if (tgl_nvrtc_version(&major, &minor, &path) == TGL_OK)
        snprintf(text, sizeof text, "%d.%d, %s", major, minor, path);
    else snprintf(text, sizeof text, "%s", tgl_last_error());
    show("nvrtc", text);
    uint32_t version;
    const char *refusal = cupti_load(&version);
    if (refusal) snprintf(text, sizeof text, "%s; bench times with events", refusal);
    else snprintf(text, sizeof text, "API version %u; bench takes GPU times from it", version);
    show("cupti", text);
}

static void show_folder(const char *name, const tgl_cache_info *cache)
{
    char text[TGL_PATH_BYTES + 64];
    if (cache->folder[0])
        snprintf(text, sizeof text, "%s, %lld file%s, %s", cache->folder, (long long)cache->files,
                 cache->files == 1 ? "" : "s", tool_size((double)cache->bytes));
    else snprintf(text, sizeof text, "none: %s", cache->reason);
    show(name, text);
}

static void show_cache(void)
{
    static tgl_cache_info cache;
    tgl_cache_describe(&cache);
    show_folder("cache", &cache);
    if (tgl_cache_describe_readonly(&cache)) show_folder("read-only", &cache);
}

static void show_settings(void)
{
    static tgl_setting_row row;
    static const char *const heads[] = { "setting", "value", "from", "meaning" };
    tool_table *table = tool_table_new(4, heads);
    for (int i = 0; tgl_settings_row(i, &row); i++)
        tool_table_row(table, (const char *const[]){ row.variable, row.value[0] ? row.value : "-",
                                                     row.from_environment ? "environment" : "default",
                                                     row.meaning });
    printf("\n");
    tool_table_print(table);
}

static int run(int argc, char **argv)
{
    const char *prune = NULL;
    const tool_option options[] = {
        { "prune", "SIZE", "first trim the cache to SIZE (500K, 64M, 0), oldest use first", NULL, &prune },
        { 0 },
    };
    int code;
    if (!tool_parse(&tool_info, options, argc, argv, NULL, &code)) return code;
    if (prune) {
        const int64_t limit = tool_bytes(prune);
        int64_t files, bytes;
        if (limit < 0)
            return tool_usage(&tool_info, "--prune: is %s, want a size such as 500K, 64M or 0", prune);
        if (tgl_cache_prune(limit, &files, &bytes) != TGL_OK)
            return tool_failed(&tool_info, "%s", tgl_last_error());
        printf("pruned %lld files, %s\n", (long long)files, tool_size((double)bytes));
    }
    char text[160];
    snprintf(text, sizeof text, "%s%s%s", tgl_version(), tool_commit()[0] ? ", commit " : "", tool_commit());
    show("tegula", text);
    snprintf(text, sizeof text, "%s, %d thread%s, %s of memory", tool_cpu_name(), tgl_get_num_threads(),
             tgl_get_num_threads() == 1 ? "" : "s", tool_size((double)tool_host_memory()));
    show("cpu", text);
    show_devices();
    show_compiler();
    show_cache();
    show_settings();
    return TOOL_OK;
}

const tool_command tool_info = { "info", "[--prune SIZE]",
                                 "what is here: library, CPU, GPUs, compiler, cache, settings", run };
