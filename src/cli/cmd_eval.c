/* kernelrl eval, kernelrl generate: how good a model is, and what it writes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "cli/cli.h"
#include "page/page.h"
#include "rl/evaluate/evaluate.h"

static const char eval_usage[] = "eval [--config FILE]... [--json] [key=value]...\n"
                                 "       kernelrl eval --compare A.json B.json [--json] [--output NAME.md|NAME.html]";
static const char generate_usage[] = "generate run_name=NAME [--config FILE]... [key=value]...";

/* ---- eval ---------------------------------------------------------------------------------------------------------*/

/* NAME.md and, beside it, NAME.svg. */
static enum status write_comparison(const char *path, const struct comparison *c, const char *const names[2],
                                    const struct summary *const sums[2], struct err *e) {
    CLEANUP_STR struct str md = STR_INIT, svg = STR_INIT, svg_path = STR_INIT;
    str_addf(&svg_path, "%.*s.svg", (int)(strlen(path) - 3), path);
    const char *base = strrchr(svg_path.p, '/');
    str_addf(
        &md,
        "# %s against %s\n\n%d problems in common. Intervals: 95 %% bootstrap over problems; p: permutation test that "
        "swaps the two problem by problem.\n\n",
        names[1], names[0], c->n_common);
    report_comparison(c, names[0], names[1], true, &md);
    str_addf(&md, "\n![fast_p and best speed-ups](%s)\n", base ? base + 1 : svg_path.p);
    report_svg(names, sums, 2, &svg);
    TRY(fs_write_atomic(path, md.p, md.len, e));
    return fs_write_atomic(svg_path.p, svg.p, svg.len, e);
}

/* One page, the picture in it. */
static enum status write_comparison_page(const char *path, const struct comparison *c, const char *const names[2],
                                         const struct summary *const sums[2], struct err *e) {
    static const char *const columns[] = {"", "A", "B", "change", "95 % interval", "p", "problems"};
    CLEANUP_STR struct str out = STR_INIT;
    page_begin(&out, "Two evaluations");
    str_adds(&out, "<p class=\"lead\">");
    page_textf(&out,
               "A is %s, B is %s. They have %d problems in common, which alone are compared; %d are only in A, %d only "
               "in B.",
               names[0], names[1], c->n_common, c->only_a, c->only_b);
    str_adds(&out, "</p>\n<p>");
    page_text(&out, "Intervals are from a bootstrap over problems. p is that of a permutation test that swaps the two "
                    "problem by problem.");
    str_adds(&out, "</p>\n");
    page_table_begin(&out, columns, ARRAY_LEN(columns));
    for (int i = 0; i < DIFFERENCES; i++) {
        const struct difference *d = &c->item[i];
        const bool ratio = strcmp(d->name, "speed-up") == 0;
        if (isnan(d->change.mean)) continue;
        page_row_begin(&out, d->change.low > (ratio ? 1 : 0) ? "good" : NULL);
        page_cellf(&out, ratio ? "%s where both solve" : "%s", d->name);
        page_cellf(&out, ratio ? "%.2fx" : "%.1f %%", (ratio ? 1 : 100) * d->a.mean);
        page_cellf(&out, ratio ? "%.2fx" : "%.1f %%", (ratio ? 1 : 100) * d->b.mean);
        page_cellf(&out, ratio ? "x %.2f" : "%+.1f", (ratio ? 1 : 100) * d->change.mean);
        page_cellf(&out, ratio ? "%.2f to %.2f" : "%+.1f to %+.1f", (ratio ? 1 : 100) * d->change.low,
                   (ratio ? 1 : 100) * d->change.high);
        page_cellf(&out, "%.3g", d->p);
        page_cellf(&out, "%d", d->n);
        page_row_end(&out);
    }
    page_table_end(&out);
    str_adds(&out, "<div class=\"paper\">\n");
    report_svg(names, sums, 2, &out);
    str_adds(&out, "</div>\n");
    page_end(&out);
    return fs_write_atomic(path, out.p, out.len, e);
}

static enum status compare(const char *a, const char *b, bool json, const char *output, struct err *e) {
    struct arena arena = ARENA_INIT;
    struct summary x = {0}, y = {0};
    struct comparison c;
    CLEANUP_STR struct str s = STR_INIT;
    const char *const names[] = {a, b};
    const struct summary *const sums[] = {&x, &y};
    enum status st = report_load(a, &arena, &x, e);
    if (st == ST_OK) st = report_load(b, &arena, &y, e);
    if (st == ST_OK) st = summary_compare(&x, &y, &c, e);
    if (st == ST_OK && json)
        report_comparison_json(&c, &s);
    else if (st == ST_OK)
        report_comparison(&c, a, b, false, &s);
    if (st == ST_OK) printf("%s%s", str_c(&s), json ? "\n" : "");
    if (st == ST_OK && output)
        st = (str_has_suffix(output, ".md") ? write_comparison : write_comparison_page)(output, &c, names, sums, e);
    summary_free(&x);
    summary_free(&y);
    arena_free(&arena);
    return st;
}

/* --compare A B [--json] [--output FILE.md or FILE.html] */
static int cmd_compare(int argc, char **argv) {
    const char *files[2], *output = NULL;
    int n = 0;
    bool json = false;
    struct err e = {0};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--compare") == 0)
            continue;
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else if (strcmp(argv[i], "--output") == 0 && i + 1 < argc &&
                 (str_has_suffix(argv[i + 1], ".md") || str_has_suffix(argv[i + 1], ".html")))
            output = argv[++i];
        else if (n < 2 && argv[i][0] != '-')
            files[n++] = argv[i];
        else
            return cli_usage(eval_usage);
    }
    if (n != 2) return cli_usage(eval_usage);
    return compare(files[0], files[1], json, output, &e) == ST_OK ? 0 : args_report(&e);
}

int cmd_eval(int argc, char **argv) {
    if (cli_wants_help(argc, argv)) return cli_key_help(eval_usage, eval_schema());
    bool json = false;
    int kept = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--compare") == 0) return cmd_compare(argc, argv);
        if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            argv[kept++] = argv[i];
    }
    struct eval_options o;
    struct config c;
    struct err e = {0};
    struct summary result = {0};
    CLEANUP_STR struct str text = STR_INIT, shown = STR_INIT;
    enum status st = eval_configure(&c, eval_schema(), &o, kept - 1, argv + 1, &e);
    if (st == ST_OK) st = evaluate_run(&c, &o, interrupt_flag(), &result, &text, &e);
    if (st == ST_OK) {
        if (!json) report_text(&result, &shown);
        fputs(str_c(json ? &text : &shown), stdout);
        log_info("%s and its report are written", o.output_path);
    }
    summary_free(&result);
    config_free(&c);
    return st == ST_OK ? 0 : args_report(&e);
}

/* ---- generate -----------------------------------------------------------------------------------------------------*/

int cmd_generate(int argc, char **argv) {
    if (cli_wants_help(argc, argv)) return cli_key_help(generate_usage, generate_schema());
    struct eval_options o;
    struct config c;
    struct err e = {0};
    int written = 0;
    enum status st = eval_configure(&c, generate_schema(), &o, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = generate_run(&c, &o, interrupt_flag(), &written, &e);
    if (st == ST_OK) log_info("%s/%s: %d new kernels", o.runs_dir, o.run_name, written);
    config_free(&c);
    return st == ST_OK ? 0 : args_report(&e);
}
