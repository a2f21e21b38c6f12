/* Requests to a Hub: redirects, token, retries, progress, and messages that say what to do. */
#include "io/hub_http.h"

#include <curl/curl.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"

enum {
    MAX_HOPS = 10,
    MAX_FAILURES = 5, /* So many failures in a row, without a byte of progress, end the download. */
    CONNECT_TIMEOUT_S = 15,
    STALL_S = 30, /* A connection that is under STALL_BYTES_PER_S for so long counts as lost. */
    STALL_BYTES_PER_S = 100,
    MAX_RETRY_AFTER_S = 60,
};

/* One request with its redirects. */
struct exchange {
    struct http *h;
    const char *what;
    bool head, transient; /* transient: what failed may pass. */
    int64_t from;         /* The first byte that is asked for. */
    struct http_answer a;
    /* Gets the body of a 200 or 206. Returns whether to go on. */
    bool (*body)(struct exchange *x, const char *p, size_t n);
    bool began; /* true: body has been called. */
    struct str *text;
    size_t max_text;
    int fd, write_errno;
    int64_t at, size; /* at: the next byte of the file. size: the bytes of the whole file, -1 unknown. */
    /* true: body has refused to go on, for the reason in `why`. */
    bool refused;
    char why[200];
    double start_s, shown_s;
    int64_t start_at;
};

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static void copy_value(char *out, size_t size, const char *p, size_t n) {
    /* It is too long to be what it should be, and counts as missing. */
    if (n >= size) n = 0;
    memcpy(out, p, n);
    out[n] = 0;
}

static int64_t number(const char *p, size_t n) {
    char text[32];
    int64_t v;
    copy_value(text, sizeof text, p, n);
    return parse_i64(text, &v) && v >= 0 ? v : -1;
}

/* Copies an ETag. W/"abc" and "abc" stand for abc. */
static void copy_etag(char *out, size_t size, const char *p, size_t n) {
    if (n > 2 && memcmp(p, "W/", 2) == 0) p += 2, n -= 2;
    if (n > 1 && p[0] == '"' && p[n - 1] == '"') p++, n -= 2;
    copy_value(out, size, p, n);
}

static size_t on_header(char *line, size_t one, size_t bytes, void *ctx) {
    struct exchange *x = ctx;
    struct http_answer *a = &x->a;
    const size_t n = one * bytes;
    const char *colon = memchr(line, ':', n);
    if (!colon) return n;
    const char *v = colon + 1, *end = line + n;
    while (v < end && (*v == ' ' || *v == '\t')) v++;
    while (end > v && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) end--;
    const size_t len = (size_t)(end - v), key = (size_t)(colon - line);
#define IS(name) (key == sizeof(name) - 1 && strncasecmp(line, name, key) == 0)
    if (IS("location"))
        copy_value(a->location, sizeof a->location, v, len);
    else if (IS("x-repo-commit") && !*a->commit)
        copy_value(a->commit, sizeof a->commit, v, len);
    else if (IS("x-linked-etag") && !a->linked) {
        copy_etag(a->etag, sizeof a->etag, v, len);
        a->linked = *a->etag != 0;
    } else if (IS("etag") && !a->linked)
        copy_etag(a->etag, sizeof a->etag, v, len);
    else if (IS("x-linked-size") && a->size < 0)
        a->size = number(v, len);
    else if (IS("content-length"))
        a->content_length = number(v, len);
    else if (IS("x-error-code"))
        copy_value(a->error_code, sizeof a->error_code, v, len);
    else if (IS("retry-after"))
        a->retry_after_s = number(v, len);
    else if (IS("content-range") && len > 6 && strncasecmp(v, "bytes ", 6) == 0) {
        const char *dash = memchr(v + 6, '-', len - 6);
        if (dash) a->range_begin = number(v + 6, (size_t)(dash - v - 6));
    }
#undef IS
    return n;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

static long response_code(const struct exchange *x) {
    long code = 0;
    curl_easy_getinfo(x->h->curl, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

static size_t on_body(char *p, size_t one, size_t bytes, void *ctx) {
    struct exchange *x = ctx;
    const size_t n = one * bytes;
    const long code = response_code(x);
    /* The body of a redirect or of an error is not wanted. */
    if (!x->body || (code != 200 && code != 206)) return n;
    if (x->body(x, p, n)) return n;
    x->refused = true;
    /* Any other number than n ends the transfer. */
    return n == 0 ? 1 : 0;
}

static void show(struct exchange *x) {
    const double now = clock_now_s();
    if (now - x->shown_s < 0.2) return;
    x->shown_s = now;
    const double rate = (double)(x->at - x->start_at) / (now - x->start_s + 1e-9);
    if (x->size > 0)
        log_progress("%s: %s: %.1f of %.1f MB, %.1f MB/s, %.0f s left", x->h->repo, x->what, (double)x->at * 1e-6,
                     (double)x->size * 1e-6, rate * 1e-6, (double)(x->size - x->at) / (rate + 1));
    else
        log_progress("%s: %s: %.1f MB, %.1f MB/s", x->h->repo, x->what, (double)x->at * 1e-6, rate * 1e-6);
}

static bool to_text(struct exchange *x, const char *p, size_t n) {
    if (x->text->len + n > x->max_text) {
        snprintf(x->why, sizeof x->why, "is larger than %zu bytes", x->max_text);
        return false;
    }
    str_add(x->text, p, n);
    return true;
}

/* Writes bytes to their own places. So a second writer does no harm, because it writes the same: flock does not hold on
 * every network file system. */
static bool to_file(struct exchange *x, const char *p, size_t n) {
    if (!x->began) {
        x->began = true;
        x->at = 0;
        if (response_code(x) == 206) {
            x->at = x->a.range_begin;
            if (x->at < 0 || x->at > x->from) {
                snprintf(x->why, sizeof x->why, "the server sent another range than was asked for");
                return false;
            }
        }
        /* A transfer that is done at once shows no progress. */
        x->start_s = x->shown_s = clock_now_s();
        x->start_at = x->at;
    }
    if (x->size >= 0 && x->at + (int64_t)n > x->size) {
        snprintf(x->why, sizeof x->why, "the server sent more than the %lld bytes it had announced",
                 (long long)x->size);
        return false;
    }
    while (n > 0) {
        const ssize_t w = pwrite(x->fd, p, n, x->at);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) {
            x->write_errno = w < 0 ? errno : ENOSPC;
            return false;
        }
        p += w;
        n -= (size_t)w;
        x->at += w;
    }
    show(x);
    return true;
}

static int on_progress(void *ctx, curl_off_t dl_total, curl_off_t dl_now, curl_off_t ul_total, curl_off_t ul_now) {
    (void)dl_total, (void)dl_now, (void)ul_total, (void)ul_now;
    const struct exchange *x = ctx;
    return x->h->cancel && *x->h->cancel;
}

/* ---- one exchange ------------------------------------------------------------------------------------------------ */

/* Returns whether scheme, host and port are equal. */
static bool same_origin(const char *one, const char *two) {
    static const CURLUPart parts[] = {CURLUPART_SCHEME, CURLUPART_HOST, CURLUPART_PORT};
    CURLU *a = curl_url(), *b = curl_url();
    bool same = a && b && !curl_url_set(a, CURLUPART_URL, one, 0) && !curl_url_set(b, CURLUPART_URL, two, 0);
    for (size_t i = 0; same && i < ARRAY_LEN(parts); i++) {
        char *p = NULL, *q = NULL;
        same = !curl_url_get(a, parts[i], &p, CURLU_DEFAULT_PORT) &&
               !curl_url_get(b, parts[i], &q, CURLU_DEFAULT_PORT) && strcasecmp(p, q) == 0;
        curl_free(p);
        curl_free(q);
    }
    curl_url_cleanup(a);
    curl_url_cleanup(b);
    return same;
}

/* Returns where a redirect leads, in curl's memory; NULL when that is no http address, or would give up encryption. */
static char *redirect_target(const char *from, const char *location) {
    char *out = NULL;
    CURLU *u = curl_url();
    if (u && !curl_url_set(u, CURLUPART_URL, from, 0) && !curl_url_set(u, CURLUPART_URL, location, 0) &&
        !curl_url_get(u, CURLUPART_URL, &out, 0)) {
        const bool ok =
            str_has_prefix(out, "https://") || (str_has_prefix(out, "http://") && str_has_prefix(from, "http://"));
        if (!ok) {
            curl_free(out);
            out = NULL;
        }
    }
    curl_url_cleanup(u);
    return out;
}

/* Addresses are shown without their query, because the query of a signed address is a key. */
static int shown_length(const char *url) { return (int)strcspn(url, "?"); }

static enum status fail_status(const struct exchange *x, const char *url, struct err *e) {
    const struct http *h = x->h;
    const struct http_answer *a = &x->a;
    const int n = shown_length(url);
    const char *code = a->error_code;
    /* Storage says nothing about the name. */
    if (a->status < 500 && a->status != 429 && !same_origin(url, h->endpoint))
        return FAIL(e, ST_IO, "%s: %s: %.*s, where %s keeps the file, answered %ld; try again later", h->repo, x->what,
                    n, url, h->endpoint, a->status);
    if (a->status == 401)
        return FAIL(e, ST_CONFIG, "%s: %s: %.*s answered 401: %s", h->repo, x->what, n, url,
                    h->token ? "no such repository, or the token (HF_TOKEN or the token file) gives no access to it"
                             : "no such repository, or it is private or gated: check the name; for a private or gated "
                               "one set HF_TOKEN");
    if (a->status == 403)
        return FAIL(e, ST_CONFIG, "%s: %s: %.*s answered 403: %s%s/%s%s", h->repo, x->what, n, url,
                    strcmp(code, "GatedRepo") == 0 ? "its terms must be accepted first, at "
                                                   : "access is refused; see whether your token may read ",
                    h->endpoint, h->repo,
                    h->token                         ? ""
                    : strcmp(code, "GatedRepo") == 0 ? ", and HF_TOKEN must be set"
                                                     : " (HF_TOKEN is not set)");
    if (a->status == 404 && strcmp(code, "RevisionNotFound") == 0)
        return FAIL(e, ST_CONFIG, "%s: no revision \"%s\": %.*s answered 404; give a branch, tag or commit", h->repo,
                    h->revision, n, url);
    if (a->status == 404 && strcmp(code, "EntryNotFound") == 0)
        return FAIL(e, ST_CONFIG, "%s: no file %s at revision \"%s\": %.*s answered 404", h->repo, x->what, h->revision,
                    n, url);
    if (a->status == 404)
        return FAIL(e, ST_CONFIG,
                    "%s: %s: %.*s answered 404: no such repository; check the name (ORGANISATION/NAME, as on %s)",
                    h->repo, x->what, n, url, h->endpoint);
    if (a->status == 429)
        return FAIL(e, ST_IO, "%s: %s: %.*s answered 429: too many requests; try again later%s", h->repo, x->what, n,
                    url, h->token ? "" : ", or set HF_TOKEN");
    return FAIL(e, ST_IO,
                "%s: %s: %.*s answered %ld; try again later, or give another server with HF_ENDPOINT "
                "(what has been downloaded is kept)",
                h->repo, x->what, n, url, a->status);
}

static enum status fail_curl(struct exchange *x, const char *url, CURLcode code, struct err *e) {
    const struct http *h = x->h;
    const int n = shown_length(url);
    if (code == CURLE_ABORTED_BY_CALLBACK)
        return FAIL(e, ST_CANCELLED, "%s: %s: interrupted; the next call goes on from here", h->repo, x->what);
    if (x->refused && x->write_errno)
        return FAIL(e, ST_IO,
                    "%s: %s: cannot write: %s; make room and try again (what has been downloaded is kept), or set "
                    "HF_HUB_CACHE to a directory on another disk",
                    h->repo, x->what, strerror(x->write_errno));
    if (x->refused) return FAIL(e, ST_IO, "%s: %s: %.*s: %s", h->repo, x->what, n, url, x->why);
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    /* A machine without a network is told so at once. */
    case CURLE_COULDNT_CONNECT: x->transient = h->reached; break;
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_PARTIAL_FILE:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM: x->transient = true; break;
    default: break;
    }
    if (code == CURLE_PEER_FAILED_VERIFICATION)
        return FAIL(e, ST_IO,
                    "%s: %s: %.*s: %s; where a proxy has a certificate of its own, name its file with CURL_CA_BUNDLE",
                    h->repo, x->what, n, url, curl_easy_strerror(code));
    return FAIL(e, ST_IO, "%s: %s: %.*s: %s%s", h->repo, x->what, n, url, curl_easy_strerror(code),
                h->reached ? "; try again (what has been downloaded is kept)"
                           : "; without a network give a folder with the files instead, or fill the cache "
                             "(HF_HUB_CACHE) elsewhere");
}

/* Performs one hop. */
static CURLcode perform(struct exchange *x, const char *url) {
    struct http *h = x->h;
    CURL *c = h->curl;
    curl_easy_reset(c); /* Connections stay. */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "kernelrl/" KERNELRL_VERSION);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES_PER_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 262144L);
    curl_easy_setopt(c, CURLOPT_NOBODY, x->head ? 1L : 0L);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, x);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, x);
    if (h->ca_file) curl_easy_setopt(c, CURLOPT_CAINFO, h->ca_file);
    CLEANUP_STR struct str line = STR_INIT;
    struct curl_slist *headers = NULL;
    if (h->token && same_origin(url, h->endpoint)) {
        str_addf(&line, "Authorization: Bearer %s", h->token);
        headers = curl_slist_append(headers, line.p);
    }
    if (x->from > 0) {
        str_clear(&line);
        str_addf(&line, "Range: bytes=%lld-", (long long)x->from);
        headers = curl_slist_append(headers, line.p);
    }
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    x->a.location[0] = x->a.error_code[0] = 0;
    x->a.content_length = x->a.range_begin = x->a.retry_after_s = -1;
    if (!x->a.linked) x->a.etag[0] = 0;
    const CURLcode code = curl_easy_perform(c);
    x->a.status = response_code(x);
    if (x->a.status > 0) h->reached = true;
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, NULL);
    curl_slist_free_all(headers);
    return code;
}

/* Makes the request with its redirects, once. */
static enum status exchange_once(struct exchange *x, const char *first, struct err *e) {
    x->a = (struct http_answer){.size = -1};
    x->began = x->refused = x->transient = false;
    x->write_errno = 0;
    char *url = NULL; /* Belongs to curl. */
    const char *at = first;
    enum status st = ST_OK;
    for (int hop = 0;; hop++) {
        const CURLcode code = perform(x, at);
        if (code != CURLE_OK) {
            st = fail_curl(x, at, code, e);
            break;
        }
        const long s = x->a.status;
        if (s == 200 || s == 206) break;
        if (s < 300 || s >= 400 || !*x->a.location) {
            x->transient = s == 408 || s == 429 || s == 500 || s == 502 || s == 503 || s == 504;
            st = fail_status(x, at, e);
            break;
        }
        char *next = redirect_target(at, x->a.location);
        if (!next || hop == MAX_HOPS) {
            st = FAIL(e, ST_IO, "%s: %s: %.*s redirects %s", x->h->repo, x->what, shown_length(at), at,
                      next ? "too often" : "to no http address, or from https to http");
            curl_free(next);
            break;
        }
        const bool enough = x->head && x->a.linked && !same_origin(next, x->h->endpoint);
        curl_free(url);
        at = url = next;
        if (enough) break;
    }
    if (st == ST_OK && x->a.size < 0 && x->a.status == 200) x->a.size = x->a.content_length;
    curl_free(url);
    return st;
}

static bool cancelled(const struct http *h) { return h->cancel && *h->cancel; }

/* Waits before the next attempt. False when there is to be none. */
static bool pause_before_retry(const struct exchange *x, int failures, const struct err *e) {
    if (!x->transient || failures >= MAX_FAILURES || cancelled(x->h)) return false;
    double wait_s = (x->h->backoff_s > 0 ? x->h->backoff_s : 1) * (double)(1 << (failures - 1));
    if (x->a.retry_after_s > 0 && x->a.retry_after_s <= MAX_RETRY_AFTER_S) wait_s = (double)x->a.retry_after_s;
    log_progress_end();
    log_warn("%s; trying again in %.0f s", e->msg, wait_s);
    for (const double until = clock_now_s() + wait_s; clock_now_s() < until && !cancelled(x->h);)
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    return !cancelled(x->h);
}

/* Repeats an exchange. The caller's error stays as it was when a retry succeeds. */
static enum status exchange_retried(struct exchange *x, const char *url, struct err *e) {
    for (int failures = 1;; failures++) {
        struct err mine = {0};
        const enum status st = exchange_once(x, url, &mine);
        if (st == ST_OK) return ST_OK;
        if (!pause_before_retry(x, failures, &mine)) {
            if (e) *e = mine;
            return st;
        }
        if (x->text) str_clear(x->text);
    }
}

/* ---- public ------------------------------------------------------------------------------------------------------ */

static void init_curl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

enum status http_open(struct http *h, struct err *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, init_curl);
    h->curl = curl_easy_init();
    if (!h->curl) return FAIL(e, ST_MEMORY, "libcurl: no handle");
    static const char *const names[] = {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"};
    for (size_t i = 0; i < ARRAY_LEN(names) && !h->ca_file; i++) {
        const char *v = getenv(names[i]);
        if (v && fs_is_file(v)) h->ca_file = v;
    }
    return ST_OK;
}

void http_close(struct http *h) {
    if (h->curl) curl_easy_cleanup(h->curl);
    h->curl = NULL;
}

enum status http_head(struct http *h, const char *url, const char *what, struct http_answer *a, struct err *e) {
    struct exchange x = {.h = h, .what = what, .head = true};
    TRY(exchange_retried(&x, url, e));
    *a = x.a;
    return ST_OK;
}

enum status http_text(struct http *h, const char *url, const char *what, size_t max_bytes, struct str *body,
                      struct err *e) {
    struct exchange x = {.h = h, .what = what, .body = to_text, .text = body, .max_text = max_bytes};
    return exchange_retried(&x, url, e);
}

enum status http_download(struct http *h, const char *url, const char *what, int fd, int64_t from, int64_t size,
                          int64_t *end, struct err *e) {
    struct exchange x = {.h = h, .what = what, .body = to_file, .fd = fd, .size = size};
    enum status st = ST_OK;
    for (int failures = 0;;) {
        struct err mine = {0};
        x.from = x.at = from;
        st = exchange_once(&x, url, &mine);
        if (st == ST_OK && size >= 0 && x.at < size) {
            x.transient = true;
            st = FAIL(&mine, ST_IO, "%s: %s: the connection was closed after %lld of %lld bytes", h->repo, what,
                      (long long)x.at, (long long)size);
        }
        if (st == ST_OK) break;
        /* 416: the partial file is longer than the remote one, so it is not its beginning. Start over. */
        if (x.a.status == 416 && from > 0) {
            from = 0;
            continue;
        }
        /* After a restart from 0, the bytes behind x.at are those of before, and as good. */
        failures = x.at > from ? 1 : failures + 1;
        from = i64_max(from, x.at);
        if (!pause_before_retry(&x, failures, &mine)) {
            if (e) *e = mine;
            break;
        }
    }
    log_progress_end();
    *end = st == ST_OK ? x.at : from;
    return st;
}

void http_add_escaped(struct str *url, const char *text, bool keep_slashes) {
    static const char hex[] = "0123456789ABCDEF";
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        const bool plain = (*p >= 'a' && *p <= 'z') || (*p >= 'A' && *p <= 'Z') || (*p >= '0' && *p <= '9') ||
                           strchr("-._~", *p) || (*p == '/' && keep_slashes);
        if (plain) {
            str_addc(url, (char)*p);
        } else {
            str_addc(url, '%');
            str_addc(url, hex[*p >> 4]);
            str_addc(url, hex[*p & 15]);
        }
    }
}
