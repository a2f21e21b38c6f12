#include "io/jsonl.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/fs.h"

enum { READ_BYTES = 1 << 17, ZSTD_LEVEL = 3 };

/* A frame may ask its reader for a window of up to 2^27 bytes, which is zstd's own default bound. */
struct jsonl_reader {
    char *path;
    int fd;                   /* -1 when it reads from memory. */
    const unsigned char *mem; /* What is left of the borrowed memory. */
    size_t mem_left;
    ZSTD_DCtx *zstd;   /* NULL for plain files. */
    unsigned char *in; /* Compressed input. */
    size_t in_pos, in_len;
    bool in_frame; /* true: it is in the middle of a zstd frame. */
    size_t max_line_bytes;
    struct str buf; /* Decoded bytes. [pos, len) has not been returned yet. */
    size_t pos;
    /* Bytes of buf beyond pos that are known to hold no newline. */
    size_t scanned;
    int64_t line;
    int64_t dropped; /* Decoded bytes that were in buf before and are gone. */
    /* Where in the decoded text the line begins that was returned last. */
    int64_t line_at;
    int64_t in_at;                /* Where in the file r->in ends. */
    int64_t frame_at, frame_text; /* Where the frame begins that was decoded last: in the file, in the decoded text. */
    bool eof, torn;
};

static struct jsonl_reader *reader_new(const char *path, bool zstd, size_t max_line_bytes) {
    struct jsonl_reader *r = xcalloc(1, sizeof *r);
    r->path = xstrdup(path);
    r->fd = -1;
    r->max_line_bytes = max_line_bytes;
    r->in = xmalloc(READ_BYTES);
    str_adds(&r->buf, ""); /* So buf.p is never NULL. */
    if (zstd) {
        r->zstd = ZSTD_createDCtx();
        ASSERT(r->zstd);
    }
    return r;
}

enum status jsonl_open(const char *path, size_t max_line_bytes, struct jsonl_reader **out, struct err *e) {
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    *out = jsonl_open_fd(fd, path, str_has_suffix(path, ".zst"), max_line_bytes);
    return ST_OK;
}

struct jsonl_reader *jsonl_open_fd(int fd, const char *name, bool zstd, size_t max_line_bytes) {
    struct jsonl_reader *r = reader_new(name, zstd, max_line_bytes);
    r->fd = fd;
    return r;
}

struct jsonl_reader *jsonl_open_memory(const char *name, const void *data, size_t n, bool zstd, size_t max_line_bytes) {
    struct jsonl_reader *r = reader_new(name, zstd, max_line_bytes);
    r->mem = data;
    r->mem_left = n;
    return r;
}

/* Reads up to cap bytes of the file. *n is 0 at its end. */
static enum status read_raw(struct jsonl_reader *r, void *dst, size_t cap, size_t *n, struct err *e) {
    if (r->fd < 0) {
        *n = r->mem_left < cap ? r->mem_left : cap;
        if (*n) memcpy(dst, r->mem, *n);
        r->mem += *n;
        r->mem_left -= *n;
        return ST_OK;
    }
    ssize_t got;
    do got = read(r->fd, dst, cap);
    while (got < 0 && errno == EINTR);
    if (got < 0) return FAIL(e, ST_IO, "%s: %s", r->path, strerror(errno));
    *n = (size_t)got;
    return ST_OK;
}

/* Appends more decoded bytes to r->buf, or sets r->eof. */
static enum status fill(struct jsonl_reader *r, struct err *e) {
    if (r->in_pos == r->in_len) {
        TRY(read_raw(r, r->in, READ_BYTES, &r->in_len, e));
        r->in_pos = 0;
        r->in_at += (int64_t)r->in_len;
        if (r->in_len == 0) {
            r->eof = true;
            r->torn = r->in_frame;
            return ST_OK;
        }
    }
    if (!r->zstd) {
        str_add(&r->buf, (const char *)r->in, r->in_len);
        r->in_pos = r->in_len;
        return ST_OK;
    }
    if (!r->in_frame) { /* All lines of the frame before have been returned: nobody fills while there is a newline. */
        r->frame_at = r->in_at - (int64_t)(r->in_len - r->in_pos);
        r->frame_text = r->dropped + (int64_t)r->buf.len;
    }
    char chunk[1 << 16];
    ZSTD_inBuffer in = {r->in, r->in_len, r->in_pos};
    ZSTD_outBuffer out = {chunk, sizeof chunk, 0};
    size_t rc = ZSTD_decompressStream(r->zstd, &out, &in);
    if (ZSTD_isError(rc))
        return FAIL(e, ST_PARSE, "%s: after line %lld: damaged zstd data: %s", r->path, (long long)r->line,
                    ZSTD_getErrorName(rc));
    r->in_pos = in.pos;
    r->in_frame = rc != 0;
    if (out.pos) str_add(&r->buf, chunk, out.pos);
    return ST_OK;
}

/* The decoder may hold output that no further input will push out. */
static enum status drain(struct jsonl_reader *r, bool *more, struct err *e) {
    *more = false;
    if (!r->zstd || !r->in_frame) return ST_OK;
    char chunk[1 << 16];
    ZSTD_inBuffer in = {r->in, 0, 0};
    ZSTD_outBuffer out = {chunk, sizeof chunk, 0};
    size_t rc = ZSTD_decompressStream(r->zstd, &out, &in);
    if (ZSTD_isError(rc)) return FAIL(e, ST_PARSE, "%s: damaged zstd data: %s", r->path, ZSTD_getErrorName(rc));
    r->in_frame = rc != 0;
    if (out.pos) str_add(&r->buf, chunk, out.pos);
    *more = out.pos > 0;
    return ST_OK;
}

static bool is_blank(const char *p, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p[i] != ' ' && p[i] != '\t') return false;
    return true;
}

enum status jsonl_next(struct jsonl_reader *r, const char **line, size_t *len, struct err *e) {
    *line = NULL;
    for (;;) {
        char *start = r->buf.p + r->pos, *nl = NULL;
        size_t have = r->buf.len - r->pos;
        if (have > r->scanned) nl = memchr(start + r->scanned, '\n', have - r->scanned);
        if (!nl && !r->eof) {
            r->scanned = have;
            if (have > r->max_line_bytes) goto too_long;
            if (r->pos > 0) { /* Only the unfinished line is kept. */
                memmove(r->buf.p, start, have);
                r->buf.len = have;
                r->dropped += (int64_t)r->pos;
                r->pos = 0;
            }
            bool more = false;
            if (r->in_pos == r->in_len) TRY(drain(r, &more, e));
            if (!more) TRY(fill(r, e));
            continue;
        }
        if (!nl && have == 0) return ST_OK; /* This is the end. */
        size_t n = nl ? (size_t)(nl - start) : have;
        if (n > r->max_line_bytes) goto too_long;
        r->line++;
        r->line_at = r->dropped + (int64_t)r->pos;
        r->pos += n + (nl ? 1 : 0);
        r->scanned = 0;
        if (!nl) r->torn = true;
        if (n > 0 && start[n - 1] == '\r') n--;
        if (is_blank(start, n)) continue;
        start[n] = 0; /* This is the newline, or the string's own NUL. */
        *line = start;
        if (len) *len = n;
        return ST_OK;
    }
too_long:
    return FAIL(e, ST_PARSE, "%s:%lld: line of more than %zu bytes", r->path, (long long)r->line + 1,
                r->max_line_bytes);
}

int64_t jsonl_offset(const struct jsonl_reader *r) { return r->line_at; }

void jsonl_frame(const struct jsonl_reader *r, int64_t *frame, int64_t *at) {
    *frame = r->frame_at;
    *at = r->line_at - r->frame_text;
}

enum status jsonl_start_at(struct jsonl_reader *r, int64_t bytes, struct err *e) {
    ASSERT(r->line == 0 && r->fd >= 0);
    if (lseek(r->fd, (off_t)bytes, SEEK_SET) < 0) return FAIL(e, ST_IO, "%s: %s", r->path, strerror(errno));
    r->in_at = bytes;
    return ST_OK;
}

int64_t jsonl_line(const struct jsonl_reader *r) { return r->line; }
bool jsonl_is_torn(const struct jsonl_reader *r) { return r->torn; }

void jsonl_close(struct jsonl_reader *r) {
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    ZSTD_freeDCtx(r->zstd);
    str_free(&r->buf);
    free(r->in);
    free(r->path);
    free(r);
}

/* ---- appending ----------------------------------------------------------------------------------------------------
 */

struct jsonl_writer {
    char *path;
    int fd;
    off_t size;
    ZSTD_CCtx *zstd; /* NULL for plain files */
    struct str lines;
    void *packed;
    size_t packed_cap;
};

/* How many bytes of a plain file there are up to its last newline, with it. */
static off_t whole_lines(const unsigned char *p, size_t n) {
    while (n > 0 && p[n - 1] != '\n') n--;
    return (off_t)n;
}

/* Returns whether a frame decodes to its end. Its checksum is checked on the way. */
static bool frame_is_sound(const unsigned char *p, size_t n) {
    ZSTD_DCtx *d = ZSTD_createDCtx();
    ASSERT(d);
    char chunk[1 << 16];
    ZSTD_inBuffer in = {p, n, 0};
    size_t rc = 1;
    for (;;) {
        ZSTD_outBuffer out = {chunk, sizeof chunk, 0};
        size_t before = in.pos;
        rc = ZSTD_decompressStream(d, &out, &in);
        if (ZSTD_isError(rc) || rc == 0 || (out.pos == 0 && in.pos == before)) break;
    }
    ZSTD_freeDCtx(d);
    return rc == 0;
}

/* How many bytes of a compressed file there are up to the end of its last sound frame. Only the tail is decoded: an
 * interrupted write can damage nothing before it. */
static off_t whole_frames(const unsigned char *p, size_t n) {
    size_t at = 0, last = 0;
    while (at < n) {
        size_t size = ZSTD_findFrameCompressedSize(p + at, n - at);
        if (ZSTD_isError(size) || size == 0) break;
        last = at;
        at += size;
    }
    if (at > last && !frame_is_sound(p + last, at - last)) at = last;
    return (off_t)at;
}

enum status jsonl_append_open(const char *path, struct jsonl_writer **out, int64_t *cut_bytes, struct err *e) {
    *out = NULL;
    if (cut_bytes) *cut_bytes = 0;
    int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0) return FAIL(e, ST_IO, "%s: cannot append: %s", path, strerror(errno));
    struct fs_map map = {0};
    enum status st = ST_OK;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        st = FAIL(e, ST_IO, "%s: another process is appending to it", path);
        goto fail;
    }
    TRY_GOTO(fs_map_open(path, &map, e), fail);
    bool zstd = str_has_suffix(path, ".zst");
    off_t keep = zstd ? whole_frames(map.data, map.len) : whole_lines(map.data, map.len);
    off_t cut = (off_t)map.len - keep;
    fs_map_close(&map);
    if (cut > 0 && ftruncate(fd, keep) != 0) {
        st = FAIL(e, ST_IO, "%s: cannot cut an interrupted line: %s", path, strerror(errno));
        goto fail;
    }
    if (cut_bytes) *cut_bytes = cut;
    struct jsonl_writer *w = xcalloc(1, sizeof *w);
    w->path = xstrdup(path);
    w->fd = fd;
    w->size = keep;
    if (zstd) {
        w->zstd = ZSTD_createCCtx();
        ASSERT(w->zstd);
        ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, ZSTD_LEVEL);
        ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    }
    *out = w;
    return ST_OK;
fail:
    close(fd);
    return st;
}

static enum status write_whole(struct jsonl_writer *w, const char *p, size_t n, struct err *e) {
    size_t left = n;
    while (left > 0) {
        ssize_t got = write(w->fd, p, left);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            int saved = errno;
            /* Takes back the part that was written, so that a full disk leaves whole lines. */
            if (ftruncate(w->fd, w->size) != 0)
                return FAIL(e, ST_IO, "%s: cannot append: %s (and a part line stays in it)", w->path, strerror(saved));
            return FAIL(e, ST_IO, "%s: cannot append: %s", w->path, strerror(saved));
        }
        p += got;
        left -= (size_t)got;
    }
    w->size += (off_t)n;
    return ST_OK;
}

enum status jsonl_append(struct jsonl_writer *w, const char *lines, size_t n, struct err *e) {
    if (n == 0) return ST_OK;
    str_clear(&w->lines);
    str_add(&w->lines, lines, n);
    if (lines[n - 1] != '\n') str_addc(&w->lines, '\n');
    if (!w->zstd) return write_whole(w, w->lines.p, w->lines.len, e);

    size_t bound = ZSTD_compressBound(w->lines.len);
    if (bound > w->packed_cap) w->packed = xrealloc(w->packed, w->packed_cap = bound);
    size_t size = ZSTD_compress2(w->zstd, w->packed, w->packed_cap, w->lines.p, w->lines.len);
    if (ZSTD_isError(size)) return FAIL(e, ST_FAILED, "%s: zstd: %s", w->path, ZSTD_getErrorName(size));
    return write_whole(w, w->packed, size, e);
}

int64_t jsonl_append_size(const struct jsonl_writer *w) { return (int64_t)w->size; }

enum status jsonl_append_cut(struct jsonl_writer *w, int64_t bytes, struct err *e) {
    ASSERT(!w->zstd && bytes >= 0 && bytes <= w->size);
    if (ftruncate(w->fd, bytes) != 0) return FAIL(e, ST_IO, "%s: cannot cut: %s", w->path, strerror(errno));
    w->size = bytes;
    return ST_OK;
}

enum status jsonl_sync(struct jsonl_writer *w, struct err *e) {
    if (fsync(w->fd) != 0) return FAIL(e, ST_IO, "%s: fsync: %s", w->path, strerror(errno));
    return ST_OK;
}

void jsonl_append_close(struct jsonl_writer *w) {
    if (!w) return;
    close(w->fd);
    ZSTD_freeCCtx(w->zstd);
    str_free(&w->lines);
    free(w->packed);
    free(w->path);
    free(w);
}
