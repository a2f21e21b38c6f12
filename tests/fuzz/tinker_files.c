/* Fuzz target: session.json and checkpoint.json, which a server of the Tinker protocol reads of the one before it. The
 * first byte says which. What was read is written again with the same meaning. */
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads and writes a file again; `out` says what was read. False: it is none. */
static bool session(const json_t *j, struct str *out) {
    struct tinker_session *s = calloc(1, sizeof *s);
    const char *owner;
    struct err e = {0};
    const enum status st = session_parse(j, "session.json", s, &owner, &e);
    ASSERT(st == ST_OK || e.msg[0]);
    if (st == ST_OK) ASSERT(strlen(owner) < sizeof s->tenant->id);
    if (st == ST_OK) session_put(out, s, owner);
    free(s->name);
    free(s->metadata);
    free(s->project);
    free(s);
    return st == ST_OK;
}

static bool checkpoint(const json_t *j, struct str *out) {
    struct tinker_checkpoint *c = calloc(1, sizeof *c);
    struct err e = {0};
    const enum status st = checkpoint_parse(j, "checkpoint.json", c, &e);
    ASSERT(st == ST_OK || e.msg[0]);
    if (st == ST_OK) ASSERT(call_name_is_safe(c->name) && c->kind < CHECKPOINT_KINDS && c->shape.rank >= 1);
    if (st == ST_OK) checkpoint_put(out, c);
    checkpoint_free(c);
    return st == ST_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    CLEANUP_STR struct str first = STR_INIT, second = STR_INIT;
    CLEANUP_JSON json_t *j = NULL, *again = NULL;
    struct err e = {0};
    if (size < 1 || js_parse((const char *)data + 1, size - 1, "file", &j, &e) != ST_OK || !json_is_object(j)) return 0;
    bool (*const take)(const json_t *, struct str *) = data[0] % 2 ? session : checkpoint;
    if (!take(j, &first)) return 0;
    ASSERT(js_parse(first.p, first.len, "file", &again, &e) == ST_OK && take(again, &second));
    ASSERT(first.len == second.len && memcmp(first.p, second.p, first.len) == 0);
    return 0;
}
