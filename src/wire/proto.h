/* proto: the parts of protobuf's wire format that three messages need: fields one after another, and their writing. */
#ifndef KERNELRL_WIRE_PROTO_H
#define KERNELRL_WIRE_PROTO_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

enum proto_wire { PROTO_VARINT = 0, PROTO_FIXED64 = 1, PROTO_BYTES = 2, PROTO_FIXED32 = 5 };

/* A message that is being read; `name` stands in errors. */
struct proto {
    const uint8_t *p, *begin, *end;
    const char *name;
};
struct proto_field {
    uint32_t number;
    enum proto_wire wire;
    uint64_t value;       /* of a varint or of a fixed number, whose bits these are */
    const uint8_t *bytes; /* [n] of PROTO_BYTES */
    size_t n;
};
struct proto proto_message(const void *bytes, size_t n, const char *name);
/* Reads the next field; *there is false at the end. ST_PARSE: a number or a length leads out of the message, a field
 * has the number 0, or is a group. */
enum status proto_next(struct proto *m, struct proto_field *f, bool *there, struct err *e) MUST_USE;
/* ST_PARSE: the field has another wire type. */
enum status proto_expect(const struct proto *m, const struct proto_field *f, enum proto_wire wire,
                         struct err *e) MUST_USE;
enum status proto_submessage(const struct proto *m, const struct proto_field *f, const char *name, struct proto *out,
                             struct err *e) MUST_USE;
/* A text without a zero byte, copied. ST_PARSE: it is not UTF-8. */
enum status proto_text(const struct proto *m, const struct proto_field *f, struct arena *a, const char **out,
                       struct err *e) MUST_USE;
/* ST_PARSE: it does not fit 32 bits. */
enum status proto_i32(const struct proto *m, const struct proto_field *f, int32_t *out, struct err *e) MUST_USE;
enum status proto_bool(const struct proto *m, const struct proto_field *f, bool *out, struct err *e) MUST_USE;
enum status proto_f64(const struct proto *m, const struct proto_field *f, double *out, struct err *e) MUST_USE;
/* Adds the numbers of a field of repeated int64, packed or one by one, to out[*n...most). ST_PARSE: more than that. */
enum status proto_i64s(const struct proto *m, const struct proto_field *f, int64_t *out, int most, int *n,
                       struct err *e) MUST_USE;

void proto_put_varint(struct str *out, uint32_t number, uint64_t value);
void proto_put_f64(struct str *out, uint32_t number, double value);
void proto_put_bytes(struct str *out, uint32_t number, const void *bytes, size_t n);
void proto_put_text(struct str *out, uint32_t number, const char *text);
void proto_put_i64s(struct str *out, uint32_t number, const int64_t *v, int n); /* packed */

#endif
