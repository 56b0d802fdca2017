/* SPDX-License-Identifier: MIT
 * settings.h - every TEGULA_* variable: read here only, once, at the first use of any. In a setuid program
 * they are ignored. docs/environment.md describes them.
 *
 * settings, log and status use each other: a failure is a line of the log, whether a line is written is a setting, and a
 * bad setting is a line or a failure. Everything else of the library may use all three. */
#ifndef TEGULA_SETTINGS_H
#define TEGULA_SETTINGS_H

#include "tegula/core.h"

enum { TGL_PATH_BYTES = 4096, TGL_MAX_DEVICES = 64, TGL_MAX_THREADS = 1024 };

/* Paths are "" if not set. Strings live as long as the process. */
typedef struct {
    int log_level;              /* TEGULA_LOG */
    const char *libcuda;        /* TEGULA_LIBCUDA */
    const char *libnvrtc;       /* TEGULA_LIBNVRTC */
    const char *cache_readonly; /* TEGULA_CACHE_READONLY */
    const char *home, *xdg_cache_home;
    /* settings that calls can change are read through the functions below and those of core.h */
} tgl_settings;

const tgl_settings *tgl_settings_get(void);

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
