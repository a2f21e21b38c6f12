#include "io/tfevents.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"

enum { FLUSH_BYTES = 1 << 16, BUCKETS = 30 };
static const double FLUSH_S = 30;

struct tfevents {
    char *path;
    int fd;
    struct str buf;
    double last_flush_s;
    struct err failed; /* The first write that failed, until it is reported. */
};

/* ---- CRC ----------------------------------------------------------------------------------------------------------
 */

static uint32_t crc_table[256];
static pthread_once_t crc_once = PTHREAD_ONCE_INIT;

static void crc_init(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78u : c >> 1;
        crc_table[i] = c;
    }
}

uint32_t tfevents_crc32c(const void *p, size_t n) {
    pthread_once(&crc_once, crc_init);
    const unsigned char *b = p;
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++) c = crc_table[(c ^ b[i]) & 0xff] ^ c >> 8;
    return ~c;
}

/* Records store checksums rotated and shifted, because a CRC of data that holds its own CRC says little. */
static uint32_t masked_crc(const void *p, size_t n) {
    uint32_t c = tfevents_crc32c(p, n);
    return (c >> 15 | c << 17) + 0xa282ead8u;
}

/* ---- protobuf wire format ------------------------------------------------------------------------------------------
 */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void pb_varint(struct str *s, uint64_t v) {
    while (v >= 0x80) {
        str_addc(s, (char)(v | 0x80));
        v >>= 7;
    }
    str_addc(s, (char)v);
}

static void pb_key(struct str *s, uint32_t number, uint32_t wire) { pb_varint(s, number << 3 | wire); }

static void pb_int(struct str *s, uint32_t number, int64_t v) {
    pb_key(s, number, WIRE_VARINT);
    pb_varint(s, (uint64_t)v);
}

static void pb_double(struct str *s, uint32_t number, double v) {
    pb_key(s, number, WIRE_64);
    /* This works on little-endian hosts only, as all of this program does. */
    str_add(s, (const char *)&v, sizeof v);
}

static void pb_float(struct str *s, uint32_t number, float v) {
    pb_key(s, number, WIRE_32);
    str_add(s, (const char *)&v, sizeof v);
}

static void pb_bytes(struct str *s, uint32_t number, const void *p, size_t n) {
    pb_key(s, number, WIRE_BYTES);
    pb_varint(s, n);
    str_add(s, p, n);
}

static void pb_string(struct str *s, uint32_t number, const char *v) { pb_bytes(s, number, v, strlen(v)); }

/* ---- records ------------------------------------------------------------------------------------------------------
 */

static void write_buffer(struct tfevents *t) {
    const char *p = t->buf.p;
    size_t left = t->buf.len;
    while (left > 0) {
        ssize_t n = write(t->fd, p, left);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            if (t->failed.code == ST_OK)
                (void)FAIL(&t->failed, ST_IO, "%s: cannot write: %s", t->path, strerror(errno));
            break;
        }
        p += n;
        left -= (size_t)n;
    }
    str_clear(&t->buf);
    t->last_flush_s = clock_now_s();
}

static void add_record(struct tfevents *t, const struct str *event) {
    uint64_t len = event->len;
    uint32_t len_crc = masked_crc(&len, sizeof len), crc = masked_crc(event->p, event->len);
    str_add(&t->buf, (const char *)&len, sizeof len);
    str_add(&t->buf, (const char *)&len_crc, sizeof len_crc);
    str_add(&t->buf, event->p, event->len);
    str_add(&t->buf, (const char *)&crc, sizeof crc);
    if (t->buf.len >= FLUSH_BYTES || clock_now_s() - t->last_flush_s >= FLUSH_S) write_buffer(t);
}

/* Begins an Event {1: wall_time, 2: step, 3: file_version | 5: Summary {1: Value}}. */
static void begin_event(struct str *event) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    pb_double(event, 1, (double)now.tv_sec + (double)now.tv_nsec * 1e-9);
}

static void add_value(struct tfevents *t, int64_t step, const struct str *value) {
    CLEANUP_STR struct str event = STR_INIT, summary = STR_INIT;
    pb_bytes(&summary, 1, value->p, value->len);
    begin_event(&event);
    pb_int(&event, 2, step);
    pb_bytes(&event, 5, summary.p, summary.len);
    add_record(t, &event);
}

enum status tfevents_open(const char *dir, struct tfevents **out, struct err *e) {
    *out = NULL;
    TRY(fs_mkdirs(dir, e));
    char host[65] = "localhost";
    if (gethostname(host, sizeof host - 1) != 0) host[0] = 0;
    for (char *p = host; *p; p++)
        if (*p == '/') *p = '_';
    /* TensorBoard sorts the files of a run by name: seconds come first, then a counter for opens within the same
     * second. */
    struct str path = STR_INIT;
    int fd = -1;
    for (int i = 0; i < 1000 && fd < 0; i++) {
        str_clear(&path);
        str_addf(&path, "%s/events.out.tfevents.%010lld.%s.%d.%d", dir, (long long)time(NULL), host, (int)getpid(), i);
        fd = open(path.p, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) {
        enum status st = FAIL(e, ST_IO, "%s: cannot create: %s", path.p, strerror(errno));
        str_free(&path);
        return st;
    }
    struct tfevents *t = xcalloc(1, sizeof *t);
    t->path = str_steal(&path);
    t->fd = fd;
    t->last_flush_s = clock_now_s();
    CLEANUP_STR struct str event = STR_INIT;
    begin_event(&event);
    pb_string(&event, 3, "brain.Event:2");
    add_record(t, &event);
    *out = t;
    return ST_OK;
}

const char *tfevents_path(const struct tfevents *t) { return t->path; }

/* Value {1: tag, 2: simple_value}. */
void tfevents_scalar(struct tfevents *t, int64_t step, const char *tag, double value) {
    CLEANUP_STR struct str v = STR_INIT;
    pb_string(&v, 1, tag);
    pb_float(&v, 2, (float)value);
    add_value(t, step, &v);
}

/* Value {1: tag, 5: HistogramProto {1: min, 2: max, 3: num, 4: sum, 5: sum_squares, 6: bucket_limit, 7: bucket}};
 * bucket i counts the values up to bucket_limit[i] and above the limit before it. */
void tfevents_histogram(struct tfevents *t, int64_t step, const char *tag, const double *values, size_t n) {
    double min = INFINITY, max = -INFINITY, sum = 0, squares = 0, num = 0;
    for (size_t i = 0; i < n; i++) {
        double x = values[i];
        if (!isfinite(x)) continue;
        min = x < min ? x : min;
        max = x > max ? x : max;
        sum += x;
        squares += x * x;
        num++;
    }
    if (num == 0) return;
    size_t buckets = max - min > 0 ? BUCKETS : 1;
    /* Halves are taken first, because max - min may overflow. */
    double limit[BUCKETS], count[BUCKETS] = {0}, half_width = (max / 2 - min / 2) / (double)buckets;
    for (size_t i = 0; i + 1 < buckets; i++)
        limit[i] = min + half_width * (double)(i + 1) + half_width * (double)(i + 1);
    limit[buckets - 1] = max;
    for (size_t i = 0; i < n; i++) {
        if (!isfinite(values[i])) continue;
        size_t b = 0;
        while (b + 1 < buckets && values[i] > limit[b]) b++;
        count[b]++;
    }
    CLEANUP_STR struct str h = STR_INIT, v = STR_INIT;
    pb_double(&h, 1, min);
    pb_double(&h, 2, max);
    pb_double(&h, 3, num);
    pb_double(&h, 4, sum);
    pb_double(&h, 5, squares);
    pb_bytes(&h, 6, limit, buckets * sizeof *limit);
    pb_bytes(&h, 7, count, buckets * sizeof *count);
    pb_string(&v, 1, tag);
    pb_bytes(&v, 5, h.p, h.len);
    add_value(t, step, &v);
}

/* Value {1: tag, 8: TensorProto {1: dtype DT_STRING, 2: shape {2: {1: size}}, 8: string_val},
 *        9: SummaryMetadata {1: PluginData {1: name}}}: a vector of one string, or a scalar. */
static void add_string(struct tfevents *t, int64_t step, const char *tag, const char *plugin_name, bool vector,
                       const void *text, size_t len) {
    CLEANUP_STR struct str v = STR_INIT, tensor = STR_INIT, shape = STR_INIT, dim = STR_INIT, plugin = STR_INIT,
                           metadata = STR_INIT;
    pb_int(&dim, 1, 1);
    if (vector) pb_bytes(&shape, 2, dim.p, dim.len);
    pb_int(&tensor, 1, 7);
    pb_bytes(&tensor, 2, str_c(&shape), shape.len);
    pb_bytes(&tensor, 8, text, len);
    pb_string(&plugin, 1, plugin_name);
    pb_bytes(&metadata, 1, plugin.p, plugin.len);
    pb_string(&v, 1, tag);
    pb_bytes(&v, 8, tensor.p, tensor.len);
    pb_bytes(&v, 9, metadata.p, metadata.len);
    add_value(t, step, &v);
}

void tfevents_text(struct tfevents *t, int64_t step, const char *tag, const char *text) {
    add_string(t, step, tag, "text", true, text, strlen(text));
}

/* Layout {1: version, 2: Category {1: title, 2: Chart {1: title, 2: MultilineChartContent {1: tag}}}}
 * (tensorboard/plugins/custom_scalar/layout.proto), under the one tag that the plugin looks for. */
void tfevents_layout(struct tfevents *t, int64_t step, const char *title, const struct tfevents_chart *charts,
                     size_t n) {
    CLEANUP_STR struct str layout = STR_INIT, category = STR_INIT, chart = STR_INIT, lines = STR_INIT;
    pb_string(&category, 1, title);
    for (size_t i = 0; i < n; i++) {
        str_clear(&chart);
        str_clear(&lines);
        for (size_t k = 0; k < ARRAY_LEN(charts[i].tag) && charts[i].tag[k]; k++)
            pb_string(&lines, 1, charts[i].tag[k]);
        pb_string(&chart, 1, charts[i].title);
        pb_bytes(&chart, 2, lines.p, lines.len);
        pb_bytes(&category, 2, chart.p, chart.len);
    }
    pb_bytes(&layout, 2, category.p, category.len);
    add_string(t, step, "custom_scalars__config__", "custom_scalars", false, layout.p, layout.len);
}

enum status tfevents_flush(struct tfevents *t, struct err *e) {
    if (t->buf.len) write_buffer(t);
    enum status st = t->failed.code;
    if (st != ST_OK && e) *e = t->failed;
    t->failed.code = ST_OK;
    return st;
}

enum status tfevents_close(struct tfevents *t, struct err *e) {
    if (!t) return ST_OK;
    enum status st = tfevents_flush(t, e);
    if (close(t->fd) != 0 && st == ST_OK) st = FAIL(e, ST_IO, "%s: cannot write: %s", t->path, strerror(errno));
    str_free(&t->buf);
    free(t->path);
    free(t);
    return st;
}

/* ---- cutting back ------------------------------------------------------------------------------------------------ */

/* Reads a varint from p[*at .. n). False when it does not end there. */
static bool read_varint(const unsigned char *p, size_t n, size_t *at, uint64_t *v) {
    *v = 0;
    for (unsigned shift = 0; shift < 64 && *at < n; shift += 7) {
        const unsigned char c = p[(*at)++];
        *v |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80)) return true;
    }
    return false;
}

/* Returns field 2 of an Event; -1 when it has none (the file's version) or is no Event. */
static int64_t event_step(const unsigned char *p, size_t n) {
    for (size_t at = 0; at < n;) {
        uint64_t key, v;
        if (!read_varint(p, n, &at, &key)) return -1;
        switch (key & 7) {
        case WIRE_VARINT:
            if (!read_varint(p, n, &at, &v)) return -1;
            if (key >> 3 == 2) return (int64_t)v;
            break;
        case WIRE_64: at += 8; break;
        case WIRE_32: at += 4; break;
        case WIRE_BYTES:
            if (!read_varint(p, n, &at, &v) || v > n - at) return -1;
            at += (size_t)v;
            break;
        default: return -1;
        }
    }
    return -1;
}

/* How many bytes there are up to the first record that is of step or later, incomplete or damaged. */
static size_t whole_records(const unsigned char *p, size_t n, int64_t step) {
    size_t at = 0;
    while (n - at >= 16) {
        uint64_t len;
        uint32_t crc;
        memcpy(&len, p + at, sizeof len);
        memcpy(&crc, p + at + 8, sizeof crc);
        if (crc != masked_crc(p + at, sizeof len) || len > n - at - 16) break;
        memcpy(&crc, p + at + 12 + len, sizeof crc);
        if (crc != masked_crc(p + at + 12, (size_t)len) || event_step(p + at + 12, (size_t)len) >= step) break;
        at += 16 + (size_t)len;
    }
    return at;
}

enum status tfevents_truncate(const char *dir, int64_t step, struct err *e) {
    char **names;
    size_t count;
    enum status st = ST_OK;
    TRY(fs_list(dir, &names, &count, e));
    for (size_t i = 0; i < count; i++) {
        struct fs_map map;
        CLEANUP_STR struct str path = STR_INIT;
        str_addf(&path, "%s/%s", dir, names[i]);
        if (st == ST_OK && str_has_prefix(names[i], "events.out.tfevents.") &&
            (st = fs_map_open(path.p, &map, e)) == ST_OK) {
            const size_t len = map.len, keep = whole_records(map.data, len, step);
            fs_map_close(&map);
            if (keep < len && truncate(path.p, (off_t)keep) != 0)
                st = FAIL(e, ST_IO, "%s: cannot cut: %s", path.p, strerror(errno));
        }
        free(names[i]);
    }
    free(names);
    return st;
}
