#include "verify/torch/rest.h"

#include <stdlib.h>

#include "base/log.h"
#include "verify/torch/process.h"
#include "verify/torch/reference.h"
#include "verify/torch/request.h"

/* A lane that is larger than this does not outlive the batch that it was made for. */
static const int64_t most_lane_bytes = (int64_t)8 << 30;

static void give_back(struct module_judge *j) {
    CLEANUP_JSON json_t *reply = NULL;
    struct err e = {0};
    if (!on_gpu(j)) return;
    if (j->reference.outer > 0 && j->current && j->current->lane_bytes > most_lane_bytes) reference_drop(j);
    if (j->reference.outer > 0) {
        CLEANUP_STR struct str q = STR_INIT;
        run_open_request(&q, "rest");
        if (modrun_call(&j->reference, &q, -1, 60, &reply, NULL) != MODRUN_OK) reference_drop(j);
        json_decref(reply);
        reply = NULL;
    }
    if (modcases_rest(&j->cases, &j->rest.held_bytes, &e) != ST_OK) log_debug("%s", e.msg);
}

static void *rest_main(void *v) {
    struct module_judge *j = v;
    if (j->rest.last) run_finish(j->rest.last);
    give_back(j);
    return NULL;
}

void module_rested(struct module_judge *j) {
    if (j->rest.is_running) pthread_join(j->rest.thread, NULL);
    j->rest.is_running = false;
    free(j->rest.last);
    j->rest.last = NULL;
}

/* A driver takes a tenth of a second to end a process. Whoever has the verdict does not wait for that. */
void module_begin_rest(struct module_judge *j) {
    if (on_gpu(j)) j->rest.is_running = pthread_create(&j->rest.thread, NULL, rest_main, j) == 0;
    if (j->rest.is_running) return;
    rest_main(j);
    module_rested(j);
}
