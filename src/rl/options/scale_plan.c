#include "rl/options/scale_plan.h"

#include <math.h>

#define GIB (1.0 / (1 << 30))
/* Bytes a second that a device sends: 80 % of NVLink's 450 GB in one direction, 90 % of a port of 400 Gb. Not measured.
 */
static const double nvlink = 360e9, port = 45e9;
enum { BATCH_MAX = 256 }; /* rows that decode at a time */

/* One H200, bf16, LoRA of rank 32 (docs/gpu.md, docs/lab-notes.md). */
static const struct scale_rates rates_7b = {"Qwen2.5-7B with LoRA on an H200", {217, 3227, 11247, 24008}, 16923};
static const struct scale_rates rates_15b = {"Qwen2.5-1.5B with LoRA on an H200", {577, 6983, 23738, 63900}, 56495};

static bool near(int64_t bytes, double gib) { return fabs((double)bytes * GIB / gib - 1) < 0.02; }

const struct scale_rates *scale_rates_of(const struct train_plan *p, bool lora) {
    if (!lora || p->layers != 28) return NULL;
    if (near(p->weights, 14.19)) return &rates_7b;
    return near(p->weights, 2.88) ? &rates_15b : NULL;
}

/* Seconds of a step in which so many rows decode: linear between the measured points. */
static double decode_s(const struct scale_rates *r, double rows) {
    static const double at[4] = {1, 16, 64, 256};
    if (rows <= 1) return 1 / r->decode[0];
    for (int i = 1; i < 4; i++) {
        if (rows > at[i] && i < 3) continue;
        const double from = at[i - 1] / r->decode[i - 1], to = at[i] / r->decode[i];
        return from + (to - from) * (rows - at[i - 1]) / (at[i] - at[i - 1]);
    }
    return at[3] / r->decode[3];
}

/* Micro-batches of a group, as even ones as there can be, put together while they fit: train/step.c where all answers
 * are alike. *rows: of a full one. An answer's last token is not fed. */
static int64_t leaves_of(const struct scale_step *s, int64_t *rows) {
    const int64_t answer = i64_max(1, s->max_tokens - 1), room = i64_max(1, (s->train_tokens - s->prompt) / answer);
    const int64_t parts = (s->answers + room - 1) / room, each = (s->answers + parts - 1) / parts;
    const int64_t part = s->prompt + each * answer, together = i64_max(1, s->train_tokens / part);
    *rows = part * together;
    /* With this many answers each there may be a part fewer than `room` asks for. */
    return (s->groups * ((s->answers + each - 1) / each) + together - 1) / together;
}

struct scale_point scale_point_of(const struct scale_step *s, int ranks) {
    struct scale_point p = {.sample_s = (double)NAN, .train_s = (double)NAN};
    int64_t rows;
    p.leaves = leaves_of(s, &rows);
    p.rounds = (p.leaves + ranks - 1) / ranks;
    p.idle = 1 - (double)p.leaves / (double)(p.rounds * ranks);
    p.fold_bytes = (p.rounds + 1) * (4 * s->trained / ranks) * (ranks - 1);
    if (!s->rates) return p;
    const double of_rank = ceil((double)(s->groups * s->answers) / ranks), turns = ceil(of_rank / BATCH_MAX);
    p.sample_s = turns * (double)s->max_tokens * decode_s(s->rates, of_rank / turns);
    p.train_s = (double)(p.rounds * rows) / s->rates->train;
    return p;
}

static void seconds(struct str *out, const struct scale_point *p, double fold_s, double one, double ranks) {
    if (isnan(p->train_s)) {
        str_addf(out, " %23s", "unknown");
        return;
    }
    const double step = p->sample_s + p->train_s + fold_s;
    str_addf(out, " %6.1f + %5.1f s, %5.2fx", p->sample_s, p->train_s, one * ranks / step);
}

void scale_table(const struct scale_step *s, struct str *out) {
    const struct scale_point alone = scale_point_of(s, 1);
    str_addf(out, "\n%5s %7s %7s %6s %10s %19s %23s %23s\n", "ranks", "leaves", "rounds", "idle", "fold sent",
             "NVLink, 400 Gb/s", "the same batch", "batch grows with ranks");
    for (int ranks = 1; ranks <= 8; ranks *= 2) {
        struct scale_step grown = *s;
        grown.groups *= ranks;
        const struct scale_point same = scale_point_of(s, ranks), weak = scale_point_of(&grown, ranks);
        str_addf(out, "%5d %7lld %7lld %5.0f%% %6.2f GiB %6.1f ms, %6.1f ms", ranks, (long long)same.leaves,
                 (long long)same.rounds, 100 * same.idle, (double)same.fold_bytes * GIB,
                 1e3 * (double)same.fold_bytes / nvlink, 1e3 * (double)same.fold_bytes / port);
        const double one = alone.sample_s + alone.train_s;
        seconds(out, &same, (double)same.fold_bytes / nvlink, one, 1);
        seconds(out, &weak, (double)weak.fold_bytes / nvlink, one, ranks);
        str_adds(out, "\n");
    }
    str_addf(out,
             "sampling + training of answers of %lld tokens, without verdicts; x: answers a second, one rank is 1. ",
             (long long)s->max_tokens);
    if (s->rates)
        str_addf(out, "Rates: %s; links are nominal.\n", s->rates->of);
    else
        str_adds(out, "No rates of this model were measured; links are nominal.\n");
}

struct scale_step scale_step_of(const struct train_options *o, const struct train_plan *p) {
    return (struct scale_step){.groups = o->dataset_builder.batch_size,
                               .answers = o->rollout.group_size,
                               .prompt = p->context - i64_min(p->context - 1, o->rollout.max_tokens),
                               .max_tokens = i64_min(p->context - 1, o->rollout.max_tokens),
                               .train_tokens = o->update.train_tokens,
                               .trained = p->moments / (int64_t)(3 * sizeof(float)),
                               .rates = scale_rates_of(p, o->lora_rank > 0)};
}
