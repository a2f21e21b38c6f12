#include "verify/native/input_sets.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "verify/jail/process.h"
#include "verify/worker_constants.h"

enum { ALIGN = 64 };
static const size_t max_set_bytes = (size_t)256 << 20, timed_bytes = (size_t)128 << 20, stage_bytes = (size_t)8 << 20;
enum { MIN_TIMED_SETS = 8, MAX_TIMED_SETS = 640, MAX_SLOTS = 128 };

static size_t align_up(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static size_t place(size_t *end, size_t bytes, size_t gap) {
    size_t at = align_up(*end + gap);
    *end = at + bytes;
    return at;
}

static void lay_out(struct sets *s) {
    const struct spec *spec = s->spec;
    size_t input = 0, param = 0, output = 0;
    int n = spec->n_args;
    s->input_at = arena_array(&s->arena, int64_t, n);
    s->param_at = arena_array(&s->arena, int64_t, n);
    s->output_at = arena_array(&s->arena, int64_t, n);
    s->compared = arena_array(&s->arena, int, n);
    s->row = arena_array(&s->arena, int64_t, n);
    for (int i = 0; i < n; i++) {
        const struct arg *a = &spec->args[i];
        size_t bytes = arg_bytes(a);
        s->input_at[i] = s->param_at[i] = s->output_at[i] = -1;
        if (a->role == ARG_INPUT) s->input_at[i] = (int64_t)place(&input, bytes, ALIGN);
        if (a->role == ARG_PARAM || a->role == ARG_BUFFER) s->param_at[i] = (int64_t)place(&param, bytes, ALIGN);
        if (a->role == ARG_OUTPUT || a->mutated) {
            s->output_at[i] = (int64_t)place(&output, bytes, SETS_GUARD_BYTES);
            s->row[s->n_compared] = compare_row(a);
            s->compared[s->n_compared++] = i;
        }
    }
    s->input_stride = align_up(input + ALIGN);
    s->param_stride = align_up(param + ALIGN);
    s->output_stride = align_up(output + SETS_GUARD_BYTES);
}

/* Makes an anonymous file of fixed size and maps it. The descriptor that is returned can be given away. */
static enum status map_new(const char *name, size_t bytes, int *fd, unsigned char **map, struct err *e) {
    *fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0 || ftruncate(*fd, (off_t)bytes) != 0)
        return FAIL(e, ST_MEMORY, "shared memory of %zu bytes: %s", bytes, strerror(errno));
    /* The seals keep whoever holds the descriptor from shrinking the file while we use it. */
    if (fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
        return FAIL(e, ST_MEMORY, "shared memory: cannot seal: %s", strerror(errno));
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (p == MAP_FAILED) return FAIL(e, ST_MEMORY, "shared memory of %zu bytes: %s", bytes, strerror(errno));
    *map = p;
    return ST_OK;
}

/* Opens the same file through a descriptor that cannot write. A mapping made from such a descriptor can never be made
 * writable. */
static enum status reopen_read_only(int *fd, struct err *e) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", *fd);
    int ro = open(path, O_RDONLY | O_CLOEXEC);
    if (ro < 0) return FAIL(e, ST_SANDBOX, "%s: %s (is /proc mounted?)", path, strerror(errno));
    close(*fd);
    *fd = ro;
    return ST_OK;
}

static enum status map_all(struct sets *s, int n_tests, struct err *e) {
    size_t set = s->input_stride + s->output_stride;
    size_t per_set = set + SETS_PARAM_SETS * s->param_stride;
    if (per_set > max_set_bytes)
        return FAIL(e, ST_INVALID, "inputs, parameters and outputs need %.1f MiB; the limit is %.0f MiB",
                    (double)per_set / 1048576, (double)max_set_bytes / 1048576);
    /* `one` is what the measurement of one answer may need. Where there is room, there is as much for each answer that
     * is alive with it. */
    const int64_t one = i64_min(MAX_TIMED_SETS, i64_max(MIN_TIMED_SETS, (int64_t)(timed_bytes / set)));
    const int64_t timed = i64_min(SETS_LANES * one, i64_max(one, (int64_t)(SETS_LANES * timed_bytes / set)));
    s->n_sets = n_tests + (int)timed;
    s->slots = (int)i64_min(MAX_SLOTS, i64_max(1, (int64_t)(stage_bytes / set)));
    s->info = arena_array(&s->arena, struct set_info, s->n_sets);
    s->master_bytes = SETS_PARAM_SETS * s->param_stride + (size_t)s->n_sets * set;
    s->read_only_bytes = SETS_PARAM_SETS * s->param_stride + (size_t)s->slots * s->input_stride;
    /* Whole pages: so sets_wipe() reaches all that an answer can write to. */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    s->read_write_bytes = ((size_t)s->slots * s->output_stride + page - 1) / page * page;
    TRY(map_new("master", s->master_bytes, &s->master_fd, &s->master, e));
    TRY(map_new("inputs", s->read_only_bytes, &s->read_only_fd, &s->read_only, e));
    TRY(reopen_read_only(&s->read_only_fd, e));
    return sets_open_lanes(s, 1, e);
}

enum status sets_open_lanes(struct sets *s, int n, struct err *e) {
    ASSERT(n <= SETS_LANES);
    for (; s->n_lanes < n; s->n_lanes++) {
        struct sets_lane *lane = &s->lanes[s->n_lanes];
        enum status st = map_new("outputs", s->read_write_bytes, &lane->fd, &lane->read_write, e);
        if (st == ST_OK) continue;
        if (lane->fd >= 0) close(lane->fd);
        return st;
    }
    return ST_OK;
}

enum status sets_open(struct sets *s, const struct spec *spec, int n_tests, uint64_t random, struct err *e) {
    *s = (struct sets){.spec = spec, .master_fd = -1, .read_only_fd = -1};
    lay_out(s);
    s->poison = arena_array(&s->arena, uint64_t, spec->n_args);
    for (int i = 0; i < spec->n_args; i++)
        s->poison[i] = compare_poison(spec->args[i].type, rng_u64(random, 1, (uint64_t)i));
    /* As float32, one half of the guard lies in [2, 3) and the other in (-3, -2], so no common function leaves both as
     * they are. An answer that runs over the end often reads, computes and writes back. */
    s->guard = (rng_u64(random, 2, 0) & 0x003fffff003fffffu) | 0xc000000040000000u;
    enum status st = map_all(s, n_tests, e);
    if (st != ST_OK) sets_close(s);
    return st;
}

void sets_close(struct sets *s) {
    if (s->master) munmap(s->master, s->master_bytes);
    if (s->read_only) munmap(s->read_only, s->read_only_bytes);
    if (s->master_fd >= 0) close(s->master_fd);
    if (s->read_only_fd >= 0) close(s->read_only_fd);
    for (int i = 0; i < s->n_lanes; i++) {
        munmap(s->lanes[i].read_write, s->read_write_bytes);
        close(s->lanes[i].fd);
    }
    arena_free(&s->arena);
    *s = (struct sets){.master_fd = -1, .read_only_fd = -1};
}

size_t sets_bytes(const struct sets *s) {
    return s->master_bytes + s->read_only_bytes + (size_t)s->n_lanes * s->read_write_bytes;
}

unsigned char *sets_input(const struct sets *s, int set) {
    return s->master + SETS_PARAM_SETS * s->param_stride + (size_t)set * (s->input_stride + s->output_stride);
}

unsigned char *sets_expected(const struct sets *s, int set) { return sets_input(s, set) + s->input_stride; }

void sets_forget(struct sets *s, int first, int n) {
    const off_t page = sysconf(_SC_PAGESIZE);
    const off_t begin = (sets_input(s, first) - s->master + page - 1) / page * page,
                end = (sets_input(s, first + n) - s->master) / page * page;
    for (int i = first; i < first + n; i++) s->info[i].filled = false;
    if (end > begin && fallocate(s->master_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, begin, end - begin) != 0)
        log_debug("shared memory: cannot give back %lld bytes: %s", (long long)(end - begin), strerror(errno));
}

void sets_stage_params(struct sets *s) { memcpy(s->read_only, s->master, SETS_PARAM_SETS * s->param_stride); }

void sets_note(struct sets *s, int set, const char *family, int param_set, const struct compare_limit *limits) {
    struct set_info *info = &s->info[set];
    if (!info->scales) {
        info->scales = arena_array(&s->arena, double *, s->n_compared);
        info->limits = arena_array(&s->arena, struct compare_limit, s->n_compared);
        for (int c = 0; c < s->n_compared; c++)
            info->scales[c] = arena_array(&s->arena, double, s->spec->args[s->compared[c]].count / s->row[c]);
    }
    for (int c = 0; c < s->n_compared; c++) {
        const struct arg *a = &s->spec->args[s->compared[c]];
        info->limits[c] = limits[c];
        compare_scales(a->type, sets_expected(s, set) + s->output_at[s->compared[c]], a->count, s->row[c], &limits[c],
                       info->scales[c]);
    }
    info->family = family;
    info->param_set = param_set;
    info->filled = true;
}

static void fill_gap(const struct sets *s, unsigned char *base, size_t from, size_t to) {
    for (; from + 8 <= to; from += 8) memcpy(base + from, &s->guard, 8);
    if (from < to) memcpy(base + from, &s->guard, to - from);
}

static size_t gap_damage(const struct sets *s, const unsigned char *base, size_t from, size_t to) {
    for (; from + 8 <= to; from += 8)
        if (memcmp(base + from, &s->guard, 8) != 0) return from;
    return memcmp(base + from, &s->guard, to - from) != 0 ? from : SIZE_MAX;
}

static void reset_outputs(struct sets *s, int lane, int slot, int param_set) {
    unsigned char *base = s->lanes[lane].read_write + (size_t)slot * s->output_stride;
    size_t end = 0;
    for (int c = 0; c < s->n_compared; c++) {
        int i = s->compared[c];
        const struct arg *a = &s->spec->args[i];
        size_t at = (size_t)s->output_at[i];
        fill_gap(s, base, end, at);
        if (a->mutated && param_set >= 0)
            memcpy(base + at, s->read_only + (size_t)param_set * s->param_stride + s->param_at[i], arg_bytes(a));
        else
            compare_fill(a->type, base + at, a->count, s->poison[i]);
        end = at + arg_bytes(a);
    }
    fill_gap(s, base, end, s->output_stride);
}

void sets_stage(struct sets *s, int lane, int slot, int set) {
    unsigned char *input = s->read_only + SETS_PARAM_SETS * s->param_stride + (size_t)slot * s->input_stride;
    memcpy(input, sets_input(s, set), s->input_stride);
    reset_outputs(s, lane, slot, s->info[set].param_set);
}

void sets_wipe(struct sets *s, int lane) {
    for (int slot = 0; slot < s->slots; slot++) {
        unsigned char *input = s->read_only + SETS_PARAM_SETS * s->param_stride + (size_t)slot * s->input_stride;
        memset(input, 0, s->input_stride);
        reset_outputs(s, lane, slot, -1);
    }
    const size_t used = (size_t)s->slots * s->output_stride;
    memset(s->lanes[lane].read_write + used, 0, s->read_write_bytes - used);
}

bool sets_guards_hold(const struct sets *s, int lane, int slot, int *arg) {
    const unsigned char *base = s->lanes[lane].read_write + (size_t)slot * s->output_stride;
    size_t end = 0;
    for (int c = 0; c < s->n_compared; c++) {
        int i = s->compared[c];
        size_t at = (size_t)s->output_at[i], hit = gap_damage(s, base, end, at);
        if (hit != SIZE_MAX) {
            /* The damage belongs to the argument whose end or start is nearer. */
            *arg = c > 0 && hit - end < at - hit ? s->compared[c - 1] : i;
            return false;
        }
        end = at + arg_bytes(&s->spec->args[i]);
    }
    *arg = s->compared[s->n_compared - 1];
    return gap_damage(s, base, end, s->output_stride) == SIZE_MAX;
}

void sets_compare(const struct sets *s, int lane, int slot, int set, int *arg, struct compare_result *out) {
    const struct set_info *info = &s->info[set];
    const unsigned char *got = s->lanes[lane].read_write + (size_t)slot * s->output_stride,
                        *want = sets_expected(s, set);
    bool compatible = strcmp(info->family, FAMILY_SHIPPED) == 0 && info->param_set == 0;
    double worst = 0;
    *arg = -1;
    for (int c = 0; c < s->n_compared; c++) {
        int i = s->compared[c];
        const struct arg *a = &s->spec->args[i];
        struct compare_result r;
        struct compare_rule rule = {.scales = info->scales[c],
                                    .row = s->row[c],
                                    .tolerance = compare_tolerance(a->type, &info->limits[c]),
                                    .compatible = compatible,
                                    .poison = s->poison[i]};
        compare_tensor(a->type, want + s->output_at[i], got + s->output_at[i], a->count, &rule, &r);
        if (r.max_error > worst) worst = r.max_error;
        if (c == 0 || (r.different && *arg < 0)) *out = r;
        if (r.different && *arg < 0) *arg = i;
    }
    out->max_error = worst;
}
