// The wrapper for C++: run as
//
//     wrapper REGION
#include "blocks.h"
#include "rackline.hpp"

#include <type_traits>

static_assert(!std::is_copy_constructible<rackline::Prefix>::value, "owners are not copied");
static_assert(!std::is_copy_assignable<rackline::Pool>::value, "owners are not copied");
static_assert(std::is_nothrow_move_constructible<rackline::Fetch>::value, "they are moved");
static_assert(std::is_nothrow_move_constructible<rackline::LayeredPublish>::value, "they are moved");

template <class Call> static void fails(RacklineError code, const char *text, Call call) {
    try {
        call();
    } catch (const rackline::Error &error) {
        CHECK(error.code() == code);
        CHECK(std::string(error.what()).find(text) != std::string::npos);
        return;
    }
    CHECK(!"an exception");
}

static std::uint64_t held(const rackline::Pool &pool) {
    return pool.metric("held_blocks") - pool.metric("released_blocks");
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    fails(RACKLINE_ERROR_POOL, "/nonexistent", [] { rackline::Pool("/nonexistent"); });

    constexpr std::uint32_t BLOCKS = 4;
    std::vector<std::uint8_t> memory(BLOCKS * BLOCK_BYTES);
    std::vector<RacklineBlockHash> hashes;
    for (std::uint32_t i = 0; i < BLOCKS; i++) {
        hashes.push_back(block_hash(i));
        fill_block(&memory[i * BLOCK_BYTES], i);
    }
    std::vector<RacklineSource> sources(BLOCKS * PARTS);
    scatter_sources(sources.data(), memory.data(), BLOCKS);

    RacklinePoolOptions options{};
    options.publishes_by_layers = 1;
    rackline::Pool pool(argv[1], 0, options);
    rackline::Session session = pool.session(tiny_model(), BLOCK_BYTES);
    rackline::Publish publish = session.publish(hashes, 0, sources);
    CHECK(publish.wait().published == BLOCKS);
    fails(RACKLINE_ERROR_NO_RESULT, "no result", [&] { publish.poll(); });
    CHECK(!publish.cancel());
    fails(RACKLINE_ERROR_BAD_ARGUMENT, "parts",
          [&] { session.publish(hashes, 0, {sources[0]}).wait(); });

    rackline::Prefix prefix = session.lookup(hashes, true).wait();
    CHECK(prefix.blocks == BLOCKS && prefix.reason == RACKLINE_REASON_NONE);
    CHECK(held(pool) == BLOCKS);
    // No host of this pool has drives: what is found is in the pool.
    rackline::Prefix waited = session.lookup(hashes, RacklineRestoreOptions{1000, 0}).wait();
    CHECK(waited.blocks == BLOCKS && waited.restored == 0);
    waited.release();
    RacklineRestoreOptions restore{1000, 0};
    RacklinePrefetch prefetch{};
    RacklinePrefetchResult taken{};
    rackline::check(rackline_prefetch(session.get(), hashes.data(), BLOCKS, &restore, &prefetch));
    rackline::check(rackline_prefetch_wait(prefetch, RACKLINE_FOREVER_MS, &taken));
    CHECK(taken.in_pool == BLOCKS && taken.not_asked == 0 && taken.reason == RACKLINE_REASON_NONE);
    rackline::check(rackline_prefetch_free(prefetch));
    std::vector<RacklineBlockHandle> handles = prefix.handles();

    // One that is moved from owns nothing; one that is moved into lets go of what it had.
    rackline::Prefix moved = std::move(prefix);
    CHECK(prefix.get().handle == 0 && moved.get().handle != 0);
    rackline::Prefix other = session.hold(handles).wait();
    const RacklinePrefix before = other.get();
    other = std::move(moved);
    EXPECT(BAD_HANDLE, rackline_prefix_free(before));
    CHECK(other.handles().size() == BLOCKS);

    std::vector<std::uint8_t> target(BLOCKS * BLOCK_BYTES);
    std::vector<RacklineDestination> parts(BLOCKS * PARTS);
    scatter_destinations(parts.data(), target.data(), BLOCKS);
    rackline::Fetch fetch = session.fetch(handles, parts);
    std::optional<RacklineFetchResult> fetched;
    while (!(fetched = fetch.wait_ms(1))) {
    }
    CHECK(fetched->valid_blocks == BLOCKS && target == memory);

    // What the functions of rackline.h started.
    RacklineFetch started{};
    MUST(rackline_fetch_handles(session.get(), handles.data(), BLOCKS, parts.data(), PARTS, &started));
    CHECK(rackline::Fetch(started).wait().valid_blocks == BLOCKS);
    EXPECT(BAD_HANDLE, rackline_fetch_free(started));

    // By layers: the first two parts of a block are layer 0, and the third is layer 1.
    const std::vector<std::size_t> in_two{2, 1};
    std::vector<RacklineBlockHash> later;
    for (std::uint32_t i = 0; i < BLOCKS; i++) later.push_back(block_hash(100 + i));
    {
        rackline::LayeredPublish open = session.publish_by_layers(later, 0, sources, in_two);
        open.layer_ready(0);
        fails(RACKLINE_ERROR_BAD_ARGUMENT, "there is no layer 2", [&] { open.layer_ready(2); });
        fails(RACKLINE_ERROR_BAD_ARGUMENT, "not ended", [&] { open.wait(); });
        fails(RACKLINE_ERROR_BAD_ARGUMENT, "memory of this process", [&] { open.layer_ready(0, nullptr); });
    } // aborts it
    CHECK(!session.lookup(later).wait().blocks);
    rackline::LayeredPublish by_layers = session.publish_by_layers(later, 0, sources, in_two);
    by_layers.abort();
    CHECK(by_layers.wait().published == 0);
    by_layers = session.publish_by_layers(later, 0, sources, in_two);
    by_layers.layer_ready(1);
    by_layers.layer_ready(0);
    by_layers.finish();
    CHECK(by_layers.wait().published == BLOCKS);
    std::vector<std::uint8_t> layered_target(BLOCKS * BLOCK_BYTES);
    scatter_destinations(parts.data(), layered_target.data(), BLOCKS);
    rackline::LayeredFetch layered =
        session.fetch_by_layers(session.lookup(later).wait().handles(), parts, in_two);
    while (!layered.wait_layer_ms(0, 1)) {
    }
    layered.wait_layer(1);
    CHECK(layered_target == memory && !layered.cancel());
    CHECK(layered.wait().valid_blocks == BLOCKS);
    fails(RACKLINE_ERROR_BAD_ARGUMENT, "the layers have 2 parts",
          [&] { session.fetch_by_layers(handles, parts, {1, 1}); });

    other.release();
    CHECK(!session.lookup({block_hash(77)}).wait().blocks);
    rackline::Session elsewhere = pool.session(tiny_model(), BLOCK_BYTES / 2);
    pool.close();
    fails(RACKLINE_ERROR_CLOSED, "closed", [&] { session.lookup(hashes); });
    pool.close(); // there is none any more
}
