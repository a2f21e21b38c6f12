/* kernelrl help, man, completion, version: all from the table of commands and the tables of keys. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fs.h"
#include "base/home.h"
#include "cli/cli.h"
#include "cli/help_markdown.h"
#include "optimize/options.h"
#include "rl/evaluate/evaluate.h"

#ifndef KERNELRL_COMMIT /* the Makefile asks git */
#define KERNELRL_COMMIT "unknown"
#endif

static const struct {
    const char *name, *help;
    int (*fn)(int, char **);
} commands[] = {
#define X(fn, name, help) {name, help, fn},
    COMMAND_LIST(X)
#undef X
};

/* The keys that a command takes as arguments (eval's and generate's include train's); NULL when it takes none. */
static const struct config_schema *schema_of(const char *command) {
    static const char *const like_train[] = {"train", "demo", "plan", "score"};
    for (size_t i = 0; i < ARRAY_LEN(like_train); i++)
        if (strcmp(command, like_train[i]) == 0) return &train_schema;
    if (strcmp(command, "sft") == 0) return &sft_schema;
    if (strcmp(command, "eval") == 0) return eval_schema();
    if (strcmp(command, "generate") == 0) return generate_schema();
    if (strcmp(command, "optimize") == 0) return optimize_schema();
    if (strcmp(command, "corpus") == 0) return &corpus_schema;
    return NULL;
}

/* Returns the table of a command's flags; NULL when it has keys alone. */
static const struct args_command *table_of(const char *command) {
    static const struct {
        const char *name;
        const struct args_command *table;
    } tables[] = {
#define X(name, table) {name, &table},
        COMMAND_TABLES(X)
#undef X
    };
    for (size_t i = 0; i < ARRAY_LEN(tables); i++)
        if (strcmp(tables[i].name, command) == 0) return tables[i].table;
    return NULL;
}

/* Appends what `COMMAND --help` prints. Runs the command in this process, with standard output redirected to memory; it
 * is for commands without a table, which print their help before they do anything else. */
static enum status help_text(size_t c, struct str *out, struct err *e) {
    char name[32], flag[] = "--help", buf[4096];
    snprintf(name, sizeof name, "%s", commands[c].name);
    char *argv[] = {name, flag, NULL};
    CLEANUP_FD int memory = memfd_create("kernelrl-help", MFD_CLOEXEC), saved = dup(STDOUT_FILENO);
    fflush(stdout);
    if (memory < 0 || saved < 0 || dup2(memory, STDOUT_FILENO) < 0)
        return FAIL(e, ST_IO, "help: cannot redirect the output");
    commands[c].fn(2, argv);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    off_t at = 0;
    for (ssize_t n; (n = pread(memory, buf, sizeof buf, at)) > 0; at += n) str_add(out, buf, (size_t)n);
    return ST_OK;
}

/* ---- help ---------------------------------------------------------------------------------------------------------*/

/* Prints what `COMMAND --help` prints or, for a command with a table, `COMMAND WORD --help`, as of `bench verify`.
 * Further words are dropped, because with them the command might begin to work. */
static int help_of(int (*fn)(int, char **), int argc, char **argv) {
    char flag[] = "--help", *args[4] = {argv[0]};
    const int n = table_of(argv[0]) && argc > 1 ? 2 : 1;
    if (n == 2) args[1] = argv[1];
    args[n] = flag;
    return fn(n + 1, args);
}

int cmd_help(int argc, char **argv) {
    static const char *const with_keys[] = {"train", "eval", "generate", "sft"};
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: kernelrl COMMAND [--config FILE]... [key=value]... [--flag]\n\ncommands:\n");
        for (size_t i = 0; i < ARRAY_LEN(commands); i++) printf("  %-16s %s\n", commands[i].name, commands[i].help);
        printf(
            "\nkernelrl help COMMAND says more; kernelrl help KEY explains a key such as learning_rate; kernelrl help "
            "--markdown\nprints all keys as tables.\n");
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return help_of(commands[i].fn, argc - 1, argv + 1);
    CLEANUP_STR struct str s = STR_INIT;
    struct err e;
    if (strcmp(argv[1], "--markdown") == 0) {
        help_markdown(&s);
        fputs(s.p, stdout);
        return 0;
    }
    for (size_t i = 0; i < ARRAY_LEN(with_keys); i++) {
        struct str one = STR_INIT;
        if (config_help(schema_of(with_keys[i]), argv[1], &one, &e) == ST_OK && one.len > 0) {
            /* A key of train has the same text in eval and generate: once is enough. */
            if (!mem_find(str_c(&s), s.len, one.p, one.len)) str_addf(&s, "of %s:\n%s", with_keys[i], one.p);
        }
        str_free(&one);
    }
    if (s.len == 0) {
        fprintf(stderr, "kernelrl: help: neither a command nor a key: \"%s\"\n", argv[1]);
        return 2;
    }
    fputs(s.p, stdout);
    return 0;
}

/* ---- man ----------------------------------------------------------------------------------------------------------*/

/* Text as roff takes it: a backslash and a point or an apostrophe at the start of a line mean something there. */
static void roff(const char *text, struct str *out) {
    bool start = true;
    for (; *text; text++) {
        if (start && (*text == '.' || *text == '\'')) str_adds(out, "\\&");
        start = *text == '\n';
        if (*text == '\\')
            str_adds(out, "\\e");
        else if (*text == '-')
            str_adds(out, "\\-");
        else
            str_addc(out, *text);
    }
}

/* Appends a row: what is written, in bold, and what it means. */
static void roff_row(const char *label, const char *text, struct str *out) {
    str_adds(out, ".TP\n.B ");
    roff(label, out);
    str_addc(out, '\n');
    roff(text, out);
    str_addc(out, '\n');
}

static void roff_paragraphs(const char *text, struct str *out) {
    CLEANUP_FREE char *copy = xstrdup(text);
    char *rest = copy;
    for (char *one; (one = strsep(&rest, "\n"));) {
        str_adds(out, ".PP\n");
        roff(one, out);
        str_addc(out, '\n');
    }
}

/* Appends a command of the manual page, from the table of its flags. */
static void roff_table(const struct args_command *c, struct str *out) {
    CLEANUP_STR struct str usage = STR_INIT;
    args_usage(c, &usage);
    str_adds(out, ".PP\n.nf\n");
    roff(str_c(&usage), out);
    str_adds(out, ".fi\n");
    if (c->about) roff_paragraphs(c->about, out);
    for (size_t i = 0; i < c->n_subs; i++) {
        CLEANUP_STR struct str label = STR_INIT;
        args_sub_label(&c->subs[i], &label);
        roff_row(label.p, c->subs[i].help, out);
    }
    for (size_t i = 0; i < c->n_flags; i++) {
        CLEANUP_STR struct str label = STR_INIT, text = STR_INIT;
        if (c->flags[i].type == ARGS_SECTION) {
            str_addf(out, ".PP\n%s:\n", c->flags[i].help);
            continue;
        }
        args_flag_label(&c->flags[i], &label);
        args_flag_text(&c->flags[i], true, &text);
        roff_row(label.p, text.p, out);
    }
    if (c->notes) roff_paragraphs(c->notes, out);
    for (size_t i = 0; c->more && c->more[i]; i++) {
        str_addf(out, ".SS %s\n", c->more[i]->name);
        roff_table(c->more[i], out);
    }
}

int cmd_man(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        printf("usage: kernelrl man > kernelrl.1\n\nThe manual page, for man -l kernelrl.1.\n");
        return strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    CLEANUP_STR struct str s = STR_INIT;
    struct err e;
    str_adds(&s, ".TH KERNELRL 1 \"\" \"kernelrl " KERNELRL_VERSION
                 "\"\n.SH NAME\nkernelrl \\- language models learn to write "
                 "compute kernels\n.SH SYNOPSIS\n.B kernelrl\n.I COMMAND\n[\\-\\-config FILE]... [key=value]... "
                 "[\\-\\-flag]\n.SH COMMANDS\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        CLEANUP_STR struct str help = STR_INIT;
        if (strcmp(commands[i].name, "man") == 0 || strcmp(commands[i].name, "help") == 0) continue;
        str_addf(&s, ".SS %s\n", commands[i].name);
        roff(commands[i].help, &s);
        str_addc(&s, '\n');
        const struct args_command *table = table_of(commands[i].name);
        if (table) {
            roff_table(table, &s);
            continue;
        }
        if (help_text(i, &help, &e) != ST_OK) return args_report(&e);
        str_adds(&s, ".PP\n.nf\n");
        roff(str_c(&help), &s);
        str_adds(&s, "\n.fi\n");
    }
    str_adds(&s, ".SH EXIT STATUS\n0 success, 1 failure, 2 usage or configuration, 130 interrupted.\n");
    fputs(s.p, stdout);
    return 0;
}

/* ---- completion ---------------------------------------------------------------------------------------------------*/

/* Appends every --option that a help text names, once each, to `out`, in which a blank stands on both sides of each. */
static void options_in(const char *text, struct str *out) {
    for (const char *p = text; (p = strstr(p, "--")) != NULL;) {
        const size_t n = 2 + strspn(p + 2, "abcdefghijklmnopqrstuvwxyz-");
        CLEANUP_STR struct str word = STR_INIT;
        str_addf(&word, " %.*s ", (int)n, p);
        const bool whole = p > text && !strchr("abcdefghijklmnopqrstuvwxyz-", p[-1]) && n > 2 && p[2] != '-';
        if (whole && !mem_find(str_c(out), out->len, word.p, word.len)) str_adds(out, word.p + (out->len > 0));
        p += n;
    }
}

/* Appends the words of a table: its subcommands and flags. */
static void table_words(const struct args_command *c, struct str *out) {
    for (size_t i = 0; i < c->n_subs; i++) str_addf(out, " %s", c->subs[i].name);
    for (size_t i = 0; i < c->n_flags; i++) {
        const struct args_flag *f = &c->flags[i];
        if (f->type != ARGS_SECTION && f->name) str_addf(out, " --%s", f->name);
        if (f->alias) str_addf(out, " --%s", f->alias);
    }
    for (size_t i = 0; c->more && c->more[i]; i++) table_words(c->more[i], out);
}

/* Appends shell cases by the word in front of the cursor: behind a flag with choices, only these complete. */
static void table_choices(const struct args_command *c, struct str *out) {
    for (size_t i = 0; i < c->n_flags; i++) {
        const struct args_flag *f = &c->flags[i];
        if (f->type != ARGS_CHOICE) continue;
        str_addf(out, "            --%s) words='", f->name);
        for (const char *p = f->choices + (*f->choices == '|'); *p; p++) str_addc(out, *p == '|' ? ' ' : *p);
        str_adds(out, "' ;;\n");
    }
    for (size_t i = 0; c->more && c->more[i]; i++) table_choices(c->more[i], out);
}

/* Prints the shell case of a command: its keys complete, and the words of its table or, when it has none, the options
 * that its help names. */
static enum status completion_of(size_t i, struct err *e) {
    CLEANUP_STR struct str help = STR_INIT, words = STR_INIT, choices = STR_INIT;
    const char *name = commands[i].name;
    const struct args_command *table = table_of(name);
    const struct config_schema *keys = schema_of(name);
    str_addc(&words, ' ');
    if (table) {
        table_words(table, &words);
        table_choices(table, &choices);
    } else if (strcmp(name, "help") != 0) {
        TRY(help_text(i, &help, e));
        options_in(str_c(&help), &words);
    }
    for (size_t k = 0; keys && k < keys->count; k++) {
        const char *key = keys->key[k].name, *dot = strrchr(key, '.');
        str_addf(&words, " %s=", str_has_prefix(key, "dataset_builder.") ? dot + 1 : key);
    }
    printf("        %s)\n            words='%s'\n", name, words.p + 1);
    if (choices.len) printf("            case ${COMP_WORDS[COMP_CWORD - 1]} in\n%s            esac\n", choices.p);
    printf("            ;;\n");
    return ST_OK;
}

int cmd_completion(int argc, char **argv) {
    if (argc != 2 || strcmp(argv[1], "bash") != 0) {
        printf(
            "usage: kernelrl completion bash\n\nCompletion of commands, options and keys: source <(kernelrl completion "
            "bash).\n");
        return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
    }
    struct err e;
    printf("# bash completion of kernelrl " KERNELRL_VERSION "; made by: kernelrl completion bash\n"
           "_kernelrl() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} words\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then\n        words='");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) printf("%s%s", i ? " " : "", commands[i].name);
    printf("'\n    else\n        case ${COMP_WORDS[1]} in\n");
    for (size_t i = 0; i < ARRAY_LEN(commands); i++) {
        if (strcmp(commands[i].name, "man") == 0 || strcmp(commands[i].name, "completion") == 0) continue;
        if (completion_of(i, &e) != ST_OK) return args_report(&e);
    }
    printf("        esac\n    fi\n"
           "    mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
           "    if [[ ${COMPREPLY[0]:-} == *= ]]; then compopt -o nospace; fi\n"
           "    if [ ${#COMPREPLY[@]} = 0 ]; then mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); fi\n"
           "}\ncomplete -F _kernelrl kernelrl\n");
    return 0;
}

/* ---- version ------------------------------------------------------------------------------------------------------*/

int cmd_version(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf("usage: kernelrl version\n\nVersion, commit, what the processor has, and whether CUDA is at hand.\n");
        return 0;
    }
    CLEANUP_STR struct str cpu = STR_INIT;
#if defined(__x86_64__)
#define HAS(name) \
    if (__builtin_cpu_supports(name)) str_addf(&cpu, " %s", name)
    HAS("avx2");
    HAS("fma");
    HAS("avx512f");
    HAS("avx512bw");
    HAS("avx512vnni");
    HAS("avx512bf16");
#undef HAS
#endif
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    char plugin[4200];
    const bool built = home_beside_program("libkernelrl_cuda.so", plugin, sizeof plugin);
    const char *given = getenv("KERNELRL_CUDA_PLUGIN");
    printf("kernelrl %s (commit %s)\ncpu:%s\ncuda: plugin %s, %s\n", KERNELRL_VERSION, KERNELRL_COMMIT,
           cpu.len ? cpu.p : " no vector extension that the fast paths use",
           given && *given ? given
           : built         ? "built"
                           : "not built (make cuda)",
           driver ? "driver found" : "no driver");
    if (driver) dlclose(driver);
    return 0;
}
