/* SPDX-License-Identifier: MIT
 * replaced_source.c - with TEGULA_TEST_SOURCE=FOLDER, kernels are compiled from other texts than the embedded ones.
 *
 * If FOLDER has a file with the path of a kernel or header below src/ (moe/histogram.cu, moe/common/map.cuh), its text is
 * compiled instead. mutate.py and planted.py use this to try a fault without building anything. The linker puts this function in
 * the place of tgl_jit_source() (--wrap). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/jit.h"

/* The text of the file in the folder, which the caller frees, or NULL if there is none. */
static char *replacement(const char *folder, const char *name, const char *suffix)
{
    const bool is_device = !strncmp(name, "device/", 7); /* how kernels include src/cuda/device */
    char path[4096];
    snprintf(path, sizeof path, "%s/%s%s%s", folder, is_device ? "cuda/" : "", name, suffix);
    FILE *f = fopen(path, "rb");
    if (!f) return NULL;
    char *text = calloc(1, 1 << 20);
    if (!text || fread(text, 1, (1 << 20) - 1, f) == 0) abort();
    fclose(f);
    return text;
}

tgl_status __wrap_tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS],
                                 const char *architecture, unsigned how, tgl_image *out);
tgl_status __real_tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS],
                                 const char *architecture, unsigned how, tgl_image *out);
tgl_status __wrap_tgl_jit_source(const tgl_source *source, const tgl_macro macros[TGL_MAX_MACROS],
                                 const char *architecture, unsigned how, tgl_image *out)
{
    const char *folder = getenv("TEGULA_TEST_SOURCE");
    if (!folder) return __real_tgl_jit_source(source, macros, architecture, how, out);
    tgl_source changed = *source;
    char *text = replacement(folder, source->name, ".cu"), *header_texts[64] = { 0 };
    const char *used[64];
    if (source->num_headers > 64) abort();
    if (text) changed.text = text;
    for (int i = 0; i < source->num_headers; i++) {
        header_texts[i] = replacement(folder, source->header_names[i], "");
        used[i] = header_texts[i] ? header_texts[i] : source->header_texts[i];
    }
    changed.header_texts = used;
    const tgl_status status = __real_tgl_jit_source(&changed, macros, architecture, how, out);
    free(text);
    for (int i = 0; i < source->num_headers; i++) free(header_texts[i]);
    return status;
}
