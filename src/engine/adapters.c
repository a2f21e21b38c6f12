/* Adapters of an engine: those that were dropped, and which of the others are on the device. */
#include <stdlib.h>

#include "base/fs.h"
#include "base/log.h"
#include "engine/internal.h"

/* ---- dropped ones -------------------------------------------------------------------------------------------------*/

bool adapter_is_dropped(const struct engine *en, int adapter) {
    for (int i = 0; i < en->n_dropped; i++)
        if (en->dropped[i] == adapter) return true;
    return false;
}

void adapters_drop(struct engine *en) {
    for (int i = 0; i < en->n_dropped; i++) {
        const int adapter = en->dropped[i];
        if (queue_has(en, adapter, true)) continue;
        pthread_mutex_lock(&en->lock);
        en->dropped[i--] = en->dropped[--en->n_dropped];
        pthread_mutex_unlock(&en->lock);
        model_adapter_drop(en->m, adapter);
    }
}

enum status engine_adapter_drop(struct engine *en, int index, struct err *e) {
    if (index <= ADAPTER_OWN || !model_adapter_there(en->m, index))
        return FAIL(e, ST_INVALID, "there is no adapter %d to drop", index);
    pthread_mutex_lock(&en->lock);
    const bool twice = adapter_is_dropped(en, index);
    if (!twice) {
        en->dropped = xrealloc(en->dropped, (size_t)(en->n_dropped + 1) * sizeof *en->dropped);
        en->dropped[en->n_dropped++] = index;
    }
    pthread_cond_broadcast(&en->wake);
    pthread_mutex_unlock(&en->lock);
    return ST_OK;
}

/* ---- putting to rest ----------------------------------------------------------------------------------------------*/

/* Whether an adapter of the device may leave it. */
static bool may_rest(struct engine *en, int index, const struct adapter_info *a) {
    return a->place == ADAPTER_AWAKE && !a->prepared && !queue_has(en, index, false);
}

/* The adapter that was used longest ago of those that may leave the device (place ADAPTER_AWAKE) or that lie in host
 * memory; `but` stays. -1: there is none. *bytes: what all of that place take there. */
static int used_longest_ago(struct engine *en, enum adapter_place place, int but, int64_t *bytes) {
    int64_t used = INT64_MAX;
    int found = -1;
    *bytes = 0;
    for (int i = 0; i < model_adapter_count(en->m); i++) {
        struct adapter_info a;
        if (!model_adapter_info(en->m, i, &a) || a.place != place || a.prepared) continue;
        *bytes += place == ADAPTER_AWAKE ? a.bytes : a.rest_bytes;
        if (i == but || a.used >= used || (place == ADAPTER_AWAKE && !may_rest(en, i, &a))) continue;
        used = a.used;
        found = i;
    }
    return found;
}

static enum status rest_in_file(struct engine *en, int index, struct err *e) {
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/adapter-%d.safetensors", en->opt.adapter_dir, index);
    TRY(fs_mkdirs(en->opt.adapter_dir, e));
    TRY(fs_remove(path.p, e)); /* what a process has left that is no more */
    return model_adapter_rest(en->m, index, path.p, e);
}

/* Host memory first, and out of it what was used longest ago, until the rest is no more than it may be. */
static enum status put_to_rest(struct engine *en, int index, struct err *e) {
    struct adapter_info a;
    int64_t bytes;
    const bool there = model_adapter_info(en->m, index, &a);
    ASSERT(there && may_rest(en, index, &a));
    if (en->opt.adapter_dir && a.rest_bytes > en->opt.adapter_host_bytes) {
        TRY(rest_in_file(en, index, e));
        en->stats.adapters_rested++;
        return ST_OK;
    }
    TRY(model_adapter_rest(en->m, index, NULL, e));
    en->stats.adapters_rested++;
    for (int oldest; en->opt.adapter_dir;) {
        oldest = used_longest_ago(en, ADAPTER_IN_MEMORY, -1, &bytes);
        if (bytes <= en->opt.adapter_host_bytes) break;
        TRY(rest_in_file(en, oldest, e));
    }
    return ST_OK;
}

enum status engine_adapter_rest(struct engine *en, int index, struct err *e) {
    struct adapter_info a;
    if (en->under_way > 0) return FAIL(e, ST_INVALID, "engine_adapter_rest: a step is under way; pause first");
    if (!model_adapter_info(en->m, index, &a)) return FAIL(e, ST_INVALID, "there is no adapter %d", index);
    if (a.place != ADAPTER_AWAKE) return ST_OK;
    if (queue_has(en, index, false)) return FAIL(e, ST_INVALID, "adapter %d is in use by a request", index);
    if (a.prepared) return FAIL(e, ST_INVALID, "adapter %d is prepared for training", index);
    return put_to_rest(en, index, e);
}

/* Puts adapters to rest until `need` more bytes are within the limit. *fits false: those that are left are in use. */
static enum status make_room(struct engine *en, int64_t need, int but, bool *fits, struct err *e) {
    for (*fits = true; en->opt.adapter_bytes > 0;) {
        int64_t bytes;
        const int oldest = used_longest_ago(en, ADAPTER_AWAKE, but, &bytes);
        if (bytes + need <= en->opt.adapter_bytes) return ST_OK;
        if (oldest < 0) {
            *fits = false;
            return ST_OK;
        }
        TRY(put_to_rest(en, oldest, e));
    }
    return ST_OK;
}

/* ---- loading and waking -------------------------------------------------------------------------------------------*/

enum status engine_adapter_load(struct engine *en, const char *peft_dir, int *index, struct err *e) {
    enum status st;
    int64_t bytes;
    bool fits = true;
    if (en->under_way > 0) return FAIL(e, ST_INVALID, "engine_adapter_load: a step is under way; pause first");
    while ((st = model_adapter_load(en->m, peft_dir, index, e)) == ST_MEMORY) {
        const int oldest = used_longest_ago(en, ADAPTER_AWAKE, -1, &bytes);
        if (oldest < 0) return st;
        TRY(put_to_rest(en, oldest, e));
    }
    TRY(st);
    st = make_room(en, 0, *index, &fits, e);
    if (st == ST_OK && !fits) st = put_to_rest(en, *index, e); /* until somebody asks for it */
    if (st != ST_OK) model_adapter_drop(en->m, *index);
    return st;
}

/* Others than the engine have made adapters, or woken them. Where those cannot leave, a request that needs no room of
 * theirs goes on. */
static void keep_limit(struct engine *en, int but) {
    struct err e;
    bool fits;
    if (make_room(en, 0, but, &fits, &e) != ST_OK) log_warn("adapters on the device: %s", e.msg);
}

/* *fits false: it has to wait for room. */
static enum status wake(struct engine *en, int index, bool *fits, struct err *e) {
    struct adapter_info a;
    int64_t bytes;
    enum status st;
    *fits = true;
    if (!model_adapter_info(en->m, index, &a) || a.place == ADAPTER_AWAKE) {
        keep_limit(en, index);
        return ST_OK;
    }
    if (en->opt.adapter_bytes > 0 && a.bytes > en->opt.adapter_bytes)
        return FAIL(e, ST_MEMORY, "adapter %d takes %lld bytes, adapters may take %lld", index, (long long)a.bytes,
                    (long long)en->opt.adapter_bytes);
    TRY(make_room(en, a.bytes, index, fits, e));
    if (!*fits) return ST_OK;
    while ((st = model_adapter_wake(en->m, index, e)) == ST_MEMORY) {
        const int oldest = used_longest_ago(en, ADAPTER_AWAKE, index, &bytes);
        if (oldest < 0) break;
        TRY(put_to_rest(en, oldest, e));
    }
    *fits = st != ST_MEMORY || en->n_order == 0; /* nobody will make room any more */
    if (!*fits) return ST_OK;
    en->stats.adapters_woken += st == ST_OK;
    return st;
}

bool adapter_ready(struct engine *en, struct ticket *t) {
    bool fits = true;
    const enum status st = wake(en, t->req.adapter, &fits, &t->err);
    if (st == ST_OK) return fits;
    t->status = err_note(&t->err, "request %lld", (long long)t->label);
    return true;
}
