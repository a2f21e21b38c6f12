/* calls: the JSON bodies of the Tinker protocol's calls. Missing and null members have the protocol's defaults, unknown
 * ones are passed over. Texts are borrowed from the JSON. Errors are ST_PARSE, and the message names the member, or
 * ST_UNSUPPORTED: what was asked for is not built, by name. */
#ifndef KERNELRL_TINKER_CALLS_H
#define KERNELRL_TINKER_CALLS_H

#include "base/arena.h"
#include "io/json.h"
#include "wire/wire.h"

enum {
    CALL_MAX_RANK = 1024,
    CALL_MAX_SAMPLES = 1024,
    CALL_MAX_STOPS = 64,
    CALL_MAX_TARGETS = 128, /* different ids of target_prompt_logprobs */
    CALL_MAX_TOPK = 128,
    CALL_MAX_AHEAD = 4096,       /* so far may a seq_id be ahead of the next one */
    CALL_MAX_LABEL = 1024,       /* bytes of a display_name, and of a project_id */
    CALL_MAX_METADATA = 1 << 16, /* bytes of user_metadata as JSON */
};

/* A name that may become part of a path: 1..128 letters, digits, and -_.=+ with no dot in front. */
bool call_name_is_safe(const char *name);

/* Optional members. *out stays as it is where one is absent or null: a label of at most CALL_MAX_LABEL bytes, and
 * user_metadata, an object of at most CALL_MAX_METADATA. */
enum status call_read_label(const json_t *j, const char *key, const char **out, struct err *e) MUST_USE;
enum status call_read_metadata(const json_t *j, const json_t **out, struct err *e) MUST_USE;

struct call_create_model {
    const char *session_id, *base_model;
    int64_t model_seq_id;
    int64_t rank;
    bool seeded;
    uint64_t seed;
    bool train_unembed, train_mlp, train_attn;
    const json_t *user_metadata; /* or NULL */
};
enum status call_read_create_model(const json_t *j, struct call_create_model *out, struct err *e) MUST_USE;

struct call_load {
    const char *session_id; /* NULL: into the model below */
    int64_t model_seq_id;
    const char *model_id; /* of the old form */
    int64_t seq_id;
    const char *path, *base_model; /* base_model: or NULL */
    bool optimizer;
    const json_t *user_metadata;
};
enum status call_read_load(const json_t *j, struct call_load *out, struct err *e) MUST_USE;

struct call_optim {
    const char *model_id;
    int64_t seq_id;
    double learning_rate, beta1, beta2, eps, weight_decay, grad_clip_norm;
};
/* Model and number are read first: they are there also after an error, where they could be read. */
enum status call_read_optim(const json_t *j, struct call_optim *out, struct err *e) MUST_USE;

struct call_save {
    const char *model_id;
    int64_t seq_id;
    const char *name;       /* NULL: a sampler without a name */
    int64_t sampler_seq_id; /* of that */
    int64_t ttl_s;          /* 0: for ever */
    bool overwrite;
    const json_t *user_metadata;
};
/* Of save_weights, save_weights_for_sampler (unnamed: its name may be missing) and save_weights_external. */
enum status call_read_save(const json_t *j, bool unnamed, struct call_save *out, struct err *e) MUST_USE;

struct call_sampler {
    const char *session_id, *base_model, *model_path; /* one of the last two may be NULL */
    int64_t sampler_seq_id;
};
enum status call_read_sampler(const json_t *j, struct call_sampler *out, struct err *e) MUST_USE;

struct call_sample {
    const char *sampler_id;
    int64_t seq_id;
    int64_t n_samples;
    int32_t *prompt; /* [n_prompt] */
    int64_t n_prompt;
    int64_t max_tokens; /* -1: up to the context's end */
    double temperature, top_p;
    int64_t top_k; /* 0: none */
    bool seeded;
    uint64_t seed;
    /* Of the member "stream": {"id", "first"}, which is this program's own: the random streams, as in struct request
     * (engine.h). 0 where it is missing. */
    uint64_t stream;
    int64_t first;
    bool stops_off; /* true: nothing stops, not even the end of text */
    const char *stop_text[CALL_MAX_STOPS];
    int32_t stop_id[CALL_MAX_STOPS];
    int n_stop_texts, n_stop_ids;
    bool prompt_logprobs;
    int64_t prompt_last_n; /* -1: all */
    int64_t top_prompt, top_sample;
    /* Ids to be scored, -1: none; NULL: not asked for. Of the shape [n_prompt - 1, n_targets] the cells that are
     * listed: all of them, or where they came as CSR those of target_crow and target_col, as in struct wire_tensor. */
    int64_t *target; /* [n_listed] */
    int64_t n_listed, n_targets;
    int64_t *target_crow, *target_col; /* or NULL */
};
/* All that *out points to lies in the arena. */
enum status call_read_sample(const json_t *j, struct arena *a, struct call_sample *out, struct err *e) MUST_USE;

/* tinker://RUN/KIND/NAME */
enum checkpoint_kind { CHECKPOINT_WEIGHTS, CHECKPOINT_SAMPLER, CHECKPOINT_EXTERNAL, CHECKPOINT_KINDS };
extern const char *const checkpoint_kind_names[CHECKPOINT_KINDS]; /* "weights", ... */
extern const char *const checkpoint_type_names[CHECKPOINT_KINDS]; /* "training", ... */
struct checkpoint_path {
    char *run, *name;
    enum checkpoint_kind kind;
};
/* Takes a path apart, in the arena. ST_INVALID: it is none. */
enum status call_read_path(const char *path, struct arena *a, struct checkpoint_path *out, struct err *e) MUST_USE;
/* The same of "RUN/checkpoints/KIND/NAME" and what follows, which *rest points to ("" where nothing does). */
enum status call_read_checkpoint_url(const char *tail, struct arena *a, struct checkpoint_path *out, const char **rest,
                                     struct err *e) MUST_USE;

#endif
