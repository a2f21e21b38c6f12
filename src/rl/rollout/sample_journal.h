/* sample_journal: samples.bin, the samples of a run since its last checkpoint (docs/formats.md). A run that was killed
 * and goes on from there draws the same samples again, bit for bit: those that were finished are read from here.
 * Nothing depends on the file but time, so that it is not forced onto the disk, and whatever is wrong with it costs
 * samples. */
#ifndef KERNELRL_RL_ROLLOUT_SAMPLE_JOURNAL_H
#define KERNELRL_RL_ROLLOUT_SAMPLE_JOURNAL_H

#include "rl/rollout/rollout.h"

struct sample_journal;

/* Opens or creates the file. identity: of what decides the bits of a sample beside its request and the weights: the
 * program, its device, the configuration. A file of another identity begins anew, and what cannot be read at a file's
 * end is cut off. inner samples what is not there. *weights, read at each call: a number that other weights do not have
 * (trainer.history). The pointer is borrowed. ST_IO. */
enum status sample_journal_open(const char *path, uint64_t identity, struct actor_policy inner, const uint64_t *weights,
                                struct sample_journal **out, struct err *e) MUST_USE;
void sample_journal_close(struct sample_journal *j); /* NULL is fine */

/* What inner does (ctx: the journal), where samples that are on record are taken from there. Requests that ask for more
 * than tokens, their log-probabilities and entropies are passed on whole. */
enum status sample_journal_run(void *ctx, const struct request *req, int n_req, struct sample *out,
                               engine_progress_fn *progress, void *progress_ctx, struct err *e) MUST_USE;
/* Samples that were taken from the file. */
int64_t sample_journal_replayed(const struct sample_journal *j);
/* A checkpoint is begun that will hold what comes of all samples up to now. */
void sample_journal_mark(struct sample_journal *j);
/* That checkpoint is complete: the samples in front of the last mark are forgotten. Without a mark: nothing. */
void sample_journal_forget(struct sample_journal *j);

#endif
