/* Queries by their names: those of the API and of the page's addresses. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/view/view.h"

struct view_query view_query_all(void) {
    return (struct view_query){.step_to = INT64_MAX,
                               .reward_min = (double)NAN,
                               .reward_max = (double)NAN,
                               .speedup_min = (double)NAN,
                               .speedup_max = (double)NAN,
                               .limit = 100};
}

enum status view_query_set(struct view_query *q, const char *key, const char *value, struct err *e) {
    const struct {
        const char *key;
        int64_t *whole;
        double *real;
        const char **text;
    } parts[] = {
        {"step_from", &q->step_from, NULL, NULL},
        {"step_to", &q->step_to, NULL, NULL},
        {"reward_min", NULL, &q->reward_min, NULL},
        {"reward_max", NULL, &q->reward_max, NULL},
        {"speedup_min", NULL, &q->speedup_min, NULL},
        {"speedup_max", NULL, &q->speedup_max, NULL},
        {"problem", NULL, NULL, &q->problem},
        {"outcome", NULL, NULL, &q->outcome},
        {"class", NULL, NULL, &q->class},
        {"stop", NULL, NULL, &q->stop},
        {"role", NULL, NULL, &q->role},
        {"text", NULL, NULL, &q->text},
        {"sort", NULL, NULL, &q->sort},
    };
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (strcmp(parts[i].key, key) != 0) continue;
        if (parts[i].whole && !(parse_i64(value, parts[i].whole) && *parts[i].whole >= 0))
            return FAIL(e, ST_USAGE, "%s: expected a whole number from 0 on", key);
        if (parts[i].real && !(parse_f64(value, parts[i].real) && isfinite(*parts[i].real)))
            return FAIL(e, ST_USAGE, "%s: expected a number", key);
        if (strcmp(key, "sort") == 0 && str_index_in("step|reward|advantage|speedup|tokens", value, '|') < 0)
            return FAIL(e, ST_USAGE, "sort: expected step, reward, advantage, speedup or tokens");
        if (parts[i].text) *parts[i].text = value;
        return ST_OK;
    }
    return FAIL(e, ST_USAGE, "%.80s: no such filter of answers", key);
}

static int hex_digit(char c) {
    const char *const digits = "0123456789abcdef", *at = strchr(digits, c | 0x20);
    return c && at && *at ? (int)(at - digits) : -1;
}

/* Undoes in place what stands for other characters in an address. A zero byte stays as it is written. */
static void decode(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++) {
        const int high = *p == '%' ? hex_digit(p[1]) : -1, low = high >= 0 ? hex_digit(p[2]) : -1;
        if (low >= 0 && high + low > 0) {
            *to++ = (char)(16 * high + low);
            p += 2;
        } else {
            *to++ = *p == '+' ? ' ' : *p;
        }
    }
    *to = 0;
}

enum status view_query_read(struct view_query *q, char *text, struct err *e) {
    char *rest = text;
    while (*rest) {
        char *key = rest;
        rest += strcspn(rest, "&");
        if (*rest) *rest++ = 0;
        char *value = strchr(key, '=');
        if (!value) return FAIL(e, ST_USAGE, "\"%.80s\": expected NAME=VALUE&NAME=VALUE...", key);
        *value++ = 0;
        decode(value);
        if (*value) TRY(view_query_set(q, key, value, e));
    }
    return ST_OK;
}
