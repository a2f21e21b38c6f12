/* kernelrl problems prompt, kernelrl problems export: what a run shows a model, for people and for other programs. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/problems.h"
#include "generate/find.h"
#include "io/json.h"
#include "io/jsonl.h"
#include "rl/learn/session.h"

/* Who is asked for prototypes keeps every problem that it has been asked for; after so many another one is asked. */
enum { PROTOTYPES_AT_ONCE = 256 };

static const char *backend_of(const struct train_options *o) { return backend_name(o->verify.backend); }

/* ---- prompt -------------------------------------------------------------------------------------------------------*/

struct prompt_args {
    bool json, rendered;
};

static const struct args_flag prompt_flags[] = {
    FLAG_BOOL(struct prompt_args, rendered, "rendered",
              "The model's chat template is applied, and the prompt is cut where training would cut it; that opens the "
              "tokenizer of model_name, no weights."),
    FLAG_BOOL(struct prompt_args, json, "json",
              "One JSON object is printed: problem, backend, messages and, with --rendered, text and ids."),
};

const struct args_command problems_prompt_command = {
    .name = "problems prompt",
    .usage = "KEY [--rendered] [--json] [--config FILE]... [key=value]...",
    .about = "Prints the first prompt of a problem as `train` and `eval` with these keys show it: source, backend, "
             "prompt_option, thinking, prompt_include_hardware and others decide (`kernelrl help train`).",
    .flags = prompt_flags,
    .n_flags = ARRAY_LEN(prompt_flags),
    .max_words = -1,
    .keys = true,
};

/* Finds a problem as the run has it: with the batch of batch_factor, where that changes it. */
static enum status find_problem(const struct train_options *o, struct problem_set *set, const char *key,
                                const struct problem **out, struct err *e) {
    const char *source;
    TRY(session_source(o, &source, e));
    if (o->dataset_builder.batch_factor > 1 && !strchr(key, '@')) {
        CLEANUP_STR struct str large = STR_INIT;
        struct err ignored;
        str_addf(&large, "%s@%lld", key, (long long)o->dataset_builder.batch_factor);
        if (problem_named(set, source, large.p, out, &ignored) == ST_OK) return ST_OK;
    }
    return problem_named(set, source, key, out, e);
}

static void print_prompt(const struct prompt_args *a, const struct session *s, const struct problem *p,
                         const char *backend, const struct chat_message messages[2], const struct ids *ids) {
    CLEANUP_STR struct str text = STR_INIT, line = STR_INIT;
    if (a->rendered)
        chat_render(s->actor.style, messages, 2, CHAT_GENERATE, &text);
    else
        str_addf(&text, "[system]\n%s\n\n[user]\n%s\n", messages[0].content, messages[1].content);
    if (!a->json) {
        fwrite(str_c(&text), 1, text.len, stdout);
        return;
    }
    js_begin(&line, NULL, '{');
    js_put_str(&line, "problem", p->key);
    js_put_str(&line, "backend", backend);
    rollout_put_messages(&line, "messages", messages);
    if (a->rendered) {
        js_put_strn(&line, "text", str_c(&text), text.len);
        js_begin(&line, "ids", '[');
        for (size_t i = 0; i < ids->len; i++) js_put_i64(&line, NULL, ids->p[i]);
        js_end(&line, ']');
    }
    js_end(&line, '}');
    puts(str_c(&line));
}

static enum status show_prompt(const struct prompt_args *a, const struct train_options *o, const char *key,
                               struct err *e) {
    struct session s = {0};
    struct problem_set set = {0};
    struct arena arena = ARENA_INIT;
    struct chat_message messages[2];
    struct ids ids = {0};
    const struct problem *p;
    enum status st;
    TRY_GOTO(find_problem(o, &set, key, &p, e), out);
    TRY_GOTO(session_open_prompts(o, a->rendered, interrupt_flag(), &s, e), out);
    TRY_GOTO(rollout_messages(&s.actor, p, o->rollout.max_tokens, &arena, messages, &ids, e), out);
    print_prompt(a, &s, p, backend_of(o), messages, &ids);
out:
    ids_free(&ids);
    arena_free(&arena);
    session_close(&s);
    problem_set_free(&set);
    return st;
}

int problems_prompt(int argc, char **argv) {
    const struct args_command *c = &problems_prompt_command;
    struct prompt_args a = {0};
    struct train_options o;
    struct config config;
    struct args given;
    struct err e = {0};
    if (!args_parse(c, argc, argv, &a, &given)) return given.code;
    const char *key = given.n_words > 0 ? given.word[0] : NULL;
    if (!key || key[0] == '-' || strchr(key, '='))
        return args_wrong(c, &given, "expected the KEY of a problem in front of all else, got %s",
                          key ? key : "nothing");
    config_init(&config, &train_schema, &o);
    enum status st = config_args(&config, given.n_words - 1, given.word + 1, &e);
    if (st == ST_OK) st = train_options_finish(&config, &o, &e);
    if (st == ST_OK) st = show_prompt(&a, &o, key, &e);
    config_free(&config);
    return st == ST_OK ? 0 : args_report(&e);
}

/* ---- export -------------------------------------------------------------------------------------------------------*/

struct export_args {
    const char *output;
    enum { EXPORT_TRAIN, EXPORT_TEST, EXPORT_ALL } split;
};

static bool is_row_file(const char *text) {
    return str_has_suffix(text, ".jsonl") || str_has_suffix(text, ".jsonl.zst");
}

static const struct args_flag export_flags[] = {
    FLAG_TEXT(struct export_args, output, "output", "FILE", "standard output",
              "The rows are written there; a file of that name is replaced when all rows are there.", .alias = "out",
              .valid = is_row_file, .expected = "a name that ends in .jsonl or .jsonl.zst"),
    FLAG_CHOICE(struct export_args, split, "split", "S", "train|test|all", "train",
                "Only problems that a run trains on are written, only those that it holds out, or both."),
};

const struct args_command problems_export_command = {
    .name = "problems export",
    .usage = "[--output FILE.jsonl] [--split S] [--config FILE]... [key=value]...",
    .about =
        "Writes a training set for another program: a line for each problem that `train` with these keys would "
        "sample, with its module, its prompt as chat messages, and what `kernelrl verify` takes to judge an answer "
        "to it (docs/formats.md).",
    .flags = export_flags,
    .n_flags = ARRAY_LEN(export_flags),
    .max_words = -1,
    .keys = true,
};

/* Where rows go: a file that gets its name at the end, or standard output. */
struct export_file {
    struct jsonl_writer *w; /* NULL: standard output */
    char *tmp;
};

static enum status export_open(const struct export_args *a, struct export_file *f, struct err *e) {
    if (!a->output) return ST_OK;
    CLEANUP_STR struct str tmp = STR_INIT;
    str_addf(&tmp, "%s.tmp%s", a->output, str_has_suffix(a->output, ".zst") ? ".zst" : "");
    f->tmp = str_steal(&tmp);
    TRY(fs_remove(f->tmp, e));
    return jsonl_append_open(f->tmp, &f->w, NULL, e);
}

static enum status export_close(const struct export_args *a, struct export_file *f, enum status st, struct err *e) {
    struct err ignored;
    if (st == ST_OK && f->w) st = jsonl_sync(f->w, e);
    jsonl_append_close(f->w);
    if (st == ST_OK && f->w && rename(f->tmp, a->output) != 0)
        st = FAIL(e, ST_IO, "%s: cannot rename: %s", f->tmp, strerror(errno));
    if (st != ST_OK && f->tmp && fs_remove(f->tmp, &ignored) != ST_OK) log_warn("%s", ignored.msg);
    free(f->tmp);
    return st;
}

/* Appends the row of a problem and its prompt. */
static void put_row(struct str *line, const struct train_options *o, const char *source, const struct problem *p,
                    const struct chat_message messages[2]) {
    js_begin(line, NULL, '{');
    problems_put_columns(line, p, true);
    js_put_str(line, "backend", backend_of(o));
    rollout_put_messages(line, "prompt", messages);
    js_begin(line, "verify", '[');
    const char *const words[] = {"--problem", p->key, "--source", source, "--backend", backend_of(o)};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) js_put_str(line, NULL, words[i]);
    js_end(line, ']');
    js_end(line, '}');
    str_addc(line, '\n');
}

/* The rows of n problems of one split. */
static enum status export_rows(const struct train_options *o, struct session *s, const struct problem **problems, int n,
                               enum split split, const struct export_file *f, struct err *e) {
    const char *source, *root = getenv("KERNELBENCH_ROOT");
    struct arena arena = ARENA_INIT;
    struct ids ids = {0};
    enum status st = session_source(o, &source, e);
    if (st == ST_OK && (!source || !*source)) source = root && *root ? root : "builtin";
    for (int i = 0; i < n && st == ST_OK; i++) {
        CLEANUP_STR struct str line = STR_INIT;
        struct chat_message messages[2];
        struct problem p = *problems[i];
        p.split = split; /* a source without splits has its last problems held out */
        if (i > 0 && i % PROTOTYPES_AT_ONCE == 0) TRY_GOTO(session_prototypes(o, s, e), out);
        st = rollout_messages(&s->actor, &p, o->rollout.max_tokens, &arena, messages, &ids, e);
        if (st != ST_OK) {
            if (!str_has_prefix(e->msg, "problem ")) err_note(e, "problem %s", p.key);
            goto out;
        }
        put_row(&line, o, source, &p, messages);
        if (f->w)
            TRY_GOTO(jsonl_append(f->w, line.p, line.len, e), out);
        else
            fwrite(line.p, 1, line.len, stdout);
        if (f->w) log_progress("%d of %d problems", i + 1, n);
        if (*interrupt_flag()) st = FAIL(e, ST_CANCELLED, "interrupted after %d of %d problems", i + 1, n);
    }
out:
    ids_free(&ids);
    arena_free(&arena);
    return st;
}

static enum status export_problems(const struct export_args *a, const struct train_options *o, struct err *e) {
    struct session s;
    struct export_file f = {0};
    CLEANUP_FREE const struct problem **train = NULL, **test = NULL;
    int n_train = 0, n_test = 0;
    enum status st;
    TRY_GOTO(session_open_prompts(o, false, interrupt_flag(), &s, e), out);
    TRY_GOTO(session_problems(o, &s, &train, &n_train, &test, &n_test, e), out);
    if (a->split == EXPORT_TEST) n_train = 0;
    if (a->split == EXPORT_TRAIN) n_test = 0;
    if (n_train + n_test == 0) {
        st = FAIL(e, ST_CONFIG, "problems export: no problem is held out; --split all takes those of training, too");
        goto out;
    }
    TRY_GOTO(export_open(a, &f, e), out);
    TRY_GOTO(export_rows(o, &s, train, n_train, SPLIT_TRAIN, &f, e), out);
    st = export_rows(o, &s, test, n_test, SPLIT_TEST, &f, e);
out:
    st = export_close(a, &f, st, e);
    log_progress_end();
    if (st == ST_OK && a->output) log_info("%s: %d problems", a->output, n_train + n_test);
    session_close(&s);
    return st;
}

int problems_export(int argc, char **argv) {
    struct export_args a = {.split = EXPORT_TRAIN};
    struct train_options o;
    struct config config;
    struct args given;
    struct err e = {0};
    if (!args_parse(&problems_export_command, argc, argv, &a, &given)) return given.code;
    config_init(&config, &train_schema, &o);
    enum status st = config_args(&config, given.n_words, given.word, &e);
    if (st == ST_OK) st = train_options_finish(&config, &o, &e);
    if (st == ST_OK) st = export_problems(&a, &o, &e);
    config_free(&config);
    return st == ST_OK ? 0 : args_report(&e);
}
