/* config: settings from YAML files and key=value arguments into a plain C struct, checked against a schema.
 *
 * A schema is a table of keys; each knows its type, default, allowed values, doc and place in the struct. Keys are
 * dotted paths that follow the nesting of the YAML file (dataset_builder.level) and, unless the row says otherwise, of
 * the struct. Order: defaults, then files, then the command line; the last one wins. Whatever is wrong is an error that
 * says where:
 *     configs/x.yaml:12:7: learning_rate: expected a number > 0, got "fast"
 *        12 | learning_rate: fast
 *           |                ^
 *
 *     struct demo { double learning_rate; struct { int64_t level; } dataset_builder; };
 *     static const struct config_key demo_keys[] = {
 *         KEY_FLOAT(struct demo, learning_rate, "1e-5", "(0,)", "Adam's step size."),
 *         KEY_INT(struct demo, dataset_builder.level, "1", "[1,4]", "KernelBench level."),
 *     };
 *     static const struct config_schema demo_schema = {
 *         .key = demo_keys, .count = ARRAY_LEN(demo_keys), .values_bytes = sizeof(struct demo)}; */
#ifndef KERNELRL_CONFIG_H
#define KERNELRL_CONFIG_H

#include <math.h>

#include "base/arena.h"
#include "base/choice.h"
#include "base/err.h"
#include "base/str.h"

enum config_type { CONFIG_BOOL, CONFIG_INT, CONFIG_FLOAT, CONFIG_STRING, CONFIG_ENUM, CONFIG_STRINGS };

struct config_strings {
    const char *const *item;
    size_t count;
};

struct config_key {
    const char *name; /* A dotted path. */
    enum config_type type;
    bool optional;   /* true: null is a value; see CONFIG_UNSET_*. */
    size_t offset;   /* Of the field in the values struct. */
    size_t bytes;    /* Of the field. */
    const char *def; /* The default, written as in YAML. It is "null" only when null is a value. */
    /* Numbers: an interval "[1,4]", "(0,)". Enums: "grpo|rloo". NULL: anything. */
    const char *allowed;
    const char *doc; /* One or more full sentences. */
};

/* A name that files of other programs use. key: our key that it stands for. key NULL: we have no such setting. A null
 * value is accepted then; any other value is an error (refused) or a warning, with doc as its text. */
struct config_alias {
    const char *name, *key;
    bool refused;
    const char *doc;
};

/* A topic of keys, for help. It begins with the key FROM, a full name, and holds the keys of the same section that
 * follow, up to the next topic. Several topics of one heading are shown as one. So rows of a schema may stay where they
 * are; their order is that of config_dump. */
struct config_topic {
    const char *from, *heading;
};

struct config_schema {
    const struct config_key *key;
    size_t count;
    size_t values_bytes;              /* sizeof the values struct */
    const struct config_alias *alias; /* It may be NULL. */
    size_t alias_count;
    const struct config_topic *topic; /* It may be NULL. */
    size_t topic_count;
};

/* Rows of a schema. The compiler checks that the field has the type. A field is any path of fields, so a key can stand
 * in the struct that uses its value. Rows that end in _AT give the key another name than the path. A choice is an int,
 * or the enum itself that its list makes (base/choice.h). A whole number is an int64_t or, where all allowed values
 * fit, an int. A string is a const char *. */
#define KEY_IS_(S, field, ctype) __builtin_types_compatible_p(__typeof__(((S *)0)->field), ctype)
#define KEY_(S, name, field, fits, type, optional, def, allowed, doc)                                               \
    {                                                                                                               \
        name, type, optional, offsetof(S, field) + 0 * sizeof(char[(fits) ? 1 : -1]), sizeof(((S *)0)->field), def, \
            allowed, doc                                                                                            \
    }
#define KEY_BOOL_AT(S, name, field, def, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, bool), CONFIG_BOOL, false, def, NULL, doc)
#define KEY_INT_AT(S, name, field, def, allowed, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, int64_t) || KEY_IS_(S, field, int), CONFIG_INT, false, def, allowed, doc)
#define KEY_FLOAT_AT(S, name, field, def, allowed, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, double), CONFIG_FLOAT, false, def, allowed, doc)
#define KEY_STRING_AT(S, name, field, def, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, const char *), CONFIG_STRING, false, def, NULL, doc)
#define KEY_CHOICE_AT(S, name, field, LIST, def, doc)                                                    \
    KEY_(S, name, field, KEY_IS_(S, field, int) || KEY_IS_(S, field, unsigned), CONFIG_ENUM, false, def, \
         CHOICE_TEXT(LIST), doc)
#define KEY_BOOL(S, field, def, doc) KEY_BOOL_AT(S, #field, field, def, doc)
#define KEY_INT(S, field, def, allowed, doc) KEY_INT_AT(S, #field, field, def, allowed, doc)
#define KEY_FLOAT(S, field, def, allowed, doc) KEY_FLOAT_AT(S, #field, field, def, allowed, doc)
#define KEY_STRING(S, field, def, doc) KEY_STRING_AT(S, #field, field, def, doc)
#define KEY_CHOICE(S, field, LIST, def, doc) KEY_CHOICE_AT(S, #field, field, LIST, def, doc)
#define KEY_STRINGS(S, field, def, doc) \
    KEY_(S, #field, field, KEY_IS_(S, field, struct config_strings), CONFIG_STRINGS, false, def, NULL, doc)
/* Optional keys. null (also the empty value in YAML) unsets them; other keys take their default. Unset is
 * CONFIG_UNSET_INT, NaN, NULL, CONFIG_UNSET_ENUM. */
#define KEY_INT_OPT(S, field, def, allowed, doc) \
    KEY_(S, #field, field, KEY_IS_(S, field, int64_t), CONFIG_INT, true, def, allowed, doc)
#define KEY_FLOAT_OPT(S, field, def, allowed, doc) \
    KEY_(S, #field, field, KEY_IS_(S, field, double), CONFIG_FLOAT, true, def, allowed, doc)
#define KEY_STRING_OPT_AT(S, name, field, def, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, const char *), CONFIG_STRING, true, def, NULL, doc)
#define KEY_STRING_OPT(S, field, def, doc) KEY_STRING_OPT_AT(S, #field, field, def, doc)
#define KEY_CHOICE_OPT_AT(S, name, field, LIST, def, doc) \
    KEY_(S, name, field, KEY_IS_(S, field, int), CONFIG_ENUM, true, def, CHOICE_TEXT(LIST), doc)
#define KEY_CHOICE_OPT(S, field, LIST, def, doc) KEY_CHOICE_OPT_AT(S, #field, field, LIST, def, doc)
#define CONFIG_UNSET_INT INT64_MIN
#define CONFIG_UNSET_FLOAT ((double)NAN)
#define CONFIG_UNSET_ENUM (-1)

struct config {
    const struct config_schema *schema;
    void *values;        /* The caller's struct. */
    const char **source; /* For each key: "default", "configs/x.yaml:12:7" or "command line". */
    struct arena arena;  /* It owns the strings in values. */
};

/* Fills values with the defaults. Strings in it live until config_free. A default that breaks its own rule asserts, and
 * so does a key whose field is an int that not all allowed values fit. */
void config_init(struct config *c, const struct config_schema *schema, void *values);
void config_free(struct config *c);

/* Loads a YAML file (at most 1 MiB). A relative path that is not there is looked for in home_dir(), too, as
 * configs/quickstart.yaml is. Keys must be written with their full path, nested or dotted. ST_IO, or ST_CONFIG
 * for malformed YAML, unknown keys (with the nearest known one), keys given twice, wrong types and values out of range.
 * On error, keys in front of the bad one are already set. */
enum status config_load(struct config *c, const char *path, struct err *e) MUST_USE;
/* The same from memory. `name` stands in messages. */
enum status config_load_text(struct config *c, const char *name, const char *text, size_t len, struct err *e) MUST_USE;

/* Takes one "key=value". The value is written as in YAML, without quotes; a list is a,b,c. A key may leave out its
 * path: the top level is tried first, then dataset_builder (never multiturn_dataset_builder). ST_CONFIG. */
enum status config_set(struct config *c, const char *assignment, struct err *e) MUST_USE;

/* The same, unless a file or the command line has set the key: for presets. config_source then says `source`. */
enum status config_preset(struct config *c, const char *source, const char *assignment, struct err *e) MUST_USE;

/* Takes the arguments of a command, without argv[0]: `--config FILE` or `--config=FILE` (any number; loaded first, in
 * order), key=value, `--some-key VALUE`, `--some-key=VALUE`, and only `--some-key` for a bool (true). ST_USAGE for
 * anything else. */
enum status config_args(struct config *c, int argc, char **argv, struct err *e) MUST_USE;

/* Makes an error about the value of a key, with the place that set it in front. It is for rules across keys. key is a
 * full name. */
enum status config_reject(const struct config *c, const char *key, struct err *e, const char *fmt, ...)
    PRINTF_LIKE(4, 5);
/* Says where the value of a key (full name) came from. */
const char *config_source(const struct config *c, const char *key);

/* Appends all values as YAML that config_load takes back to equal values. */
void config_dump(const struct config *c, struct str *out);
/* Appends name, type, default, allowed values and doc of a key (full or short name), of every key below a section, or
 * of all keys for NULL, with a heading for each section and topic. For another name it says what that stands for.
 * ST_CONFIG for an unknown key. */
enum status config_help(const struct config_schema *schema, const char *key, struct str *out, struct err *e) MUST_USE;
/* Appends the keys as Markdown: a heading for each section and topic, and tables with a row for each key. without: the
 * keys of this schema are left out; NULL: none are. */
void config_markdown(const struct config_schema *schema, const struct config_schema *without, struct str *out);

#endif
