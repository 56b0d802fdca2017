/* SPDX-License-Identifier: MIT
 * settings.h - every TEGULA_* variable, read here and nowhere else, once, at the first use of any.
 * In a program that runs with more rights than its caller none counts as set. docs/environment.md is its
 * manual. */
#ifndef TEGULA_SETTINGS_H
#define TEGULA_SETTINGS_H

#include "tegula/core.h"

enum {
    TGL_PATH_BYTES = 4096,
    TGL_MAX_DEVICES = 64,
    TGL_MAX_THREADS = 1024
};

/* What was read; folders and library files are "" where they are not named. Strings live as long as
 * the process. */
typedef struct {
    int log_level;              /* TEGULA_LOG */
    const char *libcuda;        /* TEGULA_LIBCUDA */
    const char *libnvrtc;       /* TEGULA_LIBNVRTC */
    const char *cache_readonly; /* TEGULA_CACHE_READONLY */
    const char *home, *xdg_cache_home;
    /* the rest can be set by calls too, so it is read through the functions below and those of core.h */
} tgl_settings;

const tgl_settings *tgl_settings_get(void);

/* Number of SMs that persistent grids of `device` may use, given what the device has. */
int tgl_settings_num_sms(int device, int device_num_sms);

/* The cache folder wanted: what was set (true), or the default (false), or "" for none. Copies into `path`. */
bool tgl_settings_cache_dir(char path[TGL_PATH_BYTES]);

/* For `tegula info`: row i of the table of settings, false past its end. `value` is what is in
 * force, as text. */
typedef struct {
    const char *variable, *meaning;
    char value[TGL_PATH_BYTES];
    bool from_environment;
} tgl_setting_row;
bool tgl_settings_row(int i, tgl_setting_row *row);

#endif
