/* Watermarks, quotas, and what is asked of all nodes: run as
 *
 *     pool_options REGION
 *
 * A node of the region has room for 768 blocks. */
#define _POSIX_C_SOURCE 200809L
#include "blocks.h"

#include <time.h>
#include <unistd.h>

#define KEPT 100
#define OTHERS 400
#define BATCH 20

static void refused(const char *region) {
    RacklineQuota quotas[65] = {0};
    RacklinePool pool;
    const struct {
        RacklinePoolOptions options;
        RacklineQuota quota;
        const char *said;
    } wrong[] = {
        {{.copy_threads = 65}, {0}, "copy_threads is 65"},
        {{.queue_depth = 1048577}, {0}, "queue_depth is 1048577"},
        {{.fetch_threads = 65}, {0}, "fetch_threads is 65"},
        {{.unbound_threads = 2}, {0}, "unbound_threads is 2"},
        {{.publishes_by_layers = 2}, {0}, "publishes_by_layers is 2"},
        {{.high_watermark_percent = 101}, {0}, "watermarks of 101 and 90"},
        {{.low_watermark_percent = 96}, {0}, "watermarks of 95 and 96"},
        {{.high_watermark_percent = 90}, {0}, "watermarks of 90 and 90"},
        {{.quota_count = 1}, {0}, "neither bytes nor percent"},
        {{.quota_count = 1}, {.bytes = 1, .percent = 1}, "set one"},
        {{.quota_count = 1}, {.percent = 101}, "percent 101"},
        {{.quota_count = 1}, {.bytes = UINT64_MAX}, "quota 0 has 18446744073709551615 bytes"},
        {{.quota_count = 1}, {.tenant = "\xff"}, "the tenant"},
        {{.quota_count = 1}, {.salt_bytes = 1}, "the salt"},
        {{.quota_count = 2}, {.bytes = 1}, "already has a quota"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        RacklinePoolOptions options = wrong[i].options;
        quotas[0] = quotas[1] = wrong[i].quota;
        options.quotas = quotas;
        pool.handle = 7;
        EXPECT(BAD_ARGUMENT, rackline_pool_attach(region, 0, &options, &pool));
        CHECK(pool.handle == 0);
        if (strstr(rackline_error_message(), wrong[i].said) == NULL) {
            fprintf(stderr, "not \"%s\": %s\n", wrong[i].said, rackline_error_message());
            exit(1);
        }
    }
    RacklinePoolOptions options = {0};
    options.quota_count = 1;
    EXPECT(BAD_ARGUMENT, rackline_pool_attach(region, 0, &options, &pool));
    CHECK(strstr(rackline_error_message(), "the quotas") != NULL);
    uint8_t salts[65];
    for (uint8_t i = 0; i < 65; i++) {
        salts[i] = i;
        quotas[i] = (RacklineQuota){.salt = &salts[i], .salt_bytes = 1, .percent = 10};
    }
    options.quotas = quotas;
    options.quota_count = 65;
    EXPECT(BAD_ARGUMENT, rackline_pool_attach(region, 0, &options, &pool));
    CHECK(strstr(rackline_error_message(), "64 at most") != NULL);
}

static RacklineSession session_of(RacklinePool pool, const char *tenant) {
    RacklineModel model = tiny_model();
    RacklineSessionOptions options = {.tenant = tenant};
    RacklineSession session;
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, &options, &session));
    return session;
}

/* A few at a time: what is being written cannot be evicted. */
static void publish(RacklineSession session, uint32_t count) {
    static uint8_t memory[BLOCK_BYTES];
    for (uint32_t first = 0; first < count; first += BATCH) {
        RacklineBlockHash hashes[BATCH] = {0};
        RacklineSource parts[BATCH] = {0};
        for (uint32_t i = 0; i < BATCH; i++) {
            hashes[i] = block_hash(first + i);
            parts[i] = (RacklineSource){memory, BLOCK_BYTES};
        }
        RacklinePublish publish;
        RacklinePublishResult result;
        MUST(rackline_publish(session, hashes, BATCH, first, parts, 1, &publish));
        MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
        CHECK(result.published == BATCH);
        MUST(rackline_publish_free(publish));
    }
}

static size_t found(RacklineSession session, uint32_t count) {
    static RacklineBlockHash hashes[OTHERS];
    for (uint32_t i = 0; i < count; i++) {
        hashes[i] = block_hash(i);
    }
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, hashes, count, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    MUST(rackline_prefix_free(found.prefix));
    return found.blocks;
}

/* Above the high watermark goes what is over its quota, though it is the younger, down to the low one. */
static void kept(const char *region) {
    RacklineQuota quota = {.tenant = "modest", .bytes = 10 * BLOCK_BYTES};
    RacklinePoolOptions options = {.high_watermark_percent = 50,
                                   .low_watermark_percent = 25,
                                   .quotas = &quota,
                                   .quota_count = 1};
    RacklinePool pool;
    MUST(rackline_pool_attach(region, 0, &options, &pool));
    RacklineSession usual = session_of(pool, NULL), modest = session_of(pool, "modest");
    publish(usual, KEPT);
    publish(modest, OTHERS);
    uint64_t evicted = 0;
    while (evicted < 384 - 192) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        MUST(rackline_pool_metric(pool, "evicted_blocks", &evicted));
    }
    CHECK(found(usual, KEPT) == KEPT);
    CHECK(found(modest, OTHERS) < OTHERS);
    MUST(rackline_session_free(usual));
    MUST(rackline_session_free(modest));
    MUST(rackline_pool_close(pool));
}

/* By another attachment of this process, beside one whose threads keep their CPUs. */
static void cleared_and_pinned(const char *region) {
    const RacklineNamespace modest = {.tenant = "modest"};
    const RacklineNamespace salted = {.tenant = "modest", .salt = (const uint8_t *)"s", .salt_bytes = 1};
    RacklinePoolOptions options = {.unbound_threads = 1};
    RacklinePool pool;
    uint64_t left = 7;
    MUST(rackline_clear_all(region, 0, 10000, &left));
    CHECK(left == 0);
    MUST(rackline_pool_attach(region, 0, &options, &pool));
    RacklineSession usual = session_of(pool, NULL), modest_session = session_of(pool, "modest");
    publish(usual, BATCH);
    publish(modest_session, BATCH);
    MUST(rackline_clear(region, 0, &salted, 10000, &left));
    CHECK(left == 0 && found(modest_session, BATCH) == BATCH);
    MUST(rackline_pin(region, 0, &modest, 20, 60000, 10000, &left));
    CHECK(left == 0);
    MUST(rackline_clear(region, 0, &modest, 10000, &left));
    CHECK(left == 0 && found(modest_session, BATCH) == 0);
    CHECK(found(usual, BATCH) == BATCH);
    MUST(rackline_unpin(region, 0, &modest, 10000, &left));
    CHECK(left == 0);
    MUST(rackline_clear_all(region, 0, 10000, &left));
    CHECK(left == 0 && found(usual, BATCH) == 0);

    /* A null namespace is a mistake, and never all of them. */
    publish(usual, BATCH);
    left = 7;
    EXPECT(BAD_ARGUMENT, rackline_clear(region, 0, NULL, 10000, &left));
    CHECK(strstr(rackline_error_message(), "the namespace") != NULL);
    const RacklineNamespace wrong = {.tenant = "\xff"}, lost = {.salt_bytes = 1};
    EXPECT(BAD_ARGUMENT, rackline_clear(region, 0, &wrong, 10000, &left));
    EXPECT(BAD_ARGUMENT, rackline_unpin(region, 0, &lost, 10000, &left));
    EXPECT(BAD_ARGUMENT, rackline_clear(NULL, 0, &modest, 10000, &left));
    EXPECT(BAD_ARGUMENT, rackline_clear_all(region, 0, 10000, NULL));
    EXPECT(BAD_ARGUMENT, rackline_pin(region, 0, &modest, 51, 60000, 10000, &left));
    CHECK(strstr(rackline_error_message(), "51 percent") != NULL);
    EXPECT(BAD_ARGUMENT, rackline_pin(region, 0, &modest, 50, 0, 10000, &left));
    EXPECT(POOL, rackline_clear_all("/nonexistent", 0, 10000, &left));
    CHECK(left == 0);
    EXPECT(POOL, rackline_clear_all(region, 99, 10000, &left));
    CHECK(found(usual, BATCH) == BATCH);
    MUST(rackline_session_free(usual));
    MUST(rackline_session_free(modest_session));
    MUST(rackline_pool_close(pool));
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: pool_options REGION\n");
        return 2;
    }
    /* It waits for evictions. */
    alarm(120);
    refused(argv[1]);
    kept(argv[1]);
    cleared_and_pinned(argv[1]);
    return 0;
}
