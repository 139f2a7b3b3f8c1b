/* Capture and graphs. Copies, fills and host functions are replayed in the order of their capture; kernels take their
 * time and compute nothing, so a graph of torch's operations leaves its outputs as the capture left them. */
#include "driver.h"
#include <stdlib.h>
#include <string.h>

static int num_captures; /* of this process, with the driver's lock held */
_Thread_local int capture_mode;

void add_node(CUgraph graph, const struct work *work) {
    LOCKED;
    if (graph->count == graph->room) {
        graph->room = 2 * graph->room + 64;
        graph->nodes = realloc(graph->nodes, graph->room * sizeof *graph->nodes);
    }
    graph->nodes[graph->count++] = *work;
}

/* Whether a call that no capture may meet is refused: while one runs, unless this thread's mode is laxer than that.
 * Guess: modes are of threads here, where CUDA also looks at who began the capture. */
bool is_capture_unsafe(int strictest_allowed) { return num_captures && capture_mode < strictest_allowed; }

#define STREAM(handle)                                                                                                 \
    IN_CONTEXT;                                                                                                        \
    struct CUstream_st *stream = find_stream(context, handle);                                                         \
    if (!stream)                                                                                                       \
    FAIL(CUDA_ERROR_INVALID_HANDLE)

API cuStreamBeginCapture(CUstream handle, CUstreamCaptureMode mode) {
    STREAM(handle);
    LOCKED;
    if (stream == &default_streams[context->ordinal] || stream->capture)
        FAIL(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    stream->capture = calloc(1, sizeof *stream->capture);
    stream->capture->magic = GRAPH_MAGIC;
    stream->capture_id = stream->id;
    num_captures++;
    return 0;
}

API cuStreamEndCapture(CUstream handle, CUgraph *graph) {
    STREAM(handle);
    LOCKED;
    if (!stream->capture)
        FAIL(CUDA_ERROR_ILLEGAL_STATE);
    *graph = stream->capture;
    end_capture(*graph);
    num_captures--;
    return 0;
}

API cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status) {
    STREAM(handle);
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return 0;
}

int sg_capture_status(CUstream handle, int *status, unsigned long long *id, CUgraph *graph) {
    STREAM(handle);
    *status = stream->capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    if (id)
        *id = stream->capture_id;
    if (graph)
        *graph = stream->capture;
    return 0;
}

API cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

API cuGraphCreate(CUgraph *graph, unsigned flags) {
    INITIALIZED;
    *graph = calloc(1, sizeof **graph);
    (*graph)->magic = GRAPH_MAGIC;
    return 0;
}

API cuGraphDestroy(CUgraph graph) {
    INITIALIZED;
    if (!graph || graph->magic != GRAPH_MAGIC)
        FAIL(CUDA_ERROR_INVALID_VALUE);
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
    return 0;
}

API cuGraphInstantiateWithFlags(CUgraphExec *executable, CUgraph graph, unsigned long long flags) {
    INITIALIZED;
    CUgraph copy = calloc(1, sizeof *copy);
    copy->magic = GRAPH_MAGIC;
    for (int i = 0; i < graph->count; i++)
        add_node(copy, &graph->nodes[i]);
    *executable = (CUgraphExec)copy;
    return 0;
}

API cuGraphExecDestroy(CUgraphExec executable) { return cuGraphDestroy((CUgraph)executable); }

API cuGraphLaunch(CUgraphExec executable, CUstream handle) {
    STREAM(handle);
    CUgraph graph = (CUgraph)executable;
    int kernels = 0;
    for (int i = 0; i < graph->count; i++) {
        kernels += graph->nodes[i].kind == KERNEL;
        TRY(do_work(context, &graph->nodes[i]));
    }
    occupy(stream, kernels * sg_settings.kernel_ns);
    return 0;
}

API cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
    INITIALIZED;
    *count = graph->count;
    return 0;
}
