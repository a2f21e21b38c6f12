/* newer: characters that Unicode got after version 14, which PCRE2 10.42 knows, up to version 16. Internal to text. */
#ifndef KERNELRL_NEWER_H
#define KERNELRL_NEWER_H

#include "base/str.h"

/* Appends text[0..n), which is well-formed, with each of these characters replaced by an older one that a regular
 * expression takes alike: of the same general category, as much Han, Kana or Hangul, and of as many bytes. False, and
 * nothing appended, where there is none of them. */
bool newer_replace(const char *text, size_t n, struct str *out);

#endif
