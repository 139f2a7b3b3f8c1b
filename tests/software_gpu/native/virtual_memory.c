/* Virtual memory management, by the rules that CUDA's documentation gives:
 *
 * - sizes and addresses are multiples of 2 MiB;
 * - a handle is mapped whole, at offset 0, into reserved addresses that have nothing mapped;
 * - nothing may touch mapped memory before cuMemSetAccess, which takes whole mappings, as does cuMemUnmap;
 * - memory lives while any process has a handle, a mapping or an exported descriptor of it;
 * - reserved addresses are freed as they were reserved, once nothing is mapped.
 *
 * Guesses: mapping at an offset, or a part of a handle, is refused, as the documentation asks for; no real driver was
 * asked. Unmapping while any work runs is only logged (an error with STRICT=1): real drivers say that it must not be.
 * New memory is zero here, and is not on a GPU. */
#include "driver.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct ranges reserved;
static struct mapping **pages; /* by address / SG_UNIT */
#define NUM_PAGES (1ul << 26)  /* of 47 bits of addresses */
static struct physical **handles;
static int num_handles;

struct range *find_range(struct ranges *ranges, CUdeviceptr address) {
    for (int i = ranges->count - 1; i >= 0; i--)
        if (address >= ranges->all[i].address && address - ranges->all[i].address < ranges->all[i].size)
            return &ranges->all[i];
    return NULL;
}

void add_range(struct ranges *ranges, CUdeviceptr address, size_t size) {
    if (ranges->count == ranges->room) {
        ranges->room = 2 * ranges->room + 16;
        ranges->all = realloc(ranges->all, ranges->room * sizeof *ranges->all);
    }
    ranges->all[ranges->count++] = (struct range){address, size};
}

void remove_range(struct ranges *ranges, struct range *range) { *range = ranges->all[--ranges->count]; }

/* Shared, so that it does not count as the process's own data (RLIMIT_DATA); only touched pages take memory. */
bool create_page_table(void) {
    size_t size = NUM_PAGES * sizeof *pages;
    pages = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (pages == MAP_FAILED)
        return false;
    madvise(pages, size, MADV_DONTDUMP);
    return true;
}

struct mapping *find_mapping(CUdeviceptr address) {
    return pages && address / SG_UNIT < NUM_PAGES ? pages[address / SG_UNIT] : NULL;
}

/* --- physical memory and its handles ------------------------------------------------------------------------------ */

struct physical *new_physical(int descriptor, int device, int64_t size) {
    struct physical *physical = calloc(1, sizeof *physical);
    physical->descriptor = descriptor;
    physical->device = device;
    physical->size = size;
    return physical;
}

void drop_physical(struct physical *physical) {
    if (physical->handles || physical->mappings)
        return;
    sg_close_memory(physical->descriptor, physical->device, physical->size, !physical->imported);
    free(physical);
}

/* Handles count from 1, in steps of 256, so that what is none is refused. */
static CUresult new_handle(struct physical *physical, CUmemGenericAllocationHandle *handle) {
    static int lowest_free;
    int i = lowest_free < num_handles && !handles[lowest_free] ? lowest_free : 0;
    while (i < num_handles && handles[i])
        i++;
    if (i == num_handles) {
        int room = 2 * num_handles + 64;
        handles = realloc(handles, room * sizeof *handles);
        memset(handles + num_handles, 0, (room - num_handles) * sizeof *handles);
        num_handles = room;
    }
    handles[i] = physical;
    lowest_free = i + 1;
    physical->handles++;
    *handle = (CUmemGenericAllocationHandle)(i + 1) << 8;
    return 0;
}

static struct physical **find_handle(CUmemGenericAllocationHandle handle) {
    uint64_t i = (handle >> 8) - 1;
    bool is_handle = handle && !(handle & 255) && i < (uint64_t)num_handles && handles[i];
    return is_handle ? &handles[i] : NULL;
}

API cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                  CUmemAllocationGranularity_flags option) {
    INITIALIZED;
    if (properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    *granularity = SG_UNIT;
    return 0;
}

API cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
                unsigned long long flags) {
    INITIALIZED;
    LOCKED;
    if (!size || size % SG_UNIT || flags || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    if (properties->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        FAIL(CUDA_ERROR_NOT_SUPPORTED);
    if (properties->location.id < 0 || properties->location.id >= num_devices)
        FAIL(CUDA_ERROR_INVALID_DEVICE);
    int device = device_numbers[properties->location.id];
    int descriptor = sg_create_memory(device, size);
    if (descriptor < 0)
        FAIL(errno == ENOMEM ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_OPERATING_SYSTEM);
    struct physical *physical = new_physical(descriptor, device, size);
    physical->shareable = properties->requestedHandleTypes != 0;
    return new_handle(physical, handle);
}

API cuMemRelease(CUmemGenericAllocationHandle handle) {
    INITIALIZED;
    LOCKED;
    struct physical **found = find_handle(handle);
    if (!found)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    struct physical *physical = *found;
    *found = NULL;
    physical->handles--;
    drop_physical(physical);
    return 0;
}

API cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    INITIALIZED;
    LOCKED;
    struct mapping *mapping = find_mapping((CUdeviceptr)address);
    if (!mapping || mapping->is_plain)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    return new_handle(mapping->physical, handle);
}

API cuMemExportToShareableHandle(void *descriptor, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType type,
                                 unsigned long long flags) {
    INITIALIZED;
    LOCKED;
    struct physical **found = find_handle(handle);
    if (!found || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(*found)->shareable)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    int shared = sg_share_memory((*found)->descriptor);
    int fd = shared < 0 ? -1 : dup(shared); /* one that a program started from here inherits: the worst that may be */
    if (shared >= 0)
        close(shared);
    if (fd < 0)
        FAIL(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)descriptor = fd;
    return 0;
}

API cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                   CUmemAllocationHandleType type) {
    INITIALIZED;
    LOCKED;
    int device, given = (int)(intptr_t)os_handle;
    int64_t size;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !sg_is_memory(given, &device, &size))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    int fd = sg_share_memory(given);
    if (fd < 0)
        FAIL(CUDA_ERROR_OPERATING_SYSTEM);
    struct physical *physical = new_physical(fd, device, size);
    physical->shareable = physical->imported = true;
    return new_handle(physical, handle);
}

API cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    INITIALIZED;
    LOCKED;
    struct physical **found = find_handle(handle);
    if (!found)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    memset(properties, 0, sizeof *properties);
    properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    for (int i = 0; i < num_devices; i++)
        if (device_numbers[i] == (*found)->device)
            properties->location.id = i;
    if ((*found)->shareable)
        properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    return 0;
}

/* --- addresses ---------------------------------------------------------------------------------------------------- */

CUdeviceptr reserve_addresses(size_t size, size_t alignment) {
    char *raw = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED)
        return 0;
    CUdeviceptr begin = (CUdeviceptr)raw, address = (begin + alignment - 1) / alignment * alignment;
    if (address > begin)
        munmap(raw, address - begin);
    if (begin + alignment > address)
        munmap((void *)(address + size), begin + alignment - address);
    add_range(&reserved, address, size);
    return address;
}

static bool has_mapping(CUdeviceptr address, size_t size) {
    for (CUdeviceptr page = address; page < address + size; page += SG_UNIT)
        if (find_mapping(page))
            return true;
    return false;
}

API cuMemAddressReserve(CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wish,
                        unsigned long long flags) {
    INITIALIZED;
    LOCKED;
    if (!size || size % SG_UNIT || flags || (alignment & (alignment - 1)))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    *address = reserve_addresses(size, alignment > SG_UNIT ? alignment : SG_UNIT);
    if (!*address)
        FAIL(CUDA_ERROR_OUT_OF_MEMORY);
    return 0;
}

API cuMemAddressFree(CUdeviceptr address, size_t size) {
    INITIALIZED;
    LOCKED;
    struct range *range = find_range(&reserved, address);
    if (!range || range->address != address || range->size != size || has_mapping(address, size))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    munmap((void *)address, size);
    remove_range(&reserved, range);
    return 0;
}

/* --- mappings ----------------------------------------------------------------------------------------------------- */

CUresult map_memory(CUdeviceptr address, size_t size, struct physical *physical, bool is_plain, size_t asked) {
    int protection = is_plain ? PROT_READ | PROT_WRITE : PROT_NONE;
    if (mmap((void *)address, size, protection, MAP_SHARED | MAP_FIXED, physical->descriptor, 0) == MAP_FAILED)
        return CUDA_ERROR_OPERATING_SYSTEM;
    madvise((void *)address, size, MADV_DONTFORK); /* a forked child has no device memory */
    madvise((void *)address, size, MADV_DONTDUMP);
    struct mapping *mapping = calloc(1, sizeof *mapping);
    mapping->address = address;
    mapping->size = size;
    mapping->asked = asked;
    mapping->physical = physical;
    mapping->access = is_plain ? READ | WRITE : 0;
    mapping->is_plain = is_plain;
    physical->mappings++;
    for (CUdeviceptr page = address; page < address + size; page += SG_UNIT)
        pages[page / SG_UNIT] = mapping;
    return 0;
}

API cuMemMap(CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
             unsigned long long flags) {
    INITIALIZED;
    LOCKED;
    struct physical **found = find_handle(handle);
    struct range *range = find_range(&reserved, address);
    if (!found || !range || flags || offset || address % SG_UNIT || size != (size_t)(*found)->size ||
        address + size > range->address + range->size || has_mapping(address, size))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    TRY(map_memory(address, size, *found, false, size));
    return 0;
}

/* Whether a range is whole mappings, side by side. */
static bool is_whole(CUdeviceptr address, size_t size) {
    if (!size || address % SG_UNIT || size % SG_UNIT)
        return false;
    for (CUdeviceptr at = address; at < address + size;) {
        struct mapping *mapping = find_mapping(at);
        if (!mapping || mapping->is_plain || mapping->address != at || at + mapping->size > address + size)
            return false;
        at += mapping->size;
    }
    return true;
}

API cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *descriptions, size_t count) {
    INITIALIZED;
    LOCKED;
    if (!descriptions || !count || !is_whole(address, size))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        CUmemAccess_flags flags = descriptions[i].flags;
        if (descriptions[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE)
            FAIL(CUDA_ERROR_INVALID_VALUE);
        if (descriptions[i].location.id < 0 || descriptions[i].location.id >= num_devices)
            FAIL(CUDA_ERROR_INVALID_DEVICE);
        int access = flags == CU_MEM_ACCESS_FLAGS_PROT_NONE   ? 0
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READ ? READ
                                                              : READ | WRITE;
        int protection = (access & READ ? PROT_READ : 0) | (access & WRITE ? PROT_WRITE : 0);
        if (mprotect((void *)address, size, protection))
            FAIL(CUDA_ERROR_OPERATING_SYSTEM);
        for (CUdeviceptr at = address; at < address + size; at += find_mapping(at)->size) {
            find_mapping(at)->access = access;
            count_amount(__func__, 1);
        }
    }
    return 0;
}

API cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    INITIALIZED;
    LOCKED;
    struct mapping *mapping = find_mapping(address);
    if (!mapping)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    *flags = mapping->access;
    return 0;
}

void unmap_memory(CUdeviceptr address, size_t size) {
    mmap((void *)address, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    for (CUdeviceptr at = address; at < address + size;) {
        struct mapping *mapping = find_mapping(at);
        struct physical *physical = mapping->physical;
        for (CUdeviceptr page = mapping->address; page < mapping->address + mapping->size; page += SG_UNIT)
            pages[page / SG_UNIT] = NULL;
        at += mapping->size;
        free(mapping);
        physical->mappings--;
        drop_physical(physical);
    }
}

API cuMemUnmap(CUdeviceptr address, size_t size) {
    INITIALIZED;
    LOCKED;
    if (!is_whole(address, size))
        FAIL(CUDA_ERROR_INVALID_VALUE);
    if (is_device_busy())
        sg_log("VIOLATION: cuMemUnmap of %zu MiB while the device is busy", size >> 20);
    for (CUdeviceptr at = address; at < address + size; at += find_mapping(at)->size)
        count_amount(__func__, 1);
    unmap_memory(address, size);
    return 0;
}
