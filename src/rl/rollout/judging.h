/* judging: verdicts in the background. Finished samples are handed over while others still decode; a thread of its own
 * judges whatever has come in, in the order in which it came. Without the thread everything waits for
 * judging_wait, which then judges a whole batch at once. A judge with a stream (a pool) gets each answer as soon as it
 * is there, whatever else is being judged; verdicts are written in the order in which they come, up to JUDGING_GROUP of
 * them with one wait for the disk. */
#ifndef KERNELRL_RL_ROLLOUT_JUDGING_H
#define KERNELRL_RL_ROLLOUT_JUDGING_H

#include "rl/rollout/journal.h"

enum { JUDGING_GROUP = 64 };

/* Answers that are waited for together; zero at first. */
struct judging_batch {
    int pending; /* not judged yet */
    enum status st;
    struct err err; /* of the first failure; the verdicts behind it are missing */
};
struct judging;
/* background: judge in a thread. The journal (may be NULL) and the judge are borrowed, and used only by that thread
 * while it lives, but for judging_pause. */
struct judging *judging_create(struct journal *j, const struct judge *judge, bool background,
                               const volatile bool *cancel);
void judging_free(struct judging *q); /* waits for what is being judged; NULL is fine */

/* What comes within so many seconds of the first answer is judged with it, unless judging_wait waits already; 0 at
 * first. On a GPU a batch is ready to begin only after seconds, however small it is. */
void judging_gather(struct judging *q, double seconds);

/* Takes an answer: its verdict will be written to *out. problem, source and out must live until the batch is done. */
void judging_add(struct judging *q, struct judging_batch *b, const struct problem *problem, const char *source,
                 const struct journal_place *at, struct verdict *out);
/* Until all answers of the batch are judged. Returns its first failure. */
enum status judging_wait(struct judging *q, struct judging_batch *b, struct err *e) MUST_USE;
/* Forgets what of the batch has not been judged yet; what is being judged is waited for. */
void judging_drop(struct judging *q, struct judging_batch *b);
/* Between these nothing is judged: the caller may use journal and verifier. */
void judging_pause(struct judging *q);
void judging_resume(struct judging *q);

struct judging_stats { /* since the last call */
    double busy_s;     /* judging; with a stream: at least one answer was being judged */
    double wait_s;     /* judging_wait waited */
    int longest;       /* queue, in answers */
    int calls;         /* batches given to the judge; with a stream: groups of verdicts written together */
};
struct judging_stats judging_stats(struct judging *q);

#endif
