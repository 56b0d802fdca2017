/* SPDX-License-Identifier: MIT */
#include "core/status.h"

#include <pthread.h>

#include "test.h"

TEST(names)
{
    static const char *const names[] = { "TGL_OK",          "TGL_ERR_ARGUMENT", "TGL_ERR_WORKSPACE",
                                         "TGL_ERR_DEVICE",  "TGL_ERR_COMPILE",  "TGL_ERR_CAPTURE",
                                         "TGL_ERR_MEMORY",  "TGL_ERR_CUDA",     "TGL_ERR_PEER",
                                         "TGL_ERR_INTERNAL" };
    for (int i = 0; i < 10; i++) CHECK_TEXT(tgl_status_name((tgl_status)i), names[i]);
    CHECK(!tgl_status_name((tgl_status)10));
    CHECK(!tgl_status_name((tgl_status)-1));
}

TEST(numbers_are_kept)      /* they are part of the ABI */
{
    CHECK_INT(TGL_OK, 0);
    CHECK_INT(TGL_ERR_ARGUMENT, 1);
    CHECK_INT(TGL_ERR_WORKSPACE, 2);
    CHECK_INT(TGL_ERR_DEVICE, 3);
    CHECK_INT(TGL_ERR_COMPILE, 4);
    CHECK_INT(TGL_ERR_CAPTURE, 5);
    CHECK_INT(TGL_ERR_MEMORY, 6);
    CHECK_INT(TGL_ERR_CUDA, 7);
    CHECK_INT(TGL_ERR_PEER, 8);
    CHECK_INT(TGL_ERR_INTERNAL, 9);
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
    *(bool *)context = before && !*before;      /* a new thread has had no failure */
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
