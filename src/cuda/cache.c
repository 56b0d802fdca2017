/* SPDX-License-Identifier: MIT
 * cache.c - compiled kernels on disk.
 *
 * Cached code runs on the GPU, so a folder is used only if nobody but this user and root can write to it.
 * The folder is opened without following a link, and the open descriptor is checked (the name may mean
 * something else a moment later); files are opened relative to it and checked the same way. There are no
 * locks: a file appears by rename, whole or not at all, and the checksum detects what a crash, a full disk
 * or a bad disk left. Reading never removes anything. */
#include "cuda/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "cuda/sha256.h"

enum {
    MAX_IMAGE_BYTES = 1 << 28,
    OLD_TEMPORARY_SECONDS = 3600, /* its writer is gone */
    TOUCH_SECONDS = 24 * 3600     /* a hit updates the file's time at most once a day */
};

typedef struct {
    uint8_t magic[8];
    uint8_t key[32];
    uint8_t length[8];    /* of the image, little-endian */
    uint8_t checksum[32]; /* SHA-256 of key, length and image */
} header;
_Static_assert(sizeof(header) == 80, "no padding: it is written as it is");
static const uint8_t magic[8] = { 'T', 'e', 'g', 'u', 'l', 'a', 0, 1 };

static const char suffix[] = ".tgl", temporary_prefix[] = ".new-";

void tgl_cache_name(const tgl_cache_key *key, char name[TGL_CACHE_NAME_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 32; i++) {
        name[2 * i] = digits[key->bytes[i] >> 4];
        name[2 * i + 1] = digits[key->bytes[i] & 15];
    }
    strcpy(name + 64, suffix);
}

static bool is_name(const char *name)
{
    return strlen(name) == TGL_CACHE_NAME_BYTES - 1 && strspn(name, "0123456789abcdef") == 64 &&
           !strcmp(name + 64, suffix);
}

static void checksum(const header *h, const void *image, size_t bytes, uint8_t digest[32])
{
    tgl_sha256 s;
    tgl_sha256_begin(&s);
    tgl_sha256_add(&s, h->key, sizeof h->key);
    tgl_sha256_add(&s, h->length, sizeof h->length);
    tgl_sha256_add(&s, image, bytes);
    tgl_sha256_end(&s, digest);
}

/* ---- folders ---- */

static bool is_ours(const struct stat *s)
{
    return (s->st_uid == geteuid() || s->st_uid == 0) && !(s->st_mode & (S_IWGRP | S_IWOTH));
}

/* "a/b/", "a/b/." -> "a/b": open() follows a link with a slash behind it in spite of O_NOFOLLOW. */
static void strip(char *path)
{
    for (size_t n = strlen(path); n > 1; n = strlen(path)) {
        if (path[n - 1] == '/') path[n - 1] = 0;
        else if (path[n - 1] == '.' && path[n - 2] == '/') path[n - 1] = 0;
        else return;
    }
}

/* Creates missing folders, for this user only. 0, or the errno of the last one. */
static int make_folders(const char *wanted)
{
    char path[TGL_PATH_BYTES];
    snprintf(path, sizeof path, "%s", wanted);
    strip(path);
    for (char *s = strchr(path + 1, '/'); s; s = strchr(s + 1, '/')) {
        *s = 0;
        mkdir(path, 0700);
        *s = '/';
    }
    return mkdir(path, 0700) ? errno : 0;
}

/* A descriptor, or -1 with the reason; `missing`: the folder does not exist. */
static int open_folder(const char *wanted, char reason[256], bool *missing)
{
    char path[TGL_PATH_BYTES];
    *missing = false;
    if (snprintf(path, sizeof path, "%s", wanted) >= (int)sizeof path) {
        snprintf(reason, 256, "its path is too long");
        return -1;
    }
    strip(path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    *missing = fd < 0 && errno == ENOENT;
    struct stat s;
    if (fd < 0) {
        const int error = errno;
        const bool is_link = !lstat(path, &s) && S_ISLNK(s.st_mode);
        snprintf(reason, 256, is_link ? "it is a symbolic link" : "%s", strerror(error));
        return -1;
    }
    if (fstat(fd, &s)) snprintf(reason, 256, "%s", strerror(errno));
    else if (s.st_uid != geteuid() && s.st_uid != 0) snprintf(reason, 256, "it belongs to user %ld", (long)s.st_uid);
    else if (!is_ours(&s)) snprintf(reason, 256, "others may write to it (mode %03o)", (unsigned)(s.st_mode & 0777));
    else return fd;
    close(fd);
    return -1;
}

static void report_refusal(const char *path, const char *reason) /* once per folder */
{
    static atomic_uint reported[16];
    unsigned h = 2166136261u; /* FNV-1a */
    for (const char *s = path; *s; s++) h = (h ^ (unsigned char)*s) * 16777619u;
    for (int i = 0; i < 16; i++) {
        unsigned empty = 0;
        if (atomic_compare_exchange_strong(&reported[i], &empty, h | 1)) break;
        if (empty == (h | 1)) return;
    }
    tgl_log(TGL_LOG_INFO, "no disk cache in %s: %s", path, reason);
}

/* Would `path` be created in a folder that belongs to neither this user nor root? */
static bool is_in_anothers(const char *path, char reason[256])
{
    char folder[TGL_PATH_BYTES];
    struct stat s;
    snprintf(folder, sizeof folder, "%s", path);
    while (stat(folder, &s)) {
        char *slash = strrchr(folder, '/');
        if (!slash || slash == folder) return false;
        *slash = 0;
    }
    if (s.st_uid == geteuid() || s.st_uid == 0) return false;
    snprintf(reason, 256, "%.180s, where it would be created, belongs to user %ld", folder, (long)s.st_uid);
    return true;
}

/* The folder to use ("" for none), and why it could not be opened. */
typedef struct {
    char path[TGL_PATH_BYTES], reason[256];
    bool is_missing;
} place;

/* The writable folder; `make` creates it. -1 if there is none. */
static int open_cache(bool make, place *p)
{
    const bool is_named = tgl_settings_cache_dir(p->path);
    p->is_missing = false;
    if (!p->path[0]) {
        snprintf(p->reason, sizeof p->reason, "TEGULA_CACHE_DIR is empty, or neither it nor HOME is set");
        return -1;
    }
    const int fd = open_folder(p->path, p->reason, &p->is_missing);
    if (fd >= 0 || !p->is_missing) return fd;
    /* root may run with another user's HOME (sudo -E), who could not remove what root creates there */
    if (geteuid() == 0 && !is_named && is_in_anothers(p->path, p->reason)) {
        p->is_missing = false;
        return -1;
    }
    if (!make) return -1;
    const int error = make_folders(p->path);
    const int made = open_folder(p->path, p->reason, &p->is_missing);
    if (made < 0 && p->is_missing && error) snprintf(p->reason, sizeof p->reason, "%s", strerror(error));
    return made;
}

static int open_readonly(place *p)
{
    const char *path = tgl_environment_get()->cache_readonly;
    snprintf(p->path, sizeof p->path, "%s", path);
    return path[0] ? open_folder(path, p->reason, &p->is_missing) : -1;
}

const char *tgl_get_cache_dir(void)
{
    static _Thread_local place p;
    const int fd = open_cache(false, &p);
    if (fd >= 0) close(fd);
    else if (!p.is_missing) p.path[0] = 0; /* a missing folder is created with the first kernel */
    return p.path;
}

/* ---- files ---- */

static bool read_all(int fd, void *to, size_t bytes)
{
    for (char *p = to; bytes;) {
        const ssize_t n = read(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t bytes)
{
    for (const char *p = from; bytes;) {
        const ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        p += n, bytes -= (size_t)n;
    }
    return true;
}

static uint64_t get_length(const header *h)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | h->length[i];
    return n;
}

/* The image of an open file, if the file passes all checks. */
static bool read_file(int fd, const tgl_cache_key *key, void **image, size_t *bytes)
{
    struct stat s;
    header h;
    uint8_t digest[32];
    if (fstat(fd, &s) || !S_ISREG(s.st_mode) || !is_ours(&s)) return false;
    if (s.st_size <= (off_t)sizeof h || s.st_size > (off_t)sizeof h + MAX_IMAGE_BYTES) return false;
    const size_t n = (size_t)s.st_size - sizeof h;
    if (!read_all(fd, &h, sizeof h) || memcmp(h.magic, magic, sizeof magic) ||
        memcmp(h.key, key->bytes, sizeof h.key) || get_length(&h) != n)
        return false;
    void *p = malloc(n);
    if (!p) return false;
    if (read_all(fd, p, n)) {
        checksum(&h, p, n, digest);
        if (!memcmp(digest, h.checksum, sizeof digest)) {
            *image = p;
            *bytes = n;
            return true;
        }
    }
    free(p);
    return false;
}

static void mark_used(int fd)
{
    struct stat s;
    if (!fstat(fd, &s) && time(NULL) - s.st_mtime > TOUCH_SECONDS) futimens(fd, NULL);
}

static bool get_from(int folder, const tgl_cache_key *key, bool mark, void **image, size_t *bytes)
{
    if (folder < 0) return false;
    char name[TGL_CACHE_NAME_BYTES];
    tgl_cache_name(key, name);
    /* O_NONBLOCK: do not block on a FIFO */
    const int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool found = false;
    if (fd >= 0) {
        found = read_file(fd, key, image, bytes);
        if (found && mark) mark_used(fd);
        if (!found) tgl_log(TGL_LOG_INFO, "cache: %s is damaged or not ours, and is ignored", name);
        close(fd);
    }
    close(folder);
    return found;
}

bool tgl_cache_get_readonly(const tgl_cache_key *key, void **image, size_t *bytes)
{
    place p;
    const int folder = open_readonly(&p);
    if (folder < 0 && p.path[0]) report_refusal(p.path, p.reason);
    return get_from(folder, key, false, image, bytes);
}

bool tgl_cache_get(const tgl_cache_key *key, void **image, size_t *bytes)
{
    if (tgl_cache_get_readonly(key, image, bytes)) return true;
    place p;
    const int folder = open_cache(false, &p);
    if (folder < 0 && p.path[0] && !p.is_missing) report_refusal(p.path, p.reason);
    return get_from(folder, key, true, image, bytes);
}

/* "/some/folder", or what is wrong with it, or with the file of `key` in it. Closes `folder`. */
static void explain(int folder, const place *p, const tgl_cache_key *key, char *text, size_t bytes)
{
    char name[TGL_CACHE_NAME_BYTES];
    struct stat s;
    if (folder < 0) {
        snprintf(text, bytes, p->is_missing ? "%.160s does not exist" : "%.160s is refused: %s", p->path, p->reason);
        return;
    }
    if (key) tgl_cache_name(key, name);
    const bool has_file = key && fstatat(folder, name, &s, AT_SYMLINK_NOFOLLOW) == 0;
    snprintf(text, bytes, has_file ? "%.200s, where its file %s is damaged or not ours" : "%.200s", p->path, name);
    close(folder);
}

void tgl_cache_explain(const tgl_cache_key *key, char text[TGL_CACHE_TEXT_BYTES])
{
    place p;
    size_t n = 0;
    int folder = open_readonly(&p);
    if (p.path[0]) {
        n = (size_t)snprintf(text, TGL_CACHE_TEXT_BYTES, "TEGULA_CACHE_READONLY: ");
        explain(folder, &p, key, text + n, TGL_CACHE_TEXT_BYTES / 2 - n);
        n = strlen(text);
        n += (size_t)snprintf(text + n, TGL_CACHE_TEXT_BYTES - n, "; ");
    }
    folder = open_cache(false, &p);
    if (p.path[0]) explain(folder, &p, key, text + n, TGL_CACHE_TEXT_BYTES - n);
    else snprintf(text + n, TGL_CACHE_TEXT_BYTES - n, n ? "there is no other" : "there is none");
}

/* Names differ between threads, processes and, if they share a network folder, machines. */
static int open_temporary(int folder, char *name, size_t name_bytes)
{
    static atomic_uint count;
    for (int attempt = 0; attempt < 16; attempt++) {
        struct timespec now;
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(name, name_bytes, "%s%lx-%lx%08lx-%x", temporary_prefix, (long)getpid(), (long)now.tv_sec,
                 (long)now.tv_nsec, atomic_fetch_add(&count, 1));
        const int fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd >= 0 || errno != EEXIST) return fd;
    }
    return -1;
}

/* Removes what killed writers left. A live writer that was stopped for an hour fails to rename its file
 * then; its kernel is compiled once more. */
static void remove_old_temporaries(int folder)
{
    const int listing = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = listing < 0 ? NULL : fdopendir(listing);
    if (!d) {
        if (listing >= 0) close(listing);
        return;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat s;
        if (!strncmp(e->d_name, temporary_prefix, strlen(temporary_prefix)) &&
            !fstatat(folder, e->d_name, &s, AT_SYMLINK_NOFOLLOW) && S_ISREG(s.st_mode) &&
            time(NULL) - s.st_mtime > OLD_TEMPORARY_SECONDS)
            unlinkat(folder, e->d_name, 0);
    }
    closedir(d);
}

static atomic_int num_failures;
static char first_failure[TGL_CACHE_TEXT_BYTES];
static _Atomic(const char *) known_failure;

__attribute__((format(printf, 1, 2))) static bool cannot_store(const char *format, ...)
{
    char text[TGL_CACHE_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tgl_log(TGL_LOG_INFO, "cache: cannot store %s", text);
    if (atomic_fetch_add(&num_failures, 1) == 0) {
        memcpy(first_failure, text, sizeof text);
        atomic_store(&known_failure, first_failure);
    }
    return false;
}

int tgl_cache_failures(const char **first)
{
    *first = atomic_load(&known_failure);
    return *first ? atomic_load(&num_failures) : 0;
}

bool tgl_cache_put(const tgl_cache_key *key, const void *image, size_t bytes)
{
    char name[TGL_CACHE_NAME_BYTES], temporary[96];
    tgl_cache_name(key, name);
    place p;
    const int folder = open_cache(true, &p);
    if (!p.path[0]) return false; /* no disk cache */
    if (folder < 0) {
        report_refusal(p.path, p.reason);
        return cannot_store("%.300s/%s: %s", p.path, name, p.reason);
    }
    if (bytes == 0 || bytes > MAX_IMAGE_BYTES) {
        close(folder);
        return cannot_store("%.300s/%s: it has %zu bytes, want 1..%d", p.path, name, bytes, MAX_IMAGE_BYTES);
    }
    header h;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.key, key->bytes, sizeof h.key);
    for (int i = 0; i < 8; i++) h.length[i] = (uint8_t)((uint64_t)bytes >> 8 * i);
    checksum(&h, image, bytes, h.checksum);

    remove_old_temporaries(folder); /* first: they may fill the disk */
    const int fd = open_temporary(folder, temporary, sizeof temporary);
    bool ok = fd >= 0;
    int error = errno;
    if (fd >= 0) {
        ok = write_all(fd, &h, sizeof h) && write_all(fd, image, bytes);
        error = errno;
        if (close(fd) && ok) ok = false, error = errno; /* an exceeded quota may show only here */
        if (ok && renameat(folder, temporary, folder, name)) ok = false, error = errno;
        if (!ok) unlinkat(folder, temporary, 0);
    }
    close(folder);
    return ok || cannot_store("%.300s/%s: %s", p.path, name, strerror(error));
}

/* ---- for the tool ---- */

typedef struct {
    char name[TGL_CACHE_NAME_BYTES];
    time_t used;
    int64_t bytes;
} entry;

/* All kernels in a folder. Closes it. */
static entry *list_files(int folder, int64_t *count)
{
    entry *list = NULL;
    int64_t capacity = 0;
    *count = 0;
    DIR *d = fdopendir(folder);
    if (!d) {
        close(folder);
        return NULL;
    }
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        struct stat s;
        if (!is_name(e->d_name) || fstatat(folder, e->d_name, &s, AT_SYMLINK_NOFOLLOW) || !S_ISREG(s.st_mode)) continue;
        if (*count == capacity) {
            entry *grown = realloc(list, (size_t)(capacity + 256) * sizeof *list);
            if (!grown) break;
            list = grown;
            capacity += 256;
        }
        memcpy(list[*count].name, e->d_name, sizeof list->name);
        list[*count].used = s.st_mtime;
        list[(*count)++].bytes = s.st_size;
    }
    closedir(d);
    return list;
}

/* Closes `folder`. */
static void describe(int folder, const place *p, tgl_cache_info *info)
{
    memset(info, 0, sizeof *info);
    if (folder >= 0) {
        memcpy(info->folder, p->path, sizeof info->folder);
        entry *list = list_files(folder, &info->files);
        for (int64_t i = 0; i < info->files; i++) info->bytes += list[i].bytes;
        free(list);
    } else if (!p->path[0]) {
        snprintf(info->reason, sizeof info->reason, "%s", p->reason);
    } else {
        snprintf(info->reason, sizeof info->reason, "%.255s is refused: %s", p->path, p->reason);
    }
}

void tgl_cache_describe(tgl_cache_info *info)
{
    place p;
    const int folder = open_cache(false, &p);
    describe(folder, &p, info);
    if (folder >= 0 || !p.is_missing) return;
    memcpy(info->folder, p.path, sizeof info->folder); /* it will be created */
    info->reason[0] = 0;
}

bool tgl_cache_describe_readonly(tgl_cache_info *info)
{
    place p;
    const int folder = open_readonly(&p);
    describe(folder, &p, info);
    return p.path[0];
}

static int by_last_use(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->used != y->used ? (x->used < y->used ? -1 : 1) : strcmp(x->name, y->name);
}

tgl_status tgl_cache_prune(int64_t bytes, int64_t *removed_files, int64_t *removed_bytes)
{
    *removed_files = *removed_bytes = 0;
    if (bytes < 0) return tgl_fail(TGL_ERR_ARGUMENT, "bytes: is %lld, want 0 or more", (long long)bytes);
    place p;
    const int folder = open_cache(false, &p);
    if (folder < 0) return TGL_OK;
    remove_old_temporaries(folder);
    const int listing = fcntl(folder, F_DUPFD_CLOEXEC, 0);
    int64_t count = 0, total = 0;
    entry *list = listing < 0 ? NULL : list_files(listing, &count);
    for (int64_t i = 0; i < count; i++) total += list[i].bytes;
    if (count) qsort(list, (size_t)count, sizeof *list, by_last_use);
    for (int64_t i = 0; i < count && total > bytes; i++) {
        if (unlinkat(folder, list[i].name, 0)) continue;
        total -= list[i].bytes;
        *removed_bytes += list[i].bytes;
        ++*removed_files;
    }
    free(list);
    close(folder);
    return TGL_OK;
}
