#include "remote/servers.h"

#include <stdlib.h>

#include "base/str.h"
#include "remote/remote.h"

static const struct {
    const char *address, *variable;
} servers[] = {
#define X(value, name, address, variable) [value] = {address, variable},
    SERVER_LIST(X)
#undef X
};

const char *server_address(int type) { return type < 0 ? NULL : servers[type].address; }

/* Looks a variable up; true when it is set. */
static bool is_set(const char *name, const char **key, const char **from) {
    const char *v = getenv(name);
    if (!v || !*v) return false;
    *key = v;
    *from = name;
    return true;
}

enum status server_key(const char *named, int type, const char *base_url, const char **key, const char **from,
                       struct err *e) {
    *key = NULL;
    *from = type >= 0 ? servers[type].variable : "OPENAI_API_KEY";
    if (named && *named) {
        if (is_set(named, key, from)) return ST_OK;
        return FAIL(e, ST_CONFIG, "api_key_env: the environment variable %s is not set", named);
    }
    if (type >= 0 && is_set(servers[type].variable, key, from)) return ST_OK;
    if (is_set("KERNELRL_API_KEY", key, from)) return ST_OK;
    if (str_has_prefix(base_url, "https://") || remote_is_here(base_url)) (void)is_set("OPENAI_API_KEY", key, from);
    return ST_OK;
}
