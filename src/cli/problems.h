/* problems: the parts of `kernelrl problems` that stand in files of their own. */
#ifndef KERNELRL_PROBLEMS_H
#define KERNELRL_PROBLEMS_H

#include "base/args.h"
#include "problem/problem.h"

/* Runs every reference and prints what is wrong with it (worker/kernelrl_worker/check.py); json: a line a problem.
 * timeout_s: of one problem. *bad: problems with a finding. */
enum status problems_check(const struct problem *const *problems, size_t n, double timeout_s, bool json, int *bad,
                           struct err *e) MUST_USE;

/* How difficulty labels are given. */
enum label_method {
    LABEL_TEXT, /* by the number of "nn." and of lines: at most 1 and under 30: 1; at most 3 and under 80: 2; else 3 */
    LABEL_OPERATORS, /* by the operators of forward(): one: 1; up to five: 2; more: 3 */
    LABEL_COST,      /* by measured eager time: thirds of the set */
};
/* Writes {key, problem_id, difficulty, ...} a line, what the label rests on included, to PATH (NULL: standard output).
 */
enum status problems_label(const struct problem *const *problems, size_t n, enum label_method how, double timeout_s,
                           const char *path, struct err *e) MUST_USE;

/* Appends what files of problems say of one as members of a JSON object: key, level and so on, its known defects where
 * there are any, and, with `code`, its module. */
void problems_put_columns(struct str *s, const struct problem *p, bool code);

/* argv[0] is "prompt" or "export". They return the exit code. */
extern const struct args_command problems_prompt_command, problems_export_command;
int problems_prompt(int argc, char **argv);
int problems_export(int argc, char **argv);

#endif
