/* What session.json and checkpoint.json say: of a session that goes on in the next server, and of a checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tinker/internal.h"

/* ---- sessions -----------------------------------------------------------------------------------------------------*/

void session_put(struct str *out, const struct tinker_session *s, const char *owner) {
    js_begin(out, NULL, '{');
    js_put_i64(out, "version", 1);
    js_put_str(out, "owner", owner);
    js_put_str(out, "name", s->name);
    js_put_str(out, "metadata", s->metadata);
    js_put_str(out, "project", s->project);
    js_put_i64(out, "made", s->made);
    js_end(out, '}');
}

enum status session_parse(const json_t *j, const char *where, struct tinker_session *s, const char **owner,
                          struct err *e) {
    const char *name = NULL, *metadata = NULL, *project = NULL;
    int64_t version;
    *owner = "";
    TRY(js_get_i64(j, where, "version", &version, e));
    if (version != 1) return FAIL(e, ST_UNSUPPORTED, "%s: version %lld is not known", where, (long long)version);
    TRY(js_opt_str(j, where, "owner", owner, e));
    TRY(js_opt_str(j, where, "name", &name, e));
    TRY(js_opt_str(j, where, "metadata", &metadata, e));
    TRY(js_opt_str(j, where, "project", &project, e));
    TRY(js_opt_i64(j, where, "made", &s->made, e));
    if (strlen(*owner) >= sizeof s->tenant->id) return FAIL(e, ST_PARSE, "%s: owner is none", where);
    s->name = name ? xstrdup(name) : NULL;
    s->metadata = metadata ? xstrdup(metadata) : NULL;
    s->project = project ? xstrdup(project) : NULL;
    return ST_OK;
}

/* ---- checkpoints --------------------------------------------------------------------------------------------------*/

void checkpoint_free(struct tinker_checkpoint *c) {
    if (!c) return;
    free(c->run);
    free(c->name);
    free(c->base);
    free(c->folder);
    free(c->metadata);
    free(c->call);
    free(c->project);
    free(c);
}

void checkpoint_put(struct str *out, const struct tinker_checkpoint *c) {
    js_begin(out, NULL, '{');
    js_put_i64(out, "version", 1);
    js_put_str(out, "owner", c->owner);
    js_put_str(out, "run", c->run);
    js_put_str(out, "kind", checkpoint_kind_names[c->kind]);
    js_put_str(out, "name", c->name);
    js_put_str(out, "base", c->base);
    js_put_i64(out, "rank", c->shape.rank);
    js_put_f64(out, "alpha", (double)c->shape.alpha);
    js_put_i64(out, "parts", c->shape.parts);
    js_put_bool(out, "moments", c->moments);
    js_put_bool(out, "public", c->public);
    js_put_i64(out, "bytes", c->bytes);
    js_put_i64(out, "made", c->made);
    js_put_i64(out, "expires", c->expires);
    js_put_str(out, "metadata", c->metadata);
    js_put_str(out, "call", c->call);
    js_put_str(out, "project", c->project);
    js_end(out, '}');
}

enum status checkpoint_parse(const json_t *j, const char *where, struct tinker_checkpoint *c, struct err *e) {
    const char *run, *name, *kind, *base, *metadata = NULL, *call = NULL, *owner = "", *project = NULL;
    int64_t version, rank, parts;
    double alpha;
    TRY(js_get_i64(j, where, "version", &version, e));
    if (version != 1) return FAIL(e, ST_UNSUPPORTED, "%s: version %lld is not known", where, (long long)version);
    TRY(js_opt_str(j, where, "owner", &owner, e));
    TRY(js_get_str(j, where, "run", &run, e));
    TRY(js_get_str(j, where, "name", &name, e));
    TRY(js_get_str(j, where, "kind", &kind, e));
    TRY(js_get_str(j, where, "base", &base, e));
    TRY(js_get_i64(j, where, "rank", &rank, e));
    TRY(js_get_i64(j, where, "parts", &parts, e));
    TRY(js_get_f64(j, where, "alpha", &alpha, e));
    TRY(js_get_bool(j, where, "moments", &c->moments, e));
    TRY(js_get_bool(j, where, "public", &c->public, e));
    TRY(js_get_i64(j, where, "bytes", &c->bytes, e));
    TRY(js_get_i64(j, where, "made", &c->made, e));
    TRY(js_get_i64(j, where, "expires", &c->expires, e));
    TRY(js_opt_str(j, where, "metadata", &metadata, e));
    TRY(js_opt_str(j, where, "call", &call, e));
    TRY(js_opt_str(j, where, "project", &project, e));
    for (c->kind = 0; c->kind < CHECKPOINT_KINDS && strcmp(kind, checkpoint_kind_names[c->kind]) != 0;) c->kind++;
    if (c->kind == CHECKPOINT_KINDS || !call_name_is_safe(name))
        return FAIL(e, ST_PARSE, "%s: kind or name is none", where);
    const unsigned all = ADAPTER_ATTENTION | ADAPTER_MLP | ADAPTER_HEAD;
    if (rank < 1 || rank > CALL_MAX_RANK || parts < 1 || parts > all || !(alpha > 0) ||
        strlen(owner) >= sizeof c->owner)
        return FAIL(e, ST_PARSE, "%s: rank, alpha, parts or owner are none", where);
    c->shape = (struct adapter_shape){.rank = (int)rank, .alpha = (float)alpha, .parts = (unsigned)parts};
    snprintf(c->owner, sizeof c->owner, "%s", owner);
    c->run = xstrdup(run);
    c->name = xstrdup(name);
    c->base = xstrdup(base);
    c->metadata = metadata ? xstrdup(metadata) : NULL;
    c->call = call ? xstrdup(call) : NULL;
    c->project = project ? xstrdup(project) : NULL;
    return ST_OK;
}
