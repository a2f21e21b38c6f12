/* guard: who may ask for what. Keys, the names that the server goes by, and pages of other sites. Pure functions over
 * texts of a request. */
#ifndef KERNELRL_HTTP_GUARD_H
#define KERNELRL_HTTP_GUARD_H

#include "base/err.h"
#include "base/hash.h"

/* A key may have a name, for logs and metrics: it is given as "NAME KEY". */
enum { KEY_NAME_SIZE = 65 };
struct key_name {
    struct digest key;
    char name[KEY_NAME_SIZE];
};
struct guard {
    struct digest *keys, *admin_keys;
    struct key_name *key_name; /* [n_key_names]: of those that have one */
    size_t n_key_names;
    size_t n_keys, n_admin_keys;
    bool admin;      /* true: any caller is an administrator */
    bool check_host; /* true: the server is on loopback without a key, and others could lead a browser there */
    char **hosts, **origins;
    size_t n_hosts, n_origins;
};

enum guard_answer { GUARD_YES, GUARD_NO_KEY, GUARD_WRONG_KEY, GUARD_NOT_ADMIN };

/* GUARD_YES: a caller with these headers (NULL: absent) has the rights of an ordinary user or, with admin, of one who
 * may change what the server does. All keys are compared, in constant time. */
enum guard_answer guard_key(const struct guard *g, const char *authorization, const char *x_api_key, bool admin);
/* The key among these headers that the server knows; false: there is none, or the server has no keys. */
bool guard_known_key(const struct guard *g, const char *authorization, const char *x_api_key, struct digest *out);
/* Where the key begins in a text that is a key, or a name, blanks and a key. The name is copied; "": it has none.
 * ST_CONFIG: the key is empty, or the name is not made of 1 to 64 letters, digits, and -_. alone. */
enum status guard_split_key(const char *text, char name[KEY_NAME_SIZE], const char **key, struct err *e) MUST_USE;
/* The name of a key; NULL: it has none. */
const char *guard_key_name(const struct guard *g, const struct digest *key);
/* True: the Host header names this server: localhost, a loopback address or one of the configured names, with any
 * port; or hosts are not checked (check_host). */
bool guard_host(const struct guard *g, const char *host);
/* True: a page of this origin may call. */
bool guard_origin_listed(const struct guard *g, const char *origin);
/* True: a request that changes something may come from a page of this origin: one that is listed, or one of this very
 * server. An origin of NULL is fine, too: no page of another site has sent the request. */
bool guard_origin(const struct guard *g, const char *origin, const char *host);

/* True: the server takes the request target: it begins with "/", holds visible ASCII alone and no "%00"
 * or other control character, no "." or ".." as a segment, encoded or not, and no broken "%". */
bool guard_target(const char *target);
/* Decodes %XX of the path of a target that guard_target passed; malloc'ed, without the query. */
char *guard_path(const char *target);
/* True: the client's request id can be used: 1..128 letters, digits, and -_.:/+=~ */
bool guard_request_id(const char *id);
/* True: the list of header names can stand in a reply: letters, digits, "-", "_", "," and blanks. */
bool guard_header_names(const char *names);
void guard_free(struct guard *g);

#endif
