/* A child made by fork leaves the GPU of its parent alone: run as
 *
 *     forked_gpu REGION
 *
 * The stand-in for the driver ends a child that uses it. */
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

static RacklinePool pool;
static RacklineSession session;
static RacklineGpu gpu;
static CUstream stream;
static CUdeviceptr memory;
static RacklineFetch under_way;
static RacklineLayeredPublish by_layers;
static RacklinePrefix prefix;

static RacklineError try_publish(uint32_t number, RacklinePublish *publish) {
    RacklineSource parts[PARTS] = {0};
    RacklineBlockHash hash = block_hash(number);
    gpu_sources(parts, memory, 1);
    return rackline_publish_from_gpu(session, gpu, stream, &hash, 1, 0, parts, PARTS, publish);
}

/* Each part is a layer. */
static RacklineError try_publish_by_layers(RacklineLayeredPublish *publish) {
    const RacklineLayers layers = {PARTS, NULL};
    RacklineSource parts[PARTS] = {0};
    RacklineBlockHash hash = block_hash(2);
    gpu_sources(parts, memory, 1);
    return rackline_publish_by_layers_from_gpu(session, gpu, &hash, 1, 2, parts, PARTS, &layers, publish);
}

static RacklineError try_fetch(RacklineFetch *fetch) {
    RacklineDestination parts[PARTS] = {0};
    gpu_destinations(parts, memory + BLOCK_BYTES, 1);
    return rackline_fetch_into_gpu(session, gpu, stream, prefix, 0, 1, parts, PARTS, fetch);
}

static void in_a_child(void) {
    RacklinePublish publish;
    RacklineFetch fetch;
    RacklineFetchResult fetched;
    RacklineLayeredPublish layered;
    RacklineGpu other;
    RacklineGpuReach reach;
    RacklineGpuFigures figures;
    EXPECT(FORKED, try_publish(1, &publish));
    EXPECT(FORKED, try_fetch(&fetch));
    EXPECT(FORKED, rackline_fetch_wait(under_way, RACKLINE_FOREVER_MS, &fetched));
    EXPECT(FORKED, rackline_fetch_free(under_way));
    EXPECT(FORKED, try_publish_by_layers(&layered));
    EXPECT(FORKED, rackline_layered_publish_layer_ready_on_gpu(by_layers, 1, stream));
    EXPECT(FORKED, rackline_layered_publish_finish(by_layers));
    EXPECT(FORKED, rackline_layered_publish_free(by_layers));
    EXPECT(FORKED, rackline_gpu_open(pool, 0, &other));
    EXPECT(FORKED, rackline_gpu_reach(gpu, &reach));
    EXPECT(FORKED, rackline_gpu_figures(gpu, &figures));
    EXPECT(FORKED, rackline_gpu_free(gpu));
    EXPECT(FORKED, rackline_pool_close(pool));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: forked_gpu REGION\n");
        return 2;
    }
    use_gpu();
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&memory, 2 * BLOCK_BYTES));
    RacklineModel model = tiny_model();
    RacklinePoolOptions options = {.publishes_by_layers = 1};
    MUST(rackline_pool_attach(argv[1], 0, &options, &pool));
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    MUST(rackline_gpu_open(pool, 0, &gpu));
    compute(stream, memory, 0, 0);
    RacklinePublish publish;
    RacklinePublishResult published;
    MUST(try_publish(0, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0));
    MUST(rackline_publish_free(publish));
    RacklineBlockHash hash = block_hash(0);
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, &hash, 1, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    prefix = found.prefix;
    MUST(try_fetch(&under_way));
    MUST(try_publish_by_layers(&by_layers));
    MUST(rackline_layered_publish_layer_ready_on_gpu(by_layers, 0, stream));

    pid_t child = fork();
    if (child == 0) {
        alarm(20);
        in_a_child();
        /* What the library has at the end of a process comes to its end, too. */
        exit(0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    /* The parent continues. */
    RacklineFetchResult fetched;
    MUST(rackline_fetch_wait(under_way, RACKLINE_FOREVER_MS, &fetched));
    CHECK(fetched.valid_blocks == 1);
    MUST(rackline_fetch_free(under_way));
    CHECK(is_on_gpu(stream, memory, 1, 0));
    for (size_t layer = 1; layer < PARTS; layer++) {
        MUST(rackline_layered_publish_layer_ready_on_gpu(by_layers, layer, stream));
    }
    MUST(rackline_layered_publish_finish(by_layers));
    MUST(rackline_layered_publish_wait(by_layers, RACKLINE_FOREVER_MS, &published, NULL, 0));
    CHECK(published.published == 1);
    MUST(rackline_layered_publish_free(by_layers));
    MUST(try_publish(1, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0));
    CHECK(published.published == 1);
    MUST(rackline_publish_free(publish));
    MUST(rackline_prefix_free(prefix));
    MUST(rackline_gpu_free(gpu));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    return 0;
}
