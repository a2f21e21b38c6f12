#include "base/dotenv.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/str.h"

enum { FILE_MAX_BYTES = 1 << 20 };

static bool is_name(const char *p, size_t n) {
    if (n == 0 || isdigit((unsigned char)p[0])) return false;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)p[i]) && p[i] != '_') return false;
    return true;
}

/* Takes the value in line[0..n): without its quotes, or without a comment and blanks behind it. */
static bool take_value(char *p, size_t n, char **out) {
    if (n > 0 && (*p == '"' || *p == '\'')) {
        char *close = memchr(p + 1, *p, n - 1);
        if (!close) return false;
        for (const char *rest = close + 1; rest < p + n && *rest != '#'; rest++)
            if (!isspace((unsigned char)*rest)) return false;
        *close = 0;
        *out = p + 1;
        return true;
    }
    const char *comment = mem_find(p, n, " #", 2);
    if (comment) n = (size_t)(comment - p);
    while (n > 0 && isspace((unsigned char)p[n - 1])) n--;
    p[n] = 0;
    *out = p;
    return true;
}

enum status dotenv_load(const char *path, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    if (!fs_is_file(path)) return ST_OK;
    TRY(fs_read(path, FILE_MAX_BYTES, &text, NULL, e));
    int number = 0;
    for (char *line = text, *next; line; line = next) {
        next = strchr(line, '\n');
        if (next) *next++ = 0;
        number++;
        while (isspace((unsigned char)*line)) line++;
        if (*line == 0 || *line == '#') continue;
        if (str_has_prefix(line, "export ")) line += strlen("export ");
        char *eq = strchr(line, '='), *value;
        if (!eq || !is_name(line, (size_t)(eq - line)) || !take_value(eq + 1, strlen(eq + 1), &value))
            return FAIL(e, ST_PARSE, "%s:%d: expected NAME=VALUE, the value in matching quotes or none", path, number);
        *eq = 0;
        if (setenv(line, value, 0) != 0) return FAIL(e, ST_IO, "%s:%d: cannot set %s", path, number, line);
    }
    return ST_OK;
}
