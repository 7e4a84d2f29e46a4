/* Many threads of one process share its pool, a session and handles: run as
 *
 *     contention REGION THREADS ROUNDS
 *
 * The queues are short, so that threads are refused and try again. */
#define _POSIX_C_SOURCE 200809L
#include "blocks.h"

#include <pthread.h>
#include <sched.h>

#define BATCH 4

static RacklinePool pool;
static RacklineSession session;
static uint32_t rounds;

typedef struct {
    pthread_t thread;
    uint32_t number;
    uint32_t refused;
    /* Of the transfers that all threads waited for and freed, those that it had and freed. */
    uint32_t had, freed;
} worker;

/* Until the queue has room. */
#define PATIENTLY(me, call)                                                                            \
    do {                                                                                               \
        RacklineError outcome;                                                                         \
        while ((outcome = (call)) == RACKLINE_ERROR_BUSY) {                                            \
            (me)->refused++;                                                                           \
            sched_yield();                                                                             \
        }                                                                                              \
        must(outcome, #call, __LINE__);                                                                \
    } while (0)

static void share_blocks(worker *me, uint32_t first) {
    uint8_t memory[BATCH * BLOCK_BYTES];
    RacklineBlockHash hashes[BATCH] = {0};
    RacklineSource sources[BATCH * PARTS] = {0};
    for (uint32_t i = 0; i < BATCH; i++) {
        hashes[i] = block_hash(first + i);
        fill_block(memory + i * BLOCK_BYTES, first + i);
    }
    scatter_sources(sources, memory, BATCH);
    RacklinePublish publish;
    RacklinePublishResult published;
    PATIENTLY(me, rackline_publish(session, hashes, BATCH, 0, sources, PARTS, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0));
    CHECK(published.published == BATCH);
    MUST(rackline_publish_free(publish));

    memset(memory, 0, sizeof memory);
    RacklineDestination parts[BATCH * PARTS] = {0};
    scatter_destinations(parts, memory, BATCH);
    RacklineLookup lookup;
    RacklineLookupResult found;
    PATIENTLY(me, rackline_lookup_and_hold(session, hashes, BATCH, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == BATCH);
    MUST(rackline_lookup_free(lookup));
    RacklineFetch fetch;
    RacklineFetchResult fetched;
    PATIENTLY(me, rackline_fetch(session, found.prefix, 0, BATCH, parts, PARTS, &fetch));
    RacklineError outcome;
    while ((outcome = rackline_fetch_poll(fetch, &fetched)) == RACKLINE_ERROR_UNDER_WAY) {
        sched_yield();
    }
    MUST(outcome);
    CHECK(fetched.valid_blocks == BATCH);
    for (uint32_t i = 0; i < BATCH; i++) {
        CHECK(is_block(memory + i * BLOCK_BYTES, first + i));
    }
    MUST(rackline_fetch_free(fetch));
    MUST(rackline_prefix_free(found.prefix));
}

static void *share_all_blocks(void *argument) {
    worker *me = argument;
    for (uint32_t round = 0; round < rounds; round++) {
        share_blocks(me, (me->number * rounds + round) * BATCH);
    }
    /* An error of this thread is no other's. */
    char name[32];
    snprintf(name, sizeof name, "counter of %u", me->number);
    uint64_t value = 0;
    EXPECT(BAD_ARGUMENT, rackline_pool_metric(pool, name, &value));
    sched_yield();
    CHECK(strstr(rackline_error_message(), name) != NULL);
    return NULL;
}

static RacklineLookup *shared;

/* All threads wait for the same transfers, and free them: each is had once and freed once. */
static void *wait_for_the_same(void *argument) {
    worker *me = argument;
    for (uint32_t round = 0; round < rounds; round++) {
        RacklineLookupResult found;
        RacklineError waited = rackline_lookup_wait(shared[round], RACKLINE_FOREVER_MS, &found);
        if (waited == RACKLINE_ERROR_OK) {
            me->had++;
            MUST(rackline_prefix_free(found.prefix));
        } else if (waited != RACKLINE_ERROR_BAD_HANDLE) {
            expect(RACKLINE_ERROR_NO_RESULT, waited, "wait of all", __LINE__);
        }
        RacklineError freed = rackline_lookup_free(shared[round]);
        if (freed == RACKLINE_ERROR_OK) {
            me->freed++;
        } else {
            expect(RACKLINE_ERROR_BAD_HANDLE, freed, "free of all", __LINE__);
        }
    }
    return NULL;
}

static void run(worker *workers, uint32_t threads, void *(*body)(void *)) {
    for (uint32_t i = 0; i < threads; i++) {
        workers[i].number = i;
        CHECK(pthread_create(&workers[i].thread, NULL, body, &workers[i]) == 0);
    }
    for (uint32_t i = 0; i < threads; i++) {
        CHECK(pthread_join(workers[i].thread, NULL) == 0);
    }
}

int main(int argc, char **argv) {
    if (argc != 4) {
        fprintf(stderr, "usage: contention REGION THREADS ROUNDS\n");
        return 2;
    }
    uint32_t threads = (uint32_t)strtoul(argv[2], NULL, 10);
    rounds = (uint32_t)strtoul(argv[3], NULL, 10);
    worker *workers = calloc(threads, sizeof *workers);
    shared = calloc(rounds, sizeof *shared);
    CHECK(workers != NULL && shared != NULL);
    RacklinePoolOptions options = {0};
    options.copy_threads = 2;
    options.queue_depth = 1;
    MUST(rackline_pool_attach(argv[1], 0, &options, &pool));
    RacklineModel model = tiny_model();
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));

    run(workers, threads, share_all_blocks);
    uint64_t published = 0, fetched = 0;
    MUST(rackline_pool_metric(pool, "published_blocks", &published));
    MUST(rackline_pool_metric(pool, "fetched_blocks", &fetched));
    CHECK(published == (uint64_t)threads * rounds * BATCH && fetched == published);

    uint32_t refused = 0, had = 0, freed = 0;
    for (uint32_t round = 0; round < rounds; round++) {
        RacklineBlockHash hash = block_hash(round);
        PATIENTLY(&workers[0], rackline_lookup_and_hold(session, &hash, 1, &shared[round]));
    }
    run(workers, threads, wait_for_the_same);
    for (uint32_t i = 0; i < threads; i++) {
        refused += workers[i].refused;
        had += workers[i].had;
        freed += workers[i].freed;
    }
    /* A free may come before anybody had the result. */
    CHECK(had <= rounds && freed == rounds);
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    printf("refused %u\nhad %u\n", refused, had);
    free(workers);
    free(shared);
    return 0;
}
