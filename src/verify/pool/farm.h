/* farm: names that a trainer and the workers of a farm have in common: streams, consumers, subjects and keys of the
 * queue (docs/formats.md, "The queue of a farm"), and what of a verdict is signed. */
#ifndef KERNELRL_VERIFY_POOL_FARM_H
#define KERNELRL_VERIFY_POOL_FARM_H

#include "verify/pool/hardware.h"
#include "verify/pool/protocol.h"

#define FARM_JOBS "KRL_JOBS"
#define FARM_VERDICTS "KRL_VERDICTS"
#define FARM_CACHE "KV_KRL_CACHE"
#define FARM_WORKERS "KV_KRL_WORKERS"
#define FARM_CACHE_SUBJECT "$KV.KRL_CACHE"
#define FARM_WORKERS_SUBJECT "$KV.KRL_WORKERS"
#define FARM_LANE "p"               /* of ordinary jobs */
#define FARM_LANE_SUSPECT "suspect" /* of those that lost two leases: nothing is judged beside them */

enum { FARM_SUBJECT_BYTES = 320 };
static const double farm_beat_s = 10, farm_gone_s = 30; /* a worker's entry is renewed, and is old */

/* What is signed of a line that goes to krl.verdict.RUN: its subject, a newline, the line. */
void farm_signed_text(const char *subject, const char *line, size_t n, struct str *out);
/* The key of an answer in the cache, and what a worker signs of its entry: the key, a newline, the verdict as JSON. */
void farm_cache_key(const char *settings_hash, const char *class, const struct digest *answer, char *out, size_t size);
void farm_cache_entry(const char *key, const char *verdict, const char *public_key, const char *signature,
                      struct str *out);
/* Reads an entry and looks at its signature. False: it is none, of another key, or forged. signer has room for a public
 * key. */
bool farm_cache_read(const char *text, size_t n, const char *key, struct verdict *out, char signer[64]);

#endif
