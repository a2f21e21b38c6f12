/* kernelrl help, man, completion, version: all from the table of commands and the tables of keys. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fs.h"
#include "cli/cli.h"
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

/* Commands whose arguments are keys; evaluation's come with those of training. */
static const struct config_schema *schema_of(const char *command) {
    if (strcmp(command, "train") == 0) return &train_schema;
    if (strcmp(command, "sft") == 0) return &sft_schema;
    if (strcmp(command, "eval") == 0) return eval_schema();
    if (strcmp(command, "generate") == 0) return generate_schema();
    return NULL;
}

/* What `COMMAND --help` prints. Runs it in this process with standard output in memory. */
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

int cmd_help(int argc, char **argv) {
    static const char *const with_keys[] = {"train", "eval", "generate", "sft"};
    if (argc < 2 || strcmp(argv[1], "--help") == 0) {
        printf("usage: kernelrl COMMAND [--config FILE]... [key=value]... [--flag]\n\ncommands:\n");
        for (size_t i = 0; i < ARRAY_LEN(commands); i++) printf("  %-16s %s\n", commands[i].name, commands[i].help);
        printf("\nkernelrl help COMMAND says more; kernelrl help KEY explains a key such as learning_rate.\n");
        return 0;
    }
    char flag[] = "--help", *help[] = {argv[1], flag, NULL};
    for (size_t i = 0; i < ARRAY_LEN(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0) return commands[i].fn(2, help);
    CLEANUP_STR struct str s = STR_INIT;
    struct err e;
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
        if (help_text(i, &help, &e) != ST_OK) return args_report(&e);
        str_addf(&s, ".SS %s\n", commands[i].name);
        roff(commands[i].help, &s);
        str_adds(&s, "\n.PP\n.nf\n");
        roff(str_c(&help), &s);
        str_adds(&s, "\n.fi\n");
    }
    str_adds(&s, ".SH EXIT STATUS\n0 success, 1 failure, 2 usage or configuration, 130 interrupted.\n");
    fputs(s.p, stdout);
    return 0;
}

/* ---- completion ---------------------------------------------------------------------------------------------------*/

/* Every --option that a help text names, once. */
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
        CLEANUP_STR struct str help = STR_INIT, words = STR_INIT;
        if (strcmp(commands[i].name, "man") == 0 || strcmp(commands[i].name, "completion") == 0) continue;
        if (strcmp(commands[i].name, "help") != 0 && help_text(i, &help, &e) != ST_OK) return args_report(&e);
        str_addc(&words, ' ');
        options_in(str_c(&help), &words);
        const struct config_schema *keys = schema_of(commands[i].name);
        for (size_t k = 0; keys && k < keys->count; k++) {
            const char *name = keys->key[k].name, *dot = strrchr(name, '.');
            str_addf(&words, " %s=", str_has_prefix(name, "dataset_builder.") ? dot + 1 : name);
        }
        printf("        %s) words='%s' ;;\n", commands[i].name, words.p + 1);
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
    char self[4096], plugin[4200] = "";
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n > 0) {
        self[n] = 0;
        char *slash = strrchr(self, '/');
        if (slash) snprintf(plugin, sizeof plugin, "%.*s/libkernelrl_cuda.so", (int)(slash - self), self);
    }
    const char *given = getenv("KERNELRL_CUDA_PLUGIN");
    printf("kernelrl %s (commit %s)\ncpu:%s\ncuda: plugin %s, %s\n", KERNELRL_VERSION, KERNELRL_COMMIT,
           cpu.len ? cpu.p : " no vector extension that the fast paths use",
           given && *given      ? given
           : fs_is_file(plugin) ? "built"
                                : "not built (make cuda)",
           driver ? "driver found" : "no driver");
    if (driver) dlclose(driver);
    return 0;
}
