#include "ranks/sample.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

/* Messages between rank 0 and another one. That one begins with the pieces that are dealt to it, asks for more with
 * WANT and is given PIECE or NONE; it sends what came of a piece with DONE; CANCEL ends what it is sampling. Its last
 * message is BYE: after NONE when all of its pieces are done, after CANCEL, or when it has failed, which BYE says. Rank
 * 0 is done when everybody has said it. */
enum message { WANT, DONE, BYE, PIECE, NONE, CANCEL };
struct message_head {
    int64_t what, piece;
};

/* Samples [first, first + n) of a request; in all requests' order their first one is number `at`. */
struct sample_piece {
    int request, first, n;
    int64_t at;
};

struct sample_pieces {
    struct request *req; /* [n_req] */
    int n_req;
    struct sample_piece *p; /* [n] */
    int n;
    int64_t total; /* samples */
};

/* ---- requests and samples on their way ----------------------------------------------------------------------------*/

static enum status check(const struct request *r, int i, struct err *e) {
    if (r->adapter > ADAPTER_OWN)
        return FAIL(e, ST_UNSUPPORTED, "request %d is of adapter %d, which the other ranks do not have", i, r->adapter);
    if (r->sink || r->top_logprobs || r->n_logprob_ids || r->prompt_logprobs)
        return FAIL(e, ST_UNSUPPORTED, "request %d asks for what several ranks do not give", i);
    return ST_OK;
}

static void pack_requests(struct str *s, const struct request *req, int n) {
    PACK(s, n);
    for (int i = 0; i < n; i++) {
        const struct sample_params *p = &req[i].params;
        PACK(s, req[i]);
        pack_array(s, req[i].prompt, req[i].n_prompt, sizeof *req[i].prompt);
        pack_array(s, p->stop_ids, p->n_stop_ids, sizeof *p->stop_ids);
        for (int k = 0; k < p->n_stop_strings; k++)
            pack_array(s, p->stop_strings[k], (int64_t)strlen(p->stop_strings[k]) + 1, 1);
    }
}

/* Views into the payload. False: it is no such payload. */
static bool unpack_requests(const struct str *payload, struct sample_pieces *x) {
    struct unpack u = unpack_of(payload);
    UNPACK(&u, x->n_req);
    if (u.short_ || x->n_req < 0 || (size_t)x->n_req > payload->len / sizeof *x->req) return false;
    x->req = xcalloc((size_t)x->n_req + 1, sizeof *x->req);
    for (int i = 0; i < x->n_req && !u.short_; i++) {
        struct request *r = &x->req[i];
        struct sample_params *p = &r->params;
        int64_t n_prompt, n_stops, bytes;
        UNPACK(&u, *r);
        r->prompt = unpack_array(&u, &n_prompt, sizeof *r->prompt);
        p->stop_ids = unpack_array(&u, &n_stops, sizeof *p->stop_ids);
        const char **strings = xcalloc((size_t)(u.short_ ? 0 : p->n_stop_strings) + 1, sizeof *strings);
        for (int k = 0; k < p->n_stop_strings && !u.short_; k++) strings[k] = unpack_array(&u, &bytes, 1);
        p->stop_strings = strings;
        u.short_ |= n_prompt != r->n_prompt || n_stops != p->n_stop_ids;
    }
    return !u.short_;
}

static void pack_sample(struct str *s, const struct sample *x) {
    PACK(s, x->stop);
    pack_array(s, x->ids, x->n, sizeof *x->ids);
    pack_array(s, x->logp, x->n, sizeof *x->logp);
    pack_array(s, x->entropy, x->n, sizeof *x->entropy);
}

static void *copy_of(const void *p, int64_t n, size_t element) {
    void *copy = xmalloc((size_t)n * element + 1);
    if (n > 0) memcpy(copy, p, (size_t)n * element);
    return copy;
}

static bool unpack_sample(struct unpack *u, struct sample *x) {
    int64_t n, n_logp, n_entropy;
    UNPACK(u, x->stop);
    const int32_t *ids = unpack_array(u, &n, sizeof *ids);
    const float *logp = unpack_array(u, &n_logp, sizeof *logp), *entropy = unpack_array(u, &n_entropy, sizeof *entropy);
    if (u->short_ || n_logp != n || n_entropy != n || n > INT32_MAX) return false;
    x->n = (int)n;
    x->ids = copy_of(ids, n, sizeof *ids);
    x->logp = copy_of(logp, n, sizeof *logp);
    x->entropy = copy_of(entropy, n, sizeof *entropy);
    return true;
}

/* ---- pieces -------------------------------------------------------------------------------------------------------*/

/* Pieces of a size at which each rank gets some four of them: fewer would leave ranks idle at the end, and a request's
 * prompt is computed once a piece. The same on all ranks. */
static void cut(struct sample_pieces *x, int ranks) {
    x->total = 0;
    for (int i = 0; i < x->n_req; i++) x->total += x->req[i].n_samples;
    const int64_t size = i64_max(1, x->total / (4 * (int64_t)ranks));
    int n = 0;
    x->p = xcalloc((size_t)x->total + 1, sizeof *x->p);
    for (int64_t i = 0, at = 0; i < x->n_req; i++)
        for (int first = 0, left = x->req[i].n_samples; left > 0;) {
            const int take = (int)i64_min(left, size);
            x->p[n++] = (struct sample_piece){(int)i, first, take, at};
            first += take;
            at += take;
            left -= take;
        }
    x->n = n;
}

static void pieces_free(struct sample_pieces *x, bool views) {
    for (int i = 0; views && x->req && i < x->n_req; i++) free((void *)(uintptr_t)x->req[i].params.stop_strings);
    if (views) free(x->req);
    free(x->p);
    *x = (struct sample_pieces){0};
}

/* What a rank has in its engine. */
struct in_hand {
    struct {
        int64_t ticket;
        int piece;
    } * of; /* [n] */
    int n;  /* pieces */
    int64_t samples;
    int64_t most; /* samples that it takes on */
};

static void hand_make(struct in_hand *h, const struct sample_pieces *x, const struct rank_sampler *s) {
    const int64_t share = (x->total + s->comm->size - 1) / s->comm->size;
    *h = (struct in_hand){.of = xcalloc((size_t)x->n + 1, sizeof *h->of),
                          .most = i64_max(1, i64_min(s->max_batch, share))};
}

/* A rank has pieces [*begin, *end) without asking for them: the hands of each rank are filled, one rank after the
 * other. All ranks find the same. */
static void dealt(const struct sample_pieces *x, int64_t most, int rank, int *begin, int *end) {
    *begin = *end = 0;
    for (int r = 0; r <= rank; r++) {
        *begin = *end;
        for (int64_t samples = 0; *end < x->n && samples < most; samples += x->p[(*end)++].n) {}
    }
}

static enum status take_on(struct rank_sampler *s, const struct sample_pieces *x, int piece, struct in_hand *h,
                           struct err *e) {
    const struct sample_piece *p = &x->p[piece];
    struct request r = x->req[p->request];
    r.first += p->first;
    r.n_samples = p->n;
    TRY(engine_submit(s->engine, &r, &h->of[h->n].ticket, e));
    h->of[h->n++].piece = piece;
    h->samples += p->n;
    return ST_OK;
}

static enum status take_dealt(struct rank_sampler *s, const struct sample_pieces *x, struct in_hand *h, struct err *e) {
    int piece, end;
    dealt(x, h->most, s->comm->rank, &piece, &end);
    for (; piece < end; piece++) TRY(take_on(s, x, piece, h, e));
    return ST_OK;
}

/* Takes a result out of the engine. False: there is none. */
static bool take_result(struct rank_sampler *s, const struct sample_pieces *x, struct in_hand *h, int *piece,
                        struct engine_result *got) {
    if (!engine_poll(s->engine, 0, got)) return false;
    int i = 0;
    while (i < h->n && h->of[i].ticket != got->ticket) i++;
    ASSERT(i < h->n);
    *piece = h->of[i].piece;
    h->of[i] = h->of[--h->n];
    h->samples -= x->p[*piece].n;
    return true;
}

/* Ends all that is in the engine and takes nothing of it. */
static void hand_empty(struct rank_sampler *s, struct in_hand *h) {
    struct engine_result r;
    struct err ignored;
    bool working = true;
    for (int i = 0; i < h->n; i++) engine_cancel(s->engine, h->of[i].ticket);
    while (working && engine_step(s->engine, &working, &ignored) == ST_OK) {}
    while (engine_poll(s->engine, 0, &r)) engine_result_free(&r);
    free(h->of);
    *h = (struct in_hand){0};
}

/* ---- the other ranks ----------------------------------------------------------------------------------------------*/

static enum status tell(struct comm *c, int to, enum message what, int piece, struct str *payload, struct err *e) {
    const struct message_head head = {what, piece};
    struct str s = STR_INIT;
    PACK(&s, head);
    if (payload) pack(&s, payload->p, payload->len);
    const enum status st = c->send(c, to, s.p, s.len, e);
    str_free(&s);
    return st;
}

/* The next message, if there is one; head.what is -1 otherwise. */
static enum status listen_to(struct comm *c, int *from, struct message_head *head, struct str *message,
                             struct unpack *rest, struct err *e) {
    bool there;
    size_t n;
    *head = (struct message_head){.what = -1};
    TRY(c->probe(c, &there, from, &n, e));
    if (!there) return ST_OK;
    str_clear(message);
    str_reserve(message, n);
    message->len = n;
    TRY(c->recv(c, *from, message->p, n, e));
    *rest = unpack_of(message);
    UNPACK(rest, *head);
    if (rest->short_) return FAIL(e, ST_LOST, "rank %d sent a message of %zu bytes", *from, n);
    return ST_OK;
}

struct follower {
    struct rank_sampler *s;
    struct sample_pieces x;
    struct in_hand hand;
    bool asked, none, cancelled;
    double busy_s;
};

/* A step of the engine; *busy_s grows by its time where there was something to do. */
static enum status timed_step(struct engine *en, bool *working, double *busy_s, struct err *e) {
    const double begin = clock_now_s();
    TRY(engine_step(en, working, e));
    if (*working) *busy_s += clock_now_s() - begin;
    return ST_OK;
}

static enum status follow_messages(struct follower *f, struct str *message, struct err *e) {
    struct message_head head;
    struct unpack rest;
    int from;
    for (;;) {
        TRY(listen_to(f->s->comm, &from, &head, message, &rest, e));
        if (head.what == CANCEL) f->cancelled = true;
        if (head.what == NONE) f->none = true;
        if (head.what != PIECE) return ST_OK;
        f->asked = false;
        if (head.piece < 0 || head.piece >= f->x.n)
            return FAIL(e, ST_LOST, "rank 0 gave piece %lld of %d", (long long)head.piece, f->x.n);
        if (f->cancelled) continue;
        TRY(take_on(f->s, &f->x, (int)head.piece, &f->hand, e));
    }
}

static enum status give_results(struct follower *f, struct err *e) {
    struct engine_result got;
    for (int piece; take_result(f->s, &f->x, &f->hand, &piece, &got);) {
        enum status st = got.status;
        if (st == ST_OK) {
            struct str samples = STR_INIT;
            for (int i = 0; i < got.n_samples; i++) pack_sample(&samples, &got.samples[i]);
            st = tell(f->s->comm, 0, DONE, piece, &samples, e);
            str_free(&samples);
        } else {
            *e = got.err;
        }
        engine_result_free(&got);
        TRY(st);
    }
    return ST_OK;
}

static enum status follow(struct follower *f, struct str *message, struct err *e) {
    while (!f->cancelled && !(f->none && f->hand.n == 0)) {
        bool working;
        if (!f->asked && !f->none && f->hand.samples < f->hand.most) {
            TRY(tell(f->s->comm, 0, WANT, 0, NULL, e));
            f->asked = true;
        }
        TRY(follow_messages(f, message, e));
        TRY(timed_step(f->s->engine, &working, &f->busy_s, e));
        TRY(give_results(f, e));
        if (!working) clock_nap(100000);
    }
    return ST_OK;
}

/* Between BYE and rank 0's end of the call nothing may be left over for this rank: it waits for a last CANCEL. */
static enum status part(struct follower *f, enum status st, const struct err *why, struct str *message, struct err *e) {
    CLEANUP_STR struct str said = STR_INIT;
    struct message_head head = {.what = -1};
    struct unpack rest;
    int from;
    PACK(&said, st);
    PACK(&said, f->busy_s);
    pack(&said, why->msg, st == ST_OK ? 0 : strlen(why->msg));
    TRY(tell(f->s->comm, 0, BYE, 0, &said, e));
    while (head.what != CANCEL && !f->cancelled) {
        TRY(listen_to(f->s->comm, &from, &head, message, &rest, e));
        if (head.what < 0) clock_nap(100000);
    }
    return ST_OK;
}

enum status rank_sample_follow(struct rank_sampler *s, const struct str *payload, struct err *e) {
    struct follower f = {.s = s};
    CLEANUP_STR struct str message = STR_INIT;
    struct err why = {0};
    enum status st = ST_OK;
    if (!unpack_requests(payload, &f.x)) st = FAIL(&why, ST_LOST, "the requests of rank 0 cannot be read");
    if (st == ST_OK) {
        cut(&f.x, s->comm->size);
        hand_make(&f.hand, &f.x, s);
        st = take_dealt(s, &f.x, &f.hand, &why);
    }
    if (st == ST_OK) st = follow(&f, &message, &why);
    hand_empty(s, &f.hand);
    st = part(&f, st, &why, &message, e);
    pieces_free(&f.x, true);
    return st;
}

/* ---- rank 0 -------------------------------------------------------------------------------------------------------*/

struct leader {
    struct rank_sampler *s;
    struct sample_pieces x;
    struct in_hand hand;
    struct sample *out;
    int next;             /* piece */
    int64_t done, tokens; /* samples */
    double busy_s;
    int gone; /* ranks that have said BYE */
    bool cancelled;
    bool closing;   /* true: the others have been told that this was all */
    enum status st; /* the first failure, and its message */
    struct err err;
};

static void fail(struct leader *l, enum status st, const struct err *why) {
    if (l->st != ST_OK || st == ST_OK) return;
    l->st = st;
    l->err = *why;
}

static void count(struct leader *l, int rank, const struct sample_piece *p) {
    for (int i = 0; i < p->n; i++) l->tokens += l->out[p->at + i].n;
    l->done += p->n;
    if (l->s->drawn) l->s->drawn[rank] += p->n;
}

static enum status receive(struct leader *l, int from, int64_t piece, struct unpack *rest, struct err *e) {
    if (piece < 0 || piece >= l->next || l->out[l->x.p[piece].at].ids)
        return FAIL(e, ST_LOST, "rank %d sent piece %lld, which it was not given", from, (long long)piece);
    const struct sample_piece *p = &l->x.p[piece];
    for (int i = 0; i < p->n; i++)
        if (!unpack_sample(rest, &l->out[p->at + i]))
            return FAIL(e, ST_LOST, "rank %d sent samples that cannot be read", from);
    count(l, from, p);
    return ST_OK;
}

static enum status lead_messages(struct leader *l, struct str *message, struct err *e) {
    struct comm *c = l->s->comm;
    for (;;) {
        struct message_head head;
        struct unpack rest;
        int from;
        TRY(listen_to(c, &from, &head, message, &rest, e));
        switch (head.what) {
        case WANT: {
            const bool more = l->next < l->x.n && l->st == ST_OK && !l->cancelled;
            if (l->closing) break; /* it will see that this was all */
            TRY(tell(c, from, more ? PIECE : NONE, more ? l->next++ : 0, NULL, e));
            break;
        }
        case DONE: TRY(receive(l, from, head.piece, &rest, e)); break;
        case BYE: {
            enum status st;
            struct err why;
            double busy_s;
            UNPACK(&rest, st);
            UNPACK(&rest, busy_s);
            if (l->s->busy_s) l->s->busy_s[from] += busy_s;
            if (st != ST_OK) fail(l, FAIL(&why, st, "rank %d: %.*s", from, (int)(rest.end - rest.p), rest.p), &why);
            l->gone++;
            break;
        }
        default: return ST_OK;
        }
    }
}

static enum status cancel_others(struct leader *l, struct err *e) {
    l->closing = true;
    for (int r = 1; r < l->s->comm->size; r++) TRY(tell(l->s->comm, r, CANCEL, 0, NULL, e));
    return ST_OK;
}

/* A step of rank 0's own sampling. */
static enum status lead_step(struct leader *l, bool *working, struct err *e) {
    struct engine_result got;
    while (l->next < l->x.n && l->hand.samples < l->hand.most) TRY(take_on(l->s, &l->x, l->next++, &l->hand, e));
    TRY(timed_step(l->s->engine, working, &l->busy_s, e));
    for (int piece; take_result(l->s, &l->x, &l->hand, &piece, &got);) {
        if (got.status != ST_OK) {
            *e = got.err;
            engine_result_free(&got);
            return e->code;
        }
        const struct sample_piece *p = &l->x.p[piece];
        for (int i = 0; i < p->n; i++) {
            l->out[p->at + i] = got.samples[i];
            got.samples[i] = (struct sample){0};
        }
        engine_result_free(&got);
        count(l, 0, p);
    }
    return ST_OK;
}

/* Until everything is done, or something has failed, or progress says no. An error is ST_LOST: a rank is lost. */
static enum status lead(struct leader *l, engine_progress_fn *progress, void *ctx, struct str *message, struct err *e) {
    while (l->st == ST_OK && !l->cancelled && l->done < l->x.total) {
        bool working = false;
        struct err why;
        TRY(lead_messages(l, message, e));
        fail(l, lead_step(l, &working, &why), &why);
        if (progress && !progress(ctx, l->tokens, (int)l->done, (int)l->x.total)) l->cancelled = true;
        if (!working && l->st == ST_OK) clock_nap(100000);
    }
    /* Who has failed waits for this, too, so that nothing is left over for the next call. */
    TRY(cancel_others(l, e));
    while (l->gone < l->s->comm->size - 1) {
        TRY(lead_messages(l, message, e));
        clock_nap(20000);
    }
    return ST_OK;
}

static enum status sample_alone(struct leader *l, engine_progress_fn *progress, void *ctx, struct err *e) {
    const double begin = clock_now_s();
    TRY(engine_run(l->s->engine, l->x.req, l->x.n_req, l->out, progress, ctx, e));
    if (l->s->busy_s) l->s->busy_s[0] += clock_now_s() - begin;
    for (int i = 0; l->s->drawn && i < l->x.n_req; i++) l->s->drawn[0] += l->x.req[i].n_samples;
    return ST_OK;
}

enum status rank_sample(void *ctx, const struct request *req, int n_req, struct sample *out,
                        engine_progress_fn *progress, void *progress_ctx, struct err *e) {
    struct leader l = {.s = ctx, .out = out, .x = {.req = (struct request *)(uintptr_t)req, .n_req = n_req}};
    CLEANUP_STR struct str message = STR_INIT;
    if (l.s->comm->size == 1) return sample_alone(&l, progress, progress_ctx, e);
    for (int i = 0; i < n_req; i++) TRY(check(&req[i], i, e));
    cut(&l.x, l.s->comm->size);
    memset(out, 0, (size_t)l.x.total * sizeof *out);
    pack_requests(&message, req, n_req);
    enum status st = command_give(l.s->comm, RANK_SAMPLE, &message, e);
    hand_make(&l.hand, &l.x, l.s);
    dealt(&l.x, l.hand.most, l.s->comm->size - 1, &(int){0}, &l.next);
    if (st == ST_OK) {
        struct err why;
        fail(&l, take_dealt(l.s, &l.x, &l.hand, &why), &why);
        st = lead(&l, progress, progress_ctx, &message, e);
    }
    hand_empty(l.s, &l.hand);
    if (l.s->busy_s) l.s->busy_s[0] += l.busy_s;
    if (st == ST_OK && l.st != ST_OK) {
        *e = l.err;
        st = l.st;
    }
    for (int64_t i = 0; i < l.x.total; i++) {
        if (st != ST_OK) sample_free(&out[i]);
        if (st == ST_OK && !out[i].ids) out[i].stop = STOP_CANCELLED;
    }
    pieces_free(&l.x, false);
    return st;
}
