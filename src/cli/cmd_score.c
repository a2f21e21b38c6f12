/* kernelrl score: verdicts -> the rewards that a configuration gives them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "rl/evaluate/answer_reward.h"

enum { LINE_MAX_BYTES = 64 << 20 };

struct score_args {
    const char *verdict;
    double progress;
};

static const struct args_flag flags[] = {
    FLAG_TEXT(
        struct score_args, verdict, "verdict", "FILE", "-, standard input",
        "Verdicts are read there, as JSON lines (.jsonl or .jsonl.zst): of `verify --json`, traces.jsonl.zst of a "
        "run, samples of `eval`, verdicts.jsonl, or lines of your own."),
    FLAG_FLOAT(struct score_args, progress, "progress", "X", 0, 1, "1, its end",
               "Rewards are those at this share of a run, which the keys of `schedule` may change."),
};

const struct args_command score_command = {
    .name = "score",
    .usage = "[--verdict FILE] [--progress X] [--config FILE]... [key=value]...",
    .about = "Prints the reward that `train` with these keys gives each verdict, and its parts, as one JSON object a "
             "line. `kernelrl help train` explains the keys; docs/formats.md (\"Scores\") has the lines.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .max_words = -1,
    .keys = true,
};

struct scoring_run {
    const struct backend_info *backend;
    struct rollout_params params;
    int64_t answers, missing;
    double sum;
};

/* Copies the members that say which answer this is. */
static void put_identity(struct str *line, const json_t *row) {
    static const char *const names[] = {"id",   "key",   "file",   "problem", "problem_id", "sample_id",
                                        "step", "group", "sample", "turn",    "role"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const json_t *v = json_object_get(row, names[i]);
        if (v) js_put_json(line, names[i], v);
    }
}

/* The number of a member that may be absent; negative ones are refused. *known becomes true where it is there. */
static enum status read_count(const json_t *row, const char *where, const char *key, int64_t *out, bool *known,
                              struct err *e) {
    int64_t n = -1;
    if (!json_object_get(row, key) || json_is_null(json_object_get(row, key))) return ST_OK;
    TRY(js_opt_i64(row, where, key, &n, e));
    if (n < 0) return FAIL(e, ST_PARSE, "%s: %s: expected a whole number of at least 0", where, key);
    *out = n;
    *known = true;
    return ST_OK;
}

/* What a row says of its answer: the whole text as it was sampled (`text`), or what is counted in it. */
static enum status read_answer(const struct scoring_run *r, const json_t *row, const char *where, struct episode *ep,
                               struct reward_known *known, struct err *e) {
    const char *text = NULL;
    bool format_ok = false;
    int64_t tokens = 0;
    const json_t *given = json_object_get(row, "format_ok");
    TRY(js_opt_str(row, where, "text", &text, e));
    TRY(js_opt_bool(row, where, "format_ok", &format_ok, e));
    known->format = given && !json_is_null(given);
    ep->format_ok = format_ok;
    TRY(read_count(row, where, "thought_chars", &ep->thought_chars, &known->thought, e));
    TRY(read_count(row, where, "kernel_chars", &ep->kernel_chars, &known->kernel, e));
    TRY(read_count(row, where, "tokens", &tokens, &known->tokens, e));
    if (tokens > INT32_MAX) return FAIL(e, ST_PARSE, "%s: tokens: expected at most %d", where, INT32_MAX);
    if (text) {
        const bool was_known = known->format;
        (void)rollout_read(r->backend, text, strlen(text), ep);
        if (was_known && ep->format_ok != format_ok)
            return FAIL(e, ST_INVALID,
                        "%s: format_ok is %s, but as an answer of backend %s the text says otherwise; is "
                        "dataset_builder.backend right?",
                        where, format_ok ? "true" : "false", r->backend->name);
        known->format = known->thought = known->kernel = true;
    }
    ep->tokens = (int)tokens;
    return ST_OK;
}

/* The verdict of a row: its member `verdict`, or the row itself. What a score does not look at may be missing. */
static enum status read_verdict(const json_t *row, const char *where, struct verdict *out, struct reward_known *known,
                                struct err *e) {
    const json_t *v = json_object_get(row, "verdict");
    if (!v && json_object_get(row, "outcome")) v = row;
    if (!json_is_object(v))
        return FAIL(e, ST_PARSE,
                    "%s: expected a verdict as `kernelrl verify --json` prints it, or an object that has one as "
                    "\"verdict\"",
                    where);
    known->speed = json_object_get(v, "speedup") != NULL;
    known->tests = json_object_get(v, "tests_passed") && json_object_get(v, "tests_total");
    CLEANUP_JSON json_t *whole = json_copy((json_t *)v);
    CLEANUP_JSON json_t *rest =
        json_pack("{s:i,s:i,s:f,s:f,s:f,s:f,s:b,s:s}", "tests_passed", 0, "tests_total", 0, "prepare_ms", 0.0,
                  "compile_s", 0.0, "run_s", 0.0, "time_s", 0.0, "cached", 0, "message", "");
    ASSERT(whole && rest);
    (void)json_object_update_missing(whole, rest);
    TRY(verdict_from_json(whole, where, out, e));
    if (out->tests_passed <= out->tests_total) return ST_OK;
    return FAIL(e, ST_PARSE, "%s: tests_passed: expected at most tests_total (%d), got %d", where, out->tests_total,
                out->tests_passed);
}

/* Scores a row and prints it. */
static enum status score_row(struct scoring_run *r, const json_t *row, const char *where, int64_t number,
                             struct err *e) {
    CLEANUP_STR struct str line = STR_INIT;
    struct episode ep = {0};
    struct reward_known known = {0};
    js_begin(&line, NULL, '{');
    js_put_i64(&line, "line", number);
    put_identity(&line, row);
    if (json_object_get(row, "role") &&
        json_object_get(row, "about")) { /* a trace of a role: its reward comes of other answers */
        js_put_null(&line, "reward");
    } else {
        enum status st = read_verdict(row, where, &ep.verdict, &known, e);
        if (st == ST_OK) st = read_answer(r, row, where, &ep, &known, e);
        if (st == ST_OK) st = answer_reward(&r->params, known, where, &ep, e);
        free(ep.kernel);
        TRY(st);
        js_put_str(&line, "outcome", outcome_name(ep.verdict.outcome));
        reward_to_json(&ep.reward, ep.present, &line);
        r->answers += ep.present;
        r->missing += !ep.present;
        r->sum += ep.reward.total;
    }
    js_end(&line, '}');
    puts(str_c(&line));
    return ST_OK;
}

/* The first line of an evaluation's samples says what they are of. */
static bool is_header(const json_t *row) {
    return json_object_get(row, "version") && json_object_get(row, "settings") && !json_object_get(row, "verdict");
}

static enum status score_lines(struct scoring_run *r, struct jsonl_reader *in, const char *name, struct err *e) {
    bool any = false;
    for (;;) {
        const char *line;
        size_t n;
        char where[4200];
        CLEANUP_JSON json_t *row = NULL;
        TRY(jsonl_next(in, &line, &n, e));
        if (!line) break;
        snprintf(where, sizeof where, "%s:%lld", name, (long long)jsonl_line(in));
        TRY(js_parse(line, n, where, &row, e));
        if (!json_is_object(row)) return FAIL(e, ST_PARSE, "%s: expected a JSON object", where);
        any = true;
        if (is_header(row)) continue;
        TRY(score_row(r, row, where, jsonl_line(in), e));
    }
    return any ? ST_OK : FAIL(e, ST_INVALID, "%s: no verdicts; expected JSON lines", name);
}

static enum status score(const struct score_args *a, const struct train_options *o, struct err *e) {
    const bool is_stdin = !a->verdict || strcmp(a->verdict, "-") == 0;
    struct jsonl_reader *in;
    struct scoring_run r = {.backend = backend_info(o->verify.backend), .params = answer_weights(o, a->progress)};
    if (o->roles.judge_reward > 0)
        log_warn("roles.judge_reward: what answers earn in comparisons is not part of these rewards");
    TRY(jsonl_open(is_stdin ? "/dev/stdin" : a->verdict, LINE_MAX_BYTES, &in, e));
    const enum status st = score_lines(&r, in, is_stdin ? "standard input" : a->verdict, e);
    jsonl_close(in);
    if (st == ST_OK)
        log_info("%lld rewards, mean %.4f; %lld answers without a verdict", (long long)r.answers,
                 r.answers > 0 ? r.sum / (double)r.answers : 0, (long long)r.missing);
    return st;
}

int cmd_score(int argc, char **argv) {
    struct score_args a = {.progress = 1};
    struct train_options o;
    struct config config;
    struct args given;
    struct err e = {0};
    if (!args_parse(&score_command, argc, argv, &a, &given)) return given.code;
    config_init(&config, &train_schema, &o);
    enum status st = config_args(&config, given.n_words, given.word, &e);
    if (st == ST_OK) st = train_options_finish(&config, &o, &e);
    if (st == ST_OK) st = score(&a, &o, &e);
    config_free(&config);
    return st == ST_OK ? 0 : args_report(&e);
}
