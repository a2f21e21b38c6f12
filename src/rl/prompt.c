#include "rl/prompt.h"

#include <string.h>

static const char system_text[] =
    "You write fast and correct C kernels. Given a PyTorch module, write one C function `kernel` with the given "
    "prototype that computes what forward() computes. Sizes are macros. Use OpenMP and loops that vectorise. "
    "Put the complete C code in one ```c block between <KERNEL> and </KERNEL>.";
static const char think_text[] = " First plan between <think> and </think> in at most five short points.";

static void add_fenced(struct str *s, const char *lang, const char *code) {
    size_t n = strlen(code);
    while (n > 0 && (code[n - 1] == '\n' || code[n - 1] == ' ')) n--;
    str_addf(s, "```%s\n", lang);
    str_add(s, code, n);
    str_adds(s, "\n```\n");
}

void prompt_answer(const char *kernel, struct str *out) {
    str_adds(out, "<KERNEL>\n");
    add_fenced(out, "c", kernel);
    str_adds(out, "</KERNEL>");
}

void prompt_build(const struct prompt_input *in, struct arena *a, struct chat_message messages[2]) {
    ASSERT(in->n_examples <= PROMPT_EXAMPLES_MAX && in->n_attempts <= PROMPT_ATTEMPTS_MAX);
    struct str u = STR_INIT;
    for (int i = 0; i < in->n_examples; i++) {
        str_addf(&u, "Example %d:\n", i + 1);
        add_fenced(&u, "python", in->examples[i].code);
        prompt_answer(in->examples[i].kernel, &u);
        str_adds(&u, "\n\n");
    }
    str_adds(&u, "Module:\n");
    add_fenced(&u, "python", in->problem->code);
    str_adds(&u, "\nPrototype:\n");
    struct str proto = STR_INIT;
    spec_render_c(in->spec, &proto);
    add_fenced(&u, "c", str_c(&proto));
    str_free(&proto);
    for (int i = 0; i < in->n_attempts; i++) {
        const struct prompt_attempt *t = &in->attempts[i];
        str_addf(&u, "\nAttempt %d:\n", i + 1);
        if (t->summary && *t->summary) str_addf(&u, "%s\n", t->summary);
        if (t->kernel)
            prompt_answer(t->kernel, &u);
        else
            str_adds(&u, "No kernel.");
        str_addf(&u, "\nResult: %s\n", t->feedback);
    }
    if (in->n_attempts > 0) str_adds(&u, "\nWrite a better kernel.\n");
    while (u.len > 0 && u.p[u.len - 1] == '\n') u.p[--u.len] = 0;
    messages[0] =
        (struct chat_message){"system", in->think ? arena_printf(a, "%s%s", system_text, think_text) : system_text};
    messages[1] = (struct chat_message){"user", arena_strndup(a, str_c(&u), u.len)};
    str_free(&u);
}
