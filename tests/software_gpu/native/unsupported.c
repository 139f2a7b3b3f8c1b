/* Calls that say that they are not supported. Without cuda.h: their parameters do not matter. */
#include "device.h"

#define UNSUPPORTED(name)                                                                                              \
    EXPORTED int name(void);                                                                                           \
    int name(void) {                                                                                                   \
        sg_log(#name ": not supported");                                                                               \
        return 801; /* CUDA_ERROR_NOT_SUPPORTED */                                                                     \
    }

UNSUPPORTED(cuMulticastCreate)
UNSUPPORTED(cuMulticastAddDevice)
UNSUPPORTED(cuMulticastBindMem)
UNSUPPORTED(cuMulticastUnbind)
UNSUPPORTED(cuMulticastGetGranularity)
UNSUPPORTED(cuTensorMapEncodeTiled)
UNSUPPORTED(cuLinkCreate_v2)
UNSUPPORTED(cuLinkAddData_v2)
UNSUPPORTED(cuLinkComplete)
UNSUPPORTED(cuDeviceGetDevResource)
UNSUPPORTED(cuDevSmResourceSplitByCount)
UNSUPPORTED(cuDevResourceGenerateDesc)
UNSUPPORTED(cuGreenCtxCreate)
UNSUPPORTED(cuGreenCtxDestroy)
UNSUPPORTED(cuGreenCtxStreamCreate)
UNSUPPORTED(cuCtxFromGreenCtx)
UNSUPPORTED(cuCheckpointProcessGetState)
UNSUPPORTED(cuCheckpointProcessLock)
UNSUPPORTED(cuCheckpointProcessUnlock)
UNSUPPORTED(cuCheckpointProcessCheckpoint)
UNSUPPORTED(cuCheckpointProcessRestore)
UNSUPPORTED(cuCheckpointProcessGetRestoreThreadId)
UNSUPPORTED(cuIpcGetMemHandle)
UNSUPPORTED(cuIpcOpenMemHandle_v2)
UNSUPPORTED(cuIpcCloseMemHandle)
