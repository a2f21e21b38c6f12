/* judge: who gives verdicts. The verifier of this process judges a batch at a time (judge_by). A pool of other
 * processes and hosts (verify/pool/pool.h) judges many answers at once and in any order, so it has the functions of a
 * stream as well. Everybody who wants verdicts asks a judge, and nobody needs to know which one it is. */
#ifndef KERNELRL_VERIFY_JUDGE_H
#define KERNELRL_VERIFY_JUDGE_H

#include "verify/verify.h"

struct judge {
    void *ctx; /* of all functions */
    /* On what kinds of machine answers are timed, where that is not this machine; NULL: on this one. Verdicts that are
     * kept say it beside the options they were given under. */
    const char *classes;
    /* As verify_batch(). */
    enum status (*batch)(void *ctx, struct verify_item *items, size_t n, const volatile bool *cancel, struct err *e);
    /* As verifier_recall(). NULL: nobody learns verdicts of an earlier process. */
    void (*recall)(void *ctx, const struct digest *key, const struct verdict *verdict);
    /* As verifier_hardware(). NULL: unknown. */
    void (*hardware)(void *ctx, char *hardware, size_t hardware_size, char *device, size_t device_size);
    const struct judge_stream *stream; /* NULL: this judge takes batches alone */
};

/* Answers one by one. All functions may be called by any thread at any time. An item that was submitted belongs to the
 * judge until it was settled or withdrawn. Its problem, source and place must live as long. */
struct judge_stream {
    void (*submit)(void *ctx, struct verify_item *item);
    /* Waits until there are verdicts, somebody calls wake, or so many seconds have passed. Writes at most `max` items
     * that have their verdicts, the earliest first, and returns their number. A verdict that is missing (class I) is
     * missing for good: the judge has asked for it as often as it will. */
    size_t (*collect)(void *ctx, struct verify_item **done, size_t max, double seconds);
    /* The judge may forget an item that was collected. kept: its verdict is on the disk, so that nobody has to be able
     * to give it again. */
    void (*settle)(void *ctx, struct verify_item *item, bool kept);
    /* Nobody wants the verdict any more. False: the item was collected before, and has to be settled. */
    bool (*withdraw)(void *ctx, struct verify_item *item);
    void (*wake)(void *ctx);
    /* Appends a line for people who wait: how many answers are where. */
    void (*describe)(void *ctx, struct str *out);
    /* How many answers the judge can work on at once, at this time. */
    int (*width)(void *ctx);
};

/* The verifier of this process. */
struct judge judge_by(struct verifier *v);

/* As verify_identity() and verify_identity_hash(), with the kinds of machine in it. */
void judge_identity(const struct judge *j, const struct verify_options *o, struct str *out);
struct verify_identity judge_identity_hash(const struct judge *j, const struct verify_options *o);

/* Judges items as judge->batch does, by a stream. For judges that have one. */
enum status judge_stream_batch(const struct judge_stream *s, void *ctx, struct verify_item *items, size_t n,
                               const volatile bool *cancel, struct err *e) MUST_USE;

#endif
