/* SPDX-License-Identifier: MIT
 * compile.c - fills a kernel cache ahead of time. Needs NVRTC, but no GPU and no driver. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cases/models.h"
#include "cases/random.h"
#include "cuda/cache.h"
#include "tool.h"

/* What devices of each generation look for. */
static const char all_architectures[] = "sm_80,sm_86,sm_87,sm_89,sm_90a,sm_100a,sm_103a,sm_110a,sm_120a,sm_121a";

typedef struct {
    tool_table *table;
    double milliseconds, began;
    int compiled;
    int64_t done, total; /* cases, of all architectures */
} progress;

static void compiled(void *context, const char *kernel, const char *macros, const char *architecture,
                     double milliseconds)
{
    progress *p = context;
    tool_table_row(p->table, (const char *const[]){ kernel, architecture, tool_text("%.1f", milliseconds), macros });
    p->milliseconds += milliseconds;
    p->compiled++;
}

/* Counts a case; TOOL_USAGE if the op refuses it. */
static int count(void *context, const case_op *op, const case_params *params)
{
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    if (!case_is_legal(op, params)) return tool_usage(&tool_compile, "%s %s: %s", op->name, text, tgl_last_error());
    ++*(int64_t *)context;
    return TOOL_OK;
}

static int visit(void *context, const case_op *op, const case_params *params)
{
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    progress *p = context;
    tool_progress("%s %s %s", tool_done(p->done++, p->total, p->began), op->name, text);
    if (case_prepare(op, params, 0) == TGL_OK) return 0;
    return tool_failed(&tool_compile, "%s %s: %s", op->name, text, tgl_last_error());
}

/* What to compile. */
typedef struct {
    const case_model *model; /* NULL: the words name it */
    bool is_all;             /* that model and all after it */
    const tool_words *words;
} wanted;

static int each_case_of_model(const case_model *model, tool_visit meet, void *context)
{
    const case_op *op;
    for (int i = 0; (op = case_op_at(i)); i++)
        for (const char *const *line = op->models; line && *line; line++) {
            tool_words words = { .num_ops = 1, .ops = { op } };
            if (!case_model_line(model, *line, words.params, sizeof words.params)) continue;
            const int code = tool_each_case(&tool_compile, &words, TOOL_LIST(CASE_KERNELS), meet, context);
            if (code) return code;
        }
    return TOOL_OK;
}

static int each_case(const wanted *w, tool_visit meet, void *context)
{
    if (!w->model) return tool_each_case(&tool_compile, w->words, TOOL_LIST(CASE_KERNELS), meet, context);
    int code = each_case_of_model(w->model, meet, context);
    for (const case_model *m = w->model + 1; w->is_all && code == TOOL_OK && m->name; m++)
        code = each_case_of_model(m, meet, context);
    return code;
}

static const char *model_names(void)
{
    const char *names = "";
    for (const case_model *m = case_models; m->name; m++)
        names = tool_text("%s%s%s", names, *names ? ", " : "", m->name);
    return names;
}

static int begin(const char *architecture)
{
    const tgl_status status = tgl_prepare_begin(0, architecture);
    if (status == TGL_ERR_ARGUMENT) return tool_usage(&tool_compile, "--arch: %s", tgl_last_error());
    return status == TGL_OK ? TOOL_OK : tool_failed(&tool_compile, "%s", tgl_last_error());
}

/* With no `w` the architecture is looked at, nothing is compiled. */
static int compile_for(const char *architecture, const wanted *w, progress *p)
{
    int code = begin(architecture);
    if (code != TOOL_OK) return code;
    if (w) code = each_case(w, visit, p);
    tgl_prepare_end();
    return code;
}

static int each_architecture(const char *architectures, const wanted *w, progress *p)
{
    char list[256], *rest = NULL;
    int code = TOOL_OK;
    snprintf(list, sizeof list, "%s", architectures);
    for (char *a = strtok_r(list, ",", &rest); a && code == TOOL_OK; a = strtok_r(NULL, ",", &rest))
        code = compile_for(a, w, p);
    return code;
}

static int run(int argc, char **argv)
{
    const char *architectures = NULL, *model = NULL, *folder = NULL;
    bool is_all = false;
    const tool_option options[] = {
        { "arch", "LIST", "architectures: sm_90a,sm_100a", NULL, &architectures },
        { "all", NULL, "the kernels of all models; without --arch for sm_80 to sm_121a", &is_all, NULL },
        { "model", "NAME", tool_text("the kernels of a model: %s", model_names()), NULL, &model },
        { "output", "DIR", "(or -o) the folder (default: the cache in use)", NULL, &folder },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_compile, options, argc, argv, &words, &code)) return code;
    if (is_all && !architectures) architectures = all_architectures;
    if (!architectures) return tool_usage(&tool_compile, "--arch: wants architectures, such as sm_90a,sm_100a");
    if (model && !case_model_named(model))
        return tool_usage(&tool_compile, "--model: is %s, want one of %s", model, model_names());
    if ((model || is_all) && (words.num_ops || words.params[0]))
        return tool_usage(&tool_compile, "--%s: names the ops itself", is_all ? "all" : "model");
    if (model && is_all) return tool_usage(&tool_compile, "--all: has all models, so takes no --model");
    const wanted w = { is_all ? case_models : model ? case_model_named(model) : NULL, is_all, &words };
    /* What is there only would be missing in the folder to fill. Before the library's first look at it. */
    unsetenv("TEGULA_CACHE_READONLY");
    int64_t num_cases = 0;
    code = each_architecture(architectures, NULL, NULL);
    if (code == TOOL_OK) code = each_case(&w, count, &num_cases);
    if (code != TOOL_OK) return code; /* before anything is compiled */
    if (folder && mkdir(folder, 0755) != 0 && errno != EEXIST)
        return tool_failed(&tool_compile, "%s: %s", folder, strerror(errno));
    if (folder && tgl_set_cache_dir(folder) != TGL_OK) return tool_failed(&tool_compile, "%s", tgl_last_error());
    static tgl_cache_info cache;
    tgl_cache_describe(&cache);
    if (!cache.folder[0]) return tool_failed(&tool_compile, "no cache to fill: %s", cache.reason);
    const int64_t files = cache.files;

    static const char *const heads[] = { "kernel", "arch", ">ms", "macros" };
    int64_t num_architectures = 1;
    for (const char *a = architectures; *a; a++) num_architectures += *a == ',';
    progress p = { .table = tool_table_new(4, heads), .began = tool_seconds(), .total = num_cases * num_architectures };
    tgl_set_compile_callback(compiled, &p);
    code = each_architecture(architectures, &w, &p);
    tgl_set_compile_callback(NULL, NULL);
    tool_progress(NULL);
    tool_table_print(p.table);
    tgl_cache_describe(&cache);
    printf("%d kernel%s compiled in %.0f ms; %s: %lld files (%lld new), %s\n", p.compiled, p.compiled == 1 ? "" : "s",
           p.milliseconds, cache.folder, (long long)cache.files, (long long)(cache.files - files),
           tool_size((double)cache.bytes));
    const char *failure;
    const int num_failures = tgl_cache_failures(&failure);
    if (num_failures == 0) return code;
    return tool_failed(&tool_compile, "%d kernel%s could not be stored, the cache is incomplete: %s", num_failures,
                       num_failures == 1 ? "" : "s", failure);
}

const tool_command tool_compile = {
    .name = "compile",
    .arguments = "--all | --arch LIST [--model NAME | op... [k=v ...]]",
    .summary = "compiles kernels ahead, without a GPU",
    .run = run,
    .note = tool_parameters,
    .example = "tegula compile --arch sm_90a,sm_100a --model deepseek-v3 -o kernels",
};
