/* kernelrl optimize: a module in, a faster one out. */
#include <stdio.h>
#include <string.h>

#include "base/fs.h"
#include "base/interrupt.h"
#include "base/str.h"
#include "cli/cli.h"
#include "optimize/optimize.h"

static const char usage[] =
    "optimize FILE.py|FOLDER budget=TIME|verdicts=N [output_path=DIR] [--config FILE]... [key=value]...\n"
    "       kernelrl optimize source=PROBLEMS [level=N] budget=TIME|verdicts=N [key=value]...";

/* Takes the one argument that is a Python file out of argv; NULL: there is none. *n falls. */
static const char *take_file(int *n, char **argv) {
    const char *file = NULL;
    int kept = 1;
    for (int i = 1; i < *n; i++) {
        const bool is_file = argv[i][0] != '-' && !strchr(argv[i], '=') && strncmp(argv[i - 1], "--", 2) != 0;
        if (is_file && !file)
            file = argv[i];
        else
            argv[kept++] = argv[i];
    }
    *n = kept;
    return file;
}

int cmd_optimize(int argc, char **argv) {
    if (cli_wants_help(argc, argv)) return cli_key_help(usage, optimize_schema());
    struct optimize_options o = {0};
    struct config c;
    struct err e = {0};
    struct optimized found;
    const char *file = take_file(&argc, argv);
    config_init(&c, optimize_schema(), &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK && file && fs_is_dir(file)) { /* a folder is a source of problems */
        CLEANUP_STR struct str source = STR_INIT;
        str_addf(&source, "source=%s", file);
        st = config_set(&c, source.p, &e);
        file = NULL;
    }
    const bool has_source = st == ST_OK && strcmp(config_source(&c, "dataset_builder.source"), "default") != 0;
    const bool has_level = st == ST_OK && strcmp(config_source(&c, "dataset_builder.level"), "default") != 0;
    if (st == ST_OK && !file && !has_source && !has_level) {
        config_free(&c);
        return cli_usage(usage);
    }
    if (st == ST_OK && file && has_source)
        st = config_reject(&c, "dataset_builder.source", &e, "%s is what is made faster: expected no source", file);
    if (st == ST_OK) st = optimize_options_finish(&c, &o, &e);
    if (st == ST_OK) st = optimize_run(&c, &o, file, interrupt_flag(), &found, &e);
    if (st == ST_OK) printf("%s; %s/report.md\n", found.last_line, o.output_path);
    config_free(&c);
    if (st != ST_OK) return args_report(&e);
    return found.solved > 0 ? 0 : 1;
}
