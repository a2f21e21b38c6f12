#include "io/jsonl.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"

static char dir[] = "/tmp/kernelrl_jsonl_XXXXXX";
static char plain[80], packed[80];
static struct err e;

static off_t file_size(const char *path) {
    struct stat sb;
    assert_int_equal(stat(path, &sb), 0);
    return sb.st_size;
}

/* Reads all lines into one string, each followed by '|'. */
static enum status read_all(struct jsonl_reader *r, struct str *out, bool *torn) {
    const char *line;
    size_t len;
    enum status st;
    while ((st = jsonl_next(r, &line, &len, &e)) == ST_OK && line) {
        assert_int_equal(strlen(line), len);
        str_addf(out, "%lld:%s|", (long long)jsonl_line(r), line);
    }
    if (torn) *torn = jsonl_is_torn(r);
    jsonl_close(r);
    return st;
}

static void expect_file(const char *path, const char *want, bool want_torn) {
    struct jsonl_reader *r;
    CLEANUP_STR struct str got = STR_INIT;
    bool torn;
    assert_int_equal(jsonl_open(path, 1 << 20, &r, &e), ST_OK);
    assert_int_equal(read_all(r, &got, &torn), ST_OK);
    assert_string_equal(str_c(&got), want);
    assert_int_equal(torn, want_torn);
}

static void expect_text(const char *text, const char *want, bool want_torn) {
    CLEANUP_STR struct str got = STR_INIT;
    bool torn;
    assert_int_equal(read_all(jsonl_open_memory("m", text, strlen(text), false, 1 << 20), &got, &torn), ST_OK);
    assert_string_equal(str_c(&got), want);
    assert_int_equal(torn, want_torn);
}

static void reads_lines(void **state) {
    (void)state;
    expect_text("", "", false);
    expect_text("\n\n", "", false);
    expect_text("{}\n[1]\n", "1:{}|2:[1]|", false);
    expect_text("{}\r\n\r\n \t\n3\r\n", "1:{}|4:3|", false);
    expect_text("1\n2", "1:1|2:2|", true);
}

static void long_lines(void **state) {
    (void)state;
    /* Lines far longer than the read buffer, and the limit exactly met and exceeded by one byte. */
    enum { N = 400000 };
    CLEANUP_FREE char *text = xmalloc(2 * N + 3);
    memset(text, 'a', 2 * N + 2);
    text[N] = '\n';
    text[2 * N + 1] = '\n';
    const char *line;
    size_t len;
    struct jsonl_reader *r = jsonl_open_memory("m", text, 2 * N + 2, false, N);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(jsonl_next(r, &line, &len, &e), ST_OK);
        assert_int_equal(len, N);
    }
    assert_int_equal(jsonl_next(r, &line, &len, &e), ST_OK);
    assert_null(line);
    jsonl_close(r);
    r = jsonl_open_memory("m", text, 2 * N + 2, false, N - 1);
    assert_int_equal(jsonl_next(r, &line, &len, &e), ST_PARSE);
    assert_string_equal(e.msg, "m:1: line of more than 399999 bytes");
    jsonl_close(r);
}

static void append(const char *path, const char *lines, int64_t want_cut) {
    struct jsonl_writer *w;
    int64_t cut;
    assert_int_equal(jsonl_append_open(path, &w, &cut, &e), ST_OK);
    assert_int_equal(cut, want_cut);
    if (*lines) assert_int_equal(jsonl_append(w, lines, strlen(lines), &e), ST_OK);
    assert_int_equal(jsonl_sync(w, &e), ST_OK);
    jsonl_append_close(w);
}

static void appends_and_cuts_torn_line(void **state) {
    (void)state;
    append(plain, "{\"a\":1}", 0); /* the newline is added */
    append(plain, "2\n3\n", 0);
    expect_file(plain, "1:{\"a\":1}|2:2|3:3|", false);
    FILE *f = fopen(plain, "a");
    assert_non_null(f);
    fputs("{\"torn\":", f);
    fclose(f);
    expect_file(plain, "1:{\"a\":1}|2:2|3:3|4:{\"torn\":|", true);
    append(plain, "4\n", 8);
    expect_file(plain, "1:{\"a\":1}|2:2|3:3|4:4|", false);
}

/* A file cut at every possible byte: reopening keeps exactly the whole appends, and appending goes on. */
static void survives_a_cut_anywhere(void **state) {
    (void)state;
    const char *const paths[] = {plain, packed};
    for (int p = 0; p < 2; p++) {
        assert_int_equal(fs_remove(paths[p], &e), ST_OK);
        off_t border[4] = {0};
        static const char *const lines[] = {"{\"first\":1}", "{\"second\":2}", "{\"third\":3}"};
        for (int i = 0; i < 3; i++) {
            append(paths[p], lines[i], 0);
            border[i + 1] = file_size(paths[p]);
        }
        char *whole;
        size_t len;
        assert_int_equal(fs_read(paths[p], 1 << 20, &whole, &len, &e), ST_OK);
        for (size_t cut = 0; cut <= len; cut++) {
            assert_int_equal(fs_write_atomic(paths[p], whole, cut, &e), ST_OK);
            int kept = 0;
            while (kept < 3 && border[kept + 1] <= (off_t)cut) kept++;
            append(paths[p], "4", (int64_t)cut - border[kept]);
            CLEANUP_STR struct str want = STR_INIT;
            for (int i = 0; i < kept; i++) str_addf(&want, "%d:%s|", i + 1, lines[i]);
            str_addf(&want, "%d:4|", kept + 1);
            expect_file(paths[p], str_c(&want), false);
        }
        free(whole);
    }
}

static void damaged_zstd(void **state) {
    (void)state;
    assert_int_equal(fs_remove(packed, &e), ST_OK);
    append(packed, "{\"x\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}", 0);
    append(packed, "{\"y\":\"bcdefghijklmnop\"}", 0);
    char *data;
    size_t len;
    assert_int_equal(fs_read(packed, 1 << 20, &data, &len, &e), ST_OK);
    /* A flipped byte in the last frame's checksum: the reader says so, the appender cuts the frame. */
    data[len - 1] = (char)(data[len - 1] ^ 1);
    assert_int_equal(fs_write_atomic(packed, data, len, &e), ST_OK);
    struct jsonl_reader *r;
    CLEANUP_STR struct str got = STR_INIT;
    assert_int_equal(jsonl_open(packed, 1 << 20, &r, &e), ST_OK);
    assert_int_equal(read_all(r, &got, NULL), ST_PARSE);
    assert_non_null(strstr(e.msg, "damaged zstd data"));
    struct jsonl_writer *w;
    int64_t cut;
    assert_int_equal(jsonl_append_open(packed, &w, &cut, &e), ST_OK);
    assert_true(cut > 0);
    jsonl_append_close(w);
    expect_file(packed, "1:{\"x\":\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}|", false);
    free(data);
    /* Cut in the middle of a frame, the reader reports a torn file. */
    assert_int_equal(truncate(packed, file_size(packed) - 3), 0);
    CLEANUP_STR struct str part = STR_INIT;
    bool torn;
    assert_int_equal(jsonl_open(packed, 1 << 20, &r, &e), ST_OK);
    assert_int_equal(read_all(r, &part, &torn), ST_OK);
    assert_true(torn);
}

static void one_writer_at_a_time(void **state) {
    (void)state;
    struct jsonl_writer *a, *b;
    assert_int_equal(jsonl_append_open(plain, &a, NULL, &e), ST_OK);
    assert_int_equal(jsonl_append_open(plain, &b, NULL, &e), ST_IO);
    assert_non_null(strstr(e.msg, "another process"));
    jsonl_append_close(a);
    assert_int_equal(jsonl_append_open(plain, &b, NULL, &e), ST_OK);
    jsonl_append_close(b);
}

/* A file that may not grow takes only part of a line; that part must be taken back. */
static void failed_append_leaves_whole_lines(void **state) {
    (void)state;
    assert_int_equal(fs_remove(plain, &e), ST_OK);
    struct jsonl_writer *w;
    assert_int_equal(jsonl_append_open(plain, &w, NULL, &e), ST_OK);
    assert_int_equal(jsonl_append(w, "{}", 2, &e), ST_OK);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = (struct rlimit){10, old.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    enum status st = jsonl_append(w, "{\"long\":\"line\"}", 15, &e);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, ST_IO);
    expect_file(plain, "1:{}|", false);
    assert_int_equal(jsonl_append(w, "2", 1, &e), ST_OK);
    jsonl_append_close(w);
    expect_file(plain, "1:{}|2:2|", false);
}

static void open_errors(void **state) {
    (void)state;
    struct jsonl_reader *r;
    struct jsonl_writer *w;
    assert_int_equal(jsonl_open("/nonexistent/x.jsonl", 100, &r, &e), ST_IO);
    assert_int_equal(jsonl_append_open("/nonexistent/x.jsonl", &w, NULL, &e), ST_IO);
    jsonl_close(NULL);
    jsonl_append_close(NULL);
}

/* Offsets are places in the file, over many refills of the reader's buffer; a cut at one leaves the lines before it. */
static void offsets_and_cut(void **state) {
    (void)state;
    enum { N = 400 };
    char path[90];
    snprintf(path, sizeof path, "%s/offsets.jsonl", dir);
    struct jsonl_writer *w;
    struct jsonl_reader *r;
    CLEANUP_STR struct str all = STR_INIT;
    int64_t at[N];
    for (int i = 0; i < N; i++) {
        at[i] = (int64_t)all.len;
        str_addf(&all, "%d", i);
        for (int k = 0; k < (i * 37) % 1500; k++) str_addc(&all, 'x');
        str_adds(&all, i % 7 ? "\n" : "\r\n"); /* a carriage return is no part of the line, but of the file */
    }
    assert_int_equal(jsonl_append_open(path, &w, NULL, &e), ST_OK);
    assert_int_equal(jsonl_append(w, all.p, all.len, &e), ST_OK);
    assert_int_equal(jsonl_open(path, 1 << 20, &r, &e), ST_OK);
    for (int i = 0; i < N; i++) {
        const char *line;
        assert_int_equal(jsonl_next(r, &line, NULL, &e), ST_OK);
        assert_int_equal(strtol(line, NULL, 10), i);
        assert_int_equal(jsonl_offset(r), at[i]);
    }
    jsonl_close(r);
    assert_int_equal(jsonl_append_cut(w, at[250], &e), ST_OK);
    assert_int_equal(jsonl_append(w, "end", 3, &e), ST_OK);
    jsonl_append_close(w);
    char *text;
    size_t n;
    assert_int_equal(fs_read(path, 1 << 20, &text, &n, &e), ST_OK);
    assert_int_equal(n, at[250] + 4);
    assert_memory_equal(text, all.p, (size_t)at[250]);
    assert_string_equal(text + at[250], "end\n");
    free(text);
}

static int make_dir(void **state) {
    (void)state;
    if (!mkdtemp(dir)) return -1;
    snprintf(plain, sizeof plain, "%s/t.jsonl", dir);
    snprintf(packed, sizeof packed, "%s/t.jsonl.zst", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_lines),
        cmocka_unit_test(long_lines),
        cmocka_unit_test(appends_and_cuts_torn_line),
        cmocka_unit_test(survives_a_cut_anywhere),
        cmocka_unit_test(damaged_zstd),
        cmocka_unit_test(one_writer_at_a_time),
        cmocka_unit_test(failed_append_leaves_whole_lines),
        cmocka_unit_test(offsets_and_cut),
        cmocka_unit_test(open_errors),
    };
    return cmocka_run_group_tests_name("jsonl", tests, make_dir, remove_dir);
}
