/* SPDX-License-Identifier: MIT
 * The memory of the host that a mapping's lengths are written to: on CUDA page-locked, and told apart from
 * other memory before anything is enqueued. */
#include "mapping.h"

#include "cuda/driver.h"

enum { NUM_TOKENS = 2, NUM_TOPK = 2, NUM_EXPERTS = 4, NUM_POSITIONS = 12 };

/* A mapping on a device, but for the lengths on the host. */
typedef struct {
    tensor topk_idx, t[7], host;
    tgl_moe_mapping mapping;
} example;

static void open_example(const backend *b, example *c, void *lengths)
{
    static const int64_t topk_idx[NUM_TOKENS * NUM_TOPK] = { 3, 0, -1, 3 };
    static const int32_t poison[NUM_POSITIONS] = { 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77, 77 };
    place(b, &c->topk_idx, TGL_I64, 2, SHAPE(NUM_TOKENS, NUM_TOPK), topk_idx);
    for (int i = 0; i < 7; i++) {
        if (i == 3) place(b, &c->t[i], TGL_I32, 2, SHAPE(NUM_TOKENS, NUM_TOPK), poison);
        else place(b, &c->t[i], TGL_I32, 1, SHAPE(i < 3 ? NUM_POSITIONS : NUM_EXPERTS), poison);
    }
    c->mapping = (tgl_moe_mapping){ &c->t[0].t, &c->t[1].t, &c->t[2].t, &c->t[3].t, &c->t[4].t, &c->t[5].t,
                                    &c->t[6].t, .num_tokens_per_expert_host = &c->host.t };
    make(&c->host, lengths, cpu, TGL_I32, 1, SHAPE(NUM_EXPERTS));
}

static tgl_status call(const backend *b, const example *c)
{
    return tgl_moe_get_fused_mapping(&c->topk_idx.t, &c->mapping, 2, NULL, 0, b->stream);
}

static void close_example(const backend *b, example *c)
{
    discard(b, &c->topk_idx);
    for (int i = 0; i < 7; i++) discard(b, &c->t[i]);
}

static void check_lengths(const backend *b, const int32_t *lengths)
{
    const int32_t want[NUM_EXPERTS] = { 2, 0, 0, 2 };
    CHECK_OK(backend_wait(b, b->stream));
    for (int i = 0; i < NUM_EXPERTS; i++) CHECK_INT(lengths[i], want[i]);
}

TEST(any_memory_on_the_cpu)
{
    FOR_BACKENDS(b) {
        if (!backend_is_cpu(b)) continue;
        int32_t lengths[NUM_EXPERTS];
        example c;
        open_example(b, &c, lengths);
        CHECK_OK(call(b, &c));
        check_lengths(b, lengths);
        c.host.t.device.device_type = (DLDeviceType)TGL_DL_CUDA_HOST;
        memset(lengths, -1, sizeof lengths);
        CHECK_OK(call(b, &c));
        check_lengths(b, lengths);
        close_example(b, &c);
    }
}

TEST(page_locked_on_cuda)
{
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        const tgl_driver_table *cu;
        tgl_context_guard guard;
        REQUIRE(tgl_driver(&cu) == TGL_OK);
        REQUIRE(tgl_context_enter(b->device.device_id, NULL, &guard) == TGL_OK);
        void *pinned;
        CHECK_INT(cu->MemHostAlloc(&pinned, 256, 0), 0);
        example c;
        open_example(b, &c, (int32_t *)pinned + 3);             /* not its beginning */
        CHECK_OK(call(b, &c));
        check_lengths(b, (int32_t *)pinned + 3);
        close_example(b, &c);
        CHECK_INT(cu->MemFreeHost(pinned), 0);
        tgl_context_leave(&guard);
    }
}

TEST(other_memory_on_cuda)
{
    static const char message[] = "num_tokens_per_expert_host: memory is not page-locked, want page-locked "
                                  "(cuMemHostAlloc, cudaHostRegister, pin_memory)";
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        int32_t pageable[NUM_EXPERTS] = { 5, 5, 5, 5 };
        tensor on_device;
        place(b, &on_device, TGL_I32, 1, SHAPE(NUM_EXPERTS), pageable);
        example c;
        open_example(b, &c, pageable);
        CHECK_FAILS(call(b, &c), TGL_ERR_ARGUMENT, message);
        c.host.t.data = on_device.t.data;                       /* said to be the CPU's */
        CHECK_FAILS(call(b, &c), TGL_ERR_ARGUMENT, message);
        c.host.t.device = b->device;
        char wanted[128];
        snprintf(wanted, sizeof wanted, "num_tokens_per_expert_host: is i32 [4] strides [1] on %s, want memory "
                 "of the host", b->name);
        CHECK_FAILS(call(b, &c), TGL_ERR_ARGUMENT, wanted);

        /* nothing was enqueued */
        int32_t seen[NUM_EXPERTS];
        CHECK_OK(backend_download(b, seen, c.t[4].t.data, sizeof seen));
        for (int i = 0; i < NUM_EXPERTS; i++) CHECK_INT(seen[i], 77);
        for (int i = 0; i < NUM_EXPERTS; i++) CHECK_INT(pageable[i], 5);
        close_example(b, &c);
        discard(b, &on_device);
    }
}
