/* libcudart.so.13: the runtime, by the driver beside it. Their error codes are the same numbers. */
#include "runtime.h"
#include <string.h>
#undef cudaGetDeviceProperties

static _Thread_local int current_device;
static _Thread_local cudaError_t last_error;

cudaError_t remember(int code) {
    if (code && code != cudaErrorNotReady)
        last_error = code;
    return code;
}

int enter_runtime(void) {
    CUcontext context = NULL;
    int result = cuCtxGetCurrent(&context);
    return !result && context ? 0 : sg_use_device(current_device);
}

/* --- devices and errors ------------------------------------------------------------------------------------------- */

API cudaDriverGetVersion(int *version) { return remember(cuDriverGetVersion(version)); }
API cudaRuntimeGetVersion(int *version) { return remember(cuDriverGetVersion(version)); }

API cudaGetDeviceCount(int *count) {
    *count = 0;
    int result = cuInit(0);
    return remember(result ? result : (int)cuDeviceGetCount(count));
}

API cudaGetDevice(int *device) {
    *device = current_device;
    return remember(cuInit(0));
}

API cudaSetDevice(int device) {
    int result = sg_use_device(device);
    if (!result)
        current_device = device;
    return remember(result);
}

API cudaInitDevice(int device, unsigned flags, unsigned more) { return remember(sg_use_device(device)); }
API cudaDeviceReset(void) { return remember(cudaErrorNotSupported); }

API cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = 0;
    return error;
}

API cudaPeekAtLastError(void) { return last_error; }

EXPORTED const char *CUDARTAPI cudaGetErrorString(cudaError_t error) {
    const char *text;
    return cuGetErrorString((CUresult)error, &text) ? "unrecognized error code" : text;
}

EXPORTED const char *CUDARTAPI cudaGetErrorName(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "cudaSuccess";
    case cudaErrorInvalidValue:
        return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
        return "cudaErrorMemoryAllocation";
    case cudaErrorInitializationError:
        return "cudaErrorInitializationError";
    case cudaErrorNoDevice:
        return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
        return "cudaErrorInvalidDevice";
    case cudaErrorNotReady:
        return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
        return "cudaErrorIllegalAddress";
    case cudaErrorNotSupported:
        return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
        return "cudaErrorStreamCaptureUnsupported";
    default:
        return "cudaErrorUnknown";
    }
}

#define ATTRIBUTE(name) sg_device_attribute(CU_DEVICE_ATTRIBUTE_##name, device)
API cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device) {
    int count = 0, result = cuInit(0);
    if (result)
        return remember(result);
    cuDeviceGetCount(&count);
    if (device < 0 || device >= count)
        return remember(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    cuDeviceGetName(properties->name, sizeof properties->name, device);
    cuDeviceGetUuid((CUuuid *)&properties->uuid, device);
    properties->totalGlobalMem = sg_settings.capacity;
    properties->sharedMemPerBlock = ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK);
    properties->sharedMemPerBlockOptin = ATTRIBUTE(MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    properties->sharedMemPerMultiprocessor = ATTRIBUTE(MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    properties->reservedSharedMemPerBlock = 1024;
    properties->regsPerBlock = ATTRIBUTE(MAX_REGISTERS_PER_BLOCK);
    properties->regsPerMultiprocessor = ATTRIBUTE(MAX_REGISTERS_PER_MULTIPROCESSOR);
    properties->warpSize = ATTRIBUTE(WARP_SIZE);
    properties->maxThreadsPerBlock = ATTRIBUTE(MAX_THREADS_PER_BLOCK);
    properties->maxThreadsPerMultiProcessor = ATTRIBUTE(MAX_THREADS_PER_MULTIPROCESSOR);
    properties->maxBlocksPerMultiProcessor = ATTRIBUTE(MAX_BLOCKS_PER_MULTIPROCESSOR);
    properties->maxThreadsDim[0] = ATTRIBUTE(MAX_BLOCK_DIM_X);
    properties->maxThreadsDim[1] = ATTRIBUTE(MAX_BLOCK_DIM_Y);
    properties->maxThreadsDim[2] = ATTRIBUTE(MAX_BLOCK_DIM_Z);
    properties->maxGridSize[0] = ATTRIBUTE(MAX_GRID_DIM_X);
    properties->maxGridSize[1] = ATTRIBUTE(MAX_GRID_DIM_Y);
    properties->maxGridSize[2] = ATTRIBUTE(MAX_GRID_DIM_Z);
    properties->totalConstMem = ATTRIBUTE(TOTAL_CONSTANT_MEMORY);
    properties->major = ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR);
    properties->textureAlignment = ATTRIBUTE(TEXTURE_ALIGNMENT);
    properties->multiProcessorCount = ATTRIBUTE(MULTIPROCESSOR_COUNT);
    properties->l2CacheSize = ATTRIBUTE(L2_CACHE_SIZE);
    properties->memoryBusWidth = ATTRIBUTE(GLOBAL_MEMORY_BUS_WIDTH);
    properties->asyncEngineCount = ATTRIBUTE(ASYNC_ENGINE_COUNT);
    properties->pciBusID = ATTRIBUTE(PCI_BUS_ID);
    properties->concurrentKernels = properties->unifiedAddressing = properties->canMapHostMemory = 1;
    properties->streamPrioritiesSupported = properties->cooperativeLaunch = properties->memoryPoolsSupported = 1;
    return 0;
}

API cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    int result = cuInit(0);
    return remember(result ? result : (int)cuDeviceGetAttribute(value, (CUdevice_attribute)attribute, device));
}

API cudaDeviceGetPCIBusId(char *text, int length, int device) {
    return remember(cuDeviceGetPCIBusId(text, length, device));
}
API cudaDeviceCanAccessPeer(int *can, int device, int peer) {
    return remember(cuDeviceCanAccessPeer(can, device, peer));
}
API cudaDeviceEnablePeerAccess(int device, unsigned flags) { return 0; }
API cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    RETURN_CALL(cuCtxGetStreamPriorityRange(least, greatest));
}
API cudaDeviceSynchronize(void) { RETURN_CALL(cuCtxSynchronize()); }

/* Memory pools of the driver: stream-ordered memory is plain memory here. */
API cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    *pool = (cudaMemPool_t)0x10;
    return 0;
}
API cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    *(uint64_t *)value = 0;
    return 0;
}
API cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) { return 0; }
API cudaMemPoolSetAccess(cudaMemPool_t pool, const struct cudaMemAccessDesc *descriptions, size_t count) { return 0; }
API cudaDeviceSetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) { return 0; }
API cudaDeviceGetGraphMemAttribute(int device, enum cudaGraphMemAttributeType attribute, void *value) {
    *(uint64_t *)value = 0;
    return 0;
}
API cudaMemPoolTrimTo(cudaMemPool_t pool, size_t size) { return 0; }

/* --- memory ------------------------------------------------------------------------------------------------------- */

API cudaMalloc(void **pointer, size_t size) {
    if (!size) {
        *pointer = NULL;
        return 0;
    }
    RETURN_CALL(cuMemAlloc((CUdeviceptr *)pointer, size));
}
API cudaMallocManaged(void **pointer, size_t size, unsigned flags) { return cudaMalloc(pointer, size); }
API cudaFree(void *pointer) { RETURN_CALL(cuMemFree(DEVICE_POINTER_OF(pointer))); }
API cudaMallocAsync(void **pointer, size_t size, cudaStream_t stream) { return cudaMalloc(pointer, size); }
API cudaFreeAsync(void *pointer, cudaStream_t stream) { return cudaFree(pointer); }
API cudaMemGetInfo(size_t *free, size_t *total) { RETURN_CALL(cuMemGetInfo(free, total)); }
API cudaHostAlloc(void **pointer, size_t size, unsigned flags) { RETURN_CALL(cuMemHostAlloc(pointer, size, flags)); }
API cudaMallocHost(void **pointer, size_t size) { RETURN_CALL(cuMemHostAlloc(pointer, size, 0)); }
API cudaFreeHost(void *pointer) { RETURN_CALL(cuMemFreeHost(pointer)); }
API cudaHostRegister(void *pointer, size_t size, unsigned flags) {
    RETURN_CALL(cuMemHostRegister(pointer, size, flags));
}
API cudaHostUnregister(void *pointer) { RETURN_CALL(cuMemHostUnregister(pointer)); }
API cudaHostGetDevicePointer(void **address, void *pointer, unsigned flags) {
    *address = pointer;
    return 0;
}

API cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
    memset(attributes, 0, sizeof *attributes);
    int ordinal = 0, result = cuInit(0);
    if (result)
        return remember(result);
    int kind = sg_pointer_kind(pointer, &ordinal);
    attributes->type = kind == DEVICE_POINTER   ? cudaMemoryTypeDevice
                       : kind == PINNED_POINTER ? cudaMemoryTypeHost
                                                : cudaMemoryTypeUnregistered;
    attributes->device = kind == UNREGISTERED_POINTER ? cudaInvalidDeviceId : ordinal;
    attributes->devicePointer = kind == UNREGISTERED_POINTER ? NULL : (void *)pointer;
    attributes->hostPointer = kind == DEVICE_POINTER ? NULL : (void *)pointer;
    return 0;
}

static int copy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream, bool is_async) {
    CUdeviceptr to_device = DEVICE_POINTER_OF(to), from_device = DEVICE_POINTER_OF(from);
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return is_async ? cuMemcpyHtoDAsync(to_device, from, size, stream) : cuMemcpyHtoD(to_device, from, size);
    case cudaMemcpyDeviceToHost:
        return is_async ? cuMemcpyDtoHAsync(to, from_device, size, stream) : cuMemcpyDtoH(to, from_device, size);
    case cudaMemcpyDeviceToDevice:
        return is_async ? cuMemcpyDtoDAsync(to_device, from_device, size, stream)
                        : cuMemcpyDtoD(to_device, from_device, size);
    default:
        return is_async ? cuMemcpyAsync(to_device, from_device, size, stream) : cuMemcpy(to_device, from_device, size);
    }
}
API cudaMemcpy(void *to, const void *from, size_t size, enum cudaMemcpyKind kind) {
    RETURN_CALL(copy(to, from, size, kind, NULL, false));
}
API cudaMemcpyAsync(void *to, const void *from, size_t size, enum cudaMemcpyKind kind, cudaStream_t stream) {
    RETURN_CALL(copy(to, from, size, kind, stream, true));
}
API cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t size, cudaStream_t stream) {
    RETURN_CALL(copy(to, from, size, cudaMemcpyDeviceToDevice, stream, true));
}
API cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                      enum cudaMemcpyKind kind, cudaStream_t stream) {
    int result = enter_runtime();
    for (size_t row = 0; !result && row < height; row++)
        result = copy((char *)to + row * to_pitch, (const char *)from + row * from_pitch, width, kind, stream, true);
    return remember(result);
}
API cudaMemset(void *to, int value, size_t size) {
    RETURN_CALL(cuMemsetD8(DEVICE_POINTER_OF(to), (unsigned char)value, size));
}
API cudaMemsetAsync(void *to, int value, size_t size, cudaStream_t stream) {
    RETURN_CALL(cuMemsetD8Async(DEVICE_POINTER_OF(to), (unsigned char)value, size, stream));
}

/* --- streams and events ------------------------------------------------------------------------------------------- */

API cudaStreamCreate(cudaStream_t *stream) { RETURN_CALL(cuStreamCreate(stream, 0)); }
API cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) { RETURN_CALL(cuStreamCreate(stream, flags)); }
API cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    RETURN_CALL(cuStreamCreateWithPriority(stream, flags, priority));
}
API cudaStreamDestroy(cudaStream_t stream) { RETURN_CALL(cuStreamDestroy(stream)); }
API cudaStreamQuery(cudaStream_t stream) { RETURN_CALL(cuStreamQuery(stream)); }
API cudaStreamSynchronize(cudaStream_t stream) { RETURN_CALL(cuStreamSynchronize(stream)); }
API cudaStreamGetPriority(cudaStream_t stream, int *priority) { RETURN_CALL(cuStreamGetPriority(stream, priority)); }
API cudaStreamGetFlags(cudaStream_t stream, unsigned *flags) { RETURN_CALL(cuStreamGetFlags(stream, flags)); }
API cudaStreamGetId(cudaStream_t stream, unsigned long long *id) { RETURN_CALL(cuStreamGetId(stream, id)); }
API cudaStreamGetDevice(cudaStream_t stream, int *device) { RETURN_CALL(cuStreamGetDevice(stream, device)); }
API cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    RETURN_CALL(cuStreamWaitEvent(stream, event, flags));
}
API cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void *data, unsigned flags) {
    RETURN_CALL(cuStreamAddCallback(stream, (CUstreamCallback)callback, data, flags));
}
API cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    RETURN_CALL(cuLaunchHostFunc(stream, function, data));
}
API cudaEventCreate(cudaEvent_t *event) { RETURN_CALL(cuEventCreate(event, 0)); }
API cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) { RETURN_CALL(cuEventCreate(event, flags)); }
API cudaEventDestroy(cudaEvent_t event) { return remember(cuEventDestroy(event)); }
API cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { RETURN_CALL(cuEventRecord(event, stream)); }
API cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    RETURN_CALL(cuEventRecordWithFlags(event, stream, flags));
}
API cudaEventQuery(cudaEvent_t event) { return remember(cuEventQuery(event)); }
API cudaEventSynchronize(cudaEvent_t event) { return remember(cuEventSynchronize(event)); }
API cudaEventElapsedTime(float *ms, cudaEvent_t begin, cudaEvent_t end) {
    return remember(cuEventElapsedTime(ms, begin, end));
}

/* --- graphs ------------------------------------------------------------------------------------------------------- */

API cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode) {
    RETURN_CALL(cuStreamBeginCapture(stream, (CUstreamCaptureMode)mode));
}
API cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) { RETURN_CALL(cuStreamEndCapture(stream, graph)); }
API cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    RETURN_CALL(sg_capture_status(stream, (int *)status, NULL, NULL));
}
API cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                             cudaGraph_t *graph, const cudaGraphNode_t **dependencies, const cudaGraphEdgeData **edges,
                             size_t *count) {
    if (count)
        *count = 0;
    RETURN_CALL(sg_capture_status(stream, (int *)status, id, graph));
}
API cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    return remember(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)mode));
}
API cudaGraphDestroy(cudaGraph_t graph) { return remember(cuGraphDestroy(graph)); }
API cudaGraphExecDestroy(cudaGraphExec_t executable) { return remember(cuGraphExecDestroy(executable)); }
API cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    return remember(cuGraphInstantiateWithFlags(executable, graph, flags));
}
API cudaGraphInstantiate(cudaGraphExec_t *executable, cudaGraph_t graph, unsigned long long flags) {
    return remember(cuGraphInstantiateWithFlags(executable, graph, flags));
}
API cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) { RETURN_CALL(cuGraphLaunch(executable, stream)); }
API cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *count) {
    return remember(cuGraphGetNodes(graph, nodes, count));
}
API cudaGraphDebugDotPrint(cudaGraph_t graph, const char *path, unsigned flags) { return 0; }
API cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t *dependencies, cudaGraphEdgeData *edges,
                                 size_t *count) {
    *count = 0;
    return 0;
}

/* --- others ------------------------------------------------------------------------------------------------------- */

API cudaProfilerStart(void) { return 0; }
API cudaProfilerStop(void) { return 0; }
API cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) { return remember(cudaErrorNotSupported); }
API cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
    return remember(cudaErrorNotSupported);
}
API cudaIpcCloseMemHandle(void *pointer) { return remember(cudaErrorNotSupported); }
API cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event) { return remember(cudaErrorNotSupported); }
API cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle) { return remember(cudaErrorNotSupported); }

API cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                     enum cudaDriverEntryPointQueryResult *result) {
    CUdriverProcAddressQueryResult status;
    cuGetProcAddress(name, function, (int)version, flags, &status);
    if (result)
        *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return 0;
}
