#include "page/page.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char style[] =
    ":root{color-scheme:light dark;--fg:#1c2026;--bg:#fff;--soft:#5b6573;--line:#d5dae1;--good:#1a6fb5;--bad:#b4501f;"
    "--c0:#1a6fb5;--c1:#d9822b;--c2:#4c9f70;--c3:#8a5fb0;--c4:#7a7a7a;--c5:#b03060}"
    "@media(prefers-color-scheme:dark){:root{--fg:#e6e9ee;--bg:#14171c;--soft:#9aa4b2;--line:#333b46;--good:#6db3f2;"
    "--bad:#f0a070;--c0:#6db3f2;--c1:#f2a65a;--c2:#7fd1a3;--c3:#c3a0e8;--c4:#aaa;--c5:#f08fb0}}"
    "body{font:15px/1.5 system-ui,sans-serif;color:var(--fg);background:var(--bg);max-width:72rem;margin:2rem auto;"
    "padding:0 "
    "1rem}h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse;margin:.5rem 0}"
    "th,td{text-align:left;padding:.2rem .7rem .2rem 0;border-bottom:1px solid var(--line);vertical-align:top}"
    "th{color:var(--soft);font-weight:600}tr.good td{color:var(--good)}tr.bad td{color:var(--soft)}"
    "tr.best td{font-weight:600;color:var(--good)}pre{overflow:auto;padding:.6rem;border:1px solid var(--line);"
    "border-radius:4px;font-size:13px}summary{cursor:pointer;color:var(--soft);white-space:nowrap}.wide{overflow-x:"
    "auto}"
    "svg{max-width:100%;height:auto}svg text{fill:var(--fg);font:12px system-ui,sans-serif}p.lead{font-size:1.1rem}"
    "a{color:var(--good)}.charts svg "
    "text{font-size:17px}.charts{display:grid;gap:1rem;grid-template-columns:repeat(auto-fill,minmax(min(20rem,100%),"
    "1fr))}.paper svg text{fill:#1c2026}"; /* a picture with a white ground of its own */

void page_begin(struct str *out, const char *title) {
    str_adds(out,
             "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
             "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
             "img-src data:\">\n<meta name=\"viewport\" content=\"width=device-width\">\n<title>");
    page_text(out, title);
    str_addf(out, "</title>\n<style>%s</style>\n</head>\n<body>\n<h1>", style);
    page_text(out, title);
    str_adds(out, "</h1>\n");
}

void page_end(struct str *out) { str_adds(out, "</body>\n</html>\n"); }

/* ---- text ---------------------------------------------------------------------------------------------------------*/

/* The code point at p, of well-formed UTF-8; *n its bytes. -1, *n = 1: it is not. */
static int32_t code_point(const unsigned char *p, int *n) {
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const int len = p[0] < 0x80 ? 1 : p[0] >= 0xf0 && p[0] < 0xf5 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    *n = 1;
    if (len == 0 || p[0] >= 0xf5) return -1;
    int32_t c = len == 1 ? p[0] : p[0] & (0x7f >> len);
    for (int i = 1; i < len; i++) {
        if ((p[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (p[i] & 0x3f);
    }
    if (c < least[len] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) return -1;
    *n = len;
    return c;
}

/* Whether it is invisible, or turns the direction of the text around it. */
static bool hides(int32_t c) {
    return (c < 32 && c != '\n' && c != '\t') || (c >= 0x7f && c < 0xa0) || (c >= 0x200b && c <= 0x200f) ||
           (c >= 0x202a && c <= 0x202e) || (c >= 0x2060 && c <= 0x206f) || c == 0xfeff;
}

void page_text(struct str *out, const char *text) {
    for (const unsigned char *p = (const unsigned char *)(text ? text : ""); *p;) {
        int n;
        const int32_t c = code_point(p, &n);
        if (c < 0)
            str_adds(out, "\xef\xbf\xbd");
        else if (hides(c))
            str_addf(out, "&lt;U+%04X&gt;", (unsigned)c);
        else if (c == '<' || c == '>' || c == '&' || c == '"' || c == '\'')
            str_addf(out, "&#%d;", (int)c);
        else
            str_add(out, (const char *)p, (size_t)n);
        p += n;
    }
}

static void text_v(struct str *out, const char *fmt, va_list args) {
    char *text = NULL;
    if (vasprintf(&text, fmt, args) < 0) return;
    page_text(out, text);
    free(text);
}

void page_textf(struct str *out, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    text_v(out, fmt, args);
    va_end(args);
}

void page_code(struct str *out, const char *label, const char *code) {
    str_adds(out, "<details><summary>");
    page_text(out, label);
    str_adds(out, "</summary><pre>");
    page_text(out, code);
    str_adds(out, "</pre></details>\n");
}

/* ---- tables -------------------------------------------------------------------------------------------------------*/

void page_table_begin(struct str *out, const char *const *columns, int n) {
    str_adds(out, "<div class=\"wide\"><table>\n<tr>");
    for (int i = 0; i < n; i++) {
        str_adds(out, "<th>");
        page_text(out, columns[i]);
        str_adds(out, "</th>");
    }
    str_adds(out, "</tr>\n");
}

void page_row_begin(struct str *out, const char *class) {
    if (class)
        str_addf(out, "<tr class=\"%s\">", class);
    else
        str_adds(out, "<tr>");
}

void page_cell(struct str *out, const char *text) {
    str_adds(out, "<td>");
    page_text(out, text);
    str_adds(out, "</td>");
}

void page_cellf(struct str *out, const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    str_adds(out, "<td>");
    text_v(out, fmt, args);
    str_adds(out, "</td>");
    va_end(args);
}

void page_row_end(struct str *out) { str_adds(out, "</tr>\n"); }
void page_table_end(struct str *out) { str_adds(out, "</table></div>\n"); }
