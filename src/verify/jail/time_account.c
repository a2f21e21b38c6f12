#include "verify/jail/time_account.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 64 };

static struct account_row {
    char name[56];
    double seconds;
    int times;
} rows[MAX_ROWS];
static int n_rows;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void spent_add(const char *who, const char *what, double seconds) {
    char name[sizeof rows[0].name];
    snprintf(name, sizeof name, "%.24s %.24s", who, what);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < n_rows && strcmp(rows[i].name, name) != 0) i++;
    if (i == n_rows && n_rows < MAX_ROWS) {
        rows[n_rows] = (struct account_row){.seconds = 0};
        memcpy(rows[n_rows++].name, name, sizeof name);
    }
    if (i < n_rows) {
        rows[i].seconds += seconds;
        rows[i].times++;
    }
    pthread_mutex_unlock(&lock);
}

void spent_note(const char *who, const char *request, double seconds) {
    static const char first[] = "{\"op\":\"";
    char op[25] = "";
    if (strncmp(request, first, sizeof first - 1) == 0) {
        const char *name = request + sizeof first - 1;
        size_t n = strcspn(name, "\"");
        if (n < sizeof op) snprintf(op, sizeof op, "%.*s", (int)n, name);
    }
    spent_add(who, op, seconds);
}

static int by_seconds(const void *a, const void *b) {
    double x = ((const struct account_row *)a)->seconds, y = ((const struct account_row *)b)->seconds;
    return (x < y) - (x > y);
}

void spent_take(struct str *out) {
    pthread_mutex_lock(&lock);
    qsort(rows, (size_t)n_rows, sizeof rows[0], by_seconds);
    str_addf(out, "{");
    for (int i = 0; i < n_rows; i++)
        str_addf(out, "%s\"%s\":[%.4f,%d]", i ? "," : "", rows[i].name, rows[i].seconds, rows[i].times);
    str_addf(out, "}");
    n_rows = 0;
    pthread_mutex_unlock(&lock);
}
