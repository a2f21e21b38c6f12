#include "cli/cli.h"

#include <stdio.h>

int cli_report(const struct err *e) {
    fprintf(stderr, "kernelrl: %s\n", e->msg);
    return status_exit_code(e->code);
}

int cli_usage(const char *usage) {
    fprintf(stderr, "usage: kernelrl %s\n", usage);
    return 2;
}
