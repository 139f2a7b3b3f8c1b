/* Plain device memory, pinned host memory, and what the driver says of a pointer. */
#include "driver.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>

static struct ranges pinned;
#define HOST_PAGE 4096ul

static size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

/* Guess: each allocation takes whole units of 2 MiB. Real drivers put small ones together. */
API cuMemAlloc(CUdeviceptr *address, size_t asked) {
    IN_CONTEXT;
    LOCKED;
    if (is_capture_unsafe(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    size_t size = round_up(asked, SG_UNIT);
    if (!size)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    int descriptor = sg_create_memory(context->device, size);
    if (descriptor < 0)
        FAIL(errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM);
    struct physical *physical = new_physical(descriptor, context->device, size);
    *address = reserve_addresses(size, SG_UNIT);
    CUresult result = *address ? map_memory(*address, size, physical, true, asked) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result)
        drop_physical(physical);
    FAIL(result);
}

/* It waits for the device, as its documentation says. */
API cuMemFree(CUdeviceptr address) {
    IN_CONTEXT;
    if (!address)
        return 0;
    wait_until(context->busy_until);
    LOCKED;
    struct mapping *mapping = find_mapping(address);
    if (!mapping || !mapping->is_plain || mapping->address != address)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    size_t size = mapping->size;
    unmap_memory(address, size);
    munmap((void *)address, size);
    struct range *range = find_range(&reserved, address);
    if (range)
        remove_range(&reserved, range);
    return 0;
}

/* Stream-ordered and managed memory are plain memory here. */
API cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) { return cuMemAlloc(address, size); }
API cuMemFreeAsync(CUdeviceptr address, CUstream stream) { return cuMemFree(address); }
API cuMemAllocManaged(CUdeviceptr *address, size_t size, unsigned flags) { return cuMemAlloc(address, size); }

API cuMemGetInfo(size_t *free, size_t *total) {
    IN_CONTEXT;
    int64_t used = sg_used_memory(context->device);
    *total = sg_settings.capacity;
    *free = used > sg_settings.capacity ? 0 : sg_settings.capacity - used;
    return 0;
}

API cuMemGetAddressRange(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    IN_CONTEXT;
    LOCKED;
    struct mapping *mapping = find_mapping(address);
    if (!mapping)
        FAIL(CUDA_ERROR_NOT_FOUND);
    if (base)
        *base = mapping->address;
    if (size)
        *size = mapping->asked;
    return 0;
}

/* --- pinned memory ------------------------------------------------------------------------------------------------ */

API cuMemHostAlloc(void **pointer, size_t size, unsigned flags) {
    IN_CONTEXT;
    LOCKED;
    *pointer = NULL;
    if (!size)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    void *memory = mmap(NULL, round_up(size, HOST_PAGE), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        FAIL(CUDA_ERROR_OUT_OF_MEMORY);
    add_range(&pinned, (CUdeviceptr)memory, size);
    *pointer = memory;
    return 0;
}

API cuMemAllocHost(void **pointer, size_t size) { return cuMemHostAlloc(pointer, size, 0); }

API cuMemFreeHost(void *pointer) {
    IN_CONTEXT;
    if (!pointer)
        return 0;
    wait_until(context->busy_until);
    LOCKED;
    struct range *range = find_range(&pinned, (CUdeviceptr)pointer);
    if (!range || range->address != (CUdeviceptr)pointer)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    munmap(pointer, round_up(range->size, HOST_PAGE));
    remove_range(&pinned, range);
    return 0;
}

API cuMemHostRegister(void *pointer, size_t size, unsigned flags) {
    IN_CONTEXT;
    LOCKED;
    if (find_range(&pinned, (CUdeviceptr)pointer))
        FAIL(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    add_range(&pinned, (CUdeviceptr)pointer, size);
    return 0;
}

API cuMemHostUnregister(void *pointer) {
    IN_CONTEXT;
    LOCKED;
    struct range *range = find_range(&pinned, (CUdeviceptr)pointer);
    if (!range || range->address != (CUdeviceptr)pointer)
        FAIL(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    remove_range(&pinned, range);
    return 0;
}

API cuMemHostGetDevicePointer(CUdeviceptr *address, void *pointer, unsigned flags) {
    IN_CONTEXT;
    *address = (CUdeviceptr)pointer;
    return 0;
}

API cuMemHostGetFlags(unsigned *flags, void *pointer) {
    IN_CONTEXT;
    *flags = 0;
    return 0;
}

/* --- pointers ----------------------------------------------------------------------------------------------------- */

int sg_pointer_kind(const void *pointer, int *ordinal) {
    LOCKED;
    struct mapping *mapping = find_mapping((CUdeviceptr)pointer);
    *ordinal = 0;
    if (!mapping)
        return find_range(&pinned, (CUdeviceptr)pointer) ? PINNED_POINTER : UNREGISTERED_POINTER;
    for (int i = 0; i < num_devices; i++)
        if (device_numbers[i] == mapping->physical->device)
            *ordinal = i;
    return DEVICE_POINTER;
}

API cuPointerGetAttribute(void *out, CUpointer_attribute attribute, CUdeviceptr pointer) {
    INITIALIZED;
    LOCKED;
    int ordinal, kind = sg_pointer_kind((void *)pointer, &ordinal);
    struct mapping *mapping = find_mapping(pointer);
    if (kind == UNREGISTERED_POINTER)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)out = &contexts[ordinal];
        return 0;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = kind == DEVICE_POINTER ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)out = pointer;
        return 0;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (kind == DEVICE_POINTER)
            return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)pointer;
        return 0;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = ordinal;
        return 0;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
        *(CUdeviceptr *)out = mapping ? mapping->address : pointer;
        return 0;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)out = mapping ? mapping->asked : 0;
        return 0;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(int *)out = 1;
        return 0;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)out = 0;
        return 0;
    default:
        FAIL(CUDA_ERROR_NOT_SUPPORTED);
    }
}

API cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **out, CUdeviceptr pointer) {
    for (unsigned i = 0; i < count; i++)
        cuPointerGetAttribute(out[i], attributes[i], pointer);
    return 0;
}

API cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    INITIALIZED;
    return 0;
}
