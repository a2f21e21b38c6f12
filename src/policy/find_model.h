/* locate: from what the user calls a model to the folder that holds it. */
#ifndef KERNELRL_POLICY_FIND_MODEL_H
#define KERNELRL_POLICY_FIND_MODEL_H

#include "io/hub.h"

/* The folder of a model, tokenizer, adapter or checkpoint: name as given; or under the installation, so that
 * "models/tiny" works from anywhere; or, where it is a name on a Hub ("ORG/NAME", "ORG/NAME@REVISION"), in the cache of
 * huggingface_hub, after a download if need be (io/hub.h). revision: for names without one; NULL or "": main. cancel
 * may be NULL. *out is malloc'ed. The message begins with key (where the name came from); ST_CONFIG when there is no
 * such thing, else as hub_open. */
enum status locate(const char *key, enum hub_kind kind, const char *name, const char *revision,
                   const volatile bool *cancel, char **out, struct err *e) MUST_USE;

#endif
