/* What a caller of the driver must not do, and that the stand-in for it notices. Each case is a process of
 * its own: a GPU that is broken stays so.
 *
 *     misuse CASE      exit status 0 when it was noticed, and the same without the mistake is not refused
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int CUresult;
typedef uint64_t CUdeviceptr;
CUresult cuInit(unsigned);
CUresult cuDevicePrimaryCtxRetain(void **, int);
CUresult cuCtxSetCurrent(void *);
CUresult cuStreamCreate(void **, unsigned);
CUresult cuStreamSynchronize(void *);
CUresult cuMemAlloc_v2(CUdeviceptr *, size_t);
CUresult cuMemHostRegister_v2(void *, size_t, unsigned);
CUresult cuMemHostUnregister(void *);
CUresult cuMemcpyAsync(CUdeviceptr, CUdeviceptr, size_t, void *);

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "line %d: %s\n", __LINE__, #condition); exit(1); } } while (0)
#define PIECE ((size_t)1 << 20)

static uint8_t *pool;
static CUdeviceptr memory;
static void *stream;

static CUresult registered(size_t piece) { return cuMemHostRegister_v2(pool + piece * PIECE, PIECE, 3); }
static CUresult copied(size_t offset, size_t bytes) {
    return cuMemcpyAsync((CUdeviceptr)(pool + offset), memory, bytes, stream);
}

static void outside(void) {
    CHECK(registered(0) == 0);
    CHECK(copied(PIECE - 64, 64) == 0);
    CHECK(copied(PIECE, 64) != 0);
    CHECK(cuMemHostUnregister(pool + PIECE) != 0);
}

static void across_two(void) {
    CHECK(registered(0) == 0 && registered(1) == 0);
    CHECK(copied(PIECE - 64, 64) == 0 && copied(PIECE, 64) == 0);
    CHECK(copied(PIECE - 64, 128) != 0);
}

static void twice(void) {
    CHECK(registered(0) == 0);
    CHECK(registered(0) != 0);
    CHECK(cuMemHostRegister_v2(pool + PIECE / 2, PIECE, 3) != 0);
    CHECK(cuMemHostUnregister(pool) == 0);
    CHECK(registered(0) == 0);
}

static void waited_for(void) {
    CHECK(registered(0) == 0);
    CHECK(copied(0, 64) == 0);
    CHECK(cuStreamSynchronize(stream) == 0);
    CHECK(cuMemHostUnregister(pool) == 0);
    CHECK(cuStreamSynchronize(stream) == 0);
}

static void under_a_copy(void) {
    CHECK(registered(0) == 0 && registered(1) == 0);
    CHECK(copied(0, 64) == 0);
    CHECK(cuMemHostUnregister(pool) == 0);
    CHECK(cuStreamSynchronize(stream) != 0);
    CHECK(pool[0] == 0);
    CHECK(copied(PIECE, 64) != 0);
}

int main(int argc, char **argv) {
    void *context;
    CHECK(argc == 2);
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuStreamCreate(&stream, 1) == 0 && cuMemAlloc_v2(&memory, PIECE) == 0);
    pool = aligned_alloc(PIECE, 4 * PIECE);
    memset(pool, 0, 4 * PIECE);
    const struct { const char *name; void (*run)(void); } cases[] = {
        {"outside", outside}, {"across-two", across_two}, {"twice", twice}, {"waited-for", waited_for},
        {"under-a-copy", under_a_copy},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(argv[1], cases[i].name)) return cases[i].run(), 0;
    return 2;
}
