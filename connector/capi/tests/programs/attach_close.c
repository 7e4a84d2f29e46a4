/* Attaches and leaves, and says so on standard output: run as
 *
 *     attach_close REGION */
#include "blocks.h"

int main(int argc, char **argv) {
    if (argc != 2) {
        return 2;
    }
    RacklinePool pool;
    MUST(rackline_pool_attach(argv[1], 0, NULL, &pool));
    MUST(rackline_pool_close(pool));
    puts("left");
    return 0;
}
