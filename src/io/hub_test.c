/* The Hub client against a Hub of the test's own (tests/hub/server.py): what it downloads, what it asks for, to whom
 * the token goes, and what happens when things go wrong. */
#include "io/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "base/home.h"
#include "base/log.h"
#include "base/rng.h"
#include "io/json.h"
#include "io/jsonl.h"

#define TOKEN "hf_of_the_tests"
#define COMMIT_A "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define COMMIT_B "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
enum { WEIGHTS_BYTES = 3000000 };

static char root[64], cache[128];
static struct err e;
static pid_t server;
static int server_stdin = -1;
static char *weights;
static struct arena scratch;

#define CHECK(x)                                 \
    do {                                         \
        if ((x) != ST_OK) fail_msg("%s", e.msg); \
    } while (0)

/* ---- the server ---------------------------------------------------------------------------------------------------*/

static int start(void **state) {
    (void)state;
    snprintf(root, sizeof root, "/tmp/kernelrl_hub_XXXXXX");
    if (!mkdtemp(root)) return 1;
    log_set_level(LOG_ERROR);
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) return 1;
    char *script = arena_printf(&scratch, "%s/tests/hub/server.py", home_dir());
    server = fork();
    if (server == 0) {
        dup2(in[0], 0);
        dup2(out[1], 1);
        execlp("python3", "python3", script, root, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    server_stdin = in[1];
    FILE *f = fdopen(out[0], "r");
    int hub, storage;
    if (!f || fscanf(f, "%d %d", &hub, &storage) != 2) return 1;
    fclose(f);
    setenv("HF_ENDPOINT", arena_printf(&scratch, "http://127.0.0.1:%d/", hub), 1);
    setenv("no_proxy", "127.0.0.1", 1);
    weights = xmalloc(WEIGHTS_BYTES);
    for (size_t i = 0; i < WEIGHTS_BYTES; i++) weights[i] = (char)rng_u64(1, 2, i / 7);
    return 0;
}

static int stop(void **state) {
    (void)state;
    close(server_stdin);
    waitpid(server, NULL, 0);
    free(weights);
    arena_free(&scratch);
    return fs_remove(root, &e) == ST_OK ? 0 : 1;
}

/* Before each test: nothing cached, nothing logged, no faults. */
static int fresh(void **state) {
    (void)state;
    static int n;
    static const char *const clear[] = {"HF_HOME",
                                        "HF_HUB_CACHE",
                                        "HF_TOKEN",
                                        "HF_TOKEN_PATH",
                                        "HF_HUB_OFFLINE",
                                        "XDG_CACHE_HOME",
                                        "TRANSFORMERS_OFFLINE",
                                        "HUGGINGFACE_HUB_CACHE",
                                        "HUGGING_FACE_HUB_TOKEN"};
    for (size_t i = 0; i < ARRAY_LEN(clear); i++) unsetenv(clear[i]);
    snprintf(cache, sizeof cache, "%s/cache%d", root, n++);
    setenv("HF_HOME", cache, 1);
    setenv("HF_HUB_CACHE", cache, 1);
    unlink(arena_printf(&scratch, "%s/log", root));
    unlink(arena_printf(&scratch, "%s/faults.json", root));
    e = (struct err){0};
    return 0;
}

static void put(const char *repo, const char *commit, const char *name, const void *data, size_t n) {
    char *path = arena_printf(&scratch, "%s/repos/%s/%s/%s", root, repo, commit, name), *slash = strrchr(path, '/');
    *slash = 0;
    CHECK(fs_mkdirs(path, &e));
    *slash = '/';
    CHECK(fs_write_atomic(path, data, n, &e));
}
static void put_text(const char *repo, const char *commit, const char *name, const char *text) {
    put(repo, commit, name, text, strlen(text));
}
static void put_refs(const char *repo, const char *json) { put_text(repo, ".", "refs.json", json); }

/* ORG/NAME with all that a model has. */
static void put_model(const char *repo, const char *commit) {
    put_text(repo, commit, "config.json", arena_printf(&scratch, "{\"of\": \"%s\"}", commit));
    put_text(repo, commit, "generation_config.json", "{}");
    put_text(repo, commit, "tokenizer.json", "{\"model\": 1}");
    put_text(repo, commit, "tokenizer_config.json", "{}");
    put_text(repo, commit, "README.md", "not wanted");
    put_text(repo, commit, "pytorch_model.bin", "not wanted either");
    put(repo, commit, "model.safetensors", weights, WEIGHTS_BYTES);
    put_refs(repo, "{\"main\": \"" COMMIT_A "\", \"release/v2\": \"" COMMIT_B "\"}");
}

static void faults(const char *list) {
    static int id;
    char *text = arena_printf(&scratch, "{\"id\": %d, \"faults\": [%s]}", ++id, list);
    CHECK(fs_write_atomic(arena_printf(&scratch, "%s/faults.json", root), text, strlen(text), &e));
}

/* Requests so far that fit; NULL and -1 fit everything. */
static int requests(const char *on, const char *method, const char *path, int with_range) {
    const char *log = arena_printf(&scratch, "%s/log", root), *line;
    if (!fs_is_file(log)) return 0;
    struct jsonl_reader *r;
    size_t n;
    int count = 0;
    CHECK(jsonl_open(log, 1 << 16, &r, &e));
    while (jsonl_next(r, &line, &n, &e) == ST_OK && line) {
        CLEANUP_JSON json_t *j = NULL;
        CHECK(js_parse(line, n, log, &j, &e));
        const bool range = json_is_string(json_object_get(j, "range"));
        count += (!on || strcmp(json_string_value(json_object_get(j, "server")), on) == 0) &&
                 (!method || strcmp(json_string_value(json_object_get(j, "method")), method) == 0) &&
                 (!path || strstr(json_string_value(json_object_get(j, "path")), path)) &&
                 (with_range < 0 || range == (with_range > 0));
    }
    jsonl_close(r);
    return count;
}

/* Requests to a server that carried (the right token, or anything in its place). */
static int requests_with(const char *on, const char *key) {
    const char *log = arena_printf(&scratch, "%s/log", root), *line;
    struct jsonl_reader *r;
    size_t n;
    int count = 0;
    CHECK(jsonl_open(log, 1 << 16, &r, &e));
    while (jsonl_next(r, &line, &n, &e) == ST_OK && line) {
        CLEANUP_JSON json_t *j = NULL;
        CHECK(js_parse(line, n, log, &j, &e));
        count +=
            strcmp(json_string_value(json_object_get(j, "server")), on) == 0 && json_is_true(json_object_get(j, key));
    }
    jsonl_close(r);
    return count;
}

/* ---- calls --------------------------------------------------------------------------------------------------------*/

static enum status open_kind(enum hub_kind kind, const char *name, const char *revision, char **dir) {
    const struct hub_request r = {.kind = kind, .name = name, .revision = revision, .backoff_s = 0.01};
    free(*dir);
    *dir = NULL;
    return hub_open(&r, dir, &e);
}

static void opens(enum hub_kind kind, const char *name, const char *revision, char **dir) {
    CHECK(open_kind(kind, name, revision, dir));
    assert_non_null(*dir);
}

static void refuses(enum hub_kind kind, const char *name, const char *revision, enum status want, const char *one,
                    const char *two) {
    CLEANUP_FREE char *dir = NULL;
    e = (struct err){0};
    assert_int_equal(open_kind(kind, name, revision, &dir), want);
    assert_null(dir);
    if (!strstr(e.msg, one) || !strstr(e.msg, two)) fail_msg("\"%s\" lacks \"%s\" or \"%s\"", e.msg, one, two);
    if (strstr(e.msg, "hf_") || strstr(e.msg, "signature")) fail_msg("a secret in \"%s\"", e.msg);
}

static void holds(const char *dir, const char *name, const void *data, size_t n) {
    CLEANUP_FREE char *text = NULL;
    size_t len = 0;
    CHECK(fs_read(arena_printf(&scratch, "%s/%s", dir, name), (size_t)1 << 30, &text, &len, &e));
    if (len != n || memcmp(text, data, n) != 0) fail_msg("%s/%s: not what was put there", dir, name);
}
static void holds_text(const char *dir, const char *name, const char *text) { holds(dir, name, text, strlen(text)); }

static bool exists(const char *dir, const char *name) { return fs_is_file(arena_printf(&scratch, "%s/%s", dir, name)); }

/* The partial file of the only large download of a test; NULL when there is none. */
static const char *partial(const char *repo_folder) {
    char **names = NULL;
    size_t n = 0;
    const char *found = NULL, *blobs = arena_printf(&scratch, "%s/%s/blobs", cache, repo_folder);
    if (!fs_is_dir(blobs)) return NULL;
    CHECK(fs_list(blobs, &names, &n, &e));
    for (size_t i = 0; i < n; i++) {
        if (str_has_suffix(names[i], ".incomplete")) found = arena_printf(&scratch, "%s/%s", blobs, names[i]);
        free(names[i]);
    }
    free(names);
    return found;
}

static int64_t file_bytes(const char *path) {
    struct stat sb;
    return path && stat(path, &sb) == 0 ? (int64_t)sb.st_size : -1;
}

/* ---- tests --------------------------------------------------------------------------------------------------------*/

static void names(void **state) {
    (void)state;
    static const char *const good[] = {"Qwen/Qwen2.5-Coder-0.5B", "a/b", "Qwen/Qwen3-0.6B@main", "a/b@refs/pr/1",
                                       "a_b/c.d@" COMMIT_A};
    static const char *const bad[] = {"",         "qwen",   "a/b/c", "/a/b",    "./a",      "../a",       "a/",
                                      "a/..",     "a/b--c", "a/b@",  "a/b@/x",  "a/b@../x", "a/b@x/../y", "a b/c",
                                      "a/b@a//b", "-a/b",   "a/b.",  "a/b@x y", "~/a",      "a/b@x/.y"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (!hub_is_name(good[i])) fail_msg("%s is a name", good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (hub_is_name(bad[i])) fail_msg("\"%s\" is no name", bad[i]);
    refuses(HUB_MODEL, "a/b", "../x", ST_CONFIG, "a/b", "no revision");
}

static void environment(void **state) {
    (void)state;
    struct hub_settings s;
    unsetenv("HF_HUB_CACHE");
    unsetenv("HF_HOME");
    setenv("XDG_CACHE_HOME", "/x", 1);
    hub_settings_read(&s);
    assert_string_equal(s.cache, "/x/huggingface/hub");
    assert_int_not_equal(s.endpoint[strlen(s.endpoint) - 1], '/');
    assert_false(s.offline);
    assert_null(s.token);
    hub_settings_free(&s);

    const char *home = getenv("HOME");
    setenv("HF_HOME", "~/h", 1);
    setenv("HF_HUB_OFFLINE", "TRUE", 1);
    hub_settings_read(&s);
    assert_string_equal(s.cache, arena_printf(&scratch, "%s/h/hub", home ? home : "~"));
    assert_true(s.offline);
    hub_settings_free(&s);

    setenv("HF_HUB_CACHE", "/c", 1);
    setenv("HF_HUB_OFFLINE", "0", 1);
    setenv("HF_TOKEN", "hf_env", 1);
    hub_settings_read(&s);
    assert_string_equal(s.cache, "/c");
    assert_false(s.offline);
    assert_string_equal(s.token, "hf_env");
    hub_settings_free(&s);

    unsetenv("HF_TOKEN");
    setenv("HF_HOME", root, 1);
    const char *file = arena_printf(&scratch, "%s/token", root);
    CHECK(fs_write_atomic(file, "  hf_file\n", 10, &e));
    hub_settings_read(&s);
    assert_string_equal(s.token, "hf_file");
    hub_settings_free(&s);
    unlink(file);
}

static void model_and_cache(void **state) {
    (void)state;
    char *dir = NULL, link[300] = "";
    put_model("models/org/model", COMMIT_A);
    setenv("HF_TOKEN", TOKEN, 1);
    opens(HUB_MODEL, "org/model", NULL, &dir);
    assert_string_equal(dir, arena_printf(&scratch, "%s/models--org--model/snapshots/" COMMIT_A, cache));
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    holds_text(dir, "config.json", "{\"of\": \"" COMMIT_A "\"}");
    holds_text(dir, "tokenizer.json", "{\"model\": 1}");
    assert_true(exists(dir, "generation_config.json") && exists(dir, "tokenizer_config.json"));
    assert_false(exists(dir, "README.md") || exists(dir, "pytorch_model.bin"));
    /* links are relative: the cache may be moved, and huggingface_hub makes them so */
    assert_true(readlink(arena_printf(&scratch, "%s/generation_config.json", dir), link, sizeof link - 1) > 0);
    assert_string_equal(link, "../../blobs/9e26dfeeb6e641a33dae4961196235bdb965b21b"); /* git hash-object of {} */
    holds_text(cache, "models--org--model/refs/main", COMMIT_A);
    assert_null(partial("models--org--model"));

    /* The hub saw the token at every request, also behind a redirect of its own; the storage never. */
    assert_int_equal(requests_with("hub", "token"), requests("hub", NULL, NULL, -1));
    assert_true(requests("hub", "GET", "/api/resolve-cache/", -1) > 0);
    assert_int_equal(requests("storage", "GET", NULL, -1), 2);
    assert_int_equal(requests_with("storage", "authorization"), 0);

    const int before = requests(NULL, NULL, NULL, -1);
    opens(HUB_MODEL, "org/model", "main", &dir);
    opens(HUB_MODEL, "org/model@" COMMIT_A, NULL, &dir);
    opens(HUB_TOKENIZER, "org/model", NULL, &dir);
    setenv("HF_HUB_OFFLINE", "1", 1);
    opens(HUB_MODEL, "org/model", NULL, &dir);
    assert_int_equal(requests(NULL, NULL, NULL, -1), before); /* all from the cache */

    /* One file is gone: it alone is downloaded again, and offline its name is said. */
    CHECK(fs_remove(arena_printf(&scratch, "%s/config.json", dir), &e));
    refuses(HUB_MODEL, "org/model", NULL, ST_CONFIG, "config.json", "HF_HUB_OFFLINE");
    unsetenv("HF_HUB_OFFLINE");
    opens(HUB_MODEL, "org/model", NULL, &dir);
    assert_int_equal(requests("storage", NULL, NULL, -1), 2);
    holds_text(dir, "config.json", "{\"of\": \"" COMMIT_A "\"}");
    free(dir);
}

static void tokenizer_alone(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    opens(HUB_TOKENIZER, "org/model", NULL, &dir);
    assert_true(exists(dir, "tokenizer.json"));
    assert_false(exists(dir, "model.safetensors") || exists(dir, "config.json"));
    opens(HUB_PROMPT, "org/model", NULL, &dir);
    assert_true(exists(dir, "tokenizer.json") && exists(dir, "config.json"));
    assert_false(exists(dir, "model.safetensors"));
    opens(HUB_MODEL, "org/model", NULL, &dir); /* the rest */
    assert_true(exists(dir, "model.safetensors"));
    free(dir);
}

static void revisions(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    put_model("models/org/model", COMMIT_B);
    opens(HUB_MODEL, "org/model", "release/v2", &dir);
    assert_true(str_has_suffix(dir, COMMIT_B));
    holds_text(dir, "config.json", "{\"of\": \"" COMMIT_B "\"}");
    holds_text(cache, "models--org--model/refs/release/v2", COMMIT_B);
    assert_int_equal(requests("hub", "GET", "revision/release%2Fv2", -1), 1);
    opens(HUB_MODEL, "org/model@main", "release/v2", &dir); /* the name's own comes first */
    assert_true(str_has_suffix(dir, COMMIT_A));
    assert_int_equal(requests("storage", "GET", NULL, -1), 2); /* weights and tokenizer are the same blobs */
    opens(HUB_MODEL, "org/model", COMMIT_B, &dir);
    assert_true(str_has_suffix(dir, COMMIT_B));
    assert_false(exists(cache, "models--org--model/refs/" COMMIT_B));
    refuses(HUB_MODEL, "org/model", "nonesuch", ST_CONFIG, "no revision \"nonesuch\"", "404");
    free(dir);
}

static void shards(void **state) {
    (void)state;
    char *dir = NULL;
    const char *repo = "models/org/sharded";
    put_text(repo, COMMIT_A, "config.json", "{}");
    put_text(repo, COMMIT_A, "vocab.json", "{}");
    put_text(repo, COMMIT_A, "merges.txt", "#version: 0.2\n");
    put_text(repo, COMMIT_A, "model.safetensors.index.json",
             "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\", \"b\": "
             "\"model-00002-of-00002.safetensors\", \"c\": \"model-00001-of-00002.safetensors\"}}");
    put(repo, COMMIT_A, "model-00001-of-00002.safetensors", weights, 1000);
    put(repo, COMMIT_A, "model-00002-of-00002.safetensors", weights + 1000, 1000);
    put_refs(repo, "{\"main\": \"" COMMIT_A "\"}");
    opens(HUB_MODEL, "org/sharded", NULL, &dir);
    holds(dir, "model-00001-of-00002.safetensors", weights, 1000);
    holds(dir, "model-00002-of-00002.safetensors", weights + 1000, 1000);
    holds_text(dir, "merges.txt", "#version: 0.2\n");
    CHECK(fs_remove(arena_printf(&scratch, "%s/model-00002-of-00002.safetensors", dir), &e));
    setenv("HF_HUB_OFFLINE", "1", 1);
    refuses(HUB_MODEL, "org/sharded", NULL, ST_CONFIG, "model-00002-of-00002.safetensors", "not in the cache");
    unsetenv("HF_HUB_OFFLINE");
    free(dir);

    repo = "models/org/evil"; /* an index that would leave the folder */
    put_text(repo, COMMIT_A, "config.json", "{}");
    put_text(repo, COMMIT_A, "tokenizer.json", "{}");
    put_text(repo, COMMIT_A, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"../../../x\"}}");
    put_refs(repo, "{\"main\": \"" COMMIT_A "\"}");
    refuses(HUB_MODEL, "org/evil", NULL, ST_PARSE, "weight_map", "beside the index");
}

static void adapters(void **state) {
    (void)state;
    char *dir = NULL;
    put_text("models/org/adapter", COMMIT_A, "adapter_config.json", "{}");
    put_text("models/org/adapter", COMMIT_A, "adapter_model.safetensors", "x");
    put_refs("models/org/adapter", "{\"main\": \"" COMMIT_A "\"}");
    put_model("models/org/model", COMMIT_A);
    opens(HUB_ADAPTER, "org/adapter", NULL, &dir);
    holds_text(dir, "adapter_model.safetensors", "x");
    opens(HUB_CHECKPOINT, "org/model", NULL, &dir);
    assert_true(exists(dir, "model.safetensors"));
    const int before = requests(NULL, NULL, NULL, -1);
    opens(HUB_CHECKPOINT, "org/adapter", NULL, &dir);
    opens(HUB_CHECKPOINT, "org/model", NULL, &dir);
    assert_int_equal(requests(NULL, NULL, NULL, -1), before);
    refuses(HUB_MODEL, "org/adapter", NULL, ST_UNSUPPORTED, "org/adapter", "holds an adapter");
    refuses(HUB_ADAPTER, "org/model", NULL, ST_UNSUPPORTED, "org/model", "full model");
    put_text("models/org/pickled", COMMIT_A, "config.json", "{}");
    put_text("models/org/pickled", COMMIT_A, "tokenizer.json", "{}");
    put_text("models/org/pickled", COMMIT_A, "pytorch_model.bin", "x");
    put_refs("models/org/pickled", "{\"main\": \"" COMMIT_A "\"}");
    refuses(HUB_MODEL, "org/pickled", NULL, ST_UNSUPPORTED, "org/pickled", "safetensors");
    free(dir);
}

static void data_sets(void **state) {
    (void)state;
    char *dir = NULL, link[300] = "";
    put_text("datasets/org/rows", COMMIT_A, "data/part one.jsonl", "{}\n");
    put_text("datasets/org/rows", COMMIT_A, "data/x.parquet", "PAR1");
    put_refs("datasets/org/rows", "{\"main\": \"" COMMIT_A "\"}");
    opens(HUB_DATASET, "org/rows", NULL, &dir);
    assert_string_equal(dir, arena_printf(&scratch, "%s/datasets--org--rows/snapshots/" COMMIT_A, cache));
    holds_text(dir, "data/part one.jsonl", "{}\n");
    assert_true(readlink(arena_printf(&scratch, "%s/data/part one.jsonl", dir), link, sizeof link - 1) > 0);
    assert_true(str_has_prefix(link, "../../../blobs/"));
    assert_false(exists(dir, "data/x.parquet")); /* rows that need no other program are there */
    const int before = requests(NULL, NULL, NULL, -1);
    opens(HUB_DATASET, "org/rows", NULL, &dir);
    assert_int_equal(requests(NULL, NULL, NULL, -1), before);
    /* what another program put into the cache has no mark, and is believed only where nobody can be asked */
    CHECK(fs_remove(arena_printf(&scratch, "%s/datasets--org--rows/.kernelrl", cache), &e));
    setenv("HF_HUB_OFFLINE", "1", 1);
    opens(HUB_DATASET, "org/rows", NULL, &dir);
    unsetenv("HF_HUB_OFFLINE");
    opens(HUB_DATASET, "org/rows", NULL, &dir);
    assert_int_equal(requests(NULL, NULL, NULL, -1), before + 1); /* the list; every file was there */
    put_text("datasets/org/none", COMMIT_A, "README.md", "x");
    put_refs("datasets/org/none", "{\"main\": \"" COMMIT_A "\"}");
    refuses(HUB_DATASET, "org/none", NULL, ST_UNSUPPORTED, "org/none", ".parquet");
    free(dir);
}

static void interrupted_transfers(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    /* The connection breaks twice: the rest is asked for, by range. */
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"times\": 3, \"do\": \"truncate\", \"bytes\": 1000000}");
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    assert_true(requests("storage", "GET", NULL, 1) >= 1);

    fresh(NULL); /* the server has no ranges: it begins anew, and so does the file */
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"times\": 2, \"do\": \"truncate\", \"bytes\": 1000000},"
           "{\"path\": \"/blobs/\", \"do\": \"norange\"}");
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    assert_int_equal(requests("storage", "GET", NULL, 1), 1);

    fresh(NULL); /* busy servers */
    faults("{\"path\": \"/api/models\", \"times\": 2, \"do\": \"status\", \"code\": 503},"
           "{\"path\": \"config.json\", \"times\": 1, \"do\": \"status\", \"code\": 429, "
           "\"headers\": {\"Retry-After\": \"0\"}},"
           "{\"path\": \"/blobs/\", \"times\": 4, \"do\": \"status\", \"code\": 502}");
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);

    fresh(NULL); /* and one that stays so */
    faults("{\"path\": \"/blobs/\", \"do\": \"status\", \"code\": 500}");
    refuses(HUB_MODEL, "org/model", NULL, ST_IO, "500", "try again later");
    assert_int_equal(requests("storage", "GET", NULL, -1), 5);
    free(dir);
}

static void damage(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    faults("{\"path\": \"/generation_config.json\", \"method\": \"GET\", \"do\": \"corrupt\"}");
    refuses(HUB_MODEL, "org/model", NULL, ST_IO, "generation_config.json: damaged: its git hash is ",
            "expected 9e26df");
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"corrupt\"}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "tokenizer.json: damaged: its SHA-256 is ", "expected ");
    const char *snapshot = arena_printf(&scratch, "%s/models--org--model/snapshots/" COMMIT_A, cache);
    assert_false(exists(snapshot, "tokenizer.json") || exists(snapshot, "generation_config.json"));
    faults("");
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds_text(dir, "tokenizer.json", "{\"model\": 1}");

    fresh(NULL); /* the beginning that an earlier call left is wrong: found out at the end, and loaded again */
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"status\", \"code\": 500}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "500", "");
    const char *part = partial("models--org--model");
    assert_non_null(part);
    CHECK(fs_write_atomic(part, "{\"mXX", 5, &e));
    faults("");
    opens(HUB_TOKENIZER, "org/model", NULL, &dir);
    holds_text(dir, "tokenizer.json", "{\"model\": 1}");
    assert_int_equal(requests("storage", "GET", NULL, 1), 1);

    fresh(NULL); /* or longer than the file */
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"status\", \"code\": 500}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "500", "");
    CHECK(fs_write_atomic(partial("models--org--model"), "{\"model\": 1}{\"model\": 1}", 24, &e));
    faults("");
    opens(HUB_TOKENIZER, "org/model", NULL, &dir);
    holds_text(dir, "tokenizer.json", "{\"model\": 1}");

    fresh(NULL); /* more than was announced */
    faults("{\"path\": \"/tokenizer.json\", \"method\": \"HEAD\", \"do\": \"headers\", \"headers\": "
           "{\"X-Linked-Size\": \"5\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "tokenizer.json", "more than the 5 bytes");
    free(dir);
}

static void strange_servers(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    faults("{\"path\": \"/tokenizer.json\", \"do\": \"headers\", \"headers\": {\"X-Linked-Etag\": \"../../x\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "ETag", "../../x");
    faults("{\"path\": \"/tokenizer.json\", \"do\": \"headers\", \"headers\": {\"X-Repo-Commit\": \"" COMMIT_B "\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, COMMIT_B, COMMIT_A);
    faults("{\"path\": \"/tokenizer.json\", \"do\": \"headers\", \"headers\": {\"Location\": \"file:///etc/passwd\", "
           "\"X-Linked-Etag\": \"\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "redirects", "http");
    faults("{\"path\": \"/tokenizer.json\", \"do\": \"headers\", \"headers\": "
           "{\"Location\": \"/org/model/resolve/" COMMIT_A "/tokenizer.json\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "redirects", "too often");
    faults("{\"path\": \"/api/models\", \"do\": \"body\", \"text\": \"<html>\"}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_PARSE, "org/model", "does not speak");
    faults("{\"path\": \"/tokenizer.json\", \"method\": \"HEAD\", \"do\": \"headers\", \"headers\": "
           "{\"X-Linked-Size\": \"900000000000000000\"}}");
    refuses(HUB_TOKENIZER, "org/model", NULL, ST_IO, "900000000.00 GB", "HF_HUB_CACHE");
    /* A mirror that knows no hash: the file is taken as it is. */
    faults("{\"path\": \"/tokenizer.json\", \"do\": \"headers\", \"headers\": {\"X-Linked-Etag\": \"mirror-1\"}}");
    opens(HUB_TOKENIZER, "org/model", NULL, &dir);
    holds_text(dir, "tokenizer.json", "{\"model\": 1}");
    assert_true(exists(cache, "models--org--model/blobs/mirror-1"));
    free(dir);
}

static void access_and_absence(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/private/model", COMMIT_A);
    put_model("models/gated/model", COMMIT_A);
    refuses(HUB_MODEL, "private/model", NULL, ST_CONFIG, "401", "set HF_TOKEN");
    refuses(HUB_MODEL, "org/nonesuch", NULL, ST_CONFIG, "org/nonesuch", "check the name");
    setenv("HF_TOKEN", "hf_wrong", 1);
    refuses(HUB_MODEL, "private/model", NULL, ST_CONFIG, "401", "gives no access");
    setenv("HF_TOKEN", TOKEN, 1);
    opens(HUB_MODEL, "private/model", NULL, &dir);
    assert_int_equal(requests_with("storage", "authorization"), 0);
    refuses(HUB_MODEL, "org/nonesuch", NULL, ST_CONFIG, "404", "no such repository");
    refuses(HUB_MODEL, "gated/model", NULL, ST_CONFIG, "403", "terms must be accepted");
    faults("{\"path\": \"/api/models\", \"do\": \"status\", \"code\": 403}");
    refuses(HUB_MODEL, "org/model", NULL, ST_CONFIG, "403", "may read");
    faults("{\"path\": \"/config.json\", \"do\": \"status\", \"code\": 404, \"headers\": {\"X-Error-Code\": "
           "\"EntryNotFound\"}}");
    put_model("models/org/model", COMMIT_A);
    refuses(HUB_MODEL, "org/model", NULL, ST_CONFIG, "no file config.json", "main");
    faults("{\"path\": \"/blobs/\", \"do\": \"status\", \"code\": 403}");
    refuses(HUB_MODEL, "org/model", NULL, ST_IO, "keeps the file, answered 403", "tokenizer.json");
    setenv("HF_HUB_OFFLINE", "1", 1);
    const int before = requests(NULL, NULL, NULL, -1);
    refuses(HUB_MODEL, "org/other", NULL, ST_CONFIG, "revision main is not in the cache", "HF_HUB_OFFLINE");
    assert_int_equal(requests(NULL, NULL, NULL, -1), before);
    free(dir);
}

static void no_server(void **state) {
    (void)state;
    const char *endpoint = arena_strdup(&scratch, getenv("HF_ENDPOINT"));
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1); /* nobody listens there */
    const double before = clock_now_s();
    refuses(HUB_MODEL, "org/model", NULL, ST_IO, "127.0.0.1:1", "without a network");
    assert_true(clock_now_s() - before < 5); /* said at once, not after retries */
    setenv("HF_ENDPOINT", endpoint, 1);
}

/* Runs hub_open in a child; 0 when it worked. */
static pid_t open_in_child(const char *name) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    char *dir = NULL;
    _exit(open_kind(HUB_MODEL, name, NULL, &dir) == ST_OK ? 0 : 1);
}

static int exit_code(pid_t pid) {
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void killed_and_resumed(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"slow\", \"seconds\": 0.2}");
    const pid_t pid = open_in_child("org/model");
    int64_t had = 0;
    for (const double until = clock_now_s() + 60; clock_now_s() < until && had < 300000;) {
        const char *part = partial("models--org--model");
        had = file_bytes(part);
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    assert_true(had >= 300000 && had < WEIGHTS_BYTES);
    kill(pid, SIGKILL);
    assert_int_equal(exit_code(pid), 128 + SIGKILL);
    had = file_bytes(partial("models--org--model"));
    faults("");
    assert_int_equal(requests("storage", "GET", NULL, 1), 0);
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    assert_int_equal(requests("storage", "GET", NULL, 1), 1);
    CLEANUP_FREE char *log = NULL;
    CHECK(fs_read(arena_printf(&scratch, "%s/log", root), 1 << 24, &log, NULL, &e));
    const char *range = arena_printf(&scratch, "\"range\": \"bytes=%lld-\"", (long long)had);
    if (!strstr(log, range)) fail_msg("no request with %s", range);
    free(dir);
}

static void two_processes(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"slow\", \"seconds\": 0.02}");
    const pid_t one = open_in_child("org/model"), two = open_in_child("org/model");
    const int rc_one = exit_code(one), rc_two = exit_code(two);
    assert_int_equal(rc_one, 0);
    assert_int_equal(rc_two, 0);
    assert_int_equal(requests("storage", "GET", NULL, -1), 2); /* weights and tokenizer, each by one of them */
    opens(HUB_MODEL, "org/model", NULL, &dir);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    free(dir);
}

static void full_disk(void **state) {
    (void)state;
    put_model("models/org/model", COMMIT_A);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) { /* a limit on the size of files stands in for the end of the disk */
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){1000000, 1000000});
        char *dir = NULL;
        const enum status st = open_kind(HUB_MODEL, "org/model", NULL, &dir);
        _exit(st == ST_IO && strstr(e.msg, "model.safetensors: cannot write") && strstr(e.msg, "make room") ? 0 : 1);
    }
    assert_int_equal(exit_code(pid), 0);
    assert_int_equal(file_bytes(partial("models--org--model")), 1000000); /* kept, to go on from */
    char *dir = NULL;
    opens(HUB_MODEL, "org/model", NULL, &dir);
    assert_int_equal(requests("storage", "GET", NULL, 1), 1);
    holds(dir, "model.safetensors", weights, WEIGHTS_BYTES);
    free(dir);
}

static volatile bool asked_to_stop;
static void on_alarm(int sig) {
    (void)sig;
    asked_to_stop = true;
}

static void cancelled(void **state) {
    (void)state;
    char *dir = NULL;
    put_model("models/org/model", COMMIT_A);
    faults("{\"path\": \"/blobs/\", \"method\": \"GET\", \"do\": \"slow\", \"seconds\": 0.1}");
    signal(SIGALRM, on_alarm);
    const struct hub_request r = {.kind = HUB_MODEL, .name = "org/model", .cancel = &asked_to_stop};
    alarm(1);
    assert_int_equal(hub_open(&r, &dir, &e), ST_CANCELLED);
    assert_null(dir);
    signal(SIGALRM, SIG_DFL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(names, fresh),
        cmocka_unit_test_setup(environment, fresh),
        cmocka_unit_test_setup(model_and_cache, fresh),
        cmocka_unit_test_setup(tokenizer_alone, fresh),
        cmocka_unit_test_setup(revisions, fresh),
        cmocka_unit_test_setup(shards, fresh),
        cmocka_unit_test_setup(adapters, fresh),
        cmocka_unit_test_setup(data_sets, fresh),
        cmocka_unit_test_setup(interrupted_transfers, fresh),
        cmocka_unit_test_setup(damage, fresh),
        cmocka_unit_test_setup(strange_servers, fresh),
        cmocka_unit_test_setup(access_and_absence, fresh),
        cmocka_unit_test_setup(no_server, fresh),
        cmocka_unit_test_setup(killed_and_resumed, fresh),
        cmocka_unit_test_setup(two_processes, fresh),
        cmocka_unit_test_setup(full_disk, fresh),
        cmocka_unit_test_setup(cancelled, fresh),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
