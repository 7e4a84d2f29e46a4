/* Transfers that are under way: run as
 *
 *     under_way REGION
 *
 * One thread copies, and a few transfers wait behind it. What is asserted holds in any course of things;
 * the courses that are wanted are repeated for until they came about. */
#define _POSIX_C_SOURCE 200809L
#include "blocks.h"

#include <pthread.h>
#include <time.h>

#define WAITERS 4
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
        /* What was cancelled keeps its place in the queue until its turn comes. */
        while (made == 0 && outcome == RACKLINE_ERROR_BUSY) {
            outcome = try_publish(session, &all[made]);
        }
        if (outcome == RACKLINE_ERROR_BUSY) {
            CHECK(all[made].publish.handle == 0 && strstr(rackline_error_message(), "full") != NULL);
            return made;
        }
        MUST(outcome);
    }
    fprintf(stderr, "the queue takes whatever it is given\n");
    exit(1);
}

static void *wait_for(void *argument) {
    RacklinePublish publish = *(const RacklinePublish *)argument;
    RacklinePublishResult result;
    RacklineError outcome =
        rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0);
    if (outcome == RACKLINE_ERROR_OK) {
        return argument;
    }
    expect(RACKLINE_ERROR_NO_RESULT, outcome, "wait of several", __LINE__);
    return NULL;
}

/* Every waiting thread is woken, by the end of a transfer and by its cancellation; one has the result. */
static int several_wait(RacklineSession session) {
    started all[TRANSFERS];
    size_t made = fill_the_queue(session, all);
    RacklinePublish last = all[made - 1].publish;
    pthread_t waiters[2 * WAITERS];
    for (size_t i = 0; i < 2 * WAITERS; i++) {
        RacklinePublish *publish = &all[i < WAITERS ? 0 : made - 1].publish;
        CHECK(pthread_create(&waiters[i], NULL, wait_for, publish) == 0);
    }
    /* Long enough for them to be waiting, as a rule. */
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    bool revoked = false;
    MUST(rackline_publish_cancel(last, &revoked));
    int had = 0;
    for (size_t i = 0; i < 2 * WAITERS; i++) {
        void *result = NULL;
        CHECK(pthread_join(waiters[i], &result) == 0);
        had += result != NULL;
    }
    CHECK(had == (made == 1 ? 1 : 2) - revoked);
    for (size_t i = 0; i < made; i++) {
        MUST(rackline_publish_free(all[i].publish));
    }
    return revoked;
}

/* The number of transfers that were seen under way, and that were cancelled. */
static void full_queues(RacklineSession session, int *under_way, int *cancelled) {
    started all[TRANSFERS];
    size_t made = fill_the_queue(session, all);
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
        bool again = true;
        MUST(rackline_publish_cancel(last->publish, &again));
        CHECK(!again);
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
    for (uint32_t i = 0; revoked && i < LARGE_BLOCKS; i++) {
        CHECK(found_of(session, last->first + i) == 0);
    }
    for (size_t i = 0; i < made; i++) {
        MUST(rackline_publish_free(all[i].publish));
    }
}

/* After a free the memory is the caller's again: what came into the pool has the bytes from before.
 * The number of blocks that never came, because they were not begun. */
static uint64_t freed_while_under_way(RacklinePool pool, RacklineSession session) {
    started all[TRANSFERS];
    uint64_t published_before = 0, published = 0;
    MUST(rackline_pool_metric(pool, "published_blocks", &published_before));
    memset(memory, 0x11, sizeof memory);
    size_t made = fill_the_queue(session, all);
    for (size_t i = made; i-- > 0;) {
        MUST(rackline_publish_free(all[i].publish));
    }
    memset(memory, 0x22, sizeof memory);
    /* Whatever would still come comes before this one. */
    started after;
    RacklineError outcome;
    while ((outcome = try_publish(session, &after)) == RACKLINE_ERROR_BUSY) {
    }
    MUST(outcome);
    RacklinePublishResult result_after;
    MUST(rackline_publish_wait(after.publish, RACKLINE_FOREVER_MS, &result_after, NULL, 0));
    MUST(rackline_publish_free(after.publish));
    MUST(rackline_pool_metric(pool, "published_blocks", &published));
    static uint8_t block[LARGE_BYTES];
    RacklineDestination part = {block, sizeof block};
    for (uint32_t number = all[0].first; number < after.first; number++) {
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
    return next_number - all[0].first - (published - published_before);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: under_way REGION\n");
        return 2;
    }
    RacklinePoolOptions options = {0};
    options.copy_threads = 1;
    options.queue_depth = 8;
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
    uint64_t never_came = 0;
    for (int round = 0; never_came == 0; round++) {
        CHECK(round < 50);
        never_came = freed_while_under_way(pool, session);
    }
    for (int round = 0, woken = 0; woken < 5; round++) {
        CHECK(round < 1000);
        woken += several_wait(session);
    }
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    printf("under way %d, cancelled %d\n", under_way, cancelled);
    return 0;
}
