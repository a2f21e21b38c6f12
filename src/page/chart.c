/* Line charts in SVG, drawn with the page's colours. */
#include <math.h>

#include "page/page.h"

enum { WIDTH = 640, HEIGHT = 260, LEFT = 72, RIGHT = 16, TOP = 30, BOTTOM = 40, MOST_SERIES = 6, TICKS = 5 };

struct scale {
    double low, high;
};

/* The largest of 1, 2, 5 times a power of ten that is at most x. */
static double round_step(double x) {
    const double power = pow(10, floor(log10(x)));
    return x >= 5 * power ? 5 * power : x >= 2 * power ? 2 * power : power;
}

static void extend(struct scale *s, double v) {
    if (!isfinite(v)) return;
    s->low = fmin(s->low, v);
    s->high = fmax(s->high, v);
}

static double at_x(const struct scale *s, double x) {
    return LEFT + (x - s->low) / (s->high - s->low) * (WIDTH - LEFT - RIGHT);
}
static double at_y(const struct scale *s, double y) {
    return HEIGHT - BOTTOM - (y - s->low) / (s->high - s->low) * (HEIGHT - TOP - BOTTOM);
}

static void add_label(struct str *out, double x, double y, const char *anchor, const char *text) {
    str_addf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    page_text(out, text);
    str_adds(out, "</text>\n");
}

static void add_axes(struct str *out, const struct page_chart *c, const struct scale *x, const struct scale *y) {
    const double step_y = round_step((y->high - y->low) / TICKS), step_x = round_step((x->high - x->low) / TICKS);
    CLEANUP_STR struct str text = STR_INIT;
    for (double v = ceil(y->low / step_y) * step_y; v <= y->high + 1e-9 * step_y; v += step_y) {
        str_addf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--line)\"/>\n", LEFT,
                 WIDTH - RIGHT, at_y(y, v), at_y(y, v));
        str_clear(&text);
        str_addf(&text, "%.4g", fabs(v) < 1e-9 * step_y ? 0 : v);
        add_label(out, LEFT - 6, at_y(y, v) + 4, "end", text.p);
    }
    for (double v = ceil(x->low / step_x) * step_x; v <= x->high + 1e-9 * step_x; v += step_x) {
        str_clear(&text);
        str_addf(&text, "%.4g", fabs(v) < 1e-9 * step_x ? 0 : v);
        add_label(out, at_x(x, v), HEIGHT - BOTTOM + 16, "middle", text.p);
    }
    add_label(out, LEFT, 16, "start", c->y_title);
    add_label(out, WIDTH - RIGHT, HEIGHT - 6, "end", c->x_title);
    if (isfinite(c->line))
        str_addf(
            out,
            "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\" stroke=\"var(--soft)\" stroke-dasharray=\"5 4\"/>\n",
            LEFT, WIDTH - RIGHT, at_y(y, c->line), at_y(y, c->line));
}

static void add_series(struct str *out, const struct page_series *s, int number, bool steps, const struct scale *x,
                       const struct scale *y) {
    str_addf(out, "<path fill=\"none\" stroke=\"var(--c%d)\" stroke-width=\"2\" d=\"", number);
    bool begun = false;
    for (int i = 0; i < s->n; i++) {
        if (!isfinite(s->x[i]) || !isfinite(s->y[i])) continue;
        if (!begun)
            str_addf(out, "M%.1f %.1f", at_x(x, s->x[i]), at_y(y, s->y[i]));
        else if (steps)
            str_addf(out, "H%.1fV%.1f", at_x(x, s->x[i]), at_y(y, s->y[i]));
        else
            str_addf(out, "L%.1f %.1f", at_x(x, s->x[i]), at_y(y, s->y[i]));
        begun = true;
    }
    if (begun && steps) str_addf(out, "H%.1f", at_x(x, x->high));
    str_adds(out, "\"/>\n");
}

void page_draw(struct str *out, const struct page_chart *c) {
    struct scale x = {INFINITY, -INFINITY}, y = {INFINITY, -INFINITY};
    ASSERT(c->n_series <= MOST_SERIES);
    for (int k = 0; k < c->n_series; k++)
        for (int i = 0; i < c->series[k].n; i++) {
            extend(&x, c->series[k].x[i]);
            extend(&y, c->series[k].y[i]);
        }
    if (!isfinite(x.low) || !isfinite(y.low)) return; /* there is nothing to draw */
    if (isfinite(c->line)) extend(&y, c->line);
    x.low = fmin(x.low, 0);
    if (x.high <= x.low) x.high = x.low + 1;
    if (y.high <= y.low) { /* one value: what is never negative is not drawn as if it were */
        const double half = y.low == 0 ? 1 : fabs(y.low) / 2;
        y.low = y.low == 0 ? 0 : y.low - half;
        y.high += half;
    }
    const double room = 0.08 * (y.high - y.low);
    y.low -= room;
    y.high += room;
    str_addf(out, "<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT,
             WIDTH, HEIGHT);
    page_text(out, c->title);
    str_adds(out, "\">\n");
    add_axes(out, c, &x, &y);
    for (int k = 0; k < c->n_series; k++) add_series(out, &c->series[k], k, c->steps, &x, &y);
    for (int k = 0; k < c->n_series && c->n_series > 1; k++) {
        str_addf(out, "<rect x=\"%d\" y=\"%d\" width=\"10\" height=\"10\" fill=\"var(--c%d)\"/>\n", LEFT + 12,
                 TOP + 4 + 16 * k, k);
        add_label(out, LEFT + 28, TOP + 13 + 16 * k, "start", c->series[k].name);
    }
    str_adds(out, "</svg>\n");
}
