/* Blocks in the memory of a GPU: run as
 *
 *     gpu REGION straight   with a driver that registers the pool
 *     gpu REGION bounced    with one that does not
 *     gpu REGION failing    with one whose copies fail
 *
 * The last two ask the stand-in for the driver for that. */
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

#define BLOCKS 4

/* Of the next block that is not in the pool. */
static uint32_t next_number;

static RacklinePool pool;
static RacklineSession session;
static RacklineGpu gpu;
static CUstream stream;
/* Of BLOCKS blocks each. */
static CUdeviceptr first_memory, second_memory;

/* What this thread works with: the GPU's own context, or for a while another one. */
static CUcontext mine, another;

static CUcontext current(void) {
    CUcontext context;
    CUDA(cuCtxGetCurrent(&context));
    return context;
}

static int said(const char *text) { return strstr(rackline_error_message(), text) != NULL; }

static RacklineError try_publish(CUstream behind, CUdeviceptr at, size_t count, uint32_t number,
                                 RacklinePublish *publish) {
    RacklineSource parts[BLOCKS * PARTS] = {0};
    RacklineBlockHash hashes[BLOCKS];
    gpu_sources(parts, at, count);
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = block_hash(number + i);
    }
    return rackline_publish_from_gpu(session, gpu, behind, hashes, count, 0, parts, PARTS, publish);
}

static size_t end_publish(RacklinePublish publish) {
    RacklinePublishResult result;
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    MUST(rackline_publish_free(publish));
    return result.published;
}

static RacklinePrefix find(uint32_t number, size_t count) {
    RacklineBlockHash hashes[BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = block_hash(number + i);
    }
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup_and_hold(session, hashes, count, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    CHECK(found.blocks == count);
    return found.prefix;
}

static RacklineError try_fetch(CUstream behind, CUdeviceptr at, RacklinePrefix prefix, size_t first,
                               size_t count, RacklineFetch *fetch) {
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    gpu_destinations(parts, at, count);
    return rackline_fetch_into_gpu(session, gpu, behind, prefix, first, count, parts, PARTS, fetch);
}

static RacklineFetchResult end_fetch(RacklineFetch fetch) {
    RacklineFetchResult result;
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    MUST(rackline_fetch_free(fetch));
    return result;
}

static RacklineGpuFigures figures(void) {
    RacklineGpuFigures figures;
    MUST(rackline_gpu_figures(gpu, &figures));
    return figures;
}

/* What the stream computes is published as it leaves it, and fetched behind what it still does. */
static void behind_the_stream(CUstream behind) {
    uint32_t number = next_number;
    next_number += BLOCKS;
    RacklineGpuFigures before = figures();
    for (uint32_t i = 0; i < BLOCKS; i++) {
        compute(behind, first_memory, i, number + i);
    }
    RacklinePublish publish;
    MUST(try_publish(behind, first_memory, BLOCKS, number, &publish));
    CHECK(end_publish(publish) == BLOCKS);
    RacklinePrefix prefix = find(number, BLOCKS);

    /* As another process has it: by the processor, and by what the blocks are called. */
    static uint8_t memory[BLOCKS * BLOCK_BYTES];
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    RacklineBlockHandle handles[BLOCKS];
    RacklineFetch fetch;
    scatter_destinations(parts, memory, BLOCKS);
    MUST(rackline_prefix_handles(prefix, 0, BLOCKS, handles));
    MUST(rackline_fetch_handles(session, handles, BLOCKS, parts, PARTS, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_block(memory + i * BLOCK_BYTES, number + i));
    }

    /* What is still to be written there is written before, not after; beside it nothing is. */
    for (uint32_t i = 0; i < BLOCKS; i++) {
        compute(behind, second_memory, i, 1000 + i);
    }
    MUST(try_fetch(behind, second_memory + BLOCK_BYTES, prefix, 1, 2, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == 2);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_on_gpu(behind, second_memory, i, i == 0 || i == 3 ? 1000 + i : number + i));
    }
    gpu_destinations(parts, second_memory, BLOCKS);
    MUST(rackline_fetch_handles_into_gpu(session, gpu, behind, handles, BLOCKS, parts, PARTS, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_on_gpu(behind, second_memory, i, number + i));
    }
    MUST(rackline_prefix_free(prefix));

    RacklineGpuFigures after = figures();
    CHECK(after.stored_bytes - before.stored_bytes == BLOCKS * BLOCK_BYTES);
    CHECK(after.loaded_bytes - before.loaded_bytes == (2 + BLOCKS) * BLOCK_BYTES);
    CHECK(after.failed_payloads == before.failed_payloads);
}

/* Several at once, of both kinds, and what one of them writes is lent to no other. */
static void at_once(void) {
    uint32_t number = next_number;
    next_number += BLOCKS;
    RacklinePublish publishes[2];
    RacklineFetch fetches[2], refused = {7};
    for (uint32_t i = 0; i < BLOCKS; i++) {
        compute(stream, first_memory, i, number + i);
    }
    for (uint32_t i = 0; i < 2; i++) {
        CUdeviceptr half = first_memory + i * BLOCKS / 2 * BLOCK_BYTES;
        MUST(try_publish(stream, half, BLOCKS / 2, number + i * BLOCKS / 2, &publishes[i]));
    }
    /* Others may read the same, and none may write it: it is lent until they are waited for. */
    RacklinePublish also;
    MUST(try_publish(stream, first_memory + BLOCK_BYTES, 2, number + 1, &also));
    RacklinePrefix known = find(0, 1);
    EXPECT(LENT, try_fetch(stream, first_memory + BLOCK_BYTES, known, 0, 1, &refused));
    CHECK(refused.handle == 0 && said("read by another transfer"));
    MUST(rackline_prefix_free(known));
    CHECK(end_publish(publishes[0]) + end_publish(publishes[1]) + end_publish(also) == BLOCKS);
    RacklinePrefix prefix = find(number, BLOCKS);
    for (uint32_t i = 0; i < 2; i++) {
        CUdeviceptr half = second_memory + i * BLOCKS / 2 * BLOCK_BYTES;
        MUST(try_fetch(stream, half, prefix, i * BLOCKS / 2, BLOCKS / 2, &fetches[i]));
    }
    EXPECT(LENT, try_fetch(stream, second_memory + BLOCK_BYTES / 2, prefix, 0, 1, &refused));
    CHECK(refused.handle == 0 && said("written by another transfer"));
    RacklinePublish publish = {7};
    EXPECT(LENT, try_publish(stream, second_memory + 3 * BLOCK_BYTES - 1, 1, number, &publish));
    CHECK(publish.handle == 0);
    /* The same memory, by whomever. */
    RacklineDestination part = {(void *)(second_memory + 1), BLOCK_BYTES};
    EXPECT(LENT, rackline_fetch(session, prefix, 0, 1, &part, 1, &refused));
    /* Other memory is another's. */
    static uint8_t memory[BLOCK_BYTES];
    part.address = memory;
    RacklineFetch of_processor;
    MUST(rackline_fetch(session, prefix, 0, 1, &part, 1, &of_processor));
    MUST(try_publish(stream, first_memory, 1, number, &publish));
    EXPECT(LENT, try_fetch(stream, first_memory, prefix, 0, 1, &refused));
    CHECK(said("read by another transfer"));
    CHECK(end_publish(publish) == 0);
    CHECK(end_fetch(of_processor).valid_blocks == 1);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK(end_fetch(fetches[i]).valid_blocks == BLOCKS / 2);
    }
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_on_gpu(stream, second_memory, i, number + i));
    }
    /* Two destinations of one fetch are apart, too. */
    RacklineDestination over[2] = {{(void *)second_memory, BLOCK_BYTES},
                                   {(void *)(second_memory + 1), BLOCK_BYTES}};
    EXPECT(BAD_ARGUMENT,
           rackline_fetch_into_gpu(session, gpu, stream, prefix, 0, 2, over, 1, &refused));
    CHECK(said("overlap"));
    MUST(rackline_prefix_free(prefix));
}

static void refused(const char *region) {
    RacklinePublish publish = {7};
    RacklineFetch fetch = {7};
    RacklineGpu other = {7};
    EXPECT(GPU, rackline_gpu_open(pool, 12345, &other));
    CHECK(other.handle == 0 && said("there is no GPU number 12345"));
    EXPECT(BAD_ARGUMENT, rackline_gpu_open(pool, 0, NULL));
    EXPECT(BAD_ARGUMENT, rackline_gpu_reach(gpu, NULL));
    EXPECT(BAD_ARGUMENT, rackline_gpu_figures(gpu, NULL));
    EXPECT(BAD_HANDLE, rackline_gpu_free((RacklineGpu){session.handle}));
    CHECK(said("a session, not of a GPU"));
    MUST(rackline_gpu_free((RacklineGpu){0}));

    /* What is captured is done who knows when. */
    RacklinePrefix prefix = find(0, 1);
    CUgraph graph;
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(GPU, try_publish(stream, first_memory, 1, 0, &publish));
    CHECK(publish.handle == 0 && said("captured into a CUDA graph"));
    EXPECT(GPU, try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    CHECK(fetch.handle == 0 && said("captured into a CUDA graph"));
    CUDA(cuStreamEndCapture(stream, &graph));
    /* A stream that the default one waits for. */
    CUstream blocking;
    CUDA(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    CUDA(cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    const CUstream default_streams[] = {NULL, CU_STREAM_LEGACY};
    for (size_t i = 0; i < 2; i++) {
        EXPECT(GPU, try_publish(default_streams[i], first_memory, 1, 0, &publish));
        CHECK(publish.handle == 0 && said("is the default stream during such a capture"));
    }
    MUST(try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == 1);
    CUDA(cuStreamEndCapture(blocking, &graph));
    CUDA(cuStreamDestroy(blocking));
    /* Nothing of what was refused stays lent. */
    MUST(try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == 1);

    /* Another handle of the same GPU; one of no pool, and one of another. */
    MUST(rackline_gpu_open(pool, 0, &other));
    CHECK(other.handle != gpu.handle);
    RacklineGpu kept = gpu;
    gpu = other;
    MUST(try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    CHECK(end_fetch(fetch).valid_blocks == 1);
    MUST(rackline_gpu_free(gpu));
    EXPECT(BAD_HANDLE, try_publish(stream, first_memory, 1, 0, &publish));
    EXPECT(BAD_HANDLE, try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    gpu = kept;
    RacklinePool without;
    RacklineSession kept_session = session;
    RacklineModel model = tiny_model();
    MUST(rackline_pool_attach(region, 0, NULL, &without));
    MUST(rackline_session_open(without, &model, BLOCK_BYTES, NULL, &session));
    EXPECT(GPU, try_publish(stream, first_memory, 1, 0, &publish));
    CHECK(said("GPU 0 is not open in the pool of this session"));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(without));
    session = kept_session;
    MUST(rackline_prefix_free(prefix));
}

/* A GPU that cannot be opened leaves nothing behind. */
static void with_streams_that_fail(const char *region) {
    RacklinePool other;
    RacklineGpu none;
    MUST(rackline_pool_attach(region, 0, NULL, &other));
    setenv("FAKE_CUDA", "fail:cuStreamCreate:1", 1);
    CUDA(cuCtxSetCurrent(another));
    EXPECT(GPU, rackline_gpu_open(other, 0, &none));
    CHECK(none.handle == 0 && said("cannot make a stream") && current() == another);
    CUDA(cuCtxSetCurrent(mine));
    unsetenv("FAKE_CUDA");
    MUST(rackline_pool_close(other));
}

/* What the driver does not copy is no block. */
static void with_copies_that_fail(void) {
    RacklinePublish publish;
    RacklinePublishResult result;
    RacklineOutcome outcome;
    compute(stream, first_memory, 0, 0);
    setenv("FAKE_CUDA", "fail:cuMemcpyBatchAsync:1", 1);
    MUST(try_publish(stream, first_memory, 1, 0, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, &outcome, 1));
    MUST(rackline_publish_free(publish));
    CHECK(result.published == 0 && said("the fake driver refuses"));
    unsetenv("FAKE_CUDA");
    MUST(try_publish(stream, first_memory, 1, 0, &publish));
    CHECK(end_publish(publish) == 1);
    RacklinePrefix prefix = find(0, 1);
    setenv("FAKE_CUDA", "fail:cuMemcpyBatchAsync:1", 1);
    RacklineFetch fetch;
    MUST(try_fetch(stream, second_memory, prefix, 0, 1, &fetch));
    RacklineFetchResult fetched = end_fetch(fetch);
    CHECK(fetched.valid_blocks == 0 && fetched.reason == RACKLINE_REASON_COPY);
    CHECK(said("the fake driver refuses"));
    unsetenv("FAKE_CUDA");
    CHECK(figures().failed_payloads == 2);
    MUST(rackline_prefix_free(prefix));
}

static void closed(void) {
    RacklinePublish publish;
    RacklineFetch fetch;
    RacklineGpu other;
    RacklinePrefix prefix = find(0, 1);
    compute(stream, first_memory, 0, 0);
    MUST(try_publish(stream, first_memory, 1, 0, &publish));
    CUDA(cuCtxSetCurrent(another));
    MUST(rackline_pool_close(pool));
    CHECK(current() == another);
    CUDA(cuCtxSetCurrent(mine));
    /* What was taken up is done. */
    CHECK(end_publish(publish) == 0);
    EXPECT(CLOSED, try_publish(stream, first_memory, 1, 0, &publish));
    EXPECT(CLOSED, try_fetch(stream, first_memory, prefix, 0, 1, &fetch));
    EXPECT(BAD_HANDLE, rackline_gpu_open(pool, 0, &other));
    CHECK(figures().stored_bytes > 0);
    MUST(rackline_prefix_free(prefix));
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: gpu REGION straight|bounced|failing\n");
        return 2;
    }
    int bounces = strcmp(argv[2], "bounced") == 0;
    CUdevice device = use_gpu();
    mine = current();
    CUDA(cuCtxCreate(&another, 0, device));
    CUDA(cuCtxSetCurrent(mine));
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&first_memory, BLOCKS * BLOCK_BYTES));
    CUDA(cuMemAlloc(&second_memory, BLOCKS * BLOCK_BYTES));

    RacklinePoolOptions options = {0};
    options.fetch_threads = 1;
    MUST(rackline_pool_attach(argv[1], 0, &options, &pool));
    if (bounces) {
        setenv("FAKE_CUDA", "no-register", 1);
    }
    CUDA(cuCtxSetCurrent(another));
    MUST(rackline_gpu_open(pool, 0, &gpu));
    CHECK(current() == another);
    CUDA(cuCtxSetCurrent(mine));
    unsetenv("FAKE_CUDA");
    RacklineGpuReach reach;
    CHECK(rackline_error_message()[0] == '\0');
    MUST(rackline_gpu_reach(gpu, &reach));
    CHECK(bounces ? reach == RACKLINE_GPU_REACH_BOUNCED && said("the fake driver refuses")
                  : reach != RACKLINE_GPU_REACH_BOUNCED && rackline_error_message()[0] == '\0');
    RacklineModel model = tiny_model();
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));

    if (strcmp(argv[2], "failing") == 0) {
        with_streams_that_fail(argv[1]);
        with_copies_that_fail();
    } else {
        const CUstream streams[] = {stream, NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
        for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
            behind_the_stream(streams[i]);
        }
        at_once();
        refused(argv[1]);
        RacklineGpuFigures all = figures();
        CHECK(all.bounced_bytes == (bounces ? all.stored_bytes + all.loaded_bytes : 0));
    }
    closed();

    MUST(rackline_session_free(session));
    MUST(rackline_gpu_free(gpu));
    EXPECT(BAD_HANDLE, rackline_gpu_free(gpu));
    CUDA(cuMemFree(first_memory));
    CUDA(cuMemFree(second_memory));
    CUDA(cuStreamDestroy(stream));
    CUDA(cuCtxDestroy(another));
    CUDA(cuDevicePrimaryCtxRelease(device));
    return 0;
}
