#include "io/args_file.h"

#include <stdlib.h>
#include <string.h>

#include "io/config.h"

union value { /* of a key, by its flag's type */
    const char *text;
    struct config_strings list;
    bool flag;
};

static bool is_key(const struct args_flag *f) {
    return f->type != ARGS_SECTION && f->name && strcmp(f->name, "config") != 0;
}

/* The key of a flag, whose name has underscores. */
static void make_key(const struct args_flag *f, int row, struct arena *mem, struct config_key *k) {
    char *name = arena_strdup(mem, f->name);
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    *k = (struct config_key){.name = name,
                             .type = f->repeats ? CONFIG_STRINGS : CONFIG_STRING,
                             .optional = !f->repeats,
                             .offset = (size_t)row * sizeof(union value),
                             .bytes = f->repeats ? sizeof(struct config_strings) : sizeof(const char *),
                             .def = f->repeats ? "[]" : "null",
                             .doc = f->help};
    if (f->type != ARGS_BOOL) return;
    k->type = CONFIG_BOOL;
    k->optional = false;
    k->bytes = sizeof(bool);
    k->def = "false";
}

static void add_word(struct args_file *f, char *word, bool owned) {
    f->argv = xrealloc(f->argv, ((size_t)f->argc + 2) * sizeof(char *));
    f->argv[f->argc++] = word;
    f->argv[f->argc] = NULL;
    if (!owned) return;
    f->texts = xrealloc(f->texts, ((size_t)f->n_texts + 1) * sizeof(char *));
    f->texts[f->n_texts++] = word;
}

static void add_flag(struct args_file *f, const char *name, const char *value) {
    struct str s = STR_INIT;
    str_addf(&s, "--%s", name);
    if (value) str_addf(&s, "=%s", value);
    add_word(f, str_steal(&s), true);
}

static void add_flags(const struct args_command *c, const struct args *given, const union value *v,
                      struct args_file *f) {
    for (size_t i = 0; i < c->n_flags; i++) {
        const struct args_flag *flag = &c->flags[i];
        if (!is_key(flag)) continue;
        if (flag->repeats) {
            for (size_t k = 0; k < v[i].list.count; k++) add_flag(f, flag->name, v[i].list.item[k]);
            continue;
        }
        if (given->given[i]) continue;
        if (flag->type == ARGS_BOOL && v[i].flag) add_flag(f, flag->name, NULL);
        if (flag->type != ARGS_BOOL && v[i].text) add_flag(f, flag->name, v[i].text);
    }
}

enum status args_file_load(const struct args_command *c, const char *path, const struct args *given, int argc,
                           char **argv, struct args_file *out, struct err *e) {
    struct arena mem = ARENA_INIT;
    struct config_key *key = arena_array(&mem, struct config_key, c->n_flags);
    union value *values = xcalloc(c->n_flags, sizeof *values);
    size_t n = 0;
    *out = (struct args_file){0};
    for (size_t i = 0; i < c->n_flags; i++)
        if (is_key(&c->flags[i])) make_key(&c->flags[i], (int)i, &mem, &key[n++]);
    const struct config_schema schema = {.key = key, .count = n, .values_bytes = c->n_flags * sizeof *values};
    struct config config;
    config_init(&config, &schema, values);
    const enum status st = config_load(&config, path, e);
    if (st == ST_OK) {
        add_word(out, argv[0], false);
        add_flags(c, given, values, out);
        for (int i = 1; i < argc; i++) add_word(out, argv[i], false);
    }
    config_free(&config);
    arena_free(&mem);
    free(values);
    return st;
}

void args_file_free(struct args_file *f) {
    for (int i = 0; i < f->n_texts; i++) free(f->texts[i]);
    free(f->texts);
    free(f->argv);
    *f = (struct args_file){0};
}
