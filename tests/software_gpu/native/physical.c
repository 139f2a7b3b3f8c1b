/* Physical device memory: files of a tmpfs, counted against one capacity for all processes.
 *
 * A piece of memory lives while any process has a handle, a mapping or an exported descriptor of it, as CUDA's does.
 * Each of those is an open file description of its own, locked shared (flock). The kernel drops that lock with the last
 * reference in any process, so "can it be locked exclusively?" answers "is this memory free?" also after `kill -9`, and
 * for descriptors on their way through a socket. What a process releases it unlocks: a forked child, which has copies of
 * its parent's descriptors, keeps only what the parent had when it died. A file's name says whose it is:
 * `device.pid.number.size`; pid 0 marks memory that its creator released while others still had it. */
#include "device.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct piece {
    int device, pid;
    long number;
    int64_t size;
};

static bool parse(const char *name, struct piece *piece) {
    return sscanf(name, "%d.%d.%ld.%ld", &piece->device, &piece->pid, &piece->number, &piece->size) == 4;
}

static void memory_path(char *path, size_t size, const char *name) {
    snprintf(path, size, "%s/memory/%s", sg_settings.directory, name);
}

static DIR *open_memory_directory(void) {
    char path[300];
    memory_path(path, sizeof path, "");
    return opendir(path);
}

/* Whether a process is gone, or has ended and only waits to be reaped: the driver frees its memory at once. */
static bool is_dead(pid_t pid) {
    char path[64], text[512];
    if (pid <= 0 || (kill(pid, 0) && errno == ESRCH))
        return true;
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (length <= 0)
        return false;
    text[length] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && !strncmp(name_end, ") Z", 3);
}

int64_t sg_recount_memory(int device) {
    int64_t used = 0;
    struct piece piece;
    DIR *directory = open_memory_directory();
    for (struct dirent *entry; directory && (entry = readdir(directory));)
        if (parse(entry->d_name, &piece) && piece.device == device)
            used += piece.size;
    if (directory)
        closedir(directory);
    return used;
}

/* Free what no process has any more. Only memory of dead processes is looked at: the living free their own. */
static void sweep(int device) {
    struct piece piece;
    pid_t last = 0; /* most pieces of one process come one after the other */
    bool is_last_dead = true;
    DIR *directory = open_memory_directory();
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!strncmp(entry->d_name, "new-", 4) && is_dead(atoi(entry->d_name + 4)))
            unlinkat(dirfd(directory), entry->d_name, 0);
        if (!parse(entry->d_name, &piece) || piece.device != device)
            continue;
        if (piece.pid != last) {
            last = piece.pid;
            is_last_dead = is_dead(last);
        }
        if (!is_last_dead)
            continue;
        int fd = openat(dirfd(directory), entry->d_name, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            continue;
        if (!flock(fd, LOCK_EX | LOCK_NB) && !unlinkat(dirfd(directory), entry->d_name, 0))
            sg_device(device)->used -= piece.size;
        close(fd);
    }
    if (directory)
        closedir(directory);
}

/* Open a file. High numbers leave the low ones to programs that use select. */
static int open_high(const char *path, int flags) {
    int low = open(path, O_RDWR | O_CLOEXEC | flags, 0600);
    if (low < 0)
        return -1;
    int high = fcntl(low, F_DUPFD_CLOEXEC, 4096);
    if (high < 0)
        return low;
    close(low);
    return high;
}

int sg_create_memory(int device, int64_t size) {
    static long counter; /* sg_lock held */
    struct sg_device *state = sg_device(device);
    sg_lock();
    if (state->used + size > sg_settings.capacity)
        sweep(device);
    if (state->used + size > sg_settings.capacity) {
        sg_unlock();
        errno = ENOMEM;
        return -1;
    }
    char name[128], unnamed[400], path[400];
    long number = ++counter;
    snprintf(name, sizeof name, "new-%d.%ld", getpid(), number);
    memory_path(unnamed, sizeof unnamed, name);
    snprintf(name, sizeof name, "%d.%d.%ld.%ld", device, getpid(), number, size);
    memory_path(path, sizeof path, name);
    int fd = open_high(unnamed, O_CREAT | O_EXCL);
    if (fd < 0 || ftruncate(fd, size) || flock(fd, LOCK_SH) || rename(unnamed, path)) {
        int error = errno;
        sg_log("cannot create %s: %s", path, strerror(error));
        if (fd >= 0)
            close(fd);
        unlink(unnamed);
        sg_unlock();
        errno = error == ENOMEM ? ENOSPC : error; /* ENOMEM means a full device */
        return -1;
    }
    state->used += size;
    sg_unlock();
    return fd;
}

int sg_share_memory(int descriptor) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    int fd = open_high(link, 0);
    if (fd >= 0 && flock(fd, LOCK_SH)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* Mark memory that others still have as no living process's own, so that a sweep looks at it. */
static void orphan(const char *path) {
    struct piece piece;
    const char *base = strrchr(path, '/');
    if (!base || !parse(base + 1, &piece) || piece.pid != getpid())
        return;
    char name[512];
    snprintf(name, sizeof name, "%.*s/%d.0.%ld.%ld", (int)(base - path), path, piece.device,
             ((long)piece.pid << 32) | piece.number, piece.size);
    rename(path, name);
}

void sg_close_memory(int descriptor, int device, int64_t size, bool created_here) {
    char link[64], path[400];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    sg_lock();
    int probe = open(link, O_RDWR | O_CLOEXEC); /* a description of its own, which has no lock */
    flock(descriptor, LOCK_UN);
    close(descriptor);
    ssize_t length = -1;
    if (probe >= 0) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", probe);
        length = readlink(link, path, sizeof path - 1);
    }
    if (length > 0) {
        path[length] = 0;
        if (!flock(probe, LOCK_EX | LOCK_NB)) {
            if (!unlink(path))
                sg_device(device)->used -= size;
        } else if (created_here)
            orphan(path);
    }
    if (probe >= 0)
        close(probe);
    sg_unlock();
}

bool sg_is_memory(int descriptor, int *device, int64_t *size) {
    char link[64], path[400], directory[400];
    struct piece piece;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length <= 0)
        return false;
    path[length] = 0;
    char *real = realpath(sg_settings.directory, NULL);
    if (!real)
        return false;
    length = snprintf(directory, sizeof directory, "%s/memory/", real);
    free(real);
    if (strncmp(path, directory, length) || !parse(path + length, &piece))
        return false;
    *device = piece.device;
    *size = piece.size;
    return true;
}

int64_t sg_used_memory(int device) {
    sg_lock();
    sweep(device);
    int64_t used = sg_device(device)->used;
    sg_unlock();
    return used;
}

/* NVML counts memory for the process that created it; whom it counts imported memory for is a guess. */
int sg_memory_by_process(int device, struct sg_usage *usage, int max) {
    int count = 0;
    struct piece piece;
    sg_lock();
    sweep(device);
    DIR *directory = open_memory_directory();
    for (struct dirent *entry; directory && (entry = readdir(directory));) {
        if (!parse(entry->d_name, &piece) || piece.device != device || is_dead(piece.pid))
            continue;
        int i = 0;
        while (i < count && usage[i].pid != piece.pid)
            i++;
        if (i == max)
            continue;
        if (i == count)
            usage[count++] = (struct sg_usage){.pid = piece.pid};
        usage[i].bytes += piece.size;
    }
    if (directory)
        closedir(directory);
    sg_unlock();
    return count;
}
