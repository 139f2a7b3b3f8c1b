/* Modules and kernels: known by name, taking time, computing nothing. (What torch computes is in operations.cpp.) */
#include "driver.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

API cuModuleLoadData(CUmodule *module, const void *image) {
    IN_CONTEXT;
    *module = malloc(1);
    return 0;
}

API cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned count, CUjit_option *options, void **values) {
    return cuModuleLoadData(module, image);
}

API cuModuleLoad(CUmodule *module, const char *name) { return cuModuleLoadData(module, name); }

API cuModuleUnload(CUmodule module) {
    free(module);
    return 0;
}

API cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    IN_CONTEXT;
    char *copy = strdup(name);
    *function = malloc(sizeof **function);
    (*function)->name = copy;
    return 0;
}

API cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
    return 0;
}

API cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) { return 0; }
API cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return 0; }

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
    *blocks = 2;
    return 0;
}

/* A kernel whose name contains the setting FAULT makes an illegal access. */
API cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared, CUstream handle, void **arguments,
                   void **extra) {
    IN_CONTEXT;
    const char *name = function ? function->name : NULL;
    struct CUstream_st *stream = find_stream(context, handle);
    if (!stream)
        FAIL(CUDA_ERROR_INVALID_HANDLE);
    if (stream->capture) {
        add_node(stream->capture, &(struct work){.kind = KERNEL});
        return 0;
    }
    if (name && sg_settings.fault[0] && strstr(name, sg_settings.fault))
        context->error = CUDA_ERROR_ILLEGAL_ADDRESS; /* which the next call returns */
    else
        occupy(stream, sg_settings.kernel_ns);
    return 0;
}

API cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                              unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void **arguments) {
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, arguments, NULL);
}

API cuGetExportTable(const void **table, const CUuuid *id) { /* NVRTC asks for one */
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* The newest version of a call that is here, whichever is asked for. */
API cuGetProcAddress(const char *name, void **function, int version, cuuint64_t flags,
                     CUdriverProcAddressQueryResult *status) {
    static const char *const suffixes[] = {"_v4", "_v3", "_v2", ""};
    static void *self;
    if (!self) {
        Dl_info info;
        self = dladdr((void *)cuInit, &info) ? dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD) : RTLD_DEFAULT;
    }
    *function = NULL;
    for (int i = 0; i < 4 && !*function; i++) {
        char full[160];
        snprintf(full, sizeof full, "%s%s", name, suffixes[i]);
        *function = dlsym(self, full);
    }
    if (status)
        *status = *function ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return *function ? 0 : CUDA_ERROR_NOT_FOUND;
}
