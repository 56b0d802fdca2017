/* SPDX-License-Identifier: MIT
 * on_device.h - for blocks that need a device: the driver, and what the emulated one can tell and do. */
#ifndef TEGULA_TEST_CUDA_ON_DEVICE_H
#define TEGULA_TEST_CUDA_ON_DEVICE_H

#include <dlfcn.h>

#include "cuda/driver.h"
#include "emulator/control.h"
#include "support.h"

static const tgl_driver_table *cu;
#define CU(call) CHECK_OK(tgl_driver_check(cu->call, "cu" #call))

static inline bool has_device(void)
{
    const char *where = getenv("TEGULA_TEST_DEVICE");
    return where && !strcmp(where, "cuda");
}
static inline bool has_emulator(void)
{
    const char *file = getenv("TEGULA_LIBCUDA");
    return has_device() && file && strstr(file, "emulated");
}
#define NEED_DEVICE()                                                           \
    do {                                                                        \
        if (!has_device()) SKIP("needs a device, this is the run without one"); \
    } while (0)
#define NEED_EMULATOR()                                         \
    do {                                                        \
        if (!has_emulator()) SKIP("needs the emulated device"); \
    } while (0)
#define LOAD_DRIVER() REQUIRE(tgl_driver(&cu) == TGL_OK)

/* Control of an emulated library (emulator/control.h), which `variable` names. */
typedef struct {
    emuFail_function fail;
    emuCalls_function calls;
    emuResetCalls_function reset_calls; /* this and the next: of the driver alone */
    emuLive_function live;
} control;

static inline control control_of(const char *variable)
{
    control c;
    void *library = dlopen(getenv(variable), RTLD_NOW | RTLD_LOCAL);
    *(void **)&c.fail = dlsym(library, "emuFail");
    *(void **)&c.calls = dlsym(library, "emuCalls");
    *(void **)&c.reset_calls = dlsym(library, "emuResetCalls");
    *(void **)&c.live = dlsym(library, "emuLive");
    return c;
}

static inline uint64_t calls(const char *entry) { return control_of("TEGULA_LIBCUDA").calls(entry); }

static inline void inject(const char *list) /* "": nothing any more */
{
    const char *wrong = control_of("TEGULA_LIBCUDA").fail(list);
    CHECK_TEXT(wrong ? wrong : "", "");
}

static inline emu_live_objects live(void)
{
    emu_live_objects o;
    control_of("TEGULA_LIBCUDA").live(&o);
    return o;
}

static inline tgl_cu_context current(void)
{
    tgl_cu_context context = NULL;
    CU(CtxGetCurrent(&context));
    return context;
}

static inline tgl_stream make_stream(unsigned flags)
{
    tgl_stream stream = NULL;
    CU(StreamCreate(&stream, flags));
    return stream;
}

static inline tgl_cu_graph end_capture(tgl_stream stream)
{
    tgl_cu_graph graph = NULL;
    CU(StreamEndCapture(stream, &graph));
    return graph;
}

#endif
