/* hosted: a model that a server of the Tinker protocol holds, trains and samples (docs/tinker.md). Owns its session,
 * the adapter that is trained there, samplers of its weights, and what calls are made of. Knows neither problems nor
 * rewards. May include wire, remote, train, engine and what lies below. Start here, then link.h.
 *
 * The gradient of a call is that of the same datums here. Where a loss of the protocol is the loss that is wanted, the
 * server computes it. Otherwise it is computed here from the log-probabilities of a forward pass, and the server is
 * given cross_entropy with the weights -dloss/dlogp, whose gradient is the same to the bit. */
#ifndef KERNELRL_HOSTED_HOSTED_H
#define KERNELRL_HOSTED_HOSTED_H

#include "engine/engine.h"
#include "train/step.h"

struct hosted_options {
    const char *base_url;        /* NULL or "": TINKER_BASE_URL, else the hosted service */
    const char *key_env;         /* variable of the key; NULL or "": TINKER_API_KEY */
    const char *model;           /* as the server calls it */
    const char *path;            /* tinker://RUN/KIND/NAME to begin with, or NULL */
    const char *reference;       /* likewise, of the weights that hosted_forward() compares with; NULL: the model's */
    bool trains;                 /* false: it samples alone */
    bool moments;                /* of one that trains and begins with a path: the optimizer's state comes from there */
    int rank;                    /* of a new adapter */
    uint64_t seed;               /* of it */
    int32_t vocab;               /* ids of the model here */
    int in_flight;               /* calls at once, >= 1 */
    double patience_s;           /* as in link.h */
    int64_t train_tokens;        /* rows of a leaf at most, where a single datum allows */
    const volatile bool *cancel; /* as in link.h */
};
struct hosted;
/* The address that a base_url stands for: NULL or "" as above. Borrowed. */
const char *hosted_address(const char *base_url);
/* Begins a session, and makes the model or loads it. ST_CONFIG, ST_IO: as link_run. */
enum status hosted_open(const struct hosted_options *o, struct hosted **out, struct err *e) MUST_USE;
void hosted_close(struct hosted *h); /* ends the session; NULL is fine */

/* Samples as engine_run does, by the weights as they are; ctx: the struct hosted. Entropies are NaN, since the protocol
 * has none. Requests have ids of tokens as stops and none of the parameters that the protocol lacks (ST_UNSUPPORTED).
 * Equal requests with equal weights give equal samples where the server keeps seeds; a server of this program draws
 * what the engine would draw here. */
enum status hosted_sample(void *ctx, const struct request *req, int n_req, struct sample *out,
                          engine_progress_fn *progress, void *progress_ctx, struct err *e) MUST_USE;

/* What train/step.h does: log-probabilities into datum.logp, by the model as it is, or by the weights it began with;
 * the gradient of the datums' losses, in leaves of train_tokens rows, and their statistics, in which entropies are NaN;
 * a step of AdamW. No call takes an entropy term, soft targets, or datums that are likelihoods. call.exact: nothing is
 * refused for it. */
enum status hosted_forward(struct hosted *h, bool reference, const struct datum *d, int n, struct err *e) MUST_USE;
enum status hosted_accumulate(struct hosted *h, const struct train_call *c, const struct datum *d, int n,
                              struct train_stats *stats, struct err *e) MUST_USE;
enum status hosted_step(struct hosted *h, const struct adamw_config *c, double max_grad_norm, double *grad_norm,
                        struct err *e) MUST_USE;

/* Saves weights and moments on the server under a name of letters, digits and -_.=+; *path: tinker://..., the caller's
 * to free. */
enum status hosted_save(struct hosted *h, const char *name, char **path, struct err *e) MUST_USE;
/* Downloads the adapter as it is now into dir, which is there, as PEFT files: adapter_config.json comes last, when the
 * other one is whole. The server keeps its copy for an hour at most. ST_CONFIG: the server gives no files. */
enum status hosted_download(struct hosted *h, const char *dir, struct err *e) MUST_USE;
/* As trainer.history: a number of all that was trained. Whoever begins with a path sets it. */
uint64_t *hosted_history(struct hosted *h);

#endif
