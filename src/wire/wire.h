/* wire: the three protobuf messages of the Tinker protocol (package tinker_public, proto3), and bodies packed with
 * zstd. The readers are strict: a known field of another wire type, a length that leads out of its message, a group, a
 * text that is not UTF-8, a key twice in a map, and a tensor whose bytes and shape disagree are errors, and every index
 * is checked. Unknown fields are skipped. Of a field that may be there once, the last one counts. */
#ifndef KERNELRL_WIRE_WIRE_H
#define KERNELRL_WIRE_WIRE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum {
    WIRE_MAX_DIMS = 4,
    WIRE_MAX_CELLS = 1 << 24, /* of all tensors of a message together, those that CSR leaves out included */
    WIRE_MAX_DATUMS = 8192,
    WIRE_MAX_TENSORS = 16, /* of a datum */
    WIRE_MAX_OPTIONS = 32,
};
enum wire_dtype { WIRE_F32 = 1, WIRE_I64 = 2 };

/* A matrix or a vector, row-major. A CSR tensor has its zeros put in. */
struct wire_tensor {
    const char *name; /* its key in a map, or NULL */
    enum wire_dtype dtype;
    int nd; /* 1..WIRE_MAX_DIMS */
    int64_t dim[WIRE_MAX_DIMS];
    int64_t n;  /* cells: the product of dim */
    float *f;   /* [n] of WIRE_F32, else NULL */
    int64_t *i; /* [n] of WIRE_I64, else NULL */
    /* Of a matrix that is written: which cells are listed, as CSR, and f or i has these alone, in their order; NULL:
     * all are. Readers set neither. */
    const int64_t *crow, *col; /* [rows + 1], [crow[rows]] */
};

enum wire_content { WIRE_NOTHING, WIRE_IMAGE, WIRE_DMEL /* audio */ };
struct wire_datum {
    int32_t *ids; /* [n] tokens of its text chunks, end to end */
    int64_t n;
    enum wire_content other;    /* a chunk that is no text was among them, and was left out; WIRE_NOTHING: none was */
    struct wire_tensor *tensor; /* [n_tensors] loss_fn_inputs */
    int n_tensors;
    bool provenance; /* true: there are spans that say where tokens came from; they were left out */
};
struct wire_option { /* of loss_fn_config */
    const char *name;
    const char *text; /* NULL: it is a number */
    double number;
};
/* ForwardBackwardRequest. */
struct wire_training {
    const char *model_id, *loss_fn; /* "" where they are missing */
    int32_t seq_id;                 /* 0 where it is missing */
    bool forward_only;
    struct wire_datum *datum; /* [n] */
    int n;
    struct wire_option *option; /* [n_options] of field 7 where there is one, else of field 5 */
    int n_options;
};
/* All that *out points to lies in the arena. ST_PARSE: these bytes are no such message, and the message says where. */
enum status wire_read_training(const void *body, size_t n, struct arena *a, struct wire_training *out,
                               struct err *e) MUST_USE;

/* Appends the message as a client writes it: dense tensors, numbers of options in both forms. `other` and `provenance`
 * of its datums are not written. */
void wire_put_training(struct str *out, const struct wire_training *r);

/* ForwardBackwardOutput: log-probabilities of each datum, and sums. */
struct wire_output_datum {
    const float *logp;   /* [rows, width] */
    int64_t rows, width; /* width 0: a vector, [rows] */
};
struct wire_metric {
    const char *name; /* with its reduction: "loss:sum" */
    double value;
};
struct wire_output {
    const char *type;
    const struct wire_output_datum *datum; /* [n] */
    int n;
    const struct wire_metric *metric; /* [n_metrics] */
    int n_metrics;
};
/* Appends the message. Neighbours of one width share a record. */
void wire_put_output(struct str *out, const struct wire_output *o);
/* Reads what has only the field "logprobs", in float32. */
enum status wire_read_output(const void *body, size_t n, struct arena *a, struct wire_output *out,
                             struct err *e) MUST_USE;

/* SampleResponse. */
struct wire_topk { /* [length, k]; a row's unused cells have the token 0 and WIRE_NO_LOGP */
    const int32_t *ids;
    const float *logp;
    int k, length;
};
#define WIRE_NO_LOGP (-99999.0f)
struct wire_sequence {
    bool by_length;     /* true: max_tokens ended it; otherwise it has stopped */
    const int32_t *ids; /* [n] */
    const float *logp;  /* [n], or NULL */
    int64_t n;
    struct wire_topk top; /* k 0: none */
};
struct wire_sample {
    const struct wire_sequence *sequence; /* [n] */
    int n;
    const float *prompt_logp; /* [n_prompt], NaN where there is none; or NULL */
    int64_t n_prompt;
    struct wire_topk top;             /* of the prompt; k 0: none */
    const struct wire_tensor *target; /* target_prompt_logprobs, float32; or NULL */
};
void wire_put_sample(struct str *out, const struct wire_sample *s);
/* prompt_cache_hit_tokens and prompt_alt_tokens are checked and left out. */
enum status wire_read_sample(const void *body, size_t n, struct arena *a, struct wire_sample *out,
                             struct err *e) MUST_USE;

/* Unpacks a body with the content encoding zstd, of one frame or several. ST_PARSE: it is damaged, or does not end;
 * ST_INVALID: it has more than most_bytes. *out has what was unpacked so far then. */
enum status wire_unzstd(const void *body, size_t n, size_t most_bytes, struct str *out, struct err *e) MUST_USE;

#endif
