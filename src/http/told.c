/* What clients are told of failures. Messages of other rooms say which file it was, which is for the server's log: no
 * client is to learn where the server keeps its things. All such paths begin at the root. */
#include <string.h>

#include "base/log.h"
#include "http/http.h"
#include "io/json.h"

/* Whether a path begins at text[i]: a slash that begins a word. Those of "tinker://..." and of "a/b" begin none. */
static bool begins_path(const char *text, size_t i) {
    return text[i] == '/' && text[i + 1] && text[i + 1] != ' ' && (i == 0 || strchr(" \t\n\"'(=,;[<", text[i - 1]));
}

/* The length of a path that begins at text[i]. In quotes or brackets it ends with them. Otherwise it may have blanks,
 * and ends where a message goes on behind a path. */
static size_t path_length(const char *text, size_t i) {
    static const char *const ends[] = {": ", "; ", ", "};
    const char opened = i > 0 ? text[i - 1] : ' ', *const from = text + i;
    const char *first = from + strlen(from);
    if (opened == '"' || opened == '\'') return strcspn(from, (const char[]){opened, 0});
    if (opened == '(') return strcspn(from, ")");
    for (size_t k = 0; k < ARRAY_LEN(ends); k++) {
        const char *at = strstr(from, ends[k]);
        if (at && at < first) first = at;
    }
    return (size_t)(first - from);
}

void http_tell_without_paths(struct str *out, const char *message) {
    bool named = false;
    for (size_t i = 0; message[i];) {
        if (!begins_path(message, i)) {
            str_addc(out, message[i++]);
            continue;
        }
        str_adds(out, "[path]");
        i += path_length(message, i);
        named = true;
    }
    if (!named) return;
    CLEANUP_STR struct str quoted = STR_INIT; /* a client's words may be in it, and must not begin a line of the log */
    js_add_quoted(&quoted, message, strlen(message));
    log_warn("a client was told, without paths: %s", quoted.p);
}

void http_reply_failure(struct http_exchange *x, int status, const char *code, const char *param, const struct err *e) {
    CLEANUP_STR struct str told = STR_INIT;
    http_tell_without_paths(&told, e->msg);
    http_reply_error(x, status, code, param, "%s", str_c(&told));
}
