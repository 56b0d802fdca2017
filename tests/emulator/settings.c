/* SPDX-License-Identifier: MIT */
#include "settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill.h"

const char *emu_text_setting(const char *name, const char *otherwise)
{
    const char *v = getenv(name);
    return v && *v ? v : otherwise;
}

static int number(const char *name, int otherwise, int min, int max)
{
    const char *text = emu_text_setting(name, NULL);
    if (!text) return otherwise;
    char *end;
    const long v = strtol(text, &end, 0);
    if (*end || v < min || v > max) {
        fprintf(stderr, "emulator: %s is \"%s\", want a number %d to %d\n", name, text, min, max);
        abort(); /* a mistyped seed must not pass as a test run */
    }
    return (int)v;
}

static int fill_setting(void)
{
    static const char *const names[EMU_NUM_FILLS] = {
        [EMU_ONES] = "ones", [EMU_ZEROS] = "zeros", [EMU_7F] = "7f", [EMU_INDICES] = "indices", [EMU_RANDOM] = "random",
    };
    const char *text = emu_text_setting("EMU_FILL", NULL);
    if (!text) return EMU_FILL_CHANGES;
    for (int i = 0; i < EMU_NUM_FILLS; i++)
        if (!strcmp(text, names[i])) return i;
    fprintf(stderr, "emulator: EMU_FILL is \"%s\", want ones, zeros, 7f, indices or random\n", text);
    abort();
}

emu_settings emu_read_settings(void)
{
    emu_settings s = { 0 };
    s.seed = strtoull(emu_text_setting("EMU_SEED", "0"), NULL, 0);
    s.fill = fill_setting();
    s.starve = (uint32_t)strtoul(emu_text_setting("EMU_STARVE", "0"), NULL, 0);
    s.devices = number("EMU_DEVICES", 1, 0, EMU_MAX_DEVICES);
    s.sms = number("EMU_SMS", 4, 1, 1024);
    s.cluster = number("EMU_CLUSTER", 16, 1, 16);
    s.lazy = number("EMU_LAZY", 0, 0, 1);
    s.driver = number("EMU_DRIVER", 13000, 1000, 99000);
    const char *arch = emu_text_setting("EMU_ARCH", "90");
    for (int i = 0; i < EMU_MAX_DEVICES; i++) {
        char *end;
        s.arch[i] = (int)strtol(arch, &end, 10);
        if (*end == ',') arch = end + 1;
    }
    return s;
}

/* ---- errors ---- */
static const struct {
    int number;
    const char *name, *text;
} errors[] = {
    { 0, "CUDA_SUCCESS", "no error" },
    { 1, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { 2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" },
    { 3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { 4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down" },
    { 100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { 101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { 200, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid" },
    { 201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" },
    { 209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device" },
    { 218, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed" },
    { 222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain." },
    { 300, "CUDA_ERROR_INVALID_SOURCE", "device kernel image is invalid" },
    { 302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found" },
    { 304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS" },
    { 400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle" },
    { 401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state" },
    { 500, "CUDA_ERROR_NOT_FOUND", "named symbol not found" },
    { 600, "CUDA_ERROR_NOT_READY", "device not ready" },
    { 700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered" },
    { 701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch" },
    { 709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed" },
    { 719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure" },
    { 720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch" },
    { 800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted" },
    { 801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported" },
    { 803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination" },
    { 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing" },
    { 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture" },
    { 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture was not initiated in this stream" },
    { 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
      "operation would make the legacy stream depend on a capturing blocking stream" },
    { 908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
      "attempt to terminate a thread-local capture sequence from another thread" },
    { 912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "invalid cluster size" },
    { 999, "CUDA_ERROR_UNKNOWN", "unknown error" },
};
/* only names: the strings are nvrtc.c's */
static const struct {
    int number;
    const char *name;
} nvrtc_errors[] = {
    { 1, "NVRTC_OUT_OF_MEMORY" },
    { 5, "INVALID_OPTION" },
    { 6, "COMPILATION" },
    { 11, "INTERNAL_ERROR" },
};
enum { NUM_ERRORS = sizeof errors / sizeof *errors, NUM_NVRTC_ERRORS = sizeof nvrtc_errors / sizeof *nvrtc_errors };

int emu_error_number(const char *name)
{
    for (int i = 0; i < NUM_ERRORS; i++)
        if (!strcmp(errors[i].name + strlen("CUDA_"), name) || !strcmp(errors[i].name + strlen("CUDA_ERROR_"), name))
            return errors[i].number;
    for (int i = 0; i < NUM_NVRTC_ERRORS; i++)
        if (!strcmp(nvrtc_errors[i].name, name)) return nvrtc_errors[i].number;
    return -1;
}
const char *emu_error_name(int error)
{
    for (int i = 0; i < NUM_ERRORS; i++)
        if (errors[i].number == error) return errors[i].name;
    return NULL;
}
const char *emu_error_text(int error)
{
    for (int i = 0; i < NUM_ERRORS; i++)
        if (errors[i].number == error) return errors[i].text;
    return NULL;
}

/* ---- injected failures ---- */
enum { MAX_FAILURES = 16, MAX_ENTRIES = 160, NAME_BYTES = 64 };
static struct {
    char entry[NAME_BYTES];
    uint64_t nth, seen;
    int onwards, error;
} failures[MAX_FAILURES];
static struct {
    char entry[NAME_BYTES];
    uint64_t calls;
} counts[MAX_ENTRIES];
static int num_failures, num_counts;

static int likely(const char *entry)
{
    if (!strcmp(entry, "cuInit")) return 100;
    if (!strncmp(entry, "cuMem", 5) || !strcmp(entry, "cuLibraryLoadData")) return 2;
    if (!strncmp(entry, "cuLaunch", 8) || !strcmp(entry, "kernel")) return 719;
    if (!strcmp(entry, "cuGetProcAddress")) return 500;
    if (!strncmp(entry, "nvrtc", 5)) return !strcmp(entry, "nvrtcCompileProgram") ? 6 : 1;
    return 999;
}

const char *emu_fail_set(const char *list)
{
    num_failures = 0;
    while (list && *list) {
        if (num_failures == MAX_FAILURES) return list;
        char item[160];
        const size_t n = strcspn(list, ",");
        if (n == 0 || n >= sizeof item) return list;
        memcpy(item, list, n);
        item[n] = 0;
        char *error = strchr(item, '=');
        if (error) *error++ = 0;
        char *nth = strchr(item, ':');
        if (nth) *nth++ = 0;
        if (!*item || strlen(item) >= NAME_BYTES) return list;
        memset(&failures[num_failures], 0, sizeof *failures);
        strcpy(failures[num_failures].entry, item);
        failures[num_failures].nth = 1;
        if (nth) {
            char *end;
            failures[num_failures].nth = strtoull(nth, &end, 10);
            failures[num_failures].onwards = *end == '+';
            if (!failures[num_failures].nth || (*end && strcmp(end, "+"))) return list;
        }
        failures[num_failures].error = likely(item);
        if (error) {
            char *end;
            failures[num_failures].error = (int)strtol(error, &end, 10);
            if (*end || end == error) failures[num_failures].error = emu_error_number(error);
            if (failures[num_failures].error <= 0) return list;
        }
        num_failures++;
        list += n;
        if (*list == ',') list++;
    }
    return NULL;
}

static void without_suffix(const char *entry, char *out) /* cuMemAlloc_v2 -> cuMemAlloc */
{
    snprintf(out, NAME_BYTES, "%s", entry);
    const size_t n = strlen(out);
    if (n > 3 && out[n - 3] == '_' && out[n - 2] == 'v') out[n - 3] = 0;
}

int emu_fail(const char *entry)
{
    char name[NAME_BYTES];
    without_suffix(entry, name);
    int i = 0;
    while (i < num_counts && strcmp(counts[i].entry, name)) i++;
    if (i == num_counts && i < MAX_ENTRIES) {
        strcpy(counts[i].entry, name);
        counts[i].calls = 0;
        num_counts++;
    }
    if (i < num_counts) counts[i].calls++;
    int error = 0;
    for (int k = 0; k < num_failures; k++) {
        if (strcmp(failures[k].entry, name)) continue;
        failures[k].seen++;
        if (failures[k].onwards ? failures[k].seen >= failures[k].nth : failures[k].seen == failures[k].nth)
            error = failures[k].error;
    }
    return error;
}

uint64_t emu_fail_calls(const char *entry)
{
    for (int i = 0; i < num_counts; i++)
        if (!strcmp(counts[i].entry, entry)) return counts[i].calls;
    return 0;
}
void emu_calls_reset(void) { num_counts = 0; }
