/* The program's entry: finds the command and hands over. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/dotenv.h"
#include "base/str.h"
#include "cli/cli.h"
#include "rl/options.h"

static const struct {
    const char *name, *help;
    int (*fn)(int, char **);
} commands[] = {
#define X(fn, name, help) {name, help, fn},
    COMMAND_LIST(X)
#undef X
};

int cmd_version(int argc, char **argv) {
    (void)argc;
    (void)argv;
    printf("kernelrl %s\n", KERNELRL_VERSION);
    return 0;
}

static void usage(FILE *f) {
    fprintf(f, "usage: kernelrl COMMAND [--config FILE]... [key=value]... [--flag]\n\ncommands:\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) fprintf(f, "  %-16s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nkernelrl COMMAND --help says more.\n");
}

/* kernelrl help KEY: what a key of train, or of sft, means. */
static int help_key(const char *key) {
    static const struct config_schema *const schemas[] = {&train_schema, &sft_schema};
    struct str s = STR_INIT;
    struct err e;
    for (size_t i = 0; i < ARRAY_LEN(schemas); i++) {
        if (config_help(schemas[i], key, &s, &e) != ST_OK) continue;
        printf("%s%s", i == 0 ? "" : "sft: ", str_c(&s));
        str_free(&s);
        return 0;
    }
    fprintf(stderr, "kernelrl: help: unknown command or key \"%s\"\n\n", key);
    usage(stderr);
    return 2;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    struct err e;
    if (dotenv_load(".env", &e) != ST_OK) return cli_report(&e);
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (strcmp(argv[1], "help") == 0 && argc == 2)) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) return cmd_version(0, NULL);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].fn(argc - 1, argv + 1);
    if (strcmp(argv[1], "help") == 0) { /* kernelrl help COMMAND, or KEY */
        char *help[] = {argv[2], (char[]){"--help"}, NULL};
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            if (strcmp(argv[2], commands[i].name) == 0) return commands[i].fn(2, help);
        return help_key(argv[2]);
    }
    fprintf(stderr, "kernelrl: unknown command \"%s\"\n\n", argv[1]);
    usage(stderr);
    return 2;
}
