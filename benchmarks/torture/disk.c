/* Faults at the n-th change of a file in one folder.

   Loaded before the C library (LD_PRELOAD), it stands between the process and every call that
   changes a file, whoever makes it: Python, safetensors' Rust or torch's C++. Until it is armed it
   does nothing. A write that meets a fault is torn: half of its bytes reach the file. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OFF, COUNT, KILL, FULL, ERROR };

static int mode = OFF;
static long number;
static char root[PATH_MAX], report[PATH_MAX];
static atomic_long events;

#define ORIGINAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Watch `folder` from now on; what meets the fault is told in the file `told`. */
void torture_arm(const char *folder, const char *told, int how, long at) {
    snprintf(root, sizeof root, "%s", folder);
    snprintf(report, sizeof report, "%s", told);
    number = at;
    atomic_store(&events, 0);
    mode = how;
}

/* Return how many changes there were since it was armed. */
long torture_events(void) { return atomic_load(&events); }

static int inside(const char *path) {
    size_t length = strlen(root);
    return strncmp(path, root, length) == 0 && (path[length] == '/' || path[length] == 0);
}

/* Return whether a path leads into the folder; a relative one is made whole first. */
static int watched(int folder, const char *path, char *whole) {
    char link[64], base[PATH_MAX];
    if (mode == OFF || path == NULL) return 0;
    if (path[0] == '/') {
        snprintf(whole, PATH_MAX, "%s", path);
        return inside(whole);
    }
    snprintf(link, sizeof link, folder == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, base, sizeof base - 1);
    if (length < 0) return 0;
    base[length] = 0;
    if (strlen(base) + strlen(path) + 2 > PATH_MAX) return 0;
    strcpy(whole, base);
    strcat(whole, "/");
    strcat(whole, path);
    return inside(whole);
}

static int watched_file(int file, char *whole) {
    char link[64];
    if (mode == OFF) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, whole, PATH_MAX - 1);
    if (length < 0) return 0;
    whole[length] = 0;
    return inside(whole);
}

static void tell(const char *what, const char *path) {
    char line[PATH_MAX + 64];
    int length = snprintf(line, sizeof line, "%s %s\n", what, path);
    int file = ORIGINAL(open)(report, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (file < 0) return;
    if (ORIGINAL(write)(file, line, (size_t)length) < 0) { /* then nothing is told */ }
    close(file);
}

static void end(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* Count a change; return whether it must fail. A full disk stays full, but can still rename,
   remove and shrink. */
static int fault(const char *what, const char *path, int needs_room, int torn) {
    long now = atomic_fetch_add(&events, 1) + 1;
    if (mode == COUNT || now < number) return 0;
    if (now == number) tell(what, path);
    switch (mode) {
    case KILL:
        if (now == number && !torn) end();
        return now == number;
    case ERROR:
        errno = EIO;
        return now == number;
    default:
        errno = ENOSPC;
        return needs_room;
    }
}

static ssize_t torn_write(int file, const void *bytes, size_t count, off_t place) {
    size_t half = count / 2;
    int before = errno;
    if (half && mode != ERROR) {
        ssize_t done = place < 0 ? ORIGINAL(write)(file, bytes, half)
                                 : ORIGINAL(pwrite)(file, bytes, half, place);
        if (mode == KILL) end();
        if (done > 0) return done; /* as of a disk that fills up: the next write gets nothing */
    }
    if (mode == KILL) end();
    errno = before;
    return -1;
}

ssize_t write(int file, const void *bytes, size_t count) {
    char path[PATH_MAX];
    if (watched_file(file, path) && fault("write", path, 1, 1))
        return torn_write(file, bytes, count, -1);
    return ORIGINAL(write)(file, bytes, count);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t place) {
    char path[PATH_MAX];
    if (watched_file(file, path) && fault("write", path, 1, 1))
        return torn_write(file, bytes, count, place);
    return ORIGINAL(pwrite)(file, bytes, count, place);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t place) {
    return pwrite(file, bytes, count, place);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (count > 0 && watched_file(file, path) && fault("write", path, 1, 1))
        return torn_write(file, parts[0].iov_base, parts[0].iov_len, -1);
    return ORIGINAL(writev)(file, parts, count);
}

#define ON_FILE(name, what, needs_room, declared, given)        \
    int name declared {                                         \
        char path[PATH_MAX];                                    \
        if (watched_file(file, path) && fault(what, path, needs_room, 0)) return -1; \
        return ORIGINAL(name) given;                            \
    }

ON_FILE(fsync, "sync", 1, (int file), (file))
ON_FILE(fdatasync, "sync", 1, (int file), (file))
ON_FILE(ftruncate, "truncate", 0, (int file, off_t size), (file, size))
ON_FILE(ftruncate64, "truncate", 0, (int file, off64_t size), (file, size))
ON_FILE(fchmod, "mode", 0, (int file, mode_t bits), (file, bits))

#define ON_PATH(name, what, needs_room, folder, declared, given)  \
    int name declared {                                           \
        char whole[PATH_MAX];                                     \
        if (watched(folder, path, whole) && fault(what, whole, needs_room, 0)) return -1; \
        return ORIGINAL(name) given;                              \
    }

ON_PATH(mkdir, "mkdir", 1, AT_FDCWD, (const char *path, mode_t bits), (path, bits))
ON_PATH(mkdirat, "mkdir", 1, at, (int at, const char *path, mode_t bits), (at, path, bits))
ON_PATH(rmdir, "rmdir", 0, AT_FDCWD, (const char *path), (path))
ON_PATH(unlink, "remove", 0, AT_FDCWD, (const char *path), (path))
ON_PATH(unlinkat, "remove", 0, at, (int at, const char *path, int flags), (at, path, flags))
ON_PATH(chmod, "mode", 0, AT_FDCWD, (const char *path, mode_t bits), (path, bits))
ON_PATH(truncate, "truncate", 0, AT_FDCWD, (const char *path, off_t size), (path, size))

/* Of a rename the place that it goes to counts. */
ON_PATH(rename, "rename", 0, AT_FDCWD, (const char *from, const char *path), (from, path))
ON_PATH(renameat, "rename", 0, to,
        (int at, const char *from, int to, const char *path), (at, from, to, path))
ON_PATH(link, "link", 1, AT_FDCWD, (const char *from, const char *path), (from, path))
ON_PATH(symlink, "link", 1, AT_FDCWD, (const char *from, const char *path), (from, path))

/* Opening counts where it makes or empties a file. */
#define OPENS(name, folder, declared, given)                                              \
    int name declared {                                                                   \
        char whole[PATH_MAX];                                                             \
        mode_t bits = 0;                                                                  \
        if (flags & (O_CREAT | O_TMPFILE)) {                                              \
            va_list more;                                                                 \
            va_start(more, flags);                                                        \
            bits = va_arg(more, mode_t);                                                  \
            va_end(more);                                                                 \
        }                                                                                 \
        int changes = (flags & O_TRUNC) ||                                                \
                      ((flags & O_CREAT) && faccessat(folder, path, F_OK, 0) != 0);       \
        if (changes && watched(folder, path, whole) && fault("open", whole, 1, 0)) return -1; \
        return ORIGINAL(name) given;                                                      \
    }

OPENS(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, bits))
OPENS(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, bits))
OPENS(openat, at, (int at, const char *path, int flags, ...), (at, path, flags, bits))
OPENS(openat64, at, (int at, const char *path, int flags, ...), (at, path, flags, bits))
