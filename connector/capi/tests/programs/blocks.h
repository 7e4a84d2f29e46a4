/* What the programs of the tests share: the blocks they publish, and what they do when something is
 * not as it should be. */
#ifndef BLOCKS_H
#define BLOCKS_H

#include "rackline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 4196
/* A block lies scattered in three parts. */
#define PARTS 3
static const size_t PART_BYTES[PARTS] = {1, 4000, 195};
static const size_t PART_OFFSETS[PARTS] = {4195, 0, 4000};

#define MUST(call) must(call, #call, __LINE__)
#define EXPECT(code, call) expect(RACKLINE_ERROR_##code, call, #call, __LINE__)
#define CHECK(truth) check(truth, #truth, __LINE__)

static inline void must(RacklineError outcome, const char *what, int line) {
    if (outcome != RACKLINE_ERROR_OK) {
        fprintf(stderr, "line %d: %s: %s: %s\n", line, what, rackline_error_name(outcome),
                rackline_error_message());
        exit(1);
    }
}

/* An error must have that code, and a message. */
static inline void expect(RacklineError code, RacklineError outcome, const char *what, int line) {
    if (outcome != code || rackline_error_message()[0] == '\0') {
        fprintf(stderr, "line %d: %s: %s and not %s\n", line, what, rackline_error_name(outcome),
                rackline_error_name(code));
        exit(1);
    }
}

static inline void check(int truth, const char *what, int line) {
    if (!truth) {
        fprintf(stderr, "line %d: not true: %s (last message: %s)\n", line, what,
                rackline_error_message());
        exit(1);
    }
}

static inline RacklineModel tiny_model(void) {
    RacklineModel model;
    memset(&model, 0, sizeof model);
    model.name = "tiny";
    model.revision = "1";
    model.dtype = "f16";
    model.block_tokens = 16;
    model.layers = 2;
    model.kv_heads = 1;
    model.head_dim = 64;
    return model;
}

static inline RacklineBlockHash block_hash(uint32_t number) {
    RacklineBlockHash hash;
    memset(hash.bytes, 0x5a, sizeof hash.bytes);
    for (int i = 0; i < 4; i++) {
        hash.bytes[i] = (uint8_t)(number >> (8 * i));
    }
    return hash;
}

/* The byte at `at` of block `number`. */
static inline uint8_t block_byte(uint32_t number, size_t at) {
    return (uint8_t)(number * 31 + (number >> 8) * 7 + at * 13 + at / 251);
}

static inline void fill_block(uint8_t *block, uint32_t number) {
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        block[i] = block_byte(number, i);
    }
}

static inline int is_block(const uint8_t *block, uint32_t number) {
    for (size_t i = 0; i < BLOCK_BYTES; i++) {
        if (block[i] != block_byte(number, i)) {
            return 0;
        }
    }
    return 1;
}

/* The parts of `count` blocks that lie one after the other in `memory`: in the pool the bytes of a
 * block have another order than in memory. */
static inline void scatter_sources(RacklineSource *parts, const uint8_t *memory, size_t count) {
    for (size_t i = 0; i < count * PARTS; i++) {
        parts[i].address = memory + i / PARTS * BLOCK_BYTES + PART_OFFSETS[i % PARTS];
        parts[i].bytes = PART_BYTES[i % PARTS];
    }
}

static inline void scatter_destinations(RacklineDestination *parts, uint8_t *memory, size_t count) {
    for (size_t i = 0; i < count * PARTS; i++) {
        parts[i].address = memory + i / PARTS * BLOCK_BYTES + PART_OFFSETS[i % PARTS];
        parts[i].bytes = PART_BYTES[i % PARTS];
    }
}

#endif
