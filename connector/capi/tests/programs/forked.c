/* Children made by fork, at any moment: run as
 *
 *     forked REGION attached    of a process that is attached to a pool
 *     forked REGION attaching   of one that attaches to a pool for the first time, in another thread
 *     forked REGION shared      of one that attaches to the shared memory and detaches, in another thread
 *     forked REGION last        of a thread that is a member still when its process has detached
 *     forked REGION number      of one whose number they have */
#define _GNU_SOURCE
#include "blocks.h"
#include "cxl_shm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Far more than any of it takes. */
#define LIMIT_S 20
#define ROUNDS 40

static const char *region;

static void pause_us(long us) { nanosleep(&(struct timespec){0, us * 1000}, NULL); }

/* What a child says of a transfer by layers of its parent is refused. */
static void say_by_layers(RacklineError expected, RacklineLayeredPublish publish,
                      RacklineLayeredFetch fetch) {
    RacklinePublishResult published;
    RacklineFetchResult fetched;
    bool cancelled;
    const RacklineError outcomes[] = {
        rackline_layered_publish_layer_ready(publish, 0),
        rackline_layered_publish_layer_ready_on_gpu(publish, 0, NULL),
        rackline_layered_publish_finish(publish),
        rackline_layered_publish_abort(publish),
        rackline_layered_publish_wait(publish, RACKLINE_FOREVER_MS, &published, NULL, 0),
        rackline_layered_publish_free(publish),
        rackline_layered_fetch_wait_layer(fetch, 0, RACKLINE_FOREVER_MS),
        rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &fetched),
        rackline_layered_fetch_cancel(fetch, &cancelled),
        rackline_layered_fetch_free(fetch),
    };
    for (size_t i = 0; i < sizeof outcomes / sizeof *outcomes; i++) {
        CHECK(outcomes[i] == expected);
    }
}

/* A child is refused what its parent has open, attaches by itself, and finds what is in the pool. */
static void in_a_child(uint16_t node, RacklinePool pool, RacklineSession session, RacklineLookup lookup,
                       RacklineLayeredPublish publish, RacklineLayeredFetch fetch) {
    RacklineBlockHash hash = block_hash(0);
    RacklineLookup other;
    RacklineLookupResult found;
    say_by_layers(RACKLINE_ERROR_FORKED, publish, fetch);
    EXPECT(FORKED, rackline_lookup(session, &hash, 1, &other));
    EXPECT(FORKED, rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    EXPECT(FORKED, rackline_lookup_free(lookup));
    EXPECT(FORKED, rackline_pool_close(pool));
    RacklinePool own;
    RacklineModel model = tiny_model();
    RacklineSession own_session;
    MUST(rackline_pool_attach(region, node, NULL, &own));
    CHECK(own.handle != pool.handle);
    MUST(rackline_session_open(own, &model, BLOCK_BYTES, NULL, &own_session));
    MUST(rackline_lookup(own_session, &hash, 1, &other));
    MUST(rackline_lookup_wait(other, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == 1);
    EXPECT(BAD_HANDLE, rackline_lookup_free(lookup));
    say_by_layers(RACKLINE_ERROR_BAD_HANDLE, publish, fetch);
    EXPECT(BAD_HANDLE, rackline_pool_close(pool));
    MUST(rackline_pool_close(own));
}

/* How a child ended, which has a time to its end: what hangs is killed. */
static void must_end_well(pid_t child) {
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) {
        fprintf(stderr, "a child hung, or crashed: signal %d\n", WTERMSIG(status));
    }
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What comes before the fork may be more. */
static void of_an_attached_process(uint16_t child_node, void (*before_fork)(void)) {
    RacklinePool pool;
    RacklineSession session;
    RacklineModel model = tiny_model();
    RacklinePoolOptions options = {.publishes_by_layers = 1};
    MUST(rackline_pool_attach(region, 0, &options, &pool));
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    uint8_t block[BLOCK_BYTES] = {0};
    RacklineSource part = {block, BLOCK_BYTES};
    RacklineBlockHash hash = block_hash(0);
    RacklinePublish publish;
    RacklinePublishResult result;
    MUST(rackline_publish(session, &hash, 1, 0, &part, 1, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    MUST(rackline_publish_free(publish));
    RacklineLookup lookup;
    RacklineLookupResult found;
    MUST(rackline_lookup(session, &hash, 1, &lookup));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    MUST(rackline_lookup_free(lookup));
    /* Of two parts, each a layer. */
    const RacklineLayers layers = {2, NULL};
    uint8_t target[BLOCK_BYTES];
    RacklineSource from[2] = {{block, 96}, {block + 96, BLOCK_BYTES - 96}};
    RacklineDestination to[2] = {{target, 96}, {target + 96, BLOCK_BYTES - 96}};
    RacklineBlockHash new_hash = block_hash(1);
    RacklineLayeredPublish by_layers;
    RacklineLayeredFetch fetch;
    MUST(rackline_publish_by_layers(session, &new_hash, 1, 1, from, 2, &layers, &by_layers));
    MUST(rackline_fetch_by_layers(session, found.prefix, 0, 1, to, 2, &layers, &fetch));
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_lookup(session, &hash, 1, &lookup));
    before_fork();
    pid_t number = getpid();
    pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        CHECK((getpid() == number) == (child_node != 0));
        in_a_child(child_node, pool, session, lookup, by_layers, fetch);
        _exit(0);
    }
    must_end_well(child);
    /* The parent continues. */
    MUST(rackline_layered_publish_layer_ready(by_layers, 1));
    MUST(rackline_layered_publish_finish(by_layers));
    MUST(rackline_layered_publish_wait(by_layers, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(result.published == 1);
    MUST(rackline_layered_publish_free(by_layers));
    RacklineFetchResult fetched;
    MUST(rackline_layered_fetch_wait_layer(fetch, 1, RACKLINE_FOREVER_MS));
    MUST(rackline_layered_fetch_wait(fetch, RACKLINE_FOREVER_MS, &fetched));
    CHECK(fetched.valid_blocks == 1);
    MUST(rackline_layered_fetch_free(fetch));
    MUST(rackline_lookup_wait(lookup, RACKLINE_FOREVER_MS, &found));
    CHECK(found.blocks == 1);
    MUST(rackline_prefix_free(found.prefix));
    MUST(rackline_lookup_free(lookup));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
}

static void nothing(void) {}

static void in_a_namespace_of_its_own(void) { CHECK(unshare(CLONE_NEWPID) == 0); }

/* The first process of a namespace has number 1, and so has the first of one in there. (When numbers come
 * around, a descendant of a process that is dead may have its number.) It cannot see its parent, so it
 * is of another node. */
static void of_one_with_the_same_number(void) {
    if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0) {
        puts("cannot");
        return;
    }
    pid_t parent = fork();
    if (parent == 0) {
        alarm(2 * LIMIT_S);
        of_an_attached_process(1, in_a_namespace_of_its_own);
        _exit(0);
    }
    must_end_well(parent);
}

static void *attach(void *argument) {
    RacklinePool pool;
    MUST(rackline_pool_attach(region, 0, NULL, &pool));
    MUST(rackline_pool_close(pool));
    return argument;
}

/* Nothing of its parent keeps the child from being refused, and from attaching by itself. */
static void child_of_one_that_attaches(void) {
    RacklineError outcome = rackline_session_free((RacklineSession){7});
    CHECK(outcome == RACKLINE_ERROR_BAD_HANDLE || outcome == RACKLINE_ERROR_FORKED);
    attach(NULL);
}

static void of_one_that_attaches(void) {
    for (long round = 0; round < ROUNDS; round++) {
        pid_t parent = fork();
        if (parent == 0) {
            alarm(2 * LIMIT_S);
            pthread_t thread;
            CHECK(pthread_create(&thread, NULL, attach, NULL) == 0);
            pause_us(round * 50);
            pid_t child = fork();
            if (child == 0) {
                alarm(LIMIT_S);
                child_of_one_that_attaches();
                _exit(0);
            }
            must_end_well(child);
            CHECK(pthread_join(thread, NULL) == 0);
            _exit(0);
        }
        must_end_well(parent);
    }
}

static atomic_bool is_over;

static void *attach_and_detach(void *argument) {
    while (!is_over) {
        CHECK(cxl_shm_attach(region, 0) == CXL_SHM_ERROR_OK);
        CHECK(cxl_shm_detach() == CXL_SHM_ERROR_OK);
    }
    return argument;
}

static void of_one_with_shared_memory(void) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, attach_and_detach, NULL) == 0);
    for (long round = 0; round < ROUNDS; round++) {
        pause_us(round * 25);
        pid_t child = fork();
        if (child == 0) {
            alarm(LIMIT_S);
            CHECK(cxl_shm_acquire_lock(0) == CXL_SHM_ERROR_NOT_ATTACHED);
            CHECK(cxl_shm_detach() == CXL_SHM_ERROR_NOT_ATTACHED);
            _exit(0);
        }
        must_end_well(child);
    }
    is_over = true;
    CHECK(pthread_join(thread, NULL) == 0);
}

static atomic_bool is_member;
static atomic_bool is_detached;

/* The child has this thread alone, and with it all that is left of the attachment. */
static void *fork_as_the_last(void *argument) {
    /* Who calls is a member. */
    CHECK(cxl_shm_release_lock(0) == CXL_SHM_ERROR_NOT_HELD);
    is_member = true;
    while (!is_detached) {
        pause_us(100);
    }
    pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        /* The end of the thread, which is that of the process. */
        exit(0);
    }
    must_end_well(child);
    return argument;
}

static void of_the_last_thread(void) {
    CHECK(cxl_shm_attach(region, 0) == CXL_SHM_ERROR_OK);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, fork_as_the_last, NULL) == 0);
    while (!is_member) {
        pause_us(100);
    }
    CHECK(cxl_shm_detach() == CXL_SHM_ERROR_OK);
    is_detached = true;
    CHECK(pthread_join(thread, NULL) == 0);
    /* It left, once, and comes again. */
    CHECK(cxl_shm_attach(region, 0) == CXL_SHM_ERROR_OK);
    CHECK(cxl_shm_detach() == CXL_SHM_ERROR_OK);
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: forked REGION attached|attaching|shared|last|number\n");
        return 2;
    }
    region = argv[1];
    if (strcmp(argv[2], "attached") == 0) {
        of_an_attached_process(0, nothing);
    } else if (strcmp(argv[2], "number") == 0) {
        of_one_with_the_same_number();
    } else if (strcmp(argv[2], "attaching") == 0) {
        of_one_that_attaches();
    } else if (strcmp(argv[2], "shared") == 0) {
        of_one_with_shared_memory();
    } else {
        of_the_last_thread();
    }
    return 0;
}
