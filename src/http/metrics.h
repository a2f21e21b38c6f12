/* metrics: Prometheus' text format, version 0.0.4, and histograms with fixed buckets. */
#ifndef KERNELRL_HTTP_METRICS_H
#define KERNELRL_HTTP_METRICS_H

#include "base/base.h"
#include "base/str.h"

enum { HISTOGRAM_MAX_BUCKETS = 24 };
struct histogram {
    const double *bound; /* [n] ascending; a value lies in the first bucket whose bound is not below it */
    int n;
    int64_t count[HISTOGRAM_MAX_BUCKETS + 1]; /* the last one: above all bounds */
    double sum;
};
void histogram_add(struct histogram *h, double value);

/* A family's head; type is counter, gauge or histogram. */
void metrics_family(struct str *out, const char *name, const char *type, const char *help);
/* A value. labels: `a="b",c="d"` as it stands there, or NULL (metrics_label makes it). */
void metrics_value(struct str *out, const char *name, const char *labels, double value);
/* The family of a counter or a gauge that has one value. */
void metrics_single(struct str *out, const char *name, const char *type, const char *help, const char *labels,
                    double value);
/* The values of a histogram. */
void metrics_histogram(struct str *out, const char *name, const char *labels, const struct histogram *h);
/* Appends name="value", with a comma in front unless it is the first. */
void metrics_label(struct str *labels, const char *name, const char *value);

#endif
