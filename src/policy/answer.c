#include "policy/answer.h"

#include <string.h>

static void add_stop(struct stop_set *s, int32_t id) {
    if (id < 0) return;
    for (int i = 0; i < s->n; i++)
        if (s->ids[i] == id) return;
    ASSERT(s->n < (int)ARRAY_LEN(s->ids));
    s->ids[s->n++] = id;
}

struct stop_set answer_stops(const struct tokenizer *t, enum chat_style style, const struct model_config *c,
                             bool end_of_text) {
    struct stop_set s = {.n = 0};
    _Static_assert(ARRAY_LEN(s.ids) == ARRAY_LEN(c->eos) + 2, "as many as a model has, and two");
    add_stop(&s, chat_end_of_turn(style, t));
    if (end_of_text) add_stop(&s, tokenizer_id(t, "<|endoftext|>"));
    for (int i = 0; i < c->n_eos; i++) add_stop(&s, c->eos[i]);
    return s;
}

void answer_text(const struct tokenizer *t, const struct sample *s, const struct sample_params *p, bool skip_special,
                 struct str *out) {
    const size_t begin = out->len;
    tokenizer_decode(t, s->ids, (size_t)(s->stop == STOP_TOKEN ? s->n - 1 : s->n), skip_special, out);
    if (s->stop != STOP_STRING || !p) return;
    const char *cut = NULL;
    for (int i = 0; i < p->n_stop_strings; i++) {
        const char *hit =
            mem_find(str_c(out) + begin, out->len - begin, p->stop_strings[i], strlen(p->stop_strings[i]));
        if (hit && (!cut || hit < cut)) cut = hit;
    }
    if (!cut) return;
    out->len = (size_t)(cut - out->p);
    out->p[out->len] = 0;
}
