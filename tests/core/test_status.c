/* SPDX-License-Identifier: MIT */
#include "core/status.h"

#include <pthread.h>

#include "test.h"

TEST(names_and_numbers) /* the numbers are part of the ABI */
{
#define ROW(name)   \
    {               \
        name, #name \
    }
    static const struct {
        tgl_status status;
        const char *name;
    } rows[] = {
        ROW(TGL_OK),          ROW(TGL_ERR_ARGUMENT), ROW(TGL_ERR_WORKSPACE), ROW(TGL_ERR_DEVICE), ROW(TGL_ERR_COMPILE),
        ROW(TGL_ERR_CAPTURE), ROW(TGL_ERR_MEMORY),   ROW(TGL_ERR_CUDA),      ROW(TGL_ERR_PEER),   ROW(TGL_ERR_INTERNAL),
    };
    for (int i = 0; i < 10; i++) {
        CHECK_INT(rows[i].status, i);
        CHECK_TEXT(tgl_status_name(rows[i].status), rows[i].name);
    }
    CHECK(!tgl_status_name((tgl_status)10) && !tgl_status_name((tgl_status)-1));
}

TEST(version)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", TGL_VERSION_MAJOR, TGL_VERSION_MINOR, TGL_VERSION_PATCH);
    CHECK_TEXT(tgl_version(), text);
}

static void *first_message(void *context)
{
    const char *before = tgl_last_error();
    *(bool *)context = before && !*before; /* a new thread has had no failure */
    tgl_fail(TGL_ERR_CUDA, "from the other thread");
    return NULL;
}

TEST(message_is_of_this_thread)
{
    pthread_t thread;
    bool was_empty = false;
    CHECK_INT(tgl_fail(TGL_ERR_ARGUMENT, "num_topk: is %d, want 1..%d", 9, 8), TGL_ERR_ARGUMENT);
    CHECK_TEXT(tgl_last_error(), "num_topk: is 9, want 1..8");
    REQUIRE(pthread_create(&thread, NULL, first_message, &was_empty) == 0);
    pthread_join(thread, NULL);
    CHECK(was_empty);
    CHECK_TEXT(tgl_last_error(), "num_topk: is 9, want 1..8");
}

static tgl_status tries(tgl_status status)
{
    TGL_TRY(status);
    return TGL_ERR_PEER;
}

TEST(success_leaves_it_alone)
{
    tgl_fail(TGL_ERR_MEMORY, "the last failure");
    CHECK_OK(tgl_set_num_threads(0));
    CHECK_TEXT(tgl_last_error(), "the last failure");
    CHECK_INT(tries(TGL_OK), TGL_ERR_PEER);
    CHECK_INT(tries(TGL_ERR_CAPTURE), TGL_ERR_CAPTURE);
    CHECK_TEXT(tgl_last_error(), "the last failure");
}

TEST(cut_at_its_size)
{
    char text[3000];
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    CHECK_INT(tgl_fail(TGL_ERR_INTERNAL, "%s", text), TGL_ERR_INTERNAL);
    CHECK_INT(strlen(tgl_last_error()), TGL_MESSAGE_BYTES - 1);
    tgl_fail(TGL_ERR_INTERNAL, "short");
    CHECK_TEXT(tgl_last_error(), "short");
}
