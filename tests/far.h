/* SPDX-License-Identifier: MIT
 * Memory for rows that are far apart: on the CPU and the emulated device a range that is only reserved, whose pages exist
 * once they are written. */
#ifndef TEGULA_TESTS_FAR_H
#define TEGULA_TESTS_FAR_H

#include <sys/mman.h>

#include "replay.h"

/* Makes a range known to the emulated device; bytes 0: forgets it. */
static inline void far_adopt(const backend *b, void *p, size_t bytes)
{
    const tgl_driver_table *cu;
    emuAdopt_function f;
    if (!b->is_emulated) return;
    REQUIRE(CHECK_OK(tgl_driver(&cu)));
    *(void **)&f = dlsym(cu->handle, "emuAdopt");
    CHECK(f(p, bytes));
}

/* NULL, and the test skips, if a GPU has too little memory. */
static inline void *far_reserve(const backend *b, size_t bytes)
{
    void *p = NULL;
    if (backend_is_cpu(b) || b->is_emulated) {
        p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (!CHECK(p != MAP_FAILED)) return NULL;
        far_adopt(b, p, bytes);
    } else if (backend_alloc(b, bytes, &p) != TGL_OK) {
        test_skip("%s: %s", b->name, tgl_last_error());
    }
    return p;
}

static inline void far_release(const backend *b, void *p, size_t bytes)
{
    CHECK_OK(backend_wait(b, b->stream));
    if (!backend_is_cpu(b) && !b->is_emulated) {
        backend_free(b, p);
        return;
    }
    far_adopt(b, p, 0);
    munmap(p, bytes);
}

#endif
