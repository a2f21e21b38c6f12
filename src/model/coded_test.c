/* Bases in codes: a run on one has the bits of the run on the decoded model that it saves, in float32 and bf16; codes
 * are made at load or read as bitsandbytes and the Hub's FP8 models have them; no decoded copy stays in memory; and
 * what is wrong in a file is refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/rng.h"
#include "base/str.h"
#include "io/safetensors.h"
#include "model/coded_file.h"
#include "model/model.h"
#include "tensor/backend.h"

#define SHAPE(q)                                                                                              \
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"vocab_size\":150,\"hidden_size\":192,\"intermediate_size\":" \
    "320,\"num_hidden_layers\":2,\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":32,"        \
    "\"max_position_embeddings\":400,\"tie_word_embeddings\":true" q "}"
#define FP8 ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}"
#define NF4                                                                                                     \
    ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true,\"load_in_8bit\":false," \
    "\"bnb_4bit_quant_type\":\"nf4\"}"
enum { ROWS = 40 };

static struct pool *pool;
static struct backend *be;
static char tmp_dir[] = "/tmp/kernelrl-coded-XXXXXX";
static struct err err;

#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)

static int setup(void **state) {
    (void)state;
    pool = pool_create(2);
    if (cpu_backend_open(pool, &be, &err) != ST_OK) return 1;
    return mkdtemp(tmp_dir) ? 0 : 1;
}

static int teardown(void **state) {
    (void)state;
    be->close(be);
    pool_destroy(pool);
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

static const char *in_tmp(const char *name) {
    static char path[4][256];
    static int at;
    at = (at + 1) % 4;
    snprintf(path[at], sizeof path[at], "%s/%s", tmp_dir, name);
    return path[at];
}

static struct model *load(const char *dir, const char *dtype, const char *base) {
    const struct model_options o = {.dtype = dtype, .base_dtype = base, .frozen = true};
    struct model *m;
    CHECK(model_load(dir, &o, be, &m, &err));
    return m;
}

/* Log-probabilities of a batch and the gradients of a new adapter, to be freed. */
static float *results(struct model *m, int64_t *n) {
    int32_t ids[ROWS], rows[ROWS], targets[ROWS];
    float g[ROWS];
    struct rng r = rng_make(3, 1);
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)rng_below(&r, 150);
        targets[i] = (int32_t)rng_below(&r, 150);
        rows[i] = i;
        g[i] = 0.1f * (float)rng_normal(&r);
    }
    const struct segment seg = {0, ROWS, -1, ADAPTER_OWN};
    const struct train_batch b = {
        .ids = ids, .T = ROWS, .seg = &seg, .n_seg = 1, .rows = rows, .targets = targets, .N = ROWS};
    CHECK(model_lora_init(m, 3, 6, 7, &err));
    CHECK(model_train_prepare(m, TRAIN_LORA, &err));
    int count;
    const struct param *p = model_params(m, &count);
    for (int i = 0; i < count; i++) { /* B is zero */
        float *host = xmalloc((size_t)p[i].n * sizeof *host);
        for (int64_t k = 0; k < p[i].n; k++) host[k] = 0.05f * (float)rng_normal(&r);
        model_param_put(m, &p[i], host);
        free(host);
    }
    model_params_changed(m);
    float *out = xmalloc(ROWS * sizeof *out);
    CHECK(model_forward(m, &b, out, NULL, NULL, &err));
    CHECK(model_backward(m, &b, g, &err));
    *n = ROWS;
    for (int i = 0; i < count; i++) {
        out = xrealloc(out, (size_t)(*n + p[i].n) * sizeof *out);
        model_grad_get(m, &p[i], out + *n);
        *n += p[i].n;
    }
    CHECK(be->sync(be, &err));
    return out;
}

static void plain_model(const char *dir) {
    struct model *m;
    CHECK(model_init(SHAPE(""), 5, &(struct model_options){.dtype = "f32"}, be, &m, &err));
    CHECK(model_save(m, dir, "bf16", &err));
    model_free(m);
}

/* The model in dir, opened so, against the decoded model that it saves. */
static void same_as_decoded(const char *dir, const char *dtype, const char *base, const char *codes) {
    struct model *m = load(dir, dtype, base);
    assert_string_equal(model_base_codes(m), codes);
    CHECK(model_save(m, in_tmp("decoded"), "bf16", &err));
    int64_t n, n_want;
    float *got = results(m, &n);
    const struct model_memory mem = model_memory(m);
    model_free(m);
    m = load(in_tmp("decoded"), dtype, NULL);
    assert_null(model_base_codes(m));
    assert_true(mem.weight_bytes < model_memory(m).weight_bytes);
    float *want = results(m, &n_want);
    assert_true(n == n_want);
    assert_memory_equal(got, want, (size_t)n * sizeof *got);
    model_free(m);
    free(got), free(want);
    if (!base) { /* the same codes, decoded as they are read */
        m = load(dir, dtype, "bf16");
        assert_null(model_base_codes(m));
        want = results(m, &n_want);
        got = NULL;
        model_free(m);
        m = load(dir, dtype, NULL);
        got = results(m, &n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        model_free(m);
        free(got), free(want);
    }
}

static void test_made_at_load(void **state) {
    (void)state;
    plain_model(in_tmp("plain"));
    static const char *const codes[] = {"fp8", "nf4"}, *const dtypes[] = {"f32", "bf16"};
    for (int i = 0; i < 4; i++) same_as_decoded(in_tmp("plain"), dtypes[i / 2], codes[i % 2], codes[i % 2]);
}

static void test_golden(void **state) {
    (void)state;
    const char *data = getenv("KERNELRL_TESTDATA");
    if (!data || !*data) {
        printf("skipped: KERNELRL_TESTDATA is not set\n");
        skip();
    }
    static const char *const name[] = {"qwen3_fp8", "qwen2_nf4"};
    for (int i = 0; i < 4; i++) {
        CLEANUP_STR struct str dir = STR_INIT;
        str_addf(&dir, "%s/golden/%s", data, name[i % 2]);
        same_as_decoded(dir.p, i / 2 ? "bf16" : "f32", NULL, name[i % 2] + 6);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

/* A checkpoint in codes: that of the plain model, with the tensors of its layers' matrices replaced. edit changes what
 * is written; it gets the tensors of one matrix, and is called for each. */
struct tensors {
    struct st_entry at[512];
    size_t n;
    void *mem[512];
    size_t n_mem;
};
typedef void edit_fn(struct tensors *t, const char *name, struct coded_matrix *m);

static void *own(struct tensors *t, void *p) { return t->mem[t->n_mem++] = p; }
static char *named(struct tensors *t, const char *name, const char *end) {
    const size_t n = strlen(name) + strlen(end) + 1;
    char *s = own(t, xmalloc(n));
    snprintf(s, n, "%s%s", name, end);
    return s;
}
static struct st_entry *add(struct tensors *t, const char *name, const char *end, enum st_dtype dtype, int64_t d0,
                            int64_t d1, const void *data) {
    struct st_entry *e = &t->at[t->n++];
    *e = (struct st_entry){.name = named(t, name, end),
                           .dtype = dtype,
                           .from = dtype,
                           .nd = d1 > 0 ? 2 : 1,
                           .dim = {d0, d1},
                           .data = data};
    return e;
}
static struct st_entry *find(struct tensors *t, const char *name, const char *end) {
    const char *full = named(t, name, end);
    for (size_t i = 0; i < t->n; i++)
        if (strcmp(t->at[i].name, full) == 0) return &t->at[i];
    fail_msg("no %s", full);
    return NULL;
}

static void add_coded(struct tensors *t, const char *name, struct coded_matrix *m) {
    if (m->format == FORMAT_FP8) {
        add(t, name, "", ST_DTYPE_F8_E4M3, m->rows, m->K, m->codes);
        add(t, name, "_scale_inv", ST_DTYPE_F32, format_blocks(m->rows, 128), format_blocks(m->K, 128), m->scale);
        return;
    }
    const int64_t blocks = nf4_blocks(m->rows, m->K);
    char *state = own(t, xmalloc(300));
    const int n = snprintf(state, 300,
                           "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [%d, "
                           "%d], \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %.17g}",
                           (int)m->rows, (int)m->K, (double)m->offset);
    add(t, name, "", ST_DTYPE_U8, (m->rows * m->K + 1) / 2, 1, m->codes);
    add(t, name, ".absmax", ST_DTYPE_U8, blocks, 0, m->absmax);
    add(t, name, ".nested_absmax", ST_DTYPE_F32, format_blocks(blocks, NF4_NESTED), 0, m->nested);
    add(t, name, ".nested_quant_map", ST_DTYPE_F32, NF4_SCALES, 0, m->nested_map);
    add(t, name, ".quant_map", ST_DTYPE_F32, NF4_CODES, 0, m->map);
    add(t, name, ".quant_state.bitsandbytes__nf4", ST_DTYPE_U8, n, 0, state);
}

static void write_coded(const char *dir, enum weight_format format, edit_fn *edit) {
    struct tensors t = {.n = 0};
    struct coded_matrix m[64];
    int n_m = 0;
    struct st_file f;
    CHECK(fs_mkdirs(dir, &err));
    CHECK(st_open(in_tmp("plain/model.safetensors"), &f, &err));
    for (size_t i = 0; i < f.count; i++) {
        const struct st_tensor *s = &f.tensor[i];
        if (!strstr(s->name, "_proj.weight")) {
            add(&t, s->name, "", s->dtype, s->dim[0], s->nd > 1 ? s->dim[1] : 0, s->data);
            continue;
        }
        uint16_t *w = own(&t, xmalloc(s->bytes));
        memcpy(w, s->data, s->bytes);
        format_of(format)->quantise(w, s->dim[0], s->dim[1], pool, &m[n_m]);
        add_coded(&t, s->name, &m[n_m]);
        if (edit) edit(&t, s->name, &m[n_m]);
        n_m++;
    }
    CHECK(st_write(in_tmp("file.safetensors"), t.at, t.n, NULL, &err));
    CLEANUP_STR struct str path = STR_INIT;
    str_addf(&path, "%s/model.safetensors", dir);
    assert_int_equal(rename(in_tmp("file.safetensors"), path.p), 0);
    const char *config = format == FORMAT_FP8 ? SHAPE(FP8) : SHAPE(NF4);
    str_clear(&path);
    str_addf(&path, "%s/config.json", dir);
    CHECK(fs_write_atomic(path.p, config, strlen(config), &err));
    st_close(&f);
    for (size_t i = 0; i < t.n_mem; i++) free(t.mem[i]);
    for (int i = 0; i < n_m; i++) coded_release(&m[i]);
}

/* What a file holds means the same as what is made at load. */
static void test_files(void **state) {
    (void)state;
    plain_model(in_tmp("plain"));
    static const enum weight_format in_files[] = {FORMAT_FP8, FORMAT_NF4};
    for (size_t i = 0; i < ARRAY_LEN(in_files); i++) {
        const char *name = format_of(in_files[i])->name;
        write_coded(in_tmp("coded"), in_files[i], NULL);
        struct model *m = load(in_tmp("coded"), "bf16", NULL);
        int64_t n, n_want;
        float *got = results(m, &n);
        model_free(m);
        m = load(in_tmp("plain"), "bf16", name);
        float *want = results(m, &n_want);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        model_free(m);
        free(got), free(want);
        m = load(in_tmp("coded"), "bf16", name);
        model_free(m);
    }
}

#define GATE "model.layers.1.mlp.gate_proj.weight"
static bool is_gate(const char *name) { return strcmp(name, GATE) == 0; }

static void e_nan(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)t;
    if (is_gate(name)) ((uint8_t *)(uintptr_t)m->codes)[77] = 0xff;
}
static void e_scale(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)t;
    if (is_gate(name)) ((float *)(uintptr_t)m->scale)[1] = 1e9f;
}
static void e_negative(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)t;
    if (is_gate(name)) ((float *)(uintptr_t)m->scale)[1] = -0.01f;
}
static void e_scale_shape(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) find(t, name, "_scale_inv")->dim[0]--;
}
static void e_shape(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) find(t, name, "")->dim[0]--;
}
static void e_mixed(struct tensors *t, const char *name, struct coded_matrix *m) {
    if (!is_gate(name)) return;
    struct st_entry *e = find(t, name, "");
    e->data = own(t, xcalloc((size_t)(m->rows * m->K), 2));
    e->dtype = e->from = ST_DTYPE_BF16;
    e->nd = 2;
    e->dim[0] = m->rows, e->dim[1] = m->K;
}
static void e_no_state(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) find(t, name, ".quant_state.bitsandbytes__nf4")->name = "something";
}
static void state_text(struct tensors *t, const char *name, const char *text) {
    struct st_entry *e = find(t, name, ".quant_state.bitsandbytes__nf4");
    e->data = text;
    e->dim[0] = (int64_t)strlen(text);
}
static void e_state(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) state_text(t, name, "{\"quant_type\": ");
}
static void e_block(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) state_text(t, name, "{\"quant_type\": \"nf4\", \"blocksize\": 128}");
}
static void e_type(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) state_text(t, name, "{\"quant_type\": \"fp4\", \"blocksize\": 64}");
}
static void e_map(struct tensors *t, const char *name, struct coded_matrix *m) {
    if (!is_gate(name)) return;
    float *map = own(t, xmalloc(sizeof nf4_map));
    memcpy(map, m->map, sizeof nf4_map);
    map[4] = 1e30f;
    find(t, name, ".quant_map")->data = map;
}
static void e_small_map(struct tensors *t, const char *name, struct coded_matrix *m) {
    if (!is_gate(name)) return;
    float *map = own(t, xmalloc(sizeof nf4_map));
    memcpy(map, m->map, sizeof nf4_map);
    map[9] = -0.9f * CODED_SMALLEST_MAP;
    find(t, name, ".quant_map")->data = map;
}
static void e_nested(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)t;
    if (is_gate(name)) ((float *)(uintptr_t)m->nested)[0] = 1e20f;
}
static void e_blocks(struct tensors *t, const char *name, struct coded_matrix *m) {
    (void)m;
    if (is_gate(name)) find(t, name, ".absmax")->dim[0]--;
}

static void test_bad_files(void **state) {
    (void)state;
    static const struct {
        enum weight_format format;
        edit_fn *edit;
        const char *says[2];
    } bad[] = {{FORMAT_FP8, e_nan, {GATE, "element 77 of 61440 is NaN"}},
               {FORMAT_FP8, e_scale, {GATE "_scale_inv", "1e+09"}},
               {FORMAT_FP8, e_negative, {GATE "_scale_inv", "-0.01"}},
               {FORMAT_FP8, e_scale_shape, {GATE "_scale_inv", "[2, 2]"}},
               {FORMAT_FP8, e_shape, {GATE, "[319, 192]"}},
               {FORMAT_FP8, e_mixed, {GATE, "mixture"}},
               {FORMAT_NF4, e_mixed, {GATE, "mixture"}},
               {FORMAT_NF4, e_shape, {GATE, "[30719, 1]"}},
               {FORMAT_NF4, e_no_state, {GATE, "quant_state"}},
               {FORMAT_NF4, e_state, {GATE ".quant_state", "unexpected token"}},
               {FORMAT_NF4, e_block, {GATE ".quant_state", "blocksize: 128"}},
               {FORMAT_NF4, e_type, {GATE ".quant_state", "quant_type: \"fp4\""}},
               {FORMAT_NF4, e_map, {GATE ".quant_map", "element 4"}},
               {FORMAT_NF4, e_small_map, {GATE ".quant_map", "element 9 is -9e-08"}},
               {FORMAT_NF4, e_nested, {GATE ".nested_absmax", "1e+20"}},
               {FORMAT_NF4, e_blocks, {GATE ".absmax", "[959]"}}};
    plain_model(in_tmp("plain"));
    const struct model_options o = {.dtype = "bf16", .frozen = true};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct model *m;
        write_coded(in_tmp("bad"), bad[i].format, bad[i].edit);
        assert_int_not_equal(model_load(in_tmp("bad"), &o, be, &m, &err), ST_OK);
        for (int k = 0; k < 2; k++)
            if (!strstr(err.msg, bad[i].says[k])) fail_msg("case %zu: no %s in: %s", i, bad[i].says[k], err.msg);
    }
    write_coded(in_tmp("bad"), FORMAT_NF4, NULL); /* a file cut short */
    assert_int_equal(truncate(in_tmp("bad/model.safetensors"), 200000), 0);
    struct model *m;
    assert_int_not_equal(model_load(in_tmp("bad"), &o, be, &m, &err), ST_OK);
    assert_non_null(strstr(err.msg, "model.safetensors"));
}

static void test_bad_configs(void **state) {
    (void)state;
    static const struct {
        const char *config, *base, *says;
        bool trained;
    } bad[] = {
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"awq\"}"), NULL, "quant_method: \"awq\"", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"gptq\"}"), NULL, "quant_method: \"gptq\"", false},
        {SHAPE(",\"quantization_config\":7"), NULL, "quantization_config: expected an object", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"fp8\"}"), NULL, "weight_block_size", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}"), NULL, "fmt: \"e5m2\"", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}"), NULL,
         "activation_scheme: \"static\"", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_8bit\":true}"), NULL,
         "load_in_8bit", false},
        {SHAPE(",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}"), NULL,
         "bnb_4bit_quant_type: \"fp4\"", false},
        {SHAPE(FP8), "nf4", "base_dtype: the checkpoint is in fp8", false},
        {SHAPE(""), "int3", "base_dtype: expected auto|bf16|", false},
        {SHAPE(""), "nf4", "base_dtype: training all parameters", true},
        {SHAPE(NF4), NULL, "base_dtype: training all parameters", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const struct model_options o = {.dtype = "bf16", .base_dtype = bad[i].base, .frozen = !bad[i].trained};
        struct model *m;
        assert_int_not_equal(model_init(bad[i].config, 1, &o, be, &m, &err), ST_OK);
        if (!strstr(err.msg, bad[i].says)) fail_msg("case %zu: no %s in: %s", i, bad[i].says, err.msg);
    }
}

static void test_adapters_name_their_base(void **state) {
    (void)state;
    const struct model_options nf4 = {.dtype = "bf16", .base_dtype = "nf4", .frozen = true},
                               fp8 = {.dtype = "bf16", .base_dtype = "fp8", .frozen = true},
                               none = {.dtype = "bf16", .frozen = true};
    struct model *m;
    CHECK(model_init(SHAPE(""), 5, &nf4, be, &m, &err));
    CHECK(model_lora_init(m, 2, 4, 1, &err));
    CHECK(model_lora_save(m, in_tmp("adapter"), &err));
    CHECK(model_lora_load(m, in_tmp("adapter"), &err));
    assert_int_equal(model_train_prepare(m, TRAIN_FULL, &err), ST_INVALID);
    model_free(m);
    CHECK(model_init(SHAPE(""), 5, &fp8, be, &m, &err));
    assert_int_equal(model_lora_load(m, in_tmp("adapter"), &err), ST_INVALID);
    assert_non_null(strstr(err.msg, "base_dtype: it was trained on a base in nf4, and this one is in fp8"));
    model_free(m);
    CHECK(model_init(SHAPE(""), 5, &none, be, &m, &err)); /* says so, and goes on */
    CHECK(model_lora_load(m, in_tmp("adapter"), &err));
    model_free(m);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { COUNTS_MEMORY = 0 };
#else
enum { COUNTS_MEMORY = 1 };
#endif

/* Resident bytes of the process. */
static double held(void) {
    long all = 0, resident = 0;
    malloc_trim(0);
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%ld %ld", &all, &resident), 2);
    fclose(f);
    return (double)resident * (double)sysconf(_SC_PAGESIZE);
}

/* A base takes what it says, and after training passes nothing decoded is left: that would be 2 bytes a weight. */
static void test_memory(void **state) {
    (void)state;
    static const char big[] =
        "{\"model_type\":\"qwen2\",\"vocab_size\":512,\"hidden_size\":1024,\"intermediate_size\":4096,"
        "\"num_hidden_layers\":4,\"num_attention_heads\":16,\"num_key_value_heads\":4,"
        "\"max_position_embeddings\":400,\"tie_word_embeddings\":true}";
    if (!COUNTS_MEMORY) {
        printf("skipped: sanitizers have an allocator of their own\n");
        skip();
    }
    for (int f = FORMAT_FP8; f < FORMAT_COUNT; f++) {
        const struct model_options o = {.dtype = "bf16",
                                        .base_dtype = format_of((enum weight_format)f)->name,
                                        .frozen = true,
                                        .repeat_random = true};
        struct model *m;
        const double before = held();
        CHECK(model_init(big, 1, &o, be, &m, &err));
        const double after = held() - before, said = (double)model_memory(m).weight_bytes;
        if (!(after > 0.95 * said && after < 1.05 * said))
            fail_msg("%s: %.0f bytes are held for weights of %.0f", o.base_dtype, after, said);
        int64_t n;
        free(results(m, &n));
        const double passed = held() - before;
        if (passed > said + 40e6) fail_msg("%s: %.0f bytes are held after a pass", o.base_dtype, passed);
        model_free(m);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_made_at_load), cmocka_unit_test(test_golden),
        cmocka_unit_test(test_files),        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_bad_configs),  cmocka_unit_test(test_adapters_name_their_base),
        cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
