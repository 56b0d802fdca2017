/* SPDX-License-Identifier: MIT */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that select code; numbers of tokens do not. experts_per_rank is the share of one of 8 ranks. A model
 * that routes by groups of experts has experts_per_group, one that routes by token id has hash_vocabulary, one with
 * Engram layers those that begin with engram, one with hyper-connections those that begin with mhc: scales and rows of fn of
 * its sites, then of a learned head; without the size comb_streams streams are not mixed. */
const case_model case_models[] = {
    { "deepseek-v3", "hidden=7168 intermediate=2048 num_experts=256 experts_per_rank=32 num_topk=8 scoring=sigmoid "
                     "num_groups=8 num_topk_groups=4 experts_per_group=32" },
    { "deepseek-v4-flash",
      "hidden=4096 intermediate=2048 num_experts=256 experts_per_rank=32 num_topk=6 scoring=sqrtsoftplus "
      "num_groups=0 num_topk_groups=0 hash_vocabulary=129280 mhc_streams=4 mhc_comb_streams=4 mhc_head_streams=4 "
      "mhc_comb=1 mhc_scales=3,1 mhc_rows=24,4" },
    { "deepseek-v4-pro",
      "hidden=7168 intermediate=3072 num_experts=384 experts_per_rank=48 num_topk=6 scoring=sqrtsoftplus "
      "num_groups=0 num_topk_groups=0 hash_vocabulary=129280 mhc_streams=4 mhc_comb_streams=4 mhc_head_streams=4 "
      "mhc_comb=1 mhc_scales=3,1 mhc_rows=24,4" },
    { "deepseek-v4.1-flash",
      "hidden=5120 engram_ngram=4 engram_layers=2 engram_heads=8 engram_columns=24 engram_dim=256 engram_streams=4 "
      "engram_centered=0 engram_vocabulary=129280 engram_dtype=e4m3 engram_sf=e8m0 engram_residual=1 "
      "mhc_streams=4 mhc_comb_streams=4 mhc_comb=1 mhc_scales=3 mhc_rows=24" },
    { "glm-5.3-flash", "hidden=4096 mhc_streams=4 mhc_comb_streams=4 mhc_comb=1 mhc_scales=3 mhc_rows=24" },
    { "hy-v4", "hidden=6144 mhc_streams=4 mhc_head_streams=4 mhc_comb=0 mhc_scales=2,1 mhc_rows=8,4" },
    { "qwen3.8-flash-next",
      "hidden=2560 engram_ngram=3 engram_layers=1 engram_heads=8 engram_columns=16 engram_dim=160 engram_streams=4 "
      "engram_centered=1 engram_vocabulary=0 engram_dtype=e4m3 engram_sf=one engram_residual=0 "
      "mhc_streams=4 mhc_comb=0" },
    { NULL, NULL },
};

const case_model *case_model_named(const char *name)
{
    for (const case_model *m = case_models; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

static bool find_size(const case_model *model, const char *name, int bytes, case_pair *size)
{
    const char *sizes = model->sizes;
    while (case_next_pair(&sizes, size))
        if (size->name_bytes == bytes && !memcmp(size->name, name, (size_t)bytes)) return true;
    return false;
}

bool case_model_line(const case_model *model, const char *line, char *out, size_t bytes)
{
    size_t n = 0;
    while (*line) {
        const int text = (int)strcspn(line, "{"), name = (int)strcspn(line + text + !!line[text], "}");
        case_pair size = { .values = "" };
        if (line[text] && !find_size(model, line + text + 1, name, &size)) return false;
        n += (size_t)snprintf(out + n, bytes - n, "%.*s%.*s", text, line, size.values_bytes, size.values);
        if (n >= bytes) abort(); /* a line of ours is too long */
        line += line[text] ? text + name + 2 : text;
    }
    return true;
}
