/* bpe_train: learns a byte-level BPE vocabulary and writes it as an ordinary Hugging Face tokenizer.
 *
 *   bpe_train --vocab N --out DIR [--field NAME]... [--pattern REGEX] FILE...
 *
 * FILE is plain text, or with --field a JSONL file of which the named fields are read: strings, or lists of chat
 * messages, whose contents count (a field may be missing from a line, not from all). N is the whole vocabulary: 256
 * bytes, the merges, then the five added tokens. Text is cut into words by Qwen2's pattern or by --pattern (PCRE2
 * syntax): tokens never cross a cut, so a pattern that cuts less lets repetitive text become few tokens.
 *
 * The method is Sennrich et al. 2016 over bytes: again and again the most frequent pair of neighbours becomes a token;
 * among equals the pair with the smaller ids. Words are counted once and pairs are kept up to date, so a merge costs
 * only the words it changes. The result depends on the text alone, not on the order of its words. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "text/bpe.h"
#include "text/split.h"
#include "text/unicode.h"

enum { MAX_FILE_BYTES = 2000 << 20, MAX_FIELDS = 16, MIN_COUNT = 2 };

static const struct {
    const char *text;
    bool special;
} added[] = {
    {"<|endoftext|>", true}, {"<|im_start|>", true}, {"<|im_end|>", true}, {"<think>", false}, {"</think>", false}};

/* ---- counting words -----------------------------------------------------------------------------------------------*/

struct word {
    const char *p; /* in the arena */
    uint32_t n;
    uint32_t len; /* symbols left in sym */
    int32_t *sym;
    int64_t count;
};
struct words {
    struct arena mem;
    struct word *w;
    size_t n, cap;
    uint32_t *slot; /* hash table of index + 1 */
    size_t n_slot;
    int64_t total_bytes;
};

static void words_rehash(struct words *ws) {
    ws->n_slot = ws->n_slot ? ws->n_slot * 2 : 1 << 16;
    free(ws->slot);
    ws->slot = xcalloc(ws->n_slot, sizeof *ws->slot);
    for (size_t k = 0; k < ws->n; k++) {
        size_t i = hash_bytes(ws->w[k].p, ws->w[k].n, 0) & (ws->n_slot - 1);
        while (ws->slot[i]) i = (i + 1) & (ws->n_slot - 1);
        ws->slot[i] = (uint32_t)k + 1;
    }
}

static void count_word(void *ctx, const char *p, size_t n, bool match) {
    struct words *ws = ctx;
    (void)match;
    if (ws->n * 2 >= ws->n_slot) words_rehash(ws);
    size_t i = hash_bytes(p, n, 0) & (ws->n_slot - 1);
    for (; ws->slot[i]; i = (i + 1) & (ws->n_slot - 1)) {
        struct word *w = &ws->w[ws->slot[i] - 1];
        if (w->n == n && memcmp(w->p, p, n) == 0) {
            w->count++;
            return;
        }
    }
    if (ws->n == ws->cap) {
        ws->cap = ws->cap ? ws->cap * 2 : 1 << 15;
        ws->w = xrealloc(ws->w, ws->cap * sizeof *ws->w);
    }
    ws->w[ws->n] = (struct word){arena_strndup(&ws->mem, p, n), (uint32_t)n, 0, NULL, 1};
    ws->slot[i] = (uint32_t)++ws->n;
}

/* Text between added tokens, normalised as the tokenizer will; bytes that are no UTF-8 teach nothing. */
static void count_plain(struct words *ws, struct splitter *sp, const char *p, size_t n) {
    while (n) {
        size_t good = utf8_valid_prefix(p, n);
        if (unicode_is_plain(p, good)) {
            splitter_run(sp, p, good, count_word, ws);
        } else {
            CLEANUP_STR struct str s = STR_INIT;
            unicode_nfc(p, good, &s);
            splitter_run(sp, s.p, s.len, count_word, ws);
        }
        size_t skip = good < n ? 1 : 0;
        p += good + skip;
        n -= good + skip;
    }
}

static void count_text(struct words *ws, struct splitter *sp, const char *p, size_t n) {
    ws->total_bytes += (int64_t)n;
    size_t done = 0;
    for (const char *lt = p; (lt = memchr(lt, '<', n - (size_t)(lt - p))) != NULL;) {
        size_t at = (size_t)(lt - p), hit = 0;
        for (size_t i = 0; i < ARRAY_LEN(added) && !hit; i++) {
            size_t m = strlen(added[i].text);
            if (m <= n - at && memcmp(lt, added[i].text, m) == 0) hit = m;
        }
        if (hit) {
            count_plain(ws, sp, p + done, at - done);
            done = at + hit;
        }
        lt += hit ? hit : 1;
    }
    count_plain(ws, sp, p + done, n - done);
}

static enum status count_file(struct words *ws, struct splitter *sp, const char *path, const char *const *field,
                              int n_field, struct err *e) {
    CLEANUP_FREE char *text = NULL;
    size_t n;
    TRY(fs_read(path, MAX_FILE_BYTES, &text, &n, e));
    if (n_field == 0) {
        count_text(ws, sp, text, n);
        return ST_OK;
    }
    bool seen[MAX_FIELDS] = {false};
    int line = 0;
    for (char *p = text, *end = text + n, *next; p < end; p = next) {
        char *eol = memchr(p, '\n', (size_t)(end - p));
        next = eol ? eol + 1 : end;
        line++;
        if (p + strspn(p, " \t\r") >= (eol ? eol : end)) continue;
        json_error_t je;
        json_t *row = json_loadb(p, (size_t)((eol ? eol : end) - p), JSON_ALLOW_NUL, &je);
        if (!row) return FAIL(e, ST_PARSE, "%s:%d:%d: %s", path, line, je.column, je.text);
        for (int i = 0; i < n_field; i++) {
            const json_t *v = json_object_get(row, field[i]);
            const json_t *message;
            size_t k;
            json_array_foreach(v, k, message) { /* a list of chat messages: their contents */
                const json_t *content = json_object_get(message, "content");
                if (!json_is_string(content)) continue;
                seen[i] = true;
                count_text(ws, sp, json_string_value(content), json_string_length(content));
            }
            if (!json_is_string(v)) continue;
            seen[i] = true;
            count_text(ws, sp, json_string_value(v), json_string_length(v));
        }
        json_decref(row);
    }
    for (int i = 0; i < n_field; i++)
        if (!seen[i]) return FAIL(e, ST_INVALID, "%s: no line has a string field \"%s\"", path, field[i]);
    return ST_OK;
}

/* ---- learning merges ----------------------------------------------------------------------------------------------*/

/* A pair of neighbouring symbols: how often it occurs, and the words that held it when it was last looked at (a word
 * may have lost it since, and may be listed twice; both are harmless). */
struct pair {
    uint64_t key; /* left << 32 | right */
    int64_t count;
    uint32_t *at;
    uint32_t n_at, cap_at;
    uint32_t step; /* the last step that queued it */
    bool merged;   /* it is a merge already */
};
struct pairs {
    struct pair *p;
    size_t n, cap;
    uint32_t *slot;
    size_t n_slot;
};
struct queued {
    int64_t count;
    uint64_t key;
    uint32_t pair;
};
struct heap {
    struct queued *q;
    size_t n, cap;
};

static uint64_t make_key(int32_t l, int32_t r) { return (uint64_t)(uint32_t)l << 32 | (uint32_t)r; }

static size_t pairs_slot(const struct pairs *ps, uint64_t key) {
    size_t i = (size_t)((key * 0x9E3779B97F4A7C15u) >> 20) & (ps->n_slot - 1);
    while (ps->slot[i] && ps->p[ps->slot[i] - 1].key != key) i = (i + 1) & (ps->n_slot - 1);
    return i;
}

static uint32_t pairs_get(struct pairs *ps, uint64_t key) {
    if (ps->n * 2 >= ps->n_slot) {
        ps->n_slot = ps->n_slot ? ps->n_slot * 2 : 1 << 16;
        free(ps->slot);
        ps->slot = xcalloc(ps->n_slot, sizeof *ps->slot);
        for (size_t k = 0; k < ps->n; k++) ps->slot[pairs_slot(ps, ps->p[k].key)] = (uint32_t)k + 1;
    }
    size_t i = pairs_slot(ps, key);
    if (!ps->slot[i]) {
        if (ps->n == ps->cap) {
            ps->cap = ps->cap ? ps->cap * 2 : 1 << 14;
            ps->p = xrealloc(ps->p, ps->cap * sizeof *ps->p);
        }
        ps->p[ps->n] = (struct pair){.key = key};
        ps->slot[i] = (uint32_t)++ps->n;
    }
    return ps->slot[i] - 1;
}

static void pair_seen(struct pair *p, uint32_t word, int64_t count) {
    p->count += count;
    if (p->n_at && p->at[p->n_at - 1] == word) return;
    if (p->n_at == p->cap_at) {
        p->cap_at = p->cap_at ? p->cap_at * 2 : 4;
        p->at = xrealloc(p->at, p->cap_at * sizeof *p->at);
    }
    p->at[p->n_at++] = word;
}

static bool queued_before(const struct queued *a, const struct queued *b) {
    return a->count != b->count ? a->count > b->count : a->key < b->key;
}

static void heap_push(struct heap *h, struct queued x) {
    if (h->n == h->cap) {
        h->cap = h->cap ? h->cap * 2 : 1 << 14;
        h->q = xrealloc(h->q, h->cap * sizeof *h->q);
    }
    size_t i = h->n++;
    for (size_t up; i > 0 && queued_before(&x, &h->q[up = (i - 1) / 2]); i = up) h->q[i] = h->q[up];
    h->q[i] = x;
}

static struct queued heap_pop(struct heap *h) {
    struct queued top = h->q[0], x = h->q[--h->n];
    size_t i = 0;
    for (size_t kid; (kid = 2 * i + 1) < h->n; i = kid) {
        if (kid + 1 < h->n && queued_before(&h->q[kid + 1], &h->q[kid])) kid++;
        if (!queued_before(&h->q[kid], &x)) break;
        h->q[i] = h->q[kid];
    }
    if (h->n) h->q[i] = x;
    return top;
}

/* One merge under way: every (left, right) becomes `made`. Pairs that came up are collected for the heap. */
struct step {
    int32_t left, right, made;
    uint32_t number;
    struct ids grown;
};

static void neighbour(struct pairs *ps, struct step *st, uint64_t old_key, uint64_t new_key, uint32_t word,
                      int64_t count) {
    uint32_t i = pairs_get(ps, old_key);
    ps->p[i].count -= count;
    i = pairs_get(ps, new_key);
    pair_seen(&ps->p[i], word, count);
    if (ps->p[i].step == st->number) return;
    ps->p[i].step = st->number;
    ids_add(&st->grown, (int32_t)i);
}

static void merge_in_word(struct words *ws, struct pairs *ps, uint32_t word, struct step *st) {
    struct word *w = &ws->w[word];
    uint32_t out = 0;
    for (uint32_t i = 0; i < w->len; i++) {
        if (i + 1 >= w->len || w->sym[i] != st->left || w->sym[i + 1] != st->right) {
            w->sym[out++] = w->sym[i];
            continue;
        }
        if (out > 0) { /* sym[out - 1] is the left neighbour as it is now, perhaps merged itself */
            int32_t l = w->sym[out - 1];
            neighbour(ps, st, make_key(l, st->left), make_key(l, st->made), word, w->count);
        }
        if (i + 2 < w->len) {
            int32_t r = w->sym[i + 2];
            neighbour(ps, st, make_key(st->right, r), make_key(st->made, r), word, w->count);
        }
        w->sym[out++] = st->made;
        i++;
    }
    w->len = out;
}

static void first_pairs(struct words *ws, const struct bpe *vocab, struct pairs *ps) {
    for (size_t k = 0; k < ws->n; k++) {
        struct word *w = &ws->w[k];
        w->sym = arena_array(&ws->mem, int32_t, w->n);
        w->len = w->n;
        for (uint32_t i = 0; i < w->n; i++) {
            w->sym[i] = vocab->byte_id[(unsigned char)w->p[i]];
            if (i == 0) continue;
            uint32_t pair = pairs_get(ps, make_key(w->sym[i - 1], w->sym[i]));
            pair_seen(&ps->p[pair], (uint32_t)k, w->count);
        }
    }
}

/* Adds tokens and merges to vocab until it has n_tokens or no pair occurs twice. */
static enum status learn(struct words *ws, struct bpe *vocab, int32_t n_tokens, struct err *e) {
    struct pairs ps = {0};
    struct heap heap = {0};
    struct step step = {0};
    CLEANUP_STR struct str both = STR_INIT;
    enum status st = ST_OK;
    first_pairs(ws, vocab, &ps);
    for (uint32_t i = 0; i < ps.n; i++) heap_push(&heap, (struct queued){ps.p[i].count, ps.p[i].key, i});
    while (st == ST_OK && vocab->n_tok < n_tokens && heap.n) {
        struct queued q = heap_pop(&heap);
        struct pair *p = &ps.p[q.pair];
        if (q.count != p->count) { /* out of date */
            if (p->count >= MIN_COUNT && p->count < q.count)
                heap_push(&heap, (struct queued){p->count, p->key, q.pair});
            continue;
        }
        if (q.count < MIN_COUNT) break; /* a pair seen once is an accident */
        step.left = (int32_t)(p->key >> 32);
        step.right = (int32_t)(uint32_t)p->key;
        step.number++;
        step.grown.len = 0;
        const struct bpe_token *l = &vocab->tok[step.left], *r = &vocab->tok[step.right];
        str_clear(&both);
        str_add(&both, l->p, l->n);
        str_add(&both, r->p, r->n);
        /* Two pairs may spell the same token ("ab"+"c", "a"+"bc"): one id, two merges. A pair can even come back. */
        step.made = bpe_find(vocab, both.p, both.len);
        if (step.made < 0) {
            step.made = vocab->n_tok;
            st = bpe_add_token(vocab, both.p, both.len, step.made, BPE_WORD, false, e);
        }
        l = &vocab->tok[step.left];
        r = &vocab->tok[step.right];
        if (st == ST_OK && !p->merged) st = bpe_add_merge(vocab, l->p, l->n, r->p, r->n, e);
        uint32_t *at = p->at, n_at = p->n_at;
        *p = (struct pair){.key = p->key, .merged = true, .step = p->step};
        for (uint32_t i = 0; i < n_at; i++) merge_in_word(ws, &ps, at[i], &step);
        free(at);
        ps.p[q.pair].count = 0; /* "aaa" lowers its own pair's count a second time */
        for (size_t i = 0; i < step.grown.len; i++) {
            const struct pair *g = &ps.p[step.grown.p[i]];
            heap_push(&heap, (struct queued){g->count, g->key, (uint32_t)step.grown.p[i]});
        }
    }
    for (size_t i = 0; i < ps.n; i++) free(ps.p[i].at);
    free(ps.p);
    free(ps.slot);
    free(heap.q);
    ids_free(&step.grown);
    return st;
}

/* ---- writing ------------------------------------------------------------------------------------------------------*/

/* Turns as they are; enable_thinking=false prefills an empty thought, as Qwen3's template does. */
static const char chat_template[] =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
    "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% if enable_thinking is "
    "defined "
    "and not enable_thinking %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}{% endif %}";

/* Takes the reference to j. */
static enum status write_json(const char *dir, const char *name, json_t *j, struct err *e) {
    ASSERT(j);
    CLEANUP_STR struct str path = STR_INIT, text = STR_INIT;
    str_addf(&path, "%s/%s", dir, name);
    CLEANUP_FREE char *dump = json_dumps(j, JSON_INDENT(2));
    json_decref(j);
    ASSERT(dump);
    str_adds(&text, dump);
    str_addc(&text, '\n');
    return fs_write_atomic(path.p, text.p, text.len, e);
}

static enum status write_tokenizer(const char *dir, const struct bpe *vocab, const char *pattern, struct err *e) {
    json_t *tokens = json_object(), *merges = json_array(), *list = json_array(), *by_id = json_object();
    CLEANUP_STR struct str s = STR_INIT;
    for (int32_t id = 0; id < vocab->n_tok; id++) {
        str_clear(&s);
        bytelevel_spell(vocab->tok[id].p, vocab->tok[id].n, &s);
        json_object_set_new(tokens, s.p, json_integer(id));
    }
    for (uint32_t i = 0; i < vocab->n_merge; i++) {
        const struct bpe_token *l = &vocab->tok[vocab->merge[i].left], *r = &vocab->tok[vocab->merge[i].right];
        str_clear(&s);
        bytelevel_spell(l->p, l->n, &s);
        str_addc(&s, ' ');
        bytelevel_spell(r->p, r->n, &s);
        json_array_append_new(merges, json_string(s.p));
    }
    for (size_t i = 0; i < ARRAY_LEN(added); i++) {
        int32_t id = vocab->n_tok + (int32_t)i;
        str_clear(&s);
        str_addf(&s, "%d", id);
        json_array_append_new(list, json_pack("{s:i,s:s,s:b,s:b,s:b,s:b,s:b}", "id", id, "content", added[i].text,
                                              "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                                              added[i].special));
        json_object_set_new(by_id, s.p,
                            json_pack("{s:s,s:b,s:b,s:b,s:b,s:b}", "content", added[i].text, "lstrip", 0, "normalized",
                                      0, "rstrip", 0, "single_word", 0, "special", added[i].special));
    }
    /* "byte level" three times: as the last step of cutting, in the decoder, and as a post-processor that does nothing.
     */
    const char *level = "{s:s,s:b,s:b,s:b}";
    json_t *bytes[3];
    for (int i = 0; i < 3; i++)
        bytes[i] = json_pack(level, "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0, "use_regex", 0);
    json_t *split = json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", pattern, "behavior",
                              "Isolated", "invert", 0);
    json_t *model = json_pack("{s:s,s:n,s:n,s:s,s:s,s:b,s:b,s:b,s:o,s:o}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "", "end_of_word_suffix", "", "fuse_unk", 0, "byte_fallback",
                              0, "ignore_merges", 0, "vocab", tokens, "merges", merges);
    json_t *root =
        json_pack("{s:s,s:n,s:n,s:o,s:{s:s},s:{s:s,s:[o,o]},s:o,s:o,s:o}", "version", "1.0", "truncation", "padding",
                  "added_tokens", list, "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence",
                  "pretokenizers", split, bytes[0], "post_processor", bytes[1], "decoder", bytes[2], "model", model);
    json_t *config = json_pack("{s:b,s:o,s:n,s:s,s:b,s:s,s:s,s:I,s:s,s:b,s:s,s:n}", "add_prefix_space", 0,
                               "added_tokens_decoder", by_id, "bos_token", "chat_template", chat_template,
                               "clean_up_tokenization_spaces", 0, "eos_token", "<|im_end|>", "errors", "replace",
                               "model_max_length", (json_int_t)32768, "pad_token", "<|endoftext|>",
                               "split_special_tokens", 0, "tokenizer_class", "PreTrainedTokenizerFast", "unk_token");
    enum status st = fs_mkdirs(dir, e);
    if (st == ST_OK) st = write_json(dir, "tokenizer.json", json_incref(root), e);
    if (st == ST_OK) st = write_json(dir, "tokenizer_config.json", json_incref(config), e);
    json_decref(root);
    json_decref(config);
    return st;
}

/* The 256 bytes in the order of their spelling: 0 is '!', as in GPT-2's and Qwen2's vocabularies. */
static enum status first_tokens(struct bpe *vocab, struct err *e) {
    int32_t id = 0;
    for (uint32_t c = 0; c < 0x180; c++) {
        for (unsigned b = 0; b < 256; b++) {
            char byte = (char)b;
            if (bytelevel_char((unsigned char)b) == c) TRY(bpe_add_token(vocab, &byte, 1, id++, BPE_WORD, false, e));
        }
    }
    return bpe_finish(vocab, e);
}

struct options {
    const char *out, *field[MAX_FIELDS];
    int n_field;
    int64_t vocab;
    const char *pattern;
};

static enum status train(const struct options *o, char **file, int n_file, struct err *e) {
    struct splitter *sp = NULL;
    struct words ws = {.mem = ARENA_INIT};
    struct bpe vocab;
    bpe_init(&vocab);
    double start = clock_now_s(), counted = 0;
    enum status st = splitter_create(o->pattern, &sp, e);
    for (int i = 0; i < n_file && st == ST_OK; i++) st = count_file(&ws, sp, file[i], o->field, o->n_field, e);
    counted = clock_now_s();
    if (st == ST_OK) st = first_tokens(&vocab, e);
    int32_t want = (int32_t)(o->vocab - (int64_t)ARRAY_LEN(added));
    if (st == ST_OK) st = learn(&ws, &vocab, want, e);
    if (st == ST_OK) st = write_tokenizer(o->out, &vocab, o->pattern, e);
    if (st == ST_OK) {
        int64_t symbols = 0;
        for (size_t i = 0; i < ws.n; i++) symbols += ws.w[i].count * ws.w[i].len;
        printf("%lld bytes, %zu distinct words, %u merges, vocabulary %d, %.3f bytes per token; counted in %.1f s, "
               "learned in %.1f s\n",
               (long long)ws.total_bytes, ws.n, vocab.n_merge, vocab.n_tok + (int)ARRAY_LEN(added),
               symbols ? (double)ws.total_bytes / (double)symbols : 0.0, counted - start, clock_now_s() - counted);
        if (vocab.n_tok < want)
            fprintf(stderr, "bpe_train: the text has no more pairs that occur twice; the vocabulary is %d short\n",
                    want - vocab.n_tok);
    }
    splitter_free(sp);
    arena_free(&ws.mem);
    free(ws.w);
    free(ws.slot);
    bpe_free(&vocab);
    return st;
}

static int usage(void) {
    fprintf(stderr, "usage: bpe_train --vocab N --out DIR [--field NAME]... [--pattern REGEX] FILE...\n");
    return 2;
}

int main(int argc, char **argv) {
    static const struct option options[] = {
        {"vocab", required_argument, NULL, 'v'},
        {"out", required_argument, NULL, 'o'},
        {"field", required_argument, NULL, 'f'},
        {"pattern", required_argument, NULL, 'p'},
        {NULL, 0, NULL, 0},
    };
    struct options o = {.pattern = SPLIT_QWEN2};
    int c;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'v':
            if (!parse_i64(optarg, &o.vocab) || o.vocab < 256 + (int64_t)ARRAY_LEN(added) || o.vocab > 1 << 20) {
                fprintf(stderr, "bpe_train: --vocab: expected %zu to %d, got \"%s\"\n", 256 + ARRAY_LEN(added), 1 << 20,
                        optarg);
                return 2;
            }
            break;
        case 'o': o.out = optarg; break;
        case 'f':
            if (o.n_field == MAX_FIELDS) {
                fprintf(stderr, "bpe_train: at most %d fields\n", MAX_FIELDS);
                return 2;
            }
            o.field[o.n_field++] = optarg;
            break;
        case 'p': o.pattern = optarg; break;
        default: return usage();
        }
    }
    if (!o.vocab || !o.out || optind == argc) return usage();
    struct err e = {0};
    if (train(&o, argv + optind, argc - optind, &e) == ST_OK) return 0;
    fprintf(stderr, "bpe_train: %s\n", e.msg);
    return 1;
}
