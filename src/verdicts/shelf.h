/* shelf: the problems that requests may name, by source and key. Any thread may ask. */
#ifndef KERNELRL_VERDICTS_SHELF_H
#define KERNELRL_VERDICTS_SHELF_H

#include "problem/problem.h"
#include "verdicts/ask.h"

struct shelf;
/* any_source: requests may name sources that were not loaded before. max_factor: of KEY@FACTOR; 0: any. */
struct shelf *shelf_open(bool any_source, int max_factor);
void shelf_close(struct shelf *s); /* NULL is fine */
/* Loads a source (NULL: the usual one), unless it is there. Errors as problem_set_load. */
enum status shelf_load(struct shelf *s, const char *source, struct err *e) MUST_USE;
/* The problems of a source that is there; NULL: it is not. */
const struct problem_set *shelf_set(struct shelf *s, const char *source);
/* Finds a problem as problem_named() does, but never in a file. *out lives as long as the shelf. */
bool shelf_find(struct shelf *s, const char *source, const char *key, const struct problem **out,
                struct verdict_refusal *why) MUST_USE;
/* Finds the problem with this text, blanks around it aside. *source is where it is from (NULL: the usual one) and lives
 * as long as the shelf. NULL: none has it. */
const struct problem *shelf_find_text(struct shelf *s, const char *code, const char **source);

#endif
