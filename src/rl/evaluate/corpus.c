#include "rl/evaluate/corpus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rng.h"
#include "generate/generator.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "policy/feedback.h"
#include "policy/roles_text.h"
#include "rag/rag.h"
#include "text/chat.h"

enum { ROW_MAX = 4 << 20, ANSWERS_MAX = 32, CANDIDATES = 16 /* that examples are chosen from */ };

struct corpus_answer {
    const char *style, *source;
    bool broken;
    struct verdict verdict;
};
struct corpus_entry { /* a problem with its answers */
    const struct problem *problem;
    struct corpus_answer *good[ANSWERS_MAX], *bad[ANSWERS_MAX];
    int n_good, n_bad;
};
struct builder {
    const struct corpus_options *o;
    struct verifier *v;
    struct arena arena; /* answers and entries */
    struct problem_set set;
    struct corpus_entry *entries; /* one a problem */
    struct jsonl_writer *out;
    struct rag_index *index; /* NULL: no retrieved rows */
    struct generator *generator;
    struct rng rng;
    struct row_counts n;
};

/* ---- reading ------------------------------------------------------------------------------------------------------*/

static enum outcome outcome_by_name(const char *name) {
    for (int i = 0; i <= OUTCOME_INFRASTRUCTURE; i++)
        if (strcmp(outcome_name((enum outcome)i), name) == 0) return (enum outcome)i;
    return OUTCOME_INFRASTRUCTURE;
}

static struct corpus_entry *entry_of(struct builder *b, const char *key) {
    const struct problem *p = problem_find(&b->set, key);
    return p ? &b->entries[p - b->set.items] : NULL;
}

static enum status read_answer(struct builder *b, const json_t *row, const char *where, struct err *e) {
    const char *key, *style, *source, *outcome = NULL, *broken = NULL, *message = NULL;
    double speedup = 0;
    TRY(js_get_str(row, where, "key", &key, e));
    TRY(js_get_str(row, where, "style", &style, e));
    TRY(js_get_str(row, where, "source", &source, e));
    TRY(js_opt_str(row, where, "outcome", &outcome, e));
    TRY(js_opt_str(row, where, "broken", &broken, e));
    if (!outcome && !b->o->unverified)
        return FAIL(e, ST_PARSE, "%s: no outcome: generate with --verify, or give unverified=true", where);
    TRY(js_opt_str(row, where, "message", &message, e));
    TRY(js_opt_f64(row, where, "speedup", &speedup, e));
    struct corpus_entry *entry = entry_of(b, key);
    if (!entry) return FAIL(e, ST_PARSE, "%s: key \"%s\" is not in problems.jsonl", where, key);
    struct corpus_answer *a = arena_new(&b->arena, struct corpus_answer);
    a->style = arena_strdup(&b->arena, style);
    a->source = arena_strdup(&b->arena, source);
    a->broken = broken != NULL;
    a->verdict.outcome = outcome  ? outcome_by_name(outcome)
                         : broken ? OUTCOME_INFRASTRUCTURE /* unknown */
                                  : OUTCOME_CORRECT;
    a->verdict.speedup = speedup;
    if (message) snprintf(a->verdict.message, sizeof a->verdict.message, "%s", message);
    bool right = a->verdict.outcome == OUTCOME_CORRECT;
    if (outcome_class(a->verdict.outcome) == 'I' || right == a->broken)
        b->n.skipped++; /* only what was verified */
    else if (right && entry->n_good < ANSWERS_MAX)
        entry->good[entry->n_good++] = a;
    else if (!right && entry->n_bad < ANSWERS_MAX)
        entry->bad[entry->n_bad++] = a;
    return ST_OK;
}

static enum status read_all(struct builder *b, struct err *e) {
    struct str path = STR_INIT;
    str_addf(&path, "%s/problems.jsonl", b->o->from);
    enum status st = problem_set_load(b->o->problems ? b->o->problems : path.p, &b->set, e);
    b->entries = st == ST_OK ? arena_array(&b->arena, struct corpus_entry, b->set.count) : NULL;
    for (size_t i = 0; st == ST_OK && i < b->set.count; i++) b->entries[i].problem = &b->set.items[i];
    str_clear(&path);
    if (b->o->answers_path)
        str_adds(&path, b->o->answers_path);
    else
        str_addf(&path, "%s/answers.jsonl", b->o->from);
    struct jsonl_reader *r = NULL;
    if (st == ST_OK) st = jsonl_open(path.p, ROW_MAX, &r, e);
    while (st == ST_OK) {
        const char *line;
        size_t n;
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        char where[4200];
        snprintf(where, sizeof where, "%s:%lld", path.p, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        st = js_parse(line, n, where, &row, e);
        if (st == ST_OK) st = read_answer(b, row, where, e);
    }
    jsonl_close(r);
    str_free(&path);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

/* The thought of a think + answer row: what the module does, and the plan that the answer's first line names. */
static void thought(const struct corpus_entry *en, const struct corpus_answer *a, struct str *out) {
    str_adds(out, "<think>\n- operators: ");
    for (const char *p = en->problem->ops ? en->problem->ops : ""; *p; p++)
        if (*p == ' ')
            str_adds(out, ", ");
        else
            str_addc(out, *p);
    const char *plan = strstr(a->source, " plan: "); /* a comment of C or Python */
    if (plan) str_addf(out, "\n- plan: %.*s", (int)strcspn(plan + 7, "\n"), plan + 7);
    str_adds(out, "\n</think>\n\n");
}

static enum status put_row(struct builder *b, const struct chat_message m[2], const char *completion, bool think,
                           struct err *e) {
    CLEANUP_STR struct str line = STR_INIT;
    js_begin(&line, NULL, '{');
    js_begin(&line, "prompt", '[');
    for (int i = 0; i < 2; i++) {
        js_begin(&line, NULL, '{');
        js_put_str(&line, "role", m[i].role);
        js_put_str(&line, "content", m[i].content);
        js_end(&line, '}');
    }
    js_end(&line, ']');
    js_put_str(&line, "completion", completion);
    js_put_str(&line, "renderer", chat_style_name(think ? CHAT_QWEN3 : CHAT_QWEN3_NOTHINK));
    js_end(&line, '}');
    return jsonl_append(b->out, line.p, line.len, e);
}

static enum status write_row(struct builder *b, const struct prompt_input *in, const struct corpus_entry *en,
                             const struct corpus_answer *a, struct err *e) {
    struct arena tmp = ARENA_INIT;
    struct chat_message m[2];
    CLEANUP_STR struct str completion = STR_INIT;
    prompt_build(in, &tmp, m);
    if (in->think) thought(en, a, &completion);
    prompt_answer(in->backend, a->source, &completion);
    const enum status st = put_row(b, m, str_c(&completion), in->think, e);
    arena_free(&tmp);
    return st;
}

static bool chance(struct builder *b, double p) { return rng_next_f64(&b->rng) < p; }

/* ---- KernelBench's way of writing ---------------------------------------------------------------------------------*/

static void add_operators(const struct problem *p, struct str *s) {
    for (const char *c = p->ops ? p->ops : "its operators"; *c; c++)
        if (*c == ' ')
            str_adds(s, ", ");
        else
            str_addc(s, *c == '_' ? ' ' : *c);
}

/* "def forward(self, x, y):" with what KernelBench says of it; args is "x, y". */
static void add_forward(struct builder *b, const char *args, int n, struct str *s) {
    const bool typed = chance(b, 0.6), told = chance(b, 0.6);
    str_adds(s, "    def forward(self");
    for (int i = 0, at = 0; at < n; i++) {
        const int len = (int)strcspn(args + at, ",)");
        str_addf(s, ", %.*s%s", len, args + at, typed ? ": torch.Tensor" : "");
        at += len + 2;
    }
    str_adds(s, typed ? ") -> torch.Tensor:\n" : "):\n");
    if (!told) return;
    str_adds(s, "        \"\"\"\n        Forward pass of the model.\n\n        Args:\n");
    for (int at = 0; at < n;) {
        const int len = (int)strcspn(args + at, ",)");
        str_addf(s, "            %.*s (torch.Tensor): Input tensor%s.\n", len, args + at,
                 at               ? ""
                 : chance(b, 0.5) ? " of any shape"
                                  : "");
        at += len + 2;
    }
    str_adds(s, "\n        Returns:\n            torch.Tensor: Output tensor.\n        \"\"\"\n");
}

/* "return [torch.rand(a, b), ...]" with a name for each. */
static void add_inputs(const char *list, struct str *s) {
    struct str names = STR_INIT;
    int depth = 0, n = 0;
    const char *from = list;
    for (const char *c = list; *c && *c != '\n'; c++) {
        depth += (*c == '(') - (*c == ')');
        if (depth > 0 || (*c != ',' && *c != ']')) continue;
        if (c > from) {
            n++;
            str_addf(s, "    x%.*s = %.*s\n", n > 1, &"0123456789"[n % 10], (int)(c - from), from);
            str_addf(&names, "%sx%.*s", n > 1 ? ", " : "", n > 1, &"0123456789"[n % 10]);
        }
        from = c + 2;
    }
    str_addf(s, "    return [%s]\n", str_c(&names));
    str_free(&names);
}

/* The module's text as KernelBench would have it: the same program. */
static const char *kernelbench_text(struct builder *b, const struct problem *p, struct arena *a) {
    const bool functional = chance(b, 0.5), named = chance(b, 0.5);
    CLEANUP_STR struct str s = STR_INIT;
    bool skip = false;
    for (const char *line = p->code, *next; *line; line = next) {
        const int len = (int)strcspn(line, "\n");
        next = line + len + (line[len] == '\n');
        if (functional && str_has_prefix(line, "import torch.nn.functional")) continue;
        if (skip && strstr(line, "\"\"\"") == line + 4) { /* its one-line docstring */
            skip = false;
            continue;
        }
        skip = false;
        if (str_has_prefix(line, "class Model(")) {
            str_addf(&s, "%.*s\n    \"\"\"\n    %s that performs ", len, line,
                     chance(b, 0.5) ? "Simple model" : "Model");
            add_operators(p, &s);
            str_adds(&s, ".\n    \"\"\"\n");
            if (!strstr(p->code, "def __init__"))
                str_adds(&s, "    def __init__(self):\n        super(Model, self).__init__()\n    \n");
            skip = true;
        } else if (str_has_prefix(line, "        super().__init__()")) {
            str_adds(&s, "        super(Model, self).__init__()\n");
        } else if (str_has_prefix(line, "    def forward(self, ")) {
            add_forward(b, line + 22, len - 22 - 2, &s);
        } else if (named && str_has_prefix(line, "    return [torch.rand")) {
            add_inputs(line + 12, &s);
        } else if (str_has_prefix(line, "    return []")) {
            str_addf(&s, "    return []%s\n", chance(b, 0.5) ? "  # No special initialization inputs needed" : "");
        } else {
            for (int i = 0; i < len; i++) {
                if (functional && strncmp(line + i, "F.", 2) == 0)
                    str_adds(&s, "torch.nn.functional");
                else
                    str_addc(&s, line[i]);
            }
            str_addc(&s, '\n');
        }
    }
    return arena_strdup(a, str_c(&s));
}

/* So many rows a problem; the fraction comes by chance. */
static int rows(struct builder *b, double mean) { return (int)mean + chance(b, mean - floor(mean)); }

static struct corpus_answer *any(struct builder *b, struct corpus_answer *const *list, int n) {
    return list[rng_below(&b->rng, (uint64_t)n)];
}

/* Whether two operator sequences share a word. */
static bool shares_operator(const char *x, const char *y) {
    if (!x || !y) return false;
    for (const char *p = x; *p;) {
        size_t n = strcspn(p, " ");
        for (const char *q = y; *q;) {
            size_t m = strcspn(q, " ");
            if (n == m && memcmp(p, q, n) == 0) return true;
            q += m + (q[m] == ' ');
        }
        p += n + (p[n] == ' ');
    }
    return false;
}

static enum status rows_with_examples(struct builder *b, const struct corpus_entry *en, struct prompt_input in,
                                      struct err *e) {
    struct prompt_example ex[PROMPT_EXAMPLES_MAX];
    int want = 1 + (int)rng_below(&b->rng, PROMPT_EXAMPLES_MAX), n = 0;
    for (int tries = 0; tries < 40 && n < want; tries++) {
        struct corpus_entry *other = &b->entries[rng_below(&b->rng, b->set.count)];
        if (other == en || other->n_good == 0) continue;
        if (tries < 30 && !shares_operator(other->problem->ops, en->problem->ops)) continue;
        ex[n++] = (struct prompt_example){other->problem->code, any(b, other->good, other->n_good)->source};
    }
    if (n == 0) return ST_OK;
    in.examples = ex;
    in.n_examples = n;
    b->n.examples++;
    return write_row(b, &in, en, any(b, en->good, en->n_good), e);
}

/* Whether the first lines of two answers, which name their plans, are equal. */
static bool same_plan(const char *x, const char *y) {
    const size_t n = strcspn(x, "\n");
    return n == strcspn(y, "\n") && memcmp(x, y, n) == 0;
}

/* The kernel of a record, or where its module is one of the corpus and has an answer of the plan, that answer. */
static const char *kernel_of_plan(const struct builder *b, const struct rag_record *r, const char *like) {
    if (same_plan(r->kernel_code, like)) return r->kernel_code;
    for (size_t i = 0; i < b->set.count; i++) {
        const struct corpus_entry *x = &b->entries[i];
        if (strcmp(x->problem->code, r->pytorch_code) != 0) continue;
        for (int k = 0; k < x->n_good; k++)
            if (same_plan(x->good[k]->source, like)) return x->good[k]->source;
        break;
    }
    return NULL;
}

/* The nearest records first, as in the prompts of prompt_option: raicl; those with a kernel written the way of the
 * answer go before others. So the row teaches that examples say how to write, and not only what. */
static enum status rows_retrieved(struct builder *b, const struct corpus_entry *en, struct prompt_input in,
                                  struct err *e) {
    const struct corpus_answer *to = any(b, en->good, en->n_good);
    const int want = 1 + (int)rng_below(&b->rng, PROMPT_EXAMPLES_MAX);
    struct rag_example found[CANDIDATES];
    struct prompt_example ex[PROMPT_EXAMPLES_MAX];
    bool taken[CANDIDATES] = {false};
    const char *kernel[CANDIDATES];
    struct arena a = ARENA_INIT;
    int n = 0, chosen = 0;
    const struct rag_query q = {.code = en->problem->code, .name = en->problem->name, .backend = "c", .k = CANDIDATES};
    enum status st = rag_retrieve(b->index, &q, &a, found, &n, e);
    for (int i = 0; st == ST_OK && i < n && chosen < want; i++) {
        kernel[i] = kernel_of_plan(b, &found[i].r, to->source);
        chosen += taken[i] = kernel[i] != NULL;
        b->n.shown_same += taken[i];
    }
    for (int i = 0; i < n && chosen < want; i++) {
        if (taken[i]) continue;
        kernel[i] = found[i].r.kernel_code;
        taken[i] = true;
        chosen++;
    }
    chosen = 0;
    for (int i = 0; i < n; i++)
        if (taken[i]) ex[chosen++] = (struct prompt_example){found[i].r.pytorch_code, kernel[i]};
    if (st == ST_OK && chosen > 0) {
        in.examples = ex;
        in.n_examples = chosen;
        b->n.retrieved++;
        b->n.shown += chosen;
        st = write_row(b, &in, en, to, e);
    }
    arena_free(&a);
    return st;
}

/* A failed attempt, or a correct one to be made faster, then a right answer. */
static enum status rows_refine(struct builder *b, const struct corpus_entry *en, struct prompt_input in,
                               struct err *e) {
    const struct corpus_answer *from = en->n_bad > 0 ? any(b, en->bad, en->n_bad) : any(b, en->good, en->n_good),
                               *to = NULL;
    if (from->broken) {
        int n = 0; /* answers of the style so far, of which one is drawn */
        for (int i = 0; i < en->n_good; i++)
            if (strcmp(en->good[i]->style, from->style) == 0 && (n++ == 0 || rng_below(&b->rng, (uint64_t)n) == 0))
                to = en->good[i];
    } else {
        for (int i = 0; i < en->n_good; i++)
            if (en->good[i]->verdict.speedup > 1.2 * from->verdict.speedup) to = en->good[i];
    }
    if (!to) return ST_OK;
    struct str feedback = STR_INIT;
    feedback_render(&from->verdict, &feedback);
    struct prompt_attempt attempt = {.kernel = from->source, .feedback = str_c(&feedback)};
    in.attempts = &attempt;
    in.n_attempts = 1;
    b->n.refine++;
    enum status st = write_row(b, &in, en, to, e);
    str_free(&feedback);
    return st;
}

/* What the test found of an answer, right and broken ones alike often. */
static enum status row_verdict(struct builder *b, const struct corpus_entry *en, struct err *e) {
    const bool broken = en->n_bad > 0 && (en->n_good == 0 || chance(b, 0.5));
    const struct corpus_answer *a = broken ? any(b, en->bad, en->n_bad) : any(b, en->good, en->n_good);
    struct arena tmp = ARENA_INIT;
    struct chat_message m[2];
    char said[64];
    role_prompt_build(&(struct role_prompt){.role = ROLE_VERIFIER, .problem = en->problem, .kernel = {a->source}}, &tmp,
                      m);
    snprintf(said, sizeof said, "<VERDICT>%s</VERDICT>", prediction_names[prediction_of(&a->verdict)]);
    const enum status st = put_row(b, m, said, false, e);
    b->n.verdicts++;
    arena_free(&tmp);
    return st;
}

/* The problem's own operators behind the first shape that they fit; none when they fit none. */
static enum status row_proposal(struct builder *b, const struct corpus_entry *en, struct err *e) {
    static const char *const shapes[] = {"rows", "image", "signal", "seq"};
    struct role_prompt in = {.role = ROLE_PROPOSER, .length = 1, .solved = 0.05 * (double)rng_below(&b->rng, 21)};
    if (!en->problem->ops) return ST_OK;
    for (const char *p = en->problem->ops; *p; p++) in.length += *p == ' ';
    if (chance(b, 0.2)) in.solved = NAN;
    in.n_operators = generator_operators(&in.operators);
    struct arena tmp = ARENA_INIT;
    enum status st = ST_OK;
    for (size_t i = 0; i < ARRAY_LEN(shapes); i++) {
        struct gen_item item;
        struct err unfit;
        struct chat_message m[2];
        const char *text = arena_printf(&tmp, "%s %s", shapes[i], en->problem->ops);
        if (generator_compose(b->generator, text, 0, &tmp, &item, &unfit) != ST_OK) continue;
        role_prompt_build(&in, &tmp, m);
        st = put_row(b, m, arena_printf(&tmp, "<PROBLEM>%s</PROBLEM>", text), false, e);
        b->n.proposals++;
        break;
    }
    arena_free(&tmp);
    return st;
}

static enum status rows_of(struct builder *b, struct corpus_entry *en, struct err *e) {
    if (en->n_good == 0) return ST_OK;
    struct prompt_input in = {.problem = en->problem, .backend = b->o->backend};
    if (b->v) TRY(verifier_spec(b->v, en->problem, &in.spec, e));
    b->n.problems++;
    rng_shuffle(&b->rng, en->good, (size_t)en->n_good, sizeof en->good[0]);
    struct problem restyled = *en->problem;
    struct arena text = ARENA_INIT;
    const bool restyle = b->o->kernelbench > 0 && chance(b, b->o->kernelbench); /* rows that share a prompt share it */
    if (restyle) {
        restyled.code = kernelbench_text(b, en->problem, &text);
        in.problem = &restyled;
    }
    enum status st = ST_OK;
    for (int i = 0; st == ST_OK && i < b->o->answers && i < en->n_good; i++, b->n.single++)
        st = write_row(b, &in, en, en->good[i], e);
    in.problem = en->problem;
    arena_free(&text);
    TRY(st);
    for (int i = 0, n = rows(b, b->o->refine); i < n; i++) TRY(rows_refine(b, en, in, e));
    if (chance(b, b->o->examples)) TRY(rows_with_examples(b, en, in, e));
    for (int i = 0, n = b->index ? rows(b, b->o->retrieved) : 0; i < n; i++) TRY(rows_retrieved(b, en, in, e));
    if (b->o->verdicts > 0 && chance(b, b->o->verdicts)) TRY(row_verdict(b, en, e));
    if (b->o->proposals > 0 && chance(b, b->o->proposals)) TRY(row_proposal(b, en, e));
    if (chance(b, b->o->think)) {
        in.think = true;
        b->n.think++;
        TRY(write_row(b, &in, en, any(b, en->good, en->n_good), e));
    }
    return ST_OK;
}

enum status corpus_build(const struct corpus_options *o, struct verifier *v, struct row_counts *out, struct err *e) {
    struct builder b = {.o = o, .v = v, .rng = rng_make((uint64_t)o->seed, UINT64_C(0x636f7270))};
    enum status st = read_all(&b, e);
    if (st == ST_OK && o->index) st = rag_index_open(o->index, NULL, &b.index, e);
    if (st == ST_OK && b.index && strcmp(rag_index_model(b.index), RAG_LEXICAL) != 0)
        st = FAIL(e, ST_INVALID, "%s: built with %s; rows take an index built with --model " RAG_LEXICAL, o->index,
                  rag_index_model(b.index));
    if (st == ST_OK && o->proposals > 0) st = generator_open(NULL, &b.generator, e);
    if (st == ST_OK) st = jsonl_append_open(o->output, &b.out, NULL, e);
    for (size_t i = 0; st == ST_OK && i < b.set.count; i++) {
        if (i % 100 == 0) log_progress("corpus: %zu of %zu problems", i, b.set.count);
        st = rows_of(&b, &b.entries[i], e);
    }
    log_progress_end();
    jsonl_append_close(b.out);
    rag_index_close(b.index);
    generator_close(b.generator);
    problem_set_free(&b.set);
    arena_free(&b.arena);
    *out = b.n;
    return st;
}
