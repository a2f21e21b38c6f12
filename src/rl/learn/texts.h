/* texts: a model behind a server in the place of ours, as the actor of a rollout asks it. */
#ifndef KERNELRL_RL_LEARN_TEXTS_H
#define KERNELRL_RL_LEARN_TEXTS_H

#include "remote/remote.h"
#include "rl/options/options.h"
#include "rl/rollout/rollout.h"

struct texts;
/* Opens what `o` names, for the model of that name; nothing is asked. ST_CONFIG, the message beginning with the key. */
enum status texts_open(const struct sampler_options *o, const char *model, const volatile bool *cancel,
                       struct texts **out, struct err *e) MUST_USE;
/* Logs what was used, where anything was. NULL is fine. */
void texts_close(struct texts *t);
/* Whom the actor asks; lives as long as t. */
struct actor_texts texts_actor(struct texts *t);
struct remote_usage texts_usage(const struct texts *t);
/* Whether the server is on another machine, so that answers are timed while it works. */
bool texts_is_elsewhere(const struct texts *t);

#endif
