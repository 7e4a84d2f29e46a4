/*
 * A CUDA driver for machines without a GPU: device memory is memory of the process, and streams do
 * nothing before somebody waits for them. So a copy that nobody waits for has not happened, and one
 * that was not ordered after the work before it finds what was there before.
 *
 * FAKE_CUDA=no-register     memory is not registered
 *           only-iomemory   memory is registered as that of a device only
 *           no-gpu          the driver is there, and no GPU
 *           corrupt         copies of 256 KiB and more change a byte on their way to or from pinned memory
 *           no-kernel       no code for the GPU is loaded: a driver that is too old for it
 *           wrong-sums      the GPU computes wrong checksums
 *           eager-copies    copies happen at once, before the work that they should wait for
 *           fail:NAME:N     the N-th call of that function, and all later ones, fail
 *           room:BYTES      no more than so much memory of callers is registered at once
 *           forget:N        the N-th registration is said to be made, and is not
 * -DWITHOUT_BATCH         a driver that has no cuMemcpyBatchAsync
 *
 * The one kernel is the real one, compiled for the processor. What a caller would be hurt by on a real
 * GPU is refused: more than 1,024 copies at once, waits that keep a processor busy, sums of memory that
 * is not the GPU's, memory that is registered twice. A copy that finds its memory unregistered when its
 * turn comes is not made, and breaks the GPU: all later copies and waits fail, as after an illegal access.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ON_CPU
#include "../../src/dma/cuda/kernel/crc32c.cu"

typedef int CUresult;
typedef uint64_t CUdeviceptr;

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 101, INVALID_CONTEXT = 201, FAILED = 719,
    NOT_READY = 600, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_SUPPORTED = 801,
    CAPTURE_IMPLICIT = 906, UNSUPPORTED_PTX = 222
};

/* Memory that copies may reach. One copy lies within one range on each side. */
struct range { uint64_t start, bytes; int pinned, registered; struct range *next; };
struct stream;
struct event { struct stream *stream; uint64_t position; unsigned flags; };
struct op {
    enum { COPY, SET, WAIT, TABLES_OF_SUMS, SUM } kind;
    uint64_t to, from, bytes;
    unsigned warps;
    uint8_t value;
    int lies_in_ranges;
    void *snapshot;
    struct event until;
    struct op *next;
};
struct stream {
    struct op *first, *last; uint64_t submitted, done; int capturing, blocking; struct stream *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static struct stream *streams;
static struct stream default_stream;
static int context_cookie;
/* Since a copy reached memory that was not registered any more. */
static int broken;
static __thread void *current;

static int mode_is(const char *name) {
    const char *mode = getenv("FAKE_CUDA");
    return mode && strcmp(mode, name) == 0;
}

/* Whether this call fails. */
static int fails(const char *name) {
    static int calls;
    const char *mode = getenv("FAKE_CUDA");
    size_t length = strlen(name);
    if (!mode || strncmp(mode, "fail:", 5) || strncmp(mode + 5, name, length) || mode[5 + length] != ':')
        return 0;
    return __sync_add_and_fetch(&calls, 1) >= atoi(mode + 6 + length);
}

/* The number in a mode like "room:4096"; 0 in other modes. */
static uint64_t number_of(const char *name) {
    const char *mode = getenv("FAKE_CUDA");
    return mode && !strncmp(mode, name, strlen(name)) ? strtoull(mode + strlen(name), NULL, 10) : 0;
}

/* Also by the handles that CUDA has for the default stream (0, 1) and for that of each thread (2). */
static struct stream *stream_of(void *handle) {
    static __thread struct stream *of_thread;
    if ((uint64_t)handle > 2) return handle;
    if ((uint64_t)handle < 2) return &default_stream;
    if (!of_thread) {
        of_thread = calloc(1, sizeof *of_thread);
        of_thread->next = streams;
        streams = of_thread;
    }
    return of_thread;
}

static struct range *range_of(uint64_t address, uint64_t bytes) {
    for (struct range *range = ranges; range; range = range->next)
        if (address >= range->start && address + bytes <= range->start + range->bytes) return range;
    return NULL;
}

/* Not any range: memory that tests gave to the GPU and then freed may be the process's again. */
static int is_pinned(uint64_t address, uint64_t bytes) {
    struct range *range = range_of(address, bytes);
    return range && range->pinned;
}

static struct range *add_range(uint64_t start, uint64_t bytes, int pinned) {
    struct range *range = malloc(sizeof *range);
    *range = (struct range){start, bytes, pinned, 0, ranges};
    return ranges = range;
}

static int remove_range(uint64_t start) {
    for (struct range **at = &ranges; *at; at = &(*at)->next)
        if ((*at)->start == start) {
            struct range *found = *at;
            *at = found->next;
            free(found);
            return 1;
        }
    return 0;
}

static void copy(uint64_t to, uint64_t from, uint64_t bytes) {
    memcpy((void *)to, (void *)from, bytes);
    if (bytes >= 256 << 10 && mode_is("corrupt") && (is_pinned(to, bytes) || is_pinned(from, bytes))) ((uint8_t *)to)[bytes / 2] += 1;
}

static void make_tables(void) {
    for (u32 table = 0; table < TABLES; table++)
        for (u32 entry = 0; entry < TABLE; entry++) make_table(table, entry);
}

/* Warps one after another, and of each the lanes. */
static void sum(const struct piece *pieces, u32 count, u32 *sums, u32 warps) {
    fill_row_table(0, 1);
    for (u32 warp = 0; warp < warps; warp++)
        for (u32 lane = 0; lane < LANES; lane++) sum_pieces(lane, warp, warps, pieces, count, sums);
    if (mode_is("wrong-sums")) sums[0] ^= 1;
}

static void run_until(struct stream *stream, uint64_t position) {
    while (stream->done < position) {
        struct op *op = stream->first;
        stream->first = op->next;
        if (!stream->first) stream->last = NULL;
        stream->done++;
        if (op->kind == COPY && op->lies_in_ranges && (!range_of(op->to, op->bytes) || !range_of(op->from, op->bytes))) {
            if (!broken) fprintf(stderr, "fake driver: a copy was under way when its memory was unregistered\n");
            broken = 1;
        } else if (op->kind == COPY) {
            copy(op->to, op->snapshot ? (uint64_t)op->snapshot : op->from, op->bytes);
        }
        if (op->kind == SET) memset((void *)op->to, op->value, op->bytes);
        if (op->kind == WAIT) run_until(op->until.stream, op->until.position);
        if (op->kind == TABLES_OF_SUMS) make_tables();
        if (op->kind == SUM) sum((struct piece *)op->from, op->bytes, (u32 *)op->to, op->warps);
        free(op->snapshot);
        free(op);
    }
}

static void run_all(void) {
    run_until(&default_stream, default_stream.submitted);
    for (struct stream *stream = streams; stream; stream = stream->next)
        run_until(stream, stream->submitted);
}

static void submit(struct stream *stream, struct op op) {
    struct op *queued = malloc(sizeof *queued);
    *queued = op;
    queued->next = NULL;
    if (stream->last) stream->last->next = queued; else stream->first = queued;
    stream->last = queued;
    stream->submitted++;
}

static CUresult submit_copy(uint64_t to, uint64_t from, uint64_t bytes, void *stream) {
    if (current != &context_cookie) return INVALID_CONTEXT;
    if (broken) return ILLEGAL_ADDRESS;
    if (!range_of(to, bytes) || !range_of(from, bytes)) return INVALID_VALUE;
    if (mode_is("eager-copies")) copy(to, from, bytes);
    else submit(stream_of(stream), (struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes, .lies_in_ranges = 1});
    return OK;
}

#define LOCKED(body) do { pthread_mutex_lock(&mutex); body; pthread_mutex_unlock(&mutex); } while (0)

/* A child made by fork has nothing to call here: it ends. */
static pid_t process;
static void check_process(void) { if (process && process != getpid()) abort(); }

CUresult cuInit(unsigned flags) { (void)flags; process = getpid(); return OK; }
CUresult cuDeviceGetCount(int *count) { *count = mode_is("no-gpu") ? 0 : 1; return OK; }
CUresult cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? NO_DEVICE : OK; }
CUresult cuDeviceGetAttribute(int *value, int attribute, int device) {
    (void)attribute; (void)device; *value = 0; return OK;
}
CUresult cuDevicePrimaryCtxRetain(void **context, int device) {
    (void)device; *context = &context_cookie; return OK;
}
CUresult cuDevicePrimaryCtxRelease_v2(int device) { (void)device; return OK; }
/* A context that is not the one of the GPU's streams and memory. */
CUresult cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags; (void)device; current = *context = malloc(1); return OK;
}
CUresult cuCtxDestroy_v2(void *context) {
    if (current == context) current = NULL;
    free(context);
    return OK;
}
CUresult cuCtxSetCurrent(void *context) { check_process(); current = context; return OK; }
CUresult cuCtxGetCurrent(void **context) { check_process(); *context = current; return OK; }
CUresult cuCtxSynchronize(void) { LOCKED(run_all()); return OK; }
CUresult cuGetErrorName(CUresult error, const char **name) {
    (void)error; *name = "CUDA_ERROR_FAKE"; return OK;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    (void)error; *text = "the fake driver refuses"; return OK;
}

CUresult cuStreamCreate(void **handle, unsigned flags) {
    const unsigned non_blocking = 1;
    if (fails("cuStreamCreate")) return FAILED;
    struct stream *stream = calloc(1, sizeof *stream);
    stream->blocking = !(flags & non_blocking);
    LOCKED(stream->next = streams; streams = stream);
    *handle = stream;
    return OK;
}
/* The least first: a stream of priority 0 gives way to all others. */
CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    *least = 0;
    *greatest = -5;
    return OK;
}
CUresult cuStreamCreateWithPriority(void **handle, unsigned flags, int priority) {
    if (fails("cuStreamCreateWithPriority")) return FAILED;
    return priority == 0 ? cuStreamCreate(handle, flags) : INVALID_VALUE;
}
/* Events may still name it: it is kept, empty. */
CUresult cuStreamDestroy_v2(void *handle) {
    LOCKED(run_until(stream_of(handle), stream_of(handle)->submitted));
    return OK;
}
CUresult cuStreamSynchronize(void *handle) {
    if (fails("cuStreamSynchronize")) return FAILED;
    LOCKED(run_until(stream_of(handle), stream_of(handle)->submitted));
    return broken ? ILLEGAL_ADDRESS : OK;
}
CUresult cuStreamWaitEvent(void *handle, struct event *event, unsigned flags) {
    (void)flags;
    LOCKED(if (event->stream) submit(stream_of(handle), (struct op){.kind = WAIT, .until = *event}));
    return OK;
}

CUresult cuStreamIsCapturing(void *handle, int *status) {
    int refused = 0;
    LOCKED(
        /* The default stream and the blocking ones wait for each other. */
        for (struct stream *stream = streams; stream; stream = stream->next)
            refused |= stream->capturing && stream->blocking && stream_of(handle) == &default_stream;
        *status = stream_of(handle)->capturing);
    return refused ? CAPTURE_IMPLICIT : OK;
}
CUresult cuStreamBeginCapture_v2(void *handle, int mode) {
    (void)mode;
    LOCKED(stream_of(handle)->capturing = 1);
    return OK;
}
/* Graphs are always empty. */
CUresult cuStreamEndCapture(void *handle, void **graph) {
    LOCKED(stream_of(handle)->capturing = 0);
    *graph = NULL;
    return OK;
}
CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
    static __thread int in_force;
    int before = in_force;
    in_force = *mode;
    *mode = before;
    return OK;
}

CUresult cuEventCreate(struct event **event, unsigned flags) {
    *event = calloc(1, sizeof **event); (*event)->flags = flags; return OK;
}
CUresult cuEventDestroy_v2(struct event *event) { free(event); return OK; }
CUresult cuEventRecord(struct event *event, void *handle) {
    LOCKED(event->stream = stream_of(handle); event->position = event->stream->submitted);
    return OK;
}
/* Each query lets the stream do one thing more. */
CUresult cuEventQuery(struct event *event) {
    int done = 1;
    if (fails("cuEventQuery")) return FAILED;
    LOCKED(if (event->stream && event->stream->done < event->position) {
        run_until(event->stream, event->stream->done + 1);
        done = event->stream->done >= event->position;
    });
    if (broken) return ILLEGAL_ADDRESS;
    return done ? OK : NOT_READY;
}
CUresult cuEventSynchronize(struct event *event) {
    const unsigned sleeps = 1;
    if (fails("cuEventSynchronize")) return FAILED;
    if (!(event->flags & sleeps)) return INVALID_VALUE;
    LOCKED(if (event->stream) run_until(event->stream, event->position));
    return broken ? ILLEGAL_ADDRESS : OK;
}

/* Not of the driver: has memory of the process count as that of the GPU, from now on. */
void fake_device_memory(void *address, size_t bytes) {
    LOCKED(add_range((uint64_t)address, bytes, 0));
}

CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    memset(memory, 0xa5, bytes);
    *address = (uint64_t)memory;
    LOCKED(add_range(*address, bytes, 0));
    return OK;
}
CUresult cuMemFree_v2(CUdeviceptr address) {
    int found;
    LOCKED(run_all(); found = remove_range(address));
    if (found) free((void *)address);
    return found ? OK : INVALID_VALUE;
}
/* The allocation in which that address lies. */
CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address) {
    struct range *range;
    if (current != &context_cookie) return INVALID_CONTEXT;
    LOCKED(range = range_of(address, 1));
    if (!range) return INVALID_VALUE;
    *start = range->start;
    *bytes = range->bytes;
    return OK;
}

/* The kernel, by the names of its two functions. */
static const char tables_function[] = "rackline_crc32c_tables", sums_function[] = "rackline_crc32c";
CUresult cuModuleLoadData(void **module, const void *image) {
    if (fails("cuModuleLoadData")) return FAILED;
    if (mode_is("no-kernel")) return UNSUPPORTED_PTX;
    *module = (void *)image;
    return strstr(image, ".entry rackline_crc32c(") ? OK : INVALID_VALUE;
}
CUresult cuModuleGetFunction(void **function, void *module, const char *name) {
    const char *known = !strcmp(name, sums_function) ? sums_function
                      : !strcmp(name, tables_function) ? tables_function : NULL;
    *function = (void *)known;
    return known && module ? OK : INVALID_VALUE;
}
CUresult cuModuleUnload(void *module) { return module && current ? OK : INVALID_CONTEXT; }
CUresult cuLaunchKernel(void *function, unsigned grid, unsigned grid_y, unsigned grid_z, unsigned block,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream,
                        void **parameters, void **extra) {
    if (fails("cuLaunchKernel")) return FAILED;
    if (current != &context_cookie) return INVALID_CONTEXT;
    if (!grid || grid_y * grid_z * block_y * block_z != 1 || shared_bytes || extra) return INVALID_VALUE;
    if (function == tables_function) {
        if (grid != TABLES || block != TABLE) return INVALID_VALUE;
        LOCKED(submit(stream_of(stream), (struct op){.kind = TABLES_OF_SUMS}));
        return OK;
    }
    const struct piece *pieces = *(const struct piece **)parameters[0];
    u32 count = *(u32 *)parameters[1], *sums = *(u32 **)parameters[2];
    int known;
    LOCKED(
        known = is_pinned((uint64_t)pieces, count * sizeof *pieces) &&
                is_pinned((uint64_t)sums, count * sizeof *sums);
        for (u32 i = 0; known && i < count; i++) known = range_of(pieces[i].address, pieces[i].bytes) != NULL;
        if (known) submit(stream_of(stream), (struct op){.kind = SUM, .to = (uint64_t)sums,
            .from = (uint64_t)pieces, .bytes = count, .warps = grid * block / LANES}));
    return known ? OK : FAILED;
}

CUresult cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {
    (void)flags;
    *address = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    memset(*address, 0x5a, bytes);
    LOCKED(add_range((uint64_t)*address, bytes, 1));
    return OK;
}
CUresult cuMemFreeHost(void *address) {
    int found;
    LOCKED(run_all(); found = remove_range((uint64_t)address));
    if (found) free(address);
    return found ? OK : INVALID_VALUE;
}
static CUresult register_range(uint64_t start, uint64_t bytes) {
    static uint64_t registrations;
    uint64_t registered = 0;
    for (struct range *range = ranges; range; range = range->next) {
        if (!range->registered) continue;
        if (start < range->start + range->bytes && range->start < start + bytes) return ALREADY_REGISTERED;
        registered += range->bytes;
    }
    if (number_of("room:") && registered + bytes > number_of("room:")) return OUT_OF_MEMORY;
    if (++registrations != number_of("forget:")) add_range(start, bytes, 1)->registered = 1;
    return OK;
}
CUresult cuMemHostRegister_v2(void *address, size_t bytes, unsigned flags) {
    const unsigned iomemory = 4;
    CUresult result;
    if (fails("cuMemHostRegister_v2")) return FAILED;
    if (mode_is("no-register")) return NOT_SUPPORTED;
    if (mode_is("only-iomemory") && !(flags & iomemory)) return NOT_SUPPORTED;
    if (current != &context_cookie) return INVALID_CONTEXT;
    LOCKED(result = register_range((uint64_t)address, bytes));
    return result;
}
/* Waits for nothing: who ends a registration under a copy breaks it. */
CUresult cuMemHostUnregister(void *address) {
    int found;
    if (fails("cuMemHostUnregister")) return FAILED;
    if (current != &context_cookie) return INVALID_CONTEXT;
    LOCKED(found = remove_range((uint64_t)address));
    return found ? OK : INVALID_VALUE;
}
CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *bytes) {
    *bytes = (size_t)1 << 37;
    *free_bytes = *bytes / 2;
    return OK;
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, void *stream) {
    LOCKED(submit(stream_of(stream), (struct op){.kind = SET, .to = to, .bytes = bytes, .value = value}));
    return OK;
}
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
    LOCKED(submit(stream_of(stream),
                  (struct op){.kind = COPY, .to = to, .from = from, .bytes = bytes}));
    return OK;
}
CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, void *stream) {
    if (fails("cuMemcpyAsync")) return FAILED;
    CUresult result;
    LOCKED(result = submit_copy(to, from, bytes, stream));
    return result;
}
#ifndef WITHOUT_BATCH
CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                            void *attributes, size_t *indexes, size_t attribute_count,
                            size_t *failed, void *stream) {
    (void)attributes;
    /* What the real one refuses. */
    if (!stream || !count || attribute_count != 1 || indexes[0] != 0) return INVALID_VALUE;
    const size_t at_once = 1024;
    if (count > at_once) return INVALID_VALUE;
    if (fails("cuMemcpyBatchAsync")) return FAILED;
    CUresult result = OK;
    LOCKED(for (size_t i = 0; i < count && result == OK; i++) {
        result = submit_copy(to[i], from[i], bytes[i], stream);
        if (result != OK) *failed = i;
    });
    return result;
}
#endif
/* Pageable memory: read before the call returns, or written before it does. */
CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, void *stream) {
    struct op op = {.kind = COPY, .to = to, .from = (uint64_t)from, .bytes = bytes};
    LOCKED(
        if (!is_pinned(op.from, bytes)) {
            op.snapshot = malloc(bytes);
            memcpy(op.snapshot, from, bytes);
        }
        submit(stream_of(stream), op));
    return OK;
}
CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, void *stream) {
    struct op op = {.kind = COPY, .to = (uint64_t)to, .from = from, .bytes = bytes};
    LOCKED(
        submit(stream_of(stream), op);
        if (!is_pinned(op.to, bytes)) run_until(stream_of(stream), stream_of(stream)->submitted));
    return OK;
}
