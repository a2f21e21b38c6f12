#include "verify/torch/outputs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "verify/torch/calls.h"
#include "verify/torch/failure.h"
#include "verify/torch/request.h"

enum { SHAPE_RANK = 12 };

/* ---- as they were when the call returned ---- */

/* Where an output is spread over more memory than it needs, at most twice its size and this many bytes more are read.
 * Pages that an answer has never touched cost the answer nothing, but they cost the verifier memory. */
static const int64_t most_spread_bytes = 64 << 20;

/* How many bytes of output k of call i are read: its size, or, where its elements are not dense, the bytes from its
 * first element to behind its last one. 0: it is spread too far. */
static int64_t bytes_of(const struct modcase *c, const json_t *reply, int i, int k) {
    const json_t *shape = json_object_get(json_array_get(json_object_get(c->loaded, "outputs"), (size_t)k), "shape");
    int64_t span = json_integer_value(json_array_get(run_place(reply, i, k), 1)), elements = 1,
            bytes = c->output_bytes[k];
    for (size_t d = 0; d < json_array_size(shape); d++) elements *= json_integer_value(json_array_get(shape, d));
    if (elements == 0 || span <= 0 || span == elements) return bytes;
    if (span < elements) return span * (bytes / elements); /* Elements share memory. check_output() refuses that. */
    if (span > 8 * elements + 16384) return 0;
    const int64_t spread = span * (bytes / elements);
    return spread > 2 * bytes + most_spread_bytes ? 0 : spread;
}

static const char shares_input[] = "an output shares its memory with an input";

/* An output as it was when its call returned. */
struct seen {
    int64_t at;    /* Where its bytes lie in the result memory. On a GPU: which of the referee's copies it is. */
    int64_t bytes; /* How many bytes were read. 0: it is spread too far. */
    bool read;     /* true: these bytes were read. */
};

/* Adds to q the block of a GPU's memory that address p lies in, and where in it. False: no block that was known before
 * the call holds this address. */
static bool put_place(struct str *q, const json_t *segments, uint64_t p, int64_t bytes, bool dense) {
    for (size_t i = 0; i < json_array_size(segments); i++) {
        const json_t *s = json_array_get(segments, i);
        uint64_t base = (uint64_t)json_integer_value(json_array_get(s, 0)),
                 size = (uint64_t)json_integer_value(json_array_get(s, 1));
        const char *handle = json_string_value(json_array_get(s, 2));
        if (!handle || p < base || p - base >= size) continue;
        js_begin(q, NULL, '{');
        js_put_str(q, "handle", handle);
        js_put_i64(q, "offset", (int64_t)(p - base));
        js_put_i64(q, "bytes", bytes);
        js_put_bool(q, "dense", dense);
        js_end(q, '}');
        return true;
    }
    return false;
}

/* true: the referee closes all mappings of earlier calls before it looks at outputs. */
static bool memory_is_reopened(const struct torch_answer *r) {
    return r->process.memory == MEMORY_CONFIRM || r->process.memory == MEMORY_REOPEN;
}

/* GPU: has the referee copy the outputs from blocks that were known before the call. So an answer that works only when
 * it is asked what its outputs are is too late. An output in memory that nobody knew of is opened later, as the answer
 * says. In timed calls this is accepted a few times only. */
static bool snapshot_gpu(struct torch_answer *r, const json_t *reply, const int *calls, int n, uint64_t seed,
                         struct seen *out) {
    const struct modcase *c = r->c;
    CLEANUP_STR struct str q = STR_INIT;
    struct err e = {0};
    int64_t known = 0;
    bool unseen = false;
    modrun_pause(&r->process.run);
    js_begin(&q, NULL, '[');
    for (int i = 0; i < n * c->n_outputs; i++) {
        int call = calls[i / c->n_outputs], k = i % c->n_outputs;
        out[i] = (struct seen){.bytes = bytes_of(c, reply, call, k)};
        const bool dense = json_integer_value(json_array_get(run_place(reply, call, k), 1)) == 0;
        out[i].read =
            out[i].bytes > 0 && put_place(&q, r->process.segments, run_pointer(reply, call, k), out[i].bytes, dense);
        if (out[i].read) out[i].at = known++;
        unseen |= !out[i].read && out[i].bytes > 0;
    }
    js_end(&q, ']');
    if (unseen && is_timed(r) && ++r->clock.unseen > 3)
        return run_reject(r, "in a timed call", OUTCOME_HIDDEN_WORK,
                          "an output is in memory that was not there before the call, again and again");
    const bool reopen = memory_is_reopened(r);
    bool cached = r->process.memory == MEMORY_CACHED;
    enum status st = modcase_copy(&r->j->cases, c, str_c(&q), seed, reopen, &cached, &e);
    if (!reopen) r->process.memory = cached ? MEMORY_CACHED : MEMORY_NEW;
    if (st != ST_OK) verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
    return st == ST_OK;
}

/* Copies the outputs of n calls into the result memory while the process stands still. out[i * n_outputs + k] then
 * describes output k of calls[i]. What is not there when a call returns does not count. */
static bool snapshot(struct torch_answer *r, const json_t *reply, const int *calls, int n, uint64_t seed,
                     const char *where, struct seen *out) {
    const struct modcase *c = r->c;
    struct err e = {0};
    int64_t at = 0;
    struct modrun_block blocks[CHECKED_CALLS * MODCASE_MAX_OUTPUTS];
    if (on_gpu(r->j)) return snapshot_gpu(r, reply, calls, n, seed, out);
    modrun_pause(&r->process.run);
    /* An output in the memory of the inputs is found here, whatever the answer says about it, and wherever the answer
     * has mapped its inputs. A GPU needs no such check: memory that was shared with a process cannot be shown to others
     * again by it. */
    for (int i = 0; i < n * c->n_outputs; i++) {
        const int call = calls[i / c->n_outputs], k = i % c->n_outputs;
        out[i] = (struct seen){.at = at, .bytes = bytes_of(c, reply, call, k)};
        blocks[i] = (struct modrun_block){run_pointer(reply, call, k), (uint64_t)out[i].bytes};
        at += (out[i].bytes + 255) / 256 * 256;
    }
    if (is_hardened(r->j) && !c->aliases &&
        modrun_maps(&r->process.run, c->lane_fd[LANE_ANSWER], blocks, n * c->n_outputs))
        return run_reject(r, where, OUTCOME_ALIASED_INPUT, shares_input);
    enum status st = modcase_result_room(&r->j->cases, at + 4096, &e);
    for (int i = 0; i < n * c->n_outputs && st == ST_OK; i++) {
        uint64_t p = run_pointer(reply, calls[i / c->n_outputs], i % c->n_outputs);
        out[i].read = c->output_bytes[i % c->n_outputs] == 0 ||
                      (p != 0 && modrun_read(&r->process.run, p, r->j->cases.result + out[i].at, (size_t)out[i].bytes));
    }
    if (st != ST_OK) verdict_of_trouble(r->out, ST_MEMORY, &e);
    return st == ST_OK;
}

/* ---- what the answer says of them ---- */

static void shape_text(const json_t *shape, char *text, size_t size) {
    size_t n = (size_t)snprintf(text, size, "(");
    for (size_t d = 0; d < json_array_size(shape) && n < size; d++)
        n += (size_t)snprintf(text + n, size - n, "%s%lld", d ? ", " : "",
                              (long long)json_integer_value(json_array_get(shape, d)));
    if (n < size) snprintf(text + n, size - n, ")");
}

static int64_t integer(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

/* Whether something of these sizes and strides fits in memory. What the answer says may be anything. */
static bool sane(const json_t *shape, const json_t *stride) {
    double span = 1;
    if (!json_is_array(shape) || !json_is_array(stride) || json_array_size(shape) != json_array_size(stride) ||
        json_array_size(shape) > SHAPE_RANK)
        return false;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d)), s = json_integer_value(json_array_get(stride, d));
        if (n < 0 || s < 0 || !json_is_integer(json_array_get(stride, d))) return false;
        if (n > 1) span += (double)(n - 1) * (double)s;
    }
    return span < 1e12;
}

/* How many elements lie from the first to behind the last one. */
static int64_t span_of(const json_t *shape, const json_t *stride) {
    int64_t span = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) {
        int64_t n = json_integer_value(json_array_get(shape, d));
        if (n == 0) return 0;
        span += (n - 1) * json_integer_value(json_array_get(stride, d));
    }
    return span;
}

/* Checks what the answer says about output k against what is expected, and adds the output to `judged`, in the form
 * that the referee wants. seen: the output as it was when its call returned. */
static bool check_output(struct torch_answer *r, const json_t *said, int k, const struct seen *seen, json_t *judged,
                         const char *where) {
    const struct modcase *c = r->c;
    const json_t *want = json_array_get(json_object_get(c->loaded, "outputs"), (size_t)k);
    const json_t *shape = json_object_get(said, "shape"), *stride = json_object_get(said, "stride");
    const char *dtype = json_string_value(json_object_get(said, "dtype")),
               *wanted = json_string_value(json_object_get(want, "dtype")),
               *device = json_string_value(json_object_get(said, "device"));
    char text[600], a[160], b[160];
    if (!json_is_true(json_object_get(said, "plain"))) {
        const char *type = json_string_value(json_object_get(said, "type"));
        snprintf(text, sizeof text, "output %d is a %.60s, not a plain tensor", k, type ? type : "?");
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!sane(shape, stride)) return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "impossible strides");
    if (!json_equal(shape, json_object_get(want, "shape"))) {
        shape_text(shape, a, sizeof a);
        shape_text(json_object_get(want, "shape"), b, sizeof b);
        snprintf(text, sizeof text, "output %d has shape %s, expected %s", k, a, b);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!dtype || strcmp(dtype, wanted) != 0) {
        snprintf(text, sizeof text, "output %d has type %.40s, expected %s", k, dtype ? dtype : "?", wanted);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (!device || strncmp(r->j->o->device, device, strlen(device)) != 0) {
        snprintf(text, sizeof text, "output %d is on %.40s, expected %s", k, device ? device : "?", r->j->o->device);
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
    }
    if (json_is_true(json_object_get(said, "conjugate")))
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "an output is a lazily conjugated or negated view");
    if (is_hardened(r->j) && !c->aliases && json_is_true(json_object_get(said, "aliases_input")))
        return run_reject(r, where, OUTCOME_ALIASED_INPUT, shares_input);
    json_t *one = json_object();
    json_object_set(one, "shape", (json_t *)(uintptr_t)shape);
    json_object_set(one, "stride", (json_t *)(uintptr_t)stride);
    json_object_set_new(one, "dtype", json_string(dtype));
    json_array_append_new(judged, one);
    if (seen->bytes == 0 && c->output_bytes[k] > 0)
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "an output is spread over too much memory");
    if (!seen->read && !on_gpu(r->j))
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output is not where the answer says");
    int64_t elements = 1;
    for (size_t d = 0; d < json_array_size(shape); d++) elements *= json_integer_value(json_array_get(shape, d));
    if (!json_is_true(json_object_get(want, "overlapping")) && span_of(shape, stride) < elements)
        return run_reject(r, where, OUTCOME_WRONG_SHAPE, "elements of an output share memory (a stride of 0)");
    if (elements > 0 && span_of(shape, stride) * (c->output_bytes[k] / elements) > seen->bytes)
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output's strides are not those of its call");
    if (seen->read)
        json_object_set_new(one, on_gpu(r->j) ? "copy" : "at", json_integer(seen->at));
    else {
        json_object_set(one, "handle", json_object_get(said, "handle"));
        json_object_set(one, "offset", json_object_get(said, "offset"));
    }
    return true;
}

/* ---- what the referee says of them ---- */

/* What messages call a family of inputs. */
static const char *family_text(const char *family) {
    static const char *const texts[][2] = {
        {FAMILY_SHIPPED, "inputs as the problem makes them"},
        {FAMILY_SIGNED, "inputs of both signs"},
        {FAMILY_SCALED, "large inputs of both signs"},
        {FAMILY_SMALL, "small inputs of both signs"},
        {FAMILY_NEGATED, "inputs times -1"},
        {FAMILY_OFFSET, "inputs with an offset"},
        {FAMILY_UNIT, "inputs near 1 and -1"},
        {FAMILY_SPIKES, "inputs with a few large elements"},
        {FAMILY_PROBE, "one input element changed"},
        {FAMILY_TOUCHED, "one input element changed"},
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        if (strcmp(texts[i][0], family) == 0) return texts[i][1];
    return family;
}

static double number(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v)) return strtod(json_string_value(v), NULL); /* "nan", "inf" */
    return json_number_value(v);
}

/* Turns the referee's judgement of one call into a verdict. True: the outputs are equal to what is expected. */
static bool note_judgement(struct torch_answer *r, const json_t *v, const struct modset *set, const char *where) {
    const char *word = json_string_value(json_object_get(v, "verdict"));
    struct verdict *out = r->out;
    double worst = number(v, "max_error");
    if (!(worst <= out->max_error)) out->max_error = worst;
    if (word && strcmp(word, WORD_EQUAL) == 0) return true;
    if (word && strcmp(word, WORD_UNREACHABLE) == 0)
        return run_reject(r, where, OUTCOME_SANDBOX_VIOLATION, "an output is not where the answer says");
    if (word && strcmp(word, WORD_INPUTS_CHANGED) == 0) {
        out->outcome = OUTCOME_OUT_OF_BOUNDS;
        VERDICT_SAY(out, "%s: changed its inputs, which the reference leaves as they are", where);
        return false;
    }
    char place[160];
    shape_text(json_object_get(v, "place"), place, sizeof place);
    out->outcome = word && strcmp(word, WORD_NOT_FINITE) == 0 ? OUTCOME_NOT_FINITE : OUTCOME_WRONG_OUTPUT;
    VERDICT_SAY(
        out,
        "%s (%s%s): %lld of %lld elements of output %lld are wrong; the first is at %s: %.6g, expected %.6g; the "
        "largest "
        "error is %.3g of the output's scale",
        where, family_text(set->family), set->param_set ? ", parameters randomised" : "",
        (long long)integer(v, "different"), (long long)integer(v, "elements"), (long long)integer(v, "output"), place,
        number(v, "got"), number(v, "want"), worst);
    return false;
}

bool run_check_calls(struct torch_answer *r, const json_t *reply, const int *calls, int n, const int *slots,
                     int n_slots, const struct modset *sets, const char *where) {
    struct modcase *c = r->c;
    struct seen seen[CHECKED_CALLS * MODCASE_MAX_OUTPUTS] = {{0}};
    struct err e = {0};
    enum status st;
    /* In timed calls only a part of a large output is looked at. Which part this is, is decided only now. */
    const bool in_part = is_timed(r) && is_hardened(r->j);
    const uint64_t seed = in_part ? (rng_u64(r->random, 10, ++r->random_step) >> 11) | 1 : 0;
    if (!snapshot(r, reply, calls, n, seed, where, seen)) return false;
    CLEANUP_STR struct str q = STR_INIT;
    CLEANUP_JSON json_t *said = NULL;
    run_open_request(&q, "describe");
    js_begin(&q, "calls", '[');
    for (int i = 0; i < n; i++) js_put_i64(&q, NULL, calls[i]);
    js_end(&q, ']');
    js_begin(&q, "slots", '[');
    for (int i = 0; i < n_slots; i++) js_put_i64(&q, NULL, slots[i]);
    js_end(&q, ']');
    if (!run_request(r, &q, -1, r->j->o->run_timeout_s, where, &said, NULL)) return false;
    for (int i = 0; i < n; i++) {
        const json_t *one = json_array_get(json_object_get(said, "calls"), (size_t)i);
        const json_t *outputs = json_object_get(one, "outputs");
        CLEANUP_JSON json_t *judged = json_array(), *verdict = NULL;
        if (!json_equal(json_object_get(one, "structure"), json_object_get(c->loaded, "structure")) ||
            (int)json_array_size(outputs) != c->n_outputs) {
            char text[300];
            const char *got = json_string_value(json_object_get(one, "structure"));
            snprintf(text, sizeof text, "returns %.100s, expected %.100s (T is a tensor)", got ? got : "?",
                     json_string_value(json_object_get(c->loaded, "structure")));
            return run_reject(r, where, OUTCOME_WRONG_SHAPE, text);
        }
        for (int k = 0; k < c->n_outputs; k++)
            if (!check_output(r, json_array_get(outputs, (size_t)k), k, &seen[i * c->n_outputs + k], judged, where))
                return false;
        st = modcase_judge(&r->j->cases, c, LANE_ANSWER, &sets[calls[i]], slots[calls[i]], judged, seed, &verdict, &e);
        if (st != ST_OK) {
            verdict_of_trouble(r->out, st == ST_INVALID ? ST_WORKER : st, &e);
            return false;
        }
        if (!note_judgement(r, verdict, &sets[calls[i]], where)) return false;
    }
    return true;
}

void run_note_confirmed(struct torch_answer *r) {
    if (r->process.memory == MEMORY_CONFIRM) r->process.memory = MEMORY_REOPEN;
}

bool run_look_again(struct torch_answer *r) {
    const enum outcome o = r->out->outcome;
    if (r->process.memory != MEMORY_CACHED || !r->process.up) return false;
    if (o != OUTCOME_WRONG_OUTPUT && o != OUTCOME_NOT_FINITE) return false;
    r->process.memory = MEMORY_CONFIRM;
    r->out->outcome = OUTCOME_CORRECT;
    r->out->message[0] = 0;
    r->out->max_error = 0;
    return true;
}
