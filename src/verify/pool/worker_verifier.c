/* The verifier as a worker's judge. It compiles and tests while it shares the machine's lease with other workers, and
 * has that lease alone while it measures. Of a GPU it has the lease for as long as it lives: a slot is one GPU. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "verify/host_lease.h"
#include "verify/pool/worker.h"

/* A machine on which times cannot be measured for that long is in trouble. */
static const double lease_wait_s = 120;

static struct {
    const struct worker_options *o;
    struct verifier *v;
    struct host_lease lease;
    bool on_gpu, has_lease; /* has_lease: it is open, and of a GPU it is taken */
    bool in_batch;          /* it is shared while nothing is measured */
    bool disturbed;
} mine = {.lease = HOST_LEASE_NONE};

static void quiet(void *ctx, bool on) {
    (void)ctx;
    if (mine.on_gpu) return;
    if (on)
        mine.disturbed |= !host_lease_take(&mine.lease, lease_wait_s);
    else if (!mine.in_batch)
        host_lease_release(&mine.lease);
    else if (!host_lease_share(&mine.lease, lease_wait_s))
        log_warn("%s: others have it for more than %.0f s", mine.lease.path, lease_wait_s);
}

static void give_lease_up(void) {
    if (mine.has_lease) host_lease_close(&mine.lease);
    mine.has_lease = false;
}

static enum status have_lease(const struct verify_options *o, struct err *e) {
    const bool on_gpu = strncmp(o->device, "cuda", 4) == 0;
    char name[GPU_ID_BYTES + 8] = "cpu";
    if (mine.has_lease && mine.on_gpu == on_gpu) return ST_OK;
    give_lease_up();
    if (on_gpu && !mine.o->gpu) return FAIL(e, ST_DEVICE, "this slot has no GPU");
    if (on_gpu) snprintf(name, sizeof name, "gpu-%s", mine.o->gpu);
    TRY(host_lease_open(name, &mine.lease, e));
    mine.on_gpu = on_gpu;
    mine.has_lease = true;
    if (!on_gpu || host_lease_take(&mine.lease, 1)) return ST_OK;
    (void)FAIL(e, ST_DEVICE, "GPU %s: another process judges on it (%s)", mine.o->gpu, mine.lease.path);
    give_lease_up();
    return e->code;
}

static enum status batch(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e) {
    if (!mine.on_gpu && !host_lease_share(&mine.lease, lease_wait_s))
        return FAIL(e, ST_TIMEOUT, "%s: another process has it for more than %.0f s", mine.lease.path, lease_wait_s);
    mine.in_batch = true;
    mine.disturbed = false;
    const enum status st = verify_batch(ctx, items, n, cancel, e);
    mine.in_batch = false;
    if (!mine.on_gpu) host_lease_release(&mine.lease);
    return st;
}

static void close_verifier(void *ctx) {
    (void)ctx;
    verifier_close(mine.v);
    mine.v = NULL;
}

static enum status open_verifier(void *ctx, const struct verify_options *o, struct judge *out, struct err *e) {
    struct verify_options with = *o;
    (void)ctx;
    TRY(have_lease(o, e));
    with.quiet = quiet;
    TRY(verifier_open(&with, &mine.v, e));
    *out = judge_by(mine.v);
    out->batch = batch;
    return ST_OK;
}

/* A call of some milliseconds on a CPU, and of a quarter of one on a GPU: 16 and 256 MB in and out. */
static const char probe_code[] = "import torch\n"
                                 "import torch.nn as nn\n\n\n"
                                 "class Model(nn.Module):\n"
                                 "    def forward(self, x):\n"
                                 "        return torch.tanh(x) * 0.5 + x\n\n\n"
                                 "def get_inputs():\n"
                                 "    return [torch.rand(%d, 1024)]\n\n\n"
                                 "def get_init_inputs():\n"
                                 "    return []\n";

static enum status probe(void *ctx, const struct verify_options *o, double *ratio, struct err *e) {
    char code[sizeof probe_code + 20], answer[sizeof code + 40];
    struct verify_options with = *o;
    struct verifier *v;
    (void)ctx;
    snprintf(code, sizeof code, probe_code, mine.on_gpu ? 65536 : 4096);
    snprintf(answer, sizeof answer, "%s\n\nModelNew = Model\n", code);
    with.backend = mine.on_gpu ? BACKEND_cuda : BACKEND_torch_cpu;
    with.scoring = SCORING_HARDENED;
    with.timing_method = TIMING_interleaved;
    with.precision = NULL;
    with.trials = 1;
    with.interval = 0.02;
    with.timing_budget_s = 10;
    with.timed_calls = with.warm_calls = 0;
    with.trim = 0;
    with.measure = with.allow_library = with.single_input = true;
    with.lint_strict = false;
    with.quiet = quiet;
    TRY(verifier_open(&with, &v, e));
    const struct problem p = {.key = "probe", .name = "probe", .code = code};
    struct verify_item item = {.problem = &p, .source = answer};
    enum status st = verify_batch(v, &item, 1, NULL, e);
    verifier_close(v);
    TRY(st);
    *ratio = item.verdict.speedup;
    if (*ratio > 0) return ST_OK;
    return FAIL(e, ST_FAILED, "%s: %.300s", outcome_name(item.verdict.outcome), item.verdict.message);
}

static bool disturbed(void *ctx) {
    (void)ctx;
    return mine.disturbed;
}

struct worker_judge worker_verifier(const struct worker_options *o) {
    mine.o = o;
    return (struct worker_judge){
        .open = open_verifier, .close = close_verifier, .probe = probe, .disturbed = disturbed};
}
