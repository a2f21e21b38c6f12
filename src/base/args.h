/* args: the command line of a command against a table of its flags.
 *
 * A table names every flag with its type, its range or choices, its place in the command's struct, the default that
 * help shows, and one sentence of help. The parser, `--help`, the manual page and the completion all read that table.
 * A flag is written --name VALUE or --name=VALUE, and -l VALUE or -lVALUE where it has a letter; flags and other words
 * may come in any order, and `--` ends the flags. Names are never abbreviated. What is wrong is said on stderr:
 *     kernelrl: --repeat: expected a whole number from 1 to 100, got "x"
 *     usage: kernelrl bench MEASUREMENT --arch NAME [FLAG]...
 *
 *     struct demo { int64_t repeat; bool json; };
 *     static const struct args_flag demo_flags[] = {
 *         FLAG_SECTION("Measurement"),
 *         FLAG_INT(struct demo, repeat, "repeat", "N", 1, 100, "3", "The step is measured that many times."),
 *         FLAG_BOOL(struct demo, json, "json", "The result is printed as one JSON object.", .letter = 'j'),
 *     };
 *     static const struct args_command demo_command = {
 *         .name = "demo", .usage = "[FLAG]...", .flags = demo_flags, .n_flags = ARRAY_LEN(demo_flags)};
 *
 *     struct demo d = {.repeat = 3};
 *     struct args a;
 *     if (!args_parse(&demo_command, argc, argv, &d, &a)) return a.code; */
#ifndef KERNELRL_ARGS_H
#define KERNELRL_ARGS_H

#include "base/err.h"
#include "base/str.h"

enum args_type { ARGS_SECTION, ARGS_BOOL, ARGS_INT, ARGS_FLOAT, ARGS_TEXT, ARGS_CHOICE, ARGS_CALL };

/* Takes the value of an ARGS_CALL flag. Its message gets the flag's name in front. */
typedef enum status args_call(void *values, const char *text, struct err *e);

struct args_flag {
    enum args_type type;
    const char *name; /* The name without the dashes. NULL: the flag has only its letter. */
    /* What stands for the value in help. NULL: the flag takes none. */
    const char *value;
    size_t offset, bytes; /* The place of the field in the command's struct. */
    /* ARGS_CHOICE, true: the field is a const char *, not an index. */
    bool is_text;
    bool negates;       /* ARGS_BOOL, true: the flag sets the field to false. */
    int64_t low, high;  /* ARGS_INT: the range. A high of INT64_MAX is no bound. */
    double least, most; /* ARGS_FLOAT: the range. */
    /* ARGS_CHOICE: "a|b|c". An int, enum or bool field gets the index of a name. */
    const char *choices;
    args_call *call;
    const char *def;  /* The default as help shows it, or NULL. */
    const char *help; /* One sentence. For a section it is the heading. */
    /* Most flags do not have these. */
    char letter;
    const char *alias; /* Another long name. */
    /* ARGS_TEXT: whether it takes this text. `expected` says in messages what it takes. */
    bool (*valid)(const char *text);
    const char *expected;
    /* The subcommands that take it, "list check". NULL: all of them. */
    const char *of;
    /* true: it may be given several times with different values. */
    bool repeats;
};

/* Rows of a table. The compiler checks that the field has the type; further fields of struct args_flag may follow. */
#define ARGS_IS_(S, field, T) __builtin_types_compatible_p(__typeof__(((S *)0)->field), T)
#define ARGS_AT_(S, field, fits) \
    .offset = offsetof(S, field) + 0 * sizeof(char[(fits) ? 1 : -1]), .bytes = sizeof(((S *)0)->field)
#define FLAG_SECTION(heading) \
    { .type = ARGS_SECTION, .help = heading }
#define FLAG_BOOL(S, field, flag, sentence, ...) \
    { .type = ARGS_BOOL, .name = flag, ARGS_AT_(S, field, ARGS_IS_(S, field, bool)), .help = sentence, __VA_ARGS__ }
#define FLAG_NOT(S, field, flag, sentence, ...) \
    FLAG_BOOL(S, field, flag, sentence, .negates = true __VA_OPT__(, ) __VA_ARGS__)
/* The field is an int, an int64_t or a uint64_t. */
#define FLAG_INT(S, field, flag, val, lowest, highest, deflt, sentence, ...)                                          \
    {                                                                                                                 \
        .type = ARGS_INT, .name = flag, .value = val, .low = lowest, .high = highest, .def = deflt, .help = sentence, \
        ARGS_AT_(S, field, ARGS_IS_(S, field, int) || ARGS_IS_(S, field, int64_t) || ARGS_IS_(S, field, uint64_t)),   \
        __VA_ARGS__                                                                                                   \
    }
/* The field is a double or a float. */
#define FLAG_FLOAT(S, field, flag, val, lowest, highest, deflt, sentence, ...)                                     \
    {                                                                                                              \
        .type = ARGS_FLOAT, .name = flag, .value = val, .least = lowest, .most = highest, .def = deflt,            \
        .help = sentence, ARGS_AT_(S, field, ARGS_IS_(S, field, double) || ARGS_IS_(S, field, float)), __VA_ARGS__ \
    }
#define FLAG_TEXT(S, field, flag, val, deflt, sentence, ...)                           \
    {                                                                                  \
        .type = ARGS_TEXT, .name = flag, .value = val, .def = deflt, .help = sentence, \
        ARGS_AT_(S, field, ARGS_IS_(S, field, const char *)), __VA_ARGS__              \
    }
/* The field is a const char *, a bool, or as large as an int. An enum has its names in the order of the choices. */
#define FLAG_CHOICE(S, field, flag, val, names, deflt, sentence, ...)                                      \
    {                                                                                                      \
        .type = ARGS_CHOICE, .name = flag, .value = val, .choices = names, .def = deflt, .help = sentence, \
        .is_text = ARGS_IS_(S, field, const char *),                                                       \
        ARGS_AT_(S, field,                                                                                 \
                 ARGS_IS_(S, field, const char *) || ARGS_IS_(S, field, bool) ||                           \
                     (sizeof(((S *)0)->field) == sizeof(int) && !ARGS_IS_(S, field, float))),              \
        __VA_ARGS__                                                                                        \
    }
#define FLAG_CALL(fn, flag, val, deflt, sentence, ...) \
    { .type = ARGS_CALL, .name = flag, .value = val, .call = fn, .def = deflt, .help = sentence, __VA_ARGS__ }

/* The first word of a command that has several. */
struct args_sub {
    const char *name, *words; /* words: what may follow, as help shows it, or NULL. */
    int min, max;             /* How many words follow. A max of -1 is no bound. */
    /* For messages, such as "the NAME of one run". NULL: `words` says it. */
    const char *expected;
    const char *help; /* One sentence. */
    /* true: what stands behind the first `min` words belongs to another command, flags included. */
    bool rest;
};

struct args_command {
    const char *name;  /* "bench verify" */
    const char *usage; /* What stands behind "kernelrl NAME", a line for each form. */
    const char *about; /* Paragraphs, a line each. NULL: there are none. */
    const struct args_flag *flags;
    size_t n_flags; /* At most ARGS_FLAGS_MAX, sections included. */
    const struct args_sub *subs;
    size_t n_subs;
    int max_words; /* For a command without subcommands. -1 is no bound. */
    /* true: unknown flags are left among the words, because they are another parser's. */
    bool keys;
    const char *notes; /* Paragraphs behind the flags. NULL: there are none. */
    /* Tables that `--help` shows behind this one, ended by NULL. NULL: there are none. */
    const struct args_command *const *more;
};

enum { ARGS_FLAGS_MAX = 128, ARGS_COLUMNS = 100 };

struct args {
    bool given[ARGS_FLAGS_MAX]; /* true: the flag of this row of the table was there. */
    const struct args_sub *sub;
    /* The words behind the subcommand. They lie in argv, which is written over. */
    char **word;
    int n_words;
    int code; /* The exit code with which the parser ended the command. */
};

/* Fills `values`, which holds the defaults, from argv[1] on. False: the command ends with out->code. It is 0 after help
 * that was asked for, and 2 after a message on stderr. */
bool args_parse(const struct args_command *c, int argc, char **argv, void *values, struct args *out) MUST_USE;
/* Returns whether a flag was given. An unknown name asserts. */
bool args_has(const struct args_command *c, const struct args *a, const char *name);

/* Prints "kernelrl: NAME SUBCOMMAND: <what is wrong>" and the usage lines to stderr, and returns 2. */
int args_wrong(const struct args_command *c, const struct args *a, const char *fmt, ...) PRINTF_LIKE(3, 4);
/* Prints "kernelrl: <message>" to stderr and returns the exit code of the error. */
int args_report(const struct err *e);

/* Appends what `--help` prints; no line is longer than ARGS_COLUMNS. */
void args_help(const struct args_command *c, struct str *out);
/* Appends the usage lines alone. */
void args_usage(const struct args_command *c, struct str *out);
/* Appends a flag as help names it, "-n, --count N", and what help says about it in one line; with_of: with the
 * subcommands that it is for. */
void args_flag_label(const struct args_flag *f, struct str *out);
void args_flag_text(const struct args_flag *f, bool with_of, struct str *out);
/* Appends a subcommand with what may follow it: "show KEY". */
void args_sub_label(const struct args_sub *s, struct str *out);
/* Appends "a, b or c" of "a|b|c". */
void args_choices(const char *choices, struct str *out);

#endif
