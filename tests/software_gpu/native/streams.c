/* Streams and events: until when each is busy.
 *
 * The default stream waits for all blocking streams of its context, and they wait for it. With SERIAL=1 kernels of all
 * processes run one after another, as without MPS; how a real device divides its time is not simulated.
 *
 * Guesses: the per-thread default stream is the default stream; a host function runs on the calling thread, once the
 * stream's earlier work is done; a stream takes a thousand launches ahead before a launch waits. */
#include "driver.h"
#include <stdlib.h>
#include <time.h>

struct CUstream_st default_streams[SG_MAX_DEVICES];
static struct CUstream_st *streams;
static unsigned long long next_id = 16; /* below are the default streams */

void initialize_default_stream(int ordinal) {
    default_streams[ordinal].magic = STREAM_MAGIC;
    default_streams[ordinal].context = &contexts[ordinal];
    default_streams[ordinal].id = 1 + ordinal;
}

static bool is_default(const struct CUstream_st *stream) {
    return stream == &default_streams[stream->context->ordinal];
}

static bool is_blocking(const struct CUstream_st *stream) { return !(stream->flags & CU_STREAM_NON_BLOCKING); }

struct CUstream_st *find_stream(CUcontext context, CUstream handle) {
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD)
        return &default_streams[context->ordinal];
    return handle->magic == STREAM_MAGIC ? handle : NULL;
}

/* --- time --------------------------------------------------------------------------------------------------------- */

void wait_until(int64_t time) {
    while (sg_now() < time) {
        struct timespec until = {time / 1000000000, time % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
    }
}

static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* When work that is submitted now would begin: all that it waits for is done then. */
static int64_t free_at(const struct CUstream_st *stream) {
    int64_t time = later(sg_now(), stream->busy_until);
    if (!is_default(stream))
        return is_blocking(stream) ? later(time, default_streams[stream->context->ordinal].busy_until) : time;
    LOCKED;
    for (struct CUstream_st *other = streams; other; other = other->next)
        if (other->context == stream->context && is_blocking(other))
            time = later(time, other->busy_until);
    return time;
}

static int64_t when_done(const struct CUstream_st *stream) {
    return is_default(stream) ? free_at(stream) : stream->busy_until;
}

static void raise_to(_Atomic int64_t *time, int64_t value) {
    int64_t before = *time;
    while (before < value && !atomic_compare_exchange_weak(time, &before, value)) {
    }
}

void occupy(struct CUstream_st *stream, int64_t duration) {
    if (duration <= 0)
        return;
    CUcontext context = stream->context;
    struct sg_device *device = sg_device(context->device);
    int64_t begin = free_at(stream), end = begin + duration;
    if (sg_settings.serial) {
        int64_t queue = device->busy_until;
        do
            end = later(begin, queue) + duration;
        while (!atomic_compare_exchange_weak(&device->busy_until, &queue, end));
    }
    raise_to(&stream->busy_until, end);
    raise_to(&context->busy_until, end);
    struct sg_process *process = own_process[context->ordinal];
    if (process) {
        process->busy_ns += duration;
        int64_t now = sg_wall_us();
        if (now - process->sampled_us > 200000) {
            sg_lock();
            sg_take_sample(process, now);
            sg_unlock();
        }
    }
    int64_t run_ahead = 1000 * later(sg_settings.kernel_ns, 1000);
    if (end - sg_now() > run_ahead)
        wait_until(end - run_ahead);
}

bool is_device_busy(void) {
    int64_t now = sg_now();
    for (int i = 0; i < num_devices; i++)
        if (contexts[i].busy_until > now)
            return true;
    return false;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

#define STREAM(handle)                                                                                                 \
    IN_CONTEXT;                                                                                                        \
    struct CUstream_st *stream = find_stream(context, handle);                                                         \
    if (!stream)                                                                                                       \
    FAIL(CUDA_ERROR_INVALID_HANDLE)

API cuStreamCreateWithPriority(CUstream *handle, unsigned flags, int priority) {
    IN_CONTEXT;
    LOCKED;
    struct CUstream_st *stream = calloc(1, sizeof *stream);
    stream->magic = STREAM_MAGIC;
    stream->flags = flags;
    stream->priority = priority < -5 ? -5 : priority > 0 ? 0 : priority;
    stream->context = context;
    stream->id = next_id++;
    stream->next = streams;
    streams = stream;
    *handle = stream;
    return 0;
}

API cuStreamCreate(CUstream *handle, unsigned flags) { return cuStreamCreateWithPriority(handle, flags, 0); }

API cuStreamDestroy(CUstream handle) {
    STREAM(handle);
    LOCKED;
    if (is_default(stream))
        FAIL(CUDA_ERROR_INVALID_HANDLE);
    for (struct CUstream_st **at = &streams; *at; at = &(*at)->next)
        if (*at == stream) {
            *at = stream->next;
            break;
        }
    stream->magic = 0;
    free(stream);
    return 0;
}

API cuStreamQuery(CUstream handle) {
    STREAM(handle);
    if (stream->capture)
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (when_done(stream) > sg_now())
        return CUDA_ERROR_NOT_READY;
    FAIL(context->error);
}

API cuStreamSynchronize(CUstream handle) {
    STREAM(handle);
    if (stream->capture)
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    wait_until(when_done(stream));
    FAIL(context->error);
}

API cuStreamGetPriority(CUstream handle, int *priority) {
    STREAM(handle);
    *priority = stream->priority;
    return 0;
}

API cuStreamGetFlags(CUstream handle, unsigned *flags) {
    STREAM(handle);
    *flags = stream->flags;
    return 0;
}

API cuStreamGetId(CUstream handle, unsigned long long *id) {
    STREAM(handle);
    *id = stream->id;
    return 0;
}

API cuStreamGetCtx(CUstream handle, CUcontext *owner) {
    STREAM(handle);
    *owner = stream->context;
    return 0;
}

API cuStreamGetDevice(CUstream handle, CUdevice *device) {
    STREAM(handle);
    *device = stream->context->ordinal;
    return 0;
}

API cuStreamWaitEvent(CUstream handle, CUevent event, unsigned flags) {
    STREAM(handle);
    if (!event || event->magic != EVENT_MAGIC)
        FAIL(CUDA_ERROR_INVALID_HANDLE);
    LOCKED;
    if (event->capture && !stream->capture) { /* the stream joins the capture */
        stream->capture = event->capture;
        stream->capture_id = stream->id;
    } else if (event->recorded)
        raise_to(&stream->busy_until, event->at);
    return 0;
}

static CUresult run_host_function(struct CUstream_st *stream, CUhostFn function, void *data) {
    if (stream->capture) {
        add_node(stream->capture, &(struct work){.kind = HOST_FUNCTION, .function = function, .data = data});
        return 0;
    }
    function(data);
    return 0;
}

API cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data) {
    STREAM(handle);
    return run_host_function(stream, function, data);
}

API cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data, unsigned flags) {
    STREAM(handle);
    callback(handle, context->error, data);
    return 0;
}

API cuStreamWriteValue32(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
    STREAM(handle);
    if (check_access(address, sizeof value, READ | WRITE) == INACCESSIBLE)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    *(cuuint32_t *)address = value;
    return 0;
}

/* --- events ------------------------------------------------------------------------------------------------------- */

#define EVENT(event)                                                                                                   \
    if (!(event) || (event)->magic != EVENT_MAGIC)                                                                     \
    FAIL(CUDA_ERROR_INVALID_HANDLE)

API cuEventCreate(CUevent *event, unsigned flags) {
    IN_CONTEXT;
    *event = calloc(1, sizeof **event);
    (*event)->magic = EVENT_MAGIC;
    (*event)->flags = flags;
    (*event)->context = context;
    return 0;
}

API cuEventDestroy(CUevent event) {
    INITIALIZED;
    EVENT(event);
    event->magic = 0;
    free(event);
    return 0;
}

API cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned flags) {
    STREAM(handle);
    EVENT(event);
    LOCKED;
    event->capture = stream->capture;
    if (stream->capture)
        return 0;
    event->at = later(when_done(stream), sg_now());
    event->recorded = true;
    return 0;
}

API cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }

API cuEventQuery(CUevent event) {
    INITIALIZED;
    EVENT(event);
    if (event->context->error)
        FAIL(event->context->error);
    if (event->capture)
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    if (!event->recorded)
        return 0;
    if (event->at > sg_now())
        return CUDA_ERROR_NOT_READY;
    FAIL(event->context->error);
}

API cuEventSynchronize(CUevent event) {
    INITIALIZED;
    EVENT(event);
    if (event->recorded)
        wait_until(event->at);
    FAIL(event->context->error);
}

API cuEventElapsedTime(float *ms, CUevent begin, CUevent end) {
    INITIALIZED;
    EVENT(begin);
    EVENT(end);
    if (!begin->recorded || !end->recorded)
        FAIL(CUDA_ERROR_INVALID_HANDLE);
    if (end->at > sg_now())
        return CUDA_ERROR_NOT_READY;
    *ms = (float)(end->at - begin->at) / 1e6f;
    return 0;
}

void end_capture(CUgraph graph) {
    for (struct CUstream_st *stream = streams; stream; stream = stream->next)
        if (stream->capture == graph)
            stream->capture = NULL;
}
