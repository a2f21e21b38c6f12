/* verify_run: folders of KernelBench generations, and baseline times, in KernelBench's files. */
#ifndef KERNELRL_RL_EVALUATE_JUDGE_FILES_H
#define KERNELRL_RL_EVALUATE_JUDGE_FILES_H

#include "base/err.h"
#include "verify/verify.h"

struct verify_run {
    const char *run_dir; /* holds level_L_problem_P_sample_S_kernel.py (.c, .cu); results go there too */
    const char *source;  /* of problems; NULL: default */
    int level;
    const char *baseline; /* a baseline timing file for the ratios; NULL: eager as measured beside each answer */
    const char *out;      /* baseline: where to write */
    const char *compile;  /* baseline: torch.compile's mode ("default", ...); NULL: eager */
    int pass_k[8], n_pass_k;
    struct verify_options o;
};

/* Judges what is not yet in verdicts.jsonl, and writes eval_results.json (KernelBench's layout), verdicts.jsonl and,
 * with several samples a problem, pass_at_k_results.json. Prints a summary. Killed at any time, it goes on where it
 * was. */
enum status verify_run_dir(const struct verify_run *r, struct err *e) MUST_USE;
/* Times the reference of every problem of a level and writes KernelBench's baseline layout, merged into the file. */
enum status verify_baseline(const struct verify_run *r, struct err *e) MUST_USE;

#endif
