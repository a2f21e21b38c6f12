/* dotenv: environment variables from a file. */
#ifndef KERNELRL_DOTENV_H
#define KERNELRL_DOTENV_H

#include "base/err.h"

/* Sets the variables of a file's lines NAME=VALUE that are not set yet. Blank lines and lines that begin with # are
 * passed over, and so is `export ` in front. A value may stand in single or double quotes, with no escapes in them.
 * Without quotes it ends before " #". A missing file is fine. ST_PARSE names file and line, never a value. Call it
 * before threads start. */
enum status dotenv_load(const char *path, struct err *e) MUST_USE;

#endif
