/* tensor: the Tensor message, which stands in requests and in results. Internal to wire. */
#ifndef KERNELRL_WIRE_TENSOR_H
#define KERNELRL_WIRE_TENSOR_H

#include "wire/proto.h"
#include "wire/wire.h"

/* What a reader of a message has: where its results lie, and how many cells more it may make. */
struct wire_memory {
    struct arena *arena;
    int64_t cells_left;
};
struct wire_memory wire_memory_make(struct arena *a);

/* Reads a Tensor, dense or CSR. */
enum status wire_tensor_read(struct wire_memory *w, struct proto m, struct wire_tensor *out, struct err *e) MUST_USE;
/* Appends a dense Tensor as a field. */
void wire_tensor_put(struct str *out, uint32_t number, const struct wire_tensor *t);
/* Copies a field of bytes that are numbers of `size` bytes each; *n is how many. They count as cells. */
enum status wire_numbers(struct wire_memory *w, const struct proto *m, const struct proto_field *f, size_t size,
                         void **out, int64_t *n, struct err *e) MUST_USE;

#endif
