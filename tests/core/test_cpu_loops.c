/* SPDX-License-Identifier: MIT
 * Every op with fast loops, in all cases of its list, with its plain loop and with each fast loop that this CPU has: the
 * same bytes in, between and around the outputs. */
#include <stdlib.h>

#include "core/cpu.h"
#include "cases.h"

/* The call's effect on its tensors, guards included. */
static bool call(case_instance *k, tgl_cpu_level level, const char *text)
{
    tgl_cpu_limit(level);
    return CHECK_OK(case_poison(k, 0)) && CHECK_THAT(case_call(k) == TGL_OK, "%s: %s", text, tgl_last_error());
}

static void compare(case_instance *k, const char *op_name, const char *text)
{
    char *plain[CASE_MAX_TENSORS] = { NULL };
    bool ok = call(k, TGL_CPU_PLAIN, text);
    for (int i = 0; i < k->problem.num_tensors; i++) {
        if (!k->memory_bytes[i]) continue;
        plain[i] = malloc(k->memory_bytes[i]);
        REQUIRE(plain[i] && k->memory[i]);
        memcpy(plain[i], k->memory[i], k->memory_bytes[i]);
    }
    for (tgl_cpu_level level = TGL_CPU_BASE; ok && level <= TGL_CPU_AVX512; level++) {
        ok &= call(k, level, text);
        for (int i = 0; ok && i < k->problem.num_tensors; i++) {
            size_t same = 0, bytes = k->memory_bytes[i];
            if (bytes && !memcmp(plain[i], k->memory[i], bytes)) continue;
            while (same < bytes && plain[i][same] == k->memory[i][same]) same++;
            ok &= CHECK_THAT(same == bytes, "%s %s, loops %d: %s differs at byte %zu of %zu", op_name, text, (int)level,
                             k->problem.tensors[i].name, same, bytes);
        }
        if (tgl_cpu() < level) break; /* the CPU has no more */
    }
    for (int i = 0; i < k->problem.num_tensors; i++) free(plain[i]);
}

static void compare_list(const case_op *op, const char *const *lines)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || defined(__clang__)
    enum { STEP = 9 }; /* for plain loops under sanitizers; the op's own tests have the fast ones */
#else
    enum { STEP = 1 };
#endif
    for (int64_t i = 0; i < case_count(lines); i += STEP) {
        case_params params;
        case_instance *k;
        char text[CASE_LABEL];
        REQUIRE(CHECK_OK(case_at(op, lines, i, &params)));
        case_params_text(op, &params, text, sizeof text);
        const tgl_status status = case_open(op, &params, backend_of_tests(0), &k);
        if (status == TGL_ERR_MEMORY) continue;
        REQUIRE(CHECK_OK(status));
        compare(k, op->name, text);
        case_close(k);
    }
}

static void compare_ops(const char *const *names)
{
    for (; *names; names++) {
        const case_op *op = case_find(*names);
        REQUIRE(op);
        compare_list(op, op->lists[CASE_CHECK]);
    }
    tgl_cpu_limit(TGL_CPU_AVX512);
}

TEST(transpose) { compare_ops((const char *const[]){ "transpose", "batched_transpose", NULL }); }

TEST(moe) /* those with fast loops */
{
    compare_ops((const char *const[]){ "moe_topk_gate", "moe_topk_sum_and_topk_group_idx", "moe_top2_sum_gate",
                                       "moe_hash_gate", "moe_group_count", "moe_aux_fi", "moe_normalize_weight",
                                       "moe_reduce_fused", NULL });
}

TEST(engram)
{
    compare_ops((const char *const[]){ "engram_gate_fwd", "engram_gate_bwd", "engram_short_conv_fwd",
                                       "engram_gate_conv_fwd", "engram_short_conv_bwd", "engram_grad_w_reduce",
                                       "engram_lookup_bwd", NULL });
}

TEST(quant)
{
    static const char *names[64];
    int n = 0;
    for (int i = 0; case_op_at(i); i++)
        if (!strncmp(case_op_at(i)->name, "quant_", 6)) names[n++] = case_op_at(i)->name;
    compare_ops(names);
}
