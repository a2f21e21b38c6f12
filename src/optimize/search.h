/* search: waves of answers. A wave chooses problems and prompts, samples, leaves out what is known already, judges,
 * races, learns, and is written down; then it has happened. Whoever is killed between two waves goes on with the next
 * one, in a wave with what of it is on disk, and ends where the uninterrupted search would have ended. */
#ifndef KERNELRL_OPTIMIZE_SEARCH_H
#define KERNELRL_OPTIMIZE_SEARCH_H

#include "optimize/options.h"
#include "optimize/task.h"
#include "remote/remote.h"

struct answer_search;
/* Opens model (or server), verifier and the files in DIR, which exists, and reads what is there back into the tasks.
 * ST_INVALID: they are of another search (other problems or shapes). */
enum status search_open(const struct optimize_options *o, struct tasks *t, const char *dir, const volatile bool *cancel,
                        struct answer_search **out, struct err *e) MUST_USE;
/* Waves until the budget is spent. ST_CANCELLED when *cancel turned true; what has happened is on disk. */
enum status search_run(struct answer_search *s, struct err *e) MUST_USE;
void search_close(struct answer_search *s); /* NULL is fine */

struct search_state {
    int waves;
    double elapsed_s;                         /* of the search, over all calls */
    int64_t spent, sampled, tokens, measured; /* measured: again, for the race */
    struct remote_usage usage;                /* of a server; zero without one */
};
struct search_state search_state(const struct answer_search *s);
/* What answers run on, "cuda:0" or "cpu", and its name. */
void search_hardware(const struct answer_search *s, char *hardware, size_t hardware_size, char *device,
                     size_t device_size);

#endif
