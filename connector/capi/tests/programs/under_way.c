/* Transfers that are under way: run as
 *
 *     under_way REGION
 *
 * One thread copies, and one transfer waits behind it. What is asserted holds in any course of things;
 * the courses that are wanted are repeated for until they came about. */
#include "blocks.h"

#define LARGE_BYTES (512 * 1024)
#define LARGE_BLOCKS 8
#define TRANSFERS 64

static uint8_t memory[LARGE_BLOCKS * LARGE_BYTES];
static uint32_t next_number;

typedef struct {
    RacklinePublish publish;
    uint32_t first;
} started;

static RacklineError try_publish(RacklineSession session, started *made) {
    RacklineBlockHash hashes[LARGE_BLOCKS] = {0};
    RacklineSource parts[LARGE_BLOCKS] = {0};
    for (uint32_t i = 0; i < LARGE_BLOCKS; i++) {
        hashes[i] = block_hash(next_number + i);
        parts[i].address = memory + i * LARGE_BYTES;
        parts[i].bytes = LARGE_BYTES;
    }
    made->first = next_number;
    RacklineError outcome =
        rackline_publish(session, hashes, LARGE_BLOCKS, 0, parts, 1, &made->publish);
    if (outcome == RACKLINE_ERROR_OK) {
        next_number += LARGE_BLOCKS;
    }
    return outcome;
}

static size_t found_of(RacklineSession session, uint32_t number) {
    RacklineBlockHash hash = block_hash(number);
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, &hash, 1, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    MUST(rackline_prefix_free(found.prefix));
    return found.blocks;
}

/* Publishes until the queue is full, and says how many are under way or done. */
static size_t fill_the_queue(RacklineSession session, started *all) {
    for (size_t made = 0; made < TRANSFERS; made++) {
        RacklineError outcome = try_publish(session, &all[made]);
        if (outcome == RACKLINE_ERROR_BUSY) {
            CHECK(all[made].publish.handle == 0 && strstr(rackline_error_message(), "full") != NULL);
            return made;
        }
        MUST(outcome);
    }
    fprintf(stderr, "the queue takes whatever it is given\n");
    exit(1);
}

/* The number of transfers that were seen under way, and that were cancelled. */
static void full_queues(RacklineSession session, int *under_way, int *cancelled) {
    started all[TRANSFERS];
    size_t made = fill_the_queue(session, all);
    CHECK(made >= 1);
    /* Lookups have a queue of their own. */
    CHECK(found_of(session, UINT32_MAX) == 0);
    RacklinePublishResult result;
    started *last = &all[made - 1];
    RacklineError polled = rackline_publish_poll(last->publish, &result);
    int is_over = polled == RACKLINE_ERROR_OK;
    CHECK(is_over || polled == RACKLINE_ERROR_UNDER_WAY);
    *under_way += !is_over;
    bool revoked = false;
    MUST(rackline_publish_cancel(last->publish, &revoked));
    CHECK(!(revoked && is_over));
    if (revoked) {
        *cancelled += 1;
        /* At once, and it stays so; and nothing of it is ever seen. */
        EXPECT(NO_RESULT, rackline_publish_wait(last->publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
        MUST(rackline_publish_cancel(last->publish, &revoked));
        CHECK(!revoked);
    } else if (!is_over) {
        MUST(rackline_publish_wait(last->publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    }
    for (size_t i = 0; i + 1 < made; i++) {
        /* In pieces: a wait that ends without a result takes nothing. */
        RacklineError outcome;
        while ((outcome = rackline_publish_wait(all[i].publish, 1, &result, NULL, 0))
               == RACKLINE_ERROR_UNDER_WAY) {
            *under_way += 1;
        }
        MUST(outcome);
        CHECK(result.published == LARGE_BLOCKS);
    }
    for (uint32_t i = 0; *cancelled > 0 && i < LARGE_BLOCKS; i++) {
        CHECK(!revoked || found_of(session, last->first + i) == 0);
    }
    for (size_t i = 0; i < made; i++) {
        MUST(rackline_publish_free(all[i].publish));
    }
}

/* After a free the memory is the caller's again: what came into the pool has the bytes from before. */
static void freed_while_under_way(RacklineSession session) {
    started all[TRANSFERS];
    memset(memory, 0x11, sizeof memory);
    size_t made = fill_the_queue(session, all);
    for (size_t i = made; i-- > 0;) {
        MUST(rackline_publish_free(all[i].publish));
    }
    memset(memory, 0x22, sizeof memory);
    static uint8_t block[LARGE_BYTES];
    RacklineDestination part = {block, sizeof block};
    for (uint32_t number = all[0].first; number < next_number; number++) {
        RacklineBlockHash hash = block_hash(number);
        RacklineLookup lookup;
        RacklineLookupResult found;
        MUST(rackline_lookup_and_hold(session, &hash, 1, &lookup));
        MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
        MUST(rackline_lookup_free(lookup));
        RacklineFetch fetch;
        RacklineFetchResult result;
        MUST(rackline_fetch(session, found.prefix, 0, found.blocks, &part, 1, &fetch));
        MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
        CHECK(result.valid_blocks == found.blocks);
        for (size_t i = 0; found.blocks > 0 && i < sizeof block; i++) {
            CHECK(block[i] == 0x11);
        }
        MUST(rackline_fetch_free(fetch));
        MUST(rackline_prefix_free(found.prefix));
    }
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: under_way REGION\n");
        return 2;
    }
    RacklinePoolOptions options = {0};
    options.copy_threads = 1;
    options.queue_depth = 1;
    RacklinePool pool;
    MUST(rackline_pool_attach(argv[1], 0, &options, &pool));
    RacklineModel model = tiny_model();
    RacklineSession session;
    MUST(rackline_session_open(pool, &model, LARGE_BYTES, NULL, &session));
    int under_way = 0, cancelled = 0;
    for (int round = 0; under_way == 0 || cancelled == 0; round++) {
        CHECK(round < 1000);
        full_queues(session, &under_way, &cancelled);
    }
    freed_while_under_way(session);
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    printf("under way %d, cancelled %d\n", under_way, cancelled);
    return 0;
}
