/* SPDX-License-Identifier: MIT */
#include "scrub.h"

#include <string.h>

#include "cuda/driver.h"
#include "cuda/jit.h"

const char *const scrub_names[SCRUB_PATTERNS] = { "ones", "zeros", "0x7f7f7f7f", "indices", "random" };

static struct {
    bool is_on;
    scrub_pattern pattern;
} scrubbing;

void scrub_set(bool on) { scrubbing.is_on = on; }
bool scrub_is_on(void) { return scrubbing.is_on; }
void scrub_choose(scrub_pattern pattern) { scrubbing.pattern = pattern; }

/* ---- memory of tensors ---- */

static uint32_t hash(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

static uint32_t word(scrub_pattern pattern, uint32_t i)
{
    switch (pattern) {
    case SCRUB_ONES: return UINT32_MAX;
    case SCRUB_ZEROS: return 0;
    case SCRUB_LARGE: return 0x7f7f7f7f;
    case SCRUB_INDICES: return i % 2 && hash(i) >> 31 ? 0 : hash(i) % 64;
    default: return hash(i);
    }
}

unsigned char scrub_byte(scrub_pattern pattern, int64_t b)
{
    return (unsigned char)(word(pattern, (uint32_t)(b / 4)) >> 8 * (b % 4));
}

/* ---- shared memory ---- */

/* A block takes all shared memory that an SM gives a block, so that every SM gets one. Random words differ
 * between launches. The stores are volatile, since nobody reads what they write. */
static const char kernel_text[] =
    "#include \"device/ptx.cuh\"\n"
    "DEV u32 hash(u32 x)\n"
    "{\n"
    "    x = (x ^ x >> 16) * 0x7feb352du;\n"
    "    x = (x ^ x >> 15) * 0x846ca68bu;\n"
    "    return x ^ x >> 16;\n"
    "}\n"
    "extern \"C\" __global__ void __launch_bounds__(1024) scrub(u32 pattern, u32 seed, u32 num_words)\n"
    "{\n"
    "    SHARED_DYNAMIC(memory, 16);\n"
    "    for (u32 i = threadIdx.x; i < num_words; i += blockDim.x) {\n"
    "        const u32 h = hash(i + hash(seed + blockIdx.x));\n"
    "        const u32 index = i % 2 && h >> 31 ? 0 : h % 64;\n"
    "        const u32 word = pattern == 0   ? 0xffffffffu\n"
    "                         : pattern == 1 ? 0\n"
    "                         : pattern == 2 ? 0x7f7f7f7fu\n"
    "                         : pattern == 3 ? index\n"
    "                                        : h;\n"
    "        shared_store_u32(shared_address(memory) + 4 * i, word);\n"
    "    }\n"
    "}\n";

/* With the headers of the library's own kernels. */
static tgl_status compile(const char *architecture, tgl_image *image)
{
    enum { MAX_HEADERS = 64 };
    const char *names[MAX_HEADERS], *texts[MAX_HEADERS];
    int n = 0;
    for (int i = 0; i < tgl_num_embedded && n < MAX_HEADERS; i++)
        if (!strncmp(tgl_embedded[i].name, "device/", 7) || !strncmp(tgl_embedded[i].name, "numerics/", 9)) {
            names[n] = tgl_embedded[i].name;
            texts[n++] = (const char *)tgl_embedded[i].text;
        }
    const tgl_source source = { "cases/scrub", kernel_text, n, names, texts };
    return tgl_jit_source(&source, (tgl_macro[TGL_MAX_MACROS]){ { 0 } }, architecture, TGL_JIT_MAY_COMPILE, image);
}

#define CU(name, ...) tgl_driver_check(cu->name(__VA_ARGS__), "scrub: cu" #name)

enum { MAX_DEVICES = 64 };
static tgl_cu_kernel loaded[MAX_DEVICES];

static tgl_status load(const tgl_driver_table *cu, const tgl_device *d, tgl_cu_kernel *kernel)
{
    tgl_image image;
    tgl_cu_library library;
    TGL_TRY(compile(d->architecture, &image));
    const tgl_status status = CU(LibraryLoadData, &library, image.image, NULL, NULL, 0, NULL, NULL, 0);
    tgl_image_free(&image);
    TGL_TRY(status);
    TGL_TRY(CU(LibraryGetKernel, kernel, library, "scrub"));
    return CU(KernelSetAttribute, TGL_CU_KERNEL_MAX_DYNAMIC_SHARED_BYTES, (int)d->max_smem_per_block_optin, *kernel,
              d->handle);
}

static tgl_status enqueue(const tgl_driver_table *cu, int device, tgl_stream stream, scrub_pattern pattern)
{
    static uint32_t seed;
    const tgl_device *d;
    TGL_TRY(tgl_device_get(device, &d));
    if (device >= MAX_DEVICES)
        return tgl_fail(TGL_ERR_DEVICE, "scrub: device is %d, want 0..%d", device, MAX_DEVICES - 1);
    if (!loaded[device]) TGL_TRY(load(cu, d, &loaded[device]));
    uint32_t number = (uint32_t)pattern, num_words = (uint32_t)(d->max_smem_per_block_optin / 4);
    seed++;
    void *args[] = { &number, &seed, &num_words };
    /* twice the SMs: if two blocks follow each other on one SM, the others still get theirs */
    const tgl_cu_launch_config config = { 2 * (uint32_t)d->num_sms, 1, 1, 1024, 1, 1, 4 * num_words, stream, NULL, 0 };
    return CU(LaunchKernelEx, &config, (tgl_cu_function)loaded[device], args, NULL);
}

tgl_status scrub_launch(int device, tgl_stream stream, scrub_pattern pattern)
{
    const tgl_driver_table *cu;
    tgl_context_guard guard;
    int capture = TGL_CU_CAPTURE_NONE;
    TGL_TRY(tgl_driver(&cu));
    TGL_TRY(tgl_context_enter(device, stream, &guard));
    const bool is_captured = cu->StreamIsCapturing(stream, &capture) || capture != TGL_CU_CAPTURE_NONE;
    const tgl_status status = is_captured ? TGL_OK : enqueue(cu, device, stream, pattern);
    tgl_context_leave(&guard);
    return status;
}

tgl_status scrub_shared_memory(int device, tgl_stream stream)
{
    const tgl_device *d;
    if (!scrubbing.is_on) return TGL_OK;
    TGL_TRY(tgl_device_get(device, &d));
    return d->is_emulated ? TGL_OK : scrub_launch(device, stream, scrubbing.pattern);
}
