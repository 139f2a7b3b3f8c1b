/* How compiled CUDA code registers its kernels with the runtime and launches them. They are known by name and compute
 * nothing; torch's operations are computed by operations.cpp before any of these would be launched. */
#include "runtime.h"
#include <stdlib.h>
#include <string.h>

struct kernel {
    const void *stub; /* of the host: what cudaLaunchKernel gets */
    const char *name;
};
struct variable {
    const void *shadow;
    size_t size;
    void *address;
};

static pthread_mutex_t registry_lock = PTHREAD_MUTEX_INITIALIZER;
static struct kernel *kernels; /* a hash table with open addressing */
static size_t num_kernels, room;
static struct variable *variables;
static int num_variables;

static size_t find_slot(const void *stub) {
    size_t i = (((uintptr_t)stub >> 4) * 0x9e3779b97f4a7c15ul) & (room - 1);
    while (kernels[i].stub && kernels[i].stub != stub)
        i = (i + 1) & (room - 1);
    return i;
}

static void grow_table(void) {
    struct kernel *before = kernels;
    size_t count = room;
    room = room ? 2 * room : 1 << 15;
    kernels = calloc(room, sizeof *kernels);
    for (size_t i = 0; i < count; i++)
        if (before[i].stub)
            kernels[find_slot(before[i].stub)] = before[i];
    free(before);
}

void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
char __cudaInitModule(void **handle);
void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name, int threads, void *a,
                            void *b, void *c, void *d, int *e);
void __cudaRegisterVar(void **handle, char *shadow, char *address, const char *name, int is_extern, size_t size,
                       int is_constant, int is_global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream);

EXPORTED void **__cudaRegisterFatBinary(void *binary) { return malloc(1); }
EXPORTED void __cudaRegisterFatBinaryEnd(void **handle) {}
EXPORTED void __cudaUnregisterFatBinary(void **handle) { free(handle); }
EXPORTED char __cudaInitModule(void **handle) { return 1; }

EXPORTED void __cudaRegisterFunction(void **handle, const char *stub, char *function, const char *name, int threads,
                                     void *a, void *b, void *c, void *d, int *e) {
    pthread_mutex_lock(&registry_lock);
    if (2 * (num_kernels + 1) > room)
        grow_table();
    size_t i = find_slot(stub);
    num_kernels += !kernels[i].stub;
    kernels[i] = (struct kernel){stub, name};
    pthread_mutex_unlock(&registry_lock);
}

EXPORTED void __cudaRegisterVar(void **handle, char *shadow, char *address, const char *name, int is_extern,
                                size_t size, int is_constant, int is_global) {
    pthread_mutex_lock(&registry_lock);
    variables = realloc(variables, (num_variables + 1) * sizeof *variables);
    variables[num_variables++] = (struct variable){shadow, size, NULL};
    pthread_mutex_unlock(&registry_lock);
}

API cudaGetSymbolAddress(void **address, const void *symbol) {
    for (int i = 0; i < num_variables; i++) {
        if (variables[i].shadow != symbol)
            continue;
        if (!variables[i].address) {
            cudaError_t error = cudaMalloc(&variables[i].address, variables[i].size);
            if (error)
                return error;
        }
        *address = variables[i].address;
        return 0;
    }
    return remember(cudaErrorInvalidSymbol);
}

API cudaMemcpyToSymbol(const void *symbol, const void *from, size_t size, size_t offset, enum cudaMemcpyKind kind) {
    void *address;
    cudaError_t error = cudaGetSymbolAddress(&address, symbol);
    return error ? error : cudaMemcpy((char *)address + offset, from, size, kind);
}

/* kernel<<<grid, block>>>() pushes its configuration, and its stub pops it. */
static _Thread_local struct configuration {
    dim3 grid, block;
    size_t shared;
    void *stream;
} pushed[8];
static _Thread_local int num_pushed;

EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
    if (num_pushed == sizeof pushed / sizeof *pushed)
        return 1;
    pushed[num_pushed++] = (struct configuration){grid, block, shared, stream};
    return 0;
}

API __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
    if (!num_pushed)
        return cudaErrorMissingConfiguration;
    struct configuration *top = &pushed[--num_pushed];
    *grid = top->grid;
    *block = top->block;
    *shared = top->shared;
    *(void **)stream = top->stream;
    return 0;
}

/* Used by liboperations.so, too: every kernel of torch is launched by cuLaunchKernel, as by NVIDIA's runtime. */
int sg_launch(void *stream, const char *name);
EXPORTED int sg_launch(void *stream, const char *name) {
    int entered = enter_runtime();
    struct CUfunc_st function = {name};
    return entered ? entered : (int)cuLaunchKernel(&function, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static cudaError_t launch(const void *stub, cudaStream_t stream) {
    pthread_mutex_lock(&registry_lock);
    const char *name = room ? kernels[find_slot(stub)].name : NULL;
    pthread_mutex_unlock(&registry_lock);
    return remember(sg_launch(stream, name));
}

API __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
    *kernel = (cudaKernel_t)stub;
    return 0;
}
API __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                       cudaStream_t stream) {
    return launch(kernel, stream);
}
API cudaLaunchKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t stream) {
    return launch(stub, stream);
}
API cudaLaunchKernelExC(const cudaLaunchConfig_t *configuration, const void *stub, void **arguments) {
    return launch(stub, configuration->stream);
}
API cudaLaunchCooperativeKernel(const void *stub, dim3 grid, dim3 block, void **arguments, size_t shared,
                                cudaStream_t stream) {
    return launch(stub, stream);
}

API cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *stub) {
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->ptxVersion = attributes->binaryVersion = 90;
    attributes->maxDynamicSharedSizeBytes = 49152;
    return 0;
}
API cudaFuncSetAttribute(const void *stub, enum cudaFuncAttribute attribute, int value) { return 0; }

API cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *stub, int threads, size_t shared) {
    *blocks = threads > 1024 ? 1 : 2048 / (threads > 0 ? threads : 1);
    return 0;
}
API cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *stub, int threads, size_t shared,
                                                           unsigned flags) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(blocks, stub, threads, shared);
}
