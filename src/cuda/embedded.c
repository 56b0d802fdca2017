/* SPDX-License-Identifier: MIT
 * embedded.c - finds a kernel's text and its headers in the library and hands them to the compiler. */
#include <string.h>

#include "core/status.h"
#include "cuda/jit.h"

static const tgl_embedded_file *find_embedded(const char *name)
{
    for (int i = 0; i < tgl_num_embedded; i++)
        if (!strcmp(tgl_embedded[i].name, name)) return &tgl_embedded[i];
    return NULL;
}

static tgl_status build(const tgl_kernel *kernel, const char *architecture, unsigned how, tgl_image *out)
{
    enum { MAX_HEADERS = 64 };
    const char *names[MAX_HEADERS], *texts[MAX_HEADERS];
    *out = (tgl_image){ 0 };
    const tgl_embedded_file *file = find_embedded(kernel->name);
    if (!file) return tgl_fail(TGL_ERR_INTERNAL, "%s: no such kernel in this library", kernel->name);
    int n = 0;
    for (const int *h = file->headers; *h >= 0; h++, n++) {
        if (n == MAX_HEADERS)
            return tgl_fail(TGL_ERR_INTERNAL, "%s: includes more than %d headers", kernel->name, MAX_HEADERS);
        names[n] = tgl_embedded[*h].name;
        texts[n] = (const char *)tgl_embedded[*h].text;
    }
    const tgl_source source = { kernel->name, (const char *)file->text, n, names, texts };
    return tgl_jit_source(&source, kernel->macros, architecture, how, out);
}

tgl_status tgl_jit_image(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out)
{
    return build(kernel, architecture, may_compile ? TGL_JIT_MAY_COMPILE : 0, out);
}

tgl_status tgl_jit_rebuild(const tgl_kernel *kernel, const char *architecture, bool may_compile, tgl_image *out)
{
    return build(kernel, architecture, TGL_JIT_REBUILD | (may_compile ? TGL_JIT_MAY_COMPILE : 0), out);
}
