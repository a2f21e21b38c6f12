/* journal: verdicts.jsonl, every verdict of a run on disk before it is used (docs/formats.md). Measured times are the
 * one thing in a run that its configuration and seed do not decide; with them on record a killed run goes on exactly as
 * it would have gone: verdicts of the steps after the checkpoint are read from here instead of being given again. */
#ifndef KERNELRL_RL_ROLLOUT_JOURNAL_H
#define KERNELRL_RL_ROLLOUT_JOURNAL_H

#include "base/err.h"
#include "verify/judge.h"

struct journal;

/* Opens or creates the file for appending; a line that an interrupted write left is removed. Verdicts of first_step and
 * later are kept ready to be read again, those of earlier steps are told to the judge (NULL: nobody), so that an answer
 * judged before is not judged anew; but not lines that versions before SHA-256 wrote, whose keys fit other answers as
 * well: those are found by place only. Lines of another identity are passed over. Memory: about 120 bytes a line from
 * first_step on. ST_IO; ST_PARSE for a damaged line. */
enum status journal_open(const char *path, struct verify_identity identity, int64_t first_step,
                         const struct judge *judge, struct journal **out, struct err *e) MUST_USE;
void journal_close(struct journal *j); /* NULL is fine */
/* Where an answer stands in a run: in the step, or the evaluation after it; its group, sample and turn. */
struct journal_place {
    int64_t step;
    bool eval;
    int group, sample, turn;
};

/* judge->batch, with these differences: items found in the journal (same place, problem and source) get their verdict
 * from there; all others are written to it and to the disk before this returns, each as soon as the verifier says that
 * it is there (verify_item.judged): what cuts a batch off costs no more than the answer at hand; verdicts missing for
 * the verifier's fault are asked for again, up to JOURNAL_ATTEMPTS times in all, and never written. Item i is at at[i].
 * A NULL journal only asks again. Not for two threads at once. */
enum { JOURNAL_ATTEMPTS = 3 };
enum status journal_judge(struct journal *j, const struct judge *judge, struct verify_item *items,
                          const struct journal_place *at, size_t n, const volatile bool *cancel,
                          struct err *e) MUST_USE;

/* Verdicts read from the journal instead of being given, since it was opened. */
int64_t journal_replayed(const struct journal *j);

/* The parts journal_judge is made of. find: the verdict of an item, false when there is none; replay: the same, and the
 * judge is told; add: appends the verdicts of items[i] with fresh[i], waits for the disk, and replaces each by what
 * reading its line gives, so that a replay cannot differ. */
enum status journal_find(struct journal *j, const struct journal_place *at, const struct verify_item *item,
                         struct verdict *out, bool *found, struct err *e) MUST_USE;
enum status journal_replay(struct journal *j, const struct judge *judge, const struct journal_place *at,
                           struct verify_item *item, bool *found, struct err *e) MUST_USE;
enum status journal_add(struct journal *j, struct verify_item *items, const struct journal_place *at, const bool *fresh,
                        size_t n, struct err *e) MUST_USE;

#endif
