/* hub_http: requests to a Hub over libcurl. Private to hub.c. Redirects are walked here rather than by libcurl, because
 * the token may go to the endpoint only and the headers of every hop count. */
#ifndef KERNELRL_HUB_HTTP_H
#define KERNELRL_HUB_HTTP_H

#include "base/err.h"
#include "base/str.h"

struct http {
    void *curl; /* CURL handle, kept for its connections */
    const char *endpoint, *token, *ca_file;
    const char *repo, *revision; /* for messages */
    const volatile bool *cancel;
    double backoff_s;
    bool reached; /* some server has answered: failures to connect may pass */
};

/* What the headers said. Strings are empty and numbers -1 when they did not. */
struct http_answer {
    long status;
    char commit[65];     /* x-repo-commit, of the first hop that has it */
    char etag[129];      /* x-linked-etag of any hop, else the last hop's etag; without quotes */
    int64_t size;        /* bytes of the whole file: x-linked-size, else content-length */
    char error_code[64]; /* x-error-code: RepoNotFound, GatedRepo, ... */
    int64_t range_begin; /* of content-range */
    int64_t retry_after_s;
    bool linked;            /* etag is x-linked-etag's */
    char location[4096];    /* of this hop */
    int64_t content_length; /* of this hop */
};

/* Opens a handle; endpoint and the others are borrowed until http_close. */
enum status http_open(struct http *h, struct err *e) MUST_USE;
void http_close(struct http *h); /* safe on a zeroed struct */

/* All three repeat what may pass (connection lost, 408, 429, 5xx) up to five times without progress, and fail with
 * ST_CONFIG for 401, 403 and 404, ST_CANCELLED, or ST_IO; the message says what to do. `what` names the file. */

/* A HEAD request: the answer's etag and size are of the file behind redirects to other hosts, which are not followed.
 */
enum status http_head(struct http *h, const char *url, const char *what, struct http_answer *a, struct err *e) MUST_USE;
/* The body of a small document. */
enum status http_text(struct http *h, const char *url, const char *what, size_t max_bytes, struct str *body,
                      struct err *e) MUST_USE;
/* Downloads to the open file fd from offset `from` on (bytes before it are kept, unless the server cannot send ranges:
 * then from 0). size -1: unknown. *end is the number of bytes the file has then, also after a failure. */
enum status http_download(struct http *h, const char *url, const char *what, int fd, int64_t from, int64_t size,
                          int64_t *end, struct err *e) MUST_USE;

/* A path component or, with slashes, a path, percent-encoded. */
void http_add_escaped(struct str *url, const char *text, bool keep_slashes);

#endif
