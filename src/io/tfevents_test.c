#include "io/tfevents.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"

static char dir[] = "/tmp/kernelrl_tfevents_XXXXXX";
static struct err e;

/* ---- a second, independent decoder: bitwise CRC, a generic walk over protobuf fields --------------------------------
 */

static uint32_t crc_bitwise(const unsigned char *p, size_t n) {
    uint32_t c = 0xffffffffu;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < 8; k++) {
            uint32_t bit = (c ^ (uint32_t)(p[i] >> k)) & 1u;
            c >>= 1;
            if (bit) c ^= 0x82f63b78u;
        }
    return ~c;
}

static uint32_t unmask(uint32_t m) {
    uint32_t r = m - 0xa282ead8u;
    return r >> 17 | r << 15;
}

struct span {
    const unsigned char *p;
    size_t n;
};

static uint64_t varint(struct span *s) {
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        assert_true(s->n > 0 && shift < 64);
        unsigned char c = *s->p++;
        s->n--;
        v |= (uint64_t)(c & 0x7f) << shift;
        if (!(c & 0x80)) return v;
    }
}

/* The nth (from 0) occurrence of a field; varints are returned in *number, the others as bytes. */
static bool field_at(struct span msg, uint64_t number, int nth, struct span *out, uint64_t *value) {
    while (msg.n > 0) {
        uint64_t key = varint(&msg), v = 0;
        struct span body = {msg.p, 0};
        switch (key & 7) {
        case 0: v = varint(&msg); break;
        case 1: body.n = 8; break;
        case 2:
            body.n = (size_t)varint(&msg);
            body.p = msg.p;
            break;
        case 5: body.n = 4; break;
        default: fail_msg("wire type %d", (int)(key & 7));
        }
        assert_true(body.n <= msg.n);
        msg.p += body.n;
        msg.n -= body.n;
        if (key >> 3 != number || nth-- > 0) continue;
        if (out) *out = body;
        if (value) *value = v;
        return true;
    }
    return false;
}

static struct span sub(struct span msg, uint64_t number) {
    struct span out = {0};
    assert_true(field_at(msg, number, 0, &out, NULL));
    return out;
}

static double as_double(struct span s) {
    double d;
    assert_int_equal(s.n, 8);
    memcpy(&d, s.p, 8);
    return d;
}

static bool equals(struct span s, const char *text) { return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0; }

/* Checks the framing of the whole file and returns event i; asserts that it holds `count` events. */
static struct span event(const char *data, size_t len, size_t i, size_t count) {
    struct span found = {0};
    size_t at = 0, n = 0;
    while (at < len) {
        uint64_t size;
        uint32_t crc;
        const unsigned char *p = (const unsigned char *)data + at;
        assert_true(len - at >= 16);
        memcpy(&size, p, 8);
        memcpy(&crc, p + 8, 4);
        assert_int_equal(unmask(crc), crc_bitwise(p, 8));
        assert_true(size <= len - at - 16);
        memcpy(&crc, p + 12 + size, 4);
        assert_int_equal(unmask(crc), crc_bitwise(p + 12, size));
        if (n++ == i) found = (struct span){p + 12, size};
        at += 16 + size;
    }
    assert_int_equal(n, count);
    return found;
}

/* ---- tests --------------------------------------------------------------------------------------------------------
 */

/* RFC 3720, B.4, and the customary check value. */
static void crc32c_vectors(void **state) {
    (void)state;
    unsigned char b[32];
    memset(b, 0, sizeof b);
    assert_int_equal(tfevents_crc32c(b, 32), 0x8a9136aau);
    memset(b, 0xff, sizeof b);
    assert_int_equal(tfevents_crc32c(b, 32), 0x62a8ab43u);
    for (int i = 0; i < 32; i++) b[i] = (unsigned char)i;
    assert_int_equal(tfevents_crc32c(b, 32), 0x46dd794eu);
    assert_int_equal(tfevents_crc32c("123456789", 9), 0xe3069283u);
    assert_int_equal(tfevents_crc32c("", 0), 0);
}

static void decodes(void **state) {
    (void)state;
    struct tfevents *t;
    assert_int_equal(tfevents_open(dir, &t, &e), ST_OK);
    char *path = xstrdup(tfevents_path(t));
    assert_non_null(strstr(path, "/events.out.tfevents."));
    tfevents_scalar(t, 3, "Reward/Mean", 0.5);
    tfevents_scalar(t, INT64_C(1) << 40, "big", -2.25);
    double values[] = {0, 1, 2, 3, NAN, 3, INFINITY, -3};
    tfevents_histogram(t, 4, "h", values, ARRAY_LEN(values));
    double same[] = {7, 7};
    tfevents_histogram(t, 4, "one", same, 2);
    tfevents_histogram(t, 4, "none", (double[]){NAN}, 1); /* writes nothing */
    tfevents_histogram(t, 4, "wide", (double[]){-1.7e308, 1.7e308}, 2);
    tfevents_text(t, 0, "config", "a: 1");
    tfevents_layout(t, 0, "All", (struct tfevents_chart[]){{"one", {"a", "b"}}, {"two", {"c"}}}, 2);
    assert_int_equal(tfevents_flush(t, &e), ST_OK);

    char *data;
    size_t len;
    assert_int_equal(fs_read(path, 1 << 20, &data, &len, &e), ST_OK);
    struct span s;
    uint64_t step;
    float f;

    struct span ev = event(data, len, 0, 8);
    assert_true(equals(sub(ev, 3), "brain.Event:2"));
    assert_true(as_double(sub(ev, 1)) > 1.6e9);

    ev = event(data, len, 1, 8);
    assert_true(field_at(ev, 2, 0, NULL, &step));
    assert_int_equal(step, 3);
    struct span value = sub(sub(ev, 5), 1);
    assert_true(equals(sub(value, 1), "Reward/Mean"));
    s = sub(value, 2);
    assert_int_equal(s.n, 4);
    memcpy(&f, s.p, 4);
    assert_true(f == 0.5f);

    assert_true(field_at(event(data, len, 2, 8), 2, 0, NULL, &step));
    assert_int_equal(step, INT64_C(1) << 40);

    struct span h = sub(sub(sub(event(data, len, 3, 8), 5), 1), 5);
    assert_true(as_double(sub(h, 1)) == -3 && as_double(sub(h, 2)) == 3);
    assert_true(as_double(sub(h, 3)) == 6);
    assert_true(as_double(sub(h, 4)) == 6 && as_double(sub(h, 5)) == 32);
    struct span limits = sub(h, 6), counts = sub(h, 7);
    assert_int_equal(limits.n, 30 * 8);
    assert_int_equal(counts.n, 30 * 8);
    double total = 0, before = -INFINITY;
    for (size_t i = 0; i < 30; i++) {
        double limit, count, expect = 0;
        memcpy(&limit, limits.p + 8 * i, 8);
        memcpy(&count, counts.p + 8 * i, 8);
        for (size_t k = 0; k < ARRAY_LEN(values); k++)
            expect += isfinite(values[k]) && values[k] > before && values[k] <= limit;
        assert_true(limit > before && count == expect);
        total += count;
        before = limit;
    }
    assert_true(total == 6 && before == 3);

    h = sub(sub(sub(event(data, len, 4, 8), 5), 1), 5);
    assert_int_equal(sub(h, 6).n, 8);
    assert_true(as_double(sub(h, 7)) == 2);

    value = sub(sub(event(data, len, 6, 8), 5), 1);
    assert_true(equals(sub(sub(value, 8), 8), "a: 1"));
    assert_true(field_at(sub(value, 8), 1, 0, NULL, &step));
    assert_int_equal(step, 7);
    assert_true(equals(sub(sub(sub(value, 9), 1), 1), "text"));

    value = sub(sub(event(data, len, 7, 8), 5), 1);
    assert_true(equals(sub(value, 1), "custom_scalars__config__"));
    assert_true(equals(sub(sub(sub(value, 9), 1), 1), "custom_scalars"));
    assert_int_equal(sub(sub(value, 8), 2).n, 0); /* a scalar: no dimension */
    const struct span category = sub(sub(sub(value, 8), 8), 2);
    assert_true(equals(sub(category, 1), "All"));
    struct span chart;
    assert_true(field_at(category, 2, 1, &chart, NULL));
    assert_true(equals(sub(chart, 1), "two"));
    assert_true(equals(sub(sub(chart, 2), 1), "c"));
    assert_true(field_at(sub(sub(category, 2), 2), 1, 1, &chart, NULL)); /* the first one's second tag */
    assert_true(equals(chart, "b"));

    free(data);
    assert_int_equal(tfevents_close(t, &e), ST_OK);
    free(path);
}

static void reopening_starts_a_new_file(void **state) {
    (void)state;
    struct tfevents *a, *b;
    assert_int_equal(tfevents_open(dir, &a, &e), ST_OK);
    assert_int_equal(tfevents_open(dir, &b, &e), ST_OK);
    assert_string_not_equal(tfevents_path(a), tfevents_path(b));
    assert_true(strcmp(tfevents_path(a), tfevents_path(b)) < 0);
    assert_int_equal(tfevents_close(a, &e), ST_OK);
    assert_int_equal(tfevents_close(b, &e), ST_OK);
    assert_int_equal(tfevents_close(NULL, &e), ST_OK);
}

static void large_runs_flush_by_themselves(void **state) {
    (void)state;
    struct tfevents *t;
    assert_int_equal(tfevents_open(dir, &t, &e), ST_OK);
    for (int i = 0; i < 3000; i++) tfevents_scalar(t, i, "x", i);
    char *data;
    size_t len;
    assert_int_equal(fs_read(tfevents_path(t), 1 << 24, &data, &len, &e), ST_OK);
    assert_true(len >= 1 << 16);
    free(data);
    char *path = xstrdup(tfevents_path(t));
    assert_int_equal(tfevents_close(t, &e), ST_OK);
    assert_int_equal(fs_read(path, 1 << 24, &data, &len, &e), ST_OK);
    event(data, len, 0, 3001);
    free(data);
    free(path);
}

/* Cut at the first event of the step; what has no step, and what a killed writer left, are seen for what they are. */
static void truncate_drops_later_steps(void **state) {
    (void)state;
    char sub_dir[64], other[80];
    snprintf(sub_dir, sizeof sub_dir, "%s/cut", dir);
    struct tfevents *t;
    assert_int_equal(tfevents_open(sub_dir, &t, &e), ST_OK);
    char *path = xstrdup(tfevents_path(t));
    tfevents_scalar(t, 0, "x", 0);
    for (int i = 1; i < 9; i++) tfevents_scalar(t, 100 * (i / 2), "x", i); /* steps 0, 100, 100, 200, 200, ... */
    assert_int_equal(tfevents_flush(t, &e), ST_OK);
    snprintf(other, sizeof other, "%s/notes.txt", sub_dir);
    assert_int_equal(fs_write_atomic(other, "mine", 4, &e), ST_OK);

    char *all, *data;
    size_t len, n;
    assert_int_equal(fs_read(path, 1 << 20, &all, &len, &e), ST_OK);
    event(all, len, 0, 10);
    assert_int_equal(tfevents_truncate(sub_dir, 401, &e), ST_OK); /* nothing to drop */
    assert_int_equal(fs_read(path, 1 << 20, &data, &n, &e), ST_OK);
    assert_int_equal(n, len);
    free(data);
    assert_int_equal(tfevents_truncate(sub_dir, 200, &e), ST_OK);
    assert_int_equal(fs_read(path, 1 << 20, &data, &n, &e), ST_OK);
    uint64_t step;
    assert_true(field_at(event(data, n, 4, 5), 2, 0, NULL, &step));
    assert_int_equal(step, 100);
    assert_memory_equal(data, all, n);
    free(data);
    tfevents_scalar(t, 200, "x", 4); /* an open file goes on behind the cut */
    assert_int_equal(tfevents_close(t, &e), ST_OK);
    assert_int_equal(fs_read(path, 1 << 20, &data, &n, &e), ST_OK);
    event(data, n, 0, 6);

    /* Every length that a killed writer can leave: only whole records stay. */
    for (size_t cut = n; cut-- > n - 60;) {
        assert_int_equal(fs_write_atomic(path, data, cut, &e), ST_OK);
        assert_int_equal(tfevents_truncate(sub_dir, 1000, &e), ST_OK);
        char *kept;
        size_t m;
        assert_int_equal(fs_read(path, 1 << 20, &kept, &m, &e), ST_OK);
        assert_true(m <= cut && m + 60 > cut);
        event(kept, m, 0, m + 50 > n ? 5 : 4);
        free(kept);
    }
    data[n - 20] ^= 1; /* a damaged record ends the file, too */
    assert_int_equal(fs_write_atomic(path, data, n, &e), ST_OK);
    assert_int_equal(tfevents_truncate(sub_dir, 1000, &e), ST_OK);
    free(data);
    assert_int_equal(fs_read(path, 1 << 20, &data, &n, &e), ST_OK);
    event(data, n, 0, 5);
    assert_true(fs_is_file(other));
    free(data);
    free(all);
    free(path);
}

static void errors(void **state) {
    (void)state;
    struct tfevents *t;
    assert_int_equal(tfevents_open("/proc/no/such", &t, &e), ST_IO);
    assert_null(t);
}

static int make_dir(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_vectors),
        cmocka_unit_test(decodes),
        cmocka_unit_test(reopening_starts_a_new_file),
        cmocka_unit_test(large_runs_flush_by_themselves),
        cmocka_unit_test(truncate_drops_later_steps),
        cmocka_unit_test(errors),
    };
    return cmocka_run_group_tests_name("tfevents", tests, make_dir, remove_dir);
}
