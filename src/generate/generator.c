/* The public face of the generator: the sequences that are left out, the stream, recipes. */
#include "generate/generator.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/fs.h"
#include "base/hash.h"
#include "base/home.h"
#include "generate/internal.h"
#include "io/json.h"
#include "io/jsonl.h"

struct generator {
    struct arena arena;
    const char **ops; /* Sorted. */
    size_t n;
};

const char *gen_break_name(enum gen_break b) {
    static const char *const names[] = {
#define X(name, what) #name,
        GEN_BREAK_LIST(X)
#undef X
    };
    return names[b];
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

bool generator_excludes(const struct generator *g, const char *ops) {
    return g->n > 0 && bsearch(&ops, g->ops, g->n, sizeof *g->ops, by_text) != NULL;
}
size_t generator_excluded_count(const struct generator *g) { return g->n; }

void generator_close(struct generator *g) {
    if (!g) return;
    arena_free(&g->arena);
    free(g);
}

/* Makes "Linear_GELU" of "linear gelu". */
static const char *title(const struct prog *p) {
    struct str s = STR_INIT;
    for (int i = 0; i < p->n; i++) str_addf(&s, "%s%s", i ? "_" : "", gen_ops[p->node[i].op].title);
    const char *t = arena_strdup(p->a, str_c(&s));
    str_free(&s);
    return t;
}

static void fill_item(struct prog *p, const char *ops, struct gen_item *out) {
    struct arena *a = p->a;
    *out = (struct gen_item){.problem = {.level = p->level, .difficulty = p->level, .split = SPLIT_TRAIN, .ops = ops}};
    char *code = prog_python(p);
    out->problem.code = arena_strdup(a, code);
    free(code);
    for (int s = 0; s < GEN_STYLES; s++) {
        char *c = prog_answer(p, (enum gen_style)s);
        out->answers[s] = arena_strdup(a, c);
        free(c);
    }
    for (int s = 0; s < GEN_TRITON_STYLES; s++) {
        char *t = prog_triton(p, (enum gen_triton_style)s);
        out->triton[s] = t ? arena_strdup(a, t) : NULL;
        free(t);
    }
    for (int s = 0; s < GEN_CUDA_STYLES; s++) {
        char *t = prog_cuda(p, (enum gen_cuda_style)s);
        out->cuda[s] = t ? arena_strdup(a, t) : NULL;
        free(t);
    }
}

void generator_make(const struct generator *g, uint64_t seed, uint64_t index, struct arena *a, struct gen_item *out) {
    struct rng r = rng_make(seed, index);
    for (;;) {
        struct prog p = {.a = a, .r = r};
        prog_random(&p);
        const char *ops = prog_ops(&p);
        bool excluded = generator_excludes(g, ops), fits = !excluded;
        if (!excluded) {
            fill_item(&p, ops, out);
            fits = strlen(out->problem.code) <= GEN_MAX_CODE_BYTES;
            for (int i = 0; i < GEN_STYLES; i++) fits &= strlen(out->answers[i]) <= GEN_MAX_ANSWER_BYTES;
        }
        if (fits) {
            out->problem.problem_id = (int)(index % 2000000000) + 1;
            out->problem.name = arena_printf(a, "%d_%s", out->problem.problem_id, title(&p));
            out->problem.key =
                arena_printf(a, "generated/%llu_%llu", (unsigned long long)seed, (unsigned long long)index);
            return;
        }
        /* It has a test problem's sequence, or is too long: draw on. */
        r = p.r;
    }
}

enum status generator_from_recipe(const char *recipe, uint64_t seed, struct arena *a, struct gen_item *out,
                                  struct err *e) {
    struct prog p = {.a = a, .r = rng_make(seed, hash_str(recipe))};
    enum status st = prog_recipe(&p, recipe, e);
    if (st == ST_OK) {
        const char *ops = prog_ops(&p);
        fill_item(&p, ops, out);
        out->problem.name = title(&p);
        out->problem.key = arena_printf(a, "recipe/%s", out->problem.name);
    }
    return st;
}

enum status generator_compose(const struct generator *g, const char *text, uint64_t seed, struct arena *a,
                              struct gen_item *out, struct err *e) {
    struct prog p = {.a = a, .r = rng_make(seed, hash_str(text))};
    TRY(prog_compose(&p, text, e));
    const char *ops = prog_ops(&p);
    if (generator_excludes(g, ops)) return FAIL(e, ST_INVALID, "\"%s\" is the sequence of a test problem", ops);
    fill_item(&p, ops, out);
    if (strlen(out->problem.code) > GEN_MAX_CODE_BYTES)
        return FAIL(e, ST_INVALID, "its module is longer than %d bytes", GEN_MAX_CODE_BYTES);
    out->problem.name = title(&p);
    out->problem.key = arena_printf(a, "composed/%llu_%s", (unsigned long long)seed, out->problem.name);
    return ST_OK;
}

int generator_operators(const char *const **out) {
    static const char *const names[] = {
#define X(name) #name,
        OP_LIST(X)
#undef X
    };
    *out = names;
    return OP_COUNT;
}

enum status generator_open(const char *index_path, struct generator **out, struct err *e) {
    struct generator *g = xcalloc(1, sizeof *g);
    const char *path = index_path ? index_path : arena_printf(&g->arena, "%s/problems/index.jsonl", home_dir());
    struct jsonl_reader *r = NULL;
    size_t cap = 0;
    const char **ops = NULL;
    enum status st = jsonl_open(path, 1 << 20, &r, e);
    while (st == ST_OK) {
        const char *line;
        size_t len;
        if ((st = jsonl_next(r, &line, &len, e)) != ST_OK || !line) break;
        char where[300];
        snprintf(where, sizeof where, "%s:%lld", path, (long long)jsonl_line(r));
        CLEANUP_JSON json_t *row = NULL;
        const char *split, *seq;
        if ((st = js_parse(line, len, where, &row, e)) != ST_OK) break;
        if ((st = js_get_str(row, where, "split", &split, e)) != ST_OK) break;
        if ((st = js_get_str(row, where, "ops", &seq, e)) != ST_OK) break;
        if (strcmp(split, "test") != 0) continue;
        if (g->n == cap) ops = xrealloc(ops, sizeof *ops * (cap = cap ? cap * 2 : 64));
        ops[g->n++] = arena_strdup(&g->arena, seq);
    }
    jsonl_close(r);
    if (st != ST_OK) {
        free(ops);
        generator_close(g);
        return st;
    }
    g->ops = arena_array(&g->arena, const char *, g->n + 1);
    if (g->n) memcpy(g->ops, ops, sizeof *ops * g->n);
    free(ops);
    qsort(g->ops, g->n, sizeof *g->ops, by_text);
    *out = g;
    return ST_OK;
}
