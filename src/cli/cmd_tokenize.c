/* kernelrl tokenize: text to token ids and back, and a check against recorded ids. */
#include <getopt.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fs.h"
#include "cli/cli.h"
#include "rl/options/find_model.h"
#include "text/tokenizer.h"

static const char usage[] =
    "tokenize --model MODEL [--text TEXT | --file FILE] [--specials] [--json]\n"
    "       kernelrl tokenize --model MODEL --decode \"ID ID ...\" [--json]\n"
    "       kernelrl tokenize --model MODEL --check FILE.jsonl\n"
    "Prints the token ids of TEXT, FILE or standard input. --specials recognises added tokens such as <|im_end|> in "
    "the\n"
    "text. --decode prints the text of ids. --check compares every {\"text\", \"ids\"} line of a file, added tokens\n"
    "recognised as Hugging Face's tokenizers do by default, and fails on a mismatch. MODEL is a folder, or a name on "
    "the\n"
    "Hub (ORG/NAME or ORG/NAME@REVISION), of which only the tokenizer is downloaded.";

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
        tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &got);
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

int cmd_tokenize(int argc, char **argv) {
    static const struct option options[] = {
        {"model", required_argument, NULL, 'm'},
        {"text", required_argument, NULL, 't'},
        {"file", required_argument, NULL, 'f'},
        {"decode", required_argument, NULL, 'd'},
        {"check", required_argument, NULL, 'c'},
        {"specials", no_argument, NULL, 's'},
        {"json", no_argument, NULL, 'j'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    const char *model = NULL, *text = NULL, *file = NULL, *ids_text = NULL, *golden = NULL;
    bool specials = false, json = false;
    int c;
    optind = 1;
    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        switch (c) {
        case 'm': model = optarg; break;
        case 't': text = optarg; break;
        case 'f': file = optarg; break;
        case 'd': ids_text = optarg; break;
        case 'c': golden = optarg; break;
        case 's': specials = true; break;
        case 'j': json = true; break;
        case 'h': printf("usage: kernelrl %s\n", usage); return 0;
        default: return cli_usage(usage);
        }
    }
    int modes = (text != NULL) + (file != NULL) + (ids_text != NULL) + (golden != NULL);
    if (!model) return cli_wrong(usage, "tokenize: --model is needed");
    if (optind != argc) return cli_wrong(usage, "tokenize: unexpected argument \"%s\"", argv[optind]);
    if (modes > 1 || (golden && (json || specials)) || (ids_text && specials))
        return cli_wrong(usage, "tokenize: these options do not go together");

    struct err e = {0};
    struct tokenizer *t;
    CLEANUP_FREE char *dir = NULL;
    if (locate("--model", HUB_TOKENIZER, model, NULL, NULL, &dir, &e) != ST_OK || tokenizer_open(dir, &t, &e) != ST_OK)
        return args_report(&e);
    int rc = 0;
    enum status st = ST_OK;
    if (golden) {
        st = check(t, golden, &rc, &e);
    } else if (ids_text) {
        st = decode(t, ids_text, json, &e);
    } else {
        CLEANUP_STR struct str in = STR_INIT;
        if (text) {
            str_adds(&in, text);
        } else if (file) {
            st = fs_read(file, MAX_INPUT_BYTES, &in.p, &in.len, &e);
            in.cap = in.len + 1;
        } else {
            st = read_stdin(&in, &e);
        }
        if (st == ST_OK) {
            struct ids ids = {0};
            tokenizer_encode(t, str_c(&in), in.len, specials, &ids);
            print_ids(&ids, json);
            ids_free(&ids);
        }
    }
    tokenizer_close(t);
    return st == ST_OK ? rc : args_report(&e);
}
