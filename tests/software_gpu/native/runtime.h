/* What the parts of libcudart.so.13 share. */
#pragma once
#include "driver.h"
#define __dv(value) /* default arguments of C++, which C has not */
#include <cuda_runtime_api.h>
#undef API
#define API EXPORTED cudaError_t CUDARTAPI

cudaError_t remember(int code); /* for cudaGetLastError */
int enter_runtime(void);        /* makes this thread's device current; a CUresult */

#define RETURN_CALL(call)                                                                                              \
    do {                                                                                                               \
        int entered_ = enter_runtime();                                                                                \
        return remember(entered_ ? entered_ : (int)(call));                                                            \
    } while (0)
#define DEVICE_POINTER_OF(pointer) ((CUdeviceptr)(pointer))
