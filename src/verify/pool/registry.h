/* registry: what a queue says of itself: its hosts, and how much waits. */
#ifndef KERNELRL_VERIFY_POOL_REGISTRY_H
#define KERNELRL_VERIFY_POOL_REGISTRY_H

#include "base/err.h"
#include "base/str.h"

/* Appends a table for people, or one JSON object. ST_WORKER: the server is not there, or says nothing. */
enum status registry_show(const char *url, const char *folder, bool json, struct str *out, struct err *e) MUST_USE;

#endif
