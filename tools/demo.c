/* SPDX-License-Identifier: MIT
 * demo.c - something to look at: what an op does on a matrix that fits the eye, then at a model's size,
 * how fast and against what limit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "core/status.h"
#include "cuda/driver.h"
#include "demo.h"
#include "tegula/transpose.h"

enum { ROWS = 4, COLS = 7 };

static DLTensor matrix(const backend *on, void *data, int64_t shape[2])
{
    return (DLTensor){
        .data = data, .device = on->device, .ndim = 2, .dtype = { TGL_DL_INT, 32, 1 }, .shape = shape
    };
}

/* Two digits each: row and column where an element was in x, so that one sees where it went. */
static void print_matrices(const int32_t *x, const int32_t *out)
{
    printf("        %-*s%s\n", 3 * COLS + 12, "x [4, 7]", "out [7, 4]");
    for (int i = 0; i < COLS; i++) {
        printf("        ");
        for (int j = 0; j < COLS; j++) {
            if (i < ROWS)
                printf("%s%s%02d%s ", j == 2 ? tool_green() : "", j == 2 ? tool_bold() : "", x[i * COLS + j],
                       tool_plain());
            else printf("   ");
        }
        printf("%s      ", i == 1 ? "  ->  " : "      ");
        for (int j = 0; j < ROWS; j++)
            printf("%s%s%02d%s ", i == 2 ? tool_green() : "", i == 2 ? tool_bold() : "", out[i * ROWS + j],
                   tool_plain());
        printf("\n");
    }
}

static tgl_status show_small(const backend *on)
{
    int32_t x[ROWS * COLS], out[COLS * ROWS];
    for (int i = 0; i < ROWS * COLS; i++) x[i] = i / COLS * 10 + i % COLS;
    void *device_x = NULL, *device_out = NULL;
    TGL_TRY(backend_alloc(on, sizeof x, &device_x));
    tgl_status status = backend_alloc(on, sizeof out, &device_out);
    DLTensor tx = matrix(on, device_x, (int64_t[]){ ROWS, COLS }),
             tout = matrix(on, device_out, (int64_t[]){ COLS, ROWS });
    if (status == TGL_OK) status = backend_upload(on, device_x, x, sizeof x);
    if (status == TGL_OK) status = tgl_transpose(&tx, &tout, on->stream);
    if (status == TGL_OK) status = backend_wait(on, on->stream);
    if (status == TGL_OK) status = backend_download(on, out, device_out, sizeof out);
    backend_free(on, device_x);
    if (device_out) backend_free(on, device_out);
    TGL_TRY(status);
    print_matrices(x, out);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLS; j++)
            if (out[j * ROWS + i] != x[i * COLS + j])
                return tgl_fail(TGL_ERR_INTERNAL, "out[%d, %d] is wrong", j, i);
    return TGL_OK;
}

static void print_bar(const char *name, double us, double gb_per_s, double full)
{
    enum { BAR = 40 };
    const int filled = (int)(BAR * gb_per_s / full + 0.5);
    printf("        %-10s %10s  %s", name, tool_time(us), tool_green());
    for (int i = 0; i < BAR; i++) printf("%s", i < filled ? "#" : " ");
    printf("%s %s GB/s\n", tool_plain(), tool_number(gb_per_s));
}

static tgl_status call(void *context) { return case_call(context); }

static tgl_status time_large(const backend *on, case_instance *k, double bytes)
{
    timer *t;
    timer_stats cold, copy;
    if (on->is_emulated) {
        printf("        %s is the emulated device: what it computes counts, its time does not\n", on->name);
        return TGL_OK;
    }
    TGL_TRY(timer_open(on, &(timer_options){ .quick = true }, &t));
    tool_progress("timing");
    tgl_status status = timer_start_profiler(t);
    if (status == TGL_OK) status = timer_cold(t, call, k, (int64_t)bytes, &cold);
    if (status == TGL_OK) status = timer_copy(t, (int64_t)bytes, &copy);
    tool_progress(NULL);
    if (status == TGL_OK) {
        const double rate = 1e-3 * bytes / cold.median, limit = 1e-3 * bytes / copy.median,
                     full = fmax(rate, limit);
        print_bar("transpose", cold.median, rate, full);
        if (!isnan(limit)) {
            print_bar("plain copy", copy.median, limit, full);
            printf("\n        A copy moves the same bytes and does nothing else, so it is the limit: the "
                   "transpose runs at %s%.0f %%%s of it.\n",
                   tool_bold(), 100 * rate / limit, tool_plain());
        }
    }
    timer_close(t);
    return status;
}

static tgl_status show_large(const backend *on)
{
    static const char *const line[] = { "num_rows=8064 num_cols=7168 dtype=bf16", NULL };
    const case_op *op = case_find("transpose");
    case_params params;
    case_instance *k;
    case_report report;
    TGL_TRY(case_at(op, line, 0, &params));
    tool_progress("making a matrix of 8064 x 7168, and what must come out");
    TGL_TRY(case_open(op, &params, on, &k));
    tgl_status status = case_poison(k, 0);
    if (status == TGL_OK) status = case_call(k);
    if (status == TGL_OK) status = case_verify(k, 0, &report, NULL);
    if (status == TGL_OK && report.result != CASE_PASSED)
        status = tgl_fail(TGL_ERR_INTERNAL, "%s", report.text);
    tool_progress(NULL);
    if (status == TGL_OK) {
        const double bytes = (double)op->bytes(&k->problem);
        printf("        %s moved, all %d elements compared with a naive loop: %severy bit is right%s.\n\n",
               tool_size(bytes), 8064 * 7168, tool_green(), tool_plain());
        status = time_large(on, k, bytes);
    }
    case_close(k);
    return status;
}

static void compiled(void *context, const char *kernel, const char *macros, const char *architecture,
                     double milliseconds)
{
    (void)context;
    tool_progress(NULL);
    printf("        %scompiled %s (%s) for %s in %.0f ms; the next process finds it in the cache%s\n",
           tool_dim(), kernel, macros, architecture, milliseconds, tool_plain());
}

static int run(int argc, char **argv)
{
    const char *name = NULL;
    const tool_option options[] = {
        { "device", "NAME", "cpu, cuda or cuda:1 (default: the first GPU, else the CPU)", NULL, &name }, { 0 }
    };
    int code;
    if (!tool_parse(&tool_demo, options, argc, argv, NULL, &code)) return code;
    backend on;
    code = tool_open_device(&tool_demo, name, &on);
    if (code != TOOL_OK) return code;
    const tgl_device *device;
    const char *where = tool_cpu_name();
    if (!backend_is_cpu(&on))
        where = tgl_device_get(on.device.device_id, &device) == TGL_OK ? device->name : on.name;
    printf("%stegula %s%s on %s%s\n\n", tool_bold(), tgl_version(), tool_plain(),
           on.is_emulated ? "the emulated device: " : "", where);
    tgl_set_compile_callback(compiled, NULL);
    static const struct { const char *title; tgl_status (*show)(const backend *on); } parts[] = {
        { "tgl_transpose: out[j][i] = x[i][j]", show_small },
        { "the same on the activations of 8064 tokens: bf16, 8064 x 7168", show_large },
        { "tgl_moe_route: 4 tokens over 2 experts, rows of an expert padded to a multiple of 2",
          demo_moe_small },
        { "a MoE block in FP8, as DeepSeek-V3 has it, but for its matrix products", demo_moe_block },
    };
    tgl_status status = TGL_OK;
    for (int i = 0; i < 4 && status == TGL_OK; i++) {
        printf("%s%s  %d     %s%s\n\n", i ? "\n" : "", tool_bold(), i + 1, parts[i].title, tool_plain());
        status = parts[i].show(&on);
    }
    tgl_set_compile_callback(NULL, NULL);
    backend_close(&on);
    if (status != TGL_OK) return tool_failed(&tool_demo, "%s", tgl_last_error());
    printf("\n        More: tegula list, tegula check, tegula bench --html report.html\n");
    return TOOL_OK;
}

const tool_command tool_demo = { "demo", "[--device NAME]",
                                 "shows what it computes, how fast, and against what limit", run };
