/* libnvidia-ml.so.1: what NVML says of the devices, from the files that all processes share.
 *
 * Without nvml.h, which no package has: structures are written out as that header defines them. Guesses: NVML's figures
 * have no memory of the system's own in them, processes are listed with their contexts' memory, and process numbers are
 * those of the caller's namespace. */
#include "device.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API EXPORTED int
enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
};
enum { MAX_LISTED = 512 };

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_info {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_info_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process_utilization {
    unsigned pid;
    unsigned long long us;
    unsigned sm, memory, encoder, decoder;
};

static int num_users;

static bool is_device(int device) { return device >= 0 && device < sg_settings.devices; }
static void *handle_of(int device) { return (void *)(intptr_t)(device + 1); }
/* The card whose instances the devices are (setting MIG), of which only what a program needs to find them is here. */
static void *const card = (void *)(intptr_t)(SG_MAX_DEVICES + 1);
static int write_text(char *to, unsigned size, const char *from) {
    if (strlen(from) + 1 > size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

#define INITIALIZED                                                                                                    \
    if (!num_users)                                                                                                    \
    return UNINITIALIZED
#define CARD(handle)                                                                                                   \
    INITIALIZED;                                                                                                       \
    if (!sg_settings.mig || (handle) != card)                                                                          \
    return INVALID
#define DEVICE(handle)                                                                                                 \
    int device = (int)(intptr_t)(handle) - 1;                                                                          \
    INITIALIZED;                                                                                                       \
    if (!is_device(device))                                                                                            \
    return INVALID

/* --- the system --------------------------------------------------------------------------------------------------- */

API nvmlInit_v2(void) {
    if (!sg_has_devices())
        return DRIVER_NOT_LOADED;
    num_users++;
    return SUCCESS;
}
API nvmlInit(void) { return nvmlInit_v2(); }
API nvmlInitWithFlags(unsigned flags) { return nvmlInit_v2(); }

API nvmlShutdown(void) {
    INITIALIZED;
    num_users--;
    return SUCCESS;
}

EXPORTED const char *nvmlErrorString(int error) {
    switch (error) {
    case SUCCESS:
        return "Success";
    case UNINITIALIZED:
        return "Uninitialized";
    case INVALID:
        return "Invalid Argument";
    case NOT_SUPPORTED:
        return "Not Supported";
    case NOT_FOUND:
        return "Not Found";
    case INSUFFICIENT_SIZE:
        return "Insufficient Size";
    case DRIVER_NOT_LOADED:
        return "Driver Not Loaded";
    default:
        return "Unknown Error";
    }
}

API nvmlSystemGetDriverVersion(char *text, unsigned size) { return write_text(text, size, "580.65.06"); }
API nvmlSystemGetNVMLVersion(char *text, unsigned size) { return write_text(text, size, "13.580.65.06"); }
API nvmlSystemGetCudaDriverVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}
API nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

/* --- devices ------------------------------------------------------------------------------------------------------ */

API nvmlDeviceGetCount_v2(unsigned *count) {
    INITIALIZED;
    *count = sg_settings.mig ? 1 : sg_settings.devices;
    return SUCCESS;
}

API nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    INITIALIZED;
    if (!is_device((int)index) || (sg_settings.mig && index))
        return INVALID;
    *handle = sg_settings.mig ? card : handle_of((int)index);
    return SUCCESS;
}

API nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    INITIALIZED;
    for (int device = 0; device < sg_settings.devices; device++) {
        char text[64];
        sg_uuid_text(device, text, sizeof text);
        if (!strcmp(text, uuid)) {
            *handle = handle_of(device);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **handle) {
    INITIALIZED;
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) != 2 || !is_device((int)bus - 1))
        return NOT_FOUND;
    *handle = handle_of((int)bus - 1);
    return SUCCESS;
}

API nvmlDeviceGetIndex(void *handle, unsigned *index) {
    DEVICE(handle);
    *index = device;
    return SUCCESS;
}

API nvmlDeviceGetUUID(void *handle, char *text, unsigned size) {
    DEVICE(handle);
    char uuid[64];
    sg_uuid_text(device, uuid, sizeof uuid);
    return write_text(text, size, uuid);
}

API nvmlDeviceGetName(void *handle, char *text, unsigned size) {
    DEVICE(handle);
    return write_text(text, size, sg_settings.name);
}

#define CONSTANT(name, type, value)                                                                                    \
    API name(void *handle, type *result) {                                                                             \
        DEVICE(handle);                                                                                                \
        *result = value;                                                                                               \
        return SUCCESS;                                                                                                \
    }
CONSTANT(nvmlDeviceGetComputeMode, int, 0)
CONSTANT(nvmlDeviceGetPersistenceMode, int, 1)

API nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    DEVICE(handle);
    *milliwatts = 70000;
    return sg_settings.mig ? NOT_SUPPORTED : SUCCESS;
}

/* An instance has no sensor of its own, and no meter of what it draws. */
API nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *degrees) {
    INITIALIZED;
    if (sg_settings.mig ? handle != card : !is_device((int)(intptr_t)handle - 1))
        return NOT_SUPPORTED;
    *degrees = 40;
    return SUCCESS;
}

API nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    DEVICE(handle);
    *major = 9;
    *minor = 0;
    return SUCCESS;
}

API nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned link, int *type) { return NOT_SUPPORTED; }
API nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned link, void *info) { return NOT_SUPPORTED; }
API nvmlDeviceGetGpuFabricInfoV(void *handle, void *info) { return NOT_SUPPORTED; }

/* --- MIG instances ------------------------------------------------------------------------------------------------ */

API nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    INITIALIZED;
    *current = *pending = 1;
    return sg_settings.mig && handle == card ? SUCCESS : NOT_SUPPORTED;
}

API nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) {
    CARD(handle);
    *count = SG_MAX_DEVICES;
    return SUCCESS;
}

API nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **instance) {
    CARD(handle);
    *instance = handle_of((int)index);
    return is_device((int)index) ? SUCCESS : NOT_FOUND;
}

API nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *is_instance) {
    INITIALIZED;
    *is_instance = sg_settings.mig && handle != card;
    return SUCCESS;
}

API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **result) {
    DEVICE(handle);
    *result = card;
    return sg_settings.mig ? SUCCESS : INVALID;
}

API nvmlDeviceGetGpuInstanceId(void *handle, unsigned *id) {
    DEVICE(handle);
    *id = device;
    return sg_settings.mig ? SUCCESS : INVALID;
}

/* What Hopper and newer count of an instance, as two samples: device time of all its processes, and the time. */
struct gpm_sample {
    int64_t busy_ns, us;
};
struct gpm_metric {
    unsigned id;
    int result;
    double value;
    const char *names[3];
};
struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metrics[];
};
enum { GRAPHICS_UTIL = 1 };

API nvmlGpmSampleAlloc(struct gpm_sample **sample) {
    INITIALIZED;
    *sample = calloc(1, sizeof **sample);
    return SUCCESS;
}

API nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return SUCCESS;
}

API nvmlGpmMigSampleGet(void *handle, unsigned id, struct gpm_sample *sample) {
    CARD(handle);
    if (!is_device((int)id))
        return INVALID;
    struct sg_device *state = sg_device((int)id);
    sg_lock();
    *sample = (struct gpm_sample){.us = sg_wall_us()};
    for (int i = 0; i < SG_MAX_PROCESSES; i++)
        sample->busy_ns += state->processes[i].pid ? state->processes[i].busy_ns : 0;
    sg_unlock();
    return SUCCESS;
}

API nvmlGpmMetricsGet(struct gpm_metrics *asked) {
    INITIALIZED;
    for (unsigned i = 0; i < asked->count; i++) {
        struct gpm_metric *metric = &asked->metrics[i];
        double percent = (asked->second->busy_ns - asked->first->busy_ns) / 10.0 /
                         (double)(asked->second->us - asked->first->us + 1);
        metric->result = metric->id == GRAPHICS_UTIL ? SUCCESS : NOT_SUPPORTED;
        metric->value = percent < 0 ? 0 : percent > 100 ? 100 : percent;
    }
    return SUCCESS;
}

/* --- memory and processes ----------------------------------------------------------------------------------------- */

API nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    DEVICE(handle);
    memory->total = sg_settings.capacity;
    memory->used = sg_used_memory(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

API nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *memory) {
    DEVICE(handle);
    memory->total = sg_settings.capacity;
    memory->reserved = 0;
    memory->used = sg_used_memory(device);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

API nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process_info *infos) {
    DEVICE(handle);
    struct sg_usage usage[MAX_LISTED];
    unsigned found = (unsigned)sg_memory_by_process(device, usage, MAX_LISTED), room = *count;
    *count = found;
    if (room < found)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        infos[i] = (struct process_info){usage[i].pid, usage[i].bytes, 0xffffffff, 0xffffffff};
    return SUCCESS;
}
/* What torch calls when memory lacks, with room for so many of the small structures as were found the time before. */
API nvmlDeviceGetComputeRunningProcesses(void *handle, unsigned *count, struct process_info_v1 *infos) {
    DEVICE(handle);
    struct sg_usage usage[MAX_LISTED];
    unsigned found = (unsigned)sg_memory_by_process(device, usage, MAX_LISTED), room = *count;
    *count = found;
    if (room < found)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < found; i++)
        infos[i] = (struct process_info_v1){usage[i].pid, usage[i].bytes};
    return SUCCESS;
}
API nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process_info *infos) {
    return nvmlDeviceGetComputeRunningProcesses_v3(handle, count, infos);
}

API nvmlDeviceGetMPSComputeRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    DEVICE(handle);
    *count = 0;
    return SUCCESS;
}
API nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, void *infos) {
    return nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, count, infos);
}

/* --- use ---------------------------------------------------------------------------------------------------------- */

API nvmlDeviceGetUtilizationRates(void *handle, unsigned rates[2]) {
    DEVICE(handle);
    if (sg_settings.mig)
        return NOT_SUPPORTED;
    struct sg_device *state = sg_device(device);
    int64_t now = sg_wall_us();
    unsigned sum = 0;
    sg_lock();
    for (int i = 0; i < SG_MAX_PROCESSES; i++) {
        struct sg_process *process = &state->processes[i];
        if (!process->pid)
            continue;
        sg_take_sample(process, now);
        struct sg_sample *last = &process->samples[(process->num_samples + SG_MAX_SAMPLES - 1) % SG_MAX_SAMPLES];
        if (process->num_samples && now - last->us < 1000000)
            sum += last->percent;
    }
    sg_unlock();
    rates[0] = sum > 100 ? 100 : sum;
    rates[1] = 0;
    return SUCCESS;
}

API nvmlDeviceGetProcessUtilization(void *handle, struct process_utilization *list, unsigned *count,
                                    unsigned long long since) {
    DEVICE(handle);
    if (sg_settings.mig)
        return NOT_SUPPORTED;
    struct sg_device *state = sg_device(device);
    int64_t now = sg_wall_us();
    unsigned found = 0, room = list ? *count : 0;
    sg_lock();
    for (int i = 0; i < SG_MAX_PROCESSES; i++) {
        struct sg_process *process = &state->processes[i];
        if (!process->pid)
            continue;
        sg_take_sample(process, now);
        unsigned end = process->num_samples;
        for (unsigned k = end > SG_MAX_SAMPLES ? end - SG_MAX_SAMPLES : 0; k < end; k++) {
            struct sg_sample *sample = &process->samples[k % SG_MAX_SAMPLES];
            if (sample->us <= (int64_t)since)
                continue;
            if (found < room)
                list[found] = (struct process_utilization){process->pid, sample->us, sample->percent, 0, 0, 0};
            found++;
        }
    }
    sg_unlock();
    *count = found;
    return !found ? NOT_FOUND : found > room ? INSUFFICIENT_SIZE : SUCCESS;
}
