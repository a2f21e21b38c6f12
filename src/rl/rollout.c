#include "rl/rollout.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "rl/journal.h"
#include "rl/prompt.h"
#include "rl/raicl.h"

enum status rollout_prompt(const struct actor *a, const struct problem *p, struct ids *out, struct err *e) {
    const struct spec *spec;
    TRY(verifier_spec(a->verifier, p, &spec, e));
    struct arena arena = ARENA_INIT;
    struct chat_message messages[2];
    struct prompt_input in = {.problem = p, .spec = spec, .think = a->think};
    if (a->raicl) TRY(raicl_examples(a->raicl, p, &in.examples, &in.n_examples, e));
    prompt_build(&in, &arena, messages);
    chat_encode(a->tok, a->style, messages, 2, true, out);
    arena_free(&arena);
    return ST_OK;
}

struct stop_set rollout_stops(const struct actor *a) {
    struct stop_set s = {.n = 0};
    const struct model_config *c = model_cfg(a->model);
    int32_t end = tokenizer_id(a->tok, "<|im_end|>");
    if (end >= 0) s.ids[s.n++] = end;
    for (int i = 0; i < c->n_eos && s.n < (int)ARRAY_LEN(s.ids); i++)
        if (c->eos[i] != end) s.ids[s.n++] = c->eos[i];
    return s;
}

static bool on_progress(void *ctx, int64_t tokens, int done, int total) {
    const struct actor *a = ctx;
    log_progress("  sampling: %d of %d answers, %lld tokens", done, total, (long long)tokens);
    return !(a->cancel && *a->cancel);
}

static void decode_episode(const struct actor *a, struct episode *ep) {
    struct str text = STR_INIT;
    int n = ep->sample.n - (ep->sample.stop == STOP_TOKEN ? 1 : 0);
    tokenizer_decode(a->tok, ep->sample.ids, (size_t)n, true, &text);
    struct parsed p;
    parse_completion(str_c(&text), text.len, &p);
    ep->format_ok = p.format_ok;
    ep->thought = p.thought.p != NULL;
    if (p.kernel.p) ep->kernel = xstrndup(p.kernel.p, p.kernel.n);
    ep->text = str_steal(&text);
}

enum status rollout_run(const struct actor *a, const struct problem *const *problems, int n,
                        const struct rollout_params *p, struct group *groups, struct rollout_times *times,
                        struct err *e) {
    memset(groups, 0, (size_t)n * sizeof *groups);
    int total = n * p->group_size;
    struct stop_set stops = rollout_stops(a);
    struct request *req = xcalloc((size_t)n, sizeof *req);
    struct sample *samples = xcalloc((size_t)total, sizeof *samples);
    struct verify_item *items = xcalloc((size_t)total, sizeof *items);
    enum status st = ST_OK;
    for (int i = 0; i < n; i++) {
        struct group *g = &groups[i];
        g->problem = problems[i];
        g->n = p->group_size;
        g->ep = xcalloc((size_t)g->n, sizeof *g->ep);
        if ((st = rollout_prompt(a, problems[i], &g->prompt, e)) != ST_OK) {
            err_note(e, "problem %s", problems[i]->key);
            goto out;
        }
        req[i] = (struct request){
            .prompt = g->prompt.p,
            .n_prompt = (int)g->prompt.len,
            .n_samples = g->n,
            .id = p->stream + (uint64_t)i,
            .params = {.temperature = (float)p->temperature,
                       .top_p = 1,
                       .min_p = (float)a->min_p,
                       .max_tokens = p->max_tokens,
                       .stop_ids = stops.ids,
                       .n_stop_ids = stops.n,
                       .seed = p->seed},
        };
    }
    double t0 = clock_now_s();
    st = engine_run(a->engine, req, n, samples, on_progress, (void *)(uintptr_t)a, e);
    char where[400];
    if (st == ST_FAILED && model_find_nonfinite(a->model, FIND_WEIGHTS, where, sizeof where)) {
        const struct err first = *e;
        st = FAIL(e, ST_FAILED, "%s: %s", first.msg, where);
    }
    if (st != ST_OK) goto out;
    double t1 = clock_now_s();
    for (int i = 0; i < total; i++) {
        struct group *g = &groups[i / p->group_size];
        struct episode *ep = &g->ep[i % p->group_size];
        ep->sample = samples[i];
        samples[i] = (struct sample){0};
        decode_episode(a, ep);
        if (times) times->tokens += ep->sample.n;
        items[i] = (struct verify_item){.problem = g->problem, .source = ep->kernel};
    }
    if (a->cancel && *a->cancel) {
        st = FAIL(e, ST_CANCELLED, "interrupted");
        goto out;
    }
    TRY_GOTO(journal_judge(a->journal, a->verifier, items, (size_t)total, p->first_group, p->group_size, a->cancel, e),
             out);
    log_progress_end();
    for (int i = 0; i < total; i++) {
        struct episode *ep = &groups[i / p->group_size].ep[i % p->group_size];
        ep->verdict = items[i].verdict;
        ep->present = outcome_class(ep->verdict.outcome) != 'I';
        if (ep->present) ep->reward = reward_score(&p->weights, &ep->verdict, ep->format_ok, ep->thought);
    }
    if (a->cancel && *a->cancel) st = FAIL(e, ST_CANCELLED, "interrupted");
    if (times) {
        times->generate_s += t1 - t0;
        times->verify_s += clock_now_s() - t1;
    }
out:
    for (int i = 0; i < total; i++) sample_free(&samples[i]);
    free(samples);
    free(items);
    free(req);
    return st;
}

void groups_free(struct group *groups, int n) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; groups[i].ep && j < groups[i].n; j++) {
            sample_free(&groups[i].ep[j].sample);
            free(groups[i].ep[j].text);
            free(groups[i].ep[j].kernel);
        }
        free(groups[i].ep);
        ids_free(&groups[i].prompt);
        groups[i] = (struct group){0};
    }
}
