/* The files of the page, as they lie in src/dashboard/page: the assembler puts them into the program. */
#include <string.h>

#include "dashboard/dashboard.h"

#define FILE_IN_PROGRAM(symbol, name)                                             \
    __asm__(".pushsection .rodata\n"                                              \
            "dashboard_" #symbol ":\n.incbin \"src/dashboard/page/" name "\"\n"   \
            "dashboard_" #symbol "_end:\n.byte 0\n.popsection\n");                \
    extern const char dashboard_##symbol[] __attribute__((visibility("hidden"))); \
    extern const char dashboard_##symbol##_end[] __attribute__((visibility("hidden")))

FILE_IN_PROGRAM(html, "index.html");
FILE_IN_PROGRAM(css, "style.css");
FILE_IN_PROGRAM(app, "app.js");
FILE_IN_PROGRAM(dom, "dom.js");
FILE_IN_PROGRAM(chart, "chart.js");
FILE_IN_PROGRAM(code, "code.js");
FILE_IN_PROGRAM(pages, "pages.js");

#define JS "text/javascript; charset=utf-8"
static const struct dashboard_file files[] = {
    {"index.html", "text/html; charset=utf-8", dashboard_html, dashboard_html_end},
    {"style.css", "text/css; charset=utf-8", dashboard_css, dashboard_css_end},
    {"app.js", JS, dashboard_app, dashboard_app_end},
    {"dom.js", JS, dashboard_dom, dashboard_dom_end},
    {"chart.js", JS, dashboard_chart, dashboard_chart_end},
    {"code.js", JS, dashboard_code, dashboard_code_end},
    {"pages.js", JS, dashboard_pages, dashboard_pages_end},
};

const struct dashboard_file *dashboard_file(const char *name) {
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (strcmp(files[i].name, name) == 0) return &files[i];
    return NULL;
}
