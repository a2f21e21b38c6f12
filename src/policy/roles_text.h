/* roles_text: the prompts of the roles beside the solver, and what their answers mean (docs/formats.md, "Roles",
 * version 1). The corrector's prompt and answer are those of a second turn (prompt.h). */
#ifndef KERNELRL_POLICY_ROLES_TEXT_H
#define KERNELRL_POLICY_ROLES_TEXT_H

#include "policy/prompt.h"
#include "verify/verify.h"

enum role { ROLE_VERIFIER, ROLE_CORRECTOR, ROLE_JUDGE, ROLE_PROPOSER, ROLES };
extern const char *const role_names[ROLES]; /* "verifier" */

/* What a verifier may say of a kernel. */
enum prediction { PREDICT_CORRECT, PREDICT_WRONG, PREDICT_CRASH, PREDICT_COMPILE, PREDICT_CHEAT, PREDICTIONS };
extern const char *const prediction_names[PREDICTIONS]; /* "correct" */
#define PREDICT_NONE PREDICTIONS                        /* nothing that can be read */
/* What would have been right. The verdict must be of an answer with a kernel, and not missing. */
enum prediction prediction_of(const struct verdict *v);

struct role_prompt {
    enum role role; /* not ROLE_CORRECTOR */
    const struct backend_info *backend;
    bool think;
    const struct problem *problem; /* verifier, judge */
    const char *kernel[2];         /* verifier: the first; judge: A and B */
    int length;                    /* proposer: operators a problem shall have */
    double solved;                 /* proposer: how often the latest such problems were; NaN: none yet */
    const char *const *operators;  /* proposer */
    int n_operators;
};
/* messages[0] (system) and messages[1] (user); text from the arena. */
void role_prompt_build(const struct role_prompt *in, struct arena *a, struct chat_message messages[2]);

/* The answer between the last complete pair of the role's tags (<VERDICT>, <CHOICE>, <PROBLEM>) behind any think block,
 * in which blanks are single; false when there is none or it has more than 400 bytes. */
bool role_answer(enum role role, const char *text, size_t n, struct str *out);
/* A role_answer of the verifier, in any case. */
enum prediction role_prediction(const char *answer);
/* A role_answer of the judge: 0 for A, 1 for B, -1 for anything else. */
int role_choice(const char *answer);

#endif
