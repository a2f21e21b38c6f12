/* kernelrl train, kernelrl sft: configuration in, exit code out. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/interrupt.h"
#include "rl/loop.h"
#include "rl/sft.h"

static bool wants_help(int argc, char **argv) {
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

static int print_help(const char *usage, const struct config_schema *schema) {
    struct str s = STR_INIT;
    struct err e;
    if (config_help(schema, NULL, &s, &e) != ST_OK) return cli_report(&e);
    printf("usage: kernelrl %s\n\n%s", usage, str_c(&s));
    str_free(&s);
    return 0;
}

int cmd_train(int argc, char **argv) {
    static const char usage[] = "train [--config FILE]... [key=value]...";
    if (wants_help(argc, argv)) return print_help(usage, &train_schema);
    struct train_options o;
    struct config c;
    struct err e = {0};
    struct str yaml = STR_INIT;
    config_init(&c, &train_schema, &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = train_options_finish(&c, &o, &e);
    if (st == ST_OK) {
        config_dump(&c, &yaml);
        st = train_run(&o, str_c(&yaml), cli_interruptible(), &e);
    }
    str_free(&yaml);
    config_free(&c);
    return st == ST_OK ? 0 : cli_report(&e);
}

int cmd_sft(int argc, char **argv) {
    static const char usage[] = "sft [--config FILE]... data=ROWS.jsonl output=DIR [key=value]...";
    if (wants_help(argc, argv)) return print_help(usage, &sft_schema);
    struct sft_options o;
    struct config c;
    struct err e = {0};
    config_init(&c, &sft_schema, &o);
    enum status st = config_args(&c, argc - 1, argv + 1, &e);
    if (st == ST_OK) st = sft_options_check(&c, &o, &e);
    if (st == ST_OK) st = sft_run(&o, cli_interruptible(), &e);
    config_free(&c);
    return st == ST_OK ? 0 : cli_report(&e);
}
