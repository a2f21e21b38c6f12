/* Rows of a mixture of experts (tensor/experts.h): what takes vectors. */

/* y = z, or 0, then the rows of the pairs by ascending expert. */
static void combine_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct experts_args *p = ctx;
    const struct routing *r = p->r;
    const int64_t n = p->y.cols;
    for (int64_t t = begin; t < end; t++)
        for (int64_t c = 0; c < n; c += 16) {
            v16 s = p->z.data ? v_load_n(row_of(p->z, t) + c, n - c) : v_zero();
            for (int64_t j = t * r->k; j < (t + 1) * r->k; j++) {
                const v16 o = v_load_n(row_of(p->x, r->place[j]) + c, n - c);
                s = p->weighted ? v_fma(v_set1(r->weight[j]), o, s) : v_add(s, o);
            }
            v_store_n(row_of(p->y, t) + c, s, n - c);
        }
}

/* Works over places. */
static void dot_rows(void *ctx, int64_t begin, int64_t end, int thread) {
    (void)thread;
    const struct experts_args *p = ctx;
    const int64_t n = p->x.cols;
    for (int64_t i = begin; i < end; i++) {
        const float *x = row_of(p->x, i), *z = row_of(p->z, i);
        v16 s = v_zero();
        for (int64_t c = 0; c < n; c += 16) s = v_fma(v_load_n(x + c, n - c), v_load_n(z + c, n - c), s);
        p->dweight[p->r->pair[i]] = v_sum(s);
    }
}

/* exp(l - m) of a row and their sum. */
static float softmax_row(float *p, const float *l, int64_t n) {
    float m = l[0];
    for (int64_t j = 1; j < n; j++)
        if (l[j] > m) m = l[j];
    for (int64_t j = 0; j < n; j++) p[j] = l[j] - m;
    exp_f32_isa(p, p, n);
    v16 s = v_zero();
    for (int64_t j = 0; j < n; j += 16) s = v_add(s, v_load_n(p + j, n - j));
    return v_sum(s);
}
