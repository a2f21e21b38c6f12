#include "policy/roles_text.h"

#include <ctype.h>
#include <math.h>
#include <string.h>
#include <strings.h>

const char *const role_names[ROLES] = {"verifier", "corrector", "judge", "proposer"};

enum { ANSWER_MAX_BYTES = 400 };

/* ---- prompts ------------------------------------------------------------------------------------------------------*/

const char *const prediction_names[PREDICTIONS] = {"correct", "wrong", "crash", "compile", "cheat"};

static const char verifier_text[] =
    "You judge kernels. Given a PyTorch module and a kernel for it, predict what a test will find: correct; wrong (it "
    "runs and its output is wrong); crash (it fails or does not end); compile (it does not build); cheat (it does not "
    "do the work). Put one word between <VERDICT> and </VERDICT>.";
static const char judge_text[] =
    "You compare kernels. Given a PyTorch module and two kernels for it, say which one is better: correctness first, "
    "then speed, then clarity. Put A or B between <CHOICE> and </CHOICE>.";
static const char proposer_text[] =
    "You compose problems for someone who learns to write fast kernels. A problem is a shape (rows, seq, image or "
    "signal) and operators that are applied one after the other, such as: rows linear gelu softmax. A good problem is "
    "one that the learner solves about half of the time. Put one line between <PROBLEM> and </PROBLEM>.";
static const char think_text[] = " First reason between <think> and </think>, briefly.";

static void add_module(const struct problem *p, struct str *u) {
    size_t n = strlen(p->code);
    while (n > 0 && isspace((unsigned char)p->code[n - 1])) n--;
    str_adds(u, "Module:\n```python\n");
    str_add(u, p->code, n);
    str_adds(u, "\n```\n");
}

static void add_proposal(const struct role_prompt *in, struct str *u) {
    str_adds(u, "Operators:");
    for (int i = 0; i < in->n_operators; i++) str_addf(u, " %s", in->operators[i]);
    str_addf(u, "\nCompose a problem of %d operator%s.", in->length, in->length == 1 ? "" : "s");
    if (!isnan(in->solved)) str_addf(u, "\nThe latest such problems were solved %.0f%% of the time.", 100 * in->solved);
}

void role_prompt_build(const struct role_prompt *in, struct arena *a, struct chat_message messages[2]) {
    CLEANUP_STR struct str u = STR_INIT;
    const char *system = in->role == ROLE_VERIFIER ? verifier_text
                         : in->role == ROLE_JUDGE  ? judge_text
                                                   : proposer_text;
    ASSERT(in->role != ROLE_CORRECTOR);
    if (in->role == ROLE_PROPOSER) {
        add_proposal(in, &u);
    } else {
        add_module(in->problem, &u);
        for (int i = 0; i < (in->role == ROLE_JUDGE ? 2 : 1); i++) {
            str_addf(&u, in->role == ROLE_JUDGE ? "\nKernel %c:\n" : "\nKernel:\n", 'A' + i);
            prompt_answer(in->backend, in->kernel[i], &u);
            str_addc(&u, '\n');
        }
    }
    while (u.len > 0 && u.p[u.len - 1] == '\n') u.p[--u.len] = 0;
    messages[0] = (struct chat_message){.role = "system",
                                        .content = in->think ? arena_printf(a, "%s%s", system, think_text) : system};
    messages[1] = (struct chat_message){.role = "user", .content = arena_strndup(a, str_c(&u), u.len)};
}

/* ---- answers ------------------------------------------------------------------------------------------------------*/

enum prediction prediction_of(const struct verdict *v) {
    switch (outcome_class(v->outcome)) {
    case 'C': return PREDICT_CORRECT;
    case 'W': return PREDICT_WRONG;
    case 'R': return PREDICT_CRASH;
    case 'H': return PREDICT_CHEAT;
    default: return PREDICT_COMPILE;
    }
}

/* The last complete pair of tags in [p,end). */
static bool last_pair(const char *p, const char *end, const char *open, const char *close, const char **from,
                      const char **to) {
    bool found = false;
    for (const char *o; p < end && (o = mem_find(p, (size_t)(end - p), open, strlen(open)));) {
        const char *body = o + strlen(open), *c = mem_find(body, (size_t)(end - body), close, strlen(close));
        if (!c) break;
        for (const char *again; (again = mem_find(body, (size_t)(c - body), open, strlen(open)));)
            body = again + strlen(open);
        *from = body;
        *to = c;
        found = true;
        p = c + strlen(close);
    }
    return found;
}

bool role_answer(enum role role, const char *text, size_t n, struct str *out) {
    static const char *const tags[ROLES][2] = {[ROLE_VERIFIER] = {"<VERDICT>", "</VERDICT>"},
                                               [ROLE_JUDGE] = {"<CHOICE>", "</CHOICE>"},
                                               [ROLE_PROPOSER] = {"<PROBLEM>", "</PROBLEM>"}};
    const char *end = text + n, *from, *to;
    ASSERT(tags[role][0]);
    str_clear(out);
    struct parsed parsed; /* where the thought ends */
    parse_completion(text, n, ANSWER_C, &parsed);
    const bool closed = parsed.thought.p && parsed.answer > 0;
    if (!last_pair(closed ? text + parsed.answer : text, end, tags[role][0], tags[role][1], &from, &to)) return false;
    for (; from < to; from++) {
        if (!isspace((unsigned char)*from))
            str_addc(out, *from);
        else if (out->len > 0 && out->p[out->len - 1] != ' ')
            str_addc(out, ' ');
    }
    if (out->len > 0 && out->p[out->len - 1] == ' ') out->p[--out->len] = 0;
    return out->len > 0 && out->len <= ANSWER_MAX_BYTES && !memchr(out->p, 0, out->len);
}

enum prediction role_prediction(const char *answer) {
    for (int i = 0; i < PREDICTIONS; i++)
        if (strcasecmp(answer, prediction_names[i]) == 0) return (enum prediction)i;
    return PREDICT_NONE;
}

int role_choice(const char *answer) { return strcmp(answer, "A") == 0 ? 0 : strcmp(answer, "B") == 0 ? 1 : -1; }
