// The wrapper for C++, with blocks in the memory of a GPU: run as
//
//     wrapper_gpu REGION
#include "gpu.h"
#include "rackline.hpp"

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    constexpr std::uint32_t BLOCKS = 2;
    CUstream stream;
    CUdeviceptr first, second;
    use_gpu();
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemAlloc(&first, BLOCKS * BLOCK_BYTES));
    CUDA(cuMemAlloc(&second, BLOCKS * BLOCK_BYTES));
    std::vector<RacklineSource> sources(BLOCKS * PARTS);
    std::vector<RacklineDestination> destinations(BLOCKS * PARTS);
    gpu_sources(sources.data(), first, BLOCKS);
    gpu_destinations(destinations.data(), second, BLOCKS);

    RacklinePoolOptions options{};
    options.publishes_by_layers = 1;
    rackline::Pool pool(argv[1], 0, options);
    rackline::Session session = pool.session(tiny_model(), BLOCK_BYTES);
    rackline::Gpu gpu = pool.gpu();
    CHECK(gpu.reach() != RACKLINE_GPU_REACH_BOUNCED);
    try {
        pool.gpu(12345);
        CHECK(!"a GPU");
    } catch (const rackline::Error &error) {
        CHECK(error.code() == RACKLINE_ERROR_GPU);
    }

    // Whole, and then by layers, each of which is a part.
    const std::vector<std::size_t> parts_of_layer(PARTS, 1);
    for (std::uint32_t number : {0u, 10u}) {
        std::vector<RacklineBlockHash> hashes;
        for (std::uint32_t i = 0; i < BLOCKS; i++) {
            hashes.push_back(block_hash(number + i));
            compute(stream, first, i, number + i);
        }
        if (number == 0) {
            CHECK(session.publish_from_gpu(gpu, stream, hashes, 0, sources).wait().published == BLOCKS);
        } else {
            auto publish = session.publish_by_layers_from_gpu(gpu, hashes, 0, sources, parts_of_layer);
            for (std::size_t layer = 0; layer < PARTS; layer++) publish.layer_ready(layer, stream);
            publish.finish();
            CHECK(publish.wait().published == BLOCKS);
        }
        rackline::Prefix prefix = session.lookup(hashes, true).wait();
        if (number == 0) {
            auto fetch = session.fetch_into_gpu(gpu, stream, prefix.handles(), destinations);
            CHECK(fetch.wait().valid_blocks == BLOCKS);
        } else {
            auto fetch = session.fetch_by_layers_into_gpu(gpu, stream, prefix.handles(), destinations,
                                                          parts_of_layer);
            fetch.wait_layer(PARTS - 1);
            CHECK(fetch.wait().valid_blocks == BLOCKS);
        }
        for (std::uint32_t i = 0; i < BLOCKS; i++) CHECK(is_on_gpu(stream, second, i, number + i));
    }
    const RacklineGpuFigures figures = gpu.figures();
    CHECK(figures.stored_bytes == 2 * BLOCKS * BLOCK_BYTES && figures.loaded_bytes == figures.stored_bytes);
    pool.close();
    CUDA(cuMemFree(first));
    CUDA(cuMemFree(second));
    CUDA(cuStreamDestroy(stream));
}
