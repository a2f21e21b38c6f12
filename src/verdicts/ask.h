/* ask: a request for one verdict, from JSON to C. It knows fields, types and ranges; it never sees a problem or a
 * verifier. A field that is not known is refused: whoever misspells `trials` must not get a verdict of five trials. */
#ifndef KERNELRL_VERDICTS_ASK_H
#define KERNELRL_VERDICTS_ASK_H

#include "io/json.h"
#include "verify/verify.h"

enum {
    VERDICT_SOLUTION_BYTES = 1 << 20, /* of a solution; a kernel in it may be 256 KiB (docs/formats.md) */
    VERDICT_PROBLEM_BYTES = 1 << 20,
    VERDICT_NAME_BYTES = 300, /* of a key, a source, the name of a configuration, an id */
    VERDICT_PRIORITIES = 10,
};

/* Why a request is refused: a status, a code and a field of the error's JSON, as a server replies it. */
struct verdict_refusal {
    int status;
    const char *code; /* or NULL */
    char param[80];   /* or "" */
    char message[600];
};
/* Returns false. */
bool verdict_refuse(struct verdict_refusal *r, int status, const char *code, const char *param, const char *fmt, ...)
    PRINTF_LIKE(5, 6);
/* Says which one of a list is refused: "solution" of item 3 is "items[3].solution". */
void verdict_refusal_place(struct verdict_refusal *why, const char *where, size_t i);
/* Values of a request. `name` stands in the refusal. A text has no U+0000 and at most `most` bytes, and is borrowed. */
bool verdict_read_text(const json_t *v, const char *name, size_t most, const char **out,
                       struct verdict_refusal *why) MUST_USE;
bool verdict_read_bool(const json_t *v, const char *name, int *out, struct verdict_refusal *why) MUST_USE;
bool verdict_read_int(const json_t *v, const char *name, int64_t low, int64_t high, int64_t *out,
                      struct verdict_refusal *why) MUST_USE;
/* Appends {"message","type","param","code"}; type is "invalid_request_error". */
void verdict_refusal_json(const struct verdict_refusal *r, const char *key, struct str *out);

/* A number of -1 and a text of NULL: the request does not say it. Texts belong to the JSON. */
struct verdict_ask {
    const char *id;           /* the client's own name for it */
    const char *key, *source; /* of the problem; or */
    const char *code;         /* its text */
    const char *solution;
    bool extract; /* true: the solution is a model's whole reply, with the kernel in it */
    bool force;   /* true: it is judged although an equal answer has a verdict */
    const char *config;
    int backend;    /* enum verify_backend */
    int priority;   /* 0 to 9; 0 unless said: higher ones first */
    int64_t tokens; /* of the model's reply, for configurations whose reward asks for it */
    /* options */
    int trials, timed_calls, measure, single_input, staged, timing_method;
    const json_t *metadata; /* given back as it is; or NULL */
};
/* Reads a JSON object. `out` borrows from it. False: *why says what is wrong. */
bool verdict_ask_read(const json_t *request, struct verdict_ask *out, struct verdict_refusal *why) MUST_USE;

#endif
