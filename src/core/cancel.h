/* SPDX-License-Identifier: MIT
 * cancel.h - pthread_cancel() must not end a thread while it holds a lock, or while others wait for what it makes:
 * nobody would ever finish it. Around whatever may compile, open a file or call the driver with a lock held. */
#ifndef TEGULA_CANCEL_H
#define TEGULA_CANCEL_H

#include <pthread.h>

/* From here on a cancellation waits; gives what tgl_cancel_restore() takes. */
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
