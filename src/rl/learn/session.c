#include "rl/learn/session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/log.h"
#include "generate/generator.h"
#include "hosted/hosted.h"
#include "remote/remote.h"
#include "rl/options/memory_plan.h"
#include "rl/rollout/raicl.h"
#include "tensor/backend.h"
#include "verify/pool/hardware.h"
#include "verify/pool/secret.h"

/* The training stream lies apart from the seeds that the embedded model's corpus uses. */
#define GENERATOR_TRAIN_SEED UINT64_C(1000000)

/* What the keys say of the policy. */
static struct policy_options policy_of(const struct train_options *o, struct pool *pool) {
    return (struct policy_options){
        .model = {"model_name", o->model_name, o->model_revision, HUB_MODEL},
        .start = {"load_checkpoint_path", o->load_checkpoint_path, NULL, HUB_CHECKPOINT},
        .device = o->device,
        .pool = pool,
        .weights = {.dtype = dtype_names[o->dtype],
                    .base_dtype = base_dtype_names[o->base_dtype],
                    .frozen = o->lora_rank > 0,
                    .activation_memory = o->activation_memory},
        .expert_files = (enum expert_files)o->lora_expert_files,
        .lora = {.rank = (int)o->lora_rank,
                 .alpha = (float)o->lora_alpha,
                 .seed = (uint64_t)o->seed,
                 .expert_rank = (int)o->lora_expert_rank},
        .style = o->renderer_name,
        .thinking = o->thinking,
        .engine = {.memory_bytes = o->kv_memory, .max_batch = engine_batch_on(o->device)},
    };
}

/* What the run began with. Where an adapter alone is trained that is the same base weights, with the adapter it began
 * with, or with none: a new one changes nothing. */
static enum status open_reference(const struct train_options *o, const struct policy_options *po, struct session *s,
                                  struct err *e) {
    if (o->lora_rank == 0) return policy_load_reference(po, &s->policy, &s->reference.model, e);
    s->reference = (struct kl_reference){s->policy.model, ADAPTER_BASE};
    if (!s->policy.start_adapter) return ST_OK;
    return model_adapter_load(s->policy.model, s->policy.start, &s->reference.adapter, e);
}

static void show_policy(struct session *s) {
    s->actor.model = s->policy.model;
    s->actor.engine = s->policy.engine;
    s->actor.tok = s->policy.tok;
    s->actor.style = s->policy.style;
}

static void show_verdicts(size_t done, size_t n) { log_progress("  verdicts: %zu of %zu answers", done, n); }

/* A text that is not empty, or NULL. */
static const char *given(const char *text) { return text && *text ? text : NULL; }

struct verify_options session_verify_options(const struct train_options *o, struct lease *lease) {
    struct verify_options v = o->verify;
    /* Partial credit wants to know of every trial. */
    if (v.staged == STAGED_AUTO && o->reward.partial_correct) v.staged = STAGED_OFF;
    v.precision = precision_names[o->dataset_builder.precision];
    v.single_input = !o->dataset_builder.multi_input;
    v.memory_bytes = o->sandbox.memory_mib << 20;
    v.threads = (int)o->threads;
    v.device = given(v.device);
    v.python = given(v.python);
    v.cache_dir = given(v.cache_dir);
    v.quiet = lease ? lease_quiet : NULL;
    v.quiet_ctx = lease;
    v.progress = show_verdicts;
    return v;
}

void session_judging(struct session *s, struct journal *journal, const volatile bool *cancel) {
    judging_free(s->actor.judging);
    s->actor.judging = judging_create(journal, &s->judge, s->background, cancel);
    judging_gather(s->actor.judging, s->gather_s);
}

void session_judging_close(struct session *s) {
    judging_free(s->actor.judging);
    s->actor.judging = NULL;
}

enum status session_prompts(const struct train_options *o, struct session *s, struct err *e) {
    static const char *const precisions[] = {"FP32 (32-bit floating point)", "FP16 (16-bit floating point)",
                                             "BF16 (bfloat16)"};
    const char *backend = backend_name(o->verify.backend), *gpu = o->dataset_builder.prompt_gpu_name;
    s->actor.backend = backend_named(backend);
    ASSERT(s->actor.backend);
    int precision = o->dataset_builder.prompt_precision;
    if (precision < 0 && o->dataset_builder.precision > 0) precision = o->dataset_builder.precision;
    if (precision >= 0) s->actor.precision = precisions[precision];
    if (o->dataset_builder.prompt_include_hardware) {
        TRY(prompt_hardware(gpu && *gpu ? gpu : "cpu", &s->hardware, e));
        s->actor.hardware = str_c(&s->hardware);
    }
    const int most = o->dataset_builder.prompt_option == PROMPT_ONE_SHOT   ? 1
                     : o->dataset_builder.prompt_option == PROMPT_FEW_SHOT ? PROMPT_EXAMPLES_MAX
                                                                           : 0;
    s->actor.n_examples = prompt_examples(backend, most, &s->actor.examples);
    s->actor.think = o->thinking;
    s->actor.o = o->actor;
    return ST_OK;
}

/* kv_memory and activation_memory where the options leave them open. */
static enum status plan_memory(struct session *s, struct train_options *o, struct err *e) {
    CLEANUP_STR struct str config = STR_INIT, line = STR_INIT;
    const struct paper device = paper_of(s->policy.be);
    struct train_plan p;
    if (strcmp(o->device, "cpu") == 0 || device.bytes == 0) return ST_OK;
    str_addf(&config, "%s/config.json", s->policy.folder);
    TRY(train_plan(o, config.p, &device, &p, e));
    if (o->kv_memory == 0) o->kv_memory = p.kv_budget;
    if (o->activation_memory == 0) o->activation_memory = p.activation_budget;
    s->planned_bytes = plan_asked(&p);
    train_plan_line(&p, &line);
    log_info("%s", line.p);
    return ST_OK;
}

static enum status open_raicl(const struct train_options *o, const volatile bool *cancel, struct session *s,
                              struct err *e) {
    if (o->dataset_builder.prompt_option != PROMPT_RAICL) return ST_OK;
    const struct raicl_options ro = {.examples = o->examples,
                                     .backend = backend_name(o->verify.backend),
                                     .device = o->device,
                                     .pool = s->pool,
                                     .tok = s->policy.tok,
                                     .cancel = cancel};
    return raicl_open(&ro, &s->actor.raicl, e);
}

static enum status open_prototypes(const struct train_options *o, struct session *s, struct err *e) {
    /* Prototypes are asked for and nothing is run, so that no jail and no GPU is needed. */
    const struct verify_options vo = {
        .python = session_verify_options(o, NULL).python, .threads = (int)o->threads, .allow_weaker = true};
    if (s->verifier != s->verdicts.verifier) verifier_close(s->verifier);
    s->actor.verifier = s->verifier = NULL;
    TRY(verifier_open(&vo, &s->verifier, e));
    s->actor.verifier = s->verifier;
    return ST_OK;
}

enum status session_prototypes(const struct train_options *o, struct session *s, struct err *e) {
    return s->actor.backend->is_module ? ST_OK : open_prototypes(o, s, e);
}

/* The name that a run has for its verifiers: what they still owe it from before is its own. */
static enum status run_name(const char *log_path, struct str *out, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    CLEANUP_FREE char *text = NULL;
    char name[RUN_NAME_BYTES];
    str_addf(&path, "%s/verify_run", log_path);
    if (fs_is_file(path.p)) {
        size_t n;
        TRY(fs_read(path.p, 100, &text, &n, e));
        if (n < RUN_NAME_BYTES - 1 || strspn(text, "0123456789abcdef") != RUN_NAME_BYTES - 1)
            return FAIL(e, ST_PARSE, "%s: expected 16 hex digits", path.p);
        str_add(out, text, RUN_NAME_BYTES - 1);
        return ST_OK;
    }
    TRY(secret_run_name(name, e));
    str_adds(out, name);
    return fs_write_atomic(path.p, name, strlen(name), e);
}

/* A machine that the model shares with who measures times on it: in this process, or in others. */
static enum status share_machine(const struct train_options *o, bool on_cpu, struct session *s, struct err *e) {
    const bool elsewhere = given(o->pool.hosts) != NULL;
    if (!s->background || s->texts || o->sampler.kind == SAMPLER_TINKER) return ST_OK;
    if (elsewhere && on_cpu && strcmp(o->device, "cpu") == 0) return lease_create_on_host(&s->lease, e);
    if (!elsewhere) s->lease = lease_create();
    return ST_OK;
}

/* Workers on this machine leave the model's GPU alone. */
static void keep_own_gpu(const struct train_options *o, struct session *s) {
    struct gpu_device gpus[GPUS_MAX];
    struct err e = {.msg = "another process has it"};
    char name[GPU_ID_BYTES + 8];
    int64_t at = 0;
    if (strncmp(o->device, "cuda", 4) != 0 || (o->device[4] == ':' && !parse_i64(o->device + 5, &at))) return;
    if (at < 0 || at >= hardware_gpus(gpus)) return;
    snprintf(name, sizeof name, "gpu-%s", gpus[at].uuid);
    if (host_lease_open(name, &s->own_gpu, &e) == ST_OK && host_lease_take(&s->own_gpu, 0)) return;
    log_warn("%s is not this run's alone: %s", o->device, e.msg);
}

/* Whether verdicts are given while answers are sampled. A server on this machine would disturb what is timed here. */
static bool in_background(const struct train_options *o, const struct session *s, bool judged_elsewhere) {
    if (o->overlap != OVERLAP_AUTO) return o->overlap == OVERLAP_ON;
    if (s->texts) return judged_elsewhere || texts_is_elsewhere(s->texts);
    if (o->sampler.kind == SAMPLER_TINKER)
        return judged_elsewhere || o->max_staleness > 0 || !remote_is_here(hosted_address(o->sampler.base_url));
    return judged_elsewhere || strcmp(o->device, "cpu") != 0 || o->max_staleness > 0;
}

/* Who gives verdicts, and who knows prototypes. */
static enum status open_verdicts(const struct train_options *o, bool training, const volatile bool *cancel,
                                 struct session *s, struct err *e) {
    const bool elsewhere = given(o->pool.hosts) != NULL;
    const bool on_cpu =
        given(o->verify.device) ? strcmp(o->verify.device, "cpu") == 0 : backend_info(o->verify.backend)->on_cpu;
    CLEANUP_STR struct str run = STR_INIT, kept = STR_INIT;
    struct pool_options pool = o->pool;
    s->background = in_background(o, s, elsewhere);
    TRY(share_machine(o, on_cpu, s, e));
    const struct verify_options vo = session_verify_options(o, s->lease);
    s->gather_s = on_cpu ? 0 : 1;
    if (elsewhere) keep_own_gpu(o, s);
    if (elsewhere && training) {
        TRY(run_name(o->log_path, &run, e));
        str_addf(&kept, "%s/poison", o->log_path);
        pool.run = run.p;
        pool.kept = kept.p;
    }
    TRY(judge_open(&pool, &vo, cancel, &s->verdicts, e));
    s->judge = s->verdicts.judge;
    s->verifier = s->verdicts.verifier;
    s->verify_identity = judge_identity_hash(&s->judge, &vo);
    if (!elsewhere) return ST_OK;
    TRY(session_prototypes(o, s, e));
    if (s->verifier || o->roles.proposals == 0) return ST_OK;
    /* Proposals are problems when their modules run, whatever answers to them are written in. */
    return open_prototypes(o, s, e);
}

/* In a mixture of experts an update changes which experts tokens go through, and so their probabilities by more than
 * its size would say. */
static void warn_of_router_shift(const struct train_options *o, const struct model *m) {
    if (model_cfg(m)->E == 0) return;
    if (o->update.num_substeps > 1 || o->update.update_epochs > 1 || o->max_staleness > 0)
        log_warn("%s is a mixture of experts: with num_substeps, update_epochs above 1 or max_staleness above 0 its "
                 "routers shift between sampling and updating (train/expert_shift); sequence_mask or gspo bear that "
                 "better",
                 o->model_name);
}

/* The policy with its engine, and the reference. */
static enum status open_policy(const struct train_options *given, bool training, const volatile bool *cancel,
                               struct session *s, struct err *e) {
    struct train_options mine = *given;
    const struct train_options *const o = &mine;
    s->pool = pool_create((int)o->threads);
    struct policy_options po = policy_of(o, s->pool);
    TRY(policy_begin(&po, cancel, &s->policy, e));
    if (s->policy.start_adapter && o->lora_rank == 0)
        return FAIL(e, ST_CONFIG, "load_checkpoint_path: %s holds an adapter; set lora_rank > 0 to train it",
                    s->policy.start);
    s->policy.be->fast = o->numerics == NUMERICS_FAST;
    if (training) TRY(plan_memory(s, &mine, e));
    po = policy_of(o, s->pool); /* with what the plan has chosen */
    TRY(policy_load(&po, &s->policy, e));
    warn_of_router_shift(o, s->policy.model);
    if (o->update.loss.kl_coef > 0) TRY(open_reference(o, &po, s, e));
    return policy_engine(&po, &s->policy, e);
}

/* A server's model in its place. */
static enum status open_texts(const struct train_options *o, const volatile bool *cancel, struct session *s,
                              struct err *e) {
    s->pool = pool_create((int)o->threads);
    TRY(texts_open(&o->sampler, o->model_name, cancel, &s->texts, e));
    s->actor.texts = texts_actor(s->texts);
    return ST_OK;
}

/* The shape of the model, without its weights: how long a prompt may be, and which chat template is its own. */
static enum status open_shape(const struct train_options *o, const volatile bool *cancel, struct session *s,
                              struct err *e) {
    const struct policy_options po = {.model = {"model_name", o->model_name, o->model_revision, HUB_PROMPT},
                                      .style = o->renderer_name,
                                      .thinking = o->thinking};
    TRY(policy_begin(&po, cancel, &s->policy, e));
    TRY(policy_load(&po, &s->policy, e));
    show_policy(s);
    return ST_OK;
}

enum status session_host(const struct train_options *o, bool trains, const char *path, const volatile bool *cancel,
                         struct session *s, struct err *e) {
    const char *start = given(o->load_checkpoint_path), *model = given(o->sampler.server_model);
    const struct hosted_options ho = {.base_url = o->sampler.base_url,
                                      .key_env = o->sampler.api_key_env,
                                      .model = model ? model : o->model_name,
                                      .path = path ? path : start,
                                      .reference = start,
                                      .trains = trains,
                                      .moments = path != NULL,
                                      .rank = (int)o->lora_rank,
                                      .seed = (uint64_t)o->seed,
                                      .vocab = model_cfg(s->policy.model)->V,
                                      .in_flight = o->sampler.in_flight,
                                      .patience_s = o->sampler.timeout_s,
                                      .train_tokens = o->update.train_tokens,
                                      .cancel = cancel};
    TRY(hosted_open(&ho, &s->hosted, e));
    s->actor.policy = (struct actor_policy){hosted_sample, s->hosted};
    return ST_OK;
}

/* A server's model, of which tokenizer and shape are here. */
static enum status open_hosted(const struct train_options *o, bool training, const volatile bool *cancel,
                               struct session *s, struct err *e) {
    s->pool = pool_create((int)o->threads);
    TRY(open_shape(o, cancel, s, e));
    return training ? ST_OK : session_host(o, false, NULL, cancel, s, e);
}

static enum status open_model(const struct train_options *o, bool training, const volatile bool *cancel,
                              struct session *s, struct err *e) {
    if (o->sampler.kind == SAMPLER_OPENAI) return open_texts(o, cancel, s, e);
    return o->sampler.kind == SAMPLER_TINKER ? open_hosted(o, training, cancel, s, e)
                                             : open_policy(o, training, cancel, s, e);
}

static enum status open_session(const struct train_options *o, bool training, const volatile bool *cancel,
                                struct session *s, struct err *e) {
    *s = (struct session){.own_gpu = HOST_LEASE_NONE};
    if (o->dataset_builder.prompt_option == PROMPT_RAICL) TRY(raicl_index_there(o->examples.index_path, e));
    TRY(open_model(o, training, cancel, s, e));
    TRY(session_prompts(o, s, e));
    TRY(open_verdicts(o, training, cancel, s, e));
    session_judging(s, NULL, cancel);
    show_policy(s);
    s->actor.verifier = s->verifier;
    s->actor.lease = s->lease;
    s->actor.cancel = cancel;
    return open_raicl(o, cancel, s, e);
}

enum status session_open(const struct train_options *o, const volatile bool *cancel, struct session *s, struct err *e) {
    return open_session(o, false, cancel, s, e);
}
enum status session_open_training(const struct train_options *o, const volatile bool *cancel, struct session *s,
                                  struct err *e) {
    return open_session(o, true, cancel, s, e);
}

enum status session_open_policy(const struct train_options *o, struct session *s, struct err *e) {
    *s = (struct session){.own_gpu = HOST_LEASE_NONE};
    return open_policy(o, true, NULL, s, e);
}

enum status session_open_prompts(const struct train_options *o, bool rendered, const volatile bool *cancel,
                                 struct session *s, struct err *e) {
    const bool raicl = o->dataset_builder.prompt_option == PROMPT_RAICL;
    *s = (struct session){.own_gpu = HOST_LEASE_NONE};
    if (raicl) TRY(raicl_index_there(o->examples.index_path, e));
    TRY(session_prompts(o, s, e));
    TRY(session_prototypes(o, s, e));
    if (!rendered && !raicl && o->actor.prompt_tokens == 0) return ST_OK;
    TRY(open_shape(o, cancel, s, e));
    s->pool = pool_create((int)o->threads);
    return open_raicl(o, cancel, s, e);
}

void session_close(struct session *s) {
    judging_free(s->actor.judging);
    raicl_close(s->actor.raicl);
    if (s->verifier != s->verdicts.verifier) verifier_close(s->verifier);
    judge_close(&s->verdicts);
    host_lease_close(&s->own_gpu);
    texts_close(s->texts);
    hosted_close(s->hosted);
    if (s->reference.model != s->policy.model) model_free(s->reference.model);
    policy_close(&s->policy);
    pool_destroy(s->pool);
    lease_free(s->lease);
    str_free(&s->hardware);
    problem_set_free(&s->problems);
    problem_set_free(&s->generated);
    *s = (struct session){.own_gpu = HOST_LEASE_NONE};
}

/* null: level 1 of KernelBench, all levels of other sources. */
static int64_t wanted_level(const struct train_options *o, const char *source) {
    if (o->dataset_builder.level != CONFIG_UNSET_INT) return o->dataset_builder.level;
    if (!source || !*source) source = getenv("KERNELBENCH_ROOT");
    return source && strstr(source, "KernelBench") ? 1 : 0;
}

static bool has_label(const struct train_options *o, const struct problem *p) {
    return o->dataset_builder.difficulty == CONFIG_UNSET_INT || p->difficulty == o->dataset_builder.difficulty;
}

static bool wanted(const struct train_options *o, int64_t level, const struct problem *p) {
    if (level > 0 && p->level != level) return false;
    if (!has_label(o, p)) return false;
    if (o->dataset_builder.start_problem > 0 && p->problem_id < o->dataset_builder.start_problem) return false;
    return o->dataset_builder.end_problem == 0 || p->problem_id <= o->dataset_builder.end_problem;
}

static enum status generate(const struct train_options *o, struct problem_set *out, struct err *e) {
    struct generator *g;
    TRY(generator_open(NULL, &g, e));
    size_t n = (size_t)o->dataset_builder.generated_problems;
    out->items = arena_array(&out->arena, struct problem, n);
    out->count = n;
    struct arena all = ARENA_INIT; /* of one problem: its answers take fifty times its own memory */
    for (size_t i = 0; i < n; i++) {
        struct gen_item item;
        arena_reset(&all);
        generator_make(g, GENERATOR_TRAIN_SEED + (uint64_t)o->seed, i, &all, &item);
        out->items[i] = item.problem;
        out->items[i].key = arena_strdup(&out->arena, item.problem.key);
        out->items[i].name = arena_strdup(&out->arena, item.problem.name);
        out->items[i].code = arena_strdup(&out->arena, item.problem.code);
        out->items[i].ops = arena_strdup(&out->arena, item.problem.ops);
    }
    arena_free(&all);
    generator_close(g);
    return ST_OK;
}

enum status session_source(const struct train_options *o, const char **out, struct err *e) {
    const char *s = o->dataset_builder.source;
    *out = s;
    if (o->dataset_builder.dataset_src == SRC_HUGGINGFACE) {
        if (!s || !*s) *out = "ScalingIntelligence/KernelBench";
        if (!hub_is_name(*out))
            return FAIL(e, ST_CONFIG,
                        "dataset_builder.source: dataset_src: huggingface expects the name of a data set on the Hub "
                        "(ORGANISATION/NAME), got \"%s\"",
                        s);
    }
    if (o->dataset_builder.dataset_src == SRC_LOCAL && s && *s && strcmp(s, "builtin") != 0 && !fs_is_dir(s) &&
        !fs_is_file(s))
        return FAIL(e, ST_CONFIG,
                    "dataset_builder.source: no file or folder \"%s\" (dataset_src: local keeps it from being looked "
                    "up on the Hub)",
                    s);
    return ST_OK;
}

enum status session_problems(const struct train_options *o, struct session *s, const struct problem ***train,
                             int *n_train, const struct problem ***test, int *n_test, struct err *e) {
    const char *source;
    TRY(session_source(o, &source, e));
    TRY(problem_set_load(source, &s->problems, e));
    if (!source || !*source) source = getenv("KERNELBENCH_ROOT");
    if (!source || !*source || strcmp(source, "builtin") == 0)
        problem_set_enlarge(&s->problems, o->dataset_builder.batch_factor);
    if (o->dataset_builder.generated_problems > 0) TRY(generate(o, &s->generated, e));
    problem_set_enlarge(&s->generated, o->dataset_builder.batch_factor);
    size_t total = s->problems.count + s->generated.count;
    *train = xcalloc(total, sizeof **train);
    *test = xcalloc(total, sizeof **test);
    *n_train = *n_test = 0;
    bool has_split = false;
    const int64_t level = wanted_level(o, source);
    for (size_t i = 0; i < s->problems.count; i++) has_split |= s->problems.items[i].split == SPLIT_TEST;
    for (size_t i = 0; i < s->problems.count; i++) {
        const struct problem *p = &s->problems.items[i];
        if (!wanted(o, level, p)) continue;
        if (has_split && p->split == SPLIT_TEST)
            (*test)[(*n_test)++] = p;
        else
            (*train)[(*n_train)++] = p;
    }
    /* A source without a split of its own holds out its last problems. */
    int held = has_split || o->dataset_builder.test_fraction <= 0 || *n_train < 2
                   ? 0
                   : (int)(*n_train * o->dataset_builder.test_fraction);
    if (!has_split && o->dataset_builder.test_fraction > 0 && *n_train > 1 && held == 0) held = 1;
    for (int i = *n_train - held; i < *n_train; i++) (*test)[(*n_test)++] = (*train)[i];
    *n_train -= held;
    for (size_t i = 0; i < s->generated.count; i++)
        if (has_label(o, &s->generated.items[i])) (*train)[(*n_train)++] = &s->generated.items[i];
    if (*n_train == 0)
        return FAIL(e, ST_CONFIG,
                    "dataset_builder: no problem is left to train on (source \"%s\", level %lld, problems "
                    "%lld to %lld)",
                    o->dataset_builder.source && *o->dataset_builder.source ? o->dataset_builder.source : "builtin",
                    (long long)level, (long long)o->dataset_builder.start_problem,
                    (long long)o->dataset_builder.end_problem);
    return ST_OK;
}

struct rollout_params session_rollout_params(const struct train_options *o) {
    struct rollout_params p = {.o = o->rollout, .weights = o->reward, .seed = (uint64_t)o->seed};
    p.o.max_turns = train_options_turns(o);
    return p;
}
