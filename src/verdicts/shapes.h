/* shapes: what NeMo-Gym and KernelGYM send and expect, as requests for verdicts and results of jobs. It knows neither
 * HTTP nor the desk. Interfaces: nemo_gym 0.4 (base_resources_server.py), KernelGYM (kernelgym/server/api/models.py).
 */
#ifndef KERNELRL_VERDICTS_SHAPES_H
#define KERNELRL_VERDICTS_SHAPES_H

#include "verdicts/ask.h"
#include "verdicts/jobs.h"

/* ---- NeMo-Gym -----------------------------------------------------------------------------------------------------*/

/* Makes a request of a row of a data set with the response of a model: the row's verifier_metadata is the request, but
 * for the solution, which is the text of the response. The caller json_decref's *out. */
bool nemo_gym_request(const json_t *row, json_t **out, struct verdict_refusal *why) MUST_USE;
/* Puts the reward of a job's result into the row, beside its parts, the verdict and numbers to log. False: the result
 * has no verdict, and the row stays as it is. */
bool nemo_gym_reply(json_t *row, const json_t *result) MUST_USE;
/* Appends the means of what replies to /verify say in numbers, as /aggregate_metrics wants them. */
bool nemo_gym_means(const json_t *body, struct str *out, struct verdict_refusal *why) MUST_USE;

/* ---- KernelGYM ----------------------------------------------------------------------------------------------------*/

enum { KERNEL_GYM_ID_BYTES = 100, KERNEL_GYM_TASKS = 100 /* in a batch */ };

/* Reads a task. The id of the request that it makes is the task's; its problem is the text of one. wait_s: the task's
 * timeout. The caller json_decref's *out. */
bool kernel_gym_request(const json_t *task, json_t **out, double *wait_s, struct verdict_refusal *why) MUST_USE;
/* Reads the id of a task or a batch. */
bool kernel_gym_id(const json_t *o, const char *name, const char **id, struct verdict_refusal *why) MUST_USE;
/* "pending", "processing", "completed", "failed", "cancelled". */
const char *kernel_gym_state(enum job_status s);
/* Appends what /evaluate and /results reply. result: of the row; NULL while it is not over. */
void kernel_gym_put_result(const char *id, const struct job_row *r, const json_t *result, struct str *out);
/* Appends what /status replies. position: as jobs_position(). */
void kernel_gym_put_status(const char *id, const struct job_row *r, const json_t *result, int64_t position,
                           struct str *out);

#endif
