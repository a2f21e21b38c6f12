/* models: the names that clients call models by, and the adapters behind them. A name stands for the base or for an
 * adapter on disk, which is loaded when somebody first asks for it and may be given up again for another one. All of it
 * belongs to the server's thread; the model's thread loads and drops. */
#ifndef KERNELRL_SERVE_MODELS_H
#define KERNELRL_SERVE_MODELS_H

#include "serve/model_thread.h"

enum { FINGERPRINT_CHARS = 32 };

struct served_model {
    struct served_model *next;
    char *name, *dir;   /* dir: of an adapter; NULL: the base */
    const char *parent; /* the base's name, or NULL */
    char *alias_of;     /* the name it stands for, or NULL */
    bool loaded;
    int adapter;                             /* once loaded: for requests of the engine */
    char fingerprint[FINGERPRINT_CHARS + 1]; /* once loaded: of all that decides the bits of an answer */
    int64_t created;                         /* Unix seconds */
    int64_t used;                            /* number of the last use, for giving up the least used one */
    struct model_loading *load;              /* the one under way */
    int64_t failed;                          /* ns; when its last load failed; 0: it did not */
    struct err err;                          /* of that */
};

struct models {
    struct model_thread *thread;
    struct served_model *first; /* the default one first, then in the order in which they came */
    struct served_model *base;
    int max_loaded, n_loaded;
    int64_t uses, changes; /* changes: raised whenever a load ends */
    bool known;            /* true: the base's fingerprint is there */
};

/* base: the name of the base model. */
void models_begin(struct models *m, struct model_thread *t, const char *base, int max_loaded);
/* Reads what the base's fingerprint is made of; `known` follows. Once, when the model is ready. */
void models_identify(struct models *m);
void models_free(struct models *m);

/* Adds a name for the adapter in a folder. ST_INVALID: the name is taken. */
enum status models_add(struct models *m, const char *name, const char *dir, struct err *e) MUST_USE;
/* Another name for one that is there, or is added later. */
enum status models_add_alias(struct models *m, const char *name, const char *of, struct err *e) MUST_USE;
/* Makes a name the default one. */
void models_prefer(struct models *m, const char *name);
/* NULL, "" and "default" are the default one. An alias gives what it stands for. NULL: there is none of that name. */
struct served_model *models_find(const struct models *m, const char *name);

/* Whether the model can be asked; else its adapter is being loaded, and `changes` will differ when that has ended. What
 * could not be loaded is an error for some seconds, and then tried again. */
enum status models_use(struct models *m, struct served_model *s, bool *ready, struct err *e) MUST_USE;

/* Loads an adapter from a folder under a name, which may be there already: then requests that are admitted from then on
 * have the new one. done() says what came of it. */
typedef void models_done_fn(void *ctx, enum status st, const struct err *e);
void models_load(struct models *m, const char *name, const char *dir, models_done_fn *done, void *ctx);
/* Takes a name away; its adapter goes when the last request with it has ended. The base stays: ST_INVALID. */
enum status models_remove(struct models *m, const char *name, struct err *e) MUST_USE;

#endif
