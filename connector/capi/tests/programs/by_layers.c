/* Publishes and fetches by layers: run as
 *
 *     by_layers REGION */
#define _POSIX_C_SOURCE 200809L
#include "layers.h"

#include <pthread.h>
#include <unistd.h>

#define BLOCKS 4
#define ROUNDS 40

static const char *region;
static RacklinePool pool;
static RacklineSession session;
static uint8_t memory[BLOCKS * BLOCK_BYTES], target[BLOCKS * BLOCK_BYTES];
/* Of the next block that is not in the pool. */
static uint32_t next_number;

static int said(const char *text) { return strstr(rackline_error_message(), text) != NULL; }

static RacklineError try_publish(const uint8_t *from, uint32_t number, const RacklineLayers *layers,
                                 RacklineLayeredPublish *publish) {
    RacklineSource parts[BLOCKS * PARTS] = {0};
    RacklineBlockHash hashes[BLOCKS];
    scatter_sources(parts, from, BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        hashes[i] = block_hash(number + i);
    }
    return rackline_publish_by_layers(session, hashes, BLOCKS, 0, parts, PARTS, layers, publish);
}

static RacklineError try_fetch(uint8_t *to, RacklinePrefix prefix, const RacklineLayers *layers,
                               RacklineLayeredFetch *fetch) {
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    scatter_destinations(parts, to, BLOCKS);
    return rackline_fetch_by_layers(session, prefix, 0, BLOCKS, parts, PARTS, layers, fetch);
}

static RacklineLookupResult look_up(uint32_t number, uint32_t count) {
    RacklineBlockHash hashes[BLOCKS];
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = block_hash(number + i);
    }
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup_and_hold(session, hashes, count, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    return found;
}

/* How many of the blocks from that one on are in the pool, each for itself. */
static size_t found(uint32_t number) {
    size_t found = 0;
    for (uint32_t i = 0; i < BLOCKS; i++) {
        RacklineLookupResult one = look_up(number + i, 1);
        found += one.blocks;
        MUST(rackline_prefix_free(one.prefix));
    }
    return found;
}

static RacklinePrefix hold(uint32_t number) {
    RacklineLookupResult all = look_up(number, BLOCKS);
    CHECK(all.blocks == BLOCKS);
    return all.prefix;
}

static void compute(uint32_t number, const RacklineLayers *layers, size_t layer) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        write_layer(memory + i * BLOCK_BYTES, number + i, layers, layer);
    }
}

static int arrived(uint32_t number, const RacklineLayers *layers, size_t layer) {
    for (uint32_t i = 0; i < BLOCKS; i++) {
        if (!has_layer(target + i * BLOCK_BYTES, number + i, layers, layer)) {
            return 0;
        }
    }
    return 1;
}

/* All blocks are published, or none is. */
static size_t end_publish(RacklineLayeredPublish publish) {
    RacklinePublishResult result = {7, 7};
    RacklineOutcome outcomes[BLOCKS];
    MUST(rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &result, outcomes, BLOCKS));
    CHECK(result.already_there == 0 && (result.published == 0 || result.published == BLOCKS));
    for (size_t i = 0; i < BLOCKS; i++) {
        CHECK(outcomes[i] == (result.published ? RACKLINE_OUTCOME_PUBLISHED : RACKLINE_OUTCOME_ABORTED));
    }
    MUST(rackline_layered_publish_free(publish));
    return result.published;
}

static void end_fetch(RacklineLayeredFetch fetch) {
    RacklineFetchResult result;
    MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == BLOCKS && result.reason == RACKLINE_REASON_NONE);
    MUST(rackline_layered_fetch_free(fetch));
}

/* Layers that are written only when it is their turn, and said to be ready in that order. */
static uint32_t publish_in(const RacklineLayers *layers, const size_t *order, size_t told) {
    uint32_t number = next_number;
    next_number += BLOCKS;
    RacklineLayeredPublish publish;
    RacklinePublishResult result;
    memset(memory, 0xee, sizeof memory);
    MUST(try_publish(memory, number, layers, &publish));
    for (size_t i = 0; i < layers->count; i++) {
        compute(number, layers, order[i]);
        if (i < told) {
            MUST(rackline_layered_publish_layer_ready(publish, order[i]));
        }
        CHECK(found(number) == 0);
    }
    EXPECT(BAD_ARGUMENT,
           rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(said("call rackline_layered_publish_finish"));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready(publish, layers->count));
    CHECK(said("there is no layer"));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready(publish, SIZE_MAX));
    MUST(rackline_layered_publish_finish(publish));
    /* What was said first stays. */
    MUST(rackline_layered_publish_abort(publish));
    MUST(rackline_layered_publish_finish(publish));
    MUST(rackline_layered_publish_layer_ready(publish, 0));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready(publish, layers->count));
    CHECK(end_publish(publish) == BLOCKS && found(number) == BLOCKS);
    return number;
}

/* Whichever way blocks were published, and by whatever layers they are fetched. */
static void fetch_in(const RacklineLayers *layers, uint32_t number) {
    RacklinePrefix prefix = hold(number);
    RacklineLayeredFetch fetch;
    memset(target, 0xee, sizeof target);
    MUST(try_fetch(target, prefix, layers, &fetch));
    for (size_t layer = 0; layer < layers->count; layer++) {
        RacklineError outcome;
        while ((outcome = rackline_layered_fetch_wait_layer(fetch, layer, 1))
               == RACKLINE_ERROR_UNDER_WAY) {
        }
        MUST(outcome);
        CHECK(arrived(number, layers, layer));
        /* It is the program's: nothing is written there any more. */
        for (uint32_t i = 0; i < BLOCKS; i++) {
            write_layer(target + i * BLOCK_BYTES, number + 1 + i, layers, layer);
        }
    }
    EXPECT(BAD_ARGUMENT,
           rackline_layered_fetch_wait_layer(fetch, layers->count, RACKLINE_FOREVER_MS));
    CHECK(said("there is no layer"));
    EXPECT(BAD_ARGUMENT, rackline_layered_fetch_wait_layer(fetch, SIZE_MAX, 0));
    RacklineFetchResult result;
    EXPECT(BAD_ARGUMENT, rackline_layered_fetch_wait(fetch, 0, NULL));
    MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == BLOCKS && result.reason == RACKLINE_REASON_NONE);
    for (size_t layer = 0; layer < layers->count; layer++) {
        CHECK(arrived(number + 1, layers, layer));
    }
    EXPECT(NO_RESULT, rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    MUST(rackline_layered_fetch_wait_layer(fetch, layers->count - 1, RACKLINE_FOREVER_MS));
    bool cancelled = true;
    MUST(rackline_layered_fetch_cancel(fetch, &cancelled));
    CHECK(!cancelled);
    MUST(rackline_layered_fetch_free(fetch));
    MUST(rackline_prefix_free(prefix));
}

static void in_any_order(void) {
    static const size_t orders[][PARTS] = {{0, 1, 2}, {2, 0, 1}, {1, 2, 0}};
    for (size_t i = 0; i < sizeof orders / sizeof *orders; i++) {
        for (size_t told = 0; told <= PARTS; told++) {
            uint32_t number = publish_in(&EACH_PART, orders[i], told);
            fetch_in(&IN_TWO, number);
            fetch_in(&EACH_PART, number);
        }
    }
    static const size_t second_first[] = {1, 0};
    uint32_t number = publish_in(&IN_TWO, second_first, 2);
    fetch_in(&EACH_PART, number);

    /* The same in whole. */
    RacklinePrefix prefix = hold(number);
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    RacklineFetch fetch;
    RacklineFetchResult result;
    scatter_destinations(parts, target, BLOCKS);
    MUST(rackline_fetch(session, prefix, 0, BLOCKS, parts, PARTS, &fetch));
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    MUST(rackline_fetch_free(fetch));
    CHECK(result.valid_blocks == BLOCKS);
    for (uint32_t i = 0; i < BLOCKS; i++) {
        CHECK(is_block(target + i * BLOCK_BYTES, number + i));
    }

    /* By what they are called, and only as far as they are there. */
    RacklineBlockHandle handles[BLOCKS];
    RacklineLayeredFetch by_layers;
    MUST(rackline_prefix_handles(prefix, 0, BLOCKS, handles));
    for (size_t valid = BLOCKS; valid > 0; valid -= 2) {
        memset(target, 0xee, sizeof target);
        MUST(rackline_fetch_handles_by_layers(session, handles, BLOCKS, parts, PARTS, &IN_TWO, &by_layers));
        MUST(rackline_layered_fetch_wait_layer(by_layers, 1, RACKLINE_FOREVER_MS));
        for (uint32_t i = 0; i < valid; i++) {
            CHECK(is_block(target + i * BLOCK_BYTES, number + i));
        }
        MUST(rackline_layered_fetch_wait(by_layers, RACKLINE_FOREVER_MS, &result));
        CHECK(result.valid_blocks == valid);
        CHECK((result.reason == RACKLINE_REASON_NONE) == (valid == BLOCKS));
        MUST(rackline_layered_fetch_free(by_layers));
        memset(handles[BLOCKS - 2].bytes, 0xff, sizeof handles->bytes);
    }
    MUST(rackline_prefix_free(prefix));
}

/* All memory of a transfer is lent, whichever of its layers are ready or have arrived. */
static void lent(uint32_t known) {
    RacklinePrefix prefix = hold(known);
    RacklineLayeredPublish publish, second;
    RacklineLayeredFetch fetch, refused = {7};
    MUST(try_publish(memory, next_number, &EACH_PART, &publish));
    EXPECT(LENT, try_fetch(memory, prefix, &EACH_PART, &refused));
    CHECK(refused.handle == 0 && said("read by another transfer"));
    /* Others may read it. */
    MUST(try_publish(memory, next_number + BLOCKS, &EACH_PART, &second));
    MUST(rackline_layered_publish_free(second));
    MUST(rackline_layered_publish_abort(publish));
    RacklinePublishResult result;
    MUST(rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    MUST(try_fetch(memory, prefix, &EACH_PART, &fetch));
    MUST(rackline_layered_publish_free(publish));
    MUST(rackline_layered_fetch_wait_layer(fetch, PARTS - 1, RACKLINE_FOREVER_MS));
    /* One that is not over, though all of it has arrived. */
    publish.handle = 7;
    EXPECT(LENT, try_publish(memory, next_number, &EACH_PART, &publish));
    CHECK(publish.handle == 0 && said("written by another transfer"));
    end_fetch(fetch);
    MUST(try_publish(memory, next_number, &EACH_PART, &publish));
    MUST(rackline_layered_publish_free(publish));
    CHECK(found(next_number) == 0 && found(next_number + BLOCKS) == 0);
    MUST(rackline_prefix_free(prefix));
}

/* What is aborted, or freed before it was finished, leaves nothing. */
static void aborted(void) {
    for (size_t ready = 0; ready <= PARTS; ready++) {
        for (int frees = 0; frees < 2; frees++) {
            RacklineLayeredPublish publish;
            MUST(try_publish(memory, next_number, &EACH_PART, &publish));
            for (size_t layer = 0; layer < ready; layer++) {
                MUST(rackline_layered_publish_layer_ready(publish, layer));
            }
            if (frees) {
                MUST(rackline_layered_publish_free(publish));
                EXPECT(BAD_HANDLE, rackline_layered_publish_free(publish));
            } else {
                MUST(rackline_layered_publish_abort(publish));
                MUST(rackline_layered_publish_finish(publish));
                CHECK(end_publish(publish) == 0 && said("the publish was aborted"));
            }
            CHECK(found(next_number) == 0);
        }
    }
    /* Nothing is kept that another publish would take for there. */
    static const size_t order[] = {0, 1, 2};
    publish_in(&EACH_PART, order, PARTS);
}

/* One publish at a time is worked on. */
static void one_at_a_time(void) {
    RacklineLayeredPublish first, second, third;
    RacklinePublishResult result;
    uint32_t number = next_number;
    next_number += 3 * BLOCKS;
    MUST(try_publish(memory, number, &IN_TWO, &first));
    MUST(try_publish(memory, number + BLOCKS, &IN_TWO, &second));
    MUST(try_publish(memory, number + 2 * BLOCKS, &IN_TWO, &third));
    MUST(rackline_layered_publish_finish(second));
    MUST(rackline_layered_publish_finish(third));
    EXPECT(UNDER_WAY, rackline_layered_publish_wait(second, 2, &result, NULL, 0));
    /* One that has not begun is taken back. */
    MUST(rackline_layered_publish_free(third));
    MUST(rackline_layered_publish_finish(first));
    CHECK(end_publish(first) == BLOCKS && end_publish(second) == BLOCKS);
    CHECK(found(number + 2 * BLOCKS) == 0);
}

/* Several threads say different things of one publish. */
typedef struct {
    RacklineLayeredPublish publish;
    size_t number;
} voice;

static void *say(void *argument) {
    voice *voice = argument;
    switch (voice->number) {
    case 0:
        MUST(rackline_layered_publish_finish(voice->publish));
        break;
    case 1:
        MUST(rackline_layered_publish_abort(voice->publish));
        break;
    default:
        MUST(rackline_layered_publish_layer_ready(voice->publish, voice->number - 2));
    }
    return NULL;
}

static void raced(void) {
    for (int round = 0; round < ROUNDS; round++) {
        RacklineLayeredPublish publish;
        uint32_t number = next_number;
        next_number += BLOCKS;
        MUST(try_publish(memory, number, &EACH_PART, &publish));
        pthread_t threads[2 + PARTS];
        voice voices[2 + PARTS];
        for (size_t i = 0; i < 2 + PARTS; i++) {
            voices[i] = (voice){publish, (i + (size_t)round) % (2 + PARTS)};
            CHECK(pthread_create(&threads[i], NULL, say, &voices[i]) == 0);
        }
        for (size_t i = 0; i < 2 + PARTS; i++) {
            CHECK(pthread_join(threads[i], NULL) == 0);
        }
        CHECK(end_publish(publish) == found(number));
    }
}

static void *wait_for_the_last_layer(void *argument) {
    RacklineLayeredFetch fetch = *(const RacklineLayeredFetch *)argument;
    RacklineError outcome = rackline_layered_fetch_wait_layer(fetch, PARTS - 1, RACKLINE_FOREVER_MS);
    /* It has arrived, or never will; or the handle was freed before this thread came. */
    CHECK(outcome == RACKLINE_ERROR_OK || outcome == RACKLINE_ERROR_NO_RESULT
          || outcome == RACKLINE_ERROR_BAD_HANDLE);
    return NULL;
}

/* Who waits for a layer is woken, whatever becomes of the fetch; and memory is the program's after it. */
static void cancelled_or_freed(uint32_t known) {
    RacklinePrefix prefix = hold(known);
    for (int round = 0; round < ROUNDS; round++) {
        RacklineLayeredFetch fetch, again;
        RacklineFetchResult result;
        pthread_t waits;
        MUST(try_fetch(target, prefix, &EACH_PART, &fetch));
        RacklineLayeredFetch waited_for = fetch;
        CHECK(pthread_create(&waits, NULL, wait_for_the_last_layer, &waited_for) == 0);
        if (round % 2 == 0) {
            bool cancelled = false;
            MUST(rackline_layered_fetch_cancel(fetch, &cancelled));
            if (cancelled) {
                EXPECT(NO_RESULT, rackline_layered_fetch_wait_layer(fetch, 0, RACKLINE_FOREVER_MS));
                CHECK(said("ended before this layer"));
                EXPECT(NO_RESULT, rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
            } else {
                MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
            }
        }
        MUST(rackline_layered_fetch_free(fetch));
        memset(target, 0xee, sizeof target);
        MUST(try_fetch(target, prefix, &EACH_PART, &again));
        end_fetch(again);
        CHECK(pthread_join(waits, NULL) == 0);
        CHECK(arrived(known, &EACH_PART, PARTS - 1));
    }
    MUST(rackline_prefix_free(prefix));
}

static void refused(uint32_t known) {
    RacklinePrefix prefix = hold(known);
    static const size_t none_of_all[] = {3, 0}, too_few[] = {1, 1}, too_many[] = {1, 3},
                        beyond[] = {1, SIZE_MAX};
    const struct {
        RacklineLayers layers;
        const char *said;
    } wrong[] = {
        {{0, NULL}, "blocks of 0 layers"},
        {{65537, NULL}, "blocks of 65537 layers"},
        {{SIZE_MAX, none_of_all}, "a block has 1 to 65536"},
        {{2, NULL}, "3 parts cannot be divided equally into 2 layers"},
        {{4, NULL}, "3 parts cannot be divided equally into 4 layers"},
        {{2, none_of_all}, "layer 1 has 0 parts"},
        {{2, too_few}, "the layers have 2 parts, a block has 3"},
        {{2, too_many}, "layer 1 has 3 parts, and 2 of the 3"},
        {{2, beyond}, "layer 1 has 18446744073709551615 parts"},
    };
    RacklineLayeredPublish publish;
    RacklineLayeredFetch fetch;
    for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
        int last = i == sizeof wrong / sizeof *wrong;
        const RacklineLayers *layers = last ? NULL : &wrong[i].layers;
        const char *text = last ? "the layers: a null pointer" : wrong[i].said;
        publish.handle = fetch.handle = 7;
        EXPECT(BAD_ARGUMENT, try_publish(memory, next_number, layers, &publish));
        CHECK(publish.handle == 0 && said(text));
        EXPECT(BAD_ARGUMENT, try_fetch(target, prefix, layers, &fetch));
        CHECK(fetch.handle == 0 && said(text));
    }

    /* Blocks of the right length, of which one is divided in another way. */
    RacklineSource from[2 * 2] = {{memory, 100}, {memory + 100, BLOCK_BYTES - 100},
                                  {memory, 99}, {memory + 99, BLOCK_BYTES - 99}};
    RacklineBlockHash hashes[2] = {block_hash(next_number), block_hash(next_number + 1)};
    static const RacklineLayers two = {2, NULL}, one = {1, NULL};
    EXPECT(BAD_ARGUMENT, rackline_publish_by_layers(session, hashes, 2, 0, from, 2, &two, &publish));
    CHECK(said("layer 0 has 99 bytes in block 1, and 100 in block 0"));
    EXPECT(BAD_ARGUMENT, rackline_publish_by_layers(session, hashes, 2, 0, from, 1, &one, &publish));
    CHECK(said("the parts of block 0 have 100 bytes"));
    EXPECT(BAD_ARGUMENT, rackline_publish_by_layers(session, NULL, 2, 0, from, 2, &one, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish_by_layers(session, hashes, 2, 0, NULL, 2, &one, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish_by_layers(session, hashes, 2, 0, from, 2, &one, NULL));
    EXPECT(BAD_HANDLE, rackline_publish_by_layers((RacklineSession){0}, hashes, 2, 0, from, 2, &one,
                                                  &publish));
    EXPECT(BAD_ARGUMENT, try_fetch(target, prefix, &EACH_PART, NULL));
    EXPECT(BAD_HANDLE, try_fetch(target, (RacklinePrefix){0}, &EACH_PART, &fetch));
    RacklineDestination over[2 * 2] = {{target, 100}, {target + 100, BLOCK_BYTES - 100},
                                       {target + 50, 100}, {target + BLOCK_BYTES, BLOCK_BYTES - 100}};
    EXPECT(BAD_ARGUMENT, rackline_fetch_by_layers(session, prefix, 0, 2, over, 2, &two, &fetch));
    CHECK(said("overlap"));
    EXPECT(BAD_ARGUMENT, rackline_fetch_handles_by_layers(session, NULL, 2, over, 2, &two, &fetch));

    /* A layer of no blocks has no bytes, and no blocks are no mistake. */
    RacklinePublishResult published = {7, 7};
    MUST(rackline_publish_by_layers(session, NULL, 0, 0, NULL, 2, &two, &publish));
    MUST(rackline_layered_publish_layer_ready(publish, 1));
    MUST(rackline_layered_publish_finish(publish));
    MUST(rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0));
    CHECK(published.published == 0 && published.already_there == 0);
    MUST(rackline_layered_publish_free(publish));
    MUST(rackline_fetch_by_layers(session, prefix, 0, 0, NULL, 2, &two, &fetch));
    MUST(rackline_layered_fetch_wait_layer(fetch, 1, RACKLINE_FOREVER_MS));

    /* Handles of another kind, and freed ones. */
    RacklineFetchResult fetched;
    EXPECT(BAD_HANDLE, rackline_fetch_wait((RacklineFetch){fetch.handle}, 0, &fetched));
    CHECK(said("a fetch by layers, not of a fetch"));
    EXPECT(BAD_HANDLE, rackline_layered_publish_free((RacklineLayeredPublish){fetch.handle}));
    CHECK(said("a fetch by layers, not of a publish by layers"));
    MUST(rackline_layered_fetch_free(fetch));
    bool cancelled;
    EXPECT(BAD_HANDLE, rackline_layered_fetch_free(fetch));
    EXPECT(BAD_HANDLE, rackline_layered_fetch_wait_layer(fetch, 0, RACKLINE_FOREVER_MS));
    EXPECT(BAD_HANDLE, rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &fetched));
    EXPECT(BAD_HANDLE, rackline_layered_fetch_cancel(fetch, &cancelled));
    EXPECT(BAD_HANDLE, rackline_layered_publish_layer_ready(publish, 0));
    EXPECT(BAD_HANDLE, rackline_layered_publish_finish(publish));
    EXPECT(BAD_HANDLE, rackline_layered_publish_abort(publish));
    EXPECT(BAD_HANDLE, rackline_layered_publish_wait(publish, 0, &published, NULL, 0));
    MUST(rackline_layered_publish_free((RacklineLayeredPublish){0}));
    MUST(rackline_layered_fetch_free((RacklineLayeredFetch){0}));

    /* Room for fewer outcomes than blocks takes nothing. */
    RacklineOutcome outcomes[BLOCKS];
    MUST(try_publish(memory, next_number, &EACH_PART, &publish));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_layer_ready_on_gpu(publish, 0, NULL));
    CHECK(said("memory of this process"));
    MUST(rackline_layered_publish_abort(publish));
    EXPECT(BAD_ARGUMENT, rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &published,
                                                       outcomes, BLOCKS - 1));
    EXPECT(BAD_ARGUMENT,
           rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, NULL, outcomes, BLOCKS));
    CHECK(end_publish(publish) == 0);
    MUST(rackline_prefix_free(prefix));
}

static RacklineSession session_of(RacklinePool pool) {
    RacklineModel model = tiny_model();
    RacklineSession session;
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    return session;
}

/* A pool that was attached without the option fetches by layers, and does not publish. */
static void without_the_option(uint32_t known) {
    RacklinePool other;
    RacklineSession kept = session;
    RacklineLayeredPublish publish = {7};
    MUST(rackline_pool_attach(region, 0, NULL, &other));
    session = session_of(other);
    EXPECT(POOL, try_publish(memory, next_number, &EACH_PART, &publish));
    CHECK(publish.handle == 0 && said("publishes_by_layers"));
    fetch_in(&EACH_PART, known);
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(other));
    session = kept;
}

/* Closing aborts what is not finished; all else comes to its end. */
static void closed(uint32_t known) {
    RacklinePrefix prefix = hold(known);
    uint32_t number = next_number;
    RacklineLayeredPublish first, second, finished;
    RacklineLayeredFetch fetch;
    RacklinePublishResult result;
    MUST(try_publish(memory, number, &EACH_PART, &first));
    MUST(try_publish(memory, number + BLOCKS, &EACH_PART, &second));
    MUST(try_publish(memory, number + 2 * BLOCKS, &EACH_PART, &finished));
    MUST(rackline_layered_publish_layer_ready(first, 0));
    MUST(rackline_layered_publish_finish(finished));
    MUST(try_fetch(target, prefix, &EACH_PART, &fetch));
    MUST(rackline_pool_close(pool));
    MUST(rackline_layered_fetch_wait_layer(fetch, PARTS - 1, 0));
    end_fetch(fetch);
    CHECK(end_publish(finished) == BLOCKS);
    /* Too late, and no mistake. */
    MUST(rackline_layered_publish_layer_ready(first, 1));
    CHECK(end_publish(first) == 0 && said("the publish was aborted"));
    MUST(rackline_layered_publish_finish(second));
    MUST(rackline_layered_publish_wait(second, 0, &result, NULL, 0));
    CHECK(result.published == 0 && result.already_there == 0);
    MUST(rackline_layered_publish_free(second));
    EXPECT(CLOSED, try_publish(memory, number, &EACH_PART, &first));
    EXPECT(CLOSED, try_fetch(target, prefix, &EACH_PART, &fetch));
    MUST(rackline_prefix_free(prefix));
    MUST(rackline_session_free(session));

    MUST(rackline_pool_attach(region, 0, NULL, &pool));
    session = session_of(pool);
    CHECK(found(number) == 0 && found(number + BLOCKS) == 0 && found(number + 2 * BLOCKS) == BLOCKS);
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: by_layers REGION\n");
        return 2;
    }
    /* A wait that never ends is no error code. */
    alarm(120);
    region = argv[1];
    RacklinePoolOptions options = {0};
    options.publishes_by_layers = 1;
    MUST(rackline_pool_attach(region, 0, &options, &pool));
    session = session_of(pool);
    static const size_t order[] = {0, 1, 2};
    uint32_t known = publish_in(&EACH_PART, order, PARTS);
    in_any_order();
    lent(known);
    aborted();
    one_at_a_time();
    raced();
    cancelled_or_freed(known);
    refused(known);
    without_the_option(known);
    closed(known);
    return 0;
}
