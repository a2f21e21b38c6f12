/* What clients ask of problems, so that a trainer elsewhere needs no files. */
#include <assert.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "io/json.h"
#include "verdicts/internal.h"
#include "verify/backends.h"

static void put_problem(const struct problem *p, bool with_code, struct str *out) {
    CLEANUP_STR struct str flags = STR_INIT;
    problem_flags(p, &flags);
    js_begin(out, NULL, '{');
    js_put_str(out, "key", p->key);
    js_put_str(out, "object", "problem");
    js_put_str(out, "name", p->name);
    js_put_i64(out, "level", p->level);
    js_put_i64(out, "problem_id", p->problem_id);
    js_put_i64(out, "difficulty", p->difficulty);
    js_put_str(out, "split", p->split == SPLIT_TEST ? "test" : "train");
    js_put_str(out, "ops", p->ops);
    js_put_str(out, "flags", str_c(&flags));
    if (with_code) js_put_str(out, "code", p->code);
    js_end(out, '}');
}

void problems_list_begin(void *verdicts, struct http_exchange *x) {
    const struct verdicts *v = verdicts;
    const char *source = http_query(x, "source");
    const struct problem_set *set = desk_problems(v->desk, source);
    struct str out = STR_INIT;
    if (!set) {
        http_reply_error(x, 404, "source_not_found", "source", "source: there is no source \"%.100s\" here", source);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "list");
    js_begin(&out, "data", '[');
    for (size_t i = 0; i < set->count; i++) put_problem(&set->items[i], false, &out);
    js_end(&out, ']');
    js_end(&out, '}');
    http_reply_json(x, 200, &out);
}

/* ---- one problem, and its prompt ----------------------------------------------------------------------------------*/

/* A prompt that a client waits for. The exchange is the server's thread's alone. */
struct problem_prompt {
    struct prompt_ask ask; /* first */
    struct verdicts *v;
    struct http_exchange *x; /* NULL: the client has left */
    const struct desk_config *config;
    bool made;                   /* the server's thread knows that the prompt is there, or will not be */
    struct problem_prompt *next; /* among those that are made */
};
static_assert(offsetof(struct problem_prompt, ask) == 0, "an ask is the beginning of its prompt");

/* The thread of prompts. */
static void prompt_done(void *ctx, struct prompt_ask *a) {
    struct problem_prompt *p = (struct problem_prompt *)a;
    struct verdicts *v = ctx;
    pthread_mutex_lock(&v->lock);
    p->next = v->made;
    v->made = p;
    verdicts_signal(v);
    pthread_mutex_unlock(&v->lock);
}

static void free_prompt(struct problem_prompt *p) {
    str_free(&p->ask.messages);
    free(p);
}

void problem_prompts_collect(struct verdicts *v) {
    pthread_mutex_lock(&v->lock);
    struct problem_prompt *p = v->made;
    v->made = NULL;
    pthread_mutex_unlock(&v->lock);
    for (struct problem_prompt *next; p; p = next) {
        next = p->next;
        p->made = true;
        if (p->x)
            http_wake(p->x);
        else
            free_prompt(p);
    }
}

static void reply_prompt(const struct problem_prompt *p) {
    struct str out = STR_INIT;
    if (p->ask.status != ST_OK) {
        const bool fits = p->ask.status != ST_INVALID;
        if (fits) log_error("the prompt of %s: %s", p->ask.problem->key, p->ask.err.msg);
        http_reply_error(p->x, fits ? 503 : 400, "no_prompt", NULL, "there is no prompt of %.100s: %.400s",
                         p->ask.problem->key, p->ask.err.msg);
        return;
    }
    js_begin(&out, NULL, '{');
    js_put_str(&out, "object", "problem.prompt");
    js_put_str(&out, "problem", p->ask.problem->key);
    js_put_str(&out, "backend", backend_name(p->ask.backend));
    js_put_str(&out, "config", p->config->name);
    str_add(&out, p->ask.messages.p, p->ask.messages.len);
    js_end(&out, '}');
    http_reply_json(p->x, 200, &out);
}

/* Has the prompt made; problem_show_event() replies it. */
static void begin_prompt(struct verdicts *v, struct http_exchange *x, const struct problem *problem,
                         const struct desk_config *config) {
    const char *backend = http_query(x, "backend");
    enum verify_backend chosen = config->verify.backend;
    if (backend && !backend_from_name(backend, &chosen)) {
        http_reply_error(x, 400, NULL, "backend", "backend: there is no backend \"%.40s\"", backend);
        return;
    }
    struct problem_prompt *p = xcalloc(1, sizeof *p);
    p->v = v;
    p->x = x;
    p->config = config;
    p->ask.options = config->train;
    p->ask.backend = chosen;
    p->ask.problem = problem;
    p->ask.done = prompt_done;
    p->ask.ctx = v;
    http_set_state(x, p);
    first_prompts_submit(v->prompts, &p->ask);
}

void problem_show_event(void *verdicts, struct http_exchange *x, enum http_event event) {
    const struct problem_prompt *p = http_state(x);
    (void)verdicts;
    if (http_replied(x)) return;
    if (p->made)
        reply_prompt(p);
    else if (event == HTTP_CUT)
        http_reply_error(x, 503, "draining", NULL, "the server ends");
}

void problem_show_end(void *verdicts, struct http_exchange *x) {
    struct problem_prompt *p = http_state(x);
    (void)verdicts;
    if (!p) return;
    p->x = NULL;
    if (p->made) free_prompt(p);
}

void problem_show_begin(void *verdicts, struct http_exchange *x) {
    static const char tail[] = "/prompt";
    struct verdicts *v = verdicts;
    CLEANUP_FREE char *key = xstrdup(http_tail(x));
    const char *name = http_query(x, "config");
    const struct desk_config *config = desk_config_named(v->desk, name);
    const char *source = http_query(x, "source");
    const bool prompt = str_has_suffix(key, tail);
    const struct problem *p;
    struct verdict_refusal why;
    struct str out = STR_INIT;
    if (!config) {
        http_reply_error(x, 404, "config_not_found", "config", "config: there is no configuration \"%.100s\"", name);
        return;
    }
    if (prompt) key[strlen(key) - (sizeof tail - 1)] = 0;
    if (!desk_problem(v->desk, source ? source : config->source, key, &p, &why)) {
        verdicts_reply_refusal(x, &why);
    } else if (prompt) {
        begin_prompt(v, x, p, config);
    } else {
        put_problem(p, true, &out);
        http_reply_json(x, 200, &out);
    }
}
