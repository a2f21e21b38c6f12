#include "rl/rollout/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "io/json.h"
#include "io/jsonl.h"

enum { LINE_MAX_BYTES = 1 << 16 }; /* a message has at most 2,000 bytes, escaped six times that */

/* Where the line about one answer is. Lines of one place are told apart by the answer; of equal ones the last counts.
 */
struct journal_entry {
    struct journal_place place;
    struct digest answer; /* as written: files of older versions have shorter keys */
    int64_t at, bytes;    /* of the line, without its newline */
};

struct journal {
    char *path;
    int fd; /* for reading lines again */
    struct jsonl_writer *writer;
    struct verify_identity identity;
    struct journal_entry *entry; /* sorted by place, lines of one place in the file's order */
    size_t n, cap;
    int64_t replayed;
};

static int by_place(const void *pa, const void *pb) {
    const struct journal_place *a = &((const struct journal_entry *)pa)->place,
                               *b = &((const struct journal_entry *)pb)->place;
    if (a->step != b->step) return a->step < b->step ? -1 : 1;
    if (a->eval != b->eval) return a->eval ? 1 : -1;
    if (a->group != b->group) return a->group < b->group ? -1 : 1;
    if (a->sample != b->sample) return a->sample < b->sample ? -1 : 1;
    if (a->turn != b->turn) return a->turn < b->turn ? -1 : 1;
    return 0;
}

static int by_place_then_line(const void *pa, const void *pb) {
    const int64_t a = ((const struct journal_entry *)pa)->at, b = ((const struct journal_entry *)pb)->at;
    const int c = by_place(pa, pb);
    return c ? c : (a > b) - (a < b);
}

/* ---- lines --------------------------------------------------------------------------------------------------------*/

struct journal_row { /* a line, parsed */
    struct journal_entry entry;
    uint64_t settings;
    struct verdict verdict;
};

static enum status parse_row(const char *line, size_t n, const char *where, struct journal_row *out, struct err *e) {
    CLEANUP_JSON json_t *o = NULL;
    json_t *verdict;
    const char *answer, *settings;
    int64_t group, sample, turn = 0;
    TRY(js_parse(line, n, where, &o, e));
    TRY(js_get_i64(o, where, "step", &out->entry.place.step, e));
    TRY(js_get_bool(o, where, "eval", &out->entry.place.eval, e));
    TRY(js_get_i64(o, where, "group", &group, e));
    TRY(js_get_i64(o, where, "sample", &sample, e));
    TRY(js_opt_i64(o, where, "turn", &turn, e));
    TRY(js_get_str(o, where, "answer", &answer, e));
    TRY(js_get_str(o, where, "settings", &settings, e));
    TRY(js_get_object(o, where, "verdict", &verdict, e));
    char *end;
    out->settings = strtoull(settings, &end, 16);
    if (group < 0 || group > INT32_MAX || sample < 0 || sample > INT32_MAX || turn < 0 || turn > INT32_MAX || *end ||
        !*settings || !digest_readable(answer))
        return FAIL(e, ST_PARSE, "%s: group, sample, turn, answer or settings: not what a run writes", where);
    out->entry.place.group = (int)group;
    out->entry.place.sample = (int)sample;
    out->entry.place.turn = (int)turn;
    snprintf(out->entry.answer.hex, sizeof out->entry.answer.hex, "%s", answer);
    return verdict_from_json(verdict, where, &out->verdict, e);
}

static void render_row(const struct journal *j, const struct journal_place *at, const struct verify_item *item,
                       struct str *line) {
    const struct digest answer = verify_key(item->problem, item->source);
    char settings[17];
    snprintf(settings, sizeof settings, "%016llx", (unsigned long long)j->identity.now);
    js_begin(line, NULL, '{');
    js_put_i64(line, "step", at->step);
    js_put_bool(line, "eval", at->eval);
    js_put_i64(line, "group", at->group);
    js_put_i64(line, "sample", at->sample);
    if (at->turn > 0) js_put_i64(line, "turn", at->turn);
    js_put_str(line, "problem", item->problem->key);
    js_put_str(line, "answer", answer.hex);
    js_put_str(line, "settings", settings);
    CLEANUP_STR struct str verdict = STR_INIT;
    verdict_to_json(&item->verdict, &verdict);
    str_adds(line, ",\"verdict\":");
    str_add(line, verdict.p, verdict.len);
    js_end(line, '}');
}

/* ---- opening ------------------------------------------------------------------------------------------------------*/

static enum status read_lines(struct journal *j, int64_t first_step, const struct judge *judge, struct err *e) {
    struct jsonl_reader *r;
    TRY(jsonl_open(j->path, LINE_MAX_BYTES, &r, e));
    enum status st;
    for (;;) {
        const char *line;
        size_t n;
        struct journal_row row;
        char where[4200];
        if ((st = jsonl_next(r, &line, &n, e)) != ST_OK || !line) break;
        snprintf(where, sizeof where, "%s:%lld", j->path, (long long)jsonl_line(r));
        if ((st = parse_row(line, n, where, &row, e)) != ST_OK) break;
        if (row.settings != j->identity.now && (!j->identity.before || row.settings != j->identity.before)) continue;
        if (row.entry.place.step < first_step) {
            if (judge && judge->recall) judge->recall(judge->ctx, &row.entry.answer, &row.verdict);
            continue;
        }
        row.entry.at = jsonl_offset(r);
        row.entry.bytes = (int64_t)n;
        if (j->n == j->cap) {
            j->cap = j->cap ? 2 * j->cap : 256;
            j->entry = xrealloc(j->entry, j->cap * sizeof *j->entry);
        }
        j->entry[j->n++] = row.entry;
    }
    jsonl_close(r);
    if (j->n > 1) qsort(j->entry, j->n, sizeof *j->entry, by_place_then_line);
    return st;
}

enum status journal_open(const char *path, struct verify_identity identity, int64_t first_step,
                         const struct judge *judge, struct journal **out, struct err *e) {
    struct journal *j = xcalloc(1, sizeof *j);
    j->path = xstrdup(path);
    j->identity = identity;
    j->fd = -1;
    enum status st = jsonl_append_open(path, &j->writer, NULL, e); /* first: it cuts a torn line */
    if (st == ST_OK && (j->fd = open(path, O_RDONLY | O_CLOEXEC)) < 0)
        st = FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    if (st == ST_OK) st = read_lines(j, first_step, judge, e);
    if (st != ST_OK) {
        journal_close(j);
        return st;
    }
    *out = j;
    return ST_OK;
}

void journal_close(struct journal *j) {
    if (!j) return;
    jsonl_append_close(j->writer);
    if (j->fd >= 0) close(j->fd);
    free(j->entry);
    free(j->path);
    free(j);
}

int64_t journal_replayed(const struct journal *j) { return j->replayed; }

/* ---- verdicts -----------------------------------------------------------------------------------------------------*/

static enum status read_again(const struct journal *j, const struct journal_entry *x, struct verdict *out,
                              struct err *e) {
    CLEANUP_FREE char *line = xmalloc((size_t)x->bytes + 1);
    char where[4200];
    snprintf(where, sizeof where, "%s: byte %lld", j->path, (long long)x->at);
    ssize_t got = pread(j->fd, line, (size_t)x->bytes, (off_t)x->at);
    if (got != x->bytes)
        return FAIL(e, ST_IO, "%s: %s", where, got < 0 ? strerror(errno) : "the file has become shorter");
    struct journal_row row;
    TRY(parse_row(line, (size_t)x->bytes, where, &row, e));
    *out = row.verdict;
    return ST_OK;
}

enum status journal_find(struct journal *j, const struct journal_place *at, const struct verify_item *item,
                         struct verdict *out, bool *found, struct err *e) {
    const struct journal_entry want = {.place = *at};
    *found = false;
    size_t low = 0, high = j->n; /* the first entry at this place */
    while (low < high) {
        const size_t mid = (low + high) / 2;
        if (by_place(&j->entry[mid], &want) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    const struct journal_entry *last = NULL;
    for (size_t i = low; i < j->n && by_place(&j->entry[i], &want) == 0; i++) {
        if (verify_key_matches(j->entry[i].answer.hex, item->problem, item->source)) last = &j->entry[i];
    }
    if (!last) return ST_OK;
    TRY(read_again(j, last, out, e));
    *found = true;
    return ST_OK;
}

enum status journal_replay(struct journal *j, const struct judge *judge, const struct journal_place *at,
                           struct verify_item *item, bool *found, struct err *e) {
    TRY(journal_find(j, at, item, &item->verdict, found, e));
    if (!*found) return ST_OK;
    const struct digest key = verify_key(item->problem, item->source);
    if (judge->recall) judge->recall(judge->ctx, &key, &item->verdict);
    j->replayed++;
    return ST_OK;
}

enum status journal_add(struct journal *j, struct verify_item *items, const struct journal_place *at, const bool *fresh,
                        size_t n, struct err *e) {
    CLEANUP_STR struct str lines = STR_INIT, line = STR_INIT;
    for (size_t i = 0; i < n; i++) {
        if (!fresh[i]) continue;
        str_clear(&line);
        render_row(j, &at[i], &items[i], &line);
        struct journal_row row;
        TRY(parse_row(line.p, line.len, j->path, &row, e));
        items[i].verdict = row.verdict;
        str_add(&lines, line.p, line.len);
        str_addc(&lines, '\n');
    }
    if (lines.len == 0) return ST_OK;
    TRY(jsonl_append(j->writer, lines.p, lines.len, e));
    return jsonl_sync(j->writer, e);
}

/* An item that is being judged; its verdict is written as soon as the verifier says that it is there. */
struct arrival {
    struct journal *j;
    const struct journal_place *at;
    bool *fresh; /* not written yet */
    enum status st;
    struct err err;
};

static void write_arrival(void *ctx, struct verify_item *item) {
    struct arrival *a = ctx;
    if (!*a->fresh || outcome_class(item->verdict.outcome) == 'I') return;
    a->st = journal_add(a->j, item, a->at, a->fresh, 1, &a->err);
    *a->fresh = a->st != ST_OK;
}

/* Judges the items that are still wanted; those the verifier failed on are asked for again. fresh: not written yet. */
static enum status judge_wanted(struct journal *j, const struct judge *judge, struct verify_item *items,
                                const struct journal_place *at, bool *wanted, bool *fresh, size_t n,
                                const volatile bool *cancel, struct err *e) {
    CLEANUP_FREE struct verify_item *batch = xcalloc(n + 1, sizeof *batch);
    CLEANUP_FREE struct arrival *arrivals = xcalloc(n + 1, sizeof *arrivals);
    CLEANUP_FREE size_t *from = xcalloc(n + 1, sizeof *from);
    for (int attempt = 1; attempt <= JOURNAL_ATTEMPTS; attempt++) {
        size_t m = 0;
        for (size_t i = 0; i < n; i++)
            if (wanted[i]) {
                arrivals[m] = (struct arrival){.j = j, .at = &at[i], .fresh = &fresh[i]};
                batch[m] = items[i];
                if (j) batch[m].judged = write_arrival;
                batch[m].judged_ctx = &arrivals[m];
                from[m++] = i;
            }
        if (m == 0) return ST_OK;
        if (attempt > 1)
            log_warn("%zu answers have no verdict: %.300s; judging them again", m, batch[0].verdict.message);
        TRY(judge->batch(judge->ctx, batch, m, cancel, e));
        for (size_t k = 0; k < m; k++) {
            if (arrivals[k].st != ST_OK) {
                *e = arrivals[k].err;
                return arrivals[k].st;
            }
            items[from[k]].verdict = batch[k].verdict;
            wanted[from[k]] = batch[k].verdict.outcome == OUTCOME_INFRASTRUCTURE;
        }
    }
    return ST_OK;
}

enum status journal_judge(struct journal *j, const struct judge *judge, struct verify_item *items,
                          const struct journal_place *at, size_t n, const volatile bool *cancel, struct err *e) {
    CLEANUP_FREE bool *wanted = xcalloc(n + 1, sizeof *wanted), *fresh = xcalloc(n + 1, sizeof *fresh);
    for (size_t i = 0; i < n; i++) {
        bool found = false;
        if (j) TRY(journal_replay(j, judge, &at[i], &items[i], &found, e));
        wanted[i] = fresh[i] = !found;
    }
    TRY(judge_wanted(j, judge, items, at, wanted, fresh, n, cancel, e));
    for (size_t i = 0; i < n; i++) fresh[i] &= outcome_class(items[i].verdict.outcome) != 'I';
    return j ? journal_add(j, items, at, fresh, n, e) : ST_OK;
}
