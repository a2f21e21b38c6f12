/* kernelrl selfcheck ops: every op of a device against the contract of tensor/ops.h. Modes: check (values), grad
 * (finite differences), invariance (bits over batch sizes and threads), perf (time beside the machine's limits).
 * Without --mode the first three. The last line is "N passed, N failed[, N skipped]". */
#include "cli/selfcheck_ops.h"

#include <string.h>

#include "base/str.h"
#include "opcheck/opcheck.h"

struct ops_args {
    struct opcheck_options o;
    int mode; /* -1: none was given */
};

#define A struct ops_args
static const struct args_flag flags[] = {
    FLAG_TEXT(A, o.op, "op", "NAME", "all", "Only this op is checked."),
    FLAG_CHOICE(A, mode, "mode", "M", "check|grad|invariance|perf", "the first three",
                "Values, gradients, bits over batch sizes and threads, or the time beside the machine's limits."),
    FLAG_TEXT(A, o.device, "device", "NAME", "cpu", "The device: cpu, cuda or cuda:N.", .valid = backend_device_valid,
              .expected = "cpu, cuda or cuda:N"),
    FLAG_INT(A, o.threads, "threads", "K", 1, 1024, "all CPUs", "So many threads work."),
    FLAG_BOOL(A, o.quick, "quick", "Fewer and smaller cases are checked."),
    FLAG_BOOL(A, o.json, "json", "Each result is one JSON object a line."),
};

const struct args_command ops_command = {
    .name = "selfcheck ops",
    .usage = "[FLAG]...",
    .about = "Checks every op of a device against its contract (src/tensor/ops.h).",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

int selfcheck_ops(int argc, char **argv) {
    struct ops_args a = {.o = {.device = "cpu", .out = stdout}, .mode = -1};
    struct args given;
    struct opcheck_tally t = {0};
    struct err e = {0};
    if (!args_parse(&ops_command, argc, argv, &a, &given)) return given.code;
    a.o.modes = a.mode < 0 ? OPCHECK_CHECK | OPCHECK_GRAD | OPCHECK_INVARIANCE : 1u << a.mode;
    if (opcheck_run(&a.o, &t, &e) != ST_OK) return args_report(&e);
    if (a.o.json)
        printf("{\"passed\": %d, \"failed\": %d, \"skipped\": %d}\n", t.passed, t.failed, t.skipped);
    else if (t.skipped)
        printf("%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped);
    else
        printf("%d passed, %d failed\n", t.passed, t.failed);
    return t.failed > 0;
}
