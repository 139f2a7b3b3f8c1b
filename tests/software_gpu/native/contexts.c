/* Initialization, errors and contexts.
 *
 * One primary context for each device, made when it is first needed; it takes memory of the device, as a real one does.
 * After a fork the child cannot use the driver, if the parent had initialized it. An illegal access makes its context
 * return that error from every later call. */
#include "driver.h"
#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int num_devices, device_numbers[SG_MAX_DEVICES];
struct CUctx_st contexts[SG_MAX_DEVICES];
struct sg_process *own_process[SG_MAX_DEVICES];

static pthread_mutex_t driver_lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static bool is_initialized, is_forked;
enum { MAX_DEPTH = 16 };
static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

pthread_mutex_t *lock_driver(void) {
    pthread_mutex_lock(&driver_lock);
    return &driver_lock;
}

void unlock_driver(pthread_mutex_t **held) { pthread_mutex_unlock(*held); }

static void after_fork_in_child(void) {
    pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    driver_lock = fresh;
    is_forked = is_initialized;
}

/* --- errors ------------------------------------------------------------------------------------------------------- */

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "operation failed due to a previous error during capture"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};
enum { NUM_ERRORS = sizeof errors / sizeof *errors };

API cuGetErrorName(CUresult error, const char **name) {
    for (int i = 0; i < NUM_ERRORS; i++)
        if (errors[i].code == error) {
            *name = errors[i].name;
            return 0;
        }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

API cuGetErrorString(CUresult error, const char **text) {
    for (int i = 0; i < NUM_ERRORS; i++)
        if (errors[i].code == error) {
            *text = errors[i].text;
            return 0;
        }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult log_failure(const char *call, CUresult code) {
    if (code && code != CUDA_ERROR_NOT_READY)
        sg_log("%s: error %d", call, code);
    return code;
}

/* Whether one of the comma-separated names is *call*, with or without its version's suffix. */
static bool is_listed(const char *names, const char *call) {
    size_t length = strlen(call);
    if (length > 3 && !strncmp(call + length - 3, "_v", 2))
        length -= 3;
    for (const char *name = names; name && *name; name = strchr(name, ',') ? strchr(name, ',') + 1 : NULL)
        if (!strncmp(name, call, length) && (name[length] == ',' || !name[length]))
            return true;
    return false;
}

/* FAIL_RATE of the calls named by FAIL_CALLS fail, as with a full device or a driver in trouble. The same ones in each
 * process and with each run of a seed, where calls come in the same order. */
static CUresult injected_failure(const char *call) {
    static _Atomic uint64_t state;
    if (sg_settings.fail_rate <= 0 || !is_listed(sg_settings.fail_calls, call))
        return 0;
    uint64_t seed = sg_settings.fail_seed * 0xd1342543de82ef95ull, number = ++state; /* splitmix64 */
    uint64_t z = seed + number * 0x9e3779b97f4a7c15ull;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    if ((z >> 11) * 0x1p-53 >= sg_settings.fail_rate)
        return 0;
    bool allocates = strstr(call, "Create") || strstr(call, "Alloc") || strstr(call, "Reserve");
    sg_log("%s: failure number %lu injected", call, number);
    return allocates ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM;
}

/* --- what a program asks of the driver: how often each call came, and for how much ---------------------------------- */

static struct {
    const char *_Atomic call; /* __func__ of it, one place for each */
    _Atomic uint64_t times, amount;
} counts[256];

static void count(const char *call, uint64_t times, uint64_t amount) {
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *known = NULL;
        if (counts[i].call == call || atomic_compare_exchange_strong(&counts[i].call, &known, call) || known == call) {
            counts[i].times += times;
            counts[i].amount += amount;
            return;
        }
    }
}

void count_amount(const char *call, size_t amount) { count(call, 0, amount); }

EXPORTED size_t sg_counts(char *text, size_t size) {
    size_t length = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts && counts[i].call && length < size; i++)
        length += snprintf(text + length, size - length, "%s %lu %lu\n", (const char *)counts[i].call,
                           (unsigned long)counts[i].times, (unsigned long)counts[i].amount);
    return length;
}

static CUresult begin_call(const char *call) {
    count(call, 1, 0);
    if (sg_settings.delay_ns && is_listed(sg_settings.delay_calls, call))
        wait_until(sg_now() + sg_settings.delay_ns);
    return injected_failure(call);
}

CUresult enter_call(const char *call) {
    if (!is_initialized || is_forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    return begin_call(call);
}

CUcontext current_context(void) { return depth ? stack[depth - 1] : NULL; }

CUresult enter_call_in_context(const char *call, CUcontext *context) {
    if (!is_initialized || is_forked)
        return CUDA_ERROR_NOT_INITIALIZED;
    *context = current_context();
    if (!*context || !(*context)->active)
        return CUDA_ERROR_INVALID_CONTEXT;
    if ((*context)->error)
        return (*context)->error;
    return begin_call(call);
}

/* --- initialization ----------------------------------------------------------------------------------------------- */

API cuInit(unsigned int flags) {
    LOCKED;
    if (flags)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    if (is_forked)
        FAIL(CUDA_ERROR_NOT_INITIALIZED);
    if (is_initialized)
        return 0;
    if (!sg_has_devices() || !(num_devices = sg_visible_devices(device_numbers)))
        FAIL(CUDA_ERROR_NO_DEVICE);
    if (!create_page_table())
        FAIL(CUDA_ERROR_OPERATING_SYSTEM);
    for (int i = 0; i < num_devices; i++) {
        contexts[i].ordinal = i;
        contexts[i].device = device_numbers[i];
        contexts[i].memory = -1;
        initialize_default_stream(i);
    }
    pthread_atfork(NULL, NULL, after_fork_in_child);
    is_initialized = true;
    return 0;
}

API cuDriverGetVersion(int *version) {
    *version = CUDA_VERSION;
    return 0;
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */

static void register_process(int ordinal) {
    struct sg_device *device = sg_device(device_numbers[ordinal]);
    sg_lock();
    for (int i = 0; i < SG_MAX_PROCESSES; i++) {
        struct sg_process *process = &device->processes[i];
        bool is_taken = process->pid && process->pid != getpid() && (!kill(process->pid, 0) || errno != ESRCH);
        if (is_taken)
            continue;
        memset(process, 0, sizeof *process);
        process->pid = getpid();
        own_process[ordinal] = process;
        break;
    }
    sg_unlock();
}

/* The library that computes torch's operations; it refers to torch's, so it comes when a program uses the device. */
static void load_operations(void) {
    static bool is_loaded;
    LOCKED;
    if (is_loaded || !sg_settings.operations[0])
        return;
    void *torch = dlopen("libtorch_python.so", RTLD_NOW | RTLD_NOLOAD);
    if (!torch)
        return;
    dlclose(torch);
    is_loaded = true;
    if (!dlopen(sg_settings.operations, RTLD_NOW | RTLD_GLOBAL)) {
        fprintf(stderr, "software GPU: %s\n", dlerror());
        abort();
    }
}

static CUresult activate(CUcontext context) {
    LOCKED;
    if (context->active)
        return 0;
    if (sg_settings.context > 0) {
        context->memory = sg_create_memory(context->device, sg_settings.context);
        if (context->memory < 0)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    register_process(context->ordinal);
    context->active = true;
    context->error = 0;
    return 0;
}

int sg_use_device(int ordinal) {
    CUresult result = cuInit(0);
    if (result)
        return result;
    if (ordinal < 0 || ordinal >= num_devices)
        return CUDA_ERROR_INVALID_DEVICE;
    result = activate(&contexts[ordinal]);
    if (result)
        return result;
    if (!depth)
        depth = 1;
    stack[depth - 1] = &contexts[ordinal];
    load_operations();
    return 0;
}

#define VALID_DEVICE(device)                                                                                           \
    INITIALIZED;                                                                                                       \
    if ((device) < 0 || (device) >= num_devices)                                                                       \
    FAIL(CUDA_ERROR_INVALID_DEVICE)

API cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    VALID_DEVICE(device);
    LOCKED;
    TRY(activate(&contexts[device]));
    contexts[device].retained++;
    *context = &contexts[device];
    return 0;
}

/* The context stays: nothing here uses a GPU on which releasing the last reference gives its memory back. */
API cuDevicePrimaryCtxRelease(CUdevice device) {
    VALID_DEVICE(device);
    LOCKED;
    if (contexts[device].retained > 0)
        contexts[device].retained--;
    return 0;
}

API cuDevicePrimaryCtxReset(CUdevice device) {
    VALID_DEVICE(device);
    FAIL(CUDA_ERROR_NOT_SUPPORTED);
}

API cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned flags) {
    VALID_DEVICE(device);
    contexts[device].flags = flags;
    return 0;
}

API cuDevicePrimaryCtxGetState(CUdevice device, unsigned *flags, int *active) {
    VALID_DEVICE(device);
    *flags = contexts[device].flags;
    *active = contexts[device].active;
    return 0;
}

API cuCtxGetCurrent(CUcontext *context) {
    INITIALIZED;
    *context = current_context();
    return 0;
}

API cuCtxSetCurrent(CUcontext context) {
    INITIALIZED;
    if (!context) {
        if (depth)
            depth--;
        return 0;
    }
    if (!depth)
        depth = 1;
    stack[depth - 1] = context;
    return 0;
}

API cuCtxPushCurrent(CUcontext context) {
    INITIALIZED;
    if (!context || depth == MAX_DEPTH)
        FAIL(CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = context;
    return 0;
}

API cuCtxPopCurrent(CUcontext *context) {
    INITIALIZED;
    if (!depth)
        FAIL(CUDA_ERROR_INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    return 0;
}

API cuCtxGetDevice(CUdevice *device) {
    IN_CONTEXT;
    *device = context->ordinal;
    return 0;
}

API cuCtxGetFlags(unsigned *flags) {
    IN_CONTEXT;
    *flags = context->flags;
    return 0;
}

API cuCtxSetLimit(CUlimit limit, size_t value) {
    IN_CONTEXT;
    return 0;
}

API cuCtxGetLimit(size_t *value, CUlimit limit) {
    IN_CONTEXT;
    *value = 1024;
    return 0;
}

API cuCtxGetApiVersion(CUcontext context, unsigned *version) {
    *version = CUDA_VERSION;
    return 0;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    IN_CONTEXT;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return 0;
}

API cuCtxSynchronize(void) {
    IN_CONTEXT;
    if (is_capture_unsafe(CU_STREAM_CAPTURE_MODE_RELAXED))
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    wait_until(context->busy_until);
    FAIL(context->error);
}
