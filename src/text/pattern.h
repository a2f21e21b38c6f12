/* pattern: a regular expression as tokenizer.json has it, for Oniguruma in Ruby's syntax, in the terms of PCRE2.
 * Internal to text. */
#ifndef KERNELRL_PATTERN_H
#define KERNELRL_PATTERN_H

#include "base/err.h"
#include "base/str.h"

/* Appends the pattern, to be compiled with PCRE2_UTF, PCRE2_UCP and PCRE2_MULTILINE. What the two engines read in
 * different ways is spelled out: \s as the White_Space property, \w and \b by what Oniguruma takes for a word, \h as a
 * hexadecimal digit, a script's name by the script alone. ST_UNSUPPORTED: what cannot be spelled so, such as a class
 * within a class; the message quotes it. */
enum status pattern_translate(const char *pattern, struct str *out, struct err *e) MUST_USE;
/* Appends a pattern that matches this text and nothing else. */
void pattern_quote(const char *text, struct str *out);

#endif
