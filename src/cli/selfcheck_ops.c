/* kernelrl selfcheck ops: every op of a device against the contract of tensor/ops.h. Modes: check (values), grad
 * (finite differences), invariance (bits over batch sizes and threads), perf (time beside the machine's limits).
 * Without --mode the first three. The last line is "N passed, N failed[, N skipped]". */
#include "cli/selfcheck_ops.h"

#include <getopt.h>
#include <string.h>

#include "base/str.h"
#include "cli/cli.h"
#include "opcheck/opcheck.h"

static const char usage[] = "selfcheck ops [--op NAME] [--mode check|grad|invariance|perf] [--device cpu|cuda|cuda:N]\n"
                            "       [--threads K] [--quick] [--json]";

static unsigned mode_named(const char *s) {
    static const char *const names[] = {"check", "grad", "invariance", "perf"};
    for (unsigned i = 0; i < ARRAY_LEN(names); i++)
        if (strcmp(s, names[i]) == 0) return 1u << i;
    return 0;
}

int selfcheck_ops(int argc, char **argv) {
    static const struct option longs[] = {{"op", required_argument, NULL, 'o'},
                                          {"mode", required_argument, NULL, 'm'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"threads", required_argument, NULL, 't'},
                                          {"quick", no_argument, NULL, 'q'},
                                          {"json", no_argument, NULL, 'j'},
                                          {NULL, 0, NULL, 0}};
    struct opcheck_options o = {
        .device = "cpu", .modes = OPCHECK_CHECK | OPCHECK_GRAD | OPCHECK_INVARIANCE, .out = stdout};
    struct opcheck_tally t = {0};
    struct err e = {0};
    int64_t threads = 0;
    optind = 0; /* getopt starts over */
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) switch (c) {
        case 'o': o.op = optarg; break;
        case 'm':
            if ((o.modes = mode_named(optarg)) == 0) return cli_usage(usage);
            break;
        case 'd':
            if (!backend_device_valid(o.device = optarg)) return cli_usage(usage);
            break;
        case 't':
            if (!parse_i64(optarg, &threads) || threads < 1 || threads > 1024) return cli_usage(usage);
            break;
        case 'q': o.quick = true; break;
        case 'j': o.json = true; break;
        default: return cli_usage(usage);
        }
    if (optind != argc) return cli_usage(usage);
    o.threads = (int)threads;
    if (opcheck_run(&o, &t, &e) != ST_OK) return args_report(&e);
    if (o.json)
        printf("{\"passed\": %d, \"failed\": %d, \"skipped\": %d}\n", t.passed, t.failed, t.skipped);
    else if (t.skipped)
        printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped);
    else
        printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed > 0;
}
