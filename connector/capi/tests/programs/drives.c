/* Waits for blocks on drives: run as
 *
 *     drives REGION
 *
 * beside an agent that has blocks 0 to 3 on a drive, restores the first three, and refuses the fourth. */
#include "blocks.h"

#define BLOCKS 4

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    RacklinePool pool;
    RacklineSession session;
    RacklineModel model = tiny_model();
    MUST(rackline_pool_attach(argv[1], 0, NULL, &pool));
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    RacklineBlockHash hashes[BLOCKS];
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = block_hash(i);
    }
    RacklineLookup lookup;
    RacklineLookupResult found;
    EXPECT(BAD_ARGUMENT, rackline_lookup_and_restore(session, hashes, BLOCKS, NULL, &lookup));

    RacklineRestoreOptions restore = {.wait_ms = 0, .recompute_us = 0};
    MUST(rackline_lookup_and_restore(session, hashes, BLOCKS, &restore, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == 0 && found.on_drives == 0 && found.reason == RACKLINE_REASON_NONE);
    MUST(rackline_lookup_free(lookup));
    MUST(rackline_prefix_free(found.prefix));

    RacklinePrefetch prefetch;
    RacklinePrefetchResult taken;
    EXPECT(BAD_ARGUMENT, rackline_prefetch(session, hashes, BLOCKS, NULL, &prefetch));
    MUST(rackline_prefetch(session, hashes, BLOCKS, &restore, &prefetch));
    MUST(rackline_prefetch_wait(prefetch, RACKLINE_FOREVER_MS, &taken));
    CHECK(taken.asked == 0 && taken.not_asked == BLOCKS);
    CHECK(taken.reason == RACKLINE_REASON_PREFETCH_NO_WAIT);
    MUST(rackline_prefetch_free(prefetch));
    EXPECT(BAD_HANDLE, rackline_prefetch_wait(prefetch, 0, &taken));

    restore.wait_ms = 600000;
    MUST(rackline_prefetch(session, hashes, 1, &restore, &prefetch));
    for (int again = 0; again < 2; again++) {
        MUST(rackline_prefetch_wait(prefetch, RACKLINE_FOREVER_MS, &taken));
        CHECK(taken.asked == 1 && taken.under_way == 0 && taken.in_pool == 0 && taken.not_asked == 0);
        CHECK(taken.reason == RACKLINE_REASON_NONE);
    }
    do {
        MUST(rackline_lookup(session, hashes, 1, &lookup));
        MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
        MUST(rackline_lookup_free(lookup));
        MUST(rackline_prefix_free(found.prefix));
    } while (found.blocks == 0);
    MUST(rackline_prefetch_cancel(prefetch));
    MUST(rackline_prefetch_cancel(prefetch));
    MUST(rackline_prefetch_free(prefetch));

    MUST(rackline_lookup_and_restore(session, hashes, BLOCKS, &restore, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == 3 && found.restored == 2 && found.on_drives == BLOCKS - 1);
    CHECK(found.reason == RACKLINE_REASON_RESTORE_TOO_LATE);
    CHECK(strcmp(rackline_reason_label(found.reason), "restore_too_late") == 0);
    MUST(rackline_lookup_free(lookup));

    uint8_t memory[BLOCKS * BLOCK_BYTES];
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    scatter_destinations(parts, memory, 3);
    RacklineFetch fetch;
    RacklineFetchResult fetched;
    MUST(rackline_fetch(session, found.prefix, 0, 3, parts, PARTS, &fetch));
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &fetched));
    CHECK(fetched.valid_blocks == 3);
    MUST(rackline_fetch_free(fetch));
    for (uint32_t i = 0; i < 3; i++) {
        for (size_t at = 0; at < BLOCK_BYTES; at++) {
            CHECK(memory[i * BLOCK_BYTES + at] == (uint8_t)(i + 1));
        }
    }
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    return 0;
}
