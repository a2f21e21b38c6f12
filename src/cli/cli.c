#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "io/config.h"

int cli_usage(const char *usage) {
    fprintf(stderr, "usage: kernelrl %s\n", usage);
    return 2;
}

bool cli_wants_help(int argc, char **argv) {
    return argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
}

int cli_key_help(const char *usage, const struct config_schema *schema) {
    CLEANUP_STR struct str s = STR_INIT;
    struct err e;
    if (config_help(schema, NULL, &s, &e) != ST_OK) return args_report(&e);
    printf("usage: kernelrl %s\n\n%s", usage, str_c(&s));
    return 0;
}
