/* The program's entry: finds the command and hands over. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"

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

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
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
    if (strcmp(argv[1], "help") == 0) { /* kernelrl help COMMAND */
        char *help[] = {argv[2], (char[]){"--help"}, NULL};
        for (size_t i = 0; i < ARRAY_LEN(commands); i++)
            if (strcmp(argv[2], commands[i].name) == 0) return commands[i].fn(2, help);
        fprintf(stderr, "kernelrl: help: unknown command \"%s\"\n\n", argv[2]);
        usage(stderr);
        return 2;
    }
    fprintf(stderr, "kernelrl: unknown command \"%s\"\n\n", argv[1]);
    usage(stderr);
    return 2;
}
