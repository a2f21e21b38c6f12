#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "io/config.h"

int cli_wrong(const char *usage, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fputs("kernelrl: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return cli_usage(usage);
}

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

bool cli_dtype(const char *value) {
    if (strcmp(value, "auto") == 0 || strcmp(value, "f32") == 0 || strcmp(value, "bf16") == 0) return true;
    fprintf(stderr, "kernelrl: --dtype: expected auto, f32 or bf16, got \"%s\"\n", value);
    return false;
}
