/* A gate below torch: stands in front of libcuda.so.1 and lets launches, copies and allocations wait for a grant.
 *
 * The library has the driver's soname, exports only the calls below, and depends on the driver by its path. Loaded
 * before anything else loads the driver, it is what dlopen("libcuda.so.1") and every dependency of that name find; all
 * other calls are found in the driver behind it. NVIDIA's runtime asks dlsym for cuGetProcAddress_v2 only and that for
 * everything else, so cuGetProcAddress is here as well: an address that is one of the calls below is replaced.
 *
 * A call costs one look at a word, in the session's shared page: not 0 while it holds a grant. While it is 0 the call
 * waits on that word as a futex, without Python's lock. CUDA's headers are not needed: types are as wide as NVIDIA's.
 */
#include <dlfcn.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
typedef unsigned long long address; /* of device memory */
typedef unsigned char byte;

enum { NOT_FOUND = 500 }; /* CUresult */
enum kind { LAUNCH = 1, COPY = 2, ALLOCATION = 4 };
struct call;
static int wait_for_grant(struct call *call);

static _Atomic int64_t always = 1;
static _Atomic int64_t *granted = &always;

/* --- calls -------------------------------------------------------------------------------------------------------- */

/* Those of the default stream have a second name: of threads that have default streams of their own. */
#define ON_STREAM(X, kind, name, parameters, arguments)                                                                \
    X(kind, name, parameters, arguments) X(kind, name##_ptsz, parameters, arguments)
#define SYNCHRONOUS(X, kind, name, parameters, arguments)                                                              \
    X(kind, name, parameters, arguments) X(kind, name##_ptds, parameters, arguments)
#define GRID unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared

#define CALLS(X)                                                                                                       \
    ON_STREAM(X, LAUNCH, cuLaunchKernel, (void *f, GRID, void *s, void **a, void **e),                                 \
              (f, gx, gy, gz, bx, by, bz, shared, s, a, e))                                                            \
    ON_STREAM(X, LAUNCH, cuLaunchKernelEx, (const void *c, void *f, void **a, void **e), (c, f, a, e))                 \
    ON_STREAM(X, LAUNCH, cuLaunchCooperativeKernel, (void *f, GRID, void *s, void **a),                                \
              (f, gx, gy, gz, bx, by, bz, shared, s, a))                                                               \
    ON_STREAM(X, LAUNCH, cuGraphLaunch, (void *g, void *s), (g, s))                                                    \
    SYNCHRONOUS(X, COPY, cuMemcpy, (address to, address from, size_t n), (to, from, n))                                \
    SYNCHRONOUS(X, COPY, cuMemcpyHtoD_v2, (address to, const void *from, size_t n), (to, from, n))                     \
    SYNCHRONOUS(X, COPY, cuMemcpyDtoH_v2, (void *to, address from, size_t n), (to, from, n))                           \
    SYNCHRONOUS(X, COPY, cuMemcpyDtoD_v2, (address to, address from, size_t n), (to, from, n))                         \
    SYNCHRONOUS(X, COPY, cuMemcpy2D_v2, (const void *copy), (copy))                                                    \
    SYNCHRONOUS(X, COPY, cuMemcpy2DUnaligned_v2, (const void *copy), (copy))                                           \
    SYNCHRONOUS(X, COPY, cuMemcpy3D_v2, (const void *copy), (copy))                                                    \
    SYNCHRONOUS(X, COPY, cuMemcpyPeer, (address to, void *tc, address from, void *fc, size_t n),                       \
                (to, tc, from, fc, n))                                                                                 \
    ON_STREAM(X, COPY, cuMemcpyAsync, (address to, address from, size_t n, void *s), (to, from, n, s))                 \
    ON_STREAM(X, COPY, cuMemcpyHtoDAsync_v2, (address to, const void *from, size_t n, void *s), (to, from, n, s))      \
    ON_STREAM(X, COPY, cuMemcpyDtoHAsync_v2, (void *to, address from, size_t n, void *s), (to, from, n, s))            \
    ON_STREAM(X, COPY, cuMemcpyDtoDAsync_v2, (address to, address from, size_t n, void *s), (to, from, n, s))          \
    ON_STREAM(X, COPY, cuMemcpy2DAsync_v2, (const void *copy, void *s), (copy, s))                                     \
    ON_STREAM(X, COPY, cuMemcpy3DAsync_v2, (const void *copy, void *s), (copy, s))                                     \
    ON_STREAM(X, COPY, cuMemcpyPeerAsync, (address to, void *tc, address from, void *fc, size_t n, void *s),           \
              (to, tc, from, fc, n, s))                                                                                \
    SYNCHRONOUS(X, COPY, cuMemsetD8_v2, (address to, byte value, size_t n), (to, value, n))                            \
    SYNCHRONOUS(X, COPY, cuMemsetD16_v2, (address to, unsigned short value, size_t n), (to, value, n))                 \
    SYNCHRONOUS(X, COPY, cuMemsetD32_v2, (address to, unsigned value, size_t n), (to, value, n))                       \
    ON_STREAM(X, COPY, cuMemsetD8Async, (address to, byte value, size_t n, void *s), (to, value, n, s))                \
    ON_STREAM(X, COPY, cuMemsetD16Async, (address to, unsigned short value, size_t n, void *s), (to, value, n, s))     \
    ON_STREAM(X, COPY, cuMemsetD32Async, (address to, unsigned value, size_t n, void *s), (to, value, n, s))           \
    X(ALLOCATION, cuMemAlloc_v2, (address * memory, size_t n), (memory, n))                                            \
    X(ALLOCATION, cuMemAllocPitch_v2, (address * memory, size_t *pitch, size_t w, size_t h, unsigned size),            \
      (memory, pitch, w, h, size))                                                                                     \
    X(ALLOCATION, cuMemAllocManaged, (address * memory, size_t n, unsigned flags), (memory, n, flags))                 \
    ON_STREAM(X, ALLOCATION, cuMemAllocAsync, (address * memory, size_t n, void *s), (memory, n, s))                   \
    ON_STREAM(X, ALLOCATION, cuMemAllocFromPoolAsync, (address * memory, size_t n, void *pool, void *s),               \
              (memory, n, pool, s))                                                                                    \
    X(ALLOCATION, cuMemCreate, (address * handle, size_t n, const void *properties, unsigned long long flags),         \
      (handle, n, properties, flags))

struct call {
    const char *name;
    enum kind kind;
    void *wrapper, *real;
    _Atomic long seen[2]; /* while no grant was held: without Python's lock, and with it */
};

#define NUMBER(kind, name, parameters, arguments) NUMBER_##name,
#define DECLARE(kind, name, parameters, arguments) int name parameters;
#define ENTRY(kind, name, parameters, arguments) {#name, kind, (void *)name, NULL, {0, 0}},
#define WRAPPER(kind, name, parameters, arguments)                                                                     \
    EXPORTED int name parameters {                                                                                     \
        struct call *call = &calls[NUMBER_##name];                                                                     \
        if (__builtin_expect(!atomic_load_explicit(granted, memory_order_acquire), 0)) {                               \
            int error = wait_for_grant(call);                                                                          \
            if (error)                                                                                                 \
                return error;                                                                                          \
        }                                                                                                              \
        return ((int(*) parameters)call->real)arguments;                                                               \
    }

enum { CALLS(NUMBER) NUM_CALLS };
CALLS(DECLARE)
static struct call calls[] = {CALLS(ENTRY)};
CALLS(WRAPPER)

/* --- how callers find them ---------------------------------------------------------------------------------------- */

static int (*real_get_address)(const char *, void **, int, uint64_t, void *);
static int (*real_get_address_v1)(const char *, void **, int, uint64_t);
static _Atomic long num_missed;

static int not_in_driver(void) { return NOT_FOUND; }

__attribute__((constructor)) static void find_driver(void) {
    void *driver = dlopen(DRIVER, RTLD_NOW);
    if (!driver)
        return;
    for (int i = 0; i < NUM_CALLS; i++) {
        calls[i].real = dlsym(driver, calls[i].name);
        if (!calls[i].real)
            calls[i].real = (void *)not_in_driver;
    }
    *(void **)&real_get_address = dlsym(driver, "cuGetProcAddress_v2");
    *(void **)&real_get_address_v1 = dlsym(driver, "cuGetProcAddress");
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, void *status);
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags);

static void replace(const char *name, void **function) {
    static const char *const gated_calls[] = {"cuLaunch", "cuGraphLaunch", "cuMemcpy", "cuMemset", "cuMemAlloc"};
    if (!*function)
        return;
    if (!strcmp(name, "cuGetProcAddress")) {
        *function = *function == (void *)real_get_address_v1 ? (void *)cuGetProcAddress : (void *)cuGetProcAddress_v2;
        return;
    }
    for (int i = 0; i < NUM_CALLS; i++)
        if (calls[i].real == *function) {
            *function = calls[i].wrapper;
            return;
        }
    if (!strcmp(name, "cuLaunchHostFunc") || !strcmp(name, "cuMemAllocHost"))
        return; /* not of the device */
    for (int i = 0; i < 5; i++)
        num_missed += !strncmp(name, gated_calls[i], strlen(gated_calls[i]));
}

EXPORTED int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, void *status) {
    int result = real_get_address ? real_get_address(name, function, version, flags, status) : NOT_FOUND;
    if (!result)
        replace(name, function);
    return result;
}

EXPORTED int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    int result = real_get_address_v1 ? real_get_address_v1(name, function, version, flags) : NOT_FOUND;
    if (!result)
        replace(name, function);
    return result;
}

/* --- waiting ------------------------------------------------------------------------------------------------------ */

static unsigned gated = LAUNCH | COPY | ALLOCATION;
static int interrupted_result; /* what an interrupted call returns; 0: it goes on waiting */
static int wanted = -1;        /* an eventfd that a wait is reported on */
static bool only_counts;
static _Atomic long num_waiting;
static _Atomic unsigned num_cancelled;

/* Python's, where there is one in this process. */
static struct {
    int (*has_lock)(void), (*enter)(void), (*run_handlers)(void);
    void *(*release)(void);
    void (*take)(void *), (*leave)(int), (*clear)(void), (*interrupt)(void);
} python;

static bool is_python_here(void) {
    if (python.has_lock)
        return true;
    *(void **)&python.enter = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
    *(void **)&python.leave = dlsym(RTLD_DEFAULT, "PyGILState_Release");
    *(void **)&python.release = dlsym(RTLD_DEFAULT, "PyEval_SaveThread");
    *(void **)&python.take = dlsym(RTLD_DEFAULT, "PyEval_RestoreThread");
    *(void **)&python.run_handlers = dlsym(RTLD_DEFAULT, "PyErr_CheckSignals");
    *(void **)&python.clear = dlsym(RTLD_DEFAULT, "PyErr_Clear");
    *(void **)&python.interrupt = dlsym(RTLD_DEFAULT, "PyErr_SetInterrupt");
    *(void **)&python.has_lock = dlsym(RTLD_DEFAULT, "PyGILState_Check");
    return python.has_lock;
}

/* Run the handlers of signals that came; whether one raised. An exception cannot go through the C and C++ above this
 * call, so it is dropped, and an interrupt is noted anew for the next bytecode. */
static bool is_interrupted(void) {
    if (!is_python_here() || getpid() != (pid_t)syscall(SYS_gettid))
        return false;
    int state = python.enter();
    bool raised = python.run_handlers() < 0;
    if (raised) {
        python.clear();
        python.interrupt();
    }
    python.leave(state);
    return raised;
}

__attribute__((noinline)) static int wait_for_grant(struct call *call) {
    bool has_lock = is_python_here() && python.has_lock();
    call->seen[has_lock]++;
    if (only_counts || !(call->kind & gated))
        return 0;
    unsigned cancelled = num_cancelled;
    uint64_t one = 1;
    num_waiting++;
    if (wanted >= 0 && write(wanted, &one, sizeof one) < 0)
        wanted = -1;
    void *thread = has_lock ? python.release() : NULL;
    int result = 0;
    while (!result && !*granted) {
        /* Looks again after a while: a signal may come after the time is over and before this thread runs, and then
         * nothing says so. */
        struct timespec interval = {.tv_nsec = 50000000};
        syscall(SYS_futex, granted, FUTEX_WAIT, 0, &interval, NULL, 0);
        if (interrupted_result && !*granted && (num_cancelled != cancelled || is_interrupted()))
            result = interrupted_result;
    }
    num_waiting--;
    if (has_lock)
        python.take(thread);
    return result;
}

/* --- for the session ---------------------------------------------------------------------------------------------- */

struct settings {
    int64_t *word; /* not 0 while a grant is held; NULL: every call passes */
    int gated;     /* kinds of calls that wait */
    int interrupted_result, wanted, only_counts;
};
EXPORTED void launch_hook_set(const struct settings *settings);
EXPORTED void launch_hook_wake(void);
EXPORTED void launch_hook_cancel(void);
EXPORTED long launch_hook_waiting(void);
EXPORTED long launch_hook_missed(void);
EXPORTED long launch_hook_seen(int kind, int with_lock);
EXPORTED void *launch_hook_real(const char *name);

void launch_hook_set(const struct settings *settings) {
    gated = settings->gated;
    interrupted_result = settings->interrupted_result;
    wanted = settings->wanted;
    only_counts = settings->only_counts;
    granted = settings->word ? (_Atomic int64_t *)settings->word : &always;
}

/* After the word was set. Another process would make the same system call on its mapping of the page. */
void launch_hook_wake(void) { syscall(SYS_futex, granted, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0); }

/* End all waits with an error (any thread). */
void launch_hook_cancel(void) {
    num_cancelled++;
    launch_hook_wake();
}

long launch_hook_waiting(void) { return num_waiting; }
long launch_hook_missed(void) { return num_missed; }

long launch_hook_seen(int kind, int with_lock) {
    long count = 0;
    for (int i = 0; i < NUM_CALLS; i++)
        if (calls[i].kind & kind)
            count += calls[i].seen[with_lock];
    return count;
}

void *launch_hook_real(const char *name) {
    for (int i = 0; i < NUM_CALLS; i++)
        if (!strcmp(calls[i].name, name))
            return calls[i].real;
    return NULL;
}
