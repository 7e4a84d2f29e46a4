/* What cannot work is an error with a code and a message, and changes nothing: run as
 *
 *     misuse REGION */
#include "blocks.h"

static const RacklinePool NO_POOL = {0};
static const RacklineSession NO_SESSION = {0};
static const RacklinePrefix NO_PREFIX = {0};
static const RacklineLookup NO_LOOKUP = {0};
static const RacklinePublish NO_PUBLISH = {0};
static const RacklineFetch NO_FETCH = {0};

static int said(const char *text) { return strstr(rackline_error_message(), text) != NULL; }

/* A message is of its thread and stays until the next; names are those of the header. */
static void names(void) {
    CHECK(rackline_error_message()[0] == '\0');
    CHECK(strcmp(rackline_error_name(RACKLINE_ERROR_BUSY), "RACKLINE_ERROR_BUSY") == 0);
    CHECK(strcmp(rackline_error_name(12345), "RACKLINE_ERROR_UNKNOWN") == 0);
    CHECK(strcmp(rackline_reason_label(RACKLINE_REASON_EVICTED), "evicted") == 0);
    CHECK(strcmp(rackline_reason_label(-1), "unknown") == 0);
    CHECK(strcmp(rackline_outcome_label(RACKLINE_OUTCOME_NO_CHUNK), "no_chunk") == 0);
    CHECK(strcmp(rackline_outcome_label(99), "unknown") == 0);
}

static void before_anything_is_attached(const char *region) {
    RacklineSession session = {7};
    RacklineModel model = tiny_model();
    EXPECT(BAD_HANDLE, rackline_session_open(NO_POOL, &model, BLOCK_BYTES, NULL, &session));
    CHECK(session.handle == 0 && said("rackline_pool_attach"));
    EXPECT(BAD_HANDLE, rackline_session_free((RacklineSession){7}));
    RacklinePool pool = {7};
    EXPECT(POOL, rackline_pool_attach("/nonexistent/pool", 0, NULL, &pool));
    CHECK(pool.handle == 0 && said("/nonexistent/pool"));
    EXPECT(POOL, rackline_pool_attach(region, 99, NULL, &pool));
    CHECK(said("99"));
    EXPECT(BAD_ARGUMENT, rackline_pool_attach(NULL, 0, NULL, &pool));
    EXPECT(BAD_ARGUMENT, rackline_pool_attach("\xff\xfe", 0, NULL, &pool));
    EXPECT(BAD_ARGUMENT, rackline_pool_attach(region, 0, NULL, NULL));
    RacklinePoolOptions options = {0};
    options.copy_threads = 100000;
    EXPECT(BAD_ARGUMENT, rackline_pool_attach(region, 0, &options, &pool));
    CHECK(said("copy_threads"));
}

static void wrong_sessions(RacklinePool pool) {
    RacklineModel model = tiny_model();
    RacklineSession session;
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, &model, 0, NULL, &session));
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, NULL, BLOCK_BYTES, NULL, &session));
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, &model, BLOCK_BYTES, NULL, NULL));
    RacklineSessionOptions options = {0};
    options.hold_ms = 1000000000000;
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, &model, BLOCK_BYTES, &options, &session));
    CHECK(said("hold_ms"));
    options = (RacklineSessionOptions){0};
    options.salt_bytes = 3;
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, &model, BLOCK_BYTES, &options, &session));
    model.dtype = NULL;
    EXPECT(BAD_ARGUMENT, rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    CHECK(said("dtype"));
    uint64_t value = 0;
    EXPECT(BAD_ARGUMENT, rackline_pool_metric(pool, "no_such_thing", &value));
    EXPECT(BAD_ARGUMENT, rackline_pool_metric(pool, NULL, &value));
    EXPECT(BAD_ARGUMENT, rackline_pool_node(pool, NULL));
}

static void wrong_publishes(RacklineSession session) {
    uint8_t block[BLOCK_BYTES] = {0};
    RacklineBlockHash hashes[2] = {block_hash(0), block_hash(1)};
    RacklineSource whole[2] = {{block, BLOCK_BYTES}, {block, BLOCK_BYTES}};
    RacklineSource shorter = {block, BLOCK_BYTES - 1};
    RacklineSource nowhere = {NULL, BLOCK_BYTES};
    RacklineSource endless = {block, SIZE_MAX};
    RacklinePublish publish = {7};
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, &shorter, 1, &publish));
    CHECK(publish.handle == 0 && said("4195"));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, &nowhere, 1, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, &endless, 1, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, NULL, 1, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, whole, 0, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, NULL, 1, 0, whole, 1, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 2, UINT32_MAX, whole, 1, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, whole, SIZE_MAX, &publish));
    EXPECT(BAD_ARGUMENT, rackline_publish(session, hashes, 1, 0, whole, 1, NULL));
    EXPECT(BAD_HANDLE, rackline_publish(NO_SESSION, hashes, 1, 0, whole, 1, &publish));
    /* No blocks are no mistake. */
    MUST(rackline_publish(session, NULL, 0, 0, NULL, 0, &publish));
    RacklinePublishResult result = {7, 7};
    EXPECT(BAD_ARGUMENT, rackline_publish_wait(publish, RACKLINE_FOREVER_MS, NULL, NULL, 0));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(result.published == 0 && result.already_there == 0);
    MUST(rackline_publish_free(publish));
    /* Two blocks from the same bytes are none either. */
    MUST(rackline_publish(session, hashes, 2, 0, whole, 1, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(result.published == 2);
    MUST(rackline_publish_free(publish));
}

static void wrong_fetches(RacklineSession session) {
    RacklineBlockHash hashes[2] = {block_hash(0), block_hash(1)};
    RacklineLookup lookup;
    RacklineLookupResult found;
    EXPECT(BAD_ARGUMENT, rackline_lookup(session, NULL, 2, &lookup));
    EXPECT(BAD_ARGUMENT, rackline_lookup(session, hashes, 2, NULL));
    MUST(rackline_lookup(session, hashes, 2, &lookup));
    EXPECT(BAD_ARGUMENT, rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, NULL));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == 2);
    static uint8_t memory[2 * BLOCK_BYTES];
    RacklineDestination apart[2] = {{memory + BLOCK_BYTES, BLOCK_BYTES}, {memory, BLOCK_BYTES}};
    RacklineDestination over[2] = {{memory, BLOCK_BYTES}, {memory + BLOCK_BYTES - 1, BLOCK_BYTES}};
    RacklineFetch fetch;
    EXPECT(BAD_ARGUMENT, rackline_fetch(session, found.prefix, 0, 2, over, 1, &fetch));
    CHECK(said("overlap"));
    EXPECT(BAD_ARGUMENT, rackline_fetch(session, found.prefix, 1, 2, apart, 1, &fetch));
    EXPECT(BAD_ARGUMENT, rackline_fetch(session, found.prefix, SIZE_MAX, 2, apart, 1, &fetch));
    EXPECT(BAD_HANDLE, rackline_fetch(session, NO_PREFIX, 0, 2, apart, 1, &fetch));
    EXPECT(BAD_ARGUMENT, rackline_fetch_handles(session, NULL, 2, apart, 1, &fetch));
    /* Nothing of what was refused stays taken. */
    MUST(rackline_fetch(session, found.prefix, 0, 2, apart, 1, &fetch));
    RacklineFetchResult result;
    EXPECT(BAD_ARGUMENT, rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, NULL));
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == 2);

    /* Handles of another kind, and freed ones. */
    EXPECT(BAD_HANDLE, rackline_prefix_free((RacklinePrefix){fetch.handle}));
    CHECK(said("a fetch, not of a prefix"));
    EXPECT(BAD_HANDLE, rackline_fetch_poll((RacklineFetch){session.handle}, &result));
    EXPECT(BAD_HANDLE, rackline_lookup_free((RacklineLookup){found.prefix.handle}));
    MUST(rackline_fetch_free(fetch));
    EXPECT(BAD_HANDLE, rackline_fetch_free(fetch));
    EXPECT(BAD_HANDLE, rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    bool cancelled = true;
    EXPECT(BAD_HANDLE, rackline_fetch_cancel(fetch, &cancelled));
    MUST(rackline_lookup_cancel(lookup, &cancelled));
    CHECK(!cancelled);
    MUST(rackline_lookup_free(lookup));
    EXPECT(BAD_HANDLE, rackline_lookup_free(lookup));
    MUST(rackline_prefix_free(found.prefix));
    EXPECT(BAD_HANDLE, rackline_prefix_release(found.prefix));
}

static void nothing_is_freed(void) {
    MUST(rackline_pool_close(NO_POOL));
    MUST(rackline_session_free(NO_SESSION));
    MUST(rackline_prefix_free(NO_PREFIX));
    MUST(rackline_lookup_free(NO_LOOKUP));
    MUST(rackline_publish_free(NO_PUBLISH));
    MUST(rackline_fetch_free(NO_FETCH));
}

static void closed(RacklinePool pool, RacklineSession session) {
    RacklineBlockHash hash = block_hash(0);
    RacklineLookup before, after;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, &hash, 1, &before));
    MUST(rackline_pool_close(pool));
    /* What was taken up is done. */
    MUST(rackline_lookup_poll(before, &found));
    CHECK(found.blocks == 1);
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_lookup_free(before));
    EXPECT(CLOSED, rackline_lookup(session, &hash, 1, &after));
    EXPECT(BAD_HANDLE, rackline_pool_close(pool));
    MUST(rackline_session_free(session));
    EXPECT(BAD_HANDLE, rackline_session_free(session));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: misuse REGION\n");
        return 2;
    }
    names();
    before_anything_is_attached(argv[1]);
    nothing_is_freed();
    RacklinePool pool;
    MUST(rackline_pool_attach(argv[1], 0, NULL, &pool));
    wrong_sessions(pool);
    RacklineModel model = tiny_model();
    RacklineSession session;
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    wrong_publishes(session);
    wrong_fetches(session);
    nothing_is_freed();
    closed(pool, session);
    return 0;
}
