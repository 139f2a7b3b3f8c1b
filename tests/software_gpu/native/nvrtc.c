/* libnvrtc.so: the run-time compiler. Its "PTX" is the source's text, and so no source is ever wrong: the driver looks
 * kernels up by name alone. What such kernels compute is not simulated. */
#include "device.h"
#include <stdlib.h>
#include <string.h>

#define API EXPORTED int
enum { SUCCESS = 0, INVALID_INPUT = 3 };

struct program {
    char *source, *lowered;
};

API nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 0;
    return SUCCESS;
}

EXPORTED const char *nvrtcGetErrorString(int error) { return error ? "NVRTC_ERROR" : "NVRTC_SUCCESS"; }

API nvrtcGetNumSupportedArchs(int *count) {
    *count = 1;
    return SUCCESS;
}
API nvrtcGetSupportedArchs(int *architectures) {
    *architectures = 90;
    return SUCCESS;
}

API nvrtcCreateProgram(struct program **program, const char *source, const char *name, int num_headers,
                       const char *const *headers, const char *const *include_names) {
    if (!program || !source)
        return INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    (*program)->source = strdup(source);
    return SUCCESS;
}
API nvrtcDestroyProgram(struct program **program) {
    free((*program)->source);
    free((*program)->lowered);
    free(*program);
    *program = NULL;
    return SUCCESS;
}
API nvrtcCompileProgram(struct program *program, int num_options, const char *const *options) { return SUCCESS; }

API nvrtcAddNameExpression(struct program *program, const char *expression) { return SUCCESS; }
API nvrtcGetLoweredName(struct program *program, const char *expression, const char **lowered) {
    free(program->lowered);
    *lowered = program->lowered = strdup(expression);
    return SUCCESS;
}

#define TEXT(call, text)                                                                                               \
    API nvrtcGet##call##Size(struct program *program, size_t *size) {                                                  \
        *size = strlen(text) + 1;                                                                                      \
        return SUCCESS;                                                                                                \
    }                                                                                                                  \
    API nvrtcGet##call(struct program *program, char *to) {                                                            \
        strcpy(to, text);                                                                                              \
        return SUCCESS;                                                                                                \
    }
TEXT(PTX, program->source)
TEXT(CUBIN, program->source)
TEXT(ProgramLog, "")
