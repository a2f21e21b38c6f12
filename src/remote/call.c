#include "remote/call.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/fs.h"

enum { BODY_MAX = 64 << 20, CONNECT_TIMEOUT_S = 15 };

static void init_curl(void) { curl_global_init(CURL_GLOBAL_DEFAULT); }

const char *call_library(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static const char *const names[] = {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"};
    pthread_once(&once, init_curl);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *v = getenv(names[i]);
        if (v && fs_is_file(v)) return v;
    }
    return NULL;
}

static size_t on_body(char *p, size_t one, size_t bytes, void *ctx) {
    struct call *c = ctx;
    const size_t n = one * bytes;
    long status = 0;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &status);
    if (c->to && status == 200) return fwrite(p, 1, n, c->to);
    c->too_long = c->body.len + n > BODY_MAX;
    if (c->too_long) return n == 0 ? 1 : 0; /* any other number than n ends the transfer */
    str_add(&c->body, p, n);
    return n;
}

/* retry-after-ms is what some servers say more precisely; libcurl reads retry-after itself. */
static size_t on_header(char *line, size_t one, size_t bytes, void *ctx) {
    static const char name[] = "retry-after-ms:";
    struct call *c = ctx;
    const size_t n = one * bytes, m = sizeof name - 1;
    char text[32];
    int64_t ms;
    if (n <= m || n - m >= sizeof text || strncasecmp(line, name, m) != 0) return n;
    snprintf(text, sizeof text, "%.*s", (int)(n - m), line + m);
    char *p = text + strspn(text, " \t");
    p[strcspn(p, " \t\r\n")] = 0;
    if (parse_i64(p, &ms) && ms >= 0) c->wait_s = (double)ms * 1e-3;
    return n;
}

static void set_headers(struct call *c, const struct call_setup *s) {
    static const char *const json[] = {"Content-Type: application/json", "Accept: application/json", NULL};
    CLEANUP_STR struct str line = STR_INIT;
    curl_slist_free_all(c->headers);
    c->headers = curl_slist_append(NULL, "Expect:"); /* no waiting for leave to send the body */
    for (const char *const *h = s->header ? s->header : json; *h; h++) c->headers = curl_slist_append(c->headers, *h);
    if (s->header || !s->key) return;
    str_addf(&line, "Authorization: Bearer %s", s->key);
    c->headers = curl_slist_append(c->headers, line.p);
}

/* What is sent, and how long it may take. A key goes to the address that was given, and to no other; who asks for a
 * file sends none. */
static void set_request(struct call *c, const struct call_setup *s) {
    CURL *h = c->curl;
    if (s->method) {
        curl_easy_setopt(h, CURLOPT_HTTPGET, 1L);
        curl_easy_setopt(h, CURLOPT_CUSTOMREQUEST, s->method);
    } else {
        curl_easy_setopt(h, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)c->request.len);
        curl_easy_setopt(h, CURLOPT_POSTFIELDS, str_c(&c->request));
    }
    curl_easy_setopt(h, CURLOPT_FOLLOWLOCATION, s->to ? 1L : 0L);
    curl_easy_setopt(h, CURLOPT_MAXREDIRS, 5L);
    if (s->to) {
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, 1L);
        curl_easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)s->timeout_s);
    } else {
        curl_easy_setopt(h, CURLOPT_TIMEOUT_MS, (long)(s->timeout_s * 1e3));
    }
}

enum status call_begin(struct call *c, const struct call_setup *s, struct err *e) {
    if (!c->curl) c->curl = curl_easy_init();
    if (!c->curl) return FAIL(e, ST_MEMORY, "libcurl: no handle");
    CURL *h = c->curl;
    curl_easy_reset(h); /* the connection stays */
    set_headers(c, s);
    str_clear(&c->body);
    c->to = s->to;
    if (c->to && (fflush(c->to) != 0 || ftruncate(fileno(c->to), 0) != 0 || fseek(c->to, 0, SEEK_SET) != 0))
        return FAIL(e, ST_IO, "%s: its file cannot be begun anew: %s", s->url, strerror(errno));
    c->too_long = false;
    c->status = 0;
    c->wait_s = -1;
    curl_easy_setopt(h, CURLOPT_URL, s->url);
    curl_easy_setopt(h, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(h, CURLOPT_NETRC, (long)CURL_NETRC_IGNORED);
    curl_easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);
    curl_easy_setopt(h, CURLOPT_USERAGENT, "kernelrl/" KERNELRL_VERSION);
    curl_easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    set_request(c, s);
    curl_easy_setopt(h, CURLOPT_HTTPHEADER, c->headers);
    curl_easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(h, CURLOPT_HEADERDATA, c);
    curl_easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(h, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(h, CURLOPT_PRIVATE, c);
    if (s->ca_file) curl_easy_setopt(h, CURLOPT_CAINFO, s->ca_file);
    if (s->here) curl_easy_setopt(h, CURLOPT_PROXY, "");
    return ST_OK;
}

void call_end(struct call *c, CURLcode code) {
    curl_off_t after = 0;
    c->code = code;
    curl_easy_getinfo(c->curl, CURLINFO_RESPONSE_CODE, &c->status);
    curl_easy_getinfo(c->curl, CURLINFO_RETRY_AFTER, &after);
    if (c->wait_s < 0 && after > 0) c->wait_s = (double)after;
}

void call_free(struct call *c) {
    if (c->curl) curl_easy_cleanup(c->curl);
    curl_slist_free_all(c->headers);
    str_free(&c->request);
    str_free(&c->body);
    *c = (struct call){0};
}
