/* kernelrl tokenize: text to token ids and back, and a check against recorded ids. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "cli/cli.h"
#include "policy/find_model.h"
#include "text/tokenizer.h"

struct tokenize_args {
    const char *model, *text, *file, *decode, *check;
    bool specials, whole, json;
};

#define A struct tokenize_args
static const struct args_flag flags[] = {
    FLAG_TEXT(
        A, model, "model", "MODEL", NULL,
        "The tokenizer's model: a folder, or a name on the Hub (ORG/NAME or ORG/NAME@REVISION), of which only the "
        "tokenizer is downloaded."),
    FLAG_TEXT(A, text, "text", "TEXT", "standard input", "The token ids of this text are printed."),
    FLAG_TEXT(A, file, "file", "FILE", NULL, "The token ids of this file's text are printed."),
    FLAG_BOOL(A, specials, "specials", "Added tokens such as <|im_end|> are recognised in the text."),
    FLAG_BOOL(A, whole, "whole",
              "The text stands by itself: the ids that the tokenizer's post-processor puts around it, such as "
              "beginning-of-text, are printed, too."),
    FLAG_TEXT(A, decode, "decode", "IDS", NULL, "The text of these ids, \"ID ID ...\", is printed."),
    FLAG_TEXT(A, check, "check", "FILE", NULL,
              "Every {\"text\", \"ids\"} line of this .jsonl file is compared, as Hugging Face's tokenizers encode by "
              "default: "
              "with --specials and --whole. A mismatch is a failure."),
    FLAG_BOOL(A, json, "json", "Ids are printed as a JSON list, and text as a JSON string."),
};

const struct args_command tokenize_command = {
    .name = "tokenize",
    .usage = "--model MODEL [--text TEXT | --file FILE] [--specials] [--whole] [--json]\n"
             "--model MODEL --decode \"ID ID ...\" [--json]\n--model MODEL --check FILE.jsonl",
    .about = "Turns text into token ids and back.",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
};

enum { MAX_INPUT_BYTES = 1 << 30, SHOWN_MISMATCHES = 5 };

static enum status read_stdin(struct str *out, struct err *e) {
    char buf[65536];
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, stdin)) > 0) {
        if (out->len + n > MAX_INPUT_BYTES)
            return FAIL(e, ST_INVALID, "standard input: over %d bytes", MAX_INPUT_BYTES);
        str_add(out, buf, n);
    }
    return ferror(stdin) ? FAIL(e, ST_IO, "standard input: read error") : ST_OK;
}

static void print_ids(const struct ids *ids, bool json) {
    if (json) putchar('[');
    for (size_t i = 0; i < ids->len; i++) printf("%s%d", i ? json ? "," : " " : "", ids->p[i]);
    puts(json ? "]" : "");
}

/* Where the two lists part, for people. */
static void show_mismatch(const char *path, size_t line, const struct ids *got, const json_t *want) {
    size_t n = json_array_size(want), i = 0;
    while (i < n && i < got->len && got->p[i] == (int32_t)json_integer_value(json_array_get(want, i))) i++;
    fprintf(stderr, "%s:%zu: token %zu: expected", path, line, i);
    for (size_t k = i; k < n && k < i + 6; k++)
        fprintf(stderr, " %lld", (long long)json_integer_value(json_array_get(want, k)));
    fprintf(stderr, "%s, got", i < n ? "" : " the end");
    for (size_t k = i; k < got->len && k < i + 6; k++) fprintf(stderr, " %d", got->p[k]);
    fprintf(stderr, "%s\n", i < got->len ? "" : " the end");
}

static enum status check(struct tokenizer *t, const char *path, int *exit_code, struct err *e) {
    CLEANUP_FREE char *file = NULL;
    size_t n, lines = 0, bad = 0, number = 0;
    TRY(fs_read(path, MAX_INPUT_BYTES, &file, &n, e));
    struct ids got = {0};
    enum status st = ST_OK;
    for (char *p = file, *end = file + n, *next; p < end; p = next) {
        char *eol = memchr(p, '\n', (size_t)(end - p));
        next = eol ? eol + 1 : end;
        number++;
        if (p + strspn(p, " \t\r") == (eol ? eol : end)) continue; /* a blank line */
        json_error_t je;
        json_t *row = json_loadb(p, (size_t)((eol ? eol : end) - p), JSON_ALLOW_NUL, &je);
        const json_t *text = json_object_get(row, "text"), *ids = json_object_get(row, "ids");
        if (!json_is_string(text) || !json_is_array(ids)) {
            st = FAIL(e, ST_PARSE, "%s:%zu: expected {\"text\": string, \"ids\": [integers]}", path, number);
            json_decref(row);
            break;
        }
        got.len = 0;
        tokenizer_encode_whole(t, json_string_value(text), json_string_length(text), true, &got);
        bool same = got.len == json_array_size(ids);
        for (size_t i = 0; same && i < got.len; i++) same = json_integer_value(json_array_get(ids, i)) == got.p[i];
        lines++;
        bad += !same;
        if (!same && bad <= SHOWN_MISMATCHES) show_mismatch(path, number, &got, ids);
        json_decref(row);
    }
    ids_free(&got);
    if (st != ST_OK) return st;
    if (lines == 0) return FAIL(e, ST_INVALID, "%s: no lines to check", path);
    printf("%zu lines, %zu mismatches\n", lines, bad);
    *exit_code = bad ? 1 : 0;
    return ST_OK;
}

static enum status decode(const struct tokenizer *t, const char *list, bool json, struct err *e) {
    CLEANUP_STR struct str out = STR_INIT;
    for (const char *p = list; *(p += strspn(p, " \t\n,[]"));) {
        size_t n = strcspn(p, " \t\n,[]");
        CLEANUP_FREE char *word = xstrndup(p, n);
        int64_t v;
        size_t len = 0;
        const char *bytes = "";
        if (parse_i64(word, &v) && v >= 0 && v < tokenizer_vocab(t)) bytes = tokenizer_bytes(t, (int32_t)v, &len);
        if (len == 0)
            return FAIL(e, ST_USAGE, "--decode: \"%s\" is no token id of this tokenizer (0..%d)", word,
                        tokenizer_vocab(t) - 1);
        str_add(&out, bytes, len);
        p += n;
    }
    if (!json) {
        fwrite(str_c(&out), 1, out.len, stdout);
        if (isatty(STDOUT_FILENO)) putchar('\n');
        return ST_OK;
    }
    json_t *s = json_stringn(str_c(&out), out.len);
    if (!s) return FAIL(e, ST_INVALID, "--decode: these ids are not UTF-8 together; leave out --json");
    json_dumpf(s, stdout, JSON_ENCODE_ANY);
    json_decref(s);
    putchar('\n');
    return ST_OK;
}

/* Prints the ids of --text, --file or standard input. */
static enum status encode(struct tokenizer *t, const struct tokenize_args *a, struct err *e) {
    CLEANUP_STR struct str in = STR_INIT;
    struct ids ids = {0};
    if (a->text) {
        str_adds(&in, a->text);
    } else if (a->file) {
        TRY(fs_read(a->file, MAX_INPUT_BYTES, &in.p, &in.len, e));
        in.cap = in.len + 1;
    } else {
        TRY(read_stdin(&in, e));
    }
    (a->whole ? tokenizer_encode_whole : tokenizer_encode)(t, str_c(&in), in.len, a->specials, &ids);
    print_ids(&ids, a->json);
    ids_free(&ids);
    return ST_OK;
}

int cmd_tokenize(int argc, char **argv) {
    const struct args_command *c = &tokenize_command;
    struct tokenize_args a = {0};
    struct args given;
    if (!args_parse(c, argc, argv, &a, &given)) return given.code;
    const int modes = (a.text != NULL) + (a.file != NULL) + (a.decode != NULL) + (a.check != NULL);
    if (!a.model) return args_wrong(c, &given, "--model is needed");
    if (modes > 1 || (a.check && (a.json || a.specials || a.whole)) || (a.decode && (a.specials || a.whole)))
        return args_wrong(c, &given, "these flags do not go together");
    struct err e = {0};
    struct tokenizer *t;
    CLEANUP_FREE char *dir = NULL;
    if (locate("--model", HUB_TOKENIZER, a.model, NULL, NULL, &dir, &e) != ST_OK ||
        tokenizer_open(dir, &t, &e) != ST_OK)
        return args_report(&e);
    int rc = 0;
    const enum status st = a.check    ? check(t, a.check, &rc, &e)
                           : a.decode ? decode(t, a.decode, a.json, &e)
                                      : encode(t, &a, &e);
    tokenizer_close(t);
    return st == ST_OK ? rc : args_report(&e);
}
