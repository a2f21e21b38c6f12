/* A worker that judges nothing (src/verify/pool/test_stand_in.h): `stand_in verify-worker ...` is `kernelrl
 * verify-worker
 * ...` in all but that, and `stand_in verifiers ...` is `kernelrl verifiers ...`. Tests put it in the place of a remote
 * program; the product has no way to it. */
#include "verify/pool/test_stand_in.h"

#include "cli/cli.h"

int main(int argc, char **argv) {
    const struct worker_judge judge = stand_in_worker();
    signal(SIGPIPE, SIG_IGN);
    if (argc > 1 && strcmp(argv[1], "verify-worker") == 0) return verify_worker_with(argc - 1, argv + 1, &judge);
    if (argc > 1 && strcmp(argv[1], "verifiers") == 0) return cmd_verifiers(argc - 1, argv + 1);
    fprintf(stderr, "usage: stand_in verify-worker [FLAG]...\n");
    return 2;
}
