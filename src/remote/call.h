/* call: one request on its way, and what came of it. For remote.c and the room hosted. */
#ifndef KERNELRL_REMOTE_CALL_H
#define KERNELRL_REMOTE_CALL_H

#include <curl/curl.h>
#include <stdio.h>

#include "base/err.h"
#include "base/str.h"

struct call {
    CURL *curl;
    struct curl_slist *headers;
    struct str request, body;
    FILE *to;      /* takes the body of an answer that is 200, whatever its length; NULL: `body` takes it */
    bool too_long; /* the body is longer than any answer */
    CURLcode code; /* when it has ended */
    long status;   /* of HTTP; 0: there is none */
    double wait_s; /* that the server asks for; < 0: it does not */
};
/* How calls are made. Texts are borrowed. */
struct call_setup {
    const char *method;        /* "GET" or "DELETE", without a body; NULL: POST */
    const char *url, *key;     /* key NULL: none */
    const char *const *header; /* lines, NULL behind the last, instead of those of JSON with that key; NULL: those */
    const char *ca_file;       /* NULL: the system's */
    bool here;                 /* the server is on this machine: no proxy stands between */
    double timeout_s;          /* of all of it; where a file takes the body, of each second in which nothing comes */
    FILE *to;                  /* as in struct call; begun anew with each try */
};
/* A file of certificates that the environment names, or NULL. Initialises libcurl the first time. */
const char *call_library(void);
/* Makes `c`, which has its request, ready to be added to a multi handle; the handle is kept for its connection. */
enum status call_begin(struct call *c, const struct call_setup *s, struct err *e) MUST_USE;
/* Takes down what came of it. */
void call_end(struct call *c, CURLcode code);
void call_free(struct call *c);

#endif
