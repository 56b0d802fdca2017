/* SPDX-License-Identifier: MIT
 * settings.h - what calls can change, read through the functions below and those of core.h. Variables of the
 * environment (environment.h) give the first values. */
#ifndef TEGULA_SETTINGS_H
#define TEGULA_SETTINGS_H

#include "core/environment.h"
#include "tegula/core.h"

enum { TGL_MAX_DEVICES = 64 };

/* How many of the device's SMs persistent kernels may use. */
int tgl_settings_num_sms(int device, int device_num_sms);

/* Copies the cache folder to `path`, "" for none; true if it was set, false for the default. */
bool tgl_settings_cache_dir(char path[TGL_PATH_BYTES]);

/* For `tegula info`: row i of the table of settings, false past its end. `value` is the value in use. */
typedef struct {
    const char *variable, *meaning;
    char value[TGL_PATH_BYTES];
    bool from_environment;
} tgl_setting_row;
bool tgl_settings_row(int i, tgl_setting_row *row);

#endif
