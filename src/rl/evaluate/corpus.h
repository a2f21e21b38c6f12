/* corpus: verified answers of the generator -> supervised rows {prompt, completion, renderer} in the formats that
 * reinforcement learning uses: single answers, think + answer, refinement after each kind of failure and after slow
 * answers, and prompts with one to three examples, drawn at random or retrieved from an index as prompt_option: raicl
 * does; and of the roles beside the solver, predicted verdicts and proposed problems. */
#ifndef KERNELRL_RL_EVALUATE_CORPUS_H
#define KERNELRL_RL_EVALUATE_CORPUS_H

#include "policy/prompt.h"
#include "verify/verify.h"

struct corpus_options {
    const char *from;     /* folder with problems.jsonl and answers.jsonl of `problems generate --answers --verify` */
    const char *problems; /* these problems instead, as problem_set_load takes them; NULL: from's */
    const char *answers_path; /* these answers instead; NULL: from's */
    const char *output;       /* rows, .jsonl or .jsonl.zst */
    int64_t seed;
    const struct backend_info *backend; /* what answers are written in; NULL: c */
    bool unverified;                    /* take right answers that no verdict stands beside, too */
    double kernelbench;                 /* share of plain rows whose module is written as KernelBench writes */
    int answers;                        /* single-turn answers a problem, of different styles */
    double think, examples;             /* shares: chance per problem of rows of that kind */
    double refine;                      /* refinement rows a problem; the fraction comes by chance */
    const char *index;          /* folder of build-rag-index, by the lexical embedding; NULL: no retrieved rows */
    double retrieved;           /* rows with retrieved examples a problem; the fraction comes by chance */
    double verdicts, proposals; /* chance per problem of a verifier's and a proposer's row (roles_text.h) */
};
struct row_counts {
    int64_t problems, single, think, refine, examples, retrieved, verdicts, proposals, skipped;
    int64_t shown, shown_same; /* retrieved examples in prompts, and those of the answer's own plan */
};
/* The verifier gives each problem's prototype; NULL for backends without prototypes. */
enum status corpus_build(const struct corpus_options *o, struct verifier *v, struct row_counts *out,
                         struct err *e) MUST_USE;

#endif
