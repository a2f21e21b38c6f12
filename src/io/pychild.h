/* pychild: a Python script of ours (worker/kernelrl_worker) as a child that prints to standard output. It is for what
 * only Python can do, and what needs no conversation. */
#ifndef KERNELRL_PYCHILD_H
#define KERNELRL_PYCHILD_H

#include "base/err.h"
#include "base/str.h"

/* A script ends with this status when its Python lacks what it needs. Then the next Python is tried. */
enum { PYCHILD_LACKING = 3 };

/* Runs SCRIPT (a file of worker/kernelrl_worker) with args (ended by NULL), and appends what it prints. The Python is
 * KERNELRL_PYTHON, else the first of ./.venv/bin/python, python3 and /usr/bin/python3 that has what the script needs.
 * ST_WORKER when none has (the message names those that were tried, and what they lack: `needs`), ST_PARSE when the
 * script fails (with the last line of its standard error), ST_INVALID when it prints more than max_bytes. After an
 * error out is as it was. what: stands in front of messages. */
enum status pychild_run(const char *script, const char *const *args, const char *what, const char *needs,
                        size_t max_bytes, struct str *out, struct err *e) MUST_USE;

#endif
