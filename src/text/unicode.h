/* unicode: UTF-8 well-formedness and NFC, as far as tokenizers need them. Internal to text. */
#ifndef KERNELRL_UNICODE_H
#define KERNELRL_UNICODE_H

#include "base/str.h"

/* Bytes of the well-formed UTF-8 character at p[0..n), or 0 when there is none (RFC 3629: no surrogates, no overlong
 * forms, at most U+10FFFF). */
size_t utf8_char_len(const char *p, size_t n);
/* Bytes at the start of p[0..n) that are well-formed UTF-8; n when all are. */
size_t utf8_valid_prefix(const char *p, size_t n);
/* Whether the well-formed character p[0..n) has the property White_Space. */
bool unicode_is_space(const char *p, size_t n);
/* The lower bound of what can change under NFC: true when every character is below U+0300, where NFC is the identity.
 * p must be well-formed. */
bool unicode_is_plain(const char *p, size_t n);
/* Appends the canonical composition (UAX #15, NFC) of the well-formed text p[0..n), as Hugging Face's tokenizers make
 * it: marks that are younger than Unicode 9 have no class. Linear but for the stable sort of runs of combining marks,
 * so hostile text costs n log n at worst. */
void unicode_nfc(const char *p, size_t n, struct str *out);

#endif
