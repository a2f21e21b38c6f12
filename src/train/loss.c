#include "train/loss.h"

#include <math.h>

enum { ENTROPY_RATIO_MAX = 2 };

static double clip(double x, double low, double high) { return x < low ? low : x > high ? high : x; }

/* rho of one token cut or masked; a sequence's mask is decided once for all of its tokens. */
static double correction(const struct loss_params *p, double rho, double rho_mean) {
    switch (p->correction) {
    case CORRECT_TRUNCATE: return fmin(rho, p->correction_high);
    case CORRECT_MASK: return rho < p->correction_low || rho > p->correction_high ? 0 : rho;
    case CORRECT_SEQUENCE_MASK: return rho_mean < p->correction_low || rho_mean > p->correction_high ? 0 : 1;
    case CORRECT_NONE:
    default: return 1;
    }
}

struct term { /* a token's loss, its derivative by logp, and whether a clip took the gradient away */
    double loss, grad;
    bool clipped;
};

/* r: the token's ratio, or the sequence's for gspo. */
static struct term policy_term(const struct loss_params *p, double a, double logp, double d, double r) {
    switch (p->kind) {
    case LOSS_IMPORTANCE_SAMPLING: return (struct term){-r * a, -r * a, false};
    case LOSS_PPO:
    case LOSS_GSPO: {
        const double rc = clip(r, 1 - p->clip_low, 1 + p->clip_high);
        if (rc * a < r * a) return (struct term){-rc * a, 0, true}; /* the clipped branch is the minimum */
        if (p->clip_dual > 0 && a < 0 && r > p->clip_dual) return (struct term){-p->clip_dual * a, 0, true};
        return (struct term){-r * a, -r * a, false};
    }
    case LOSS_CISPO: {
        const double rc = fmin(r, 1 + p->clip_high);
        return (struct term){-rc * a * logp, -rc * a, rc < r};
    }
    case LOSS_DRO: return (struct term){-(a * logp - 0.5 * p->dro_beta * d * d), -(a - p->dro_beta * d), false};
    case LOSS_CROSS_ENTROPY:
    case LOSS_REINFORCE:
    default: return (struct term){-a * logp, -a, false};
    }
}

static struct term kl_term(enum kl_estimator kl, double d) {
    switch (kl) {
    case KL_K1: return (struct term){d, 1, false};
    case KL_K2: return (struct term){0.5 * d * d, d, false};
    case KL_K3:
    default: return (struct term){exp(-d) + d - 1, 1 - exp(-d), false};
    }
}

static double mean_difference(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] - (double)b[i];
    return n ? sum / (double)n : 0;
}

void loss_grad(const struct loss_params *p, const struct loss_sequence *s, double scale, float *g,
               struct loss_stats *stats) {
    const bool likelihood = p->kind == LOSS_CROSS_ENTROPY || p->kind == LOSS_REINFORCE;
    ASSERT((likelihood || s->old) && (p->kl_coef == 0 || s->ref) && (p->entropy_coef == 0 || s->entropy));
    const float *sampled = s->sampled ? s->sampled : s->old;
    const double seq_ratio = p->kind == LOSS_GSPO ? exp(mean_difference(s->logp, s->old, s->n)) : 1;
    const double rho_mean =
        p->correction == CORRECT_SEQUENCE_MASK && sampled && s->old ? exp(mean_difference(s->old, sampled, s->n)) : 1;
    double gspo = 0; /* every token of the sequence moves its one ratio */
    for (int64_t i = 0; i < s->n; i++) {
        const double a = s->adv[i], logp = s->logp[i], d = s->old ? logp - (double)s->old[i] : 0;
        const double r = exp(d), rho = sampled && s->old ? exp((double)s->old[i] - (double)sampled[i]) : 1;
        const double w = correction(p, rho, rho_mean);
        const struct term t = policy_term(p, a, logp, d, p->kind == LOSS_GSPO ? seq_ratio : r);
        double loss = w * t.loss, grad = w * t.grad, ref_kl = 0;
        if (p->kind == LOSS_GSPO) {
            gspo += grad;
            grad = 0;
        }
        if (s->ref) {
            const struct term kl = kl_term(p->kl, logp - (double)s->ref[i]);
            ref_kl = kl.loss;
            loss += p->kl_coef * kl.loss;
            grad += p->kl_coef * kl.grad;
        }
        if (p->entropy_coef != 0) {
            loss -= p->entropy_coef * s->entropy[i];
            grad += p->entropy_coef * fmin(r, ENTROPY_RATIO_MAX) * (logp + s->entropy[i]);
        }
        g[i] = (float)(scale * grad);
        if (!stats) continue;
        const double away = sampled ? logp - (double)sampled[i] : 0;
        stats->loss += loss;
        stats->ratio += r;
        stats->ratio_max = fmax(stats->ratio_max, r);
        stats->k1 -= away;
        stats->k2 += 0.5 * away * away;
        stats->k3 += exp(away) - away - 1;
        stats->d_max = fmax(stats->d_max, fabs(away));
        stats->ref_kl += ref_kl;
        stats->clipped += t.clipped;
        stats->masked += w == 0;
        stats->n++;
    }
    for (int64_t i = 0; p->kind == LOSS_GSPO && i < s->n; i++) g[i] += (float)(scale * gspo / (double)s->n);
}
