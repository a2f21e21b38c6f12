#include "verify/torch/process.h"

#include <math.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "base/hash.h"
#include "base/log.h"
#include "verify/torch/spares.h"

static uint64_t nonce_key(struct torch_answer *r) {
    return hmac_u64(r->random, "nonces", ++r->process.started, NULL, 0);
}

/* An answer that asks for objects to be compiled, and reads no reply, fills its socket. Sending to such an answer then
 * fails after this time. Without the limit, sending would wait until the answer reads. */
static void stop_waiting_for_room(const struct modrun *m, double seconds) {
    const struct timeval most = {.tv_sec = (time_t)ceil(seconds)};
    if (setsockopt(m->socket, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most) != 0) log_debug("SO_SNDTIMEO is refused");
}

enum status run_fork(struct torch_answer *r, struct err *e) {
    struct modrun_options mo = module_process_options(r->j, on_gpu(r->j) ? NULL : r->c);
    enum status st = ST_OK;
    if (r->process.never_spare || !spares_take(r->j, &r->process.run, nonce_key(r))) {
        st = modrun_start(&r->process.run, &r->j->zygote, &mo, nonce_key(r), e);
        if (st == ST_SANDBOX || st == ST_WORKER)
            st = modrun_start(&r->process.run, &r->j->zygote, &mo, nonce_key(r), e);
    }
    r->process.up = st == ST_OK;
    if (r->process.up) stop_waiting_for_room(&r->process.run, r->j->o->run_timeout_s);
    /* We wait for replies without sleeping only where there are so many processors that neither the answer nor the
     * system misses the one that this takes. */
    r->process.run.spin = module_cpus(r->j) >= (on_gpu(r->j) ? GPU_CPUS : r->j->o->threads + 3);
    return st;
}

void run_end(struct torch_answer *r) {
    if (r->process.up) modrun_end(&r->process.run, NULL, NULL, NULL, 0);
    r->process.up = false;
}

void run_retire(struct torch_answer *r) {
    if (r->process.up && on_gpu(r->j)) modcase_let_go(&r->j->cases);
    run_end(r);
}

void run_finish(struct torch_answer *r) {
    run_retire(r);
    kernel_names_free(&r->kernels);
    json_decref(r->process.segments);
    json_decref(r->interface);
    r->process.segments = r->interface = NULL;
    /* The lane's memory goes, too. An answer can write there: other parameters, or what it wants to tell the next
     * answer. */
    if (r->c) modcase_close_lane(&r->j->cases, r->c, LANE_ANSWER);
}
