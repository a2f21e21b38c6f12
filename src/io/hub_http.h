/* hub_http: requests to a Hub over libcurl, only for hub.c. Redirects are followed here rather than by libcurl, because
 * the token may go to the endpoint only, and because the headers of every hop count. */
#ifndef KERNELRL_HUB_HTTP_H
#define KERNELRL_HUB_HTTP_H

#include "base/err.h"
#include "base/str.h"

struct http {
    void *curl; /* A CURL handle, kept for its connections. */
    const char *endpoint, *token, *ca_file;
    const char *repo, *revision; /* For messages. */
    const volatile bool *cancel;
    double backoff_s;
    bool reached; /* true: some server has answered, so failures to connect may pass. */
};

/* What the headers said. Strings are empty and numbers are -1 when the headers did not say it. */
struct http_answer {
    long status;
    char commit[65]; /* x-repo-commit, from the first hop that has it. */
    /* x-linked-etag of any hop, else the last hop's etag, without quotes. */
    char etag[129];
    /* Bytes of the whole file: x-linked-size, else content-length. */
    int64_t size;
    char error_code[64]; /* x-error-code: RepoNotFound, GatedRepo, ... */
    int64_t range_begin; /* From content-range. */
    int64_t retry_after_s;
    bool linked;            /* true: etag comes from x-linked-etag. */
    char location[4096];    /* Of this hop. */
    int64_t content_length; /* Of this hop. */
};

/* Opens a handle. endpoint and the others are borrowed until http_close. */
enum status http_open(struct http *h, struct err *e) MUST_USE;
void http_close(struct http *h); /* Works on a zeroed struct, too. */

/* All three repeat what may pass (a lost connection, 408, 429, 5xx) up to five times without progress. They fail with
 * ST_CONFIG for 401, 403 and 404, with ST_CANCELLED, or with ST_IO; the message says what to do. `what` names the
 * file. */

/* Makes a HEAD request. The answer's etag and size are those of the file behind redirects to other hosts, which are not
 * followed. */
enum status http_head(struct http *h, const char *url, const char *what, struct http_answer *a, struct err *e) MUST_USE;
/* Fetches the body of a small document. */
enum status http_text(struct http *h, const char *url, const char *what, size_t max_bytes, struct str *body,
                      struct err *e) MUST_USE;
/* Downloads to the open file fd from offset `from` on. Bytes before it are kept, unless the server cannot send ranges;
 * then the download begins at 0. size -1: unknown. *end is how many bytes the file has then, also after a failure. */
enum status http_download(struct http *h, const char *url, const char *what, int fd, int64_t from, int64_t size,
                          int64_t *end, struct err *e) MUST_USE;

/* Appends a path component or, with slashes, a path, percent-encoded. */
void http_add_escaped(struct str *url, const char *text, bool keep_slashes);

#endif
