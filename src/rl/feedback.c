#include "rl/feedback.h"

#include <string.h>

enum { DETAIL_BYTES = 1000 };

void feedback_render(const struct verdict *v, struct str *out) {
    str_adds(out, outcome_text(v->outcome));
    if (v->outcome == OUTCOME_CORRECT) {
        if (v->speedup > 0) str_addf(out, ", %.2fx the speed of PyTorch", v->speedup);
        return;
    }
    size_t n = strlen(v->message);
    while (n > 0 && v->message[n - 1] == '\n') n--;
    if (n > DETAIL_BYTES) { /* cut at a line end where there is one */
        n = DETAIL_BYTES;
        while (n > DETAIL_BYTES / 2 && v->message[n] != '\n') n--;
    }
    if (n == 0) return;
    str_addc(out, '\n');
    str_add(out, v->message, n);
}
