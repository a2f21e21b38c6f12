#include "http/metrics.h"

#include <math.h>

void histogram_add(struct histogram *h, double value) {
    int i = 0;
    while (i < h->n && !(value <= h->bound[i])) i++;
    h->count[i]++;
    h->sum += value;
}

void metrics_family(struct str *out, const char *name, const char *type, const char *help) {
    str_addf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void add_number(struct str *out, double v) {
    if (v == floor(v) && fabs(v) < 1e15)
        str_addf(out, "%.0f", v);
    else
        str_addf(out, "%.9g", v);
}

void metrics_value(struct str *out, const char *name, const char *labels, double value) {
    str_adds(out, name);
    if (labels && *labels) str_addf(out, "{%s}", labels);
    str_addc(out, ' ');
    add_number(out, value);
    str_addc(out, '\n');
}

void metrics_single(struct str *out, const char *name, const char *type, const char *help, const char *labels,
                    double value) {
    metrics_family(out, name, type, help);
    metrics_value(out, name, labels, value);
}

static void add_bucket(struct str *out, const char *name, const char *labels, const char *bound, int64_t count) {
    str_addf(out, "%s_bucket{%s%sle=\"%s\"} %lld\n", name, labels ? labels : "", labels && *labels ? "," : "", bound,
             (long long)count);
}

void metrics_histogram(struct str *out, const char *name, const char *labels, const struct histogram *h) {
    int64_t below = 0;
    for (int i = 0; i < h->n; i++) {
        CLEANUP_STR struct str bound = STR_INIT;
        below += h->count[i];
        str_addf(&bound, "%g", h->bound[i]);
        add_bucket(out, name, labels, bound.p, below);
    }
    below += h->count[h->n];
    add_bucket(out, name, labels, "+Inf", below);
    CLEANUP_STR struct str part = STR_INIT;
    str_addf(&part, "%s_sum", name);
    metrics_value(out, part.p, labels, h->sum);
    str_clear(&part);
    str_addf(&part, "%s_count", name);
    metrics_value(out, part.p, labels, (double)below);
}

void metrics_label(struct str *labels, const char *name, const char *value) {
    str_addf(labels, "%s%s=\"", labels->len ? "," : "", name);
    for (const char *p = value; *p; p++) {
        if (*p == '\n')
            str_adds(labels, "\\n");
        else if (*p == '"' || *p == '\\')
            str_addf(labels, "\\%c", *p);
        else
            str_addc(labels, *p);
    }
    str_addc(labels, '"');
}
