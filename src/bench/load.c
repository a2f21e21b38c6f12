/* Load on a server. A piece of a stream is looked at as little as can be while others come: its time is what counts. So
 * only pieces before the first text and those that tell of usage, of an error or of nothing known are parsed, unless
 * the text is wanted. */
#include "bench/load.h"

#include <curl/curl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "io/json.h"

enum { MOST_BODY = 64 << 20, CONNECT_TIMEOUT_S = 30, POLL_MS = 1000 };

/* ---- server-sent events -------------------------------------------------------------------------------------------*/

/* A line without its end: an empty one ends the event; of the fields only data is used; a comment begins with a colon.
 */
static void end_line(struct load_events *s, load_event_fn *event, void *ctx) {
    const char *p = str_c(&s->line);
    size_t n = s->line.len;
    if (n == 0) {
        if (s->has_data) event(ctx, str_c(&s->data), s->data.len);
        str_clear(&s->data);
        s->has_data = false;
    } else if (n >= 4 && memcmp(p, "data", 4) == 0 && (n == 4 || p[4] == ':')) {
        size_t from = n == 4 ? 4 : 5;
        if (from < n && p[from] == ' ') from++;
        if (s->has_data) str_addc(&s->data, '\n');
        str_add(&s->data, p + from, n - from);
        s->has_data = true;
    }
    str_clear(&s->line);
}

void load_events_add(struct load_events *s, const char *p, size_t n, load_event_fn *event, void *ctx) {
    while (n > 0) {
        if (s->after_cr && *p == '\n') { /* the end of a line in two bytes */
            s->after_cr = false;
            p++, n--;
            continue;
        }
        s->after_cr = false;
        size_t k = 0;
        while (k < n && p[k] != '\n' && p[k] != '\r') k++;
        str_add(&s->line, p, k);
        if (k == n) return;
        s->after_cr = p[k] == '\r';
        end_line(s, event, ctx);
        p += k + 1;
        n -= k + 1;
    }
}

void load_events_free(struct load_events *s) {
    str_free(&s->line);
    str_free(&s->data);
}

/* ---- one request --------------------------------------------------------------------------------------------------*/

struct load_exchange { /* that is under way */
    const struct load_options *o;
    const struct load_request *q;
    struct load_reply *r;
    CURL *curl;
    struct load_events events;
    struct str body; /* of what is no stream */
    double last_s;   /* of the last piece, after start_s; 0: none yet */
    int pieces;
    bool done; /* the stream has said its last word */
};

void load_reply_free(struct load_reply *r) {
    free(r->itl_s);
    str_free(&r->text);
    *r = (struct load_reply){0};
}

static void fail(struct load_reply *r, const char *text, size_t n) {
    if (*r->error) return; /* the first one counts */
    const size_t most = sizeof r->error - 1;
    n = n < most ? n : js_utf8_prefix(text, most);
    memcpy(r->error, text, n);
    r->error[n] = 0;
}

/* The message of {"error": {"message": ...}} and its like; NULL: there is none. */
static const char *message_of(const json_t *all) {
    const json_t *error = json_object_get(all, "error");
    const char *inner = json_string_value(json_object_get(error, "message"));
    if (inner) return inner;
    if (error) return json_is_string(error) ? json_string_value(error) : "an error without a message";
    const char *outer = json_string_value(json_object_get(all, "message"));
    return outer ? outer : json_string_value(json_object_get(all, "detail"));
}

static void take_usage(struct load_reply *r, const json_t *all) {
    const json_t *usage = json_object_get(all, "usage");
    const json_t *in = json_object_get(usage, "prompt_tokens"), *out = json_object_get(usage, "completion_tokens");
    if (json_is_integer(in)) r->input_tokens = json_integer_value(in);
    if (json_is_integer(out)) r->output_tokens = json_integer_value(out);
}

/* Adds the text of a choice's parts; true: there is some, or something else that a model has made. */
static bool take_parts(struct load_exchange *x, const json_t *from) {
    static const char *const keys[] = {"text", "content", "reasoning_content", "reasoning"};
    bool any = false;
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        const json_t *v = json_object_get(from, keys[i]);
        if (!json_is_string(v) || json_string_length(v) == 0) continue;
        any = true;
        if (x->o->keep_text && i < 2) str_add(&x->r->text, json_string_value(v), json_string_length(v));
    }
    return any;
}

/* The text of a reply or of a piece of one. True: it has tokens, or the reason why it ends. */
static bool take_choice(struct load_exchange *x, const json_t *all) {
    const json_t *choice = json_array_get(json_object_get(all, "choices"), 0);
    if (!choice) return false;
    bool any = take_parts(x, choice);
    any |= take_parts(x, json_object_get(choice, "delta"));
    any |= take_parts(x, json_object_get(choice, "message"));
    return any || json_array_size(json_object_get(choice, "token_ids")) > 0 ||
           json_is_string(json_object_get(choice, "finish_reason"));
}

static bool has(const char *p, size_t n, const char *what) { return mem_find(p, n, what, strlen(what)) != NULL; }

static void count_piece(struct load_exchange *x) {
    struct load_reply *r = x->r;
    const double now = clock_now_s() - r->start_s;
    if (x->pieces++ == 0) {
        r->ttft_s = now;
    } else {
        if (r->n_itl == r->cap_itl) {
            r->cap_itl = r->cap_itl ? 2 * r->cap_itl : 64;
            r->itl_s = xrealloc(r->itl_s, (size_t)r->cap_itl * sizeof *r->itl_s);
        }
        r->itl_s[r->n_itl++] = now - x->last_s;
    }
    x->last_s = now;
}

static void on_event(void *ctx, const char *data, size_t n) {
    struct load_exchange *x = ctx;
    if (n == 6 && memcmp(data, "[DONE]", 6) == 0) {
        x->done = true;
        return;
    }
    const bool plain = x->pieces > 0 && !x->o->keep_text && !has(data, n, "\"completion_tokens\"") &&
                       (has(data, n, "\"choices\":[{") || has(data, n, "\"choices\": [{"));
    if (plain) {
        count_piece(x);
        return;
    }
    struct err e = {0};
    CLEANUP_JSON json_t *all = NULL;
    if (js_parse(data, n, "a piece of the stream", &all, &e) != ST_OK) {
        fail(x->r, e.msg, strlen(e.msg));
        return;
    }
    if (json_object_get(all, "error")) {
        const char *why = message_of(all);
        fail(x->r, why, strlen(why));
    }
    if (take_choice(x, all) || (x->pieces > 0 && json_array_size(json_object_get(all, "choices")) > 0)) count_piece(x);
    take_usage(x->r, all);
}

static size_t on_body(char *p, size_t one, size_t bytes, void *ctx) {
    struct load_exchange *x = ctx;
    const size_t n = one * bytes;
    long status = 0;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    if (status == 200 && x->q && x->q->stream)
        load_events_add(&x->events, p, n, on_event, x);
    else if (x->body.len + n <= MOST_BODY)
        str_add(&x->body, p, n);
    else
        return 0;
    return n;
}

/* What a whole body says, of an error or of a reply that is no stream. */
static void take_body(struct load_exchange *x, long status) {
    struct load_reply *r = x->r;
    struct err e = {0};
    CLEANUP_JSON json_t *all = NULL;
    const bool parsed = js_parse(str_c(&x->body), x->body.len, "the reply", &all, &e) == ST_OK;
    if (status != 200) {
        const char *why = parsed && json_is_object(all) ? message_of(all) : NULL;
        CLEANUP_STR struct str text = STR_INIT;
        str_addf(&text, "HTTP status %ld: %s", status, why ? why : str_c(&x->body));
        fail(r, text.p, text.len);
        return;
    }
    if (!parsed) {
        fail(r, e.msg, strlen(e.msg));
        return;
    }
    const char *why = message_of(all);
    if (why) fail(r, why, strlen(why));
    if (take_choice(x, all)) x->pieces = 1;
    take_usage(r, all);
    r->ttft_s = x->last_s = clock_now_s() - r->start_s;
}

static void finish(struct load_exchange *x, CURLcode code) {
    static const char nothing[] = "the reply has no text", early[] = "the stream ended before [DONE]";
    struct load_reply *r = x->r;
    long status = 0;
    curl_easy_getinfo(x->curl, CURLINFO_RESPONSE_CODE, &status);
    if (code != CURLE_OK)
        fail(r, curl_easy_strerror(code), strlen(curl_easy_strerror(code)));
    else if (status != 200 || !x->q->stream)
        take_body(x, status);
    else if (!x->done)
        fail(r, early, sizeof early - 1);
    if (x->pieces == 0) fail(r, nothing, sizeof nothing - 1);
    r->latency_s = x->last_s;
    r->ok = !*r->error;
    if (r->ok && r->output_tokens == 0) r->output_tokens = x->pieces;
    load_events_free(&x->events);
    str_free(&x->body);
    x->events = (struct load_events){0};
}

/* ---- all of them --------------------------------------------------------------------------------------------------*/

static struct curl_slist *make_headers(const struct load_options *o) {
    CLEANUP_STR struct str key = STR_INIT;
    struct curl_slist *list = curl_slist_append(NULL, "Content-Type: application/json");
    list = curl_slist_append(list, "Expect:");
    if (o->key && *o->key) {
        str_addf(&key, "Authorization: Bearer %s", o->key);
        list = curl_slist_append(list, key.p);
    }
    for (int i = 0; i < o->n_headers; i++) list = curl_slist_append(list, o->headers[i]);
    return list;
}

static void set_up(CURL *c, const char *url, const char *body, struct curl_slist *headers, struct load_exchange *x) {
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, x);
    curl_easy_setopt(c, CURLOPT_PRIVATE, x);
    if (!body) return;
    curl_easy_setopt(c, CURLOPT_POSTFIELDS, body);
    curl_easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(body));
}

enum status load_json(const struct load_options *o, const char *url, const char *body, json_t **out, struct err *e) {
    struct load_reply r = {0};
    struct load_exchange x = {.o = o, .r = &r, .curl = curl_easy_init()};
    *out = NULL;
    if (!x.curl) return FAIL(e, ST_IO, "libcurl cannot be started");
    struct curl_slist *headers = make_headers(o);
    set_up(x.curl, url, body, headers, &x);
    const CURLcode code = curl_easy_perform(x.curl);
    long status = 0;
    curl_easy_getinfo(x.curl, CURLINFO_RESPONSE_CODE, &status);
    enum status st = ST_OK;
    if (code != CURLE_OK)
        st = FAIL(e, ST_IO, "%s: %s", url, curl_easy_strerror(code));
    else if (status != 200)
        st = FAIL(e, ST_IO, "%s: HTTP status %ld: %.200s", url, status, str_c(&x.body));
    else
        st = js_parse(str_c(&x.body), x.body.len, url, out, e);
    curl_slist_free_all(headers);
    curl_easy_cleanup(x.curl);
    str_free(&x.body);
    return st;
}

struct load {
    const struct load_options *o;
    const struct load_request *request;
    struct load_reply *reply;
    struct load_exchange *x; /* [n] */
    int n, next, running, done;
    CURLM *multi;
    CURL **idle; /* handles that are not in use */
    int n_idle;
    struct curl_slist *headers;
    double begin_s;
};

static void start_one(struct load *l, double now) {
    const int i = l->next++;
    struct load_exchange *x = &l->x[i];
    *x = (struct load_exchange){.o = l->o, .q = &l->request[i], .r = &l->reply[i]};
    x->curl = l->n_idle > 0 ? l->idle[--l->n_idle] : curl_easy_init();
    ASSERT(x->curl);
    *x->r = (struct load_reply){
        .start_s = now, .queued_s = fmax(now - l->begin_s - x->q->due_s, 0), .input_tokens = x->q->input_tokens};
    set_up(x->curl, l->o->url, x->q->body, l->headers, x);
    curl_multi_add_handle(l->multi, x->curl);
    l->running++;
}

static void take_ended(struct load *l, void (*progress)(int, int)) {
    int left;
    for (CURLMsg *m; (m = curl_multi_info_read(l->multi, &left));) {
        struct load_exchange *x = NULL;
        if (m->msg != CURLMSG_DONE) continue;
        const CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&x);
        finish(x, code);
        curl_multi_remove_handle(l->multi, x->curl);
        curl_easy_reset(x->curl);
        l->idle[l->n_idle++] = x->curl;
        l->running--;
        l->done++;
        if (progress) progress(l->done, l->n);
    }
}

/* Many streams are many descriptors. */
static void raise_descriptors(void) {
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur == r.rlim_max) return;
    r.rlim_cur = r.rlim_max;
    setrlimit(RLIMIT_NOFILE, &r);
}

static void run(struct load *l, void (*progress)(int, int)) {
    const int most = l->o->max_concurrency > 0 ? l->o->max_concurrency : l->n;
    l->begin_s = clock_now_s();
    while (l->done < l->n) {
        int running;
        for (double now; l->next < l->n && l->running < most; start_one(l, now)) {
            now = clock_now_s();
            if (l->request[l->next].due_s > now - l->begin_s) break;
        }
        curl_multi_perform(l->multi, &running);
        take_ended(l, progress);
        double wait = POLL_MS;
        if (l->next < l->n && l->running < most)
            wait = fmin(wait, ceil((l->begin_s + l->request[l->next].due_s - clock_now_s()) * 1e3));
        if (l->done < l->n && wait > 0) curl_multi_poll(l->multi, NULL, 0, (int)wait, NULL);
    }
}

enum status load_run(const struct load_options *o, const struct load_request *request, int n, struct load_reply *reply,
                     void (*progress)(int done, int total), double *duration_s, struct err *e) {
    struct load l = {.o = o, .request = request, .reply = reply, .n = n, .multi = curl_multi_init()};
    if (!l.multi) return FAIL(e, ST_IO, "libcurl cannot be started");
    raise_descriptors();
    curl_multi_setopt(l.multi, CURLMOPT_MAXCONNECTS, (long)(n < 4096 ? n : 4096));
    curl_multi_setopt(l.multi, CURLMOPT_PIPELINING, (long)CURLPIPE_NOTHING);
    l.headers = make_headers(o);
    l.x = xcalloc((size_t)n, sizeof *l.x);
    l.idle = xcalloc((size_t)n, sizeof *l.idle);
    run(&l, progress);
    *duration_s = clock_now_s() - l.begin_s;
    while (l.n_idle > 0) curl_easy_cleanup(l.idle[--l.n_idle]);
    curl_multi_cleanup(l.multi);
    curl_slist_free_all(l.headers);
    free(l.x);
    free(l.idle);
    return ST_OK;
}
