/* SPDX-License-Identifier: MIT
 * bench.c - how fast is it? Checks every row, then times it; docs/benchmarking.md explains the numbers. */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cases/random.h"
#include "core/status.h"
#include "cuda/driver.h"
#include "results.h"
#include "timer.h"

/* On the CPU, rows that move more bytes are left out unless parameters name them. */
static int64_t cpu_limit(bool quick) { return quick ? 1 << 28 : 1 << 30; }
/* Below this the launch itself matters, so that an empty kernel is timed too. */
static const double small_us = 20;

typedef struct {
    const case_op *op;
    case_params params;
    tool_row row;
    tgl_status status; /* of the first part, with its message */
    char message[512];
} wanted_row;

typedef struct {
    backend on;
    timer *timer;
    timer_options options;
    bool with_check, are_named; /* parameters were given */
    bool are_first_calls, is_dry;
    const char *commit;
    FILE *json;
    wanted_row *wanted;
    int num_wanted, left_out, failed;
    int label_width;
    int rounds, done; /* how often each row is visited; visits so far */
    double began;
    const case_op *shown; /* whose heading was printed last */
    tool_rows rows;
} bench;

/* Takes a row, or leaves it out; TOOL_USAGE if the op refuses it, before anything is measured or a file is touched. */
static int want(void *context, const case_op *op, const case_params *params)
{
    bench *b = context;
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    if (!case_is_legal(op, params)) return tool_usage(&tool_bench, "%s %s: %s", op->name, text, tgl_last_error());
    wanted_row *more = realloc(b->wanted, sizeof *more * (size_t)(b->num_wanted + 1));
    if (!more) abort();
    b->wanted = more;
    case_facts facts;
    if (!b->are_named && backend_is_cpu(&b->on) && case_describe(op, params, &b->on, &facts) == TGL_OK &&
        facts.bytes > cpu_limit(b->options.quick)) {
        b->left_out++;
        return 0;
    }
    if ((int)strlen(text) > b->label_width) b->label_width = (int)strlen(text);
    b->wanted[b->num_wanted++] = (wanted_row){ .op = op, .params = *params };
    return 0;
}

/* ---- one row ---- */

static void fill_facts(const bench *b, tool_row *row)
{
    const tgl_device *device;
    tool_row_clear(row);
    snprintf(row->library, sizeof row->library, "%s", tgl_version());
    snprintf(row->commit, sizeof row->commit, "%.47s", b->commit);
    snprintf(row->backend, sizeof row->backend, "%s", b->on.name);
    snprintf(row->timer, sizeof row->timer, "%s", b->timer->name);
    snprintf(row->flush, sizeof row->flush, "%s", b->options.flush_reads ? "read" : "write");
    if (backend_is_cpu(&b->on)) {
        snprintf(row->device, sizeof row->device, "%.127s", tool_cpu_name());
        row->threads = tgl_get_num_threads();
    } else if (tgl_device_get(b->on.device.device_id, &device) == TGL_OK) {
        snprintf(row->device, sizeof row->device, "%s", device->name);
        snprintf(row->architecture, sizeof row->architecture, "%s", device->architecture);
        snprintf(row->driver, sizeof row->driver, "%.31s", tool_driver());
        snprintf(row->nvrtc, sizeof row->nvrtc, "%.15s", tool_nvrtc());
    }
}

static void fill_cold(tool_row *row, const timer_stats *cold)
{
    row->cold_us = cold->median;
    row->cold_min_us = cold->min;
    row->cold_p90_us = cold->p90;
    row->cold_spread = cold->spread;
    row->calls = cold->calls;
    row->gb_per_s = 1e-3 * row->bytes / row->cold_us;
}

static tgl_status call(void *context) { return case_call(context); }

/* TGL_ERR_INTERNAL if the result is wrong, with what differs. */
static tgl_status check_row(case_instance *k)
{
    case_report report;
    TGL_TRY(case_poison(k, 0));
    TGL_TRY(case_call(k));
    TGL_TRY(case_verify(k, 0, &report, NULL));
    return report.result != CASE_PASSED ? tgl_fail(TGL_ERR_INTERNAL, "wrong: %s", report.text) : TGL_OK;
}

/* Times that CUPTI would spoil once it runs. */
static tgl_status time_launches(bench *b, case_instance *k, tool_row *row)
{
    timer_stats warm;
    if (backend_is_cpu(&b->on)) return TGL_OK;
    TGL_TRY(timer_warm(b->timer, call, k, &warm));
    TGL_TRY(timer_graph(b->timer, call, k, warm.median, &row->graph_us));
    return timer_host(b->timer, call, k, warm.median, &row->host_ns);
}

static const void *data_of(const DLTensor *t) { return (const char *)t->data + t->byte_offset; }

/* An op that reads a table in host memory is as fast as the bus: for such a row that is timed, too. Scale factors are
 * elsewhere, one more request over the bus for each row. */
static tgl_status time_gather(bench *b, case_instance *k, tool_row *row)
{
    case_gathered which;
    timer_stats gather;
    if (!k->op->gather || !k->op->gather(&k->problem, &which)) return TGL_OK;
    const case_tensor *table = &k->problem.tensors[which.table], *indices = &k->problem.tensors[which.indices];
    timer_rows rows = { .table = data_of(k->arguments.arg[which.table]),
                        .indices = data_of(k->arguments.arg[which.indices]),
                        .count = case_tensor_bytes(indices) / 4,
                        .row_bytes = table->strides[0] * table->element_bytes };
    TGL_TRY(timer_gather(b->timer, &rows, &gather));
    row->gather_us = gather.median;
    if (which.factors < 0) return TGL_OK;
    row->gather_codes_us = gather.median;
    rows.factors = data_of(k->arguments.arg[which.factors]);
    rows.factor_bytes = k->problem.tensors[which.factors].strides[0];
    TGL_TRY(timer_gather(b->timer, &rows, &gather));
    row->gather_us = gather.median;
    return TGL_OK;
}

static tgl_status time_work(bench *b, case_instance *k, tool_row *row)
{
    timer_stats cold, warm, copy, empty;
    b->timer->has_host_work = k->op->has_no_kernel;
    tgl_status status = timer_cold(b->timer, call, k, (int64_t)row->bytes, &cold);
    if (status == TGL_OK) status = timer_warm(b->timer, call, k, &warm);
    b->timer->has_host_work = false;
    TGL_TRY(status);
    fill_cold(row, &cold);
    row->warm_us = warm.median;
    if (row->cold_us < small_us && !backend_is_cpu(&b->on)) {
        TGL_TRY(timer_empty(b->timer, &empty));
        row->empty_us = empty.median;
    }
    TGL_TRY(timer_copy(b->timer, (int64_t)row->bytes, &copy));
    row->copy_us = copy.median;
    row->copy_share = copy.median / cold.median;
    TGL_TRY(time_gather(b, k, row));
    snprintf(row->timer, sizeof row->timer, "%s", k->op->has_no_kernel ? "events" : b->timer->name);
    return TGL_OK;
}

/* A row is measured in two parts: check and launch times, then the times of the work. With a profiler, the
 * first part of all rows comes before the second part of any, and inputs are made twice. */
enum { FIRST_PART = 1, SECOND_PART = 2, BOTH_PARTS = 3 };

static tgl_status measure_parts(bench *b, case_instance *k, int parts, tool_row *row)
{
    if (parts & FIRST_PART && b->with_check) TGL_TRY(check_row(k));
    if (parts & FIRST_PART) TGL_TRY(time_launches(b, k, row));
    return parts & SECOND_PART ? time_work(b, k, row) : TGL_OK;
}

static tgl_status measure_row(bench *b, int i, int parts)
{
    const wanted_row *w = &b->wanted[i];
    tool_row *row = &b->wanted[i].row;
    case_instance *k;
    if (parts & FIRST_PART) {
        fill_facts(b, row);
        snprintf(row->op, sizeof row->op, "%s", w->op->name);
        case_params_text(w->op, &w->params, row->params, sizeof row->params);
        snprintf(row->row, sizeof row->row, "%s %.190s", row->op, row->params);
        row->checked = b->with_check;
    }
    tool_progress("%s %s", tool_done(b->done++, (int64_t)b->rounds * b->num_wanted, b->began), row->row);
    TGL_TRY(case_open(w->op, &w->params, &b->on, &k));
    row->bytes = (double)w->op->bytes(&k->problem);
    const tgl_status status = measure_parts(b, k, parts, row);
    case_close(k);
    return status;
}

/* ---- the table ---- */

/* Columns of a line's numbers. */
static int numbers_width(const bench *b) { return backend_is_cpu(&b->on) ? 48 : 78; }

/* Where the terminal is too narrow for both, the numbers of a row are below its parameters. */
static bool is_narrow(const bench *b) { return b->label_width > tool_width() - numbers_width(b); }
static int number_column(const bench *b) { return is_narrow(b) ? 0 : b->label_width; }

static void print_heads(const bench *b)
{
    printf("%s%*s %9s %7s %9s", tool_dim(), number_column(b), "", "cold us", "spread", "warm us");
    if (!backend_is_cpu(&b->on)) printf(" %9s %9s %9s", "graph us", "host us", "empty us");
    printf(" %9s %9s%s\n", "GB/s", "of copy", tool_plain());
}

static void print_op(bench *b, const case_op *op)
{
    if (op != b->shown) printf("%s%s%s\n", tool_bold(), op->name, tool_plain());
    b->shown = op;
}

static void print_row(bench *b, const case_op *op, const tool_row *row)
{
    print_op(b, op);
    if (is_narrow(b)) tool_print_wrapped(row->params, 0);
    else printf("%-*s", b->label_width, row->params);
    printf(" %9s %5.0f %% %9s", tool_number(row->cold_us), 100 * row->cold_spread, tool_number(row->warm_us));
    if (!backend_is_cpu(&b->on))
        printf(" %9s %9s %9s", tool_number(row->graph_us), tool_number(1e-3 * row->host_ns),
               tool_number(row->empty_us));
    printf(" %9s ", tool_number(row->gb_per_s));
    printf("%s%9s%s\n", row->copy_share >= 0.92 ? tool_green() : "", tool_percent(row->copy_share), tool_plain());
    if (!isnan(row->gather_us)) {
        printf("%s%*s a plain gather of these rows: %s us", tool_dim(), number_column(b), "",
               tool_number(row->gather_us));
        if (!isnan(row->gather_codes_us)) printf(", without scale factors %s", tool_number(row->gather_codes_us));
        printf("%s\n", tool_plain());
    }
    fflush(stdout);
}

static void keep_row(bench *b, const tool_row *row)
{
    tool_rows_add(&b->rows, row);
    if (!b->json) return;
    tool_row_write(row, b->json);
    fflush(b->json);
}

/* A copy of the size that other libraries' tables give, so that runs of different days can be compared. */
static tgl_status measure_headline(bench *b)
{
    const bool is_small = b->options.quick && backend_is_cpu(&b->on);
    const int64_t size = is_small ? 4096 : 8192;
    tool_row row;
    timer_stats copy;
    fill_facts(b, &row);
    snprintf(row.op, sizeof row.op, "copy");
    snprintf(row.params, sizeof row.params, "num_rows=%lld num_cols=%lld dtype=bf16", (long long)size, (long long)size);
    snprintf(row.row, sizeof row.row, "%s %.190s", row.op, row.params);
    row.bytes = (double)(4 * size * size);
    tool_progress("plain copy");
    TGL_TRY(timer_copy(b->timer, (int64_t)row.bytes, &copy));
    tool_progress(NULL);
    fill_cold(&row, &copy);
    row.copy_us = row.cold_us;
    row.copy_share = 1;
    printf("plain copy of %lldx%lld bf16: %s, %s%s GB/s%s\n", (long long)size, (long long)size, tool_time(row.cold_us),
           tool_bold(), tool_number(row.gb_per_s), tool_plain());
    keep_row(b, &row);
    return TGL_OK;
}

static void print_facts(const bench *b, double launch_ns)
{
    tool_row row;
    fill_facts(b, &row);
    tool_progress(NULL);
    printf("%s%s%s%s%s, tegula %s%s%s\n", tool_bold(), row.device, tool_plain(), row.driver[0] ? ", driver " : "",
           row.driver, row.library, row.commit[0] ? ", commit " : "", row.commit);
    printf("%stimes: %s, caches flushed by a %s before each cold call%s%s%s\n", tool_dim(), row.timer, row.flush,
           b->timer->note[0] ? "; " : "", b->timer->note, tool_plain());
    if (!isnan(launch_ns))
        printf("launching an empty kernel through the driver alone takes the host %s\n", tool_time(1e-3 * launch_ns));
}

static void print_failure(bench *b, const wanted_row *w, tgl_status status, const char *message)
{
    const bool is_memory = status == TGL_ERR_MEMORY;
    print_op(b, w->op);
    tool_print_wrapped(w->row.params, 0);
    printf("%s  %s%s%s\n", is_memory ? tool_dim() : tool_red(), is_memory ? "left out: " : "", message, tool_plain());
    b->failed += !is_memory;
}

/* Times that are this far apart say more of other programs on the machine than of the kernel. */
static void warn_of_noise(const tool_rows *rows)
{
    const double limit = 0.15;
    const int num_rows = tool_rows_of_ops(rows);
    int num_noisy = 0;
    for (int i = 0; i < rows->count; i++)
        num_noisy += rows->rows[i].cold_spread > limit && !tool_row_is_copy(&rows->rows[i]);
    if (3 * num_noisy > num_rows)
        fprintf(stderr,
                "warning: this machine is too noisy to measure: in %d of %d rows calls spread by more than %.0f %%; "
                "stop other programs, or fix clocks\n",
                num_noisy, num_rows, 100 * limit);
}

static volatile sig_atomic_t interrupted;

/* The first Ctrl-C ends the run after a row, so that its files are whole; the second ends it at once. */
static void on_interrupt(int number) { interrupted = number; }
static void watch_for_interrupts(void)
{
    struct sigaction action = { .sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND | SA_RESTART };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int measure_all(bench *b)
{
    const bool in_two_rounds = timer_has_profiler(b->timer);
    double launch_ns;
    if (timer_empty_host(b->timer, &launch_ns) != TGL_OK) return tool_failed(&tool_bench, "%s", tgl_last_error());
    watch_for_interrupts();
    b->rounds = in_two_rounds ? 2 : 1;
    b->began = tool_seconds();
    for (int i = 0; in_two_rounds && i < b->num_wanted && !interrupted; i++) {
        wanted_row *w = &b->wanted[i];
        w->status = measure_row(b, i, FIRST_PART);
        if (w->status != TGL_OK) snprintf(w->message, sizeof w->message, "%.511s", tgl_last_error());
    }
    if (timer_start_profiler(b->timer) != TGL_OK) return tool_failed(&tool_bench, "%s", tgl_last_error());
    print_facts(b, launch_ns);
    if (measure_headline(b) != TGL_OK) return tool_failed(&tool_bench, "plain copy: %s", tgl_last_error());
    printf("\n");
    print_heads(b);
    for (int i = 0; i < b->num_wanted && !interrupted; i++) {
        wanted_row *w = &b->wanted[i];
        tgl_status status = w->status;
        const char *message = w->message;
        if (status == TGL_OK) {
            status = measure_row(b, i, in_two_rounds ? SECOND_PART : BOTH_PARTS);
            message = tgl_last_error();
        }
        tool_progress(NULL);
        if (status == TGL_OK) {
            print_row(b, w->op, &w->row);
            keep_row(b, &w->row);
        } else {
            print_failure(b, w, status, message);
        }
    }
    if (interrupted)
        return tool_failed(&tool_bench, "interrupted: %d of %d rows were measured", tool_rows_of_ops(&b->rows),
                           b->num_wanted);
    if (b->left_out)
        printf("%snote: %d rows that move more than %s are left out on the CPU; parameters bring them in%s\n",
               tool_dim(), b->left_out, tool_size((double)cpu_limit(b->options.quick)), tool_plain());
    return b->failed ? TOOL_FAILED : TOOL_OK;
}

/* ---- first calls ---- */

static tgl_status time_call(case_instance *k, double *ms)
{
    const double begin = tool_seconds();
    TGL_TRY(case_call(k));
    *ms = 1e3 * (tool_seconds() - begin);
    return TGL_OK;
}

/* How long the host takes for the first call of each row, with all that it finds, compiles and loads, and for the second. The
 * driver, a context and the inputs are there before. */
static int time_first_calls(bench *b)
{
    static const char *const heads[] = { "op", ">first ms", ">second ms", ">compiled", "parameters" };
    tool_table *table = tool_table_new(5, heads);
    for (int i = 0; i < b->num_wanted; i++) {
        const wanted_row *w = &b->wanted[i];
        char text[CASE_LABEL];
        case_params_text(w->op, &w->params, text, sizeof text);
        case_instance *k = NULL;
        double first = 0, second = 0;
        tgl_status status = case_open(w->op, &w->params, &b->on, &k);
        const uint64_t before = tgl_compile_count();
        if (status == TGL_OK) status = time_call(k, &first);
        if (status == TGL_OK) status = time_call(k, &second);
        if (k) case_close(k);
        if (status != TGL_OK) return tool_failed(&tool_bench, "%s %s: %s", w->op->name, text, tgl_last_error());
        tool_table_row(table, (const char *const[]){ w->op->name, tool_text("%.3f", first), tool_text("%.3f", second),
                                                     tool_text("%d", (int)(tgl_compile_count() - before)), text });
    }
    tool_table_print(table);
    return TOOL_OK;
}

/* ---- what would be timed ---- */

static int print_wanted(const bench *b)
{
    static const char *const heads[] = { "op", ">bytes", "parameters" };
    tool_table *table = tool_table_new(3, heads);
    for (int i = 0; i < b->num_wanted; i++) {
        const wanted_row *w = &b->wanted[i];
        char text[CASE_LABEL];
        case_facts facts;
        case_params_text(w->op, &w->params, text, sizeof text);
        if (case_describe(w->op, &w->params, &b->on, &facts) != TGL_OK)
            return tool_failed(&tool_bench, "%s %s: %s", w->op->name, text, tgl_last_error());
        tool_table_row(table, (const char *const[]){ w->op->name, tool_text("%lld", (long long)facts.bytes), text });
    }
    tool_table_print(table);
    return TOOL_OK;
}

static int run_rows(bench *b, const char *device, const char *json_path, const tool_words *words)
{
    int code = tool_open_device(&tool_bench, device, &b->on);
    if (code != TOOL_OK) return code;
    b->are_named = words->params[0] != 0;
    code = tool_each_case(&tool_bench, words, TOOL_LIST(CASE_BENCH), want, b);
    if (b->are_first_calls || b->is_dry) {
        if (code == TOOL_OK) code = b->is_dry ? print_wanted(b) : time_first_calls(b);
        backend_close(&b->on);
        return code;
    }
    if (code == TOOL_OK && timer_open(&b->on, &b->options, &b->timer) != TGL_OK)
        code = tool_failed(&tool_bench, "%s", tgl_last_error());
    if (code == TOOL_OK && json_path && !(b->json = fopen(json_path, "w")))
        code = tool_failed(&tool_bench, "--json: %s: %s", json_path, strerror(errno));
    if (code == TOOL_OK) code = measure_all(b);
    if (b->json && fclose(b->json) != 0) code = tool_failed(&tool_bench, "--json: %s: %s", json_path, strerror(errno));
    timer_close(b->timer);
    backend_close(&b->on);
    return code;
}

static int run(int argc, char **argv)
{
    const char *device = NULL, *json = NULL, *html = NULL, *against = NULL, *from = NULL, *flush = "write",
               *commit = tool_commit();
    bool quick = false, no_check = false, events = false, first_call = false, dry = false;
    const tool_option options[] = {
        { "device", "NAME", "cpu, cuda or cuda:1 (default: the first GPU, else the CPU)", NULL, &device },
        { "json", "FILE", "write a JSON line per row", NULL, &json },
        { "html", "FILE", "write a page with plots, complete in itself", NULL, &html },
        { "against", "FILE", "compare with JSON lines: an earlier run, or bench/peers", NULL, &against },
        { "from", "FILE", "take the rows from JSON lines; measure nothing", NULL, &from },
        { "quick", NULL, "fewer calls per row: for a look, not for the record", &quick, NULL },
        { "flush", "read|write", "what empties the caches before a cold call (write)", NULL, &flush },
        { "events", NULL, "time with CUDA events even where CUPTI is there", &events, NULL },
        { "first-call", NULL, "time the first call of each row alone, which compiles and loads", &first_call, NULL },
        { "dry-run", NULL, "the rows that would be timed, and the bytes that they move", &dry, NULL },
        { "no-check", NULL, "time results that were not checked", &no_check, NULL },
        { "commit", "TEXT", "what to write as commit (default: the build's)", NULL, &commit },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_bench, options, argc, argv, &words, &code)) return code;
    if (strcmp(flush, "read") && strcmp(flush, "write"))
        return tool_usage(&tool_bench, "--flush: is %s, want read or write", flush);
    if (from && (json || device || words.num_ops || words.params[0]))
        return tool_usage(&tool_bench, "--from: measures nothing, so it takes no ops, --json or --device");
    if ((first_call || dry) && (from || json || html || against))
        return tool_usage(&tool_bench, "--%s: makes no rows, so it takes no --from, --json, --html or --against",
                          dry ? "dry-run" : "first-call");
    tool_rows other = { 0 };
    if (against && tool_rows_read(against, &other) != TGL_OK)
        return tool_usage(&tool_bench, "--against: %s", tgl_last_error());

    const bool is_new_page = html && access(html, F_OK) != 0;
    FILE *page = html ? fopen(html, "a") : NULL; /* a path that cannot be written is known before measuring */
    if (html && !page) return tool_failed(&tool_bench, "--html: %s: %s", html, strerror(errno));
    if (page) fclose(page);

    bench b = { .options = { quick, !strcmp(flush, "read"), events },
                .with_check = !no_check,
                .are_first_calls = first_call,
                .is_dry = dry,
                .commit = commit };
    if (!from) code = run_rows(&b, device, json, &words);
    else if (tool_rows_read(from, &b.rows) != TGL_OK) code = tool_usage(&tool_bench, "--from: %s", tgl_last_error());
    warn_of_noise(&b.rows);
    if (b.rows.count && against && tool_compare(&b.rows, &other, against) && code == TOOL_OK) code = TOOL_FAILED;
    if (b.rows.count && html && tool_report_html(html, &b.rows, against ? &other : NULL) != TGL_OK)
        code = tool_failed(&tool_bench, "--html: %s", tgl_last_error());
    if (b.rows.count == 0 && is_new_page) remove(html);
    free(b.wanted);
    tool_rows_free(&b.rows);
    tool_rows_free(&other);
    return code;
}

const tool_command tool_bench = {
    .name = "bench",
    .arguments = "[op...] [k=v ...]",
    .summary = "checks, then times: a table, JSON lines, a page with plots",
    .run = run,
    .note = tool_parameters,
    .example = "tegula bench transpose num_rows=1,8 num_cols=7168 dtype=bf16 --json rows.jsonl",
};
