/* SPDX-License-Identifier: MIT
 * compile.c - fills a kernel cache ahead of time. Needs NVRTC, but no GPU and no driver. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cuda/cache.h"
#include "tool.h"

/* What the ops of a model look like. Only what selects code matters here (dtypes, sizes that kernels are
 * specialised for): token counts do not. */
static const struct { const char *model, *op, *line; } models[] = {
    { "deepseek-v3", "transpose", "num_rows=4096 num_cols=7168 dtype=e4m3,bf16,f32" },
    { "deepseek-v3", "batched_transpose", "num_batches=8 num_rows=4096 num_cols=7168 dtype=e4m3,bf16,f32" },
    { "deepseek-v3", "moe_topk_gate", "num_tokens=4096 num_experts=256 num_topk=8" },
    { "deepseek-v3", "moe_topk_sum_and_topk_group_idx",
      "num_tokens=4096 num_groups=8 experts_per_group=32 num_topk_sum=2 num_topk_groups=4" },
    { "deepseek-v3", "moe_mask_indices_by_tp",
      "num_tokens=4096 num_topk=8 num_experts=256 num_ep_ranks=8 num_tp_ranks=2" },
    { "deepseek-v3", "moe_normalize_weight", "num_tokens=4096 num_topk=8" },
    { "deepseek-v3", "moe_inplace_unique_group_indices",
      "num_tokens=4096 num_topk=8 num_groups=8" },
    { "deepseek-v3", "moe_top2_sum_gate",
      "num_tokens=4096 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4" },
    { "deepseek-v3", "moe_route",
      "num_tokens=4096 num_experts=256 num_topk=8 num_groups=8 num_topk_groups=4" },
    { "deepseek-v3", "moe_group_count", "num_tokens=4096 num_topk=8 num_groups=256" },
    { "deepseek-v3", "moe_aux_fi", "num_tokens=4096 num_topk=8 num_experts=256" },
    { "deepseek-v3", "moe_get_fused_mapping",
      "num_tokens=4096 num_topk=8 num_experts=32,256 alignment=128" },
    { "deepseek-v3", "moe_expand_to_fused",
      "num_tokens=64 num_topk=8 num_experts=32 hidden=7168 alignment=1" },
    { "deepseek-v3", "moe_expand_to_fused_with_sf",
      "num_tokens=64 num_topk=8 num_experts=32 hidden=7168 alignment=1" },
    { "deepseek-v3", "moe_reduce_fused",
      "num_tokens=64 num_topk=8 num_experts=32 hidden=7168 alignment=1" },
    { "deepseek-v3", "quant_per_token_cast", "num_rows=4096 num_cols=7168 round=1 sf=packed" },
    { "deepseek-v3", "quant_per_token_cast", "num_rows=4096 num_cols=7168 round=0 sf=row" },
    { "deepseek-v3", "quant_per_block_cast", "num_rows=4096 num_cols=7168 round=0,1" },
    { "deepseek-v3", "quant_per_channel_cast_and_transpose", "num_rows=4096 num_cols=7168 round=0,1" },
    { "deepseek-v3", "quant_cast_back", "num_rows=4096 num_cols=7168" },
    { "deepseek-v3", "quant_swiglu_forward_and_per_token_cast",
      "num_rows=4096 num_cols=2048 round=1 sf=packed clamp=none,10" },
    { "deepseek-v4-flash", "transpose", "num_rows=4096 num_cols=4096 dtype=e4m3,bf16,f32" },
    { "deepseek-v4-flash", "batched_transpose",
      "num_batches=8 num_rows=4096 num_cols=4096 dtype=e4m3,bf16,f32" },
    { "deepseek-v4-flash", "moe_topk_gate", "num_tokens=4096 num_experts=256 num_topk=6" },
    { "deepseek-v4-flash", "moe_mask_indices_by_tp",
      "num_tokens=4096 num_topk=6 num_experts=256 num_ep_ranks=8 num_tp_ranks=2" },
    { "deepseek-v4-flash", "moe_normalize_weight", "num_tokens=4096 num_topk=6" },
    { "deepseek-v4-flash", "moe_inplace_unique_group_indices",
      "num_tokens=4096 num_topk=6 num_groups=8" },
    { "deepseek-v4-flash", "moe_top2_sum_gate",
      "num_tokens=4096 num_experts=256 num_topk=6 scoring=sqrtsoftplus" },
    { "deepseek-v4-flash", "moe_hash_gate",
      "num_tokens=4096 num_experts=256 num_topk=6 vocabulary=129280 scoring=sqrtsoftplus" },
    { "deepseek-v4-flash", "moe_route",
      "num_tokens=4096 num_experts=256 num_topk=6 scoring=sqrtsoftplus" },
    { "deepseek-v4-flash", "moe_group_count", "num_tokens=4096 num_topk=6 num_groups=256" },
    { "deepseek-v4-flash", "moe_aux_fi", "num_tokens=4096 num_topk=6 num_experts=256" },
    { "deepseek-v4-flash", "moe_get_fused_mapping",
      "num_tokens=4096 num_topk=6 num_experts=32,256 alignment=128" },
    { "deepseek-v4-flash", "moe_expand_to_fused",
      "num_tokens=64 num_topk=6 num_experts=32 hidden=4096 alignment=1" },
    { "deepseek-v4-flash", "moe_expand_to_fused_with_sf",
      "num_tokens=64 num_topk=6 num_experts=32 hidden=4096 alignment=1" },
    { "deepseek-v4-flash", "moe_reduce_fused",
      "num_tokens=64 num_topk=6 num_experts=32 hidden=4096 alignment=1" },
    { "deepseek-v4-flash", "quant_per_token_cast", "num_rows=4096 num_cols=4096 round=1 sf=packed" },
    { "deepseek-v4-flash", "quant_per_token_cast", "num_rows=4096 num_cols=4096 round=0 sf=row" },
    { "deepseek-v4-flash", "quant_per_block_cast", "num_rows=4096 num_cols=4096 round=0,1" },
    { "deepseek-v4-flash", "quant_per_channel_cast_and_transpose", "num_rows=4096 num_cols=4096 round=0,1" },
    { "deepseek-v4-flash", "quant_cast_back", "num_rows=4096 num_cols=4096" },
    { "deepseek-v4-flash", "quant_swiglu_forward_and_per_token_cast",
      "num_rows=4096 num_cols=2048 round=1 sf=packed clamp=none,10" },
    { "deepseek-v4-pro", "transpose", "num_rows=4096 num_cols=7168 dtype=e4m3,bf16,f32" },
    { "deepseek-v4-pro", "batched_transpose",
      "num_batches=8 num_rows=4096 num_cols=7168 dtype=e4m3,bf16,f32" },
    { "deepseek-v4-pro", "moe_topk_gate", "num_tokens=4096 num_experts=384 num_topk=6" },
    { "deepseek-v4-pro", "moe_mask_indices_by_tp",
      "num_tokens=4096 num_topk=6 num_experts=384 num_ep_ranks=8 num_tp_ranks=2" },
    { "deepseek-v4-pro", "moe_normalize_weight", "num_tokens=4096 num_topk=6" },
    { "deepseek-v4-pro", "moe_inplace_unique_group_indices",
      "num_tokens=4096 num_topk=6 num_groups=8" },
    { "deepseek-v4-pro", "moe_top2_sum_gate",
      "num_tokens=4096 num_experts=384 num_topk=6 scoring=sqrtsoftplus" },
    { "deepseek-v4-pro", "moe_hash_gate",
      "num_tokens=4096 num_experts=384 num_topk=6 vocabulary=129280 scoring=sqrtsoftplus" },
    { "deepseek-v4-pro", "moe_route", "num_tokens=4096 num_experts=384 num_topk=6 scoring=sqrtsoftplus" },
    { "deepseek-v4-pro", "moe_group_count", "num_tokens=4096 num_topk=6 num_groups=384" },
    { "deepseek-v4-pro", "moe_aux_fi", "num_tokens=4096 num_topk=6 num_experts=384" },
    { "deepseek-v4-pro", "moe_get_fused_mapping",
      "num_tokens=4096 num_topk=6 num_experts=48,384 alignment=128" },
    { "deepseek-v4-pro", "moe_expand_to_fused",
      "num_tokens=64 num_topk=6 num_experts=48 hidden=7168 alignment=1" },
    { "deepseek-v4-pro", "moe_expand_to_fused_with_sf",
      "num_tokens=64 num_topk=6 num_experts=48 hidden=7168 alignment=1" },
    { "deepseek-v4-pro", "moe_reduce_fused",
      "num_tokens=64 num_topk=6 num_experts=48 hidden=7168 alignment=1" },
    { "deepseek-v4-pro", "quant_per_token_cast", "num_rows=4096 num_cols=7168 round=1 sf=packed" },
    { "deepseek-v4-pro", "quant_per_token_cast", "num_rows=4096 num_cols=7168 round=0 sf=row" },
    { "deepseek-v4-pro", "quant_per_block_cast", "num_rows=4096 num_cols=7168 round=0,1" },
    { "deepseek-v4-pro", "quant_per_channel_cast_and_transpose", "num_rows=4096 num_cols=7168 round=0,1" },
    { "deepseek-v4-pro", "quant_cast_back", "num_rows=4096 num_cols=7168" },
    { "deepseek-v4-pro", "quant_swiglu_forward_and_per_token_cast",
      "num_rows=4096 num_cols=3072 round=1 sf=packed clamp=none,10" },
};
enum { NUM_MODEL_ROWS = sizeof models / sizeof *models };

typedef struct {
    tool_table *table;
    double milliseconds;
    int compiled;
} progress;

static void compiled(void *context, const char *kernel, const char *macros, const char *architecture,
                     double milliseconds)
{
    progress *p = context;
    char ms[24];
    snprintf(ms, sizeof ms, "%.1f", milliseconds);
    tool_table_row(p->table, (const char *const[]){ kernel, architecture, ms, macros });
    p->milliseconds += milliseconds;
    p->compiled++;
}

static int visit(void *context, const case_op *op, const case_params *params)
{
    (void)context;
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    tool_progress("%s %s", op->name, text);
    if (case_prepare(op, params, 0) == TGL_OK) return 0;
    return tool_failed(&tool_compile, "%s %s: %s", op->name, text, tgl_last_error());
}

static int compile_model(const char *model, progress *p)
{
    for (int i = 0; i < NUM_MODEL_ROWS; i++) {
        if (strcmp(models[i].model, model)) continue;
        tool_words words = { .num_ops = 1, .ops = { case_find(models[i].op) } };
        if (!words.ops[0]) return tool_failed(&tool_compile, "%s: %s is not an op", model, models[i].op);
        snprintf(words.params, sizeof words.params, "%s", models[i].line);
        const int code = tool_each_case(&tool_compile, &words, TOOL_LIST(CASE_KERNELS), visit, p);
        if (code) return code;
    }
    return TOOL_OK;
}

static bool is_model(const char *name)
{
    for (int i = 0; i < NUM_MODEL_ROWS; i++)
        if (!strcmp(models[i].model, name)) return true;
    return false;
}

static void model_names(char *text, size_t bytes)
{
    text[0] = 0;
    for (int i = 0; i < NUM_MODEL_ROWS; i++) {
        if (i && !strcmp(models[i].model, models[i - 1].model)) continue;
        const size_t n = strlen(text);
        snprintf(text + n, bytes - n, "%s%s", n ? ", " : "", models[i].model);
    }
}

static int compile_for(const char *architecture, const char *model, const tool_words *words, progress *p)
{
    const tgl_status status = tgl_prepare_begin(0, architecture);
    if (status == TGL_ERR_ARGUMENT) return tool_usage(&tool_compile, "--arch: %s", tgl_last_error());
    if (status != TGL_OK) return tool_failed(&tool_compile, "%s", tgl_last_error());
    const unsigned lists = TOOL_LIST(CASE_KERNELS);
    const int code = model ? compile_model(model, p) : tool_each_case(&tool_compile, words, lists, visit, p);
    tgl_prepare_end();
    return code;
}

static int run(int argc, char **argv)
{
    const char *architectures = NULL, *model = NULL, *folder = NULL;
    char names[256], model_help[320];
    model_names(names, sizeof names);
    snprintf(model_help, sizeof model_help, "the kernels of a model: %s", names);
    const tool_option options[] = {
        { "arch", "LIST", "architectures: sm_90a,sm_100a", NULL, &architectures },
        { "model", "NAME", model_help, NULL, &model },
        { "output", "DIR", "(or -o) the folder (default: the cache in use)", NULL, &folder },
        { 0 },
    };
    tool_words words;
    int code;
    if (!tool_parse(&tool_compile, options, argc, argv, &words, &code)) return code;
    if (!architectures)
        return tool_usage(&tool_compile, "--arch: wants architectures, such as sm_90a,sm_100a");
    if (model && !is_model(model))
        return tool_usage(&tool_compile, "--model: is %s, want one of %s", model, names);
    if (model && (words.num_ops || words.params[0]))
        return tool_usage(&tool_compile, "--model: names the ops itself");
    unsetenv("TEGULA_CACHE_READONLY");      /* what is there only would be missing in the folder to fill */
    if (folder && mkdir(folder, 0755) != 0 && errno != EEXIST)
        return tool_failed(&tool_compile, "%s: %s", folder, strerror(errno));
    if (folder && tgl_set_cache_dir(folder) != TGL_OK)
        return tool_failed(&tool_compile, "%s", tgl_last_error());
    static tgl_cache_info cache;
    tgl_cache_describe(&cache);
    if (!cache.folder[0]) return tool_failed(&tool_compile, "no cache to fill: %s", cache.reason);
    const int64_t files = cache.files;

    static const char *const heads[] = { "kernel", "arch", ">ms", "macros" };
    progress p = { .table = tool_table_new(4, heads) };
    char list[256], *rest = NULL;
    snprintf(list, sizeof list, "%s", architectures);
    tgl_set_compile_callback(compiled, &p);
    code = TOOL_OK;
    for (char *a = strtok_r(list, ",", &rest); a && code == TOOL_OK; a = strtok_r(NULL, ",", &rest))
        code = compile_for(a, model, &words, &p);
    tgl_set_compile_callback(NULL, NULL);
    tool_progress(NULL);
    tool_table_print(p.table);
    if (code == TOOL_USAGE) return code;
    tgl_cache_describe(&cache);
    printf("%d kernel%s compiled in %.0f ms; %s: %lld files (%lld new), %s\n", p.compiled,
           p.compiled == 1 ? "" : "s", p.milliseconds, cache.folder, (long long)cache.files,
           (long long)(cache.files - files), tool_size((double)cache.bytes));
    const char *failure;
    const int num_failures = tgl_cache_failures(&failure);
    if (num_failures == 0) return code;
    return tool_failed(&tool_compile, "%d kernel%s could not be stored, the cache is incomplete: %s", num_failures,
                       num_failures == 1 ? "" : "s", failure);
}

const tool_command tool_compile = { "compile", "--arch LIST [--model NAME | op... [k=v ...]] [-o DIR]",
                                    "compiles kernels ahead, without a GPU", run };
