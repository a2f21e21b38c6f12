/* Fuzz target: what the verifier parses from others. Replies of the reference worker, the spec in them, and the text of
 * answers on their way through lint and unit rendering. The first byte picks the parser. */
#include <stdlib.h>
#include <string.h>

#include "problem/spec.h"
#include "verify/build/c_source.h"
#include "verify/build/lint.h"
#include "verify/jail/ref_worker.h"
#include "verify/native/input_sets.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse_spec(const char *text, size_t n) {
    struct arena a = ARENA_INIT;
    struct spec s;
    struct err e = {0};
    CLEANUP_STR struct str c = STR_INIT;
    enum status st = spec_parse(&a, text, n, &s, &e);
    ASSERT(st == ST_OK || (st == ST_PARSE && e.msg[0]));
    if (st == ST_OK) {
        /* Names are different C identifiers, sizes are consistent, and it can be laid out or is refused. */
        for (int i = 0; i < s.n_args; i++) {
            ASSERT(strspn(s.args[i].name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") ==
                   strlen(s.args[i].name));
            ASSERT(s.args[i].name[0] && (s.args[i].name[0] < '0' || s.args[i].name[0] > '9'));
            for (int k = 0; k < i; k++) ASSERT(strcmp(s.args[i].name, s.args[k].name) != 0);
            ASSERT(s.args[i].count >= 0 && s.args[i].count <= (int64_t)1 << 40);
        }
        struct lint_facts f = {.has_kernel = true, .has_scratch = true, .has_prepared = true};
        unit_render(&s, &f, "", &c);
        struct sets sets;
        st = sets_open(&sets, &s, 2, 1, &e);
        ASSERT(st == ST_OK || st == ST_INVALID || st == ST_MEMORY);
        if (st == ST_OK) sets_close(&sets);
    }
    arena_free(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const char *text = (const char *)data + 1;
    size_t n = size - 1;
    if (data[0] % 3 == 0) {
        json_t *reply = NULL;
        struct err e = {0};
        enum status st = refworker_parse_reply(text, n, &reply, &e);
        ASSERT((st == ST_OK) == (reply != NULL) && (st == ST_OK || e.code == st));
        json_decref(reply);
    } else if (data[0] % 3 == 1) {
        parse_spec(text, n);
    } else {
        char *source = xstrndup(text, n), message[300] = "";
        struct lint_facts f;
        ASSERT(lint_source(source, &f, message, sizeof message) || message[0]);
        free(source);
    }
    return 0;
}
