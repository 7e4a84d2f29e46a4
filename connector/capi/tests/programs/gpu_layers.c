/* Transfers by layers of blocks in the memory of a GPU: run as
 *
 *     gpu_layers REGION straight   with a driver that registers the pool
 *     gpu_layers REGION bounced    with one that does not */
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"
#include "layers.h"

#include <unistd.h>

#define BLOCKS 3

static RacklinePool pool;
static RacklineSession session;
static RacklineGpu gpu;
static CUstream stream, other_stream;
/* Of BLOCKS blocks each. */
static CUdeviceptr first_memory, second_memory;
/* Of the next block that is not in the pool. */
static uint32_t next_number;

static int said(const char *text) { return strstr(rackline_error_message(), text) != NULL; }

static RacklineError try_publish(uint32_t number, RacklineLayeredPublish *publish) {
    RacklineSource parts[BLOCKS * PARTS] = {0};
    RacklineBlockHash hashes[BLOCKS];
    gpu_sources(parts, first_memory, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = block_hash(number + i);
    }
    return rackline_publish_by_layers_from_gpu(session, gpu, hashes, BLOCKS, 0, parts, PARTS, &EACH_PART,
                                               publish);
}

static RacklineError try_fetch(CUstream behind, RacklinePrefix prefix, RacklineLayeredFetch *fetch) {
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    gpu_destinations(parts, second_memory, BLOCKS);
    return rackline_fetch_by_layers_into_gpu(session, gpu, behind, prefix, 0, BLOCKS, parts, PARTS,
                                             &IN_TWO, fetch);
}

static size_t end_publish(RacklineLayeredPublish publish) {
    RacklinePublishResult result;
    RacklineOutcome outcomes[BLOCKS];
    MUST(rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &result, outcomes, BLOCKS));
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(outcomes[i] == (result.published ? RACKLINE_OUTCOME_PUBLISHED : RACKLINE_OUTCOME_ABORTED));
    }
    MUST(rackline_layered_publish_free(publish));
    return result.published;
}

static RacklineLookupResult find(uint32_t number) {
    RacklineBlockHash hashes[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = block_hash(number + i);
    }
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup_and_hold(session, hashes, BLOCKS, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    return found;
}

static void is_absent(uint32_t number) {
    RacklineLookupResult found = find(number);
    CHECK(found.blocks == 0);
    MUST(rackline_prefix_free(found.prefix));
}

/* The stream computes a layer of all blocks; later, if somebody waits for that. */
static void compute_layer(CUstream by, uint32_t number, size_t layer) {
    static uint8_t block[BLOCK_BYTES];
    size_t first, end;
    parts_of(&EACH_PART, layer, &first, &end);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        fill_block(block, number + i);
        for (size_t part = first; part < end; part++) {
            size_t at = PART_OFFSETS[part];
            CUDA(cuMemcpyHtoDAsync(first_memory + i * BLOCK_BYTES + at, block + at, PART_BYTES[part], by));
        }
    }
}

static int has_arrived(CUstream on, uint32_t number, size_t layer) {
    static uint8_t blocks[BLOCKS * BLOCK_BYTES];
    CUDA(cuMemcpyDtoHAsync(blocks, second_memory, sizeof blocks, on));
    CUDA(cuStreamSynchronize(on));
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (!has_layer(blocks + i * BLOCK_BYTES, number + i, &IN_TWO, layer)) {
            return 0;
        }
    }
    return 1;
}

/* Each layer is published as its stream leaves it, and fetched behind what the stream still does. */
static void behind_streams(const size_t *order) {
    uint32_t number = next_number;
    next_number += BLOCKS;
    RacklineLayeredPublish publish;
    MUST(try_publish(number, &publish));
    for (size_t i = 0; i < PARTS; i++) {
        CUstream by = i % 2 == 0 ? stream : other_stream;
        compute_layer(by, number, order[i]);
        MUST(rackline_layered_publish_layer_ready_on_gpu(publish, order[i], by));
    }
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready_on_gpu(publish, PARTS, stream));
    CHECK(said("there is no layer 3"));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready(publish, 0));
    CHECK(said("memory of a GPU"));
    MUST(rackline_layered_publish_finish(publish));
    MUST(rackline_layered_publish_layer_ready_on_gpu(publish, 0, stream));
    CHECK(end_publish(publish) == BLOCKS);

    /* As another process has it: by the processor. */
    RacklineLookupResult found = find(number);
    CHECK(found.blocks == BLOCKS);
    static uint8_t memory[BLOCKS * BLOCK_BYTES];
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    RacklineLayeredFetch fetch;
    RacklineFetchResult result;
    scatter_destinations(parts, memory, BLOCKS);
    MUST(rackline_fetch_by_layers(session, found.prefix, 0, BLOCKS, parts, PARTS, &IN_TWO, &fetch));
    MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    MUST(rackline_layered_fetch_free(fetch));
    CHECK(result.valid_blocks == BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_block(memory + i * BLOCK_BYTES, number + i));
    }

    for (int by_handles = 0; by_handles < 2; by_handles++) {
        for (uint32_t i = 0; i < BLOCKS; i++) {
            compute(stream, second_memory, i, 1000 + i);
        }
        if (by_handles) {
            RacklineBlockHandle handles[BLOCKS];
            MUST(rackline_prefix_handles(found.prefix, 0, BLOCKS, handles));
            gpu_destinations(parts, second_memory, BLOCKS);
            MUST(rackline_fetch_handles_by_layers_into_gpu(session, gpu, stream, handles, BLOCKS, parts,
                                                           PARTS, &IN_TWO, &fetch));
        } else {
            MUST(try_fetch(stream, found.prefix, &fetch));
        }
        for (size_t layer = 0; layer < 2; layer++) {
            MUST(rackline_layered_fetch_wait_layer(fetch, layer, RACKLINE_FOREVER_MS));
            CHECK(has_arrived(other_stream, number, layer));
        }
        EXPECT(LENT, try_fetch(stream, found.prefix, &(RacklineLayeredFetch){0}));
        MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
        CHECK(result.valid_blocks == BLOCKS);
        MUST(rackline_layered_fetch_free(fetch));
    }
    MUST(rackline_prefix_free(found.prefix));
}

/* Nobody knows when a layer is there that no stream was named for, or one that captures a graph. */
static void aborted(void) {
    for (size_t ready = 0; ready < PARTS; ready++) {
        RacklineLayeredPublish publish;
        MUST(try_publish(next_number, &publish));
        for (size_t layer = 0; layer < ready; layer++) {
            compute_layer(stream, next_number, layer);
            MUST(rackline_layered_publish_layer_ready_on_gpu(publish, layer, stream));
        }
        MUST(rackline_layered_publish_finish(publish));
        CHECK(end_publish(publish) == 0 && said("the publish was aborted"));
        is_absent(next_number);
    }
    RacklineLayeredPublish publish;
    RacklinePublishResult result;
    CUgraph graph;
    MUST(try_publish(next_number, &publish));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_wait(publish, 0, &result, NULL, 0));
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(GPU, rackline_layered_publish_layer_ready_on_gpu(publish, 0, stream));
    CHECK(said("captured into a CUDA graph"));
    CUDA(cuStreamEndCapture(stream, &graph));
    /* It is over by itself. */
    MUST(rackline_layered_publish_layer_ready_on_gpu(publish, 1, stream));
    CHECK(end_publish(publish) == 0);
    is_absent(next_number);
    MUST(try_publish(next_number, &publish));
    MUST(rackline_layered_publish_free(publish));
    is_absent(next_number);
}

static void refused(const char *region) {
    RacklineLayeredPublish publish = {7};
    RacklineLayeredFetch fetch = {7};
    RacklineLookupResult found = find(0);
    CHECK(found.blocks == BLOCKS);
    CUgraph graph;
    CUDA(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    EXPECT(GPU, try_fetch(stream, found.prefix, &fetch));
    CHECK(fetch.handle == 0);
    CUDA(cuStreamEndCapture(stream, &graph));
    RacklineGpu kept_gpu = gpu;
    gpu = (RacklineGpu){0};
    EXPECT(BAD_HANDLE, try_publish(next_number, &publish));
    CHECK(publish.handle == 0);
    EXPECT(BAD_HANDLE, try_fetch(stream, found.prefix, &fetch));
    gpu = kept_gpu;
    /* Of a pool in which it is not open. */
    RacklinePool without;
    RacklineSession kept_session = session;
    RacklineModel model = tiny_model();
    RacklinePoolOptions options = {.publishes_by_layers = 1};
    MUST(rackline_pool_attach(region, 0, &options, &without));
    MUST(rackline_session_open(without, &model, BLOCK_BYTES, NULL, &session));
    EXPECT(GPU, try_publish(next_number, &publish));
    CHECK(said("GPU 0 is not open in the pool of this session"));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(without));
    session = kept_session;
    /* Nothing of what was refused stays lent. */
    MUST(try_fetch(stream, found.prefix, &fetch));
    MUST(rackline_layered_fetch_free(fetch));
    MUST(rackline_prefix_free(found.prefix));
}

static void closed(void) {
    RacklineLayeredPublish publish;
    MUST(try_publish(next_number, &publish));
    compute_layer(stream, next_number, 0);
    MUST(rackline_layered_publish_layer_ready_on_gpu(publish, 0, stream));
    MUST(rackline_pool_close(pool));
    MUST(rackline_layered_publish_layer_ready_on_gpu(publish, 1, stream));
    CHECK(end_publish(publish) == 0);
    EXPECT(CLOSED, try_publish(next_number, &publish));
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: gpu_layers REGION straight|bounced\n");
        return 2;
    }
    alarm(120);
    int bounces = strcmp(argv[2], "bounced") == 0;
    use_gpu();
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuStreamCreate(&other_stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&first_memory, BLOCKS * BLOCK_BYTES));
    CUDA(cuMemAlloc(&second_memory, BLOCKS * BLOCK_BYTES));
    RacklinePoolOptions options = {.publishes_by_layers = 1};
    MUST(rackline_pool_attach(argv[1], 0, &options, &pool));
    if (bounces) {
        setenv("FAKE_CUDA", "no-register", 1);
    }
    MUST(rackline_gpu_open(pool, 0, &gpu));
    unsetenv("FAKE_CUDA");
    RacklineModel model = tiny_model();
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));

    static const size_t orders[][PARTS] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        behind_streams(orders[i]);
    }
    RacklineGpuFigures figures;
    MUST(rackline_gpu_figures(gpu, &figures));
    CHECK(figures.stored_bytes == 3 * BLOCKS * BLOCK_BYTES);
    CHECK(figures.loaded_bytes == 2 * figures.stored_bytes);
    CHECK(figures.bounced_bytes == (bounces ? 3 * figures.stored_bytes : 0));
    aborted();
    refused(argv[1]);
    closed();

    MUST(rackline_session_free(session));
    MUST(rackline_gpu_free(gpu));
    CUDA(cuMemFree(first_memory));
    CUDA(cuMemFree(second_memory));
    CUDA(cuStreamDestroy(stream));
    CUDA(cuStreamDestroy(other_stream));
    return 0;
}
