#include "verify/pool/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"

static const char expected[] =
    "expected local:N, local:cuda[:0-7], ssh:HOST[:SLOTS|:cuda[:0-7]] or nats:URL, with commas in between";

static bool read_number(const char *text, size_t n, int high, int *out) {
    char digits[8];
    int64_t v;
    if (n == 0 || n >= sizeof digits || strspn(text, "0123456789") < n) return false;
    snprintf(digits, sizeof digits, "%.*s", (int)n, text);
    if (!parse_i64(digits, &v) || v > high) return false;
    *out = (int)v;
    return true;
}

bool pool_gpu_list(const char *text, int out[POOL_GPUS_MAX], int *n) {
    *n = 0;
    for (const char *p = text;; p++) {
        const size_t length = strcspn(p, "+"), left = strcspn(p, "-+");
        int from, to;
        if (!read_number(p, left, 1023, &from)) return false;
        to = from;
        if (left < length && !read_number(p + left + 1, length - left - 1, 1023, &to)) return false;
        for (int g = from; g <= to; g++) {
            for (int k = 0; k < *n; k++)
                if (out[k] == g) return false;
            if (*n == POOL_GPUS_MAX) return false;
            out[(*n)++] = g;
        }
        if (to < from) return false;
        p += length;
        if (!*p) return true;
    }
}

/* "4", "cuda", "cuda:0-7". */
static bool read_slots(const char *text, struct pool_host *h) {
    if (strcmp(text, "cuda") == 0) return h->all_gpus = true;
    if (str_has_prefix(text, "cuda:")) return pool_gpu_list(text + strlen("cuda:"), h->gpu, &h->n_gpus);
    return read_number(text, strlen(text), POOL_SLOTS_MAX, &h->slots) && h->slots > 0;
}

/* HOST may hold no blank and begin with no hyphen, which ssh would take for an option. */
static bool read_ssh(char *text, struct pool_host *h) {
    char *slots = text[0] == '[' ? strchr(text, ']') : text;
    slots = slots ? strchr(slots, ':') : NULL;
    h->slots = 1;
    if (slots) {
        *slots = 0;
        h->slots = 0;
        if (!read_slots(slots + 1, h)) return false;
    }
    size_t n = strlen(text);
    if (text[0] == '[' && text[n - 1] == ']') { /* as addresses with colons are written elsewhere */
        text[n - 1] = 0;
        text++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof h->name || text[0] == '-' || strpbrk(text, " \t'\"`$;&|<>\\")) return false;
    snprintf(h->name, sizeof h->name, "%s", text);
    return true;
}

static bool read_one(char *text, struct pool_host *h) {
    if (str_has_prefix(text, "local:")) {
        h->kind = POOL_LOCAL;
        return read_slots(text + strlen("local:"), h);
    }
    if (str_has_prefix(text, "ssh:")) {
        h->kind = POOL_SSH;
        return read_ssh(text + strlen("ssh:"), h);
    }
    if (!str_has_prefix(text, "nats:")) return false;
    h->kind = POOL_NATS;
    const char *url = text + strlen("nats:");
    if (!strstr(url, "://") || strlen(url) >= sizeof h->name || strchr(url, '@')) return false;
    snprintf(h->name, sizeof h->name, "%s", url);
    return true;
}

enum status pool_hosts_read(const char *text, struct pool_hosts *out, struct err *e) {
    CLEANUP_FREE char *copy = xstrdup(text);
    *out = (struct pool_hosts){0};
    char *rest = copy;
    for (char *one; (one = strsep(&rest, ","));) {
        CLEANUP_FREE char *shown = xstrdup(one);
        struct pool_host h = {0};
        if (out->n == POOL_HOSTS_MAX || !read_one(one, &h)) {
            pool_hosts_free(out);
            return FAIL(e, ST_CONFIG, "verify_hosts: %s, got \"%.100s\"", expected, shown);
        }
        out->item = xrealloc(out->item, (size_t)(out->n + 1) * sizeof *out->item);
        out->item[out->n++] = h;
    }
    for (int i = 0; i < out->n; i++)
        if (out->n > 1 && out->item[i].kind == POOL_NATS) {
            pool_hosts_free(out);
            return FAIL(e, ST_CONFIG, "verify_hosts: a queue (nats:) stands alone; its workers are found through it");
        }
    return ST_OK;
}

void pool_hosts_free(struct pool_hosts *h) {
    free(h->item);
    *h = (struct pool_hosts){0};
}
