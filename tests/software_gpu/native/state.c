/* The state that all processes of a run share, the time, and the devices' names. */
#include "device.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct shared {
    uint64_t magic;
    pthread_mutex_t mutex;
    struct sg_device devices[SG_MAX_DEVICES];
};
static const uint64_t MAGIC = 0x736f66747761724;
static struct shared *shared;
static pthread_once_t opened = PTHREAD_ONCE_INIT;

static void initialize(struct shared *fresh) {
    memset(fresh, 0, sizeof *fresh);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&fresh->mutex, &attributes);
    fresh->magic = MAGIC;
}

static void open_state(void) {
    char path[300];
    sg_load_settings();
    if (!sg_settings.directory[0])
        return;
    snprintf(path, sizeof path, "%s/memory", sg_settings.directory);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/state", sg_settings.directory);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || flock(fd, LOCK_EX) || ftruncate(fd, sizeof(struct shared))) {
        sg_log("cannot use %s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return;
    }
    struct shared *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped != MAP_FAILED) {
        if (mapped->magic != MAGIC)
            initialize(mapped);
        shared = mapped;
    }
    flock(fd, LOCK_UN); /* the mapping would keep it */
    close(fd);
}

bool sg_has_devices(void) {
    pthread_once(&opened, open_state);
    return shared && sg_settings.devices > 0;
}

struct sg_device *sg_device(int device) {
    pthread_once(&opened, open_state);
    return &shared->devices[device];
}

static bool is_stopped(pid_t thread) {
    char path[64], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", thread);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[length < 0 ? 0 : length] = 0;
    const char *name_end = strrchr(text, ')');
    return name_end && !strncmp(name_end, ") T", 3);
}

/* The thread that has the mutex, or 0. Only this word of glibc's changes in the same instant as the mutex itself. */
static pid_t mutex_holder(void) {
    return __atomic_load_n(&shared->mutex.__data.__lock, __ATOMIC_ACQUIRE) & FUTEX_TID_MASK;
}

/* Let a thread that we trace go on from where it last stopped, if it has; return whether it still lives. */
static bool trace_on(pid_t traced, bool detach, int options) {
    int status;
    pid_t waited = waitpid(traced, &status, __WALL | options);
    if (waited == 0)
        return true;
    if (waited < 0 || !WIFSTOPPED(status))
        return false;
    /* a signal is handed on; what else stops it comes with an event in the upper half */
    long number = status >> 16 ? 0 : WSTOPSIG(status);
    return !ptrace(detach ? PTRACE_DETACH : PTRACE_CONT, traced, NULL, (void *)number);
}

/* A process that is stopped (SIGSTOP) first leaves a driver in the kernel, which has locks only there. This one may
 * have to go on until it has released the mutex. Its thread alone is let go on, by tracing it: with SIGCONT and another
 * SIGSTOP the SIGCONT of somebody else that comes in between would be lost, and the process stopped for ever. Once it
 * is not traced any more, the kernel has it stop again if, and only if, its process still is to be stopped. */
static int lock_mutex(void) {
    pid_t traced = 0;
    for (;;) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += traced ? 1000000 : 20000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        int result = pthread_mutex_timedlock(&shared->mutex, &until);
        if (result != ETIMEDOUT) {
            if (traced && !ptrace(PTRACE_INTERRUPT, traced, NULL, NULL))
                trace_on(traced, true, 0);
            return result;
        }
        if (traced && !trace_on(traced, false, WNOHANG))
            traced = 0;
        pid_t holder = traced ? 0 : mutex_holder();
        if (holder && is_stopped(holder) && !ptrace(PTRACE_SEIZE, holder, NULL, NULL))
            traced = holder;
    }
}

void sg_lock(void) {
    if (lock_mutex() == EOWNERDEAD) { /* somebody died while changing the figures */
        pthread_mutex_consistent(&shared->mutex);
        for (int i = 0; i < SG_MAX_DEVICES; i++)
            shared->devices[i].used = sg_recount_memory(i);
    }
}

void sg_unlock(void) { pthread_mutex_unlock(&shared->mutex); }

int64_t sg_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

int64_t sg_wall_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec * 1000000ll + now.tv_nsec / 1000;
}

/* NVML samples a process about six times a second, and only while it uses the device. That rate is read off public
 * outputs of nvidia-smi; drivers differ. */
void sg_take_sample(struct sg_process *process, int64_t now_us) {
    int64_t passed = now_us - process->sampled_us, busy = process->busy_ns;
    if (passed < 166000)
        return;
    if (process->sampled_us && busy != process->sampled_busy_ns) {
        int64_t percent = (busy - process->sampled_busy_ns) / 10 / passed;
        struct sg_sample *sample = &process->samples[process->num_samples++ % SG_MAX_SAMPLES];
        *sample = (struct sg_sample){.us = now_us, .percent = percent > 100 ? 100 : percent};
    }
    process->sampled_us = now_us;
    process->sampled_busy_ns = busy;
}

void sg_uuid(int device, unsigned char bytes[16]) {
    for (int i = 0; i < 16; i++)
        bytes[i] = 0x5f + 7 * i;
    bytes[15] = device;
}

void sg_uuid_text(int device, char *text, size_t size) {
    unsigned char u[16];
    sg_uuid(device, u);
    snprintf(text, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", sg_settings.mig ? "MIG" : "GPU",
             u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

/* MIG instances are parts of one card, and a process of CUDA's sees one of them at most. */
static int num_cards(void) { return sg_settings.mig ? 1 : sg_settings.devices; }

static int find_device(const char *word) {
    if (strncmp(word, "GPU-", 4) && strncmp(word, "MIG-", 4)) {
        char *end;
        long number = strtol(word, &end, 10);
        return !*end && number >= 0 && number < num_cards() ? (int)number : -1;
    }
    for (int device = 0; device < sg_settings.devices; device++) {
        char name[64];
        sg_uuid_text(device, name, sizeof name);
        if (!strncmp(name, word, strlen(word)))
            return device;
    }
    return -1;
}

int sg_visible_devices(int devices[SG_MAX_DEVICES]) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0, most = sg_settings.mig ? 1 : SG_MAX_DEVICES;
    if (!visible) {
        for (; count < num_cards(); count++)
            devices[count] = count;
        return count;
    }
    char copy[1024], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", visible);
    for (char *word = strtok_r(copy, ", ", &rest); word && count < most; word = strtok_r(NULL, ", ", &rest)) {
        int device = find_device(word);
        if (device < 0)
            break; /* CUDA shows those before the first that is wrong */
        devices[count++] = device;
    }
    return count;
}
