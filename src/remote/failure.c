#include "remote/failure.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* Replaces the key wherever a server repeats it. */
static void hide_key(const struct remote_options *o, char *text) {
    const size_t n = o->key ? strlen(o->key) : 0;
    for (char *p = text; n > 3 && (p = strstr(p, o->key)); p++) memset(p, '*', n);
}

static bool names(const struct remote_error *said, const char *field) {
    return strcmp(said->param, field) == 0 || strstr(said->message, field);
}

/* A 400 or 422 about a field that the request has and can do without. */
static enum failure_drop dispensable(const struct call *c, const struct remote_error *said) {
    static const struct {
        const char *field, *member;
        enum failure_drop drop;
    } fields[] = {{"max_tokens", "\"max_tokens\":", DROP_MAX_TOKENS},
                  {"seed", "\"seed\":", DROP_SEED},
                  {"min_p", "\"min_p\":", DROP_MIN_P}};
    static const char *const words[] = {"support", "unknown", "unrecognized", "not permitted", "not allowed", "extra"};
    bool refused = false;
    for (size_t i = 0; i < ARRAY_LEN(words); i++) refused |= strcasestr(said->message, words[i]) != NULL;
    refused |= strstr(said->code, "unsupported") || strstr(said->code, "unknown");
    for (size_t i = 0; refused && i < ARRAY_LEN(fields); i++)
        if (names(said, fields[i].field) && strstr(str_c(&c->request), fields[i].member)) return fields[i].drop;
    return DROP_NOTHING;
}

static void say_status(const struct remote_options *o, const struct call *c, const struct remote_error *said,
                       struct err *e) {
    const char *url = o->base_url, *colon = *said->message ? ": " : "", *key = o->key_from ? o->key_from : "key";
    switch (c->status) {
    case 401:
    case 403:
        (void)FAIL(e, ST_CONFIG, "base_url: %s answered %ld%s%s; %s %s", url, c->status, colon, said->message, key,
                   o->key ? "does not give access" : "is not set, and no key was sent (docs/models.md)");
        break;
    case 404:
        (void)FAIL(e, ST_CONFIG,
                   "base_url: %s answered 404%s%s; check model_name (\"%s\"; GET %s/models lists what is there), and "
                   "that the address ends as the server's documents say, mostly in /v1",
                   url, colon, said->message, o->model, url);
        break;
    case 429: (void)FAIL(e, ST_IO, "base_url: %s is busy (429)%s%s", url, colon, said->message); break;
    default:
        if (c->status >= 300 && c->status < 400)
            (void)FAIL(e, ST_CONFIG, "base_url: %s answered %ld: it has moved; give the new address", url, c->status);
        else if (c->status >= 400 && c->status < 500)
            (void)FAIL(e, ST_CONFIG, "base_url: %s refused the request (%ld)%s%s", url, c->status, colon,
                       said->message);
        else
            (void)FAIL(e, ST_IO, "base_url: %s answered %ld%s%s", url, c->status, colon, said->message);
    }
}

static struct remote_failure of_status(const struct remote_options *o, const struct call *c) {
    struct remote_failure f = {.kind = FAILURE_FINAL};
    struct remote_error said;
    remote_error_parse(str_c(&c->body), c->body.len, &said);
    hide_key(o, said.message);
    say_status(o, c, &said, &f.err);
    const long s = c->status;
    if (s == 429 && strcmp(said.code, "insufficient_quota") != 0) f.kind = FAILURE_BUSY;
    if (s == 503 || s == 529) f.kind = FAILURE_BUSY;
    if (s == 408 || s == 409 || s == 425 || s == 500 || s == 502 || s == 504) f.kind = FAILURE_PASSING;
    if (s >= 520 && s <= 526) f.kind = FAILURE_PASSING; /* a proxy that lost the server */
    if (s == 400 || s == 422) f.drop = dispensable(c, &said);
    if (f.drop != DROP_NOTHING) f.kind = FAILURE_FIELD;
    return f;
}

static struct remote_failure of_connection(const struct remote_options *o, const struct call *c) {
    struct remote_failure f = {.kind = FAILURE_PASSING};
    switch (c->code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_COULDNT_CONNECT:
        f.kind = FAILURE_UNHEARD;
        (void)FAIL(&f.err, ST_IO, "base_url: nobody answers at %s (%s); is the server running?", o->base_url,
                   curl_easy_strerror(c->code));
        break;
    case CURLE_OPERATION_TIMEDOUT:
        f.kind = FAILURE_UNHEARD;
        (void)FAIL(&f.err, ST_IO, "base_url: %s gave no whole answer within %g s (sampler_timeout_s)", o->base_url,
                   o->timeout_s);
        break;
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
        f.kind = FAILURE_FINAL;
        (void)FAIL(&f.err, ST_CONFIG, "base_url: %s: %s", o->base_url, curl_easy_strerror(c->code));
        break;
    default:
        (void)FAIL(&f.err, ST_IO, "base_url: %s: %s", o->base_url,
                   c->too_long ? "an answer of more than 64 MiB" : curl_easy_strerror(c->code));
    }
    if (c->too_long) f.kind = FAILURE_NONSENSE;
    return f;
}

struct remote_failure failure_of(const struct remote_options *o, const struct call *c, struct remote_reply *out) {
    struct remote_failure f = {.kind = FAILURE_NONE};
    struct err why = {0};
    if (c->code != CURLE_OK) return of_connection(o, c);
    if (c->status != 200) return of_status(o, c);
    if (remote_reply_parse(str_c(&c->body), c->body.len, out, &why) == ST_OK) return f;
    hide_key(o, why.msg);
    f.kind = FAILURE_NONSENSE;
    (void)FAIL(&f.err, ST_IO,
               "base_url: %s answered with no chat completion but %s; is it an OpenAI-compatible server, and does the "
               "address end as its documents say, mostly in /v1?",
               o->base_url, why.msg);
    return f;
}
