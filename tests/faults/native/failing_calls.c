/* System calls that fail at random, for programs that load this library first (LD_PRELOAD).
 *
 * FAILING_SWITCH  calls fail while this file exists
 * FAILING_CALLS   names of the calls, each between commas: ",open,fork,"
 * FAILING_RATE    how many of a thousand calls fail
 * FAILING_SEED    of the random numbers
 *
 * A forked child does not go on with it, and programs that this one starts are without it. */

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static char switch_path[256], calls[256];
static uint64_t seed, rate;
static atomic_uint_fast64_t number;

static void stop_here(void) { rate = 0; }

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("FAILING_SWITCH"), *names = getenv("FAILING_CALLS");
    if (path != NULL && names != NULL) {
        snprintf(switch_path, sizeof switch_path, "%s", path);
        snprintf(calls, sizeof calls, "%s", names);
        seed = strtoull(getenv("FAILING_SEED"), NULL, 10);
        rate = strtoull(getenv("FAILING_RATE"), NULL, 10);
    }
    unsetenv("LD_PRELOAD");
    pthread_atfork(NULL, NULL, stop_here);
}

/* Whether the call that is named between commas is to fail now; errno says how. */
static int fails(const char *name, int error)
{
    int before = errno;
    if (rate == 0 || strstr(calls, name) == NULL || syscall(SYS_faccessat, AT_FDCWD, switch_path, F_OK) != 0) {
        errno = before;
        return 0;
    }
    uint64_t drawn = seed + 0x9e3779b97f4a7c15 * ++number;
    drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9;
    drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111eb;
    int is_drawn = (drawn ^ (drawn >> 31)) % 1000 < rate;
    errno = is_drawn ? error : before;
    return is_drawn;
}

/* The library's own function of that name. */
#define NEXT(type, name, ...) ((type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name))

#define OPEN(name)                                                        \
    int name(const char *path, int flags, ...)                            \
    {                                                                     \
        va_list rest;                                                     \
        va_start(rest, flags);                                            \
        mode_t mode = va_arg(rest, mode_t);                               \
        va_end(rest);                                                     \
        if (fails(",open,", EMFILE))                                      \
            return -1;                                                    \
        return NEXT(int, name, const char *, int, mode_t)(path, flags, mode); \
    }
OPEN(open)
OPEN(open64)

int socket(int domain, int type, int protocol)
{
    return fails(",socket,", EMFILE) ? -1 : NEXT(int, socket, int, int, int)(domain, type, protocol);
}

int accept4(int listener, struct sockaddr *address, socklen_t *size, int flags)
{
    if (fails(",accept,", EMFILE))
        return -1;
    return NEXT(int, accept4, int, struct sockaddr *, socklen_t *, int)(listener, address, size, flags);
}

int pipe2(int ends[2], int flags)
{
    return fails(",pipe,", EMFILE) ? -1 : NEXT(int, pipe2, int *, int)(ends, flags);
}

int memfd_create(const char *name, unsigned flags)
{
    return fails(",memfd,", EMFILE) ? -1 : NEXT(int, memfd_create, const char *, unsigned)(name, flags);
}

void *mmap(void *address, size_t size, int protection, int flags, int file, off_t offset)
{
    if (fails(",mmap,", ENOMEM))
        return MAP_FAILED;
    return NEXT(void *, mmap, void *, size_t, int, int, int, off_t)(address, size, protection, flags, file, offset);
}

pid_t fork(void)
{
    return fails(",fork,", EAGAIN) ? -1 : NEXT(pid_t, fork, void)();
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    if (fails(",thread,", EAGAIN))
        return EAGAIN;
    return NEXT(int, pthread_create, pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)(
        thread, attributes, run, argument);
}

/* Only of files: a pipe has no disk. */
ssize_t write(int file, const void *data, size_t size)
{
    struct stat found;
    if (rate != 0 && fstat(file, &found) == 0 && S_ISREG(found.st_mode) && fails(",write,", ENOSPC))
        return -1;
    return NEXT(ssize_t, write, int, const void *, size_t)(file, data, size);
}

int fsync(int file)
{
    return fails(",fsync,", ENOSPC) ? -1 : NEXT(int, fsync, int)(file);
}

ssize_t sendmsg(int connection, const struct msghdr *message, int flags)
{
    if (fails(",send,", EPIPE))
        return -1;
    return NEXT(ssize_t, sendmsg, int, const struct msghdr *, int)(connection, message, flags);
}

ssize_t send(int connection, const void *data, size_t size, int flags)
{
    if (fails(",send,", EPIPE))
        return -1;
    return NEXT(ssize_t, send, int, const void *, size_t, int)(connection, data, size, flags);
}
