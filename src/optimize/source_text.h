/* source_text: what an answer's source says of itself: the plan in its first comment, and its normal form, in which two
 * answers that differ by blanks, comments and names alone are one. */
#ifndef KERNELRL_OPTIMIZE_SOURCE_TEXT_H
#define KERNELRL_OPTIMIZE_SOURCE_TEXT_H

#include "base/hash.h"
#include "base/str.h"

/* The SHA-256 of the normal form: comments and blanks are gone, and identifiers that are used nowhere but in this text
 * (those that are not in `kept`, a text with the names that mean something outside: the prototype, the module) go by
 * the order in which they appear. Numbers and strings stay. is_python: blanks at the start of a line count. */
struct digest source_normal(const char *source, const char *kept, bool is_python);

/* The plan of an answer: what stands behind "plan:" in a comment of its first lines, trimmed. malloc'ed; NULL: none. */
char *source_plan(const char *source);

#endif
