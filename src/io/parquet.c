#include "io/parquet.h"

#include "io/pychild.h"

enum status parquet_to_jsonl(const char *path, const char *columns, size_t max_bytes, struct str *out, struct err *e) {
    const char *const args[] = {path, columns, NULL};
    const enum status st = pychild_run("parquet.py", args, path, "pyarrow to read Parquet", max_bytes, out, e);
    if (st != ST_WORKER) return st;
    const struct err first = *e;
    return FAIL(e, ST_WORKER,
                "%s, install it (pip install pyarrow in .venv, as tools/setup rag does), or give the rows as .jsonl",
                first.msg);
}
