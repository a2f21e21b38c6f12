/* verify_run: folders of KernelBench generations, and baseline times, in KernelBench's files. */
#ifndef KERNELRL_RL_EVALUATE_JUDGE_FILES_H
#define KERNELRL_RL_EVALUATE_JUDGE_FILES_H

#include "base/err.h"
#include "base/str.h"
#include "rl/rollout/rollout.h"
#include "verify/pool/pool.h"
#include "verify/verify.h"

enum { VERIFY_LEVELS = 9 };

struct verify_run {
    const char *run_dir;                /* holds level_L_problem_P_sample_S_kernel.py (.c, .cu); results go there too */
    const char *source;                 /* of problems; NULL: default */
    int level[VERIFY_LEVELS], n_levels; /* 0: all that are there */
    const char *baseline;               /* a baseline timing file for the ratios; NULL: eager, as measured beside */
    const char *out;                    /* baseline: where to write */
    const char *compile;                /* baseline: torch.compile's mode ("default", ...); NULL: eager */
    int pass_k[8], n_pass_k;
    const struct rollout_params *weights; /* rewards are given by these; NULL: none are */
    struct str *json;                     /* what is found is appended as one JSON document; NULL: it is printed */
    struct verify_options o;
    struct pool_options pool; /* hosts that judge; none: this process does */
};

/* Judges what is not yet in verdicts.jsonl, and writes eval_results.json (KernelBench's layout), verdicts.jsonl and,
 * with several samples a problem, pass_at_k_results.json; of several levels eval_results_level_L.json and
 * pass_at_k_results_level_L.json. Prints the verdicts and a summary for each level and for all of them. Killed at any
 * time, it goes on where it was. ST_INVALID when there is no file of a level that was asked for. */
enum status verify_run_dir(const struct verify_run *r, struct err *e) MUST_USE;
/* Times the reference of every problem of the levels and writes KernelBench's baseline layout, merged into the file. */
enum status verify_baseline(const struct verify_run *r, struct err *e) MUST_USE;

#endif
