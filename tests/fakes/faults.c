// Stands between a process and the C library (LD_PRELOAD): calls on files below a folder fail, syncs are counted, and the
// wall clock is another one, all as a shared page says, which the test writes to while the process runs.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct control {
    int32_t write_errno, sync_errno, read_errno, unused;
    int64_t clock_offset_s;
    int64_t num_written, num_synced, num_failed;  // of files below the folder
    char folder[1024];
};

static struct control *control;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("FAULTS_CONTROL");
    if (path == NULL) return;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) control = page;
}

static int is_below(int fd) {
    char link[64], path[2048];
    if (control == NULL || control->folder[0] == 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, control->folder, strlen(control->folder)) == 0;
}

static int fails(int number) {
    if (!number) return 0;
    __atomic_add_fetch(&control->num_failed, 1, __ATOMIC_RELAXED);
    errno = number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRITING(result, name, parameters, arguments, fd)                            \
    result name parameters {                                                        \
        static __typeof__(&name) real;                                              \
        if (!real) real = REAL(name);                                               \
        if (is_below(fd)) {                                                         \
            if (fails(control->write_errno)) return -1;                             \
            __atomic_add_fetch(&control->num_written, 1, __ATOMIC_SEQ_CST);         \
        }                                                                           \
        return real arguments;                                                      \
    }
#define READING(result, name, parameters, arguments, fd)                            \
    result name parameters {                                                        \
        static __typeof__(&name) real;                                              \
        if (!real) real = REAL(name);                                               \
        if (control && control->read_errno && is_below(fd) && fails(control->read_errno)) return -1; \
        return real arguments;                                                      \
    }
#define SYNCING(name)                                                               \
    int name(int fd) {                                                              \
        static __typeof__(&name) real;                                              \
        if (!real) real = REAL(name);                                               \
        if (!is_below(fd)) return real(fd);                                         \
        if (fails(control->sync_errno)) return -1;                                  \
        int64_t written = __atomic_load_n(&control->num_written, __ATOMIC_SEQ_CST); \
        int result = real(fd);                                                      \
        if (result == 0) __atomic_store_n(&control->num_synced, written, __ATOMIC_SEQ_CST); \
        return result;                                                              \
    }

WRITING(ssize_t, write, (int fd, const void *from, size_t count), (fd, from, count), fd)
WRITING(ssize_t, pwrite, (int fd, const void *from, size_t count, off_t at), (fd, from, count, at), fd)
WRITING(ssize_t, pwrite64, (int fd, const void *from, size_t count, off64_t at), (fd, from, count, at), fd)
WRITING(ssize_t, writev, (int fd, const struct iovec *from, int count), (fd, from, count), fd)
WRITING(ssize_t, pwritev, (int fd, const struct iovec *from, int count, off_t at), (fd, from, count, at), fd)
WRITING(ssize_t, pwritev64, (int fd, const struct iovec *from, int count, off64_t at), (fd, from, count, at), fd)
WRITING(ssize_t, pwritev2, (int fd, const struct iovec *from, int count, off_t at, int flags), (fd, from, count, at, flags), fd)
WRITING(ssize_t, pwritev64v2, (int fd, const struct iovec *from, int count, off64_t at, int flags), (fd, from, count, at, flags), fd)
WRITING(int, ftruncate, (int fd, off_t size), (fd, size), fd)
WRITING(int, ftruncate64, (int fd, off64_t size), (fd, size), fd)
READING(ssize_t, read, (int fd, void *to, size_t count), (fd, to, count), fd)
READING(ssize_t, readv, (int fd, const struct iovec *to, int count), (fd, to, count), fd)
READING(ssize_t, pread, (int fd, void *to, size_t count, off_t at), (fd, to, count, at), fd)
READING(ssize_t, pread64, (int fd, void *to, size_t count, off64_t at), (fd, to, count, at), fd)
READING(ssize_t, preadv, (int fd, const struct iovec *to, int count, off_t at), (fd, to, count, at), fd)
READING(ssize_t, preadv64, (int fd, const struct iovec *to, int count, off64_t at), (fd, to, count, at), fd)
READING(ssize_t, preadv2, (int fd, const struct iovec *to, int count, off_t at, int flags), (fd, to, count, at, flags), fd)
READING(ssize_t, preadv64v2, (int fd, const struct iovec *to, int count, off64_t at, int flags), (fd, to, count, at, flags), fd)
SYNCING(fsync)
SYNCING(fdatasync)

int clock_gettime(clockid_t clock, struct timespec *now) {
    static __typeof__(&clock_gettime) real;
    if (!real) real = REAL(clock_gettime);
    int result = real(clock, now);
    if (control && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += control->clock_offset_s;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = (int (*)(struct timeval *, void *))dlsym(RTLD_NEXT, "gettimeofday");
    int result = real(now, zone);
    if (control) now->tv_sec += control->clock_offset_s;
    return result;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
