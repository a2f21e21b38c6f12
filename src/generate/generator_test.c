/* The generator: determinism, what is left out, labels, sizes, and that answers compile. That answers are right is
 * tested where the verifier may be used (src/generate/problems_test.c). */
#include "generate/generator.h"

#include <ctype.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/home.h"
#include "generate/internal.h"
#include "io/json.h"
#include "io/jsonl.h"

static struct err e;
static char dir[] = "/tmp/kernelrl_generator_XXXXXX";

static struct generator *open_builtin(void) {
    struct generator *g = NULL;
    if (generator_open(NULL, &g, &e) != ST_OK) fail_msg("%s", e.msg);
    return g;
}

static void write_file(const char *name, const char *text, char path[200]) {
    snprintf(path, 200, "%s/%s", dir, name);
    assert_int_equal(fs_write_atomic(path, text, strlen(text), &e), ST_OK);
}

static void is_a_function_of_seed_and_index(void **state) {
    (void)state;
    struct generator *g = open_builtin();
    struct arena a = ARENA_INIT;
    int same = 0;
    for (uint64_t i = 0; i < 200; i++) {
        struct gen_item x, y, z;
        generator_make(g, 7, i, &a, &x);
        generator_make(g, 7, 199 - i, &a, &y); /* the order of calls does not matter */
        generator_make(g, 7, i, &a, &y);
        generator_make(g, 8, i, &a, &z);
        assert_string_equal(x.problem.code, y.problem.code);
        assert_string_equal(x.problem.key, y.problem.key);
        for (int s = 0; s < GEN_STYLES; s++) assert_string_equal(x.answers[s], y.answers[s]);
        same += strcmp(x.problem.code, z.problem.code) == 0;
        arena_reset(&a);
    }
    assert_true(same < 5);
    arena_free(&a);
    generator_close(g);
}

/* Problems of named operators: all that is drawn is a function of the seed; what would be no problem is refused. */
static void compositions(void **state) {
    (void)state;
    struct generator *g = open_builtin();
    struct arena a = ARENA_INIT;
    struct gen_item x, y, z;
    static const char *const fine[] = {"rows silu",
                                       "image conv2d groupnorm relu max_pool2d",
                                       "signal conv1d tanh",
                                       "seq linear glu residual",
                                       "rows scale softmax mul",
                                       "rows mul cross_entropy"};
    static const char *const ops[] = {
        "silu", "conv2d groupnorm relu max_pool2d", "conv1d tanh", NULL, "scale softmax mul", "mul cross_entropy"};
    for (size_t i = 0; i < ARRAY_LEN(fine); i++) {
        const enum status st = generator_compose(g, fine[i], 5, &a, &x, &e);
        if (!ops[i]) { /* half of the columns are left: nothing to add */
            assert_int_equal(st, ST_INVALID);
            continue;
        }
        if (st != ST_OK) fail_msg("%s: %s", fine[i], e.msg);
        assert_string_equal(x.problem.ops, ops[i]);
        assert_int_equal(generator_compose(g, fine[i], 5, &a, &y, &e), ST_OK);
        assert_int_equal(generator_compose(g, fine[i], 6, &a, &z, &e), ST_OK);
        assert_string_equal(x.problem.code, y.problem.code);
        assert_string_not_equal(x.problem.code, z.problem.code);
        assert_true(strstr(x.problem.code, "class Model") && str_has_prefix(x.problem.key, "composed/5_"));
    }
    static const struct {
        const char *text, *says;
        enum status st;
    } bad[] = {{"", "at least one operator", ST_PARSE},
               {"rows", "at least one operator", ST_PARSE},
               {"cube relu", "\"cube\"", ST_PARSE},
               {"rows relu frobnicate", "\"frobnicate\"", ST_PARSE},
               {"rows conv2d", "conv2d: needs an image", ST_INVALID},
               {"rows relu relu", "relu: the result would be", ST_INVALID},
               {"rows mean_all relu", "relu: nothing can follow it", ST_INVALID},
               {"rows embedding", "embedding: does not fit", ST_INVALID},
               {"rows linear gelu", "test problem", ST_INVALID},
               {"rows add mul add mul add mul add mul add mul add mul add", "more than 12", ST_INVALID}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        e = (struct err){0};
        assert_int_equal(generator_compose(g, bad[i].text, 1, &a, &x, &e), bad[i].st);
        if (!strstr(e.msg, bad[i].says)) fail_msg("\"%s\": expected \"%s\" in: %s", bad[i].text, bad[i].says, e.msg);
    }
    const char *const *names;
    const int n = generator_operators(&names);
    assert_true(n > 80 && strcmp(names[0], "relu") == 0 && strcmp(names[n - 1], "channel_gate") == 0);
    arena_free(&a);
    generator_close(g);
}

static size_t count_words(const char *s) {
    size_t n = 1;
    for (; *s; s++) n += *s == ' ';
    return n;
}

/* ---- plans and sizes ----------------------------------------------------------------------------------------------
 */

/* Whether the plan of an answer makes this choice. */
static bool has_choice(const char *answer, const char *choice) {
    assert_true(str_has_prefix(answer, "// plan: "));
    size_t n = strlen(choice), end = strcspn(answer, "\n");
    for (size_t at = 9; at + n <= end; at++)
        if (memcmp(answer + at, choice, n) == 0 && answer[at - 1] == ' ' && strchr(",\n", answer[at + n])) return true;
    return false;
}

/* The first word of `code` that begins with a capital letter and is no constant of C: the name of a size. */
static const char *size_name(const char *code) {
    for (const char *c = code; *c; c++) {
        bool starts = !isalnum((unsigned char)c[-1]) && c[-1] != '_';
        if (starts && isupper((unsigned char)*c) && !str_has_prefix(c, "INFINITY")) return c;
    }
    return NULL;
}

/* Every plan states its style's choices; an answer with numbers has no name of a size left, one with names has. */
static void plans_and_sizes(void **state) {
    (void)state;
    struct generator *g = open_builtin();
    struct arena a = ARENA_INIT;
    int shares = 0, literal_share = 0, blocked = 0, fast = 0;
    for (int s = 0; s < GEN_STYLES; s++) {
        shares += gen_style_share((enum gen_style)s);
        if (gen_style_literal((enum gen_style)s)) literal_share += gen_style_share((enum gen_style)s);
    }
    assert_int_equal(shares, 100);
    assert_in_range(literal_share, 50, 65);
    for (uint64_t i = 0; i < 2000; i++) {
        struct gen_item it;
        generator_make(g, 11, i, &a, &it);
        for (int s = 0; s < GEN_STYLES; s++) {
            const char *text = it.answers[s], *name = gen_style_name((enum gen_style)s);
            const char *body = strstr(text, "restrict out) {\n");
            assert_non_null(body);
            body = strchr(body, '\n') + 1;
            const bool tuned = strstr(name, "fast") != NULL, blocks = strstr(text, "vector_size") != NULL;
            assert_int_equal(has_choice(text, "fused"), str_has_prefix(name, "fused"));
            assert_int_equal(has_choice(text, "separate"), !has_choice(text, "fused"));
            assert_int_equal(has_choice(text, "parallel"), strstr(name, "parallel") != NULL);
            assert_int_equal(has_choice(text, "serial"), !has_choice(text, "parallel"));
            assert_int_equal(has_choice(text, "simd"), strstr(name, "simd") || tuned);
            assert_int_equal(has_choice(text, "plain"), !has_choice(text, "simd"));
            assert_int_equal(has_choice(text, "fast math"), tuned && !blocks);
            assert_int_equal(has_choice(text, "blocked"), tuned && blocks);
            assert_int_equal(has_choice(text, "libm"), !tuned);
            blocked += has_choice(text, "blocked");
            fast += has_choice(text, "fast math");
            const char *size = size_name(body);
            if (gen_style_literal((enum gen_style)s)) {
                assert_true(has_choice(text, "numbers"));
                if (size) fail_msg("%s (%s), %s: %.40s", it.problem.key, it.problem.ops, name, size);
            } else {
                assert_true(has_choice(text, "names"));
                assert_non_null(size);
            }
        }
        arena_reset(&a);
    }
    assert_true(blocked > 100 && fast > 1000);
    arena_free(&a);
    generator_close(g);
}

/* Products and quotients are worked out where C would, and only there. */
static void sizes_as_numbers(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct gen_item it;
    assert_int_equal(generator_from_recipe("rows 3x8 relu", 1, &a, &it, &e), ST_OK);
    const char *text = it.answers[GEN_STYLE_fused_numbers];
    assert_non_null(strstr(text, "// plan: fused, serial, plain, libm, numbers\n"));
    assert_non_null(strstr(text, "  for (int i = 0; i < 24; i++) {\n"));
    assert_non_null(strstr(it.answers[GEN_STYLE_fused], "  for (int i = 0; i < R * N; i++) {\n"));
    assert_int_equal(generator_from_recipe("image 2x8x6x6 conv2d:8,3,1,1 groupnorm:4 relu", 1, &a, &it, &e), ST_OK);
    text = it.answers[GEN_STYLE_naive_numbers];
    assert_non_null(strstr(text, "int n = i / 8, c = i % 8;"));
    assert_non_null(strstr(text, "float *o = out + i * 36;"));
    assert_non_null(strstr(text, "int c = i % 4 * 2 + k;")); /* not i % 8: from left to right */
    assert_non_null(strstr(text, "for (int k = 0; k < 2; k++) {"));
    assert_non_null(strstr(text, "1e-5f"));
    arena_free(&a);
}

/* 20,000 problems: no test sequence among them, labels and sizes as promised. A generator that knows no test set does
 * draw such sequences, so the check can fail. */
static void leaves_out_the_test_sequences(void **state) {
    (void)state;
    char path[200];
    write_file("empty.jsonl", "", path);
    struct generator *g = open_builtin(), *free_draw = NULL;
    assert_int_equal(generator_open(path, &free_draw, &e), ST_OK);
    assert_int_equal(generator_excluded_count(g), 48);
    assert_int_equal(generator_excluded_count(free_draw), 0);
    struct arena a = ARENA_INIT;
    int by_level[4] = {0}, excluded_draws = 0;
    bool seen[OP_COUNT] = {false};
    size_t longest_answer = 0;
    for (uint64_t i = 0; i < 20000; i++) {
        struct gen_item it;
        generator_make(g, 42, i, &a, &it);
        const struct problem *p = &it.problem;
        if (generator_excludes(g, p->ops))
            fail_msg("problem %llu has a test sequence: %s", (unsigned long long)i, p->ops);
        for (const char *w = p->ops; *w; w += strcspn(w, " "), w += *w == ' ') {
            enum gen_op op;
            assert_true(gen_op_find(w, strcspn(w, " "), &op));
            seen[op] = true;
        }
        assert_in_range(p->level, 1, 3);
        assert_int_equal(p->level, p->difficulty);
        assert_int_equal(p->level == 1, count_words(p->ops) == 1);
        assert_int_equal(p->split, SPLIT_TRAIN);
        assert_true(strlen(p->code) <= GEN_MAX_CODE_BYTES);
        by_level[p->level]++;
        for (int s = 0; s < GEN_STYLES; s++) {
            size_t n = strlen(it.answers[s]);
            assert_true(n <= GEN_MAX_ANSWER_BYTES);
            if (n > longest_answer) longest_answer = n;
        }
        if (i < 3000) {
            generator_make(free_draw, 42, i, &a, &it);
            excluded_draws += generator_excludes(g, it.problem.ops);
        }
        arena_reset(&a);
    }
    assert_true(excluded_draws > 10);
    for (int op = 0; op < OP_COUNT; op++) /* every operator is drawn: test problems are recombinations of known ones */
        if (!seen[op]) fail_msg("operator %s is never drawn", gen_ops[op].name);
    for (int l = 1; l <= 3; l++) assert_true(by_level[l] > 1000);
    print_message("levels %d %d %d, longest answer %zu bytes, %d of 3000 free draws are test sequences\n", by_level[1],
                  by_level[2], by_level[3], longest_answer, excluded_draws);
    arena_free(&a);
    generator_close(g);
    generator_close(free_draw);
}

static void index_errors_name_the_line(void **state) {
    (void)state;
    char path[200];
    struct generator *g = NULL;
    write_file("bad.jsonl", "{\"split\":\"train\",\"ops\":\"relu\"}\n{\"split\":\"test\"}\n", path);
    assert_int_equal(generator_open(path, &g, &e), ST_PARSE);
    assert_non_null(strstr(e.msg, "bad.jsonl:2"));
    assert_non_null(strstr(e.msg, "ops"));
    assert_int_equal(generator_open("/nonexistent/index.jsonl", &g, &e), ST_IO);
    generator_close(NULL);
}

/* ---- the index agrees with the code ------------------------------------------------------------------------------ */

/* Whether text[0..n) matches a surface form in which every $-name stands for any text. */
static bool matches(const char *t, const char *s, size_t n) {
    if (!*t) return n == 0;
    if (*t == '$') {
        for (size_t k = 1; k <= n; k++)
            if (matches(t + 2, s + k, n - k)) return true;
        return matches(t + 2, s, n); /* an empty one: no further conv arguments */
    }
    return n > 0 && *s == *t && matches(t + 1, s + 1, n - 1);
}

/* Whether the forward expression is operator op: directly, or through a member made in __init__. */
static bool statement_is(enum gen_op op, const char *s, size_t n, const char *code) {
    const char *made = NULL;
    size_t made_len = 0;
    if (n > 5 && strncmp(s, "self.", 5) == 0) {
        char line[100];
        const char *paren = memchr(s, '(', n);
        if (paren) {
            snprintf(line, sizeof line, "        %.*s = ", (int)(paren - s), s);
            const char *at = strstr(code, line);
            if (at) {
                made = at + strlen(line);
                made_len = strcspn(made, "\n");
            }
        }
    }
    for (int f = 0; f < 5 && gen_ops[op].py[f]; f++) {
        const char *t = gen_ops[op].py[f];
        bool member = t[0] == 'm' && (t[1] == ':' || t[1] == '2');
        if (member ? made && matches(strchr(t, ':') + 1, made, made_len) : matches(t, s, n)) return true;
    }
    return false;
}

static void check_statements(const struct problem *p) {
    const char *at = strstr(p->code, "def forward("), *ops = p->ops;
    assert_non_null(at);
    at = strchr(at, '\n') + 1;
    for (; strncmp(at, "        ", 8) == 0; at += strcspn(at, "\n") + 1) {
        const char *s = at + 8;
        size_t n = strcspn(s, "\n");
        if (strncmp(s, "return ", 7) == 0) {
            s += 7;
            n -= 7;
            if (!memchr(s, '(', n) && !memchr(s, ' ', n)) continue; /* return x */
        } else {
            const char *eq = memmem(s, n, " = ", 3);
            if (!eq) fail_msg("%s: not an assignment: %.*s", p->key, (int)n, s);
            n -= (size_t)(eq + 3 - s);
            s = eq + 3;
        }
        if (memmem(s, n, ".chunk(", 7)) continue; /* the first half of a gated unit */
        size_t word = strcspn(ops, " ");
        enum gen_op op;
        if (!gen_op_find(ops, word, &op)) fail_msg("%s: \"%.*s\" is not an operator", p->key, (int)word, ops);
        if (!statement_is(op, s, n, p->code)) fail_msg("%s: \"%.*s\" is not %.*s", p->key, (int)n, s, (int)word, ops);
        ops += word;
        ops += *ops == ' ';
    }
    if (*ops) fail_msg("%s: the code has no \"%s\"", p->key, ops);
}

static void index_lists_the_operators_of_the_code(void **state) {
    (void)state;
    struct problem_set set;
    if (problem_set_load("builtin", &set, &e) != ST_OK) fail_msg("%s", e.msg);
    assert_true(set.count >= 100);
    for (size_t i = 0; i < set.count; i++) check_statements(&set.items[i]);
    /* the check itself can tell operators apart */
    enum gen_op gelu, silu;
    assert_true(gen_op_find("gelu", 4, &gelu) && gen_op_find("silu", 4, &silu));
    assert_true(statement_is(gelu, "F.gelu(x)", 9, ""));
    assert_false(statement_is(silu, "F.gelu(x)", 9, ""));
    for (size_t i = 0; i < set.count; i++) /* train and test share no sequence */
        for (size_t k = 0; k < i; k++) assert_string_not_equal(set.items[i].ops, set.items[k].ops);
    problem_set_free(&set);
}

/* The recipe in the index gives the listed operators, so every built-in problem has known answers. */
static void index_recipes_give_the_operators(void **state) {
    (void)state;
    char path[4096];
    struct jsonl_reader *r = NULL;
    struct arena a = ARENA_INIT;
    snprintf(path, sizeof path, "%s/problems/index.jsonl", home_dir());
    assert_int_equal(jsonl_open(path, 1 << 20, &r, &e), ST_OK);
    for (;;) {
        const char *line, *recipe, *ops;
        size_t len;
        assert_int_equal(jsonl_next(r, &line, &len, &e), ST_OK);
        if (!line) break;
        CLEANUP_JSON json_t *row = NULL;
        int64_t level;
        struct gen_item it;
        assert_int_equal(js_parse(line, len, "index", &row, &e), ST_OK);
        assert_int_equal(js_get_str(row, "index", "recipe", &recipe, &e), ST_OK);
        assert_int_equal(js_get_str(row, "index", "ops", &ops, &e), ST_OK);
        assert_int_equal(js_get_i64(row, "index", "level", &level, &e), ST_OK);
        if (generator_from_recipe(recipe, 1, &a, &it, &e) != ST_OK) fail_msg("%s", e.msg);
        assert_string_equal(it.problem.ops, ops);
        assert_int_equal(it.problem.level, level);
    }
    jsonl_close(r);
    arena_free(&a);
}

/* ---- answers compile --------------------------------------------------------------------------------------------- */

/* gcc's verdict on a file: 0 when it compiles. */
static int syntax(const char *path) {
    fflush(stdout);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(99);
        execlp("gcc", "gcc", "-std=gnu11", "-fopenmp", "-fsyntax-only", "-Wall",
               "-Werror=implicit-function-declaration", "-Werror=uninitialized", "-Wno-unused", path, (char *)NULL);
        _exit(99);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_not_equal(WEXITSTATUS(status), 99);
    return WEXITSTATUS(status);
}

/* Puts an answer into a file among others: its own names, and every dimension macro defined. */
static void add_unit(struct str *s, const char *answer, int id) {
    static const char *const shared[] = {"kernel", "fast_exp", "fast_log", "fast_tanh", "fast_erf"};
    for (size_t i = 0; i < ARRAY_LEN(shared); i++)
        str_addf(s, "#undef %s\n#define %s %s_%d\n", shared[i], shared[i], shared[i], id);
    for (const char *c = answer; *c; c++) {
        if (!isupper((unsigned char)*c) || (c > answer && (isalnum((unsigned char)c[-1]) || c[-1] == '_'))) continue;
        size_t n = strspn(c, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
        if (n > 3 && c[n - 3] == '_' && c[n - 2] == 'D' && isdigit((unsigned char)c[n - 1]))
            str_addf(s, "#undef %.*s\n#define %.*s 64\n", (int)n, c, (int)n, c);
        c += n - 1;
    }
    str_adds(s, answer);
}
static const char prelude[] = "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n";

static void answers_compile(void **state) {
    (void)state;
    struct generator *g = open_builtin();
    struct arena a = ARENA_INIT;
    struct str s = STR_INIT;
    char path[200];
    str_adds(&s, prelude);
    for (int i = 0; i < 160; i++) {
        struct gen_item it;
        generator_make(g, 3, (uint64_t)i, &a, &it);
        add_unit(&s, it.answers[i % GEN_STYLES], i);
    }
    write_file("answers.c", s.p, path);
    assert_int_equal(syntax(path), 0);
    str_free(&s);
    arena_free(&a);
    generator_close(g);
}

static void recipes(void **state) {
    (void)state;
    static const struct {
        const char *recipe, *error;
    } bad[] = {{"rows 4x4", "expected a head"},
               {"rows 4 relu", "2 sizes"},
               {"cube 4x4 relu", "expected rows, seq"},
               {"rows 4x4 rleu", "no such operator"},
               {"rows 4x4 conv2d:8,3,1,1", "conv2d"},
               {"rows 4x4 linear:x", "integers"},
               {"rows 4x4 mean_all relu", "nothing can follow"},
               {"rows 4x4 relu gelu relu gelu relu gelu relu gelu relu gelu relu gelu relu", "too many"}};
    struct arena a = ARENA_INIT;
    struct gen_item it;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_not_equal(generator_from_recipe(bad[i].recipe, 1, &a, &it, &e), ST_OK);
        if (!strstr(e.msg, bad[i].error)) fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].recipe, e.msg, bad[i].error);
    }
    assert_int_equal(generator_from_recipe("rows 64x128 linear:64 gelu softmax", 1, &a, &it, &e), ST_OK);
    assert_string_equal(it.problem.ops, "linear gelu softmax");
    assert_int_equal(it.problem.level, 2);
    assert_non_null(strstr(it.problem.code, "nn.Linear("));
    assert_non_null(strstr(it.answers[GEN_STYLE_naive], "erff("));
    assert_non_null(strstr(it.answers[GEN_STYLE_fused_parallel_fast], "fast_erf("));
    assert_null(strstr(it.answers[GEN_STYLE_fused], "#pragma"));
    assert_non_null(strstr(it.answers[GEN_STYLE_parallel], "#pragma omp parallel for"));
    assert_string_equal(gen_style_name(GEN_STYLE_fused_simd), "fused_simd");
    arena_free(&a);
}

/* Every kind of break applies to most answers, changes them, and those that must not compile do not. */
static void broken_answers(void **state) {
    (void)state;
    struct generator *g = open_builtin();
    struct arena a = ARENA_INIT;
    int made[GEN_BREAKS] = {0}, tried = 0, compile_errors[GEN_BREAKS] = {0}, compiled[GEN_BREAKS] = {0};
    for (uint64_t i = 0; i < 60; i++, tried++) {
        struct gen_item it;
        generator_make(g, 5, i, &a, &it);
        const char *right = it.answers[i % GEN_STYLES];
        for (int k = 0; k < GEN_BREAKS; k++) {
            char *wrong = generator_break(right, (enum gen_break)k, i, &a);
            if (k == GEN_BREAK_wrong_size) assert_true(wrong || has_choice(right, "names"));
            if (!wrong) continue;
            made[k]++;
            assert_string_not_equal(wrong, right);
            assert_string_equal(wrong, generator_break(right, (enum gen_break)k, i, &a));
            bool by_prototype = k == GEN_BREAK_wrong_signature; /* shows only against the verifier's prototype */
            if (i % 2 || i >= GEN_STYLES || by_prototype) continue;
            struct str s = STR_INIT;
            char path[200];
            str_adds(&s, prelude);
            add_unit(&s, wrong, 0);
            write_file("wrong.c", s.p, path);
            str_free(&s);
            if (syntax(path))
                compile_errors[k]++;
            else
                compiled[k]++;
        }
    }
    for (int k = 0; k < GEN_BREAKS; k++) {
        const char *name = gen_break_name((enum gen_break)k);
        if (made[k] * (k == GEN_BREAK_wrong_size ? 8 : 4) < tried) fail_msg("%s: only %d of %d", name, made[k], tried);
        bool must_fail =
            k == GEN_BREAK_undeclared_name || k == GEN_BREAK_missing_semicolon || k == GEN_BREAK_missing_brace;
        if (must_fail && compiled[k]) fail_msg("%s: %d compile", name, compiled[k]);
        if (!must_fail && k != GEN_BREAK_missing_reset && compile_errors[k])
            fail_msg("%s: %d do not compile", name, compile_errors[k]);
    }
    assert_null(generator_break("no kernel here", GEN_BREAK_crash, 1, &a));
    arena_free(&a);
    generator_close(g);
}

/* Triton answers: what a style's choices change, and problems that have none. */
static void triton_answers(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct gen_item it;
    int share = 0;
    for (int s = 0; s < GEN_TRITON_STYLES; s++) share += gen_triton_style_share((enum gen_triton_style)s);
    assert_int_equal(share, 100);
    assert_string_equal(gen_triton_style_name(GEN_TRITON_fused_small), "fused_small");
    assert_int_equal(generator_from_recipe("rows 6x40 linear:24 relu softmax", 3, &a, &it, &e), ST_OK);
    const char *fused = strstr(it.triton[GEN_TRITON_fused], "@triton.jit");
    assert_non_null(fused);
    assert_memory_equal(it.triton[GEN_TRITON_fused], "# plan: fused, block 1024, names\nimport torch\n", 46);
    static const char kernel[] = "@triton.jit\ndef kernel1(x, out, N, BLOCK: tl.constexpr):\n"
                                 "    r = tl.program_id(0)\n"
                                 "    j = tl.arange(0, BLOCK)\n"
                                 "    m = j < N\n"
                                 "    v = tl.load(x + r * N + j, mask=m, other=0.0)\n"
                                 "    v = tl.maximum(v, 0.0)\n"
                                 "    v = tl.exp(v - tl.max(tl.where(m, v, -float('inf')), axis=0))\n"
                                 "    v = v / tl.sum(tl.where(m, v, 0.0), axis=0)\n"
                                 "    tl.store(out + r * N + j, v, mask=m)\n\n"
                                 "class ModelNew(nn.Module):\n";
    assert_memory_equal(fused, kernel, strlen(kernel));
    assert_non_null(strstr(fused, "        N = t1.shape[-1]\n"
                                  "        t2 = torch.empty_like(t1)\n"
                                  "        kernel1[(t1.numel() // N,)](t1, t2, N, BLOCK=triton.next_power_of_2(N))\n"
                                  "        return t2\n"));
    assert_non_null(strstr(it.triton[GEN_TRITON_fused_numbers], "kernel1[(6,)](t1, t2, BLOCK=32)"));
    assert_non_null(strstr(it.triton[GEN_TRITON_fused_numbers], "m = j < 24\n"));
    assert_null(strstr(fused, "kernel2"));
    assert_non_null(strstr(it.triton[GEN_TRITON_separate], "kernel2[(t2.numel() // N,)]"));
    assert_non_null(
        strstr(it.triton[GEN_TRITON_separate_small], "kernel1[(triton.cdiv(n, 64),)](t1, t2, n, BLOCK=64)"));
    assert_non_null(strstr(it.triton[GEN_TRITON_separate_small_numbers], "kernel1[(3,)](t1, t2, BLOCK=64)"));
    assert_int_equal(generator_from_recipe("rows 6x40 linear:24", 3, &a, &it, &e), ST_OK);
    for (int s = 0; s < GEN_TRITON_STYLES; s++) assert_null(it.triton[s]); /* PyTorch's library has it */
    assert_int_equal(generator_from_recipe("rows 2x40000 softmax relu", 3, &a, &it, &e), ST_OK);
    assert_null(strstr(it.triton[GEN_TRITON_fused], "tl.exp")); /* its rows are too long for a program */
    assert_non_null(strstr(it.triton[GEN_TRITON_fused], "tl.maximum"));
    arena_free(&a);
}

/* Native CUDA answers: what a style's choices change, and programs that have none. */
static void cuda_answers(void **state) {
    (void)state;
    struct arena a = ARENA_INIT;
    struct gen_item it;
    int share = 0;
    for (int s = 0; s < GEN_CUDA_STYLES; s++) share += gen_cuda_style_share((enum gen_cuda_style)s);
    assert_int_equal(share, 100);
    assert_string_equal(gen_cuda_style_name(GEN_CUDA_fused_numbers), "fused_numbers");
    assert_int_equal(generator_from_recipe("rows 6x40 relu scale:2.0", 3, &a, &it, &e), ST_OK);
    const char *fused = it.cuda[GEN_CUDA_fused], *separate = it.cuda[GEN_CUDA_separate];
    assert_memory_equal(fused, "// plan: fused, names\nenum { R = ", 33);
    assert_non_null(strstr(fused, "  if (i >= R * N) return;\n"));
    assert_non_null(strstr(fused, "  step1<<<(R * N + 255) / 256, 256, 0, stream>>>("));
    assert_null(strstr(fused, "step2"));
    assert_null(strstr(fused, "row_sum"));
    assert_non_null(strstr(separate, "step2<<<"));
    assert_non_null(strstr(separate, "float v = out[i];\n  v = v * 2.0f;\n  out[i] = v;\n"));
    assert_non_null(strstr(it.cuda[GEN_CUDA_fused_numbers], "  if (i >= 240) return;\n"));
    assert_non_null(strstr(it.cuda[GEN_CUDA_fused_numbers], "<<<(240 + 255) / 256, 256, 0, stream>>>"));
    assert_int_equal(generator_from_recipe("rows 6x40 relu max", 3, &a, &it, &e), ST_OK);
    assert_non_null(strstr(it.cuda[GEN_CUDA_fused], "step1<<<R, 256, 0, stream>>>("));
    assert_non_null(strstr(it.cuda[GEN_CUDA_fused], "__device__ float row_max(float m) {"));
    assert_null(it.cuda[GEN_CUDA_separate]); /* the rows have no place between two kernels */
    static const char *const without[] = {"rows 6x40 linear:24", "rows 6x40 cumsum", "rows 2x40000 softmax",
                                          "rows 6x40 mean_all", "rows 6x40 argmax"};
    for (size_t i = 0; i < ARRAY_LEN(without); i++) {
        assert_int_equal(generator_from_recipe(without[i], 3, &a, &it, &e), ST_OK);
        for (int s = 0; s < GEN_CUDA_STYLES; s++) assert_null(it.cuda[s]);
    }
    arena_free(&a);
}

static int setup(void **state) {
    (void)state;
    return mkdtemp(dir) ? 0 : -1;
}
static int teardown(void **state) {
    (void)state;
    return fs_remove(dir, &e) == ST_OK ? 0 : -1;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(is_a_function_of_seed_and_index),
        cmocka_unit_test(leaves_out_the_test_sequences),
        cmocka_unit_test(plans_and_sizes),
        cmocka_unit_test(sizes_as_numbers),
        cmocka_unit_test(index_errors_name_the_line),
        cmocka_unit_test(index_lists_the_operators_of_the_code),
        cmocka_unit_test(compositions),
        cmocka_unit_test(answers_compile),
        cmocka_unit_test(index_recipes_give_the_operators),
        cmocka_unit_test(recipes),
        cmocka_unit_test(broken_answers),
        cmocka_unit_test(triton_answers),
        cmocka_unit_test(cuda_answers),
    };
    return cmocka_run_group_tests_name("generator", tests, setup, teardown);
}
