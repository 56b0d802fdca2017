/* SPDX-License-Identifier: MIT */
#include "core/log.h"

#include <pthread.h>

#include "child.h"
#include "core/log_indices.h"
#include "core/signature.h"
#include "tegula/moe.h"
#include "tegula/transpose.h"

static char text[CHILD_TEXT];

static bool one_line_of_each(void)
{
    tgl_log(TGL_LOG_ERROR, "an error, %d", 1);
    tgl_log(TGL_LOG_INFO, "information, %s", "two");
    tgl_log(TGL_LOG_CALL, "a call");
    return true;
}

#define LINES_WITH(level) (CHECK(in_child(ENVIRONMENT("TEGULA_LOG=" level), one_line_of_each, text)), text)

TEST(levels)
{
    CHECK(in_child(NO_ENVIRONMENT, one_line_of_each, text));
    CHECK_TEXT(text, "");
    CHECK_TEXT(LINES_WITH("off"), "");
    CHECK_TEXT(LINES_WITH("error"), "tegula: an error, 1\n");
    CHECK_TEXT(LINES_WITH("info"), "tegula: an error, 1\ntegula: information, two\n");
    CHECK_TEXT(LINES_WITH("call"), "tegula: an error, 1\ntegula: information, two\ntegula: a call\n");
}

static bool wants_info(void)
{
    return CHECK(tgl_log_wants(TGL_LOG_ERROR)) && CHECK(tgl_log_wants(TGL_LOG_INFO)) &&
           CHECK(!tgl_log_wants(TGL_LOG_CALL));
}

TEST(wants) { CHECK(in_child(ENVIRONMENT("TEGULA_LOG=info"), wants_info, NULL)); }

/* ---- calls ---- */

static const DLDevice cpu = { (DLDeviceType)TGL_DL_CPU, 0 };

static bool transposes(void)
{
    uint16_t data[12] = { 0 };
    int64_t shape[] = { 2, 3 }, out_shape[] = { 3, 2 }, strides[] = { 3, 1 };
    const DLTensor x = { data, cpu, 2, { TGL_DL_BFLOAT, 16, 1 }, shape, strides, 0 };
    DLTensor out = { data + 6, cpu, 2, { TGL_DL_BFLOAT, 16, 1 }, out_shape, NULL, 0 };
    return CHECK_OK(tgl_transpose(&x, &out, NULL));
}

TEST(ops_trace_their_calls)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), transposes, text));
    CHECK_TEXT(text, "tegula: tgl_transpose(x bf16 [2, 3] strides [3, 1] on cpu, out bf16 [3, 2] on cpu)\n");
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=info"), transposes, text));
    CHECK_TEXT(text, "");
}

static bool fails(void)
{
    int64_t shape[] = { 2, 3 };
    DLTensor x = { NULL, cpu, 2, { TGL_DL_BFLOAT, 16, 1 }, shape, NULL, 0 };
    return CHECK_FAILS(tgl_transpose(&x, NULL, NULL), TGL_ERR_ARGUMENT, NULL);
}

TEST(failures_are_errors)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=error"), fails, text));
    CHECK_TEXT(text, "tegula: TGL_ERR_ARGUMENT: x: data is NULL, want 12 bytes\n");
    CHECK(in_child(NO_ENVIRONMENT, fails, text));
    CHECK_TEXT(text, "");
}

static bool logs_null(void)
{
    static tgl_signature s = TGL_SIGNATURE("op(x: f32[n, m], bias: f32[m]?)", NULL);
    int64_t shape[] = { 2, 3 };
    const DLTensor x = { NULL, cpu, 2, { TGL_DL_FLOAT, 32, 1 }, shape, NULL, 0 };
    tgl_log_signature(&s, (const DLTensor *[]){ &x, NULL });
    return true;
}

TEST(a_call_with_a_null_tensor)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), logs_null, text));
    CHECK_TEXT(text, "tegula: tgl_op(x f32 [2, 3] on cpu, bias NULL)\n");
}

static bool indices_out_of_range(void)
{
    int64_t longs[] = { 7, -1, 8, 2, 9, INT64_MAX }; /* rows of two, three apart */
    int32_t shorts[] = { 0, 7, INT32_MIN, 3 };
    int64_t shape[] = { 2, 2 }, strides[] = { 3, 1 }, four = 4, eight = 8;
    DLTensor t = { longs, cpu, 2, { TGL_DL_INT, 64, 1 }, shape, strides, 0 };
    const DLTensor row = { shorts, cpu, 1, { TGL_DL_INT, 32, 1 }, &four, NULL, 0 };
    int32_t data[8];
    DLTensor counts = { data, cpu, 1, { TGL_DL_INT, 32, 1 }, &eight, NULL, 0 };
    tgl_log_indices("topk_idx", &t, 10);
    tgl_log_indices("topk_idx", &t, 8);
    tgl_log_indices("ids", &row, 3);
    if (!CHECK_OK(tgl_moe_group_count(&t, &counts, NULL, 0, NULL))) return false;
    t.data = NULL;
    tgl_log_indices("in prepare mode", &t, 0);
    t.data = longs, t.device.device_type = (DLDeviceType)TGL_DL_CUDA;
    tgl_log_indices("on a GPU", &t, 0);
    return true;
}

TEST(indices)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), indices_out_of_range, text));
    CHECK_TEXT(text, "tegula: topk_idx: 1 of 4 indices are out of range: [1, 1] is 9, want < 8\n"
                     "tegula: ids: 2 of 4 indices are out of range: [1, 0] is 7, want < 3\n"
                     "tegula: tgl_moe_group_count(group_idx i64 [2, 2] strides [3, 1] on cpu, counts i32 [8] on "
                     "cpu)\n"
                     "tegula: group_idx: 1 of 4 indices are out of range: [1, 1] is 9, want < 8\n");
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=info"), indices_out_of_range, text));
    CHECK_TEXT(text, "");
}

static bool long_lines(void)
{
    int64_t shape[8];
    for (int i = 0; i < 8; i++) shape[i] = INT64_MAX;
    const DLTensor t = { NULL, cpu, 8, { TGL_DL_FLOAT, 32, 1 }, shape, shape, 0 }, *tensors[12];
    static tgl_signature s = TGL_SIGNATURE("op(a: f32[n], b: f32[n], c: f32[n], d: f32[n], e: f32[n], f: f32[n],"
                                           " g: f32[n], h: f32[n], i: f32[n], j: f32[n], k: f32[n], l: f32[n])",
                                           NULL);
    for (int i = 0; i < 12; i++) tensors[i] = &t;
    tgl_log_signature(&s, tensors);
    char word[4000];
    memset(word, 'n', sizeof word - 1);
    word[sizeof word - 1] = 0;
    tgl_log(TGL_LOG_ERROR, "%s", word);
    return true;
}

TEST(long_lines_are_cut) /* and stay lines */
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=call"), long_lines, text));
    int lines = 0;
    const char *line = text;
    for (const char *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        CHECK(!strncmp(line, "tegula: ", 8));
        CHECK_THAT(end - line < 2100, "a line of %td characters", end - line);
    }
    CHECK_INT(lines, 2);
    CHECK_TEXT(line, "");
}

static void *log_often(void *context)
{
    for (int i = 0; i < 20; i++)
        tgl_log(TGL_LOG_ERROR, "thread %s says something of some length", (const char *)context);
    return NULL;
}

static bool four_threads(void)
{
    pthread_t threads[4];
    char *names[] = { "a", "b", "c", "d" };
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, log_often, names[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    return true;
}

TEST(lines_of_threads_do_not_mix)
{
    CHECK(in_child(ENVIRONMENT("TEGULA_LOG=error"), four_threads, text));
    int lines = 0;
    for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        CHECK_INT(end - line, 46);
        CHECK(!strncmp(line, "tegula: thread ", 15) && !strncmp(line + 16, " says something of some length", 30));
    }
    CHECK_INT(lines, 80);
}
