#include "verify/torch/reference.h"

#include "verify/torch/load.h"
#include "verify/torch/process.h"
#include "verify/torch/request.h"

void reference_drop(struct module_judge *j) {
    if (j->reference.outer > 0) modrun_end(&j->reference, NULL, NULL, NULL, 0);
    if (j->current) modcase_close_lane(&j->cases, j->current, LANE_REFERENCE);
    j->current = NULL;
}

bool reference_up(struct torch_answer *answer, struct torch_answer *ref, struct err *e, enum status *st) {
    struct module_judge *j = answer->j;
    *st = ST_OK;
    if (j->current == answer->c && j->reference.outer > 0) {
        ref->process.run = j->reference;
        ref->process.up = true;
        return true;
    }
    reference_drop(j);
    if (answer->process.up) modrun_pause(&answer->process.run);
    *st = modcase_open_lane(&j->cases, answer->c, LANE_REFERENCE, e);
    if (*st == ST_OK) *st = run_fork(ref, e);
    if (*st != ST_OK) return false;
    /* The module is in training mode, and its parameters are as initialised, because KernelBench times it so. */
    if (!run_load(ref, answer->c->code, false) || !run_attach(ref, LANE_REFERENCE) || !run_build(ref, 0)) {
        *st = FAIL(e, ST_INVALID, "the reference: %s", ref->out->message);
        run_end(ref);
        return false;
    }
    j->current = answer->c;
    j->reference = ref->process.run;
    return true;
}
