/* What programs share that transfer blocks by layers. */
#ifndef LAYERS_H
#define LAYERS_H

#include "blocks.h"

/* Each part is a layer; or the first two parts are layer 0, and the third is layer 1. */
static const size_t TWO_AND_ONE[] = {2, 1};
static const RacklineLayers EACH_PART = {PARTS, NULL}, IN_TWO = {2, TWO_AND_ONE};

/* The first part of a layer, and the one behind its last. */
static inline void parts_of(const RacklineLayers *layers, size_t layer, size_t *first, size_t *end) {
    *first = *end = 0;
    for (size_t i = 0; i <= layer; i++) {
        *first = *end;
        *end += layers->parts_of_layer != NULL ? layers->parts_of_layer[i] : PARTS / layers->count;
    }
}

static inline void write_layer(uint8_t *block, uint32_t number, const RacklineLayers *layers,
                               size_t layer) {
    size_t first, end;
    parts_of(layers, layer, &first, &end);
    for (size_t part = first; part < end; part++) {
        for (size_t i = 0; i < PART_BYTES[part]; i++) {
            block[PART_OFFSETS[part] + i] = block_byte(number, PART_OFFSETS[part] + i);
        }
    }
}

static inline int has_layer(const uint8_t *block, uint32_t number, const RacklineLayers *layers,
                            size_t layer) {
    size_t first, end;
    parts_of(layers, layer, &first, &end);
    for (size_t part = first; part < end; part++) {
        for (size_t i = 0; i < PART_BYTES[part]; i++) {
            if (block[PART_OFFSETS[part] + i] != block_byte(number, PART_OFFSETS[part] + i)) {
                return 0;
            }
        }
    }
    return 1;
}

#endif
