/* worker_constants: what the verifier and its Python worker must agree on. Each line `#define NAME VALUE` also becomes
 * a line of worker/kernelrl_worker/constants.py, which tools/worker_constants writes: values are numbers and strings
 * that mean the same in C and in Python. tools/tidy says when the module has to be written again. */
#ifndef KERNELRL_VERIFY_WORKER_CONSTANTS_H
#define KERNELRL_VERIFY_WORKER_CONSTANTS_H

/* ---- messages (docs/formats.md, "Worker protocol") ---- */

#define PROTOCOL 1
#define SOCKET_FD 3                  /* the worker's end */
#define MAX_MESSAGE_BYTES (64 << 20) /* either way */
#define MAX_MESSAGE_FDS 4            /* descriptors that travel with one message */
/* What a reply that is not ok is about. */
#define KIND_PROBLEM "problem"
#define KIND_MEMORY "memory"
#define KIND_IMPORT "import"
#define KIND_INTERNAL "internal"
/* What the referee says of a call's outputs. */
#define WORD_EQUAL "equal"
#define WORD_DIFFERENT "different"
#define WORD_NOT_FINITE "not_finite"
#define WORD_INPUTS_CHANGED "inputs_changed"
#define WORD_UNREACHABLE "unreachable"
/* The first of the lanes of torch/case.h, into which no answer can write. */
#define REFERENCE_LANE 0

/* ---- families of inputs (families.py says what they are) ---- */

#define FAMILY_SHIPPED "shipped"
#define FAMILY_SIGNED "signed"
#define FAMILY_SCALED "scaled"
#define FAMILY_SMALL "small"
#define FAMILY_NEGATED "negated"
#define FAMILY_OFFSET "offset"
#define FAMILY_UNIT "unit"
#define FAMILY_SPIKES "spikes"
#define FAMILY_PROBE "probe"
#define FAMILY_TOUCHED "touched"

/* ---- when an output is right (compare.h) ---- */

#define TOLERANCE_SINGLE 1e-4 /* of float64 and float32 */
#define TOLERANCE_HALF 1e-2   /* of float16 and bfloat16 */
#define TOLERANCE_NOISES 10   /* times the reference's own error, where that is more */
#define ROW_ELEMENTS 64       /* that a row has at least, where there are so many */
#define ZERO_SCALE 1e-3       /* of an output that is zero everywhere */
#define FLOOR_SINGLE 1e-2     /* share of the rows' median scale that each row's scale has at least */
#define FLOOR_HALF 1.0        /* half types round by about their tolerance */
#define NOISE_MOST 1e-3       /* a family on which a CPU's reference is this far from float64 tests nothing */

#endif
