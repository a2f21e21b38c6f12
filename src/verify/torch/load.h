/* load: from source to a module in the answer's process. A loader is one way to do that. */
#ifndef KERNELRL_VERIFY_TORCH_LOAD_H
#define KERNELRL_VERIFY_TORCH_LOAD_H

#include "verify/torch/state.h"

/* One way in which answers are loaded. */
struct answer_loader {
    /* What of the problem's description an answer is compiled against: the keys, with NULL behind the last one. NULL:
     * nothing. */
    const char *const *interface;
    /* true: the answer is an object that our compilers make before it is loaded, against the problem's interface. So
     * nothing can be loaded before that is known. */
    bool compiled;
    /* true: the answer compiles in its first call, for the shapes that it finds. run_rehearse() has it do so before. */
    bool rehearsed;
    /* Does what comes before the request "load": adds to that request (open, in q), and sets *fd to a descriptor that
     * goes with it. False: the verdict is there. */
    bool (*prepare)(struct torch_answer *r, const char *code, struct str *q, int *fd);
};
/* The loader of the answers that j judges. */
const struct answer_loader *loader_of(const struct module_judge *j);

/* Copies what the loader of the answer needs of the problem's description into r->interface. Threads may read the copy
 * while the problem itself is dropped or loaded anew. */
void run_note_interface(struct torch_answer *r);
/* Executes `code` in the answer's process; compilers do their part. is_answer: the code has class ModelNew, or is what
 * the loader takes; else it has the problem's Model. */
bool run_load(struct torch_answer *r, const char *code, bool is_answer);
/* Starts a process for the answer, and loads `source` in it. Where that fails, the verdict is there and the process has
 * been ended. */
void run_fork_and_load(struct torch_answer *r, const char *source);
/* Gives the process the memory of one lane: parameters and inputs. */
bool run_attach(struct torch_answer *r, enum modcase_lane lane);
/* Makes the module, with parameter set 0 or 1. */
bool run_build(struct torch_answer *r, int param_set);

/* Ahead of its turn: the process gets its context on the GPU, and Triton compiles something in it. */
void run_warm(struct torch_answer *r);
/* Ahead of its turn: the answer's kernels are compiled while others are judged. What is wrong with them shows in its
 * turn. A process that does not come back from this is replaced by one that has not been asked. */
void run_rehearse(struct torch_answer *r, const char *source);

#endif
