/* unicode: UTF-8 well-formedness and NFC, as far as tokenizers need them. Internal to text. */
#ifndef KERNELRL_UNICODE_H
#define KERNELRL_UNICODE_H

#include "base/str.h"

/* Bytes of the well-formed UTF-8 character at p[0..n), or 0 when there is none (RFC 3629: no surrogates, no overlong
 * forms, at most U+10FFFF). */
size_t utf8_char_len(const char *p, size_t n);
/* Bytes at the start of p[0..n) that are well-formed UTF-8; n when all are. */
size_t utf8_valid_prefix(const char *p, size_t n);
/* True: the well-formed character p[0..n) has the property White_Space. */
bool unicode_is_space(const char *p, size_t n);
/* Any bytes to UTF-8, one after another: what is ill-formed becomes U+FFFD, one for each maximal subpart (Unicode 15,
 * section 3.9, the practice of the W3C). Begins as {0}. */
struct utf8_repair {
    char held[4]; /* of a character that is not complete */
    uint8_t n, need, lo, hi;
};
/* True: byte b begins a character behind those before it; false: it goes on with one. */
bool utf8_repair_begins(const struct utf8_repair *r, char b);
/* Appends what is complete with byte b; out may be NULL. */
void utf8_repair_add(struct utf8_repair *r, char b, struct str *out);
/* No byte follows: appends U+FFFD for a character that is not complete. */
void utf8_repair_end(struct utf8_repair *r, struct str *out);
/* The lower bound of what can change under NFC: true when every character is below U+0300, where NFC is the identity.
 * p must be well-formed. */
bool unicode_is_plain(const char *p, size_t n);
/* Appends the canonical composition (UAX #15, NFC) of the well-formed text p[0..n), as Hugging Face's tokenizers make
 * it: marks that are younger than Unicode 9 have no class. Linear but for the stable sort of runs of combining marks,
 * so hostile text costs n log n at worst. */
void unicode_nfc(const char *p, size_t n, struct str *out);

#endif
