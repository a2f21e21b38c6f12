/* What the tests of rl/ share: temporary directories, a tiny model, a tokenizer of bytes. Included by tests only. */
#ifndef KERNELRL_RL_TEST_UTIL_H
#define KERNELRL_RL_TEST_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/fs.h"
#include "base/rng.h"
#include "base/str.h"
#include "dist/comm.h"
#include "model/model.h"
#include "tensor/backend.h"

static struct err err;
#define CHECK(x)                                   \
    do {                                           \
        if ((x) != ST_OK) fail_msg("%s", err.msg); \
    } while (0)
/* The call fails and its message holds the text. */
#define CHECK_FAILS(x, status, text)                                                       \
    do {                                                                                   \
        err = (struct err){0};                                                             \
        assert_int_equal((x), (status));                                                   \
        if (!strstr(err.msg, (text))) fail_msg("expected \"%s\" in: %s", (text), err.msg); \
    } while (0)

/* The communicator of a run of one rank; lives as long as the test. */
static inline struct comm *test_comm(void) {
    static struct comm *c;
    if (!c) CHECK(comm_open("self", NULL, &c, &err));
    return c;
}

static char tmp_dir[64];

UNUSED static int make_tmp_dir(void **state) {
    (void)state;
    snprintf(tmp_dir, sizeof tmp_dir, "/tmp/kernelrl_rl_XXXXXX");
    return mkdtemp(tmp_dir) ? 0 : 1;
}

UNUSED static int remove_tmp_dir(void **state) {
    (void)state;
    return fs_remove(tmp_dir, &err) == ST_OK ? 0 : 1;
}

/* A path below the temporary directory, in one of 64 buffers that take turns. */
UNUSED static const char *in_tmp(const char *name) {
    static char path[64][512];
    static int at;
    at = (at + 1) % 64;
    snprintf(path[at], sizeof path[at], "%s/%s", tmp_dir, name);
    return path[at];
}

UNUSED static void write_file(const char *path, const char *text) {
    CHECK(fs_write_atomic(path, text, strlen(text), &err));
}

/* Caller frees. */
__attribute__((noinline)) UNUSED static char *read_file(const char *path) {
    char *text;
    CHECK(fs_read(path, (size_t)64 << 20, &text, NULL, &err));
    return text;
}

enum { TINY_V = 272, IM_START = 256, IM_END, END_OF_TEXT, THINK, END_THINK };

UNUSED static const char tiny_config[] =
    "{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"vocab_size\":272,\"hidden_size\":32,"
    "\"intermediate_size\":48,\"num_hidden_layers\":2,\"num_attention_heads\":4,\"num_key_value_heads\":2,"
    "\"head_dim\":8,\"max_position_embeddings\":1024,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
    "\"hidden_act\":\"silu\",\"tie_word_embeddings\":true,\"eos_token_id\":257}";

/* The CPU, one thread: tests may read and write its parameters in place. Shared by all models of a test, never closed.
 */
UNUSED static struct backend *test_backend(void) {
    static struct backend *be;
    if (!be) CHECK(cpu_backend_open(NULL, &be, &err));
    return be;
}

/* Weights larger than those of initialisation, so that distributions are uneven; prepared for training all of them, or
 * LoRA of rank 2 with a B that is not zero. */
UNUSED static struct model *tiny_model(uint64_t seed, bool lora) {
    struct model *m;
    int n;
    CHECK(model_init(tiny_config, seed, NULL, test_backend(), &m, &err));
    const struct param *p = model_params(m, &n);
    for (int i = 0; i < n; i++)
        for (int64_t k = 0; k < p[i].n && p[i].nd == 2; k++) p[i].w[k] *= 8;
    model_params_changed(m);
    if (lora) CHECK(model_lora_init(m, 2, 4.0f, seed, &err));
    CHECK(model_train_prepare(m, lora ? TRAIN_LORA : TRAIN_FULL, &err));
    p = model_params(m, &n);
    for (int i = 0; lora && i < n; i++) {
        struct rng r = rng_make(seed, (uint64_t)i);
        for (int64_t k = 0; k < p[i].n; k++) p[i].w[k] += 0.1f * (float)rng_normal(&r);
    }
    model_params_changed(m);
    return m;
}

/* tokenizer.json in DIR: bytes are ids 0..255 without merges, then ChatML's and the think marks. */
UNUSED static void write_byte_tokenizer(const char *dir) {
    static const char *const added[] = {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<think>", "</think>"};
    struct str s = STR_INIT;
    str_adds(&s, "{\"added_tokens\":[");
    for (int i = 0; i < 5; i++)
        str_addf(&s, "%s{\"id\":%d,\"content\":\"%s\",\"special\":%s}", i ? "," : "", 256 + i, added[i],
                 i < 3 ? "true" : "false");
    str_adds(&s, "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                 "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    /* GPT-2's alphabet: printable bytes stand for themselves, the others for code points from 256 on, in order. */
    for (int b = 0, other = 256; b < 256; b++) {
        bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        str_addf(&s, "%s\"\\u%04x\":%d", b ? "," : "", printable ? b : other++, b);
    }
    str_adds(&s, "}}}");
    char path[600];
    CHECK(fs_mkdirs(dir, &err));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    write_file(path, s.p);
    str_free(&s);
}

#endif
