/* dotenv: environment variables from a file. */
#ifndef KERNELRL_DOTENV_H
#define KERNELRL_DOTENV_H

#include "base/err.h"

/* Sets the variables of a file's lines NAME=VALUE that are not set yet. Blank lines and lines that begin with # are
 * passed over, as is `export ` in front; a value may stand in single or double quotes (no escapes in them), and without
 * quotes ends before " #". A missing file is fine. ST_PARSE names file and line, never a value. Call before threads. */
enum status dotenv_load(const char *path, struct err *e) MUST_USE;

#endif
