/* The Python text of a program: a KernelBench module with its constants, inputs and init inputs. */
#include <string.h>

#include "generate/internal.h"

static void add_expr(struct str *s, const char *expr, const char *x) {
    for (; *expr; expr++) {
        if (expr[0] == '$' && expr[1] == 'x') {
            str_adds(s, x);
            expr++;
        } else {
            str_addc(s, *expr);
        }
    }
}

static void add_constants(const struct prog *p, struct str *s) {
    for (int i = 0; i < p->n_consts; i++) str_addf(s, "%s = %s\n", p->consts[i].name, p->consts[i].value);
}

/* Adds a docstring in one of four habits: a list, a sentence, a chain of arrows, or title words. */
static void add_doc(const struct prog *p, struct str *s, int form) {
    static const char *const open[] = {"", "Applies ", "", "Model that performs "};
    str_addf(s, "    \"\"\"%s", open[form]);
    for (int i = 0; i < p->n; i++) {
        const char *sep = form == 2 ? " -> " : form != 0 && i == p->n - 1 ? " and " : ", ";
        str_addf(s, "%s%s", i ? sep : "", gen_ops[p->node[i].op].title);
    }
    str_adds(s, ".\"\"\"\n");
}

char *prog_python(struct prog *p) {
    struct str s = STR_INIT, body = STR_INIT;
    bool first = rng_below(&p->r, 100) < 25, doc = rng_below(&p->r, 100) < 40, ret = rng_below(&p->r, 100) < 50;
    /* forward */
    str_adds(&body, "    def forward(self");
    for (int i = 0; i < p->n_in; i++) str_addf(&body, ", %s", p->in[i].name);
    str_adds(&body, "):\n");
    const char *x = p->x;
    for (int i = 0; i < p->n; i++) {
        if (p->node[i].py_before) {
            str_adds(&body, "        ");
            add_expr(&body, p->node[i].py_before, x);
            str_addc(&body, '\n');
        }
        str_adds(&body, "        ");
        if (i == p->n - 1 && ret)
            str_adds(&body, "return ");
        else
            str_addf(&body, "%s = ", p->var);
        add_expr(&body, p->node[i].expr, x);
        str_addc(&body, '\n');
        x = p->var;
    }
    if (!ret) str_addf(&body, "        return %s\n", p->var);
    /* __init__ */
    bool any_init = false;
    struct str args = STR_INIT;
    for (int i = 0; i < p->n_consts; i++) {
        if (!p->consts[i].init) continue;
        str_addf(&args, "%s%s", any_init ? ", " : "", p->consts[i].name);
        any_init = true;
    }
    str_adds(&s, "import torch\nimport torch.nn as nn\n");
    bool uses_f = strstr(body.p, "F.") != NULL;
    if (uses_f) str_adds(&s, "import torch.nn.functional as F\n");
    str_addc(&s, '\n');
    if (first) {
        add_constants(p, &s);
        str_addc(&s, '\n');
    }
    str_adds(&s, "class Model(nn.Module):\n");
    if (doc) add_doc(p, &s, (int)rng_below(&p->r, 4));
    if (p->n_init > 0 || any_init) {
        str_addf(&s, "    def __init__(self%s%s):\n        super().__init__()\n", any_init ? ", " : "", str_c(&args));
        for (int i = 0; i < p->n_init; i++) str_addf(&s, "        %s\n", p->init[i]);
        str_addc(&s, '\n');
    } else if (rng_below(&p->r, 2)) {
        str_adds(&s, "    def __init__(self):\n        super().__init__()\n\n");
    }
    str_adds(&s, body.p);
    str_addc(&s, '\n');
    if (!first) {
        add_constants(p, &s);
        str_addc(&s, '\n');
    }
    str_adds(&s, "def get_inputs():\n    return [");
    for (int i = 0; i < p->n_in; i++) str_addf(&s, "%s%s", i ? ", " : "", p->in[i].make);
    str_addf(&s, "]\n\ndef get_init_inputs():\n    return [%s]\n", str_c(&args));
    str_free(&body);
    str_free(&args);
    return str_steal(&s);
}
