/* verdict_cache: verdicts of equal answers, in memory, for the life of who judges. */
#ifndef KERNELRL_VERIFY_VERDICT_CACHE_H
#define KERNELRL_VERIFY_VERDICT_CACHE_H

#include "verify/verify.h"

struct verdict_cache; /* of a fixed size: a newer verdict may take the place of an older one */
struct verdict_cache *verdict_cache_create(void);
void verdict_cache_free(struct verdict_cache *c); /* NULL is fine */
/* True: *out is the verdict of that answer (verify_key), marked as cached. */
bool verdict_cache_find(const struct verdict_cache *c, const struct digest *key, struct verdict *out);
/* As verifier_recall() says, missing and cached verdicts and older keys are passed over. */
void verdict_cache_add(struct verdict_cache *c, const struct digest *key, const struct verdict *verdict);

#endif
