/* sample: requests sampled by all ranks of a run. Requests are cut into pieces, runs of samples of one request. Each
 * rank begins with its share, as far as it has room. Where there are more, a rank that has room again takes the next
 * piece, whichever it is: a sample's bits do not depend on where it is drawn. */
#ifndef KERNELRL_RANKS_SAMPLE_H
#define KERNELRL_RANKS_SAMPLE_H

#include "dist/command.h"
#include "engine/engine.h"

/* A rank's share of sampling; borrowed. */
struct rank_sampler {
    struct comm *comm;
    struct engine *engine;
    int max_batch; /* samples that the engine decodes together; the same on all ranks */
    /* At rank 0, added to by every call: samples that each rank has drawn, and seconds that it was at work on them,
     * [size]. The caller's memory; NULL: nobody asks. */
    int64_t *drawn;
    double *busy_s;
};

/* engine_run(), by all ranks; rank 0 calls it. ctx: its struct rank_sampler. Requests may name the model's own adapter
 * or the base alone, have no sink, and ask for no further log-probabilities (ST_UNSUPPORTED). What fails on another
 * rank fails here, with that rank's message. */
enum status rank_sample(void *ctx, const struct request *req, int n_req, struct sample *out,
                        engine_progress_fn *progress, void *progress_ctx, struct err *e) MUST_USE;
/* What the other ranks do after RANK_SAMPLE with this payload. ST_LOST: rank 0 is lost; what else went wrong, rank 0
 * has been told. */
enum status rank_sample_follow(struct rank_sampler *s, const struct str *payload, struct err *e) MUST_USE;

#endif
