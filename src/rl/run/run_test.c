/* The run directory: lock, checkpoints, cutting back, metrics and traces. */
#include "rl/run/run.h"

#include <math.h>
#include <unistd.h>

#include "io/json.h"
#include "io/jsonl.h"
#include "rl/run/episodes.h"
#include "rl/test_util.h"

static struct run_dir *open_run(const char *name, bool tensorboard) {
    struct run_dir *r = NULL;
    CHECK(run_open(in_tmp(name), "seed: 1\n", tensorboard, &r, &err));
    return r;
}

static void second_writer_is_refused(void **state) {
    (void)state;
    struct run_dir *a = open_run("lock", false), *b = NULL;
    assert_string_equal(run_dir(a), in_tmp("lock"));
    CHECK_FAILS(run_open(in_tmp("lock"), "seed: 2\n", false, &b, &err), ST_IO, "another process is training");
    assert_non_null(strstr(err.msg, in_tmp("lock")));
    assert_null(b);
    CLEANUP_FREE char *config = read_file(in_tmp("lock/config.yaml"));
    assert_string_equal(config, "seed: 1\n"); /* the refused one wrote nothing */
    run_close(a);
    CHECK(run_open(in_tmp("lock"), "seed: 2\n", false, &b, &err));
    CLEANUP_FREE char *again = read_file(in_tmp("lock/config.yaml"));
    assert_string_equal(again, "seed: 2\n");
    run_close(b);
    run_close(NULL);
    write_file(in_tmp("file"), "");
    assert_int_not_equal(run_open(in_tmp("file"), "", false, &b, &err), ST_OK);
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

/* A model and an optimizer after one update with gradients of noise. */
static struct adamw *make_state(struct model *m, uint64_t seed) {
    int n;
    const struct param *p = model_params(m, &n);
    struct adamw *opt;
    CHECK(adamw_create(test_backend(), p, n, &opt, &err));
    for (int i = 0; i < n; i++) {
        struct rng r = rng_make(seed, 77 + (uint64_t)i);
        for (int64_t k = 0; k < p[i].n; k++) p[i].g[k] = (float)rng_normal(&r);
    }
    adamw_step(opt, p, n, &(struct adamw_config){0.01, 0.9, 0.95, 1e-8, 0.1}, 1, false);
    model_params_changed(m);
    return opt;
}

static void assert_equal_state(struct model *a, const struct adamw *oa, struct model *b, const struct adamw *ob) {
    int na, nb;
    const struct param *p = model_params(a, &na), *q = model_params(b, &nb);
    assert_int_equal(na, nb);
    assert_int_equal(oa->step, ob->step);
    for (int i = 0; i < na; i++) {
        size_t bytes = (size_t)p[i].n * sizeof(float);
        assert_memory_equal(p[i].w, q[i].w, bytes);
        assert_memory_equal(oa->m[i], ob->m[i], bytes);
        assert_memory_equal(oa->v[i], ob->v[i], bytes);
    }
}

static void save(struct run_dir *r, const char *name, int64_t next, struct model *m, bool lora,
                 const struct adamw *opt) {
    CHECK(run_save_checkpoint(r, name, next, 10 * next, NULL, m, lora, opt, in_tmp("tokenizer"), 0, &err));
    CHECK(run_checkpoint_saved(r, &err));
}

static void round_trip(bool lora) {
    struct run_dir *r = open_run(lora ? "lora" : "full", false);
    struct model *m = tiny_model(1, lora), *copy = tiny_model(2, lora);
    struct adamw *opt = make_state(m, 3), *other = make_state(copy, 4);
    save(r, "000003", 3, m, lora, opt);
    struct run_checkpoint c;
    CHECK(run_last_checkpoint(r, &c, &err));
    assert_true(c.found && c.next_step == 3);
    int64_t opt_step = 0;
    CHECK(run_load_checkpoint(&c, copy, lora, other, &opt_step, &err));
    assert_int_equal(opt_step, 30);
    assert_equal_state(m, opt, copy, other);

    /* The same name again takes the place of the old one and leaves nothing beside it. */
    adamw_free(opt);
    opt = make_state(m, 5);
    save(r, "000003", 3, m, lora, opt);
    CHECK(run_load_checkpoint(&c, copy, lora, other, &opt_step, &err));
    assert_equal_state(m, opt, copy, other);
    char **names;
    size_t n;
    CHECK(fs_list(in_tmp(lora ? "lora/checkpoints" : "full/checkpoints"), &names, &n, &err));
    assert_int_equal(n, 1);
    free(names[0]);
    free(names);

    /* What was asked for must be what is there. */
    c.next_step = 4;
    CHECK_FAILS(run_load_checkpoint(&c, copy, lora, other, &opt_step, &err), ST_PARSE, "next_step is 3, expected 4");
    c.next_step = 3;
    assert_int_not_equal(run_load_checkpoint(&c, copy, !lora, other, &opt_step, &err), ST_OK);
    adamw_free(opt);
    adamw_free(other);
    model_free(m);
    model_free(copy);
    run_close(r);
}

static void full_round_trip(void **state) {
    (void)state;
    write_byte_tokenizer(in_tmp("tokenizer"));
    round_trip(false);
    assert_true(fs_is_file(in_tmp("full/checkpoints/000003/tokenizer.json"))); /* ready to be loaded as a model */
    struct model *m;
    CHECK(model_load(in_tmp("full/checkpoints/000003"), NULL, test_backend(), &m, &err));
    model_free(m);
}

static void lora_round_trip(void **state) {
    (void)state;
    round_trip(true);
    assert_true(fs_is_file(in_tmp("lora/checkpoints/000003/adapter_config.json")));
    assert_false(fs_is_file(in_tmp("lora/checkpoints/000003/model.safetensors")));
}

static void assert_last(const struct run_dir *r, int64_t next_step) {
    struct run_checkpoint c;
    CHECK(run_last_checkpoint(r, &c, &err));
    assert_int_equal(c.found ? c.next_step : -1, next_step);
}

static void last_checkpoint_is_the_newest_complete_one(void **state) {
    (void)state;
    struct run_dir *r = open_run("last", false);
    assert_last(r, -1);
    struct model *m = tiny_model(1, true);
    struct adamw *opt = make_state(m, 3);
    static const int64_t steps[] = {2, 4, 6, 8, 10};
    for (size_t i = 0; i < ARRAY_LEN(steps); i++) {
        char name[16];
        snprintf(name, sizeof name, "%06d", (int)steps[i]);
        save(r, name, steps[i], m, true, opt);
        assert_last(r, steps[i]);
    }
    save(r, "again", 6, m, true, opt); /* recorded later, but not as far */
    assert_last(r, 10);
    CHECK(fs_mkdirs(in_tmp("last/checkpoints/000012.tmp"), &err));
    run_close(r);

    /* A killed run: half a line, and a line that leads out of the directory. */
    CLEANUP_FREE char *lines = read_file(in_tmp("last/checkpoints.jsonl"));
    struct str more = STR_INIT;
    str_addf(&more, "%s{\"name\":\"../../x\",\"next_step\":99,\"kind\":\"adapter\"}\n{\"name\":\"00", lines);
    write_file(in_tmp("last/checkpoints.jsonl"), more.p);
    str_free(&more);
    r = open_run("last", false);
    assert_last(r, 10);

    CHECK(fs_remove(in_tmp("last/checkpoints/000010/adapter_model.safetensors"), &err));
    assert_last(r, 8);
    CHECK(fs_remove(in_tmp("last/checkpoints/000008/optimizer.safetensors"), &err));
    assert_last(r, 6);
    write_file(in_tmp("last/checkpoints/000006/state.json"), "{\"next_st");
    write_file(in_tmp("last/checkpoints/again/state.json"), "{}");
    assert_last(r, 4);
    CHECK(fs_remove(in_tmp("last/checkpoints/000004"), &err));
    assert_last(r, 2);
    /* Killed between the two renames of a replacement: the old one is put back. */
    assert_int_equal(rename(in_tmp("last/checkpoints/000002"), in_tmp("last/checkpoints/000002.old")), 0);
    assert_last(r, 2);
    assert_false(fs_is_dir(in_tmp("last/checkpoints/000002.old")));
    CHECK(fs_remove(in_tmp("last/checkpoints"), &err));
    assert_last(r, -1);
    adamw_free(opt);
    model_free(m);
    run_close(r);
}

/* "final" of a longer run was moved into place, but the line about it was never written. */
static void pruning_keeps_the_newest(void **state) {
    (void)state;
    static const char *const names[] = {"000007", "999999", "1000000", "1000001", "final"};
    struct run_dir *r = open_run("prune", false);
    struct model *m = tiny_model(1, true);
    struct adamw *opt = make_state(m, 3);
    char path[4200];
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", run_dir(r), names[i]);
        CHECK(fs_mkdirs(path, &err));
    }
    CHECK(run_save_checkpoint(r, "1000002", 1000002, 1, NULL, m, true, opt, NULL, 3, &err));
    CHECK(run_checkpoint_saved(r, &err));
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        snprintf(path, sizeof path, "%s/checkpoints/%s", run_dir(r), names[i]);
        assert_int_equal(fs_is_dir(path), i >= 2);
    }
    assert_last(r, 1000002);
    adamw_free(opt);
    model_free(m);
    run_close(r);
}

static void position_is_that_of_the_files(void **state) {
    (void)state;
    struct run_dir *r = open_run("position", false);
    struct model *m = tiny_model(1, true);
    struct adamw *opt = make_state(m, 3), *other = make_state(m, 4);
    save(r, "final", 10, m, true, opt);
    CHECK(checkpoint_replace(in_tmp("position/checkpoints/final"), 20, 200, NULL, m, true, "f32", opt, NULL, &err));
    struct run_checkpoint c;
    int64_t opt_step;
    CHECK(run_last_checkpoint(r, &c, &err));
    assert_int_equal(c.next_step, 20);
    CHECK(run_load_checkpoint(&c, m, true, other, &opt_step, &err));
    assert_int_equal(opt_step, 200);
    adamw_free(opt);
    adamw_free(other);
    model_free(m);
    run_close(r);
}

/* Weights that change while a checkpoint goes onto the disk are not in it. */
static void a_checkpoint_is_of_its_moment(void **state) {
    (void)state;
    struct run_dir *r = open_run("moment", false);
    struct model *m = tiny_model(1, true), *before = tiny_model(1, true);
    struct adamw *opt = make_state(m, 3), *kept = make_state(before, 3);
    int n;
    const struct param *p = model_params(m, &n);
    CHECK(run_save_checkpoint(r, "000001", 1, 10, NULL, m, true, opt, NULL, 0, &err));
    for (int i = 0; i < n; i++)
        if (p[i].g) p[i].w[0] = opt->m[i][0] = 7;
    CHECK(run_save_checkpoint(r, "000002", 2, 20, NULL, m, true, opt, NULL, 0, &err)); /* waits for the first */
    CHECK(run_checkpoint_saved(r, &err));
    struct run_checkpoint c;
    int64_t opt_step;
    CHECK(run_find_checkpoint(r, 1, &c, &err));
    CHECK(run_load_checkpoint(&c, m, true, opt, &opt_step, &err));
    assert_equal_state(m, opt, before, kept);
    assert_last(r, 2);
    adamw_free(opt);
    adamw_free(kept);
    model_free(before);
    model_free(m);
    run_close(r);
}

/* A checkpoint that cannot be written leaves the one before it. */
static void failed_save_changes_nothing(void **state) {
    (void)state;
    struct run_dir *r = open_run("failed", false);
    struct model *m = tiny_model(1, true);
    struct adamw *opt = make_state(m, 3);
    save(r, "final", 10, m, true, opt);
    write_file(in_tmp("failed/plain"), "");
    assert_int_not_equal(run_save_checkpoint(r, "../plain/x", 20, 1, NULL, m, true, opt, NULL, 0, &err), ST_OK);
    assert_last(r, 10);
    CHECK(run_checkpoint_saved(r, &err)); /* nothing was begun */
    /* What fails behind the call is said by the one that waits, once. */
    write_file(in_tmp("failed/checkpoints/000020"), "in the way");
    CHECK(run_save_checkpoint(r, "000020", 20, 1, NULL, m, true, opt, NULL, 0, &err));
    CHECK_FAILS(run_checkpoint_saved(r, &err), ST_IO, "cannot rename");
    CHECK(run_checkpoint_saved(r, &err));
    assert_false(fs_is_dir(in_tmp("failed/checkpoints/000020.tmp")));
    assert_last(r, 10);
    adamw_free(opt);
    model_free(m);
    run_close(r);
}

/* ---- metrics and traces -------------------------------------------------------------------------------------------*/

static void add_metrics(struct run_dir *r, int64_t step) {
    const struct metric m[] = {{"reward/mean", 0.5 + (double)step}, {"kernel/fast_1_rate", NAN}, {"kernel/missing", 2}};
    CHECK(run_metrics(r, step, m, ARRAY_LEN(m), &err));
}

static const struct problem problem = {.key = "level1/1_\"ReLU\""};

static void add_trace(struct run_dir *r, int64_t step) {
    static char text[] = "<KERNEL>\n\"\xff\"";
    struct episode ep = {.sample = {.n = 3, .stop = STOP_LENGTH},
                         .text = text,
                         .format_ok = true,
                         .present = step != 1,
                         .verdict = {.outcome = OUTCOME_COMPILE_ERROR, .message = "no \"x\""},
                         .reward = {.total = 1.25},
                         .advantage = -0.5};
    int32_t ids[] = {5, 6, 7}, prompt[] = {1, 2};
    float logp[] = {-0.5f, -0.25f, 0};
    ep.sample.ids = ids;
    ep.sample.logp = logp;
    struct sample_group g = {.problem = &problem, .prompt = {prompt, 2, 2}, .ep = &ep, .n = 1, .task = 4, .first = 7};
    const struct rollout x = {.group = &g, .n = 1};
    CHECK(run_traces(r, step, NULL, &x, &err));
}

/* All lines of a compressed file. Caller frees. */
static char *read_traces(const char *path) {
    struct jsonl_reader *r;
    struct str s = STR_INIT;
    CHECK(jsonl_open(path, 1 << 20, &r, &err));
    for (;;) {
        const char *line;
        size_t n;
        CHECK(jsonl_next(r, &line, &n, &err));
        if (!line) break;
        str_add(&s, line, n);
        str_addc(&s, '\n');
    }
    jsonl_close(r);
    return str_steal(&s);
}

/* Said before the first step. */
static void room_for_a_checkpoint(void **state) {
    (void)state;
    float g;
    struct param p[2] = {{.name = "a", .g = &g, .n = 1000}, {.name = "b", .n = 1LL << 60}}; /* b is not trained */
    struct run_dir *r = open_run("room", false);
    CHECK(checkpoint_room(run_dir(r), p, 2, &err));
    p[1].g = &g;
    CHECK_FAILS(checkpoint_room(run_dir(r), p, 2, &err), ST_IO, "MB are free, and a checkpoint takes");
    CHECK_FAILS(checkpoint_room(in_tmp("nowhere"), p, 1, &err), ST_IO, "No such file");
    run_close(r);
}

static void truncate_drops_later_steps(void **state) {
    (void)state;
    struct run_dir *r = open_run("cut", false);
    for (int64_t step = 0; step < 5; step++) {
        add_metrics(r, step);
        add_trace(r, step);
        add_trace(r, step);
    }
    bool evaluated;
    CHECK(run_is_evaluated(r, 4, &evaluated, &err));
    assert_false(evaluated);
    CHECK(run_metrics(r, 4, &(struct metric){"eval/correct_rate", 0.5}, 1, &err));
    CHECK(run_is_evaluated(r, 4, &evaluated, &err));
    assert_true(evaluated);
    CHECK(run_is_evaluated(r, 3, &evaluated, &err));
    assert_false(evaluated);
    CHECK(run_truncate(r, 5, &err)); /* nothing to drop */
    CLEANUP_FREE char *all = read_file(in_tmp("cut/metrics.jsonl")),
                      *traces = read_traces(in_tmp("cut/traces.jsonl.zst"));
    CHECK(run_truncate(r, 3, &err));
    CLEANUP_FREE char *kept = read_file(in_tmp("cut/metrics.jsonl")),
                      *kept_traces = read_traces(in_tmp("cut/traces.jsonl.zst"));
    assert_true(strlen(kept) < strlen(all) && strncmp(all, kept, strlen(kept)) == 0);
    assert_non_null(strstr(kept, "{\"step\":2,"));
    assert_null(strstr(kept, "{\"step\":3,"));
    assert_true(strlen(kept_traces) < strlen(traces) && strncmp(traces, kept_traces, strlen(kept_traces)) == 0);
    assert_non_null(strstr(kept_traces, "{\"step\":2,"));
    assert_null(strstr(kept_traces, "{\"step\":3,"));
    add_metrics(r, 3); /* and it goes on behind them */
    add_metrics(r, 4);
    CHECK(run_metrics(r, 4, &(struct metric){"eval/correct_rate", 0.5}, 1, &err));
    add_trace(r, 3);
    CLEANUP_FREE char *again = read_file(in_tmp("cut/metrics.jsonl"));
    assert_string_equal(again, all);
    CHECK(run_truncate(r, 0, &err));
    CLEANUP_FREE char *none = read_traces(in_tmp("cut/traces.jsonl.zst"));
    assert_string_equal(none, "");
    run_close(r);
}

/* Half lines from a killed process, lines that do not begin with their step, and TensorBoard's file: all cut back. */
static void truncate_after_a_kill(void **state) {
    (void)state;
    struct run_dir *r = open_run("killed", true);
    for (int64_t step = 0; step < 4; step++) {
        add_metrics(r, step);
        add_trace(r, step);
    }
    run_close(r);
    CLEANUP_FREE char *metrics = read_file(in_tmp("killed/metrics.jsonl")),
                      *traces = read_traces(in_tmp("killed/traces.jsonl.zst"));
    char **names;
    size_t count;
    CHECK(fs_list(in_tmp("killed/tensorboard"), &names, &count, &err));
    assert_int_equal(count, 1);
    CLEANUP_STR struct str events = STR_INIT, more = STR_INIT;
    str_addf(&events, "%s/%s", in_tmp("killed/tensorboard"), names[0]);
    free(names[0]);
    free(names);
    size_t before, after;
    CLEANUP_FREE char *data = NULL, *kept = NULL;
    CHECK(fs_read(events.p, 1 << 20, &data, &before, &err));

    str_addf(&more, "%s{\"x\":1,\"step\":9}\n{\"step\":1,\"te", metrics);
    write_file(in_tmp("killed/metrics.jsonl"), more.p);
    str_clear(&more);
    CLEANUP_FREE char *frames = NULL;
    size_t n_frames;
    CHECK(fs_read(in_tmp("killed/traces.jsonl.zst"), 1 << 20, &frames, &n_frames, &err));
    str_add(&more, frames, n_frames);
    str_add(&more, frames, n_frames / 8); /* the beginning of one more */
    CHECK(fs_write_atomic(in_tmp("killed/traces.jsonl.zst"), more.p, more.len, &err));
    r = open_run("killed", true);
    CHECK(run_truncate(r, 4, &err));
    CLEANUP_FREE char *m = read_file(in_tmp("killed/metrics.jsonl")),
                      *t = read_traces(in_tmp("killed/traces.jsonl.zst"));
    assert_string_equal(m, metrics);
    assert_string_equal(t, traces);
    CHECK(run_truncate(r, 2, &err));
    CHECK(fs_read(events.p, 1 << 20, &kept, &after, &err));
    assert_true(after < before && memcmp(data, kept, after) == 0);
    run_close(r);

    static const char nonsense[] = "{\"step\":0}\nnonsense\n";
    struct jsonl_writer *w;
    CHECK(fs_remove(in_tmp("killed/traces.jsonl.zst"), &err));
    CHECK(jsonl_append_open(in_tmp("killed/traces.jsonl.zst"), &w, NULL, &err));
    CHECK(jsonl_append(w, nonsense, sizeof nonsense - 1, &err));
    jsonl_append_close(w);
    CHECK_FAILS(run_open(in_tmp("killed"), "seed: 1\n", false, &r, &err), ST_PARSE, "traces.jsonl.zst:2");
}

/* ---- the index of the traces --------------------------------------------------------------------------------------*/

/* What the index of DIR would be if it were made from its traces alone. Caller frees. */
static char *made_anew(const char *dir) {
    struct episodes *x;
    struct str path = STR_INIT;
    str_addf(&path, "%s/traces.jsonl.zst", dir);
    char *bytes;
    size_t n;
    CHECK(fs_read(path.p, 1 << 20, &bytes, &n, &err));
    CHECK(fs_mkdirs(in_tmp("anew"), &err));
    CHECK(episodes_remove(in_tmp("anew"), &err));
    CHECK(fs_write_atomic(in_tmp("anew/traces.jsonl.zst"), bytes, n, &err));
    CHECK(episodes_open(in_tmp("anew"), &x, &err));
    episodes_close(x);
    free(bytes);
    str_free(&path);
    return read_file(in_tmp("anew/episodes.jsonl"));
}

static void assert_index_is_level(const char *dir, int rows) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/episodes.jsonl", dir);
    CLEANUP_FREE char *index = read_file(path.p), *anew = made_anew(dir);
    assert_string_equal(index, anew);
    int lines = 0;
    for (const char *p = index; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, rows + 1);
}

static void index_of_traces(void **state) {
    (void)state;
    struct run_dir *r = open_run("index", false);
    CLEANUP_FREE char *head = read_file(in_tmp("index/episodes.jsonl"));
    assert_string_equal(head, "{\"format\":\"episodes\",\"version\":1}\n");
    for (int64_t step = 0; step < 5; step++) add_trace(r, step);
    assert_index_is_level(in_tmp("index"), 5);
    CLEANUP_FREE char *rows = read_file(in_tmp("index/episodes.jsonl")),
                      *traces = read_traces(in_tmp("index/traces.jsonl.zst"));
    CLEANUP_STR struct str first = STR_INIT;
    str_addf(
        &first,
        "%s{\"frame\":0,\"at\":0,\"bytes\":%d,\"step\":0,\"group\":4,\"sample\":7,\"turn\":0,\"problem\":"
        "\"level1/1_\\\"ReLU\\\"\",\"stop\":\"length\",\"tokens\":3,\"format_ok\":true,\"reward\":{\"total\":1.25,",
        head, (int)strcspn(traces, "\n"));
    assert_true(str_has_prefix(rows, first.p));
    assert_non_null(strstr(rows, ",\"outcome\":\"compile_error\",\"class\":\"B\",\"passed_stage\":\"lint\","));
    /* A resume writes frames anew, at other places. */
    CHECK(run_truncate(r, 3, &err));
    assert_index_is_level(in_tmp("index"), 3);
    add_trace(r, 3);
    assert_index_is_level(in_tmp("index"), 4);
    CHECK(run_truncate(r, 9, &err)); /* nothing to drop */
    assert_index_is_level(in_tmp("index"), 4);
    CHECK(run_truncate(r, 0, &err));
    assert_index_is_level(in_tmp("index"), 0);
    run_close(r);
}

/* Whatever a crash, an older version or another hand left: opening the run brings the index level. */
static void index_after_a_kill(void **state) {
    (void)state;
    struct run_dir *r = open_run("level", false);
    for (int64_t step = 0; step < 4; step++) add_trace(r, step);
    run_close(r);
    CLEANUP_FREE char *whole = read_file(in_tmp("level/episodes.jsonl"));
    const size_t n = strlen(whole);
    for (size_t keep = 0; keep <= n; keep += keep + 7 < n ? 7 : 1) { /* killed while it was written */
        CHECK(fs_write_atomic(in_tmp("level/episodes.jsonl"), whole, keep, &err));
        run_close(open_run("level", false));
        CLEANUP_FREE char *now = read_file(in_tmp("level/episodes.jsonl"));
        assert_string_equal(now, whole);
    }
    static const char *const others[] = {
        "{\"format\":\"episodes\",\"version\":2}\n{\"frame\":0,\"x\":1}\n",                        /* later version */
        "nonsense\n",                                                                              /* no index */
        "{\"format\":\"episodes\",\"version\":1}\n{\"frame\":5,\"x\":1}\n",                        /* no frame there */
        "{\"format\":\"episodes\",\"version\":1}\n{\"frame\":1000000,\"x\":1}\n",                  /* traces shrank */
        "{\"format\":\"episodes\",\"version\":1}\n{\"frame\":9,\"x\":1}\n{\"frame\":3,\"x\":1}\n", /* out of order */
        "{\"format\":\"episodes\",\"version\":1}\n{\"step\":9}\n",                                 /* not a row */
    };
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        write_file(in_tmp("level/episodes.jsonl"), others[i]);
        run_close(open_run("level", false));
        CLEANUP_FREE char *now = read_file(in_tmp("level/episodes.jsonl"));
        assert_string_equal(now, whole);
    }
    CHECK(fs_remove(in_tmp("level/traces.jsonl.zst"), &err)); /* the traces are gone */
    run_close(open_run("level", false));
    assert_index_is_level(in_tmp("level"), 0);
}

static void trace_line(void **state) {
    (void)state;
    struct run_dir *r = open_run("trace", false);
    add_trace(r, 0);
    add_trace(r, 1); /* no verdict: no reward */
    run_close(r);
    CLEANUP_FREE char *text = read_traces(in_tmp("trace/traces.jsonl.zst"));
    char *second = strchr(text, '\n') + 1;
    CLEANUP_JSON json_t *row = NULL, *missing = NULL;
    json_t *reward, *verdict;
    const char *s;
    int64_t i;
    double d;
    CHECK(js_parse(text, (size_t)(second - text - 1), "trace", &row, &err));
    CHECK(js_get_i64(row, "", "step", &i, &err));
    assert_int_equal(i, 0);
    CHECK(js_get_i64(row, "", "group", &i, &err));
    assert_int_equal(i, 4);
    CHECK(js_get_i64(row, "", "sample", &i, &err));
    assert_int_equal(i, 7);
    CHECK(js_get_str(row, "", "problem", &s, &err));
    assert_string_equal(s, problem.key);
    CHECK(js_get_str(row, "", "text", &s, &err));
    assert_string_equal(s, "<KERNEL>\n\"\xef\xbf\xbd\"");
    CHECK(js_get_str(row, "", "stop", &s, &err));
    assert_string_equal(s, stop_reason_name(STOP_LENGTH));
    CHECK(js_get_object(row, "", "reward", &reward, &err));
    CHECK(js_get_f64(reward, "", "total", &d, &err));
    assert_true(d == 1.25);
    CHECK(js_get_object(row, "", "verdict", &verdict, &err));
    CHECK(js_get_str(verdict, "", "outcome", &s, &err));
    assert_string_equal(s, "compile_error");
    CHECK(js_parse(second, strlen(second) - 1, "trace", &missing, &err));
    assert_true(json_is_null(json_object_get(json_object_get(missing, "reward"), "total")));
    json_t *ids = json_object_get(row, "ids"), *prompt = json_object_get(row, "prompt_ids");
    assert_true(json_array_size(ids) == 3 && json_integer_value(json_array_get(ids, 2)) == 7);
    assert_true(json_array_size(prompt) == 2 && json_integer_value(json_array_get(prompt, 1)) == 2);
    assert_true(json_number_value(json_array_get(json_object_get(row, "logp"), 1)) == -0.25);
}

/* The first line of a prompt, and no other, ends with the prompt's text: of tokens, or of messages. */
static void prompts_of_traces(void **state) {
    (void)state;
    static char text[] = "answer", system[] = "Be \"fast\".", user[] = "Beat it.";
    struct run_dir *r = open_run("prompts", false);
    struct tokenizer *tok;
    write_byte_tokenizer(in_tmp("tok"));
    CHECK(tokenizer_open(in_tmp("tok"), &tok, &err));
    struct ids prompt = {0};
    tokenizer_encode(tok, "<|im_start|>Hi \"you\"", 20, true, &prompt);
    struct episode ep[3] = {{.text = text}, {.text = text}, {.text = text}};
    struct sample_group g[] = {{.problem = &problem, .prompt = prompt, .ep = ep, .n = 2},
                               {.problem = &problem, .message = {system, user}, .ep = ep + 2, .n = 1}};
    CHECK(run_traces(r, 0, tok, &(struct rollout){.group = g, .n = 2}, &err));
    run_close(r);
    CLEANUP_FREE char *lines = read_traces(in_tmp("prompts/traces.jsonl.zst"));
    char *second = strchr(lines, '\n') + 1, *third = strchr(second, '\n') + 1;
    assert_non_null(strstr(lines, ",\"prompt_text\":\"<|im_start|>Hi \\\"you\\\"\"}\n{"));
    third[-1] = 0;
    assert_null(strstr(second, "\"prompt"));
    assert_non_null(strstr(third, ",\"prompt_text\":\"Be \\\"fast\\\".\\n\\nBeat it.\"}\n"));
    ids_free(&prompt);
    tokenizer_close(tok);
}

/* Whether the events file holds Summary.Value{tag, simple_value}: field 1 is the tag, field 2 a float. */
static bool has_scalar(const char *data, size_t n, const char *tag, float value) {
    char want[80];
    size_t len = strlen(tag);
    want[0] = 0x0a;
    want[1] = (char)len;
    memcpy(want + 2, tag, len);
    want[2 + len] = 0x15;
    memcpy(want + 3 + len, &value, 4);
    return mem_find(data, n, want, len + 7) != NULL;
}

static void metrics_line_and_tensorboard(void **state) {
    (void)state;
    struct run_dir *r = open_run("metrics", true);
    add_metrics(r, 3);
    CLEANUP_FREE char *lines = read_file(in_tmp("metrics/metrics.jsonl")); /* written at once */
    assert_string_equal(lines, "{\"step\":3,\"reward/mean\":3.5,\"kernel/fast_1_rate\":null,\"kernel/missing\":2}\n");
    char **names, *data;
    size_t count, n;
    CHECK(fs_list(in_tmp("metrics/tensorboard"), &names, &count, &err));
    assert_int_equal(count, 1);
    struct str path = STR_INIT;
    str_addf(&path, "%s/%s", in_tmp("metrics/tensorboard"), names[0]);
    CHECK(fs_read(path.p, 1 << 20, &data, &n, &err));
    assert_true(has_scalar(data, n, "Reward/Mean", 3.5f));
    assert_true(has_scalar(data, n, "Kernel/Missing", 2));
    assert_null(mem_find(data, n, "Fast1Rate", 9)); /* TensorBoard is spared what is no number */
    str_free(&path);
    free(data);
    free(names[0]);
    free(names);
    CHECK(run_metrics(r, 4, &(struct metric){"kernel/fast_1_rate", 0.25}, 1, &err));
    CHECK(fs_list(in_tmp("metrics/tensorboard"), &names, &count, &err));
    path = STR_INIT;
    str_addf(&path, "%s/%s", in_tmp("metrics/tensorboard"), names[0]);
    CHECK(fs_read(path.p, 1 << 20, &data, &n, &err));
    assert_true(has_scalar(data, n, "Kernel/Fast1Rate", 0.25f));
    str_free(&path);
    free(data);
    free(names[0]);
    free(names);
    run_close(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(second_writer_is_refused),
        cmocka_unit_test(full_round_trip),
        cmocka_unit_test(lora_round_trip),
        cmocka_unit_test(last_checkpoint_is_the_newest_complete_one),
        cmocka_unit_test(pruning_keeps_the_newest),
        cmocka_unit_test(position_is_that_of_the_files),
        cmocka_unit_test(a_checkpoint_is_of_its_moment),
        cmocka_unit_test(failed_save_changes_nothing),
        cmocka_unit_test(room_for_a_checkpoint),
        cmocka_unit_test(truncate_drops_later_steps),
        cmocka_unit_test(truncate_after_a_kill),
        cmocka_unit_test(index_of_traces),
        cmocka_unit_test(index_after_a_kill),
        cmocka_unit_test(trace_line),
        cmocka_unit_test(prompts_of_traces),
        cmocka_unit_test(metrics_line_and_tensorboard),
    };
    return cmocka_run_group_tests(tests, make_tmp_dir, remove_tmp_dir);
}
