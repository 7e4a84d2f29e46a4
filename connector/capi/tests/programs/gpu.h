/* What programs share that have blocks in the memory of a GPU. */
#ifndef GPU_H
#define GPU_H

#include "blocks.h"

#include <cuda.h>

static inline void cuda_must(CUresult result, const char *what, int line) {
    if (result != CUDA_SUCCESS) {
        fprintf(stderr, "line %d: %s: the driver says %d\n", line, what, result);
        exit(1);
    }
}
#define CUDA(call) cuda_must(call, #call, __LINE__)

/* This thread's context is that of GPU 0 from now on. */
static inline CUdevice use_gpu(void) {
    CUdevice device;
    CUcontext context;
    CUDA(cuInit(0));
    CUDA(cuDeviceGet(&device, 0));
    CUDA(cuDevicePrimaryCtxRetain(&context, device));
    CUDA(cuCtxSetCurrent(context));
    return device;
}

/* The parts of `count` blocks that lie one after the other in the GPU's memory. */
static inline void gpu_sources(RacklineSource *parts, CUdeviceptr memory, size_t count) {
    scatter_sources(parts, (const uint8_t *)memory, count);
}

static inline void gpu_destinations(RacklineDestination *parts, CUdeviceptr memory, size_t count) {
    scatter_destinations(parts, (uint8_t *)memory, count);
}

/* The stream writes block `number` to the place `at`; later, if somebody waits for that. */
static inline void compute(CUstream stream, CUdeviceptr memory, size_t at, uint32_t number) {
    static uint8_t block[BLOCK_BYTES];
    fill_block(block, number);
    CUDA(cuMemcpyHtoDAsync(memory + at * BLOCK_BYTES, block, BLOCK_BYTES, stream));
}

/* Whether what the stream finds at the place `at` is block `number`. */
static inline int is_on_gpu(CUstream stream, CUdeviceptr memory, size_t at, uint32_t number) {
    static uint8_t block[BLOCK_BYTES];
    CUDA(cuMemcpyDtoHAsync(block, memory + at * BLOCK_BYTES, BLOCK_BYTES, stream));
    CUDA(cuStreamSynchronize(stream));
    return is_block(block, number);
}

#endif
