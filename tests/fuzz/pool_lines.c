/* Fuzz target: what a pool or a worker reads from the other end, cut into pieces anywhere. The reader keeps no more
 * than a line; a line that is a job is the same job when it is written and read again; an error quotes no line. The
 * first byte is the size of the pieces. */
#include <string.h>

#include "verify/pool/lines.h"
#include "verify/pool/protocol.h"

enum { MAX = 1 << 14 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_job(const struct pool_message *m) {
    CLEANUP_STR struct str line = STR_INIT;
    struct pool_message again;
    struct err e = {0};
    char hash[17];
    pool_put_job(&m->job, &line);
    ASSERT(line.len > 0 && line.p[line.len - 1] == '\n' && !memchr(line.p, '\n', line.len - 1));
    ASSERT(pool_message_read(line.p, line.len - 1, "again", &again, &e) == ST_OK && again.type == MESSAGE_JOB);
    ASSERT(strcmp(again.job.source, m->job.source) == 0 && strcmp(again.job.problem.code, m->job.problem.code) == 0);
    ASSERT(again.job.attempt == m->job.attempt && strcmp(again.job.j, m->job.j) == 0);
    pool_settings_hash(&m->job.terms.settings, hash);
    char other[17];
    pool_settings_hash(&again.job.terms.settings, other);
    ASSERT(strcmp(hash, other) == 0);
    pool_message_free(&again);
}

static void check_line(const char *line, size_t n) {
    struct pool_message m;
    struct err e = {0};
    if (pool_message_read(line, n, "fuzz", &m, &e) == ST_OK) {
        if (m.type == MESSAGE_JOB) check_job(&m);
        if (m.type == MESSAGE_VERDICT) ASSERT(m.j && m.witness.worker && m.witness.class);
    } else {
        ASSERT(e.code == ST_PARSE && strncmp(e.msg, "fuzz:", 5) == 0);
    }
    pool_message_free(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const size_t piece = 1 + data[0];
    struct line_reader r = line_reader_make(MAX);
    char *line;
    uint64_t n, seen = 0;
    for (size_t at = 1; at < size; at += piece) {
        line_reader_feed(&r, (const char *)data + at, size - at < piece ? size - at : piece);
        for (enum line_kind k; (k = line_reader_next(&r, &line, &n)) != LINE_NONE; seen += n + 1) {
            ASSERT(k == LINE_WHOLE ? n > 0 && n <= MAX && line[n] == 0 : n > MAX);
            if (k == LINE_WHOLE) check_line(line, (size_t)n);
        }
        ASSERT(r.cap <= 2 * (MAX + 1 + piece));
    }
    ASSERT(seen <= size);
    line_reader_free(&r);
    return 0;
}
