/* SPDX-License-Identifier: MIT
 * demo.h - what the parts of `tegula demo` share. */
#ifndef TEGULA_DEMO_H
#define TEGULA_DEMO_H

#include "timer.h"

/* A call, and the bytes that it has to move, as `tegula bench` counts them. */
typedef struct {
    const char *name, *does;
    double bytes;
    timer_call call;
    void *context;
} demo_stage;

/* Prints a table of times without caches, beside that of a copy. */
tgl_status demo_time(const backend *on, const demo_stage *stages, int count);

/* A layer's way through the streams of its residual: demo_streams.c. */
tgl_status demo_streams(const backend *on);

#endif
