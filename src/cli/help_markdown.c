/* kernelrl help --markdown: the parts of docs/configuration.md that the tables of keys make. tools/configuration puts
 * them into the document. */
#include "cli/help_markdown.h"

#include <string.h>

#include "base/str.h"
#include "optimize/options.h"
#include "rl/evaluate/evaluate.h"
#include "rl/options/options.h"

static void begin(const char *part, struct str *out) { str_addf(out, "<!-- made from the keys: %s -->\n\n", part); }
static void end(struct str *out) { str_adds(out, "\n<!-- end -->\n"); }

/* Appends the keys of a command that are not those of train. */
static void add_keys(const char *part, const struct config_schema *schema, struct str *out) {
    CLEANUP_STR struct str keys = STR_INIT;
    config_markdown(schema, schema == &train_schema ? NULL : &train_schema, &keys);
    begin(part, out);
    str_adds(out, str_c(&keys));
    end(out);
}

/* Returns the value that a preset's assignments give to a key; NULL: none. */
static const char *value_of(const char *const *assignments, const char *key) {
    const size_t n = strlen(key);
    for (; *assignments; assignments++)
        if (strncmp(*assignments, key, n) == 0 && (*assignments)[n] == '=') return *assignments + n + 1;
    return NULL;
}

/* A table of presets: columns for the keys that all of them set, and one for the rest. */
struct preset_table {
    const char *part, *head;
    const char *const *names;
    int count;
    const char *const *(*preset)(int index);
    const char *const *keys; /* Ended by NULL. */
};

static bool has_column(const struct preset_table *t, const char *assignment) {
    const size_t n = strcspn(assignment, "=");
    for (const char *const *key = t->keys; *key; key++)
        if (strlen(*key) == n && strncmp(assignment, *key, n) == 0) return true;
    return false;
}

static void add_presets(const struct preset_table *t, struct str *out) {
    begin(t->part, out);
    str_adds(out, t->head);
    for (int i = 0; i < t->count; i++) {
        const char *const *all = t->preset(i), *between = "";
        str_addf(out, "| `%s` |", t->names[i]);
        for (const char *const *key = t->keys; *key; key++) {
            const char *value = value_of(all, *key);
            str_addf(out, " %s |", value ? value : "");
        }
        for (const char *const *a = all; *a; a++) {
            if (has_column(t, *a)) continue;
            str_addf(out, "%s `%s`", between, *a);
            between = ",";
        }
        str_adds(out, " |\n");
    }
    end(out);
}

static void add_algorithms(struct str *out) {
#define X(id, name) #name,
    static const char *const names[] = {ALGORITHM_LIST(X)};
    static const char *const keys[] = {"advantage", "loss_fn", "loss_norm", NULL};
    add_presets(&(struct preset_table){"algorithms",
                                       "| `algorithm` | `advantage` | `loss_fn` | `loss_norm` | and |\n"
                                       "|---|---|---|---|---|\n",
                                       names, ARRAY_LEN(names), algorithm_preset, keys},
                out);
}

static void add_rewards(struct str *out) {
    static const char *const names[] = {PRESET_LIST(X)};
#undef X
    static const char *const keys[] = {"dataset_builder.reward_format_weight", "dataset_builder.reward_compile_weight",
                                       "dataset_builder.reward_correctness_weight",
                                       "dataset_builder.reward_speed_weight", NULL};
    add_presets(&(struct preset_table){"rewards",
                                       "| `reward_preset` | format | compile | correctness | speed | and |\n"
                                       "|---|---|---|---|---|---|\n",
                                       names, ARRAY_LEN(names), reward_preset, keys},
                out);
}

static void add_other_names(struct str *out) {
    begin("other names", out);
    str_adds(out, "| name | here | |\n|---|---|---|\n");
    for (size_t i = 0; i < train_schema.alias_count; i++) {
        const struct config_alias *a = &train_schema.alias[i];
        const char *here = a->refused ? "refused unless null" : "no effect, with a warning";
        str_addf(out, "| `%s` | ", a->name);
        if (a->key)
            str_addf(out, "`%s`", a->key);
        else
            str_adds(out, here);
        str_addf(out, " | %s |\n", a->doc);
    }
    end(out);
}

void help_markdown(struct str *out) {
    add_algorithms(out);
    add_rewards(out);
    add_keys("train", &train_schema, out);
    add_keys("eval", eval_schema(), out);
    add_keys("generate", generate_schema(), out);
    add_keys("optimize", optimize_schema(), out);
    begin("sft", out);
    CLEANUP_STR struct str keys = STR_INIT;
    config_markdown(&sft_schema, NULL, &keys);
    str_adds(out, str_c(&keys));
    end(out);
    add_other_names(out);
}
