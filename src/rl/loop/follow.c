#include "rl/loop/follow.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"

enum status follow_open(const char *ranks, double peer_timeout, const char *resolved_yaml, struct backend *be,
                        struct comm **out, struct err *e) {
    const struct comm_options co = {.peer_timeout_s = peer_timeout};
    CLEANUP_STR struct str mine = STR_INIT;
    TRY(comm_open(ranks, &co, out, e));
    ranks_fingerprint(be, &mine);
    str_addf(&mine, "configuration: %016llx\n",
             (unsigned long long)hash_bytes(resolved_yaml, strlen(resolved_yaml), 0));
    TRY(ranks_compare(*out, &mine, e));
    CLEANUP_STR struct str how = STR_INIT;
    TRY(ranks_join_devices(*out, be, &how, e));
    if ((*out)->size > 1) log_info("%d ranks over %s; gradients by %s", (*out)->size, (*out)->library, str_c(&how));
    return ST_OK;
}

void follow_ignore_signals(void) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
}

void follow_dismiss(struct comm *c, enum status st) {
    struct err e;
    if (st == ST_LOST || command_give(c, RANK_QUIT, NULL, &e) != ST_OK) c->abort(c, COMM_LOST_EXIT);
}

enum status follow_run(const struct train_options *o, const char *resolved_yaml, struct err *e) {
    struct session s = {0};
    struct comm *c = NULL;
    struct trainer *t = NULL;
    enum status st;
    follow_ignore_signals();
    TRY_GOTO(session_open_policy(o, &s, e), out);
    TRY_GOTO(follow_open(o->ranks, o->peer_timeout, resolved_yaml, s.policy.be, &c, e), out);
    st = trainer_prepare(c, s.policy.model, o->lora_rank > 0, e);
    if (st == ST_OK) st = trainer_open(c, s.policy.model, ADAPTER_OWN, o->update.train_tokens, &t, e);
    TRY_GOTO(comm_agree(c, st, e), out); /* rank 0 has come as far */
    struct rank_sampler sampler = {.comm = c, .engine = s.policy.engine, .max_batch = engine_batch_on(o->device)};
    st = ranks_follow(&sampler, t, s.reference.model, e);
out:
    if (st == ST_LOST && c) {
        log_error("%s", e->msg);
        c->abort(c, COMM_LOST_EXIT);
    }
    trainer_close(t);
    comm_close(c);
    session_close(&s);
    return st;
}
