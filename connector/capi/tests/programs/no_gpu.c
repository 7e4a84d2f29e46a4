/* On a machine without a CUDA driver one clear error says so, and the rest continues: run as
 *
 *     no_gpu REGION */
#include "blocks.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: no_gpu REGION\n");
        return 2;
    }
    RacklinePool pool;
    RacklineSession session;
    RacklineModel model = tiny_model();
    MUST(rackline_pool_attach(argv[1], 0, NULL, &pool));
    MUST(rackline_session_open(pool, &model, BLOCK_BYTES, NULL, &session));
    for (int round = 0; round < 2; round++) {
        RacklineGpu gpu = {7};
        EXPECT(GPU, rackline_gpu_open(pool, 0, &gpu));
        CHECK(gpu.handle == 0);
        CHECK(strstr(rackline_error_message(), "this machine has no CUDA driver") != NULL);
    }
    CHECK(strcmp(rackline_error_name(RACKLINE_ERROR_GPU), "RACKLINE_ERROR_GPU") == 0);
    static uint8_t block[BLOCK_BYTES];
    RacklineSource part = {block, BLOCK_BYTES};
    RacklineBlockHash hash = block_hash(0);
    RacklinePublish publish = {7};
    RacklineGpu none = {0};
    EXPECT(BAD_HANDLE,
           rackline_publish_from_gpu(session, none, NULL, &hash, 1, 0, &part, 1, &publish));
    CHECK(publish.handle == 0);
    RacklinePublishResult result;
    MUST(rackline_publish(session, &hash, 1, 0, &part, 1, &publish));
    MUST(rackline_publish_wait(publish, RACKLINE_FOREVER_MS, &result, NULL, 0));
    CHECK(result.published == 1);
    MUST(rackline_publish_free(publish));
    MUST(rackline_session_free(session));
    MUST(rackline_pool_close(pool));
    return 0;
}
