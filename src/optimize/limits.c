#include "optimize/limits.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "io/json.h"
#include "io/pychild.h"

enum { REPLY_MAX = 1 << 16 };

enum status limits_find(const char *code, const char *device, struct limits *out, struct err *e) {
    char path[] = "/tmp/kernelrl-limits-XXXXXX";
    CLEANUP_STR struct str text = STR_INIT;
    CLEANUP_JSON json_t *reply = NULL;
    *out = (struct limits){0};
    const int fd = mkstemp(path);
    if (fd < 0) return FAIL(e, ST_IO, "%s: cannot be made", path);
    const bool written = fs_write_all(fd, code, strlen(code));
    close(fd);
    const char *const args[] = {path, device, NULL};
    enum status st = written
                         ? pychild_run("module_limits.py", args, "limits of the module", "torch", REPLY_MAX, &text, e)
                         : FAIL(e, ST_IO, "%s: cannot be written", path);
    unlink(path);
    TRY(st);
    TRY(js_parse(str_c(&text), text.len, "limits of the module", &reply, e));
    TRY(js_get_f64(reply, "limits of the module", "flops", &out->flops, e));
    TRY(js_get_f64(reply, "limits of the module", "bytes", &out->bytes, e));
    TRY(js_get_f64(reply, "limits of the module", "flops_per_s", &out->flops_per_s, e));
    TRY(js_get_f64(reply, "limits of the module", "bytes_per_s", &out->bytes_per_s, e));
    out->known = out->bytes > 0 && out->flops_per_s > 0 && out->bytes_per_s > 0;
    return ST_OK;
}

static double memory_ms(const struct limits *l) { return 1e3 * l->bytes / l->bytes_per_s; }
static double compute_ms(const struct limits *l) { return 1e3 * l->flops / l->flops_per_s; }

double limits_least_ms(const struct limits *l) { return l->known ? fmax(memory_ms(l), compute_ms(l)) : 0; }

double limits_share(const struct limits *l, double ms) { return l->known && ms > 0 ? limits_least_ms(l) / ms : 0; }

void limits_text(const struct limits *l, double ms, struct str *out) {
    if (!l->known) return;
    const bool memory = memory_ms(l) >= compute_ms(l);
    str_addf(
        out,
        "A call reads and writes at least %.3g MB and computes %.3g MFLOP: at %.3g GB/s and %.3g GFLOP/s that takes "
        "%.3g ms, bound by %s.",
        l->bytes * 1e-6, l->flops * 1e-6, l->bytes_per_s * 1e-9, l->flops_per_s * 1e-9, limits_least_ms(l),
        memory ? "memory" : "arithmetic");
    if (ms > 0) str_addf(out, " It took %.3g ms: %.0f %% of what the machine allows.", ms, 100 * limits_share(l, ms));
}
