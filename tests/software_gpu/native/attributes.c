/* What the driver says of a device: the figures of an H100-like GPU with 16 multiprocessors, of compute capability 9.0.
 */
#include "driver.h"
#include <stdio.h>

#define VALID_DEVICE(device)                                                                                           \
    INITIALIZED;                                                                                                       \
    if ((device) < 0 || (device) >= num_devices)                                                                       \
    FAIL(CUDA_ERROR_INVALID_DEVICE)

API cuDeviceGetCount(int *count) {
    INITIALIZED;
    *count = num_devices;
    return 0;
}

API cuDeviceGet(CUdevice *device, int ordinal) {
    VALID_DEVICE(ordinal);
    *device = ordinal;
    return 0;
}

API cuDeviceGetName(char *name, int length, CUdevice device) {
    VALID_DEVICE(device);
    snprintf(name, length, "%s", sg_settings.name);
    return 0;
}

API cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    VALID_DEVICE(device);
    sg_uuid(device_numbers[device], (unsigned char *)uuid->bytes);
    return 0;
}

API cuDeviceTotalMem(size_t *bytes, CUdevice device) {
    VALID_DEVICE(device);
    *bytes = sg_settings.capacity;
    return 0;
}

API cuDeviceGetPCIBusId(char *text, int length, CUdevice device) {
    VALID_DEVICE(device);
    snprintf(text, length, "0000:%02x:00.0", device_numbers[device] + 1);
    return 0;
}

API cuDeviceGetByPCIBusId(CUdevice *device, const char *text) {
    INITIALIZED;
    unsigned domain, bus;
    if (sscanf(text, "%x:%x", &domain, &bus) == 2)
        for (int i = 0; i < num_devices; i++)
            if (device_numbers[i] + 1 == (int)bus) {
                *device = i;
                return 0;
            }
    FAIL(CUDA_ERROR_INVALID_DEVICE);
}

API cuDeviceComputeCapability(int *major, int *minor, CUdevice device) {
    VALID_DEVICE(device);
    *major = 9;
    *minor = 0;
    return 0;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    VALID_DEVICE(device);
    VALID_DEVICE(peer);
    *can = device != peer;
    return 0;
}

#define VALUE(name, value)                                                                                             \
    case CU_DEVICE_ATTRIBUTE_##name:                                                                                   \
        return value
int sg_device_attribute(int attribute, int ordinal) {
    switch (attribute) {
        VALUE(MAX_THREADS_PER_BLOCK, 1024);
        VALUE(MAX_BLOCK_DIM_X, 1024);
        VALUE(MAX_BLOCK_DIM_Y, 1024);
        VALUE(MAX_BLOCK_DIM_Z, 64);
        VALUE(MAX_GRID_DIM_X, 2147483647);
        VALUE(MAX_GRID_DIM_Y, 65535);
        VALUE(MAX_GRID_DIM_Z, 65535);
        VALUE(MAX_SHARED_MEMORY_PER_BLOCK, 49152);
        VALUE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448);
        VALUE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, 233472);
        VALUE(TOTAL_CONSTANT_MEMORY, 65536);
        VALUE(WARP_SIZE, 32);
        VALUE(MAX_REGISTERS_PER_BLOCK, 65536);
        VALUE(MAX_REGISTERS_PER_MULTIPROCESSOR, 65536);
        VALUE(CLOCK_RATE, 1000000);
        VALUE(MEMORY_CLOCK_RATE, 2000000);
        VALUE(GLOBAL_MEMORY_BUS_WIDTH, 5120);
        VALUE(L2_CACHE_SIZE, 50 << 20);
        VALUE(TEXTURE_ALIGNMENT, 512);
        VALUE(MULTIPROCESSOR_COUNT, 16);
        VALUE(MAX_THREADS_PER_MULTIPROCESSOR, 2048);
        VALUE(MAX_BLOCKS_PER_MULTIPROCESSOR, 32);
        VALUE(COMPUTE_CAPABILITY_MAJOR, 9);
        VALUE(PCI_BUS_ID, device_numbers[ordinal] + 1);
        VALUE(ASYNC_ENGINE_COUNT, 2);
        VALUE(UNIFIED_ADDRESSING, 1);
        VALUE(CONCURRENT_KERNELS, 1);
        VALUE(GPU_OVERLAP, 1);
        VALUE(CAN_MAP_HOST_MEMORY, 1);
        VALUE(STREAM_PRIORITIES_SUPPORTED, 1);
        VALUE(COOPERATIVE_LAUNCH, 1);
        VALUE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1);
        VALUE(HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1);
        VALUE(MEMORY_POOLS_SUPPORTED, 1);
        VALUE(GLOBAL_L1_CACHE_SUPPORTED, 1);
        VALUE(LOCAL_L1_CACHE_SUPPORTED, 1);
        VALUE(CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1);
        VALUE(HOST_REGISTER_SUPPORTED, 1);
    default:
        return 0;
    }
}

API cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    VALID_DEVICE(device);
    if (attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    *value = sg_device_attribute(attribute, device);
    return 0;
}
