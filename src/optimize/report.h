/* report: what came of a search, for people and for programs. Of a task: verdict.json, report.md, lineage.html. Of
 * several: results.json, report.md and report.html with KernelBench's table beside ours. */
#ifndef KERNELRL_OPTIMIZE_REPORT_H
#define KERNELRL_OPTIMIZE_REPORT_H

#include "optimize/proof.h"
#include "optimize/search.h"

struct report {
    const struct optimize_options *o;
    const struct tasks *tasks;
    const struct proof *proof; /* a row for each task */
    const struct proof_environment *where;
    const struct search_state *state;
    const char *source; /* what was given: a file, a folder, a source of problems */
    const char *dir;
};
/* Writes the files of a task into its folder, which exists. */
enum status report_task(const struct report *r, int task, struct err *e) MUST_USE;
/* Writes those of all tasks together, where there are several. */
enum status report_all(const struct report *r, struct err *e) MUST_USE;
/* Appends the one line that says what was found for a task. */
void report_line(const struct report *r, int task, struct str *out);
/* Folder of a task: the search's own, or one in it. */
void report_folder(const struct report *r, int task, struct str *out);

#endif
