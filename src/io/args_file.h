/* args_file: a YAML file that holds flags of a command: the same names, with underscores. */
#ifndef KERNELRL_IO_ARGS_FILE_H
#define KERNELRL_IO_ARGS_FILE_H

#include "base/args.h"

struct args_file { /* a command line; owned until args_file_free */
    int argc;
    char **argv; /* argv[0] is the command */
    int n_texts;
    char **texts;
};
/* Puts the flags of a file in front of the words of a command line. What is given there, too, is left out of the
 * file's, but for flags that may be repeated. A key with a list is a flag that is repeated; true and false are for
 * flags without a value. Values are checked by args_parse() afterwards. ST_IO or ST_CONFIG, which names the place in
 * the file. */
enum status args_file_load(const struct args_command *c, const char *path, const struct args *given, int argc,
                           char **argv, struct args_file *out, struct err *e) MUST_USE;
void args_file_free(struct args_file *f);

#endif
