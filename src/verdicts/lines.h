/* lines: verdicts for who talks through pipes: a request a line comes in, its verdict goes out as a line as soon as it
 * is there. */
#ifndef KERNELRL_VERDICTS_LINES_H
#define KERNELRL_VERDICTS_LINES_H

#include <stdio.h>

#include "verdicts/desk.h"

enum { LINES_AHEAD = 1024 }; /* requests that are read and have no verdict yet */

struct lines_counts {
    int64_t verdicts, missing, refused;
};
/* Reads requests from `in` to its end and writes an answer for each to `out`, in the order in which they come about.
 * ST_IO: nobody reads the answers, or the requests cannot be read. */
enum status lines_run(struct desk *d, FILE *in, FILE *out, struct lines_counts *counts, struct err *e) MUST_USE;

#endif
