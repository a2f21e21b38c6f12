#include "http/guard.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/str.h"

/* ---- keys ---------------------------------------------------------------------------------------------------------*/

/* Takes the same time wherever two digests differ. */
static bool same(const struct digest *a, const struct digest *b) {
    unsigned differ = 0;
    for (size_t i = 0; i < sizeof a->hex - 1; i++) differ |= (unsigned)(a->hex[i] ^ b->hex[i]);
    return differ == 0;
}

static bool any_is(const struct digest *keys, size_t n, const struct digest *d) {
    bool found = false;
    for (size_t i = 0; i < n; i++) found |= same(&keys[i], d);
    return found;
}

/* The key of "Bearer KEY"; NULL: there is none. */
static const char *bearer(const char *authorization) {
    if (!authorization || strncasecmp(authorization, "Bearer", 6) != 0 || authorization[6] != ' ') return NULL;
    authorization += 7;
    while (*authorization == ' ') authorization++;
    return *authorization ? authorization : NULL;
}

enum guard_answer guard_key(const struct guard *g, const char *authorization, const char *x_api_key, bool admin) {
    const char *const given[] = {bearer(authorization), x_api_key && *x_api_key ? x_api_key : NULL};
    bool is_user = g->n_keys == 0 && g->n_admin_keys == 0, is_admin = false, any = false;
    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        if (!given[i]) continue;
        const struct digest d = digest_of(given[i], strlen(given[i]));
        any = true;
        is_user |= any_is(g->keys, g->n_keys, &d);
        is_admin |= any_is(g->admin_keys, g->n_admin_keys, &d);
    }
    /* With keys for administrators alone, anybody is a user. */
    is_user |= is_admin || g->n_keys == 0;
    is_admin |= g->admin && is_user;
    if (!is_user) return any ? GUARD_WRONG_KEY : GUARD_NO_KEY;
    return !admin || is_admin ? GUARD_YES : GUARD_NOT_ADMIN;
}

bool guard_known_key(const struct guard *g, const char *authorization, const char *x_api_key, struct digest *out) {
    const char *const given[] = {bearer(authorization), x_api_key && *x_api_key ? x_api_key : NULL};
    for (size_t i = 0; i < ARRAY_LEN(given); i++) {
        if (!given[i]) continue;
        *out = digest_of(given[i], strlen(given[i]));
        if (any_is(g->keys, g->n_keys, out) || any_is(g->admin_keys, g->n_admin_keys, out)) return true;
    }
    return false;
}

enum status guard_split_key(const char *text, char name[KEY_NAME_SIZE], const char **key, struct err *e) {
    const size_t n = strcspn(text, " ");
    *name = 0;
    *key = text;
    if (!*text) return FAIL(e, ST_CONFIG, "a key is empty");
    if (!text[n]) return ST_OK;
    if (n < 1 || n >= KEY_NAME_SIZE ||
        strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.") != n)
        return FAIL(e, ST_CONFIG, "the name of a key: expected 1 to %d letters, digits, and -_. in front of the blank",
                    KEY_NAME_SIZE - 1);
    memcpy(name, text, n);
    name[n] = 0;
    *key += n + strspn(text + n, " ");
    return **key ? ST_OK : FAIL(e, ST_CONFIG, "the key with the name %s is empty", name);
}

const char *guard_key_name(const struct guard *g, const struct digest *key) {
    for (size_t i = 0; i < g->n_key_names; i++)
        if (digest_equal(&g->key_name[i].key, key)) return g->key_name[i].name;
    return NULL;
}

/* ---- names and pages ----------------------------------------------------------------------------------------------*/

/* The length of the name in "name:port", "[address]:port". */
static size_t name_length(const char *host) {
    if (*host == '[') {
        const char *end = strchr(host, ']');
        return end ? (size_t)(end - host) + 1 : strlen(host);
    }
    return strcspn(host, ":");
}

static bool is_name(const char *host, size_t n, const char *name) {
    return strlen(name) == n && strncasecmp(host, name, n) == 0;
}

bool guard_host(const struct guard *g, const char *host) {
    if (!g->check_host) return true;
    if (!host) return false;
    const size_t n = name_length(host);
    const char *rest = host + n;
    if (*rest == ':') {
        rest++;
        while (isdigit((unsigned char)*rest)) rest++;
    }
    if (*rest) return false;
    if (is_name(host, n, "localhost") || is_name(host, n, "127.0.0.1") || is_name(host, n, "[::1]")) return true;
    for (size_t i = 0; i < g->n_hosts; i++)
        if (is_name(host, n, g->hosts[i])) return true;
    return false;
}

bool guard_origin_listed(const struct guard *g, const char *origin) {
    for (size_t i = 0; origin && i < g->n_origins; i++)
        if (strcasecmp(origin, g->origins[i]) == 0) return true;
    return false;
}

bool guard_origin(const struct guard *g, const char *origin, const char *host) {
    if (!origin || guard_origin_listed(g, origin)) return true;
    const char *name = strstr(origin, "://");
    return name && host && strcasecmp(name + 3, host) == 0;
}

/* ---- targets ------------------------------------------------------------------------------------------------------*/

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* The byte at *p, decoded; *p moves behind it. -1: a "%" that begins none. */
static int next_byte(const char **p) {
    const char *s = *p;
    if (*s != '%') {
        *p = s + 1;
        return (unsigned char)*s;
    }
    const int high = hex_digit(s[1]), low = high < 0 ? -1 : hex_digit(s[2]);
    if (low < 0) return -1;
    *p = s + 3;
    return high * 16 + low;
}

bool guard_target(const char *target) {
    if (*target != '/') return false;
    size_t dots = 0, others = 0; /* of the segment at hand */
    bool query = false;
    for (const char *p = target; *p;) {
        if (*p <= ' ' || *p > '~') return false;
        query |= *p == '?';
        const int c = next_byte(&p);
        if (c < 0 || (!query && (c < ' ' || c == 127))) return false;
        if (query) continue;
        if (c == '/') {
            if (others == 0 && (dots == 1 || dots == 2)) return false;
            dots = others = 0;
        } else if (c == '.') {
            dots++;
        } else {
            others++;
        }
    }
    return others > 0 || (dots != 1 && dots != 2);
}

char *guard_path(const char *target) {
    struct str s = STR_INIT;
    for (const char *p = target; *p && *p != '?';) {
        const int c = next_byte(&p);
        if (c < 0) break;
        str_addc(&s, (char)c);
    }
    return str_steal(&s);
}

bool guard_request_id(const char *id) {
    const size_t n = strlen(id);
    if (n < 1 || n > 128) return false;
    return strspn(id, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.:/+=~") == n;
}

bool guard_header_names(const char *names) {
    const size_t n = strlen(names);
    return n > 0 && n < 1000 &&
           strspn(names, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_, ") == n;
}

void guard_free(struct guard *g) {
    free(g->keys);
    free(g->admin_keys);
    free(g->key_name);
    for (size_t i = 0; i < g->n_hosts; i++) free(g->hosts[i]);
    for (size_t i = 0; i < g->n_origins; i++) free(g->origins[i]);
    free(g->hosts);
    free(g->origins);
    *g = (struct guard){0};
}
