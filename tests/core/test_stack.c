/* SPDX-License-Identifier: MIT
 * A CPU call needs at most 64 KiB of stack: some cases of every op run on a thread that has no more, where
 * using more is a SIGSEGV. (OpenMP's threads do part of the same work.) */
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases.h"

enum { STACK_BYTES = 64 << 10, CASES = 8 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
#define HAS_LARGE_FRAMES 1 /* several times as large */
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define HAS_LARGE_FRAMES 1
#endif
#endif

/* The system's minimum stack may be larger, so the thread protects the pages below. */
enum { BELOW = 1 << 20 };

static void *call(void *context)
{
    static tgl_status status;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), here = (uintptr_t)__builtin_frame_address(0);
    char *below = (char *)((here - STACK_BYTES) / page * page - BELOW);
    if (mprotect(below, BELOW, PROT_NONE)) return NULL;
    status = case_call(context);
    mprotect(below, BELOW, PROT_READ | PROT_WRITE);
    return &status;
}

/* Everything but the call itself is done on this thread: oracles need more. */
static void check_on_small_stack(const case_op *op, const case_params *params, const backend *b)
{
    case_instance *k;
    case_report report;
    char text[CASE_LABEL];
    case_params_text(op, params, text, sizeof text);
    if (!CHECK_OK(case_open(op, params, b, &k))) return;
    CHECK_OK(case_poison(k, 0));
    pthread_t thread;
    pthread_attr_t large; /* whatever the default is: BELOW must be in it */
    void *status = NULL;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, 2 * BELOW);
    if (CHECK_INT(pthread_create(&thread, &large, call, k), 0) && CHECK_INT(pthread_join(thread, &status), 0) &&
        CHECK(status != NULL))
        CHECK_THAT(*(tgl_status *)status == TGL_OK, "%s %s: status %d", op->name, text, (int)*(tgl_status *)status);
    CHECK_THAT(case_verify(k, 0, &report, NULL) == TGL_OK && report.result == CASE_PASSED, "%s %s: %s", op->name, text,
               report.text);
    pthread_attr_destroy(&large);
    case_close(k);
}

static void check_op(const case_op *op, const char *const *lines, int64_t cases, const backend *b)
{
    const int64_t count = case_count(lines), step = count > cases ? count / cases : 1;
    for (int64_t i = 0; i < count; i += step) {
        case_params params;
        REQUIRE(CHECK_OK(case_at(op, lines, i, &params)));
        check_on_small_stack(op, &params, b);
    }
}

TEST(every_op)
{
#ifdef HAS_LARGE_FRAMES
    SKIP("frames are larger with a sanitizer, or not optimised");
#endif
    const backend *b = backend_of_tests(0);
    REQUIRE(b && backend_is_cpu(b));
    for (int i = 0; case_op_at(i); i++) check_op(case_op_at(i), case_op_at(i)->lists[CASE_CHECK], CASES, b);

    /* what takes most: long rows that are one block, tiles that are transposed, long lists, many
     * bins */
    static const struct {
        const char *op, *line;
    } large[] = {
        { "quant_swiglu_forward_and_per_token_cast",
          "num_rows=3 num_cols=16384 dtype=bf16,f32 num_per_channels=0,128 values=mixed" },
        { "quant_swiglu_forward_and_per_channel_cast_and_transpose",
          "num_rows=140 num_cols=600 dtype=bf16,f32 without_transpose=0,1 values=mixed" },
        { "quant_swiglu_backward_and_per_token_cast",
          "num_rows=6 num_cols=5120 num_tokens=6 num_topk=1 num_picks=1 num_per_channels=0,128,3 "
          "values=mixed" },
        { "quant_per_channel_cast", "num_rows=140 num_cols=1100 dtype=bf16,f32,e4m3 values=mixed" },
        { "quant_per_channel_cast_and_transpose", "num_rows=140 num_cols=1100 dtype=bf16,f32 values=mixed" },
        { "quant_per_token_cast",
          "num_rows=3 num_cols=16384 dtype=bf16,f32 format=e4m3,e2m1,e5m6 num_per_channels=0,128" },
        { "quant_cast_back", "num_rows=5 num_cols=8192 format=e4m3,e2m1,e5m6 x_num_per_channels=3,128" },
        { "transpose", "num_rows=300 num_cols=300 dtype=e4m3,bf16,f32,i64,c128" },
        { "moe_topk_gate", "num_tokens=2 num_experts=2100 num_topk=49,1025" },
        { "moe_topk_sum_and_topk_group_idx",
          "num_tokens=1 num_groups=1100 experts_per_group=52 num_topk_sum=50 num_topk_groups=1050" },
        { "moe_top2_sum_gate", "num_tokens=2 num_experts=2100 num_topk=60,1100" },
        { "moe_group_count", "num_tokens=9000 num_topk=8 num_groups=1,256,12288,12289" },
    };
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        const case_op *op = case_find(large[i].op);
        REQUIRE(CHECK(op != NULL));
        check_op(op, (const char *const[]){ large[i].line, NULL }, 100, b);
    }
}
