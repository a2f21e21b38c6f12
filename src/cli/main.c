/* The program's entry: finds the command and hands over. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/dotenv.h"
#include "base/str.h"
#include "cli/cli.h"

static const struct {
    const char *name, *help;
    int (*fn)(int, char **);
} commands[] = {
#define X(fn, name, help) {name, help, fn},
    COMMAND_LIST(X)
#undef X
};

static void usage(FILE *f) {
    fprintf(f, "usage: kernelrl COMMAND [--config FILE]... [key=value]... [--flag]\n\ncommands:\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) fprintf(f, "  %-16s %s\n", commands[i].name, commands[i].help);
    fprintf(f, "\nkernelrl help COMMAND says more; kernelrl help KEY explains a key such as learning_rate.\n");
}

/* Returns the exit code; 1 when not all of standard output could be written, other than to a reader who has gone. */
static int finish(int code) {
    errno = 0;
    const bool flushed = fflush(stdout) == 0 && !ferror(stdout);
    const int why = errno;
    struct pollfd out = {.fd = STDOUT_FILENO, .events = POLLOUT};
    if (flushed || (poll(&out, 1, 0) == 1 && (out.revents & POLLERR))) return code;
    fprintf(stderr, "kernelrl: standard output: not all could be written%s%s\n", why ? ": " : "",
            why ? strerror(why) : "");
    return code ? code : 1;
}

static int run(int argc, char **argv) {
    struct err e;
    if (dotenv_load(".env", &e) != ST_OK) return args_report(&e);
    if (argc < 2) {
        usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) return cmd_version(0, NULL);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].fn(argc - 1, argv + 1);
    const char *near = NULL;
    size_t limit = str_near_limit(argv[1]);
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (str_nearer(argv[1], commands[i].name, &limit)) near = commands[i].name;
    fprintf(stderr, "kernelrl: unknown command \"%s\"", argv[1]);
    if (near) fprintf(stderr, "; did you mean \"%s\"?", near);
    fputs(near ? "\n" : "; kernelrl help lists the commands\n", stderr);
    return 2;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    return finish(run(argc, argv));
}
