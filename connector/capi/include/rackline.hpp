// Rackline for C++17: owners for the handles of rackline.h, to be moved and not copied, and exceptions
// for its errors. What the calls mean, and which memory is lent to whom for how long, stands there.
#ifndef RACKLINE_HPP
#define RACKLINE_HPP
#include "rackline.h"
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace rackline {
class Error : public std::runtime_error {
public:
    Error(RacklineError code, const char *message) : std::runtime_error(message), code_(code) {}
    RacklineError code() const noexcept { return code_; }
private:
    RacklineError code_;
};
// A queue is full: go on without, or try again later.
struct Busy : Error {
    using Error::Error;
};

inline void check(RacklineError code) {
    if (code == RACKLINE_ERROR_BUSY) throw Busy(code, rackline_error_message());
    if (code != RACKLINE_ERROR_OK) throw Error(code, rackline_error_message());
}

template <class Handle, RacklineError (*Free)(Handle)> class Owner {
public:
    Owner() = default;
    explicit Owner(Handle handle) noexcept : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
    Owner &operator=(Owner &&other) noexcept {
        Owner taken(std::move(other)); // frees what was here
        std::swap(handle_, taken.handle_);
        return *this;
    }
    ~Owner() { Free(handle_); }
    Handle get() const noexcept { return handle_; }
    // Frees it now, and says what was wrong with that.
    void close() { check(Free(std::exchange(handle_, Handle{}))); }

protected:
    Handle handle_{};
};

// What a lookup found. Its blocks are let go at its end.
struct Prefix : Owner<RacklinePrefix, rackline_prefix_free> {
    explicit Prefix(const RacklineLookupResult &found)
        : Owner(found.prefix), blocks(found.blocks), on_drives(found.on_drives),
          restored(found.restored), reason(found.reason) {}
    std::size_t blocks, on_drives, restored;
    RacklineReason reason;
    void release() { check(rackline_prefix_release(get())); }
    std::vector<RacklineBlockHandle> handles() const {
        std::vector<RacklineBlockHandle> handles(blocks);
        return check(rackline_prefix_handles(get(), 0, blocks, handles.data())), handles;
    }
};

inline RacklineError publish_wait(RacklinePublish publish, std::uint64_t timeout_ms,
                                  RacklinePublishResult *result) {
    return rackline_publish_wait(publish, timeout_ms, result, nullptr, 0);
}
inline RacklineError layered_publish_wait(RacklineLayeredPublish publish, std::uint64_t timeout_ms,
                                          RacklinePublishResult *result) {
    return rackline_layered_publish_wait(publish, timeout_ms, result, nullptr, 0);
}

// A transfer under way. One that lends memory is over when its destructor returns.
template <class Handle, class Raw, class Result, RacklineError (*Wait)(Handle, std::uint64_t, Raw *),
          RacklineError (*Free)(Handle)>
struct Awaited : Owner<Handle, Free> {
    using Owner<Handle, Free>::Owner;
    // Nothing when it takes longer than that. The result is had once.
    std::optional<Result> wait_ms(std::uint64_t timeout_ms) {
        Raw raw{};
        RacklineError code = Wait(this->get(), timeout_ms, &raw);
        if (code == RACKLINE_ERROR_UNDER_WAY) return std::nullopt;
        return check(code), Result(raw);
    }
    std::optional<Result> poll() { return wait_ms(0); }
    Result wait() { return std::move(*wait_ms(RACKLINE_FOREVER_MS)); }
};

// One that can be revoked before it begins.
template <class Handle, class Raw, class Result, RacklineError (*Wait)(Handle, std::uint64_t, Raw *),
          RacklineError (*Cancel)(Handle, bool *), RacklineError (*Free)(Handle)>
struct Transfer : Awaited<Handle, Raw, Result, Wait, Free> {
    using Awaited<Handle, Raw, Result, Wait, Free>::Awaited;
    bool cancel() {
        bool cancelled = false;
        return check(Cancel(this->get(), &cancelled)), cancelled;
    }
};
using Lookup = Transfer<RacklineLookup, RacklineLookupResult, Prefix, rackline_lookup_wait,
                        rackline_lookup_cancel, rackline_lookup_free>;
using Publish = Transfer<RacklinePublish, RacklinePublishResult, RacklinePublishResult, publish_wait,
                         rackline_publish_cancel, rackline_publish_free>;
using Fetch = Transfer<RacklineFetch, RacklineFetchResult, RacklineFetchResult, rackline_fetch_wait,
                       rackline_fetch_cancel, rackline_fetch_free>;

// A fetch by layers.
struct LayeredFetch : Transfer<RacklineLayeredFetch, RacklineFetchResult, RacklineFetchResult,
                               rackline_layered_fetch_wait, rackline_layered_fetch_cancel,
                               rackline_layered_fetch_free> {
    using Transfer::Transfer;
    // Whether the layer has arrived within that time.
    bool wait_layer_ms(std::size_t layer, std::uint64_t timeout_ms) {
        RacklineError code = rackline_layered_fetch_wait_layer(get(), layer, timeout_ms);
        if (code == RACKLINE_ERROR_UNDER_WAY) return false;
        return check(code), true;
    }
    void wait_layer(std::size_t layer) { wait_layer_ms(layer, RACKLINE_FOREVER_MS); }
};

// A publish by layers. Its destructor aborts one that was not finished.
struct LayeredPublish : Awaited<RacklineLayeredPublish, RacklinePublishResult, RacklinePublishResult,
                                layered_publish_wait, rackline_layered_publish_free> {
    using Awaited::Awaited;
    void layer_ready(std::size_t layer) { check(rackline_layered_publish_layer_ready(get(), layer)); }
    // Of memory of a GPU: with the stream that computes the layer.
    void layer_ready(std::size_t layer, void *stream) {
        check(rackline_layered_publish_layer_ready_on_gpu(get(), layer, stream));
    }
    void finish() { check(rackline_layered_publish_finish(get())); }
    void abort() { check(rackline_layered_publish_abort(get())); }
};

// A GPU that is open in a pool. Streams are its own: CUstream or cudaStream_t.
struct Gpu : Owner<RacklineGpu, rackline_gpu_free> {
    using Owner::Owner;
    RacklineGpuReach reach() const {
        RacklineGpuReach reach{};
        return check(rackline_gpu_reach(get(), &reach)), reach;
    }
    RacklineGpuFigures figures() const {
        RacklineGpuFigures figures{};
        return check(rackline_gpu_figures(get(), &figures)), figures;
    }
};

// A way to the blocks of one model and namespace. Every block has as many parts; by layers, each layer
// has as many of them as parts_of_layer says.
struct Session : Owner<RacklineSession, rackline_session_free> {
    using Owner::Owner;
    Lookup lookup(const std::vector<RacklineBlockHash> &hashes, const RacklineRestoreOptions &restore) {
        RacklineLookup lookup{};
        return check(rackline_lookup_and_restore(get(), hashes.data(), hashes.size(), &restore, &lookup)), Lookup(lookup);
    }
    Lookup lookup(const std::vector<RacklineBlockHash> &hashes, bool hold = false) {
        RacklineLookup lookup{};
        auto start = hold ? rackline_lookup_and_hold : rackline_lookup;
        return check(start(get(), hashes.data(), hashes.size(), &lookup)), Lookup(lookup);
    }
    Lookup hold(const std::vector<RacklineBlockHandle> &handles) {
        RacklineLookup lookup{};
        return check(rackline_hold(get(), handles.data(), handles.size(), &lookup)), Lookup(lookup);
    }
    Publish publish(const std::vector<RacklineBlockHash> &hashes, std::uint32_t first_depth,
                    const std::vector<RacklineSource> &parts) {
        RacklinePublish publish{};
        return check(rackline_publish(get(), hashes.data(), hashes.size(), first_depth, parts.data(),
                               each(parts.size(), hashes.size()), &publish)), Publish(publish);
    }
    Fetch fetch(const std::vector<RacklineBlockHandle> &handles,
                const std::vector<RacklineDestination> &parts) {
        RacklineFetch fetch{};
        return check(rackline_fetch_handles(get(), handles.data(), handles.size(), parts.data(),
                                     each(parts.size(), handles.size()), &fetch)), Fetch(fetch);
    }

    Publish publish_from_gpu(const Gpu &gpu, void *stream, const std::vector<RacklineBlockHash> &hashes,
                             std::uint32_t first_depth, const std::vector<RacklineSource> &parts) {
        RacklinePublish publish{};
        return check(rackline_publish_from_gpu(get(), gpu.get(), stream, hashes.data(), hashes.size(), first_depth,
                                        parts.data(), each(parts.size(), hashes.size()), &publish)), Publish(publish);
    }
    Fetch fetch_into_gpu(const Gpu &gpu, void *stream, const std::vector<RacklineBlockHandle> &handles,
                         const std::vector<RacklineDestination> &parts) {
        RacklineFetch fetch{};
        return check(rackline_fetch_handles_into_gpu(get(), gpu.get(), stream, handles.data(), handles.size(),
                                              parts.data(), each(parts.size(), handles.size()), &fetch)), Fetch(fetch);
    }
    LayeredPublish publish_by_layers(const std::vector<RacklineBlockHash> &hashes, std::uint32_t first_depth,
                                     const std::vector<RacklineSource> &parts,
                                     const std::vector<std::size_t> &parts_of_layer) {
        RacklineLayeredPublish publish{};
        const RacklineLayers layers{parts_of_layer.size(), parts_of_layer.data()};
        return check(rackline_publish_by_layers(get(), hashes.data(), hashes.size(), first_depth, parts.data(),
                                         each(parts.size(), hashes.size()), &layers, &publish)), LayeredPublish(publish);
    }
    LayeredPublish publish_by_layers_from_gpu(const Gpu &gpu, const std::vector<RacklineBlockHash> &hashes,
                                              std::uint32_t first_depth, const std::vector<RacklineSource> &parts,
                                              const std::vector<std::size_t> &parts_of_layer) {
        RacklineLayeredPublish publish{};
        const RacklineLayers layers{parts_of_layer.size(), parts_of_layer.data()};
        return check(rackline_publish_by_layers_from_gpu(get(), gpu.get(), hashes.data(), hashes.size(), first_depth,
                                                  parts.data(), each(parts.size(), hashes.size()), &layers,
                                                  &publish)), LayeredPublish(publish);
    }
    LayeredFetch fetch_by_layers(const std::vector<RacklineBlockHandle> &handles,
                                 const std::vector<RacklineDestination> &parts,
                                 const std::vector<std::size_t> &parts_of_layer) {
        RacklineLayeredFetch fetch{};
        const RacklineLayers layers{parts_of_layer.size(), parts_of_layer.data()};
        return check(rackline_fetch_handles_by_layers(get(), handles.data(), handles.size(), parts.data(),
                                               each(parts.size(), handles.size()), &layers, &fetch)), LayeredFetch(fetch);
    }
    LayeredFetch fetch_by_layers_into_gpu(const Gpu &gpu, void *stream,
                                          const std::vector<RacklineBlockHandle> &handles,
                                          const std::vector<RacklineDestination> &parts,
                                          const std::vector<std::size_t> &parts_of_layer) {
        RacklineLayeredFetch fetch{};
        const RacklineLayers layers{parts_of_layer.size(), parts_of_layer.data()};
        return check(rackline_fetch_handles_by_layers_into_gpu(get(), gpu.get(), stream, handles.data(), handles.size(),
                                                        parts.data(), each(parts.size(), handles.size()), &layers,
                                                        &fetch)), LayeredFetch(fetch);
    }

private:
    static std::size_t each(std::size_t parts, std::size_t blocks) {
        if (blocks != 0 && parts % blocks == 0) return parts / blocks;
        if (blocks == 0 && parts == 0) return 0;
        throw Error(RACKLINE_ERROR_BAD_ARGUMENT, "the blocks have different numbers of parts");
    }
};

// This process, attached to a pool, which it leaves at the end.
struct Pool : Owner<RacklinePool, rackline_pool_close> {
    explicit Pool(const std::string &region, std::uint16_t node = 0, RacklinePoolOptions options = {}) {
        check(rackline_pool_attach(region.c_str(), node, &options, &handle_));
    }
    Session session(const RacklineModel &model, std::uint64_t block_bytes,
                    RacklineSessionOptions options = {}) {
        RacklineSession session{};
        return check(rackline_session_open(get(), &model, block_bytes, &options, &session)), Session(session);
    }
    // Opens a GPU, as CUDA counts in this process, or finds it open.
    Gpu gpu(std::uint32_t number = 0) {
        RacklineGpu gpu{};
        return check(rackline_gpu_open(get(), number, &gpu)), Gpu(gpu);
    }
    std::uint64_t metric(const char *name) const {
        std::uint64_t value = 0;
        return check(rackline_pool_metric(get(), name, &value)), value;
    }
};

} // namespace rackline
#endif
