/* Calls in any order with arbitrary handles, numbers and pointers that are null: errors at worst, and
 * afterwards all works as ever. Run as
 *
 *     arbitrary REGION SEED CALLS
 *
 * What C promises is kept: a pointer that is not null points to what the call says, lengths are those of
 * what is there, or beyond all memory, streams are streams, and memory that is lent is left alone. */
#define _POSIX_C_SOURCE 200809L
#include "gpu.h"
#include "layers.h"

#include <unistd.h>

#define HANDLES 64
#define SLOTS 32

static uint64_t dice;
static const char *region;
static uint64_t handles[HANDLES];
static size_t succeeded, refused, on_gpu, published_by_layers, fetched_by_layers;
static RacklineGpu last_gpu;
static RacklineSession last_session;
static RacklineLayeredPublish last_publish;
static RacklineLayeredFetch last_fetch;
/* Pinned: the GPU has it under the same addresses. */
static uint8_t memory[SLOTS * BLOCK_BYTES];
static CUstream stream;

static uint64_t roll(uint64_t sides) {
    dice ^= dice << 13;
    dice ^= dice >> 7;
    dice ^= dice << 17;
    return dice % sides;
}

/* One that was returned at some time, of whatever kind; or none, or any number. */
static uint64_t handle(void) {
    switch (roll(16)) {
    case 0:
        return 0;
    case 1:
        return roll(UINT64_MAX);
    case 2:
        return handles[roll(HANDLES)] + 1;
    default:
        return handles[roll(HANDLES)];
    }
}

static void keep(uint64_t handle) {
    if (handle != 0) {
        handles[roll(HANDLES)] = handle;
    }
}

static void note(RacklineError outcome) {
    CHECK(outcome <= 0 && outcome >= RACKLINE_ERROR_MEMBERSHIP_LOST && outcome != RACKLINE_ERROR_PANICKED);
    CHECK(strcmp(rackline_error_name(outcome), "RACKLINE_ERROR_UNKNOWN") != 0);
    CHECK(outcome == RACKLINE_ERROR_OK || rackline_error_message()[0] != '\0');
    *(outcome == RACKLINE_ERROR_OK ? &succeeded : &refused) += 1;
}

/* The pointer, or sometimes null. */
#define MAYBE(pointer) (roll(12) == 0 ? NULL : (pointer))

/* Up to `most`; sometimes more than all memory has. */
static size_t length(size_t most) {
    static const size_t beyond[] = {SIZE_MAX, SIZE_MAX / 2 + 1, SIZE_MAX - 1};
    return roll(20) == 0 ? beyond[roll(3)] : roll(most + 1);
}

static const char *a_text(void) {
    static const char *const texts[] = {"", "tiny", "a", "\xff\xfe", "lookup_hits", "misses.evicted", NULL};
    return texts[roll(sizeof texts / sizeof *texts)];
}

static void attach(void) {
    RacklineQuota quotas[2] = {{.tenant = a_text(), .bytes = roll(3) * 5000, .percent = roll(200) * roll(2)},
                               {.tenant = a_text(), .salt = MAYBE(memory), .salt_bytes = roll(9)}};
    RacklinePoolOptions options = {.copy_threads = roll(2) * roll(70),
                                   .fetch_threads = roll(2) * roll(70),
                                   .queue_depth = roll(2) * roll(9),
                                   .high_watermark_percent = roll(2) * roll(110),
                                   .low_watermark_percent = roll(2) * roll(110),
                                   .unbound_threads = (uint8_t)(roll(2) * roll(3)),
                                   .publishes_by_layers = (uint8_t)roll(3),
                                   .quotas = MAYBE(quotas),
                                   .quota_count = roll(3)};
    RacklinePool pool = {0};
    uint16_t node = roll(4) == 0 ? (uint16_t)roll(UINT16_MAX) : (uint16_t)0;
    note(rackline_pool_attach(MAYBE(region), node, MAYBE(&options), MAYBE(&pool)));
    keep(pool.handle);
}

static void open_gpu(void) {
    RacklineGpu gpu = {0};
    uint32_t number = roll(6) == 0 ? (uint32_t)roll(UINT32_MAX) : 0;
    note(rackline_gpu_open((RacklinePool){handle()}, number, MAYBE(&gpu)));
    keep(gpu.handle);
    last_gpu = gpu.handle == 0 ? last_gpu : gpu;
}

/* More often one of the right kind: of several handles all are seldom right. */
static RacklineGpu a_gpu(void) { return roll(2) == 0 ? last_gpu : (RacklineGpu){handle()}; }

static RacklineSession a_session(void) { return roll(2) == 0 ? last_session : (RacklineSession){handle()}; }

static CUstream a_stream(void) {
    const CUstream streams[] = {stream, NULL, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD};
    return streams[roll(4)];
}

static void open_session(void) {
    RacklineModel model = tiny_model();
    model.name = roll(4) == 0 ? a_text() : model.name;
    model.tensor_parallel_rank = (uint32_t)roll(3);
    RacklineSessionOptions options = {.tenant = a_text(),
                                      .salt = MAYBE(memory),
                                      .salt_bytes = length(16),
                                      .chunk_timeout_ms = 1 + roll(20),
                                      .hold_ms = roll(4000000)};
    RacklineSession session = {0};
    uint64_t block_bytes = roll(10) == 0 ? roll(UINT64_MAX) : BLOCK_BYTES;
    note(rackline_session_open((RacklinePool){handle()}, MAYBE(&model), block_bytes,
                               roll(2) == 0 ? NULL : &options, MAYBE(&session)));
    keep(session.handle);
    last_session = session.handle == 0 ? last_session : session;
}

static void start_lookup(void) {
    RacklineBlockHash hashes[8];
    RacklineBlockHandle blocks[8];
    for (uint32_t i = 0; i < 8; i++) {
        hashes[i] = block_hash(roll(4) == 0 ? (uint32_t)roll(64) : i);
        for (size_t at = 0; at < sizeof blocks[i].bytes; at++) {
            blocks[i].bytes[at] = (uint8_t)roll(256);
        }
    }
    size_t count = length(8);
    RacklineSession session = a_session();
    RacklineLookup lookup = {0};
    RacklineRestoreOptions restore = {(uint32_t)roll(20), (uint32_t)roll(2)};
    switch (roll(4)) {
    case 0:
        note(rackline_lookup(session, MAYBE(hashes), count, MAYBE(&lookup)));
        break;
    case 1:
        note(rackline_lookup_and_hold(session, MAYBE(hashes), count, MAYBE(&lookup)));
        break;
    case 2:
        note(rackline_lookup_and_restore(session, MAYBE(hashes), count, MAYBE(&restore), MAYBE(&lookup)));
        break;
    default:
        note(rackline_hold(session, MAYBE(blocks), count, MAYBE(&lookup)));
    }
    keep(lookup.handle);
}

static void start_prefetch(void) {
    RacklineBlockHash hashes[4];
    for (uint32_t i = 0; i < 4; i++) {
        hashes[i] = block_hash((uint32_t)roll(8));
    }
    RacklinePrefetch prefetch = {0};
    RacklinePrefetchResult taken;
    RacklineRestoreOptions restore = {(uint32_t)roll(20), (uint32_t)roll(2)};
    note(rackline_prefetch(a_session(), MAYBE(hashes), length(4), MAYBE(&restore), MAYBE(&prefetch)));
    keep(prefetch.handle);
    note(rackline_prefetch_wait((RacklinePrefetch){handle()}, roll(3), MAYBE(&taken)));
    note(rackline_prefetch_cancel((RacklinePrefetch){handle()}));
}

static void start_publish(void) {
    RacklineBlockHash hashes[4];
    RacklineSource parts[4 * PARTS] = {0};
    uint64_t slot = roll(SLOTS - 4);
    scatter_sources(parts, memory + slot * BLOCK_BYTES + roll(100), 4);
    for (uint32_t i = 0; i < 4; i++) {
        hashes[i] = block_hash(i);
    }
    if (roll(10) == 0) {
        parts[roll(4 * PARTS)].bytes = length(3);
    }
    RacklinePublish publish = {0};
    RacklineSession session = a_session();
    uint32_t first_depth = (uint32_t)roll(5);
    size_t count = length(4), parts_a_block = roll(8) == 0 ? length(3) : PARTS;
    if (roll(2) == 0) {
        note(rackline_publish(session, MAYBE(hashes), count, first_depth, MAYBE(parts), parts_a_block,
                              MAYBE(&publish)));
    } else {
        note(rackline_publish_from_gpu(session, a_gpu(), a_stream(), MAYBE(hashes), count, first_depth,
                                       MAYBE(parts), parts_a_block, MAYBE(&publish)));
        on_gpu += publish.handle != 0;
    }
    keep(publish.handle);
}

static void start_fetch(void) {
    RacklineDestination parts[4 * PARTS] = {0};
    scatter_destinations(parts, memory + roll(SLOTS - 4) * BLOCK_BYTES + roll(100), 4);
    if (roll(10) == 0) {
        parts[roll(4 * PARTS)].address = memory;
    }
    RacklineFetch fetch = {0};
    size_t parts_a_block = roll(8) == 0 ? length(3) : PARTS;
    RacklineSession session = a_session();
    RacklinePrefix prefix = {handle()};
    RacklineBlockHandle blocks[4];
    memset(blocks, (int)roll(256), sizeof blocks);
    /* As many as there are, of another process or out of thin air. */
    (void)rackline_prefix_handles(prefix, 0, 4, blocks);
    switch (roll(4)) {
    case 0:
        note(rackline_fetch(session, prefix, length(2), length(4), MAYBE(parts), parts_a_block,
                            MAYBE(&fetch)));
        break;
    case 1:
        note(rackline_fetch_into_gpu(session, a_gpu(), a_stream(), prefix, length(2), length(4),
                                     MAYBE(parts), parts_a_block, MAYBE(&fetch)));
        on_gpu += fetch.handle != 0;
        break;
    case 2:
        note(rackline_fetch_handles(session, MAYBE(blocks), length(4), MAYBE(parts), parts_a_block,
                                    MAYBE(&fetch)));
        break;
    default:
        note(rackline_fetch_handles_into_gpu(session, a_gpu(), a_stream(), MAYBE(blocks), length(4),
                                             MAYBE(parts), parts_a_block, MAYBE(&fetch)));
        on_gpu += fetch.handle != 0;
    }
    keep(fetch.handle);
}

/* Some that fit, and some that do not. */
static const RacklineLayers *some_layers(void) {
    static size_t numbers[4];
    static RacklineLayers layers;
    if (roll(2) == 0) {
        return roll(2) == 0 ? &EACH_PART : &IN_TWO;
    }
    for (size_t i = 0; i < 4; i++) {
        numbers[i] = length(2);
    }
    layers = (RacklineLayers){roll(5), MAYBE(numbers)};
    if (roll(10) == 0) {
        layers = (RacklineLayers){SIZE_MAX - roll(3), NULL};
    }
    return MAYBE(&layers);
}

static void start_layered_publish(void) {
    RacklineBlockHash hashes[4];
    RacklineSource parts[4 * PARTS] = {0};
    scatter_sources(parts, memory + roll(SLOTS - 4) * BLOCK_BYTES + roll(100), 4);
    for (uint32_t i = 0; i < 4; i++) {
        hashes[i] = block_hash(8 + i);
    }
    if (roll(10) == 0) {
        parts[roll(4 * PARTS)].bytes = length(3);
    }
    RacklineLayeredPublish publish = {0};
    RacklineSession session = a_session();
    uint32_t first_depth = (uint32_t)roll(5);
    size_t count = length(4), parts_a_block = roll(8) == 0 ? length(3) : PARTS;
    if (roll(2) == 0) {
        note(rackline_publish_by_layers(session, MAYBE(hashes), count, first_depth, MAYBE(parts),
                                        parts_a_block, some_layers(), MAYBE(&publish)));
    } else {
        note(rackline_publish_by_layers_from_gpu(session, a_gpu(), MAYBE(hashes), count, first_depth,
                                                 MAYBE(parts), parts_a_block, some_layers(),
                                                 MAYBE(&publish)));
        on_gpu += publish.handle != 0;
    }
    published_by_layers += publish.handle != 0;
    keep(publish.handle);
    last_publish = publish.handle == 0 ? last_publish : publish;
}

static void start_layered_fetch(void) {
    RacklineDestination parts[4 * PARTS] = {0};
    scatter_destinations(parts, memory + roll(SLOTS - 4) * BLOCK_BYTES + roll(100), 4);
    RacklineLayeredFetch fetch = {0};
    size_t parts_a_block = roll(8) == 0 ? length(3) : PARTS;
    RacklineSession session = a_session();
    RacklinePrefix prefix = {handle()};
    RacklineBlockHandle blocks[4];
    memset(blocks, (int)roll(256), sizeof blocks);
    (void)rackline_prefix_handles(prefix, 0, 4, blocks);
    switch (roll(4)) {
    case 0:
        note(rackline_fetch_by_layers(session, prefix, length(2), length(4), MAYBE(parts), parts_a_block,
                                      some_layers(), MAYBE(&fetch)));
        break;
    case 1:
        note(rackline_fetch_by_layers_into_gpu(session, a_gpu(), a_stream(), prefix, length(2), length(4),
                                               MAYBE(parts), parts_a_block, some_layers(),
                                               MAYBE(&fetch)));
        break;
    case 2:
        note(rackline_fetch_handles_by_layers(session, MAYBE(blocks), length(4), MAYBE(parts),
                                              parts_a_block, some_layers(), MAYBE(&fetch)));
        break;
    default:
        note(rackline_fetch_handles_by_layers_into_gpu(session, a_gpu(), a_stream(), MAYBE(blocks),
                                                       length(4), MAYBE(parts), parts_a_block,
                                                       some_layers(), MAYBE(&fetch)));
    }
    fetched_by_layers += fetch.handle != 0;
    keep(fetch.handle);
    last_fetch = fetch.handle == 0 ? last_fetch : fetch;
}

static RacklineLayeredPublish a_publish(void) {
    return roll(2) == 0 ? last_publish : (RacklineLayeredPublish){handle()};
}

static RacklineLayeredFetch a_fetch(void) {
    return roll(2) == 0 ? last_fetch : (RacklineLayeredFetch){handle()};
}

static void say_by_layers(void) {
    uint64_t timeout_ms = roll(3);
    RacklinePublishResult published;
    RacklineFetchResult fetched;
    RacklineOutcome outcomes[4];
    bool flag;
    switch (roll(11)) {
    case 0:
        note(rackline_layered_publish_finish(a_publish()));
        break;
    case 1:
        note(rackline_layered_publish_abort(a_publish()));
        break;
    case 2:
        note(rackline_layered_publish_wait(a_publish(), timeout_ms, MAYBE(&published), MAYBE(outcomes),
                                           length(4)));
        break;
    case 3:
        note(rackline_layered_fetch_wait_layer(a_fetch(), length(4), timeout_ms));
        break;
    case 4:
        note(rackline_layered_fetch_wait(a_fetch(), timeout_ms, MAYBE(&fetched)));
        break;
    case 5:
        note(rackline_layered_fetch_cancel(a_fetch(), MAYBE(&flag)));
        break;
    case 6:
        note(rackline_layered_publish_layer_ready_on_gpu(a_publish(), length(4), a_stream()));
        break;
    case 7:
        note(rackline_layered_publish_free(a_publish()));
        break;
    case 8:
        note(rackline_layered_fetch_free(a_fetch()));
        break;
    default:
        note(rackline_layered_publish_layer_ready(a_publish(), length(4)));
    }
}

static void wait_or_poll(void) {
    uint64_t timeout_ms = roll(3);
    RacklineLookupResult found = {0};
    RacklinePublishResult published;
    RacklineFetchResult fetched;
    RacklineOutcome outcomes[4];
    bool flag;
    switch (roll(6)) {
    case 0:
        note(rackline_lookup_wait((RacklineLookup){handle()}, timeout_ms, MAYBE(&found)));
        keep(found.prefix.handle);
        break;
    case 1:
        note(rackline_publish_wait((RacklinePublish){handle()}, timeout_ms, MAYBE(&published),
                                   MAYBE(outcomes), length(4)));
        break;
    case 2:
        note(rackline_fetch_wait((RacklineFetch){handle()}, timeout_ms, MAYBE(&fetched)));
        break;
    case 3:
        note(rackline_lookup_cancel((RacklineLookup){handle()}, MAYBE(&flag)));
        break;
    case 4:
        note(rackline_publish_cancel((RacklinePublish){handle()}, MAYBE(&flag)));
        break;
    default:
        note(rackline_fetch_cancel((RacklineFetch){handle()}, MAYBE(&flag)));
    }
}

static void ask(void) {
    char text[100];
    size_t size;
    uint64_t number;
    uint16_t node;
    bool flag;
    RacklineBlockHandle blocks[4];
    RacklineBlockHash hashes[4];
    uint32_t tokens[16] = {0};
    RacklineModel model = tiny_model();
    RacklineGpuReach reach;
    RacklineGpuFigures figures;
    switch (roll(11)) {
    case 0:
        note(rackline_pool_node((RacklinePool){handle()}, MAYBE(&node)));
        break;
    case 1:
        note(rackline_pool_metric((RacklinePool){handle()}, a_text(), MAYBE(&number)));
        break;
    case 2:
        note(rackline_pool_metrics((RacklinePool){handle()}, MAYBE(text), length(sizeof text),
                                   MAYBE(&size)));
        break;
    case 3:
        note(rackline_prefix_blocks((RacklinePrefix){handle()}, MAYBE(&size)));
        break;
    case 4:
        note(rackline_prefix_handles((RacklinePrefix){handle()}, length(4), length(4), MAYBE(blocks)));
        break;
    case 5:
        note(rackline_prefix_held((RacklinePrefix){handle()}, MAYBE(&flag)));
        break;
    case 6:
        note(rackline_prefix_release((RacklinePrefix){handle()}));
        break;
    case 7:
        note(rackline_model_fingerprint(MAYBE(&model), MAYBE(&number)));
        break;
    case 8:
        note(rackline_gpu_reach((RacklineGpu){handle()}, MAYBE(&reach)));
        break;
    case 9:
        note(rackline_gpu_figures((RacklineGpu){handle()}, MAYBE(&figures)));
        break;
    default:
        note(rackline_chain_hashes(MAYBE(memory), length(9), MAYBE(hashes), (uint32_t)roll(9),
                                   MAYBE(tokens), length(16), MAYBE(hashes + 1), length(3), MAYBE(&size)));
    }
}

static void free_one(uint64_t handle) {
    switch (roll(11)) {
    case 0:
        /* Not often: without a pool there is not much to call. */
        note(roll(8) == 0 ? rackline_pool_close((RacklinePool){handle}) : RACKLINE_ERROR_OK);
        break;
    case 1:
        note(rackline_session_free((RacklineSession){handle}));
        break;
    case 2:
        note(rackline_lookup_free((RacklineLookup){handle}));
        break;
    case 3:
        note(rackline_publish_free((RacklinePublish){handle}));
        break;
    case 4:
        note(rackline_fetch_free((RacklineFetch){handle}));
        break;
    case 6:
        note(rackline_prefetch_free((RacklinePrefetch){handle}));
        break;
    case 5:
        note(rackline_gpu_free((RacklineGpu){handle}));
        break;
    case 7:
        note(rackline_layered_publish_free((RacklineLayeredPublish){handle}));
        break;
    case 8:
        note(rackline_layered_fetch_free((RacklineLayeredFetch){handle}));
        break;
    default:
        note(rackline_prefix_free((RacklinePrefix){handle}));
    }
}

/* Every handle that there ever was: they are numbers that follow one another. */
static void free_all(uint64_t first, uint64_t last) {
    for (uint64_t handle = first; handle <= last; handle++) {
        (void)rackline_session_free((RacklineSession){handle});
        (void)rackline_lookup_free((RacklineLookup){handle});
        (void)rackline_prefetch_free((RacklinePrefetch){handle});
        (void)rackline_publish_free((RacklinePublish){handle});
        (void)rackline_fetch_free((RacklineFetch){handle});
        (void)rackline_layered_publish_free((RacklineLayeredPublish){handle});
        (void)rackline_layered_fetch_free((RacklineLayeredFetch){handle});
        (void)rackline_prefix_free((RacklinePrefix){handle});
        (void)rackline_gpu_free((RacklineGpu){handle});
        (void)rackline_pool_close((RacklinePool){handle});
    }
}

/* All memory can be lent again, and what is published is found. */
static void all_works(void) {
    RacklinePool pool;
    RacklineSession session;
    RacklineModel model = tiny_model();
    RacklineSessionOptions options = {.tenant = "another"};
    RacklineGpu gpu;
    MUST(rackline_pool_attach(region, 0, NULL, &pool));
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, &options, &session));
    MUST(rackline_gpu_open(pool, 0, &gpu));
    RacklineBlockHash hash = block_hash(0);
    fill_block(memory, 7);
    RacklineSource from = {memory, BLOCK_BYTES};
    RacklinePublish publish;
    RacklinePublishResult published;
    MUST(rackline_publish(session, &hash, 1, 0, &from, 1, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0));
    MUST(rackline_publish_free(publish));
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, &hash, 1, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    CHECK(found.blocks == 1);
    for (size_t slot = 0; slot < SLOTS; slot++) {
        RacklineDestination to = {memory + slot * BLOCK_BYTES, BLOCK_BYTES};
        RacklineFetch fetch;
        RacklineFetchResult fetched;
        if (slot % 2 == 0) {
            MUST(rackline_fetch(session, found.prefix, 0, 1, &to, 1, &fetch));
        } else {
            MUST(rackline_fetch_into_gpu(session, gpu, stream, found.prefix, 0, 1, &to, 1, &fetch));
        }
        MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &fetched));
        MUST(rackline_fetch_free(fetch));
        CHECK(fetched.valid_blocks == 1 && is_block(memory + slot * BLOCK_BYTES, 7));
    }
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_gpu_free(gpu));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: arbitrary REGION SEED CALLS\n");
        return 2;
    }
    /* A call that never returns is no error code. */
    alarm(300);
    region = argv[1];
    dice = (strtoull(argv[2], NULL, 10) + 1) * 0x9e3779b97f4a7c15;
    size_t calls = strtoull(argv[3], NULL, 10);
    use_gpu();
    CUDA(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUDA(cuMemHostRegister(memory, sizeof memory, 0));
    RacklinePool pool;
    RacklinePoolOptions options = {.publishes_by_layers = 1};
    MUST(rackline_pool_attach(region, 0, &options, &pool));
    uint64_t first = pool.handle;
    keep(first);
    static void (*const any[])(void) = {open_session, start_lookup, start_prefetch, start_publish, start_fetch, ask,
                                        wait_or_poll, wait_or_poll, wait_or_poll,  open_gpu,
                                        start_layered_publish, start_layered_fetch, say_by_layers, say_by_layers};
    for (size_t call = 0; call < calls; call++) {
        if (roll(200) == 0) {
            attach();
        } else if (roll(12) == 0) {
            free_one(handle());
        } else {
            any[roll(sizeof any / sizeof *any)]();
        }
        rackline_error_name((int32_t)roll(UINT32_MAX));
        rackline_reason_label((int32_t)roll(UINT32_MAX));
        rackline_outcome_label((int32_t)roll(UINT32_MAX));
    }
    free_all(first, first + 2 * calls);
    all_works();
    printf("succeeded %zu\nrefused %zu\non_gpu %zu\n", succeeded, refused, on_gpu);
    printf("published_by_layers %zu\nfetched_by_layers %zu\n", published_by_layers, fetched_by_layers);
    return 0;
}
