/* SPDX-License-Identifier: MIT
 * info.c - what is here: the library, the machine, the GPUs, the compiler, the cache, the settings. */
#include <stdarg.h>
#include <stdio.h>

#include "core/settings.h"
#include "cuda/cache.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "cupti.h"
#include "tool.h"

/* A line "name   text", or several where the terminal is narrow. */
__attribute__((format(printf, 2, 3))) static void show(const char *name, const char *format, ...)
{
    char text[2 * TGL_PATH_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printf("%s%-12s%s ", tool_bold(), name, tool_plain());
    tool_print_wrapped(text, 13);
}

static void show_devices(void)
{
    int count = 0;
    const tgl_driver_table *driver;
    if (tgl_device_count(&count) != TGL_OK || tgl_driver(&driver) != TGL_OK) {
        show("driver", "%s", tgl_last_error());
        return;
    }
    show("driver", "%s, %s", tool_driver(), driver->path);
    for (int i = 0; i < count; i++) {
        const tgl_device *d;
        const char *name = tool_text("cuda:%d", i);
        if (tgl_device_get(i, &d) != TGL_OK) {
            show(name, "%s", tgl_last_error());
            continue;
        }
        show(name, "%s%s, %s, %d SMs, %s of memory, %s of L2, %s of shared memory per block",
             d->is_emulated ? "emulated device (for tests, not a GPU): " : "", d->name, d->architecture, d->num_sms,
             tool_size((double)d->total_memory), tool_size((double)d->l2_bytes),
             tool_size((double)d->max_smem_per_block_optin));
    }
}

static void show_compiler(void)
{
    int major, minor;
    const char *path;
    uint32_t version;
    if (tgl_nvrtc_version(&major, &minor, &path) == TGL_OK) show("nvrtc", "%d.%d, %s", major, minor, path);
    else show("nvrtc", "%s", tgl_last_error());
    const char *refusal = cupti_load(&version);
    if (refusal) show("cupti", "%s; bench times with events", refusal);
    else show("cupti", "API version %u; bench takes GPU times from it", version);
}

static void show_folder(const char *name, const tgl_cache_info *cache)
{
    if (cache->folder[0])
        show(name, "%s, %lld file%s, %s", cache->folder, (long long)cache->files, cache->files == 1 ? "" : "s",
             tool_size((double)cache->bytes));
    else show(name, "none: %s", cache->reason);
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
                                                     row.from_environment ? "environment" : "default", row.meaning });
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
        if (limit < 0) return tool_usage(&tool_info, "--prune: is %s, want a size such as 500K, 64M or 0", prune);
        if (tgl_cache_prune(limit, &files, &bytes) != TGL_OK) return tool_failed(&tool_info, "%s", tgl_last_error());
        printf("pruned %lld files, %s\n", (long long)files, tool_size((double)bytes));
    }
    show("tegula", "%s%s%s", tgl_version(), tool_commit()[0] ? ", commit " : "", tool_commit());
    show("cpu", "%s, %d thread%s, %s of memory", tool_cpu_name(), tgl_get_num_threads(),
         tgl_get_num_threads() == 1 ? "" : "s", tool_size((double)tool_host_memory()));
    show_devices();
    show_compiler();
    show_cache();
    show_settings();
    return TOOL_OK;
}

const tool_command tool_info = {
    .name = "info",
    .arguments = "[--prune SIZE]",
    .summary = "what is here: library, CPU, GPUs, compiler, cache, settings",
    .run = run,
};
