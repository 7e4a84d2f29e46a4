/* What one transfer writes is lent to no other until it is over: run as
 *
 *     lent REGION */
#include "blocks.h"

#define BLOCKS 4

static uint8_t memory[BLOCKS * BLOCK_BYTES];
static RacklineSession session;
static RacklinePrefix prefix;

static RacklineError try_fetch(uint8_t *at, RacklineFetch *fetch) {
    RacklineDestination parts[PARTS] = {0};
    scatter_destinations(parts, at, 1);
    return rackline_fetch(session, prefix, 0, 1, parts, PARTS, fetch);
}

static RacklineError try_publish(const uint8_t *at, RacklinePublish *publish) {
    RacklineSource parts[PARTS] = {0};
    RacklineBlockHash hash = block_hash(0);
    scatter_sources(parts, at, 1);
    return rackline_publish(session, &hash, 1, 0, parts, PARTS, publish);
}

static void end_fetch(RacklineFetch fetch) {
    RacklineFetchResult result;
    MUST(rackline_fetch_wait(fetch, RACKLINE_FOREVER_MS, &result));
    CHECK(result.valid_blocks == 1);
    MUST(rackline_fetch_free(fetch));
}

/* What is read may be read by others, and written by nobody. */
static void published(void) {
    RacklinePublish first, second;
    RacklineFetch fetch = {7};
    MUST(try_publish(memory, &first));
    MUST(try_publish(memory + 100, &second));
    EXPECT(LENT, try_fetch(memory, &fetch));
    CHECK(fetch.handle == 0 && strstr(rackline_error_message(), "read by another") != NULL);
    RacklinePublishResult result;
    MUST(rackline_publish_wait(first, RACKLINE_FOREVER_MS, &result, NULL, 0));
    /* The second one reads all but the first bytes of it still. */
    EXPECT(LENT, try_fetch(memory, &fetch));
    MUST(rackline_publish_free(second));
    MUST(try_fetch(memory, &fetch));
    MUST(rackline_publish_free(first));
    end_fetch(fetch);
}

/* What is written is one transfer's alone, until it is waited for, freed or cancelled. */
static void fetched(void) {
    RacklineFetch first, second = {7};
    RacklinePublish publish;
    uint8_t *middle = memory + BLOCK_BYTES;
    MUST(try_fetch(middle, &first));
    EXPECT(LENT, try_fetch(middle + BLOCK_BYTES - 1, &second));
    CHECK(second.handle == 0 && strstr(rackline_error_message(), "written by another") != NULL);
    EXPECT(LENT, try_fetch(middle - BLOCK_BYTES + 1, &second));
    EXPECT(LENT, try_publish(middle, &publish));
    /* Beside it there is room, and nothing of what was refused stays lent. */
    MUST(try_fetch(middle + BLOCK_BYTES, &second));
    MUST(try_publish(middle - BLOCK_BYTES, &publish));
    /* A wait that fails ends nothing. */
    EXPECT(BAD_ARGUMENT, rackline_fetch_wait(first, RACKLINE_FOREVER_MS, NULL));
    EXPECT(LENT, try_publish(middle, &(RacklinePublish){0}));
    end_fetch(first);
    MUST(rackline_publish_free(publish));
    MUST(try_publish(middle, &publish));
    MUST(rackline_publish_free(publish));
    end_fetch(second);

    MUST(try_fetch(middle, &first));
    bool cancelled = false;
    MUST(rackline_fetch_cancel(first, &cancelled));
    RacklineError outcome = try_fetch(middle, &second);
    if (cancelled) {
        MUST(outcome);
        end_fetch(second);
    } else {
        CHECK(outcome == RACKLINE_ERROR_LENT);
    }
    MUST(rackline_fetch_free(first));
    MUST(try_fetch(middle, &second));
    end_fetch(second);
}

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: lent REGION\n");
        return 2;
    }
    RacklinePool pool;
    MUST(rackline_pool_attach(argv[1], 0, NULL, &pool));
    RacklineModel model = tiny_model();
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    RacklinePublish publish;
    RacklinePublishResult result;
    MUST(try_publish(memory, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(result.published == 1);
    MUST(rackline_publish_free(publish));
    RacklineBlockHash hash = block_hash(0);
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup_and_hold(session, &hash, 1, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    prefix = found.prefix;
    published();
    fetched();
    MUST(rackline_prefix_free(prefix));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    return 0;
}
