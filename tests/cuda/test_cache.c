/* SPDX-License-Identifier: MIT
 * The disk cache: the right bytes or a miss, never wrong code, whatever other users, crashes or disks do to its
 * folder. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sched.h>
#include <time.h>

#include "cases/backend.h"
#include "cuda/sha256.h"
#include "support.h"

enum { HEADER_BYTES = 80, IMAGE_BYTES = 200 };

static tgl_cache_key key_of(int number)
{
    tgl_cache_key key;
    tgl_sha256 s;
    tgl_sha256_begin(&s);
    tgl_sha256_add(&s, &number, sizeof number);
    tgl_sha256_end(&s, key.bytes);
    return key;
}

static void fill(uint8_t *image, size_t bytes, int number) /* what belongs to that key */
{
    char name[32];
    snprintf(name, sizeof name, "image %d", number);
    test_random r = test_seed(name);
    for (size_t i = 0; i < bytes; i += 8) {
        const uint64_t bits = test_bits(&r);
        memcpy(image + i, &bits, bytes - i < 8 ? bytes - i : 8);
    }
}

typedef enum { MISS, RIGHT, WRONG } outcome;

static outcome get_sized(int number, size_t want_bytes)
{
    static uint8_t want[1 << 20];
    fill(want, want_bytes, number);
    const tgl_cache_key key = key_of(number);
    void *image = NULL;
    size_t bytes = 0;
    if (!tgl_cache_get(&key, &image, &bytes)) return MISS;
    const bool right = bytes == want_bytes && !memcmp(image, want, bytes);
    free(image);
    return right ? RIGHT : WRONG;
}

static outcome get(int number) { return get_sized(number, IMAGE_BYTES); }

static bool put_sized(int number, size_t bytes)
{
    static uint8_t image[1 << 20];
    fill(image, bytes, number);
    const tgl_cache_key key = key_of(number);
    return tgl_cache_put(&key, image, bytes);
}

static bool put(int number) { return put_sized(number, IMAGE_BYTES); }

static void path_of(const char *folder, int number, char path[4096])
{
    char name[TGL_CACHE_NAME_BYTES];
    const tgl_cache_key key = key_of(number);
    tgl_cache_name(&key, name);
    snprintf(path, 4096, "%s/%s", folder, name);
}

/* A block with a new folder `outer`. The cache's folder is in it and does not exist yet; `file` is that of key 1. */
typedef struct {
    support_folder outer;
    char between[512], cache[520], file[4096];
} place;
#define IN_FOLDER(name)                                                \
    static void in_folder_##name(place *p);                            \
    TEST(name)                                                         \
    {                                                                  \
        place p = { support_make_folder(), "", "", "" };               \
        snprintf(p.between, sizeof p.between, "%s/one", p.outer.path); \
        snprintf(p.cache, sizeof p.cache, "%s/two", p.between);        \
        path_of(p.cache, 1, p.file);                                   \
        CHECK_OK(tgl_set_cache_dir(p.cache));                          \
        in_folder_##name(&p);                                          \
        CHECK_OK(tgl_set_cache_dir(NULL));                             \
        support_remove(p.outer.path);                                  \
    }                                                                  \
    static void in_folder_##name(place *p)

static unsigned mode_of(const char *path)
{
    struct stat s;
    return lstat(path, &s) ? 0 : s.st_mode & 07777;
}

/* What f gives, 0 to 255, in a forked child. */
static int in_fork(int (*f)(const char *), const char *argument)
{
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) _exit(f(argument));
    int status = -1;
    CHECK(waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
}

static bool is_user(void) { return geteuid() != 0 || (!setgid(65534) && !setuid(65534)); } /* from here on */

/* ---- the plain path ---- */

IN_FOLDER(what_was_put_is_found)
{
    CHECK_INT(get(1), MISS);
    CHECK_THAT(support_count(p->outer.path, "") == 0, "looking made the folder");
    CHECK(put(1));
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(get(2), MISS);
    CHECK(put(2));
    CHECK_INT(get(2), RIGHT);
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(support_count(p->cache, ""), 2);
    CHECK_INT(mode_of(p->file), 0600);
    CHECK_INT(mode_of(p->cache), 0700);
    CHECK_INT(mode_of(p->between), 0700);
    CHECK_TEXT(tgl_get_cache_dir(), p->cache);
}

IN_FOLDER(put_again_replaces)
{
    CHECK(put(1));
    CHECK(put(1));
    CHECK_INT(support_count(p->cache, ""), 1);
    CHECK_INT(get(1), RIGHT);
}

IN_FOLDER(large_and_tiny_images)
{
    CHECK(put_sized(1, 1));
    CHECK_INT(get_sized(1, 1), RIGHT);
    CHECK(put_sized(2, 1 << 20));
    CHECK_INT(get_sized(2, 1 << 20), RIGHT);
    CHECK(!put_sized(3, 0));
    CHECK_INT(get_sized(3, 0), MISS);
}

TEST(no_folder)
{
    CHECK_OK(tgl_set_cache_dir(""));
    CHECK(!put(1));
    CHECK_INT(get(1), MISS);
    CHECK_TEXT(tgl_get_cache_dir(), "");
    CHECK_OK(tgl_set_cache_dir(NULL));
}

/* ---- damage ---- */

IN_FOLDER(truncated_at_every_byte)
{
    CHECK(put(1));
    uint8_t whole[HEADER_BYTES + IMAGE_BYTES];
    CHECK_INT(support_read(p->file, whole, sizeof whole), sizeof whole);
    for (size_t n = 0; n < sizeof whole; n++) {
        support_write(p->file, whole, n);
        CHECK_THAT(get(1) == MISS, "a file cut at byte %zu was used", n);
    }
    CHECK(put(1)); /* and it is made anew */
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(support_count(p->cache, ""), 1);
}

IN_FOLDER(every_bit_flipped)
{
    CHECK(put(1));
    uint8_t whole[HEADER_BYTES + IMAGE_BYTES];
    CHECK_INT(support_read(p->file, whole, sizeof whole), sizeof whole);
    for (size_t bit = 0; bit < 8 * sizeof whole; bit++) {
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
        support_write(p->file, whole, sizeof whole);
        CHECK_THAT(get(1) == MISS, "a file with bit %zu flipped was used", bit);
        whole[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    support_write(p->file, whole, sizeof whole);
    CHECK_INT(get(1), RIGHT); /* so the misses were the flips' doing */
}

IN_FOLDER(bytes_behind_the_end)
{
    CHECK(put(1));
    uint8_t whole[HEADER_BYTES + IMAGE_BYTES + 1] = { 0 };
    CHECK_INT(support_read(p->file, whole, sizeof whole), sizeof whole - 1);
    support_write(p->file, whole, sizeof whole);
    CHECK_INT(get(1), MISS);
}

IN_FOLDER(a_file_of_another_key)
{
    char one[4096], two[4096];
    path_of(p->cache, 1, one);
    path_of(p->cache, 2, two);
    CHECK(put(1));
    CHECK(rename(one, two) == 0);
    CHECK_INT(get(2), MISS);
    CHECK(put(2));
    CHECK_INT(get(2), RIGHT);
}

/* ---- hostile folders and files ---- */

IN_FOLDER(folders_that_others_may_write)
{
    char path[4096];
    CHECK(put(1));
    static const unsigned bad[] = { 0777, 0770, 0720, 0702, 01777, 0722 };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        CHECK(chmod(p->cache, bad[i]) == 0);
        CHECK_THAT(get(1) == MISS, "a folder of mode %o was read", bad[i]);
        CHECK_THAT(!put(2), "a folder of mode %o was written", bad[i]);
        CHECK_TEXT(tgl_get_cache_dir(), "");
    }
    tgl_cache_info info;
    tgl_cache_describe(&info);
    CHECK_TEXT(info.folder, "");
    CHECK_THAT(strstr(info.reason, "others may write to it (mode 722)"), "the reason is \"%s\"", info.reason);
    static const unsigned good[] = { 0700, 0755, 0500, 0750 };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        CHECK(chmod(p->cache, good[i]) == 0);
        CHECK_INT(get(1), RIGHT);
    }
    path_of(p->cache, 2, path);
    CHECK(access(path, F_OK) != 0);
}

IN_FOLDER(a_folder_of_someone_else)
{
    if (geteuid() != 0) SKIP("only root can make a folder that is someone else's");
    CHECK(put(1));
    CHECK(chown(p->cache, 12345, 12345) == 0);
    CHECK_INT(get(1), MISS);
    CHECK(!put(2));
    CHECK_TEXT(tgl_get_cache_dir(), "");
}

static int reads_roots_folder(const char *folder) { return !is_user() || get(1) != RIGHT || put(2); }

IN_FOLDER(a_folder_of_root_serves_users)
{
    if (geteuid() != 0) SKIP("only root can make root's folder");
    CHECK(put(1));
    CHECK(chmod(p->file, 0644) == 0 && chmod(p->cache, 0755) == 0 && chmod(p->between, 0755) == 0 &&
          chmod(p->outer.path, 0755) == 0);
    CHECK_INT(in_fork(reads_roots_folder, p->cache), 0);
}

IN_FOLDER(a_link_as_the_folder)
{
    CHECK(put(1));
    char link[600], with_slash[610], with_dot[610];
    snprintf(link, sizeof link, "%s/link", p->outer.path);
    snprintf(with_slash, sizeof with_slash, "%s//", link);
    snprintf(with_dot, sizeof with_dot, "%s/./", link);
    CHECK(symlink(p->cache, link) == 0);
    const char *names[] = { link, with_slash, with_dot };
    for (int i = 0; i < 3; i++) {
        CHECK_OK(tgl_set_cache_dir(names[i]));
        CHECK_THAT(get(1) == MISS, "%s was followed", names[i]);
        CHECK_THAT(!put(2), "%s was followed", names[i]);
        CHECK_TEXT(tgl_get_cache_dir(), "");
    }
    tgl_cache_info info;
    tgl_cache_describe(&info);
    CHECK_THAT(strstr(info.reason, "it is a symbolic link"), "the reason is \"%s\"", info.reason);
    snprintf(with_slash, sizeof with_slash, "%s//./", p->cache); /* but slashes alone are fine */
    CHECK_OK(tgl_set_cache_dir(with_slash));
    CHECK_INT(get(1), RIGHT);
}

IN_FOLDER(a_file_as_the_folder)
{
    char path[600];
    snprintf(path, sizeof path, "%s/file", p->outer.path);
    support_write(path, "x", 1);
    CHECK_OK(tgl_set_cache_dir(path));
    CHECK_INT(get(1), MISS);
    CHECK(!put(1));
}

IN_FOLDER(a_link_as_the_file)
{
    char path[4096], elsewhere[600];
    path_of(p->cache, 1, path);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", p->outer.path);
    CHECK(put(1));
    CHECK(rename(path, elsewhere) == 0 && symlink(elsewhere, path) == 0);
    CHECK_INT(get(1), MISS);
    uint8_t before[512], after[512];
    const size_t n = support_read(elsewhere, before, sizeof before);
    CHECK(put(1)); /* takes the link's place, and does not write through it */
    CHECK_INT(get(1), RIGHT);
    struct stat s;
    CHECK(lstat(path, &s) == 0 && S_ISREG(s.st_mode));
    CHECK(support_read(elsewhere, after, sizeof after) == n && !memcmp(before, after, n));
}

IN_FOLDER(a_fifo_as_the_file)
{
    CHECK(put(2));
    CHECK(mkfifo(p->file, 0600) == 0);
    alarm(20); /* nobody writes to it: a reader that waits would wait forever */
    CHECK_INT(get(1), MISS);
    CHECK(put(1));
    CHECK_INT(get(1), RIGHT);
    alarm(0);
}

IN_FOLDER(a_folder_as_the_file)
{
    CHECK(put(2));
    CHECK(mkdir(p->file, 0700) == 0);
    CHECK_INT(get(1), MISS);
    CHECK(!put(1));
    CHECK_INT(support_count(p->cache, ""), 2); /* no temporary file is left */
}

IN_FOLDER(files_that_others_may_have_written)
{
    CHECK(put(1));
    CHECK(chmod(p->file, 0666) == 0);
    CHECK_INT(get(1), MISS);
    CHECK(chmod(p->file, 0620) == 0);
    CHECK_INT(get(1), MISS);
    CHECK(chmod(p->file, 0644) == 0);
    CHECK_INT(get(1), RIGHT);
    if (geteuid() == 0) {
        CHECK(chown(p->file, 12345, 12345) == 0);
        CHECK_INT(get(1), MISS);
    }
}

/* ---- folders that cannot be written ---- */

static int uses_a_readonly_folder(const char *folder)
{
    char full[600], path[4096];
    snprintf(full, sizeof full, "%s/cache", folder);
    if (!is_user() || tgl_set_cache_dir(full) || !put(1) || chmod(full, 0500)) return 10;
    if (get(1) != RIGHT) return 11;
    if (put(2) || get(2) != MISS) return 12;
    path_of(full, 2, path);
    return access(path, F_OK) == 0 || support_count(full, "") != 1 ? 13 : 0;
}

IN_FOLDER(a_readonly_folder)
{
    CHECK(chmod(p->outer.path, 0777) == 0);
    CHECK_INT(in_fork(uses_a_readonly_folder, p->outer.path), 0);
}

static int finds_no_place(const char *folder)
{
    char full[600];
    snprintf(full, sizeof full, "%s/a/b", folder);
    return !is_user() || tgl_set_cache_dir(full) || put(1) || get(1) != MISS;
}

IN_FOLDER(a_folder_that_cannot_be_made)
{
    CHECK(chmod(p->outer.path, 0500) == 0);
    CHECK_INT(in_fork(finds_no_place, p->outer.path), 0);
    CHECK(chmod(p->outer.path, 0700) == 0);
}

TEST(no_home)
{
    IN_CHILD("HOME", "XDG_CACHE_HOME", "TEGULA_CACHE_DIR", "TEGULA_CACHE_READONLY");
    CHECK_TEXT(tgl_get_cache_dir(), "");
    CHECK(!put(1));
    CHECK_INT(get(1), MISS);
    tgl_cache_info info;
    tgl_cache_describe(&info);
    CHECK_TEXT(info.folder, "");
    CHECK(info.reason[0] != 0);
}

TEST(a_home_that_is_no_folder)
{
    IN_CHILD("HOME=/dev/null", "XDG_CACHE_HOME", "TEGULA_CACHE_DIR");
    CHECK_TEXT(tgl_get_cache_dir(), "");
    CHECK(!put(1));
    CHECK_INT(get(1), MISS);
}

TEST(the_default_folder)
{
    IN_CHILD("XDG_CACHE_HOME", "TEGULA_CACHE_DIR");
    support_folder home = support_folder_in("HOME");
    char want[300];
    snprintf(want, sizeof want, "%s/.cache/tegula", home.path);
    CHECK_TEXT(tgl_get_cache_dir(), want);
    CHECK(put(1));
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(support_count(want, ".tgl"), 1);
    support_remove(home.path);
}

/* The read-only folder comes first, is never written, and is judged like the other. */
TEST(a_baked_folder)
{
    IN_CHILD("HOME");
    support_folder baked = support_folder_in("TEGULA_CACHE_READONLY"), own = support_folder_in("TEGULA_CACHE_DIR");
    const char *first = baked.path, *second = own.path;
    CHECK_OK(tgl_set_cache_dir(first));
    CHECK(put(1));
    CHECK_OK(tgl_set_cache_dir(NULL)); /* the variable's is gone too: name it again */
    CHECK_OK(tgl_set_cache_dir(second));
    CHECK_INT(get(1), RIGHT);
    CHECK(put(2));
    CHECK_INT(get(2), RIGHT);
    CHECK_INT(support_count(first, ""), 1);
    CHECK_INT(support_count(second, ""), 1);
    CHECK(chmod(first, 0777) == 0);
    CHECK_INT(get(1), MISS);
    CHECK_INT(get(2), RIGHT);
    support_remove(first);
    support_remove(second);
}

#define check_explained(key, ...)            \
    do {                                     \
        char text_[TGL_CACHE_TEXT_BYTES];    \
        tgl_cache_explain(key, text_);       \
        CHECK_FORMATTED(text_, __VA_ARGS__); \
    } while (0)

/* What a user is told: by `tegula info`, and by an error in strict mode. */
TEST(a_refused_readonly_folder_is_named)
{
    IN_CHILD("HOME");
    support_folder baked = support_folder_in("TEGULA_CACHE_READONLY"), own = support_folder_in("TEGULA_CACHE_DIR");
    const char *first = baked.path, *second = own.path;
    const tgl_cache_key key = key_of(1);
    static tgl_cache_info info;
    char path[4096];
    CHECK(rmdir(first) == 0);

    check_explained(&key, "TEGULA_CACHE_READONLY: %s does not exist; %s", first, second);
    CHECK(tgl_cache_describe_readonly(&info));
    CHECK_TEXT(info.folder, "");
    CHECK_FORMATTED(info.reason, "%s is refused: No such file or directory", first);

    CHECK(mkdir(first, 0755) == 0);
    check_explained(&key, "TEGULA_CACHE_READONLY: %s; %s", first, second);
    CHECK(tgl_cache_describe_readonly(&info));
    CHECK_TEXT(info.folder, first);

    CHECK(chmod(first, 0777) == 0);
    check_explained(NULL, "TEGULA_CACHE_READONLY: %s is refused: others may write to it (mode 777); %s", first, second);
    CHECK(tgl_cache_describe_readonly(&info));
    CHECK_FORMATTED(info.reason, "%s is refused: others may write to it (mode 777)", first);

    CHECK(rmdir(first) == 0 && symlink("/usr", first) == 0);
    check_explained(NULL, "TEGULA_CACHE_READONLY: %s is refused: it is a symbolic link; %s", first, second);

    CHECK(unlink(first) == 0 && mkdir(first, 0755) == 0);
    if (geteuid() == 0) {
        CHECK(chown(first, 12345, 12345) == 0 && chown(second, 12346, 12346) == 0);
        check_explained(NULL,
                        "TEGULA_CACHE_READONLY: %s is refused: it belongs to user 12345; %s is refused: it "
                        "belongs to user 12346",
                        first, second);
        CHECK(chown(first, 0, 0) == 0 && chown(second, 0, 0) == 0);
    }
    path_of(second, 1, path); /* a folder that is right, with a file that is not */
    support_write(path, "cut off", 7);
    check_explained(&key, "TEGULA_CACHE_READONLY: %s; %s, where its file %s is damaged or not ours", first, second,
                    strrchr(path, '/') + 1);
    CHECK_OK(tgl_set_cache_dir(""));
    check_explained(&key, "TEGULA_CACHE_READONLY: %s; there is no other", first);
    support_remove(first);
    support_remove(second);
}

static int has_a_cache_in(const char *home)
{
    char path[512];
    snprintf(path, sizeof path, "%s/.cache", home);
    const bool ok = is_user() && put(1) && get(1) == RIGHT;
    support_remove(path);
    return ok ? 0 : 10;
}

/* Root with another user's HOME (sudo -E): the owner could not write to or remove what root made there. Another user may
 * use a HOME that is not theirs (containers run with any user id), as far as they can write to it. */
TEST(the_home_of_someone_else)
{
    if (geteuid() != 0) SKIP("only root can make another user's folder");
    IN_CHILD("XDG_CACHE_HOME", "TEGULA_CACHE_DIR");
    support_folder home = support_folder_in("HOME");
    static tgl_cache_info info;
    char named[300];
    CHECK(chown(home.path, 12345, 12345) == 0 && chmod(home.path, 0777) == 0);
    CHECK_TEXT(tgl_get_cache_dir(), "");
    CHECK(!put(1));
    CHECK_INT(get(1), MISS);
    tgl_cache_describe(&info);
    CHECK_FORMATTED(info.reason, "%s/.cache/tegula is refused: %s, where it would be created, belongs to user 12345",
                    home.path, home.path);
    CHECK_INT(support_count(home.path, ""), 0);
    CHECK_INT(in_fork(has_a_cache_in, home.path), 0);
    snprintf(named, sizeof named, "%s/mine", home.path); /* a folder that is named is made */
    CHECK_OK(tgl_set_cache_dir(named));
    CHECK(put(1));
    support_remove(home.path);
}

/* ---- full disks ---- */

static int hits_a_limit(const char *folder) /* a file may grow to 8 KB: what a full disk looks like */
{
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = { 8192, 8192 };
    if (setrlimit(RLIMIT_FSIZE, &limit)) return 11;
    if (put_sized(1, 100000) || get_sized(1, 100000) != MISS) return 12;
    if (support_count(folder, "") != 0) return 13; /* nothing half-written stays */
    return !put_sized(2, 4000) || get_sized(2, 4000) != RIGHT ? 14 : 0;
}

IN_FOLDER(a_write_that_fails_half_way) { CHECK_INT(in_fork(hits_a_limit, p->cache), 0); }

static int fills_a_disk(const char *outer)
{
    char folder[512];
    snprintf(folder, sizeof folder, "%s/one/two", outer);
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
        mount("none", outer, "tmpfs", 0, "size=64k,mode=0700"))
        return 77;
    bool ok = put_sized(1, 20000) && get_sized(1, 20000) == RIGHT;
    ok &= !put_sized(2, 200000) && get_sized(2, 200000) == MISS && get_sized(1, 20000) == RIGHT;
    return !ok || support_count(folder, "") != 1;
}

IN_FOLDER(a_full_disk)
{
    const int status = in_fork(fills_a_disk, p->outer.path);
    if (status == 77) SKIP("a small tmpfs cannot be mounted here");
    CHECK_INT(status, 0);
}

/* ---- many processes ---- */

IN_FOLDER(killed_while_writing)
{
    enum { ROUNDS = 60, BYTES = 1 << 20 };
    CHECK(put_sized(0, 1)); /* makes the folder */
    test_random r = test_seed("killed_while_writing");
    int complete = 0, halves = 0;
    for (int i = 1; i <= ROUNDS; i++) {
        enum { AT_ANY_TIME, ONCE_A_FILE_APPEARS, IN_THE_MIDDLE, AFTER_THE_END, WAYS };
        static uint8_t image[BYTES];
        fill(image, BYTES, i);
        const tgl_cache_key key = key_of(i);
        const int files_before = support_count(p->cache, "");
        const rlim_t limit = 1 + test_below(&r, BYTES); /* a file has more bytes than its image */
        fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            if (i % WAYS == IN_THE_MIDDLE) { /* the kernel kills who writes behind the limit */
                const struct rlimit no_core = { 0, 0 }, size = { limit, limit };
                signal(SIGXFSZ, SIG_DFL);
                if (setrlimit(RLIMIT_CORE, &no_core) || setrlimit(RLIMIT_FSIZE, &size)) _exit(1);
            }
            if (i % WAYS == AFTER_THE_END) _exit(!tgl_cache_put(&key, image, BYTES));
            for (;;) tgl_cache_put(&key, image, BYTES);
        }
        if (i % WAYS == AT_ANY_TIME) usleep((useconds_t)test_below(&r, 60000));
        if (i % WAYS == ONCE_A_FILE_APPEARS) { /* the temporary one, and a little later */
            while (support_count(p->cache, "") == files_before) { }
            usleep((useconds_t)test_below(&r, 500));
        }
        if (i % WAYS < IN_THE_MIDDLE) kill(pid, SIGKILL);
        int status;
        waitpid(pid, &status, 0);
        const outcome o = get_sized(i, BYTES);
        CHECK_THAT(o != WRONG, "round %d: a wrong image", i);
        if (i % WAYS == IN_THE_MIDDLE) {
            const bool was_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ;
            CHECK_THAT(was_killed && o == MISS, "round %d: status 0x%x", i, (unsigned)status);
            halves++;
        }
        if (i % WAYS == AFTER_THE_END)
            CHECK_THAT(status == 0 && o == RIGHT, "round %d: status 0x%x", i, (unsigned)status);
        complete += o == RIGHT;
    }
    CHECK_INT(support_count(p->cache, ".tgl"), complete + 1); /* a name is there only with a whole file */
    const int left = support_count(p->cache, "") - complete - 1;
    CHECK_THAT(left >= halves, "%d files are left of %d half writes", left, halves);

    int64_t files, bytes; /* what they left goes once it is old */
    CHECK_OK(tgl_cache_prune(INT64_MAX, &files, &bytes));
    CHECK_INT(support_count(p->cache, ""), complete + 1 + left);
    DIR *d = opendir(p->cache);
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        const struct timespec old[2] = { { time(NULL) - 7200, 0 }, { time(NULL) - 7200, 0 } };
        if (e->d_name[0] == '.' && e->d_name[1] == 'n') CHECK(utimensat(dirfd(d), e->d_name, old, 0) == 0);
    }
    closedir(d);
    CHECK_OK(tgl_cache_prune(INT64_MAX, &files, &bytes));
    CHECK_INT(support_count(p->cache, ""), complete + 1);
    CHECK_INT(files, 0);
}

/* Readers see a whole file or none while writers replace it. Sixteen pages are as many places where half a file
 * could end; more would go into checksums, which sanitizers make slow. */
IN_FOLDER(readers_beside_writers)
{
    enum { WRITERS = 4, READS = 400, BYTES = 1 << 16 };
    CHECK(put_sized(1, BYTES));
    pid_t writers[WRITERS];
    fflush(stdout);
    for (int i = 0; i < WRITERS; i++)
        if ((writers[i] = fork()) == 0)
            for (;;) put_sized(1, BYTES);
    for (int i = 0; i < READS; i++) CHECK_INT(get_sized(1, BYTES), RIGHT);
    for (int i = 0; i < WRITERS; i++) {
        kill(writers[i], SIGKILL);
        waitpid(writers[i], NULL, 0);
    }
}

static void digest_of(const tgl_image *image, uint8_t digest[32])
{
    tgl_sha256 s;
    tgl_sha256_begin(&s);
    tgl_sha256_add(&s, image->image, image->bytes);
    tgl_sha256_end(&s, digest);
}

/* All start at once on a folder that does not exist; each gets the same code, and one file is left. */
IN_FOLDER(many_processes_on_an_empty_cache)
{
    if (!tgl_nvrtc_or_null()) SKIP("no NVRTC is found here");
    const bool is_real = support_has_real_nvrtc(); /* the emulated one takes a C++ compiler a kernel */
    enum { MOST = 64 };
    const int count = !is_real ? 8 : BACKEND_HAS_ASAN || BACKEND_HAS_TSAN ? 16 : MOST; /* a slow start each */
    static const tgl_macro macros[TGL_MAX_MACROS] = { { "FACTOR", 5 } };
    struct shared {
        uint8_t digest[MOST][32];
        bool done[MOST], compiled[MOST];
    } *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int gate[2];
    REQUIRE(shared != MAP_FAILED && pipe(gate) == 0);
    pid_t children[MOST];
    fflush(stdout);
    for (int i = 0; i < count; i++) {
        children[i] = fork();
        if (children[i]) continue;
        char c;
        close(gate[1]);
        if (read(gate[0], &c, 1) != 0) _exit(2); /* the end of the pipe: go */
        tgl_image image;
        if (tgl_jit_source(&support_source, macros, "sm_90a", TGL_JIT_MAY_COMPILE, &image) != TGL_OK) {
            printf("  child %d: %s\n", i, tgl_last_error());
            fflush(stdout);
            _exit(1);
        }
        digest_of(&image, shared->digest[i]);
        shared->compiled[i] = image.compiled;
        shared->done[i] = true;
        _exit(0);
    }
    close(gate[0]);
    close(gate[1]);
    int compiled = 0;
    for (int i = 0; i < count; i++) {
        int status = -1;
        waitpid(children[i], &status, 0);
        CHECK_THAT(status == 0 && shared->done[i], "child %d ended with status 0x%x", i, (unsigned)status);
        compiled += shared->compiled[i];
    }
    CHECK(compiled >= 1);
    CHECK_INT(support_count(p->cache, ""), 1);
    tgl_image image;
    CHECK_OK(tgl_jit_source(&support_source, macros, "sm_90a", 0, &image));
    CHECK(!image.compiled);
    uint8_t digest[32];
    digest_of(&image, digest);
    tgl_image_free(&image);
    /* the real compiler gives the same bytes each time; the emulated one has its temporary folder in them */
    for (int i = 0; is_real && i < count; i++)
        CHECK_THAT(!memcmp(shared->digest[i], digest, 32), "child %d got other bytes than the file has", i);
    munmap(shared, sizeof *shared);
}

/* ---- trimming ---- */

static void set_age_of(const char *path, int seconds)
{
    const struct timespec then = { time(NULL) - seconds, 0 }, times[2] = { then, then };
    CHECK(utimensat(AT_FDCWD, path, times, 0) == 0);
}

static void set_age(const char *folder, int number, int seconds)
{
    char path[4096];
    path_of(folder, number, path);
    set_age_of(path, seconds);
}

static int age_of(const char *folder, int number)
{
    char path[4096];
    struct stat s;
    path_of(folder, number, path);
    return stat(path, &s) ? -1 : (int)(time(NULL) - s.st_mtime);
}

static void plant(const char *folder, const char *name, int seconds)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    support_write(path, "half a kernel", 13);
    set_age_of(path, seconds);
}

/* What a killed writer leaves goes with the next kernel that is stored; what may still be written to stays. */
IN_FOLDER(old_temporary_files_are_removed)
{
    CHECK(put(1));
    plant(p->cache, ".new-1-dead", 2 * 3600);
    plant(p->cache, ".new-2-dead", 30 * 24 * 3600);
    plant(p->cache, ".new-3-alive", 60);
    plant(p->cache, ".newer", 2 * 3600); /* not ours */
    plant(p->cache, "notes.txt", 2 * 3600);
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(support_count(p->cache, "-dead"), 2); /* reading removes nothing */
    CHECK(put(2));
    CHECK_INT(support_count(p->cache, "-dead"), 0);
    CHECK_INT(support_count(p->cache, ""), 5);
    CHECK_INT(get(1), RIGHT);
    CHECK_INT(get(2), RIGHT);
}

TEST(what_could_not_be_stored_is_counted)
{
    IN_CHILD("TEGULA_CACHE_READONLY", "HOME");
    support_folder f = support_folder_in("TEGULA_CACHE_DIR");
    const char *first;
    CHECK(put(1));
    CHECK_INT(tgl_cache_failures(&first), 0);
    CHECK(!first);
    char path[4096], want[4200];
    path_of(f.path, 2, path);
    CHECK(mkdir(path, 0700) == 0); /* nothing can be renamed to it */
    CHECK(!put(2) && !put(2));
    CHECK_INT(tgl_cache_failures(&first), 2);
    snprintf(want, sizeof want, "%s: Is a directory", path);
    CHECK_TEXT(first, want);
    CHECK_OK(tgl_set_cache_dir("")); /* nobody wants it stored */
    CHECK(!put(3));
    CHECK_INT(tgl_cache_failures(&first), 2);
    CHECK_OK(tgl_set_cache_dir("/dev/null/cache"));
    CHECK(!put(3));
    CHECK_INT(tgl_cache_failures(&first), 3);
    CHECK_TEXT(first, want);
    support_remove(f.path);
}

IN_FOLDER(prune_removes_what_was_used_longest_ago)
{
    const int64_t each = HEADER_BYTES + IMAGE_BYTES;
    int64_t files, bytes;
    CHECK_OK(tgl_cache_prune(0, &files, &bytes)); /* of no folder */
    CHECK_INT(files, 0);
    for (int i = 0; i < 6; i++) CHECK(put(i));
    static const int age[6] = { 300, 100, 600, 200, 500, 400 };
    for (int i = 0; i < 6; i++) set_age(p->cache, i, age[i]);
    char other[600];
    snprintf(other, sizeof other, "%s/notes.txt", p->cache);
    support_write(other, "not ours to remove", 18);
    tgl_cache_info info;
    tgl_cache_describe(&info);
    CHECK_TEXT(info.folder, p->cache);
    CHECK_INT(info.files, 6);
    CHECK_INT(info.bytes, 6 * each);
    CHECK_OK(tgl_cache_prune(6 * each, &files, &bytes));
    CHECK_INT(files, 0);
    CHECK_OK(tgl_cache_prune(3 * each + 5, &files, &bytes));
    CHECK_INT(files, 3);
    CHECK_INT(bytes, 3 * each);
    for (int i = 0; i < 6; i++) CHECK_THAT((get(i) == RIGHT) == (age[i] <= 300), "file %d of age %d", i, age[i]);
    CHECK_OK(tgl_cache_prune(0, &files, &bytes));
    CHECK_INT(files, 3);
    CHECK_INT(support_count(p->cache, ""), 1);
    CHECK_FAILS(tgl_cache_prune(-1, &files, &bytes), TGL_ERR_ARGUMENT, "bytes: is -1, want 0 or more");
}

IN_FOLDER(a_hit_marks_the_file_at_most_once_a_day)
{
    CHECK(put(1));
    set_age(p->cache, 1, 3600);
    CHECK_INT(get(1), RIGHT);
    CHECK(age_of(p->cache, 1) >= 3600);
    set_age(p->cache, 1, 2 * 24 * 3600);
    CHECK_INT(get(1), RIGHT);
    CHECK(age_of(p->cache, 1) < 60);
}
