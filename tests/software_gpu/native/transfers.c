/* Copies and fills.
 *
 * When a copy returns depends on the memory of its host side, by the section "API synchronization behavior" of CUDA's
 * documentation: from pageable memory once it is staged, to pageable memory once it is done, and with pinned memory at
 * once. Guess: a copy from pageable memory is always staged, whatever its size. */
#include "driver.h"
#include <string.h>
#include <sys/mman.h>

enum access_result check_access(CUdeviceptr address, size_t size, int access) {
    LOCKED;
    if (!find_range(&reserved, address))
        return NOT_DEVICE_MEMORY;
    for (CUdeviceptr at = address; at < address + size; at = (at / SG_UNIT + 1) * SG_UNIT) {
        struct mapping *mapping = find_mapping(at);
        if (!mapping || (mapping->access & access) != access)
            return INACCESSIBLE;
    }
    return ACCESSIBLE;
}

int sg_access(const void *data, size_t size) {
    CUcontext context = current_context() ? current_context() : &contexts[0];
    if (check_access((CUdeviceptr)data, size, READ | WRITE) == ACCESSIBLE)
        return 0;
    sg_log("illegal access: %zu bytes at %p", size, data);
    sg_log_stack();
    context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
    return context->error;
}

/* Zeroes need no memory of this machine: pages of the file go back. */
static bool punch_hole(CUdeviceptr address, size_t size) {
    CUdeviceptr begin = (address + 4095) & ~4095ul, end = (address + size) & ~4095ul;
    if (size < SG_UNIT || madvise((void *)begin, end - begin, MADV_REMOVE))
        return false;
    memset((void *)address, 0, begin - address);
    memset((void *)end, 0, address + size - end);
    return true;
}

static void fill(CUdeviceptr address, unsigned value, unsigned width, size_t count) {
    if (!value && punch_hole(address, count * width))
        return;
    if (width == 1)
        memset((void *)address, (int)value, count);
    for (size_t i = 0; width == 2 && i < count; i++)
        ((uint16_t *)address)[i] = (uint16_t)value;
    for (size_t i = 0; width == 4 && i < count; i++)
        ((uint32_t *)address)[i] = value;
}

CUresult do_work(CUcontext context, const struct work *work) {
    if (work->kind == COPY) {
        if (check_access(work->to, work->count, READ | WRITE) == INACCESSIBLE ||
            check_access(work->from, work->count, READ) == INACCESSIBLE) {
            sg_log("copy of %zu bytes from %llx to %llx: not accessible", work->count, work->from, work->to);
            sg_log_stack();
            return context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        memmove((void *)work->to, (void *)work->from, work->count);
    } else if (work->kind == FILL) {
        if (check_access(work->to, work->count * work->width, READ | WRITE) != ACCESSIBLE) {
            sg_log("fill of %zu bytes at %llx: not accessible", work->count * work->width, work->to);
            sg_log_stack();
            return context->error = CUDA_ERROR_ILLEGAL_ADDRESS;
        }
        fill(work->to, work->value, work->width, work->count);
    } else if (work->kind == HOST_FUNCTION)
        work->function(work->data);
    return 0;
}

struct transfer {
    CUdeviceptr to, from;
    size_t size;
    CUstream stream;
    bool is_async;
    bool must_be_to_device, must_be_from_device;
};

static CUresult copy(CUcontext context, struct transfer transfer) {
    struct CUstream_st *stream = find_stream(context, transfer.stream);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!transfer.size)
        return 0;
    bool to_device = check_access(transfer.to, transfer.size, READ | WRITE) != NOT_DEVICE_MEMORY;
    bool from_device = check_access(transfer.from, transfer.size, READ) != NOT_DEVICE_MEMORY;
    if ((transfer.must_be_to_device && !to_device) || (transfer.must_be_from_device && !from_device))
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = COPY, .to = transfer.to, .from = transfer.from, .count = transfer.size};
    if (stream->capture) {
        add_node(stream->capture, &work);
        return 0;
    }
    bool within_device = to_device && from_device;
    int ordinal;
    bool has_pageable = !within_device && sg_pointer_kind((void *)(to_device ? work.from : work.to), &ordinal) == 0;
    if (!transfer.is_async && !within_device)
        wait_until(stream->busy_until);
    CUresult result = do_work(context, &work);
    if (result)
        return result;
    bool returns_when_done = transfer.is_async ? has_pageable && !to_device : !within_device;
    if (returns_when_done)
        wait_until(stream->busy_until);
    return context->error;
}

#define COPY_API(...)                                                                                                  \
    IN_CONTEXT;                                                                                                        \
    struct transfer transfer = {__VA_ARGS__};                                                                          \
    count_amount(__func__, transfer.size);                                                                             \
    CUresult result = copy(context, transfer);                                                                         \
    FAIL(result)
API cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t size) { COPY_API(to, from, size, NULL, false, false, false); }
API cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    COPY_API(to, from, size, stream, true, false, false);
}
API cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t size) {
    COPY_API(to, (CUdeviceptr)from, size, NULL, false, true, false);
}
API cuMemcpyDtoH(void *to, CUdeviceptr from, size_t size) {
    COPY_API((CUdeviceptr)to, from, size, NULL, false, false, true);
}
API cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t size) { COPY_API(to, from, size, NULL, false, true, true); }
API cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    COPY_API(to, (CUdeviceptr)from, size, stream, true, true, false);
}
API cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    COPY_API((CUdeviceptr)to, from, size, stream, true, false, true);
}
API cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    COPY_API(to, from, size, stream, true, true, true);
}
API cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t size,
                      CUstream stream) {
    COPY_API(to, from, size, stream, true, true, true);
}

/* A fill never waits: cuMemsetD8, too, only queues its work where the memory is the device's. */
static CUresult submit_fill(CUcontext context, CUdeviceptr address, unsigned value, unsigned width, size_t count,
                            CUstream handle) {
    struct CUstream_st *stream = find_stream(context, handle);
    if (!stream)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!count)
        return 0;
    if (check_access(address, count * width, READ | WRITE) == NOT_DEVICE_MEMORY)
        return CUDA_ERROR_INVALID_VALUE;
    struct work work = {.kind = FILL, .to = address, .count = count, .value = value, .width = width};
    if (stream->capture) {
        add_node(stream->capture, &work);
        return 0;
    }
    CUresult result = do_work(context, &work);
    if (result)
        return result;
    occupy(stream, sg_settings.kernel_ns);
    return 0;
}

#define FILL_API(address, value, width, ...)                                                                           \
    IN_CONTEXT;                                                                                                        \
    count_amount(__func__, (width) * count);                                                                           \
    CUresult result = submit_fill(context, address, value, width, __VA_ARGS__);                                        \
    FAIL(result)
API cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) { FILL_API(to, value, 1, count, NULL); }
API cuMemsetD16(CUdeviceptr to, unsigned short value, size_t count) { FILL_API(to, value, 2, count, NULL); }
API cuMemsetD32(CUdeviceptr to, unsigned value, size_t count) { FILL_API(to, value, 4, count, NULL); }
API cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    FILL_API(to, value, 1, count, stream);
}
API cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream) {
    FILL_API(to, value, 2, count, stream);
}
API cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t count, CUstream stream) {
    FILL_API(to, value, 4, count, stream);
}
