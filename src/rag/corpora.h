/* corpora: pairs of a PyTorch module and a kernel for it, from the public collections and from files of rows.
 *
 * A row's columns say what it is:
 *   own          pytorch_code, kernel_code, backend; optionally source, name, speedup, correct
 *   KernelBook   python_code, triton_code, entry_point or module_name (GPUMODE/KernelBook)
 *   Sakana       PyTorch_Code_Module, CUDA_Code, Correct, Level_ID, Op_Name or Kernel_Name, CUDA_Speedup_Native
 *                (SakanaAI/AI-CUDA-Engineer-Archive)
 *   generator    key, source, outcome of answers.jsonl, whose modules are in problems.jsonl beside it */
#ifndef KERNELRL_CORPORA_H
#define KERNELRL_CORPORA_H

#include "base/err.h"

struct rag_record {
    const char *pytorch_code, *kernel_code;
    const char *backend; /* "c", "triton", "cuda" */
    const char *source;  /* "kernelbook", "sakana", "generator", or the file's name */
    const char *name;    /* It may be "". */
    double speedup;      /* Over PyTorch eager. NaN: unknown. */
    bool correct;        /* false: it is known to be wrong. */
};

struct corpus_filter {
    const char *backend;    /* Only this backend. NULL: all of them. */
    bool include_incorrect; /* true: rows that are known to be wrong count, too. */
    uint32_t sakana_levels; /* Bit L stands for rows of Level_ID L. 0: all of them. */
};
enum { CORPUS_MAX_MODULE_CHARS = 50000, CORPUS_MAX_KERNEL_CHARS = 100000 };

struct corpus_counts {
    int64_t rows, taken;
    /* Why rows were left out. elsewhere: they are of another backend or level. */
    int64_t empty, too_long, incorrect, elsewhere;
};

/* Called once for each row that passes. Strings are borrowed during the call. */
typedef enum status corpus_fn(void *ctx, const struct rag_record *r, struct err *e);

/* Reads WHAT: "kernelbook" or "sakana" (from the Hub, io/hub.h); a .jsonl, .jsonl.zst or .parquet file; or a folder of
 * such files, all of them in the order of their names. ST_PARSE names file, line and columns of a row of another kind.
 * ST_INVALID: there is no row. Downloading and reading Parquet fail as hub_open and parquet_to_jsonl do. */
enum status corpus_read(const char *what, const struct corpus_filter *f, const volatile bool *cancel, corpus_fn *fn,
                        void *ctx, struct corpus_counts *out, struct err *e) MUST_USE;
/* Returns the backend of a named corpus, "triton" or "cuda"; NULL when WHAT is no such name. */
const char *corpus_backend(const char *what);

#endif
