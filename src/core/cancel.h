/* SPDX-License-Identifier: MIT
 * cancel.h - pthread_cancel() must not end a thread that holds a lock or does work that others wait for.
 * Use these around anything that may compile, open a file or call the driver with a lock held. */
#ifndef TEGULA_CANCEL_H
#define TEGULA_CANCEL_H

#include <pthread.h>

/* Defers cancellation; returns the state for tgl_cancel_restore(). */
static inline int tgl_cancel_hold(void)
{
    int state = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    return state;
}

static inline void tgl_cancel_restore(int state)
{
    int held;
    pthread_setcancelstate(state, &held);
}

#endif
