/* SPDX-License-Identifier: MIT */
#include "models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sizes that select code; numbers of tokens do not. Of 8 ranks, one has experts_per_rank of the experts. A model
 * routes by groups of experts, or by a table of hash_vocabulary tokens, where it has the sizes of that. */
const case_model case_models[] = {
    { "deepseek-v3",
      "hidden=7168 intermediate=2048 num_experts=256 experts_per_rank=32 num_topk=8 scoring=sigmoid "
      "num_groups=8 num_topk_groups=4 experts_per_group=32" },
    { "deepseek-v4-flash",
      "hidden=4096 intermediate=2048 num_experts=256 experts_per_rank=32 num_topk=6 scoring=sqrtsoftplus "
      "num_groups=0 num_topk_groups=0 hash_vocabulary=129280" },
    { "deepseek-v4-pro",
      "hidden=7168 intermediate=3072 num_experts=384 experts_per_rank=48 num_topk=6 scoring=sqrtsoftplus "
      "num_groups=0 num_topk_groups=0 hash_vocabulary=129280" },
    { NULL, NULL },
};

const case_model *case_model_named(const char *name)
{
    for (const case_model *m = case_models; m->name; m++)
        if (!strcmp(m->name, name)) return m;
    return NULL;
}

/* The value of a name of `bytes` characters, and its length; NULL where there is none. */
static const char *size_named(const case_model *model, const char *name, size_t bytes, size_t *value_bytes)
{
    for (const char *at = model->sizes; *at; at += strspn(at, " ")) {
        const size_t word = strcspn(at, " ");
        if (word > bytes && at[bytes] == '=' && !memcmp(at, name, bytes)) {
            *value_bytes = word - bytes - 1;
            return at + bytes + 1;
        }
        at += word;
    }
    return NULL;
}

bool case_model_line(const case_model *model, const char *line, char *out, size_t bytes)
{
    size_t n = 0;
    while (*line) {
        const char *from = line;
        size_t count = 1;
        line++;
        if (*from == '{') {
            const size_t name = strcspn(line, "}");
            from = size_named(model, line, name, &count);
            if (!from) return false;
            line += name + 1;
        }
        if (n + count >= bytes) abort();        /* a line of ours is too long */
        memcpy(out + n, from, count);
        n += count;
    }
    out[n] = 0;
    return true;
}
