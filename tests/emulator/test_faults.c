/* SPDX-License-Identifier: MIT
 * test_faults.c - every planted fault of faults.cu must be noticed, in the way and words given here. Each
 * runs in a child process, as some end it; seeds are tried until it shows. SHOW=1 prints the reports. */
#include "host.h"

#include <sys/wait.h>
#include <unistd.h>

enum kind {
    REPORT,              /* the emulator's report, and a launch failure at the synchronisation */
    UBSAN,               /* the same, of UBSan's checks: not in a build with TSan */
    WRONG,               /* out[i] is not i */
    ASAN,                /* ASan's report: only in a build with it */
    MSAN,                /* MSan's report, with the kernel's line: the same */
    LAUNCH_ERROR,        /* the launch itself fails */
    HOST_TOUCHES_DEVICE, /* host code follows a device pointer: ASan */
    HOST_POINTER,        /* a kernel is given a host pointer */
    OTHER_DEVICE,        /* a kernel is given another device's pointer */
};
typedef struct {
    const char *entry;
    enum kind kind;
    const char *text;
    uint32_t grid, cluster, shared;
} planted;
static const planted faults[] = {
    { "global_overflow", ASAN, "heap-buffer-overflow", 1, 1, 0 },
    { "local_overflow", ASAN, "in stack of thread", 1, 1, 0 },
    { "shared_overflow", UBSAN, "index 256 is out of bounds", 1, 1, 0 },
    { "shared_pointer_overflow", ASAN, "use-after-poison", 1, 1, 0 },
    { "shared_address_overflow", REPORT, "4 bytes at shared address", 1, 1, 1024 },
    { "shared_misaligned", REPORT, "not aligned to 4 bytes", 1, 1, 1024 },
    { "too_much_shared", REPORT, "more than 48 KB", 1, 1, 0 },
    { "misaligned_vector", UBSAN, "misaligned address", 1, 1, 0 },
    { "misaligned_stream", REPORT, "not aligned to 16 bytes", 1, 1, 0 },
    { "undefined_shift", UBSAN, "shifted by -1", 1, 1, 0 },
    { "division_by_zero", UBSAN, "divided by 0", 1, 1, 0 },
    { "uninitialised_shared", WRONG, "", 1, 1, 0 },
    { "unwritten_branch", MSAN, "faults.cu:278:", 1, 1, 0 },
    { "unwritten_index", MSAN, "faults.cu:285:", 1, 1, 0 },
    { "unwritten_dynamic", MSAN, "faults.cu:291:", 1, 1, 1024 },
    { "unwritten_global", MSAN, "faults.cu:296:", 1, 1, 0 },
    { "unwritten_local", MSAN, "faults.cu:302:", 1, 1, 0 },
    { "unwritten_shuffled", MSAN, "faults.cu:309:", 1, 1, 0 },
    { "unwritten_copied", MSAN, "faults.cu:320:", 1, 1, 1024 },
    { "unwritten_converted", MSAN, "faults.cu:327:", 1, 1, 0 },
    { "table", HOST_TOUCHES_DEVICE, "use-after-poison", 1, 1, 0 },
    { "table", HOST_POINTER, "is not device memory", 1, 1, 0 },
    { "table", OTHER_DEVICE, "is memory of device 1, the launch is on device 0", 1, 1, 0 },
    { "missing_syncthreads", WRONG, "", 1, 1, 0 },
    { "missing_syncthreads_backwards", WRONG, "", 1, 1, 0 },
    { "missing_syncwarp", WRONG, "", 1, 1, 0 },
    { "missing_copy_wait", WRONG, "", 1, 1, 1024 },
    { "missing_mbarrier_wait", WRONG, "", 1, 1, 1024 },
    { "bulk_store_source_overwritten", WRONG, "", 1, 1, 1024 },
    { "bulk_store_not_awaited", REPORT, "without waiting for its 1 bulk stores", 1, 1, 1024 },
    { "divergent_barrier", REPORT, "in divergent code", 1, 1, 0 },
    { "barrier_not_reached", REPORT, "barrier_sync at faults.cu", 1, 1, 0 },
    { "barrier_left_half", REPORT, "128 of 256 threads have arrived at barrier 3", 1, 1, 0 },
    { "barrier_count", REPORT, "40 is not a multiple of 32", 1, 1, 0 },
    { "mbarrier_deadlock", REPORT, "mbar_wait at faults.cu", 1, 1, 0 },
    { "mbarrier_uninitialised", REPORT, "never initialised", 1, 1, 0 },
    { "mbarrier_without_fence", REPORT, "no mbar_init_fence since mbar_init", 1, 1, 1024 },
    { "mbarrier_too_many", REPORT, "more than 1 arrivals", 1, 1, 0 },
    { "spin_on_other_block", REPORT, "need a cooperative", 2, 1, 0 },
    { "spin_forever", REPORT, "poll for what nobody writes", 1, 1, 0 },
    { "cluster_deadlock", REPORT, "cluster barrier at faults.cu", 4, 4, 0 },
    { "cluster_block_gone", REPORT, "block 0 of the cluster has ended", 2, 2, 0 },
    { "store_async_no_cluster", REPORT, "the launch has no cluster", 1, 1, 0 },
    { "pdl_without_wait", REPORT, "not every thread calls pdl_wait", 1, 1, 0 },
    { "pdl_wait_of_some_threads", REPORT, "not every thread calls pdl_wait", 1, 1, 0 },
    { "pdl_early_load", ASAN, "before pdl_wait", 1, 1, 0 },
    { "pdl_early_store", ASAN, "before pdl_wait", 1, 1, 0 },
    { "pdl_early_copy", ASAN, "before pdl_wait", 1, 1, 1024 },
    { "cluster_work_after_arrival", WRONG, "", 1, 1, 0 },
    { "exited_lane", REPORT, "ended", 1, 1, 0 },
    { "shuffle_outside_mask", REPORT, "reads a lane that the mask 0000ffff does not name", 1, 1, 0 },
    { "mask_without_caller", REPORT, "does not name the calling lane 0", 1, 1, 0 },
    { "divergent_shuffle", REPORT, "warp diverged", 1, 1, 0 },
    { "trap", REPORT, "by thread 77 (77,0,0) of block (0,0,0) at faults.cu", 1, 1, 0 },
    { "too_many_threads", LAUNCH_ERROR, "the launch gives 701", 1, 1, 0 },
};

static char *cubin; /* compiled once, by the parent, which itself never calls cuInit */
static void prepare(void)
{
    if (cubin) return;
    char *log, *source = read_text("faults.cu");
    size_t bytes;
    setenv("EMU_DEVICES", "2", 1);
    load();
    if (compile_text(source, "faults.cu", "sm_90a", &cubin, &bytes, &log)) {
        fprintf(stderr, "%s\n", log);
        exit(1);
    }
    free(source);
    free(log);
}

static bool has(const char *symbol) { return dlsym(RTLD_DEFAULT, symbol) != NULL; }
static void child(const planted *f, uint64_t seed)
{
    void *library;
    start();
    emu.Seed(seed);
    CU(LibraryLoadData(&library, cubin, NULL, NULL, 0, NULL, NULL, 0));
    dptr out = device_copy(NULL, 1024), second = device_copy(NULL, 1024);
    uint32_t on_host[256];
    if (f->kind == MSAN) CU(MemAlloc(&second, 1024)); /* nobody writes it */
    if (f->kind == HOST_POINTER) second = (dptr)(uintptr_t)on_host;
    if (f->kind == OTHER_DEVICE) {
        use_device(1);
        second = device_copy(NULL, 1024);
        use_device(0);
    }
    void *args[] = { &out, &second };
    const int flags = strncmp(f->entry, "pdl_", 4) ? PLAIN : PDL;
    const int status = launch(kernel_of(library, f->entry), f->grid, 256, f->cluster, flags, f->shared, args);
    if (status) fprintf(stderr, "the launch gives %d\n", status);
    if (f->kind == HOST_TOUCHES_DEVICE) fprintf(stderr, "%u", *(volatile uint32_t *)(uintptr_t)out);
    const int fault = cu.CtxSynchronize();
    if (!status && !fault && f->kind == WRONG) {
        uint32_t *o = host_copy(out, 1024);
        for (uint32_t t = 0; t < 256; t++)
            if (o[t] != t) {
                fprintf(stderr, "wrong result: out[%u] = 0x%x\n", t, o[t]);
                break;
            }
    }
    const int want = f->kind == HOST_POINTER || f->kind == OTHER_DEVICE ? 700
                     : f->kind == REPORT || f->kind == UBSAN            ? 719
                                                                        : 0;
    if (fault != want) fprintf(stderr, "the synchronisation gives %d, want %d\n", fault, want);
    _exit(fault != want);
}
/* text: what the child wrote to stderr */
static bool noticed(const planted *f, uint64_t seed, char *text, size_t size)
{
    int p[2];
    if (pipe(p)) abort();
    fflush(stdout);
    const pid_t pid = fork();
    if (!pid) {
        dup2(p[1], 2);
        close(p[0]);
        child(f, seed);
    }
    close(p[1]);
    size_t have = 0;
    for (ssize_t k; have < size - 1 && (k = read(p[0], text + have, size - 1 - have)) > 0;) have += (size_t)k;
    text[have] = 0;
    close(p[0]);
    int status;
    waitpid(pid, &status, 0);
    const bool tsan = has("__tsan_create_fiber");
    if (tsan && f->kind == WRONG && strstr(text, "ThreadSanitizer: data race")) return true;
    if (has("__msan_init") && (f->kind == WRONG || !strcmp(f->entry, "mbarrier_uninitialised")) &&
        strstr(text, "MemorySanitizer: use-of-uninitialized-value"))
        return true;
    /* or ends with the sanitizer's status */
    const bool dies = tsan || f->kind == MSAN || f->kind == ASAN || f->kind == HOST_TOUCHES_DEVICE;
    return strstr(text, f->kind == WRONG ? "wrong result" : f->text) &&
           (dies || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

TEST(planted_faults)
{
    prepare();
    if (!emu.Seed) SKIP("only for the emulated device");
    const bool clang = strstr(setting("EMU_CXX", TEGULA_EMULATED_CXX), "clang") != NULL,
               asan = has("__asan_poison_memory_region"), tsan = has("__tsan_create_fiber"), msan = has("__msan_init");
    int count = 0, left_out = 0;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        const planted *f = &faults[i];
        static char text[16384];
        if (((f->kind == ASAN || f->kind == HOST_TOUCHES_DEVICE) && !asan) || (f->kind == MSAN && !msan) ||
            (f->kind == UBSAN && (tsan || msan))) {
            left_out++;
            continue;
        }
        if (clang && !strcmp(f->entry, "misaligned_vector")) { /* clang does not check a copied struct */
            left_out++;
            continue;
        }
        bool seen = false;
        for (uint64_t seed = 0; seed < 6 && !seen; seed++) seen = noticed(f, seed, text, sizeof text);
        CHECK_THAT(seen, "%s is not noticed; the last child said \"%s\"", f->entry, text);
        if (getenv("SHOW")) printf("---- %s\n%.1500s", f->entry, text);
        count++;
    }
    printf("  %d faults, %d more need another compiler or sanitizer\n", count, left_out);
}

/* What must not compile, with the reason in the log. */
TEST(refused_at_compile_time)
{
    prepare();
    if (!emu.Seed) SKIP("only for the emulated device");
    static const struct {
        const char *source, *log;
    } refused[] = {
        { "extern \"C\" __global__ void k(int *p) { __shared__ int a[4]; a[0] = 1; *p = a[0]; }", "SHARED_DYNAMIC" },
        { "extern \"C\" __global__ void k(int *p) { *p = __popc(__activemask()); }", "name the lanes" },
        { "extern \"C\" __global__ void k(int *p) { *p = nonsense; }", "nonsense" },
        { "#include <cuda_fp8.h>\n", "cuda_fp8.h" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        char *code, *log;
        size_t bytes;
        CHECK_INT(compile_text(refused[i].source, "refused.cu", "sm_90a", &code, &bytes, &log), 6);
        CHECK_THAT(strstr(log, refused[i].log) != NULL, "the log does not say %s: %s", refused[i].log, log);
        free(code);
        free(log);
    }
}
