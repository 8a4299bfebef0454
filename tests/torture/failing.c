/* Preloaded: at the n-th call that writes to a regular file, fail with an error number, or send oneself a signal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int count, at, error, sent, lasting;

int torture_count(void) { return count; }

/* At call number `n`; `stays`: a disk that is full stays full. */
void torture_arm(int n, int code, int number, int stays) { count = 0, at = n, error = code, sent = number, lasting = stays; }

static int hit(int handle) {
    struct stat found;
    if (fstat(handle, &found) || !S_ISREG(found.st_mode)) return 0;
    ++count;
    if (!at || count < at || (count > at && !lasting)) return 0;
    if (sent) kill(getpid(), sent);
    return error;
}

#define WRAPPED(type, name, parameters, arguments)                     \
    type name parameters {                                             \
        static type (*real) parameters;                                \
        if (!real) real = dlsym(RTLD_NEXT, #name);                     \
        int failed = hit(handle);                                      \
        if (failed) { errno = failed; return -1; }                     \
        return real arguments;                                         \
    }
#define ALLOCATED(name)                                                \
    int name(int handle, off_t from, off_t size) {                     \
        static int (*real)(int, off_t, off_t);                         \
        if (!real) real = dlsym(RTLD_NEXT, #name);                     \
        int failed = hit(handle);                                      \
        return failed ? failed : real(handle, from, size);             \
    }

WRAPPED(ssize_t, write, (int handle, const void *from, size_t size), (handle, from, size))
WRAPPED(ssize_t, pwrite, (int handle, const void *from, size_t size, off_t place), (handle, from, size, place))
WRAPPED(ssize_t, pwrite64, (int handle, const void *from, size_t size, off_t place), (handle, from, size, place))
WRAPPED(ssize_t, writev, (int handle, const struct iovec *from, int number), (handle, from, number))
WRAPPED(int, fsync, (int handle), (handle))
WRAPPED(int, fdatasync, (int handle), (handle))
WRAPPED(int, ftruncate, (int handle, off_t size), (handle, size))
WRAPPED(int, ftruncate64, (int handle, off_t size), (handle, size))
ALLOCATED(posix_fallocate)
ALLOCATED(posix_fallocate64)
