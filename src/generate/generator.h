/* generator: an endless stream of new problems with known answers. A problem is a random composition of operators,
 * shapes and constants, written as a KernelBench module in one of many surface forms. It comes with correct answers of
 * different quality, one for each style, in C (docs/formats.md, "Native ABI"), Triton and CUDA. Everything is a pure
 * function of (seed, index). The operator sequences of the built-in test problems never occur.
 *
 * Read in this order: generate/internal.h, operators.c (the operators and their C snippets), build.c and random.c (what
 * is drawn), text.c and write_c.c (answers in C), write_triton.c (answers in Triton), write_cuda.c (in CUDA), break.c
 * (wrong answers). */
#ifndef KERNELRL_GENERATE_GENERATOR_H
#define KERNELRL_GENERATE_GENERATOR_H

#include "base/home.h"
#include "problem/problem.h"

/* Answer styles. X(name, fused, parallel, simd, fast, literal, share):
 *   fused     one fused loop nest, or one for each operator
 *   parallel  OpenMP, or serial
 *   simd      vectorised reductions, or plain ones
 *   fast      polynomial exp/tanh/erf/log and blocked matrix products, or libm and dot products
 *   literal   sizes written as numbers, with products worked out, or by name
 *   share     how often, in percent, a corpus draws the style
 * As in programs at large, plain code is common, so are magic numbers, and tuned code is rare. The first line of an
 * answer states these choices ("// plan: fused, parallel, simd, fast math, names"). Styles may lead to the same code;
 * then the last of them in this order gives it its name and plan. */
#define GEN_STYLE_LIST(X)                        \
    X(naive_numbers, 0, 0, 0, 0, 1, 20)          \
    X(parallel_numbers, 0, 1, 0, 0, 1, 12)       \
    X(fused_numbers, 1, 0, 0, 0, 1, 14)          \
    X(fused_parallel_numbers, 1, 1, 0, 0, 1, 10) \
    X(naive, 0, 0, 0, 0, 0, 8)                   \
    X(parallel, 0, 1, 0, 0, 0, 5)                \
    X(parallel_fast, 0, 1, 1, 1, 0, 5)           \
    X(fused, 1, 0, 0, 0, 0, 6)                   \
    X(fused_simd, 1, 0, 1, 0, 0, 7)              \
    X(fused_parallel, 1, 1, 0, 0, 0, 4)          \
    X(fused_parallel_simd, 1, 1, 1, 0, 0, 4)     \
    X(fused_parallel_fast, 1, 1, 1, 1, 0, 5)

enum gen_style {
#define X(name, fused, parallel, simd, fast, literal, share) GEN_STYLE_##name,
    GEN_STYLE_LIST(X)
#undef X
        GEN_STYLES
};
const char *gen_style_name(enum gen_style s); /* "fused_parallel_fast" */
int gen_style_share(enum gen_style s);        /* In percent. */
bool gen_style_literal(enum gen_style s);

/* Styles of Triton answers. X(name, fused, block, literal, share): whether operators around a norm or a reduction are
 * in its kernel or have one each; how many elements a program takes of what is not cut into rows; whether sizes are
 * asked of the tensors or written as numbers, with grids worked out. */
#define GEN_TRITON_STYLE_LIST(X)            \
    X(separate_numbers, 0, 1024, 1, 24)     \
    X(separate_small_numbers, 0, 64, 1, 16) \
    X(fused_numbers, 1, 1024, 1, 14)        \
    X(separate_small, 0, 64, 0, 14)         \
    X(separate, 0, 1024, 0, 12)             \
    X(fused_small, 1, 64, 0, 10)            \
    X(fused, 1, 1024, 0, 10)

enum gen_triton_style {
#define X(name, fused, block, literal, share) GEN_TRITON_##name,
    GEN_TRITON_STYLE_LIST(X)
#undef X
        GEN_TRITON_STYLES
};
const char *gen_triton_style_name(enum gen_triton_style s); /* "fused_small" */
int gen_triton_style_share(enum gen_triton_style s);        /* In percent. */

/* Styles of native CUDA answers. X(name, fused, literal, share): whether there is one kernel or one for each operator;
 * whether sizes are written by name or as numbers, with products worked out. */
#define GEN_CUDA_STYLE_LIST(X)    \
    X(separate_numbers, 0, 1, 30) \
    X(fused_numbers, 1, 1, 20)    \
    X(separate, 0, 0, 25)         \
    X(fused, 1, 0, 25)

enum gen_cuda_style {
#define X(name, fused, literal, share) GEN_CUDA_##name,
    GEN_CUDA_STYLE_LIST(X)
#undef X
        GEN_CUDA_STYLES
};
const char *gen_cuda_style_name(enum gen_cuda_style s); /* "fused_numbers" */
int gen_cuda_style_share(enum gen_cuda_style s);        /* In percent. */

/* What generator_break() does to an answer. X(name, what the verifier should find). */
#define GEN_BREAK_LIST(X)                        \
    X(undeclared_name, "compile error")          \
    X(missing_semicolon, "compile error")        \
    X(missing_brace, "compile error")            \
    X(wrong_signature, "compile error")          \
    X(missing_operator, "wrong output")          \
    X(wrong_constant, "wrong output")            \
    X(wrong_sign, "wrong output")                \
    X(missing_reset, "wrong output or NaN")      \
    X(missing_tail, "wrong or unwritten output") \
    X(unwritten_row, "unwritten output")         \
    X(out_of_bounds, "write outside the output") \
    X(crash, "crash")                            \
    X(not_a_number, "NaN")                       \
    X(wrong_size, "wrong or unwritten output")

enum gen_break {
#define X(name, what) GEN_BREAK_##name,
    GEN_BREAK_LIST(X)
#undef X
        GEN_BREAKS
};
const char *gen_break_name(enum gen_break b); /* "missing_semicolon" */

/* A problem whose texts are longer than this is drawn anew. */
enum { GEN_MAX_CODE_BYTES = 1200, GEN_MAX_ANSWER_BYTES = 2500, GEN_MAX_TRITON_BYTES = 4000 };

struct gen_item {
    struct problem problem; /* Its key is "generated/SEED_INDEX", its split train. */
    /* C translation units, one for each style. All are correct. */
    const char *answers[GEN_STYLES];
    /* Modules with Triton kernels, one for each style. NULL when no operator has one, or when the text is too long. */
    const char *triton[GEN_TRITON_STYLES];
    /* CUDA units, one for each style. NULL when an operator has no kernel there, when the style has no meaning for the
     * program, or when the text is too long. */
    const char *cuda[GEN_CUDA_STYLES];
};

struct generator;
/* Reads the operator sequences to leave out from the test rows of `index_path` (in the format of problems/index.jsonl).
 * NULL means the built-in set's index under home_dir(). Errors name file and line. A generator does not change
 * afterwards, so threads may share one. */
enum status generator_open(const char *index_path, struct generator **out, struct err *e) MUST_USE;
void generator_close(struct generator *g); /* g may be NULL. */
/* Return how many sequences are left out, and whether OPS is one of them. */
size_t generator_excluded_count(const struct generator *g);
bool generator_excludes(const struct generator *g, const char *ops);

/* Makes the index-th problem of the stream `seed`, with its answers. Strings live in `a`. It cannot fail. */
void generator_make(const struct generator *g, uint64_t seed, uint64_t index, struct arena *a, struct gen_item *out);

/* Makes a problem and its answers from a recipe, for the built-in set and tests. A recipe is a head, which gives the
 * input's shape, and a sequence of operators with their arguments, such as "rows 256x512 linear:256 gelu softmax" or
 * "image 8x16x64x64 conv2d:32,3,1,1 relu". `seed` picks the surface form. Errors name the word that is wrong. */
enum status generator_from_recipe(const char *recipe, uint64_t seed, struct arena *a, struct gen_item *out,
                                  struct err *e) MUST_USE;

/* Makes a problem of given operators, and draws its sizes, constants and surface form from the seed. `text` is a shape
 * (rows, seq, image, signal) and the operators' names in their order: "rows linear gelu softmax". Its key is
 * "composed/" and what it was made of. ST_PARSE names the word that is unknown. ST_INVALID says why there is no such
 * problem: an operator does not fit its input, results are constant, a text is too long, or the sequence is a test
 * problem's. */
enum status generator_compose(const struct generator *g, const char *text, uint64_t seed, struct arena *a,
                              struct gen_item *out, struct err *e) MUST_USE;
/* Gives the names of all operators, in the order of their list. Returns their number. */
int generator_operators(const char *const **out);

/* Returns a realistic wrong variant of a right answer, in `a`. NULL when the answer has nothing that KIND could break.
 * It is a pure function of its arguments. */
char *generator_break(const char *answer, enum gen_break kind, uint64_t seed, struct arena *a);

#endif
