/* Two processes of two nodes over one region: run as
 *
 *     two_processes REGION NODE write|read|count|fork|die ROUNDS
 *
 * "write" makes an object, fills it, and names it; "read" finds it by its name, mapped at another
 * address, checks it and frees it; "count" adds one to a counter ROUNDS times under a lock; "fork" holds that
 * lock while a child that it forked ends; "die" comes after a process of the same node that died with that lock. */
#define _GNU_SOURCE
#include "cxl_shm.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS 1000

typedef struct {
    uint64_t words[WORDS];
    uint64_t counter;
    uint32_t lock;
} board;

static void must(CxlShmError outcome, const char *what) {
    if (outcome != CXL_SHM_ERROR_OK) {
        fprintf(stderr, "%s: %s\n", what, cxl_shm_last_error());
        exit(1);
    }
}

static void expect(CxlShmError expected, CxlShmError outcome, const char *what) {
    if (outcome != expected || cxl_shm_last_error()[0] == '\0') {
        fprintf(stderr, "%s: expected %d, got %d\n", what, (int)expected, (int)outcome);
        exit(1);
    }
}

static board *find(void) {
    board *found = cxl_shm_get("board");
    if (found == NULL) {
        fprintf(stderr, "get: %s\n", cxl_shm_last_error());
        exit(1);
    }
    must(cxl_shm_refresh(found, sizeof *found), "refresh");
    return found;
}

static void say_place(const char *who, const board *where) {
    printf("%s %p %" PRIu64 "\n", who, (void *)where, cxl_shm_get_offset(where));
}

static void write_board(void) {
    board *made = shmalloc(sizeof *made);
    if (made == NULL) {
        fprintf(stderr, "shmalloc: %s\n", cxl_shm_last_error());
        exit(1);
    }
    for (uint64_t i = 0; i < WORDS; i++) {
        made->words[i] = i * i;
    }
    made->counter = 0;
    must(cxl_shm_allocate_lock(&made->lock), "allocate_lock");
    must(cxl_shm_publish(made, sizeof *made), "publish");
    must(cxl_shm_put("board", made), "put");
    expect(CXL_SHM_ERROR_EXISTS, cxl_shm_put("board", made), "put again");
    say_place("written", made);
}

static void count(uint64_t rounds) {
    board *shared = find();
    uint32_t lock = shared->lock;
    for (uint64_t i = 0; i < rounds; i++) {
        must(cxl_shm_acquire_lock(lock), "acquire");
        must(cxl_shm_refresh(&shared->counter, sizeof shared->counter), "refresh");
        shared->counter++;
        must(cxl_shm_publish(&shared->counter, sizeof shared->counter), "publish");
        must(cxl_shm_release_lock(lock), "release");
    }
    say_place("counted", shared);
}

/* The lock is refused to this thread: another one of the process holds it. */
static void *want(void *lock) {
    expect(CXL_SHM_ERROR_LOCK, cxl_shm_acquire_lock_within(*(uint32_t *)lock, 200), "a held lock");
    return NULL;
}

static void fork_with_a_lock(void) {
    board *shared = find();
    uint32_t lock = shared->lock;
    must(cxl_shm_acquire_lock(lock), "acquire");
    pid_t child = fork();
    if (child == 0) {
        expect(CXL_SHM_ERROR_NOT_ATTACHED, cxl_shm_release_lock(lock), "release in a child");
        /* With all that runs at the end of a thread, and of a process. */
        exit(0);
    }
    int status = 0;
    pthread_t thread;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0
        || pthread_create(&thread, NULL, want, &lock) != 0 || pthread_join(thread, NULL) != 0) {
        fprintf(stderr, "the child, or a thread: status %d\n", status);
        exit(1);
    }
    must(cxl_shm_release_lock(lock), "release");
    say_place("forked", shared);
}

/* A child that was forked before anything was attached dies with the lock in hand. */
static void die_with_a_lock(const char *region, int node) {
    pid_t child = fork();
    if (child == 0) {
        must(cxl_shm_attach(region, (uint16_t)node), "attach to die");
        board *shared = find();
        must(cxl_shm_acquire_lock(shared->lock), "acquire to die");
        shared->words[1] = 77;
        raise(SIGKILL);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) {
        fprintf(stderr, "the child did not die: status %d\n", status);
        exit(1);
    }
}

/* Each holder is told, until one says that what the lock protects is consistent. */
static void come_after_the_dead(void) {
    board *shared = find();
    uint32_t lock = shared->lock;
    expect(CXL_SHM_ERROR_HOLDER_DIED, cxl_shm_acquire_lock(lock), "acquire after a death");
    must(cxl_shm_release_lock(lock), "release after a death");
    expect(CXL_SHM_ERROR_HOLDER_DIED, cxl_shm_acquire_lock_within(lock, 10000), "acquire again");
    must(cxl_shm_refresh(shared, sizeof *shared), "refresh");
    shared->words[1] = 1;
    must(cxl_shm_publish(shared, sizeof *shared), "publish");
    must(cxl_shm_lock_is_consistent(lock), "consistent");
    must(cxl_shm_release_lock(lock), "release");
    expect(CXL_SHM_ERROR_NOT_HELD, cxl_shm_lock_is_consistent(lock), "consistent, and not held");
    must(cxl_shm_acquire_lock(lock), "acquire what was repaired");
    must(cxl_shm_release_lock(lock), "release what was repaired");
    say_place("repaired", shared);
}

static void read_board(void) {
    board *found = find();
    for (uint64_t i = 0; i < WORDS; i++) {
        if (found->words[i] != i * i) {
            fprintf(stderr, "word %" PRIu64 " is %" PRIu64 "\n", i, found->words[i]);
            exit(1);
        }
    }
    say_place("read", found);
    if (cxl_shm_get_ptr(cxl_shm_get_offset(found)) != (void *)found) {
        fprintf(stderr, "offset and address do not fit each other\n");
        exit(1);
    }
    printf("counter %" PRIu64 "\n", found->counter);

    /* What cannot work is an error, and changes nothing. */
    int elsewhere = 0;
    expect(CXL_SHM_ERROR_BAD_ARGUMENT, shfree(&elsewhere), "free of a foreign pointer");
    expect(CXL_SHM_ERROR_BAD_ARGUMENT, cxl_shm_publish(&elsewhere, 4), "publish of one");
    expect(CXL_SHM_ERROR_NOT_HELD, cxl_shm_release_lock(found->lock), "release of a free lock");
    expect(CXL_SHM_ERROR_BAD_ARGUMENT, cxl_shm_acquire_lock(0), "a lock of the region's own");
    expect(CXL_SHM_ERROR_NOT_FOUND, cxl_shm_destroy("nobody"), "destroy of nothing");
    expect(CXL_SHM_ERROR_BAD_ARGUMENT, cxl_shm_destroy(NULL), "destroy of null");
    if (cxl_shm_get("nobody") != NULL || shmalloc(SIZE_MAX / 2) != NULL) {
        fprintf(stderr, "there is something where nothing is\n");
        exit(1);
    }

    uint32_t lock = found->lock;
    must(cxl_shm_destroy("board"), "destroy");
    must(cxl_shm_free_lock(lock), "free_lock");
    expect(CXL_SHM_ERROR_NOT_FOUND, cxl_shm_free_lock(lock), "free_lock again");
    if (cxl_shm_get("board") != NULL) {
        fprintf(stderr, "the board is still there\n");
        exit(1);
    }
}

int main(int argc, char **argv) {
    if (argc != 5) {
        fprintf(stderr, "usage: two_processes REGION NODE write|read|count|fork|die ROUNDS\n");
        return 2;
    }
    int node = atoi(argv[2]);
    expect(CXL_SHM_ERROR_NOT_ATTACHED, cxl_shm_publish(&node, 4), "publish before attach");
    /* Another process maps the region somewhere else, also where addresses are not random. */
    size_t shift = (size_t)(node + 1) << 30;
    if (mmap(NULL, shift, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
        == MAP_FAILED) {
        perror("mmap");
        return 1;
    }
    if (strcmp(argv[3], "die") == 0) {
        die_with_a_lock(argv[1], node);
    }
    must(cxl_shm_attach(argv[1], (uint16_t)node), "attach");
    expect(CXL_SHM_ERROR_BAD_ARGUMENT, cxl_shm_attach(argv[1], 0), "attach again");
    if (strcmp(argv[3], "write") == 0) {
        write_board();
    } else if (strcmp(argv[3], "count") == 0) {
        count(strtoull(argv[4], NULL, 10));
    } else if (strcmp(argv[3], "fork") == 0) {
        fork_with_a_lock();
    } else if (strcmp(argv[3], "die") == 0) {
        come_after_the_dead();
    } else {
        read_board();
    }
    must(cxl_shm_detach(), "detach");
    return 0;
}
