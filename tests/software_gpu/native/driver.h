/* What the parts of libcuda.so.1 share.
 *
 * Two ideas carry the driver. *Memory is memory*: a device address is an address of this process, at which a shared
 * file is mapped. *Time is a number*: each stream has a time until which it is busy. Work is done when it is
 * submitted, and a caller that synchronises waits until that time. With DEFER=1, asynchronous copies and fills are done only when
 * something that CUDA orders after them asks for it: the latest order that CUDA allows, where the default is the
 * earliest. */
#pragma once
#include "device.h"
#include <cuda.h>
#include <pthread.h>

#define API EXPORTED CUresult CUDAAPI

struct CUctx_st {
    int ordinal, device; /* as this process numbers devices, and as the machine does */
    int retained, memory;
    bool active;
    unsigned flags;
    int error; /* that of the first illegal access; every later call returns it */
    _Atomic int64_t busy_until;
};

struct CUfunc_st { /* a kernel is its name */
    const char *name;
};

enum work_kind { COPY, FILL, HOST_FUNCTION, KERNEL };

/* Work of a stream, or a node of a graph. */
struct work {
    enum work_kind kind;
    CUdeviceptr to, from;
    size_t count; /* bytes of a copy, elements of a fill */
    unsigned value, width;
    CUhostFn function;
    void *data;
};

struct CUstream_st {
    unsigned magic, flags;
    int priority;
    CUcontext context;
    _Atomic int64_t busy_until;
    unsigned long long id, capture_id;
    CUgraph capture;
    struct CUstream_st *next;
};

struct CUevent_st {
    unsigned magic, flags;
    CUcontext context;
    bool recorded;
    int64_t at; /* when it is reached */
    CUgraph capture;
};

struct CUgraph_st {
    unsigned magic;
    int count, room;
    struct work *nodes;
};

enum { STREAM_MAGIC = 0x57fea, EVENT_MAGIC = 0xe7e27, GRAPH_MAGIC = 0x96a9f };

/* Physical memory that this process has handles or mappings of. */
struct physical {
    int descriptor, device;
    int64_t size;
    int handles, mappings;
    bool shareable, imported;
};

struct mapping {
    CUdeviceptr address;
    size_t size, asked; /* what cuMemAlloc was asked for */
    struct physical *physical;
    int access;    /* READ and WRITE */
    bool is_plain; /* of cuMemAlloc, not of cuMemMap */
};
enum { READ = 1, WRITE = 2 };

struct range {
    CUdeviceptr address;
    size_t size;
};
struct ranges {
    struct range *all;
    int count, room;
};

/* contexts.c */
extern int num_devices, device_numbers[SG_MAX_DEVICES]; /* this process's ordinals: the machine's numbers */
extern struct CUctx_st contexts[SG_MAX_DEVICES];
extern struct sg_process *own_process[SG_MAX_DEVICES];
CUresult log_failure(const char *call, CUresult code);
CUresult enter_call(const char *call);
CUresult enter_call_in_context(const char *call, CUcontext *context);
void count_amount(const char *call, size_t amount); /* bytes copied or filled, mappings changed */
CUcontext current_context(void);
pthread_mutex_t *lock_driver(void);
void unlock_driver(pthread_mutex_t **held);

#define FAIL(code) return log_failure(__func__, code)
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        CUresult result_ = (expression);                                                                               \
        if (result_)                                                                                                   \
            FAIL(result_);                                                                                             \
    } while (0)
#define INITIALIZED TRY(enter_call(__func__))
#define IN_CONTEXT                                                                                                     \
    CUcontext context = NULL;                                                                                          \
    TRY(enter_call_in_context(__func__, &context))
/* Hold the driver's lock, which is recursive, to the end of the block. */
#define LOCKED __attribute__((cleanup(unlock_driver), unused)) pthread_mutex_t *held_ = lock_driver()

/* streams.c */
extern _Thread_local int capture_mode; /* of this thread */
extern struct CUstream_st default_streams[SG_MAX_DEVICES];
void initialize_default_stream(int ordinal);
struct CUstream_st *find_stream(CUcontext context, CUstream handle); /* NULL where it is none */
void wait_until(int64_t time);
void occupy(struct CUstream_st *stream, int64_t duration);
bool is_device_busy(void);
void end_capture(CUgraph graph); /* of all streams that joined it */

/* graphs.c */
void add_node(CUgraph graph, const struct work *work);
bool is_capture_unsafe(int strictest_allowed);

/* virtual_memory.c */
extern struct ranges reserved;
struct range *find_range(struct ranges *ranges, CUdeviceptr address);
void add_range(struct ranges *ranges, CUdeviceptr address, size_t size);
void remove_range(struct ranges *ranges, struct range *range);
bool create_page_table(void);
struct mapping *find_mapping(CUdeviceptr address);
CUdeviceptr reserve_addresses(size_t size, size_t alignment);
CUresult map_memory(CUdeviceptr address, size_t size, struct physical *physical, bool is_plain, size_t asked);
void unmap_memory(CUdeviceptr address, size_t size);
void drop_physical(struct physical *physical); /* where nothing refers to it */
struct physical *new_physical(int descriptor, int device, int64_t size);

/* transfers.c */
enum access_result { NOT_DEVICE_MEMORY, ACCESSIBLE, INACCESSIBLE };
enum access_result check_access(CUdeviceptr address, size_t size, int access);
CUresult do_work(CUcontext context, const struct work *work); /* a copy, a fill or a host function */

/* For tests, a line for each call of the driver that came in this process: name, how often, and how
 * many bytes it copied or filled or mappings it changed. */
EXPORTED size_t sg_counts(char *text, size_t size);

/* For the runtime and the operations: CUresult as int. */
EXPORTED int sg_use_device(int ordinal);
EXPORTED int sg_device_attribute(int attribute, int ordinal);
enum pointer_kind { UNREGISTERED_POINTER, PINNED_POINTER, DEVICE_POINTER };
EXPORTED int sg_pointer_kind(const void *pointer, int *ordinal);
EXPORTED int sg_access(const void *data, size_t size); /* 0, or the error that sticks after an illegal access */
EXPORTED int sg_capture_status(CUstream stream, int *status, unsigned long long *id, CUgraph *graph);
