/* Two processes of two nodes share blocks: run as
 *
 *     sessions REGION publish          publishes, prints the handles of what it holds, and stays until
 *                                      its standard input ends
 *     sessions REGION fetch HANDLES    finds and fetches the blocks, by their hashes and by handles */
#define _POSIX_C_SOURCE 200809L
#include "blocks.h"

#include <time.h>

#define BLOCKS 6

static void publish(RacklineSession session, uint32_t first, size_t count, size_t published) {
    uint8_t memory[BLOCKS * BLOCK_BYTES];
    RacklineBlockHash hashes[BLOCKS] = {0};
    RacklineSource parts[BLOCKS * PARTS] = {0};
    RacklineOutcome outcomes[BLOCKS];
    for (size_t i = 0; i < count; i++) {
        hashes[i] = block_hash(first + (uint32_t)i);
        fill_block(memory + i * BLOCK_BYTES, first + (uint32_t)i);
    }
    scatter_sources(parts, memory, count);
    RacklinePublish publish;
    MUST(rackline_publish(session, hashes, count, first, parts, PARTS, &publish));
    RacklinePublishResult result;
    EXPECT(BAD_ARGUMENT, rackline_publish_wait(publish, 0, &result, outcomes, count - 1));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, outcomes, BLOCKS));
    CHECK(result.published == published && result.already_there == count - published);
    for (size_t i = 0; i < count; i++) {
        RacklineOutcome there = RACKLINE_OUTCOME_ALREADY_THERE;
        CHECK(outcomes[i] == (i < count - published ? there : RACKLINE_OUTCOME_PUBLISHED));
    }
    EXPECT(NO_RESULT, rackline_publish_poll(publish, &result));
    MUST(rackline_publish_free(publish));
}

static RacklineLookupResult look_up(RacklineSession session, size_t count, int hold) {
    RacklineBlockHash hashes[BLOCKS * 2] = {0};
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = block_hash(i);
    }
    RacklineLookup lookup;
    if (hold) {
        MUST(rackline_lookup_and_hold(session, hashes, count, &lookup));
    } else {
        MUST(rackline_lookup(session, hashes, count, &lookup));
    }
    RacklineLookupResult result;
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &result));
    EXPECT(NO_RESULT, rackline_lookup_poll(lookup, &result));
    MUST(rackline_lookup_free(lookup));
    bool held = false;
    MUST(rackline_prefix_held(result.prefix, &held));
    CHECK(held == (hold != 0) && result.reason == RACKLINE_REASON_NONE);
    size_t blocks = 0;
    MUST(rackline_prefix_blocks(result.prefix, &blocks));
    CHECK(blocks == result.blocks);
    return result;
}

static void stay_while_others_read(RacklineSession session, RacklinePool pool) {
    RacklineLookupResult found = look_up(session, BLOCKS + 3, 1);
    CHECK(found.blocks == BLOCKS);
    uint64_t held = 0;
    MUST(rackline_pool_metric(pool, "held_blocks", &held));
    CHECK(held == BLOCKS);
    RacklineBlockHandle handles[BLOCKS] = {0};
    EXPECT(BAD_ARGUMENT, rackline_prefix_handles(found.prefix, 1, BLOCKS, handles));
    MUST(rackline_prefix_handles(found.prefix, 0, BLOCKS, handles));
    for (size_t i = 0; i < sizeof handles; i++) {
        printf("%02x", ((const uint8_t *)handles)[i]);
    }
    printf("\n");
    fflush(stdout);
    while (getchar() != EOF) {
    }
    MUST(rackline_prefix_release(found.prefix));
    bool is_held = true;
    MUST(rackline_prefix_held(found.prefix, &is_held));
    CHECK(!is_held);
    /* What is let go is given back by the next turn of the upkeep. */
    uint64_t released = 0;
    while (released < BLOCKS) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        MUST(rackline_pool_metric(pool, "released_blocks", &released));
    }
    MUST(rackline_prefix_free(found.prefix));
}

static void fetched_well(RacklineFetch fetch, const uint8_t *memory, uint32_t first, size_t count) {
    RacklineFetchResult result;
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == count && result.reason == RACKLINE_REASON_NONE);
    MUST(rackline_fetch_free(fetch));
    for (size_t i = 0; i < count; i++) {
        CHECK(is_block(memory + i * BLOCK_BYTES, first + (uint32_t)i));
    }
}

static void fetch_by_hashes(RacklineSession session) {
    uint8_t memory[BLOCKS * BLOCK_BYTES] = {0};
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    scatter_destinations(parts, memory, BLOCKS);
    RacklineLookupResult found = look_up(session, BLOCKS + 3, 1);
    CHECK(found.blocks == BLOCKS);
    RacklineFetch fetch;
    MUST(rackline_fetch(session, found.prefix, 0, BLOCKS, parts, PARTS, &fetch));
    fetched_well(fetch, memory, 0, BLOCKS);

    /* An engine that has the first two blocks wants the others. */
    memset(memory, 0, sizeof memory);
    MUST(rackline_fetch(session, found.prefix, 2, BLOCKS - 2, parts, PARTS, &fetch));
    fetched_well(fetch, memory, 2, BLOCKS - 2);
    for (size_t i = (BLOCKS - 2) * BLOCK_BYTES; i < sizeof memory; i++) {
        CHECK(memory[i] == 0);
    }
    MUST(rackline_prefix_free(found.prefix));
}

static void fetch_by_handles(RacklineSession session, const char *text) {
    uint8_t memory[BLOCKS * BLOCK_BYTES] = {0};
    RacklineDestination parts[BLOCKS * PARTS] = {0};
    scatter_destinations(parts, memory, BLOCKS);
    RacklineBlockHandle handles[BLOCKS] = {0};
    for (size_t i = 0; i < sizeof handles; i++) {
        unsigned byte = 0;
        CHECK(sscanf(text + 2 * i, "%2x", &byte) == 1);
        ((uint8_t *)handles)[i] = (uint8_t)byte;
    }
    RacklineLookup hold;
    MUST(rackline_hold(session, handles, BLOCKS, &hold));
    RacklineLookupResult held;
    MUST(rackline_lookup_wait(hold, RACKLINE_FOREVER_MS, &held));
    CHECK(held.blocks == BLOCKS && held.reason == RACKLINE_REASON_NONE);
    MUST(rackline_lookup_free(hold));
    RacklineFetch fetch;
    MUST(rackline_fetch_handles(session, handles, BLOCKS, parts, PARTS, &fetch));
    fetched_well(fetch, memory, 0, BLOCKS);
    MUST(rackline_prefix_free(held.prefix));
}

/* Handles of nothing are misses with a reason, a counter and a message. */
static void fetch_nothing(RacklineSession session, RacklinePool pool) {
    uint8_t memory[BLOCK_BYTES] = {0};
    RacklineDestination parts[PARTS] = {0};
    scatter_destinations(parts, memory, 1);
    RacklineBlockHandle handle;
    for (int byte = 0; byte <= 0xff; byte += 0xff) {
        memset(handle.bytes, byte, sizeof handle.bytes);
        RacklineFetch fetch;
        MUST(rackline_fetch_handles(session, &handle, 1, parts, PARTS, &fetch));
        RacklineFetchResult result;
        MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
        MUST(rackline_fetch_free(fetch));
        CHECK(result.valid_blocks == 0 && result.reason != RACKLINE_REASON_NONE);
        CHECK(rackline_error_message()[0] != '\0');
        char counter[64] = "misses.";
        strcat(counter, rackline_reason_label(result.reason));
        uint64_t misses = 0;
        MUST(rackline_pool_metric(pool, counter, &misses));
        CHECK(misses >= 1);

        RacklineLookup hold;
        RacklineLookupResult held;
        MUST(rackline_hold(session, &handle, 1, &hold));
        MUST(rackline_lookup_wait(hold, RACKLINE_FOREVER_MS, &held));
        CHECK(held.blocks == 0 && held.reason != RACKLINE_REASON_NONE);
        CHECK(rackline_error_message()[0] != '\0');
        MUST(rackline_lookup_free(hold));
        MUST(rackline_prefix_free(held.prefix));
    }
    for (size_t i = 0; i < sizeof memory; i++) {
        CHECK(memory[i] == 0);
    }
}

/* Fetches a block that a session found in another session, whose blocks are not that block's. */
static void fetch_of_another(RacklineSession session, const RacklinePrefix *prefix, size_t bytes,
                             RacklineReason reason) {
    static uint8_t memory[BLOCK_BYTES];
    RacklineDestination part = {memory, bytes};
    RacklineFetch fetch;
    MUST(rackline_fetch(session, *prefix, 0, 1, &part, 1, &fetch));
    RacklineFetchResult result;
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == 0 && result.reason == reason);
    MUST(rackline_fetch_free(fetch));
}

/* Other models, tenants, salts and lengths find nothing, and cannot fetch what others found. */
static void see_nothing_of_others(RacklinePool pool) {
    RacklineModel model = tiny_model(), other = tiny_model();
    other.tensor_parallel_size = 2;
    uint64_t fingerprint = 0, fingerprint_of_other = 0;
    MUST(rackline_model_fingerprint(&model, &fingerprint));
    MUST(rackline_model_fingerprint(&other, &fingerprint_of_other));
    CHECK(fingerprint != fingerprint_of_other);
    RacklineSessionOptions tenant = {0}, salt = {0};
    tenant.tenant = "somebody else";
    salt.salt = (const uint8_t *)"salt";
    salt.salt_bytes = 4;
    const RacklineSessionOptions *options[] = {NULL, &tenant, &salt};
    for (int i = 0; i < 3; i++) {
        RacklineSession session;
        MUST(rackline_session_open(pool, i == 0 ? &other : &model, BLOCK_BYTES, options[i], &session));
        RacklineLookupResult found = look_up(session, BLOCKS, 0);
        CHECK(found.blocks == 0);
        MUST(rackline_prefix_free(found.prefix));
        MUST(rackline_session_free(session));
    }
    RacklineSession own, shorter, of_other;
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &own));
    MUST(rackline_session_open(pool, &model, 8, NULL, &shorter));
    MUST(rackline_session_open(pool, &other, BLOCK_BYTES, NULL, &of_other));
    RacklineLookupResult none = look_up(shorter, 1, 0);
    CHECK(none.blocks == 0);
    MUST(rackline_prefix_free(none.prefix));
    RacklineLookupResult found = look_up(own, 1, 0);
    CHECK(found.blocks == 1);
    fetch_of_another(shorter, &found.prefix, 8, RACKLINE_REASON_WRONG_LENGTH);
    fetch_of_another(of_other, &found.prefix, BLOCK_BYTES, RACKLINE_REASON_KEY_COLLISION);
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_session_free(own));
    MUST(rackline_session_free(shorter));
    MUST(rackline_session_free(of_other));
}

static void hash_a_prompt(void) {
    uint32_t tokens[5 * 16 + 3];
    for (uint32_t i = 0; i < 5 * 16 + 3; i++) {
        tokens[i] = i * i;
    }
    RacklineBlockHash all[5], rest[3];
    size_t count = 9;
    MUST(rackline_chain_hashes(NULL, 0, NULL, 16, tokens, 5 * 16 + 3, all, 5, &count));
    CHECK(count == 5);
    MUST(rackline_chain_hashes(NULL, 0, &all[1], 16, tokens + 32, 3 * 16, rest, 3, &count));
    CHECK(count == 3 && memcmp(rest, all + 2, sizeof rest) == 0);
    const uint8_t seed[] = {1, 2};
    MUST(rackline_chain_hashes(seed, 2, NULL, 16, tokens, 16, rest, 3, &count));
    CHECK(count == 1 && memcmp(rest, all, sizeof rest[0]) != 0);
    MUST(rackline_chain_hashes(NULL, 0, NULL, 16, tokens, 15, NULL, 0, &count));
    CHECK(count == 0);
    EXPECT(BAD_ARGUMENT, rackline_chain_hashes(NULL, 0, NULL, 16, tokens, 80, all, 4, &count));
    EXPECT(BAD_ARGUMENT, rackline_chain_hashes(NULL, 0, NULL, 0, tokens, 80, all, 5, &count));
    EXPECT(BAD_ARGUMENT, rackline_chain_hashes(NULL, 0, NULL, 16, NULL, 80, all, 5, &count));
    for (size_t i = 0; i < sizeof all[0]; i++) {
        printf("%02x", all[0].bytes[i]);
    }
    printf("\n");
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fprintf(stderr, "usage: sessions REGION publish|fetch HANDLES\n");
        return 2;
    }
    int publishes = strcmp(argv[2], "publish") == 0;
    uint16_t node = publishes ? 0 : 1, is = 9;
    RacklinePool pool;
    MUST(rackline_pool_attach(argv[1], node, NULL, &pool));
    MUST(rackline_pool_node(pool, &is));
    CHECK(is == node);
    RacklineModel model = tiny_model();
    RacklineSession session;
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    if (publishes) {
        publish(session, 0, BLOCKS - 1, BLOCKS - 1);
        publish(session, 0, BLOCKS, 1);
        stay_while_others_read(session, pool);
        hash_a_prompt();
    } else {
        fetch_by_hashes(session);
        fetch_by_handles(session, argc > 3 ? argv[3] : "");
        fetch_nothing(session, pool);
        see_nothing_of_others(pool);
    }
    MUST(rackline_session_free(session));
    size_t bytes = 0;
    MUST(rackline_pool_metrics(pool, NULL, 0, &bytes));
    /* It may have a digit more the next time. */
    bytes += 100;
    char *metrics = malloc(bytes);
    CHECK(metrics != NULL);
    MUST(rackline_pool_metrics(pool, metrics, bytes, &bytes));
    CHECK(strlen(metrics) + 1 == bytes);
    EXPECT(BAD_ARGUMENT, rackline_pool_metrics(pool, metrics, bytes / 2, &bytes));
    fputs(metrics, stdout);
    free(metrics);
    MUST(rackline_pool_close(pool));
    return 0;
}
