/* page: parts of HTML pages that need no server and no network: one file each, with its style, its charts and nothing
 * else. Owns escaping, the head with the style, tables, and line charts in SVG. Knows nothing of what is shown. May
 * include base.
 *
 * All text of others goes through page_text; the head forbids scripts and anything from elsewhere. */
#ifndef KERNELRL_PAGE_PAGE_H
#define KERNELRL_PAGE_PAGE_H

#include "base/str.h"

/* The page up to its content, and behind it. */
void page_begin(struct str *out, const char *title);
void page_end(struct str *out);

/* Appends text as HTML shows it: < > & and quotes escaped, control characters and what turns the direction of text made
 * visible, bytes that are not UTF-8 replaced. Good inside of elements and of quoted attributes. */
void page_text(struct str *out, const char *text);
/* The same, as printf does. */
void page_textf(struct str *out, const char *fmt, ...) PRINTF_LIKE(2, 3);
/* Code in a block of its own that can be folded; `label` is what stays of it. */
void page_code(struct str *out, const char *label, const char *code);

/* A table: begin with its columns (text), then cells row by row, left to right, then end. */
void page_table_begin(struct str *out, const char *const *columns, int n);
void page_row_begin(struct str *out, const char *class); /* class: a name of the style, or NULL */
void page_cell(struct str *out, const char *text);
void page_cellf(struct str *out, const char *fmt, ...) PRINTF_LIKE(2, 3);
void page_row_end(struct str *out);
void page_table_end(struct str *out);

/* A chart: lines between points, or steps, where a value holds from its x on until the next one (best so far). */
struct page_series {
    const char *name;
    const double *x, *y; /* [n], x rising */
    int n;
};
struct page_chart {
    const char *title, *x_title, *y_title;
    const struct page_series *series;
    int n_series; /* at most 6 */
    double line;  /* a dashed line at this y; NaN: none */
    bool steps;   /* true: steps; false: lines */
};
/* Draws nothing where no series has a point. */
void page_draw(struct str *out, const struct page_chart *c);

#endif
