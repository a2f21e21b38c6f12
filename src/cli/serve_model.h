/* serve_model: what `serve --model` names: a model, an adapter, or a run whose checkpoints are models. */
#ifndef KERNELRL_CLI_SERVE_MODEL_H
#define KERNELRL_CLI_SERVE_MODEL_H

#include "base/arena.h"
#include "serve/serve.h"

struct serve_model {
    struct arena mem;
    const char *base, *revision; /* of the base model */
    const char *start;           /* a checkpoint with full weights, or NULL */
    const char *renderer;        /* the run's, or NULL */
    const char *preferred;       /* the name that stands for what was given; NULL: the base is that */
    struct serve_name *adapters;
    size_t n_adapters;
};
/* name: a folder or a name on the Hub. Of a run NAME is its newest checkpoint and NAME@STEP each of them; of the folder
 * of an adapter NAME is that adapter. ST_CONFIG: a run without a checkpoint, or the like. */
enum status serve_model_find(const char *name, struct serve_model *out, struct err *e) MUST_USE;
void serve_model_free(struct serve_model *m);

#endif
