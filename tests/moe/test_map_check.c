/* SPDX-License-Identifier: MIT
 * The host memory that a mapping's lengths are written to: on CUDA it must be page-locked, and other memory
 * is refused before anything is enqueued. */
#include "mapping.h"

enum { NUM_EXPERTS = 4 };

/* A mapping of two tokens on a device; the lengths go to `lengths`. */
typedef struct {
    tensor topk_idx, t[NUM_ARRAYS], host;
    mapped m;
    tgl_moe_mapping mapping;
} example;

static void open_example(const backend *b, example *c, void *lengths)
{
    static const int64_t topk_idx[] = { 3, 0, -1, 3 };
    c->m = (mapped){ .num_tokens = 2, .num_topk = 2, .num_experts = NUM_EXPERTS, .num_positions = 12 };
    place(b, &c->topk_idx, TGL_I64, 2, SHAPE(2, 2), topk_idx);
    c->mapping = open_mapping(b, &c->m, c->t);
    c->mapping.num_tokens_per_expert_host = make(&c->host, lengths, cpu, TGL_I32, 1, SHAPE(NUM_EXPERTS));
}

static tgl_status call(const backend *b, const example *c)
{
    return tgl_moe_get_fused_mapping(&c->topk_idx.t, &c->mapping, 2, NULL, 0, b->stream);
}

static void close_example(const backend *b, example *c)
{
    discard(b, &c->topk_idx);
    close_mapping(b, &c->m, c->t);
    free_mapped(&c->m);
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
        for (int i = 0; i < 2; i++) {
            if (i) c.host.t.device.device_type = (DLDeviceType)TGL_DL_CUDA_HOST;
            memset(lengths, -1, sizeof lengths);
            CHECK_OK(call(b, &c));
            check_lengths(b, lengths);
        }
        close_example(b, &c);
    }
}

TEST(page_locked_on_cuda)
{
    FOR_BACKENDS(b) {
        if (backend_is_cpu(b)) continue;
        void *pinned;
        REQUIRE(CHECK_OK(backend_host_alloc(b, 256, &pinned)));
        example c;
        open_example(b, &c, (int32_t *)pinned + 3); /* not the start of the allocation */
        CHECK_OK(call(b, &c));
        check_lengths(b, (int32_t *)pinned + 3);
        close_example(b, &c);
        backend_host_free(b, pinned);
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
        c.host.t.data = on_device.t.data; /* device memory declared as the CPU's */
        CHECK_FAILS(call(b, &c), TGL_ERR_ARGUMENT, message);
        c.host.t.device = b->device;
        char wanted[128];
        snprintf(wanted, sizeof wanted, "num_tokens_per_expert_host: is i32 [4] strides [1] on %s, want host memory",
                 b->name);
        CHECK_FAILS(call(b, &c), TGL_ERR_ARGUMENT, wanted);

        /* nothing was enqueued */
        uint32_t seen[NUM_EXPERTS];
        CHECK_OK(backend_download(b, seen, c.t[EXPERT_START].t.data, sizeof seen));
        for (int i = 0; i < NUM_EXPERTS; i++) CHECK(seen[i] == 0xa5a5a5a5 && pageable[i] == 5);
        close_example(b, &c);
        discard(b, &on_device);
    }
}
