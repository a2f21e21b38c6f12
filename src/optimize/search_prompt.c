#include "optimize/search_prompt.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "policy/feedback.h"
#include "rl/rollout/raicl.h"

/* ---- what is said -------------------------------------------------------------------------------------------------*/

static const char *comment_of(const struct actor *a) { return a->backend && a->backend->is_module ? "#" : "//"; }

/* The result of an attempt. Its speed is that of all its measurements. */
static enum status say_result(const struct actor *a, const struct search_task *t, const struct search_candidate *c,
                              bool full, struct str *out, struct err *e) {
    struct verdict v = *candidate_verdict(c);
    if (c->estimate.n > 0) v.speedup = estimate_bounds(&c->estimate).ratio;
    if (!full) {
        feedback_render(&v, out);
        return ST_OK;
    }
    feedback_render_full(&v, a->backend, out);
    if (!c->correct) return ST_OK;
    if (v.kernel_ms > 0) str_addf(out, "\nTime: %.4g ms, PyTorch %.4g ms", v.kernel_ms, v.eager_ms);
    for (int s = 1; s < c->n_verdicts; s++)
        str_addf(out, "\nWith %s: %.2fx PyTorch", t->label[s], c->verdict[s].speedup);
    if (t->limits.known) {
        str_adds(out, "\n");
        limits_text(&t->limits, v.kernel_ms, out);
    }
    CLEANUP_STR struct str notes = STR_INIT;
    if (a->verifier) TRY(verifier_notes(a->verifier, &t->shape[0], c->kernel, &notes, e));
    if (notes.len > 0) str_addf(out, "\nThe compiler says:\n%s", notes.p);
    return ST_OK;
}

/* Appends the failures so far by category, the commonest first. */
static void say_failures(const struct population *p, struct str *out) {
    static const char *const names[] = {[FEEDBACK_FORMAT] = "had no kernel",
                                        [FEEDBACK_COMPILE] = "did not compile",
                                        [FEEDBACK_RUNTIME] = "crashed",
                                        [FEEDBACK_WRONG] = "computed something else",
                                        [FEEDBACK_FORBIDDEN] = "were not allowed",
                                        [FEEDBACK_SLOW] = "were right and slower than PyTorch",
                                        [FEEDBACK_GOOD] = "were right and faster"};
    int count[ARRAY_LEN(names)] = {0}, n = 0;
    for (int i = 0; i < p->n; i++) {
        const struct verdict *v = p->c[i].same_as < 0 ? candidate_verdict(&p->c[i]) : NULL;
        if (!v || outcome_class(v->outcome) == 'I') continue;
        count[feedback_category(v)]++;
        n++;
    }
    if (n == 0) return;
    str_addf(out, "\n\nOf %d answers so far", n);
    for (const char *between = " ";;) {
        size_t most = 0;
        for (size_t k = 1; k < ARRAY_LEN(names); k++)
            if (count[k] > count[most]) most = k;
        if (count[most] == 0) break;
        str_addf(out, "%s%d %s", between, count[most], names[most]);
        count[most] = 0;
        between = ", ";
    }
    str_addc(out, '.');
}

/* What a full prompt has behind the parts of version 1. */
static void say_more(const struct actor *a, const struct search_task *t, const struct arm_choice *c, struct str *out) {
    const char *mark = comment_of(a);
    if (t->n_shapes > 1) {
        str_adds(out, "\n\nThe answer must be right, and is timed, with the inputs of all of these:");
        for (int s = 0; s < t->n_shapes; s++) str_addf(out, "%s %s", s ? ";" : "", t->label[s]);
        str_adds(out, ". Sizes that differ between them must not be written as numbers.");
    }
    if (t->limits.known && c->n_parents == 0) {
        str_adds(out, "\n\n");
        limits_text(&t->limits, 0, out);
    }
    say_failures(&t->found, out);
    if (c->arm == ARM_CROSS) str_adds(out, "\n\nTake what is best of both attempts.");
    if (c->plan)
        str_addf(out, "\n\nBegin the code with this comment, and do as it says:\n%s plan: %s", mark, c->plan);
    else
        str_addf(out,
                 "\n\nBegin the code with a comment `%s plan: ` that names your choices in a few words, with commas "
                 "between.",
                 mark);
}

/* ---- making -------------------------------------------------------------------------------------------------------*/

static enum status find_examples(const struct actor *a, const struct search_task *t, const struct prompt_example **out,
                                 int *n, struct err *e) {
    if (a->raicl) return raicl_examples(a->raicl, &t->shape[0], out, n, e);
    *n = prompt_examples(a->backend ? a->backend->name : "c", 1, out);
    return ST_OK;
}

static enum status make(const struct actor *a, const struct search_task *t, const struct arm_choice *c, bool full,
                        struct arena *arena, struct prompt_made *out, struct err *e) {
    struct prompt_attempt attempts[PARENTS_MAX];
    struct prompt_input in = {
        .problem = &t->shape[0], .backend = a->backend, .think = a->think, .precision = a->precision};
    in.hardware = a->hardware;
    if (!a->backend || !a->backend->is_module) TRY(verifier_spec(a->verifier, &t->shape[0], &in.spec, e));
    if (c->arm == ARM_EXAMPLES) TRY(find_examples(a, t, &in.examples, &in.n_examples, e));
    for (int i = 0; c->arm != ARM_PLAN && i < c->n_parents; i++) {
        const struct search_candidate *p = &t->found.c[c->parent[i]];
        CLEANUP_STR struct str result = STR_INIT;
        TRY(say_result(a, t, p, full, &result, e));
        attempts[in.n_attempts++] =
            (struct prompt_attempt){.kernel = p->kernel, .feedback = arena_strdup(arena, str_c(&result))};
    }
    in.attempts = attempts;
    prompt_build(&in, arena, out->messages);
    out->begun = NULL;
    if (full) {
        CLEANUP_STR struct str user = STR_INIT;
        str_adds(&user, out->messages[1].content);
        say_more(a, t, c, &user);
        out->messages[1].content = arena_strdup(arena, user.p);
    } else if (c->plan && !a->texts.fn) {
        out->begun = arena_printf(arena, "<KERNEL>\n```%s\n%s plan: %s\n", a->backend ? a->backend->fence : "c",
                                  comment_of(a), c->plan);
    }
    return ST_OK;
}

enum status search_prompt_make(const struct actor *a, const struct search_task *t, struct arm_choice *c, bool full,
                               int max_tokens, struct arena *arena, struct prompt_made *out, struct err *e) {
    int64_t longest = a->o.prompt_tokens > 0 ? a->o.prompt_tokens : INT64_MAX;
    if (!a->texts.fn) longest = i64_min(longest, (int64_t)model_cfg(a->model)->max_positions - max_tokens);
    for (;;) {
        struct ids ids = {0};
        TRY(make(a, t, c, full, arena, out, e));
        const int64_t n = rollout_encode(a, out->messages, &ids);
        ids_free(&ids);
        if (n <= longest) return ST_OK;
        if (c->arm == ARM_PLAIN)
            return FAIL(e, ST_INVALID, "problem %s: its prompt has %lld tokens, %lld are allowed (max_tokens)", t->key,
                        (long long)n, (long long)longest);
        const int island = c->island;
        free(c->plan);
        *c = (struct arm_choice){.arm = ARM_PLAIN, .island = island};
    }
}
