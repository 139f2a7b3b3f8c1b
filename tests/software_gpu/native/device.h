/* What the driver, the runtime and NVML share: settings, the state of the devices, and their memory.
 *
 * All processes of a run see the same devices through files in one directory (SOFTWARE_GPU_DIRECTORY):
 *
 *     settings   KEY=VALUE lines, for processes whose environment is scrubbed
 *     state      struct sg_device of each device, mapped by every process
 *     memory/    one file for each piece of device memory
 *
 * Without that directory this machine has no GPU: cuInit and nvmlInit say so. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define EXPORTED __attribute__((visibility("default")))

/* Granularity of device memory: that of all current NVIDIA GPUs. */
#define SG_UNIT (2ul << 20)
#define SG_MAX_DEVICES 8
#define SG_MAX_PROCESSES 256
#define SG_MAX_SAMPLES 32

struct sg_sample {
    int64_t us; /* of CLOCK_REALTIME, as NVML counts */
    unsigned percent;
};

/* A process that has a context on one device. */
struct sg_process {
    pid_t pid;
    _Atomic int64_t busy_ns; /* device time it has used */
    int64_t sampled_busy_ns, sampled_us;
    unsigned num_samples; /* ever taken; the last SG_MAX_SAMPLES are kept */
    struct sg_sample samples[SG_MAX_SAMPLES];
};

struct sg_device {
    int64_t used;               /* bytes; changed with sg_lock held */
    _Atomic int64_t busy_until; /* ns of CLOCK_MONOTONIC at which everything queued by anybody is done */
    struct sg_process processes[SG_MAX_PROCESSES];
};

/* README.md says what each setting does. */
struct sg_settings {
    char directory[256];
    int devices;
    int64_t capacity, context; /* bytes of a device and of one context */
    int64_t kernel_ns;         /* device time of one kernel */
    bool serial, mig;
    char fault[128], log[256], operations[256], name[96];
    double fail_rate;
    uint64_t fail_seed;
    char fail_calls[512];
    int64_t delay_ns; /* of the calls in delay_calls */
    char delay_calls[512];
};
extern EXPORTED struct sg_settings sg_settings;

/* settings.c */
void sg_load_settings(void);
void sg_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Log who calls. */
void sg_log_stack(void);

/* state.c */
EXPORTED bool sg_has_devices(void); /* false where there is no usable directory */
EXPORTED struct sg_device *sg_device(int device);
EXPORTED void sg_lock(void);
EXPORTED void sg_unlock(void);
EXPORTED void sg_take_sample(struct sg_process *process, int64_t now_us); /* sg_lock held */
EXPORTED void sg_uuid(int device, unsigned char bytes[16]);
EXPORTED void sg_uuid_text(int device, char *text, size_t size);
int sg_visible_devices(int devices[SG_MAX_DEVICES]); /* those that CUDA_VISIBLE_DEVICES shows; returns how many */
int64_t sg_now(void);                                /* ns of CLOCK_MONOTONIC */
EXPORTED int64_t sg_wall_us(void);

/* physical.c */
struct sg_usage {
    pid_t pid;
    int64_t bytes;
};
int sg_create_memory(int device, int64_t size); /* a descriptor; -1, with errno ENOMEM where the device is full */
int sg_share_memory(int descriptor); /* another one, for whom it lives as well; -1 where no descriptor is left */
void sg_close_memory(int descriptor, int device, int64_t size, bool created_here);
bool sg_is_memory(int descriptor, int *device, int64_t *size);
int64_t sg_recount_memory(int device);
EXPORTED int64_t sg_used_memory(int device);
EXPORTED int sg_memory_by_process(int device, struct sg_usage *usage, int max);
