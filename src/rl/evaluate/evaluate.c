#include "rl/evaluate/evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/pool.h"
#include "io/json.h"
#include "io/tfevents.h"
#include "policy/find_model.h"
#include "rl/learn/session.h"

/* Samples drawn together; on a GPU they are judged for minutes, and what is judged is on disk after so many. */
enum { IN_FLIGHT = 64, GPU_IN_FLIGHT = 16, MAX_PATH = 4096 };
/* Evaluation has random streams of its own. */
#define STREAM UINT64_C(0xe5a1000000)

/* ---- options ------------------------------------------------------------------------------------------------------*/

#define T struct eval_options
#define WHAT_KEYS                                                                                                 \
    KEY_STRING(                                                                                                   \
        T, checkpoint_path, "",                                                                                   \
        "What to evaluate: a run (runs/NAME: its last checkpoint), a checkpoint (runs/NAME/checkpoints/STEP or "  \
        "final), an adapter or a model. A run's config.yaml is where all other keys start. Empty: model_name."),  \
        KEY_INT(T, num_samples, "1", "[1,1024]",                                                                  \
                "Answers a problem. More than one are sampled at temperature 1 unless given."),                   \
        KEY_CHOICE(                                                                                               \
            T, split, SPLIT_LIST, "auto",                                                                         \
            "Which problems: held out, trained on, or both. auto: all with a subset, a first or a last problem, " \
            "else test."),                                                                                        \
        KEY_CHOICE(T, subset, SUBSET_LIST, "all", "representative: the problems KernelBench names so.")
static const struct config_key eval_keys[] = {
    WHAT_KEYS,
    KEY_STRING(
        T, output_path, "eval_results.json",
        "Where the result goes; the samples, the report and its picture get the same name with .samples.jsonl, .md "
        "and .svg. An evaluation that is there is gone on with."),
    KEY_STRING_OPT(T, tensorboard_log_dir, "null", "Folder of TensorBoard events to add the metrics to (Eval/LevelN)."),
    KEY_INT(T, tensorboard_step, "0", "[0,)", "The step they are of."),
};
static const struct config_key generate_keys[] = {
    WHAT_KEYS,
    KEY_STRING(T, run_name, "", "Folder in runs_dir that the kernels go to."),
    KEY_STRING(T, runs_dir, "runs", "Where run_name is."),
    KEY_BOOL(T, log_prompt, "false", "Write the prompts, too (..._prompt.txt)."),
};
#undef T

enum { KEYS_MAX = 400 };
const struct config_schema *eval_schema(void) {
    static struct config_key all[KEYS_MAX];
    static struct config_schema schema;
    if (!schema.count)
        train_schema_with(eval_keys, ARRAY_LEN(eval_keys), offsetof(struct eval_options, train),
                          sizeof(struct eval_options), all, KEYS_MAX, &schema);
    return &schema;
}
const struct config_schema *generate_schema(void) {
    static struct config_key all[KEYS_MAX];
    static struct config_schema schema;
    if (!schema.count)
        train_schema_with(generate_keys, ARRAY_LEN(generate_keys), offsetof(struct eval_options, train),
                          sizeof(struct eval_options), all, KEYS_MAX, &schema);
    return &schema;
}

/* The directory of the run that PATH is, or is a checkpoint of; NULL when it is none. malloc'ed. */
static char *run_of(const char *path) {
    char dir[MAX_PATH];
    snprintf(dir, sizeof dir, "%s", path);
    for (int up = 0; up < 3; up++) {
        char file[MAX_PATH + 16];
        snprintf(file, sizeof file, "%s/config.yaml", dir);
        if (fs_is_file(file)) return xstrdup(dir);
        char *slash = strrchr(dir, '/');
        if (!slash) return NULL;
        *slash = 0;
    }
    return NULL;
}

/* Whether PATH looks like a run, or one of its checkpoints. */
static bool is_of_run(const char *path) {
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%s/checkpoints", path);
    if (fs_is_dir(s.p)) return true;
    str_clear(&s);
    str_addf(&s, "%s/state.json", path);
    return fs_is_file(s.p);
}

/* What a run says about training is nothing to an evaluation of it; where a server trained it, either. */
static void forget_training(struct eval_options *o) {
    o->train.trainer = TRAINER_ENGINE;
    o->train.sampler.kind = SAMPLER_ENGINE;
    o->train.sampler.base_url = NULL;
    o->train.rollout.temperature = -1;
    o->train.load_checkpoint_path = NULL;
    o->train.dataset_builder.level = CONFIG_UNSET_INT;
    o->train.dataset_builder.start_problem = o->train.dataset_builder.end_problem = 0;
    o->train.dataset_builder.generated_problems = 0;
}

enum status eval_configure(struct config *c, const struct config_schema *schema, struct eval_options *o, int argc,
                           char **argv, struct err *e) {
    *o = (struct eval_options){0};
    config_init(c, schema, o);
    forget_training(o);
    TRY(config_args(c, argc, argv, e));
    CLEANUP_FREE char *run = *o->checkpoint_path ? run_of(o->checkpoint_path) : NULL;
    if (run) {
        CLEANUP_STR struct str path = STR_INIT;
        str_addf(&path, "%s/config.yaml", run);
        config_free(c);
        config_init(c, schema, o);
        TRY(config_load(c, path.p, e));
        forget_training(o);
        TRY(config_args(c, argc, argv, e));
    } else if (*o->checkpoint_path && is_of_run(o->checkpoint_path) &&
               strcmp(config_source(c, "model_name"), "default") == 0) {
        return config_reject(
            c, "checkpoint_path", e,
            "%s is of a run whose config.yaml is missing, which says what model and prompts it is for: "
            "give model_name, and whatever else was not the default",
            o->checkpoint_path);
    }
    if (o->num_samples > 1 && o->train.rollout.temperature == 0) {
        log_warn("temperature 0 would give %lld equal answers: sampling at temperature 1", (long long)o->num_samples);
        o->train.rollout.temperature = 1;
    }
    if (o->train.rollout.temperature < 0) o->train.rollout.temperature = o->num_samples > 1 ? 1 : 0;
    return train_options_finish(c, &o->train, e);
}

/* ---- the model ----------------------------------------------------------------------------------------------------*/

/* A run's last checkpoint: "final", else the one with the largest step. malloc'ed; ST_CONFIG when there is none. */
static enum status last_checkpoint(const char *run, char **out, struct err *e) {
    char **names = NULL, best[300] = "", dir[MAX_PATH];
    size_t n = 0;
    int64_t newest = -1;
    snprintf(dir, sizeof dir, "%s/checkpoints", run);
    struct err ignored;
    if (fs_is_dir(dir) && fs_list(dir, &names, &n, &ignored) != ST_OK) n = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t step = INT64_MAX; /* of "final" */
        if ((strcmp(names[i], "final") == 0 || parse_i64(names[i], &step)) && step > newest) {
            snprintf(best, sizeof best, "%s", names[i]);
            newest = step;
        }
        free(names[i]);
    }
    free(names);
    if (!*best) return FAIL(e, ST_CONFIG, "checkpoint_path: %s holds no checkpoint yet; expected one in %s", run, dir);
    struct str s = STR_INIT;
    str_addf(&s, "%s/%s", dir, best);
    *out = str_steal(&s);
    return ST_OK;
}

/* From checkpoint_path (or load_checkpoint_path, as train calls it) to a folder with weights; *out is NULL for the base
 * model. RUN/STEP is short for RUN/checkpoints/STEP. */
static enum status find_checkpoint(const struct eval_options *o, const volatile bool *cancel, char **out,
                                   struct err *e) {
    const char *path = *o->checkpoint_path ? o->checkpoint_path : o->train.load_checkpoint_path;
    *out = NULL;
    if (!path || !*path) return ST_OK;
    CLEANUP_STR struct str s = STR_INIT;
    str_addf(&s, "%s/config.yaml", path);
    if (fs_is_file(s.p)) return last_checkpoint(path, out, e);
    str_clear(&s);
    str_addf(&s, "%s/checkpoints", path);
    if (fs_is_dir(s.p)) return last_checkpoint(path, out, e); /* a run that has lost its config.yaml */
    const char *slash = strrchr(path, '/');
    if (slash && !fs_is_dir(path)) {
        str_clear(&s);
        str_addf(&s, "%.*s/checkpoints%s", (int)(slash - path), path, slash);
        if (fs_is_dir(s.p)) path = s.p;
    }
    return locate("checkpoint_path", HUB_CHECKPOINT, path, NULL, cancel, out, e);
}

/* ---- the problems -------------------------------------------------------------------------------------------------*/

/* KernelBench's representative subset (dataset.py of the benchmark). */
static bool is_representative(const struct problem *p) {
    static const unsigned char level1[] = {1, 3, 6, 18, 23, 26, 33, 36, 40, 42, 48, 54, 57, 65, 77, 82, 86, 87},
                               level2[] = {1, 2, 8, 18, 23, 28, 33, 43}, level3[] = {1, 5, 8, 11, 20, 21, 33, 38, 43};
    const unsigned char *ids = p->level == 1 ? level1 : p->level == 2 ? level2 : level3;
    const size_t n = p->level == 1 ? sizeof level1 : p->level == 2 ? sizeof level2 : p->level == 3 ? sizeof level3 : 0;
    for (size_t i = 0; i < n; i++)
        if (ids[i] == p->problem_id) return true;
    return false;
}

static enum status choose_problems(const struct eval_options *o, struct session *s, const struct problem ***out, int *n,
                                   const char **split_name, struct err *e) {
    static const char *const names[] = {"", "test split", "training split", "both splits"};
    CLEANUP_FREE const struct problem **train = NULL, **test = NULL;
    int n_train, n_test;
    int split = o->split;
    if (split == EVAL_AUTO)
        split =
            o->subset != SUBSET_ALL || o->train.dataset_builder.start_problem || o->train.dataset_builder.end_problem
                ? EVAL_ALL
                : EVAL_TEST;
    TRY(session_problems(&o->train, s, &train, &n_train, &test, &n_test, e));
    const struct problem **all = xcalloc((size_t)(n_train + n_test) + 1, sizeof *all);
    *n = 0;
    for (int i = 0; i < n_test && split != EVAL_TRAIN; i++) all[(*n)++] = test[i];
    for (int i = 0; i < n_train && split != EVAL_TEST; i++) all[(*n)++] = train[i];
    int kept = 0;
    for (int i = 0; i < *n; i++)
        if (o->subset == SUBSET_ALL || is_representative(all[i])) all[kept++] = all[i];
    *n = kept;
    *out = all;
    *split_name = names[split];
    if (kept > 0) return ST_OK;
    return FAIL(e, ST_CONFIG, "eval: no problem is left (%s%s); split: all takes those of training, too", names[split],
                o->subset == SUBSET_ALL ? "" : ", representative subset");
}

/* ---- sampling -----------------------------------------------------------------------------------------------------*/

/* A checkpoint may hold no more than the name of the server's. */
static enum status check_is_here(const char *dir, struct err *e) {
    CLEANUP_FREE char *state = fs_join(dir, "state.json"), *adapter = fs_join(dir, "adapter_config.json");
    CLEANUP_JSON json_t *j = NULL;
    const char *path = NULL;
    if (!fs_is_file(state) || fs_is_file(adapter)) return ST_OK;
    TRY(js_load(state, 1 << 16, &j, e));
    TRY(js_opt_str(j, state, "tinker_path", &path, e));
    if (!path) return ST_OK;
    return FAIL(e, ST_CONFIG,
                "checkpoint_path: %s has no weights, which are on a server: give sampler=tinker checkpoint_path=%s, or "
                "end the run (download_checkpoints)",
                dir, path);
}

struct evaluation {
    const struct eval_options *o;
    struct session s;
    struct train_options mine; /* what the session was opened with */
    char *checkpoint;          /* folder, NULL: base model */
    const struct problem **problems;
    int n;
    const char *split_name;
};

static void evaluation_close(struct evaluation *x) {
    session_close(&x->s);
    free(x->problems);
    free(x->checkpoint);
}

/* replies: where the answers of a server are kept. */
static enum status evaluation_open(const struct eval_options *o, const char *replies, const volatile bool *cancel,
                                   struct evaluation *x, struct err *e) {
    *x = (struct evaluation){.o = o, .mine = o->train};
    CLEANUP_STR struct str adapter = STR_INIT;
    x->mine.sampler.replies = replies;
    if (o->train.sampler.kind == SAMPLER_OPENAI && *o->checkpoint_path)
        return FAIL(e, ST_CONFIG,
                    "checkpoint_path: with sampler: openai the server's model answers (model_name); "
                    "expected none");
    if (o->train.sampler.kind == SAMPLER_TINKER && *o->checkpoint_path) {
        if (!str_has_prefix(o->checkpoint_path, "tinker://"))
            return FAIL(e, ST_CONFIG,
                        "checkpoint_path: with sampler: tinker a checkpoint of the server answers: expected "
                        "tinker://RUN/KIND/NAME (the state.json of a run's checkpoint has it)");
        x->checkpoint = xstrdup(o->checkpoint_path);
    }
    if (o->train.sampler.kind == SAMPLER_ENGINE) TRY(find_checkpoint(o, cancel, &x->checkpoint, e));
    if (o->train.sampler.kind == SAMPLER_ENGINE && x->checkpoint) TRY(check_is_here(x->checkpoint, e));
    x->mine.load_checkpoint_path = x->checkpoint;
    if (x->checkpoint) str_addf(&adapter, "%s/adapter_config.json", x->checkpoint);
    /* A fresh adapter would change nothing and cost time; a checkpoint's own is loaded whatever lora_rank says. */
    x->mine.lora_rank = adapter.len > 0 && fs_is_file(adapter.p);
    x->mine.update.loss.kl_coef = 0; /* nor is a reference model of any use */
    TRY(session_open(&x->mine, cancel, &x->s, e));
    return choose_problems(o, &x->s, &x->problems, &x->n, &x->split_name, e);
}

/* Draws and judges all samples of problems [begin, end) and hands each turn of each to fn. */
typedef enum status sampled_fn(void *ctx, int problem, int sample, int turn, const struct episode *ep, struct err *e);
static enum status sample_range(const struct evaluation *x, int begin, int end, sampled_fn *fn, void *ctx,
                                struct err *e) {
    struct rollout r = {0};
    struct rollout_params p = session_rollout_params(&x->mine);
    p.eval = true;
    p.o.group_size = (int)x->o->num_samples;
    p.first_task = begin;
    p.stream = STREAM + (uint64_t)begin;
    enum status st = rollout_run(&x->s.actor, x->problems + begin, end - begin, &p, &r, NULL, e);
    for (int i = 0; i < r.n_trajectories && st == ST_OK; i++) {
        const struct trajectory *t = &r.trajectory[i];
        for (int k = 0; k < t->n_turns && st == ST_OK; k++) st = fn(ctx, begin + t->task, t->sample, k, t->turn[k], e);
    }
    rollout_free(&r);
    return st;
}

struct keeping {
    struct eval_samples *samples;
    struct eval_sample *items; /* of the range at hand */
    int n;
    struct arena arena;
    const int *have; /* samples each problem has already */
};

static enum status keep(void *ctx, int problem, int sample, int turn, const struct episode *ep, struct err *e) {
    struct keeping *k = ctx;
    (void)e;
    if (sample < k->have[problem]) return ST_OK; /* drawn again on the way to the ones that are missing */
    k->items[k->n++] = (struct eval_sample){.problem = problem,
                                            .sample = sample,
                                            .turn = turn,
                                            .kernel = ep->kernel ? arena_strdup(&k->arena, ep->kernel) : NULL,
                                            .text = arena_strdup(&k->arena, ep->text),
                                            .tokens = (int)ep->tokens,
                                            .format_ok = ep->format_ok,
                                            .present = ep->present,
                                            .verdict = ep->verdict};
    return ST_OK;
}

static enum status sample_missing(const struct evaluation *x, struct eval_samples *samples, struct err *e) {
    const int want = (int)x->o->num_samples, most = strcmp(x->mine.device, "cpu") == 0 ? IN_FLIGHT : GPU_IN_FLIGHT,
              step = most / want > 0 ? most / want : 1;
    CLEANUP_FREE int *have = xcalloc((size_t)x->n + 1, sizeof *have);
    struct keeping k = {.samples = samples, .have = have};
    k.items = xcalloc((size_t)step * (size_t)want * (size_t)train_options_turns(&x->mine), sizeof *k.items);
    enum status st = ST_OK;
    int done = 0;
    for (int i = 0; i < x->n; i++) {
        have[i] = eval_samples_of(samples, i);
        done += have[i] >= want;
    }
    if (done > 0) log_info("%s: %d of %d problems are there already", samples->path, done, x->n);
    for (int begin = 0, end; begin < x->n && st == ST_OK; begin = end) {
        for (end = begin; end < x->n && end - begin < step && have[end] < want;) end++;
        if (end == begin) {
            end++;
            continue;
        }
        k.n = 0;
        arena_reset(&k.arena);
        st = sample_range(x, begin, end, keep, &k, e);
        if (st == ST_OK) st = eval_samples_add(samples, k.items, k.n, e);
        if (st != ST_OK) break;
        done += end - begin;
        log_info("  %d of %d problems", done, x->n);
    }
    free(k.items);
    arena_free(&k.arena);
    if (st == ST_CANCELLED)
        return FAIL(e, ST_CANCELLED, "interrupted after %d of %d problems; the same command goes on from there", done,
                    x->n);
    return st;
}

/* ---- results ------------------------------------------------------------------------------------------------------*/

/* Everything in the configuration but what says how much, where to, or how fast. */
static void settings_text(const struct config *c, const struct evaluation *x, struct str *out) {
    static const char *const free_to_change[] = {"num_samples",
                                                 "output_path",
                                                 "tensorboard_log_dir",
                                                 "tensorboard_step",
                                                 "tensorboard_enabled",
                                                 "threads",
                                                 "kv_memory",
                                                 "activation_memory",
                                                 "train_tokens",
                                                 "log_path",
                                                 "level",
                                                 "start_problem",
                                                 "end_problem",
                                                 "split",
                                                 "subset",
                                                 "checkpoint_path",
                                                 "load_checkpoint_path",
                                                 "sampler",
                                                 "base_url",
                                                 "server_type",
                                                 "api_key_env",
                                                 "reasoning_effort",
                                                 "sampler_concurrency",
                                                 "sampler_timeout_s",
                                                 "sampler_tries",
                                                 "temperature",
                                                 "cache_dir",
                                                 "python",
                                                 "max_steps",
                                                 "save_every"};
    CLEANUP_STR struct str yaml = STR_INIT;
    struct err ignored;
    CLEANUP_FREE char *state = NULL;
    str_addf(out, "temperature: %g\ncheckpoint: %s\n", x->mine.rollout.temperature,
             x->checkpoint ? x->checkpoint : "(base model)");
    if (x->mine.sampler.kind == SAMPLER_OPENAI)
        str_addf(out, "sampler: openai\nreasoning_effort: %s\n",
                 x->mine.sampler.reasoning_effort ? x->mine.sampler.reasoning_effort : "null");
    if (x->mine.sampler.kind == SAMPLER_TINKER) str_adds(out, "sampler: tinker\n");
    if (x->checkpoint) {
        CLEANUP_STR struct str path = STR_INIT;
        str_addf(&path, "%s/state.json", x->checkpoint);
        if (fs_read(path.p, 1 << 16, &state, NULL, &ignored) == ST_OK) str_addf(out, "state: %s", state);
    }
    config_dump(c, &yaml);
    for (const char *p = str_c(&yaml); *p;) {
        const size_t n = strcspn(p, "\n");
        const char *name = p + strspn(p, " ");
        bool keep_line = true;
        for (size_t i = 0; i < ARRAY_LEN(free_to_change); i++) {
            const size_t m = strlen(free_to_change[i]);
            keep_line &= !(strncmp(name, free_to_change[i], m) == 0 && name[m] == ':');
        }
        if (keep_line) str_addf(out, "%.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

/* PATH without ".json", with another ending. */
static char *beside(const char *path, const char *ending) {
    struct str s = STR_INIT;
    str_addf(&s, "%.*s%s", (int)(strlen(path) - (str_has_suffix(path, ".json") ? 5 : 0)), path, ending);
    return str_steal(&s);
}

static void device_name(struct str *out) {
    struct err ignored;
    CLEANUP_FREE char *text = NULL;
    const char *line = NULL;
    if (fs_read("/proc/cpuinfo", 1 << 24, &text, NULL, &ignored) == ST_OK) line = strstr(text, "model name");
    if (line) line = strchr(line, ':');
    str_addf(out, "%.*s, %d threads", line ? (int)strcspn(line + 1, "\n") - 1 : 3, line ? line + 2 : "CPU",
             pool_cpu_count());
}

static enum status push_tensorboard(const struct eval_options *o, const struct summary *m, struct err *e) {
    struct tfevents *t;
    if (!o->tensorboard_log_dir || !*o->tensorboard_log_dir) return ST_OK;
    TRY(tfevents_open(o->tensorboard_log_dir, &t, e));
    for (int level = 0; level <= 9; level++) {
        int n = 0, timed = 0;
        double correct = 0, compiled = 0, fast = 0, log_speed = 0;
        for (int i = 0; i < m->n_problems; i++) {
            const struct problem_summary *p = &m->items[i];
            if (p->level != level || p->n == 0) continue;
            n++;
            correct += (double)p->correct / p->n;
            compiled += (double)p->compiled / p->n;
            fast += (double)p->faster[3] / p->n;
            timed += p->timed;
            log_speed += p->log_speedup * p->timed;
        }
        const struct {
            const char *name;
            double value;
        } all[] = {{"CorrectRate", correct / n},
                   {"CompileRate", compiled / n},
                   {"Fast1", fast / n},
                   {"GeomeanSpeedup", timed ? exp(log_speed / timed) : (double)NAN}};
        for (size_t k = 0; n > 0 && k < ARRAY_LEN(all); k++) {
            char tag[80];
            snprintf(tag, sizeof tag, "Eval/Level%d/%s", level, all[k].name);
            if (isfinite(all[k].value)) tfevents_scalar(t, o->tensorboard_step, tag, all[k].value);
        }
    }
    return tfevents_close(t, e);
}

static enum status write_results(const struct evaluation *x, const struct eval_samples *samples,
                                 const struct summary *m, struct str *text, struct err *e) {
    const struct eval_options *o = x->o;
    CLEANUP_STR struct str source = STR_INIT, device = STR_INIT, md = STR_INIT, svg = STR_INIT;
    CLEANUP_FREE char *md_path = beside(o->output_path, ".md"), *svg_path = beside(o->output_path, ".svg");
    const char *given = o->train.dataset_builder.source, *name = strrchr(svg_path, '/');
    str_addf(&source, "%s, %s%s", given && *given ? given : "default source", x->split_name,
             o->subset == SUBSET_ALL ? "" : ", representative subset");
    device_name(&device);
    const struct report_config c = {.checkpoint_path = x->checkpoint ? x->checkpoint : "",
                                    .model_name = o->train.model_name,
                                    .backend = backend_name(o->train.verify.backend),
                                    .problems = source.p,
                                    .level = (int)i64_max(0, o->train.dataset_builder.level),
                                    .num_samples = (int)o->num_samples,
                                    .turns = train_options_turns(&x->mine),
                                    .temperature = x->mine.rollout.temperature,
                                    .device = str_c(&device)};
    report_json(&c, samples, m, text);
    report_markdown(&c, m, name ? name + 1 : svg_path, &md);
    const char *label = *c.checkpoint_path ? c.checkpoint_path : c.model_name;
    report_svg(&label, &m, 1, &svg);
    TRY(fs_write_atomic(o->output_path, str_c(text), text->len, e));
    TRY(fs_write_atomic(md_path, md.p, md.len, e));
    TRY(fs_write_atomic(svg_path, svg.p, svg.len, e));
    return push_tensorboard(o, m, e);
}

/* Opens x and the samples beside output_path, and draws those that are missing. */
static enum status draw_samples(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                                struct evaluation *x, struct eval_samples *samples, struct err *e) {
    CLEANUP_FREE char *path = beside(o->output_path, ".samples.jsonl"),
                      *replies = beside(o->output_path, ".replies.jsonl");
    const char *slash;
    CLEANUP_STR struct str settings = STR_INIT;
    if (fs_is_dir(o->output_path))
        return FAIL(e, ST_CONFIG, "output_path: %s is a folder; expected the name of a file", o->output_path);
    if ((slash = strrchr(path, '/')) && slash > path) { /* before hours are spent on what could not be written */
        CLEANUP_FREE char *folder = xstrndup(path, (size_t)(slash - path));
        TRY(fs_mkdirs(folder, e));
    }
    TRY(evaluation_open(o, replies, cancel, x, e));
    settings_text(c, x, &settings);
    TRY(eval_samples_open(path, settings.p, x->problems, x->n, samples, e));
    return sample_missing(x, samples, e);
}

enum status evaluate_run(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                         struct summary *out, struct str *text, struct err *e) {
    struct evaluation x = {0};
    struct eval_samples samples = {0};
    *out = (struct summary){0};
    enum status st = draw_samples(c, o, cancel, &x, &samples, e);
    if (st == ST_OK) {
        summarise(&samples, out);
        st = write_results(&x, &samples, out, text, e);
        /* Their keys live in the session. */
        for (int i = 0; i < out->n_problems; i++) out->items[i].key = out->items[i].name = "";
    }
    eval_samples_close(&samples);
    evaluation_close(&x);
    return st;
}

enum status evaluate_answers(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                             const char *path, struct err *e) {
    struct evaluation x = {0};
    struct eval_samples samples = {0};
    CLEANUP_STR struct str lines = STR_INIT;
    enum status st = draw_samples(c, o, cancel, &x, &samples, e);
    for (int64_t i = 0; st == ST_OK && i < samples.n; i++) {
        const struct eval_sample *s = &samples.items[i];
        const bool correct = s->present && s->verdict.outcome == OUTCOME_CORRECT;
        if (!s->present || !s->kernel) continue;
        js_begin(&lines, NULL, '{');
        js_put_str(&lines, "key", x.problems[s->problem]->key);
        js_put_i64(&lines, "problem_id", x.problems[s->problem]->problem_id);
        js_put_str(&lines, "style", "sampled");
        js_put_str(&lines, "broken", correct ? NULL : "sampled");
        js_put_str(&lines, "source", s->kernel);
        js_put_str(&lines, "outcome", outcome_name(s->verdict.outcome));
        js_put_str(&lines, "message", s->verdict.message);
        js_put_f64(&lines, "speedup", s->verdict.speedup);
        js_end(&lines, '}');
        str_addc(&lines, '\n');
    }
    if (st == ST_OK) st = fs_write_atomic(path, str_c(&lines), lines.len, e);
    eval_samples_close(&samples);
    evaluation_close(&x);
    return st;
}

/* ---- generate -----------------------------------------------------------------------------------------------------*/

/* As KernelBench names them, with the ending of the backend. */
static char *file_of(const char *dir, const struct problem *p, int sample, const char *what) {
    struct str s = STR_INIT;
    str_addf(&s, "%s/level_%d_problem_%d_sample_%d_%s", dir, p->level, p->problem_id, sample, what);
    return str_steal(&s);
}

static char *kernel_file(const struct evaluation *x, const char *dir, const struct problem *p, int sample) {
    char what[40];
    snprintf(what, sizeof what, "kernel.%s", x->s.actor.backend->ending);
    return file_of(dir, p, sample, what);
}

/* Whether a sample has its file. Versions before 0.2 called those of cuda_native .c, too. */
static bool is_written(const struct evaluation *x, const char *dir, const struct problem *p, int sample) {
    CLEANUP_FREE char *path = kernel_file(x, dir, p, sample), *old = file_of(dir, p, sample, "kernel.c");
    return fs_is_file(path) || (!x->s.actor.backend->is_module && fs_is_file(old));
}

static bool is_generated(const struct evaluation *x, const char *dir, const struct problem *p) {
    for (int j = 0; j < (int)x->o->num_samples; j++)
        if (!is_written(x, dir, p, j)) return false;
    return true;
}

/* The kernel of one sample; without one there is no file, as in KernelBench. */
static enum status write_kernel(const struct evaluation *x, const char *dir, const struct problem *p, int j,
                                const char *text, int *written, struct err *e) {
    CLEANUP_FREE char *path = kernel_file(x, dir, p, j);
    struct parsed answer;
    if (is_written(x, dir, p, j)) return ST_OK;
    parse_completion(text, strlen(text), prompt_language(x->s.actor.backend), &answer);
    if (!answer.kernel.p) return ST_OK;
    ++*written;
    return fs_write_atomic(path, answer.kernel.p, answer.kernel.n, e);
}

/* All samples of one problem. */
static enum status generate_one(struct evaluation *x, int i, const char *dir, int *written, struct err *e) {
    const struct problem *problem = x->problems[i];
    struct rollout_params p = session_rollout_params(&x->mine);
    const int n = (int)x->o->num_samples;
    CLEANUP_FREE char **text = xcalloc((size_t)n, sizeof *text);
    CLEANUP_STR struct str prompt = STR_INIT;
    p.stream = STREAM + (uint64_t)i;
    enum status st = rollout_answers(&x->s.actor, problem, &p, n, text, x->o->log_prompt ? &prompt : NULL, e);
    for (int j = 0; j < n && st == ST_OK; j++) st = write_kernel(x, dir, problem, j, text[j], written, e);
    if (st == ST_OK && x->o->log_prompt) {
        CLEANUP_FREE char *path = file_of(dir, problem, 0, "prompt.txt");
        st = fs_write_atomic(path, str_c(&prompt), prompt.len, e);
    }
    for (int j = 0; j < n; j++) free(text[j]);
    return st;
}

enum status generate_run(const struct config *c, const struct eval_options *o, const volatile bool *cancel,
                         int *written, struct err *e) {
    struct evaluation x = {0};
    CLEANUP_STR struct str dir = STR_INIT, path = STR_INIT, yaml = STR_INIT, replies = STR_INIT;
    enum status st;
    *written = 0;
    if (!*o->run_name || strchr(o->run_name, '/'))
        return config_reject(c, "run_name", e, "expected the name of a folder in runs_dir, got \"%s\"", o->run_name);
    str_addf(&dir, "%s/%s", o->runs_dir, o->run_name);
    str_addf(&path, "%s/generation_config.yaml", dir.p);
    str_addf(&replies, "%s/replies.jsonl", dir.p);
    TRY(fs_mkdirs(dir.p, e));
    TRY_GOTO(evaluation_open(o, replies.p, cancel, &x, e), out);
    config_dump(c, &yaml);
    TRY_GOTO(fs_write_atomic(path.p, str_c(&yaml), yaml.len, e), out);
    for (int i = 0; i < x.n && st == ST_OK; i++) {
        if (is_generated(&x, dir.p, x.problems[i])) continue;
        st = generate_one(&x, i, dir.p, written, e);
        log_info("  %d of %d problems, %d kernels", i + 1, x.n, *written);
    }
out:
    evaluation_close(&x);
    return st;
}
