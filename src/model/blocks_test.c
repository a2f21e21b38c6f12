/* The block pool against a model of it: random taking, sharing, writing, publishing and dropping; no block is lost,
 * none is held by two who write, and whatever a find returns holds exactly the tokens that were asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "model/blocks.h"

enum { N = 12, SEQS = 6, MAX_BLOCKS = 8, ROUNDS = 200000 };

/* A sequence as kv.c keeps it: full published blocks, and what is really in them. */
struct shadow {
    int32_t table[MAX_BLOCKS];
    int kind[MAX_BLOCKS]; /* content of each block */
    int n;
};

/* Content `kind`: few kinds, and those differ in the last token alone, so that only a full comparison tells them apart.
 */
static void content(int32_t *ids, int kind) {
    for (int i = 0; i < KV_BLOCK; i++) ids[i] = i;
    ids[KV_BLOCK - 1] = kind;
}

static void check_counts(const struct block_pool *p, const struct shadow *seq) {
    int32_t refs[N] = {0};
    int held = 0;
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < seq[s].n; i++) refs[seq[s].table[i]]++;
    for (int b = 0; b < N; b++) {
        assert_int_equal(refs[b], p->block[b].refs);
        held += refs[b] > 0;
    }
    assert_int_equal(p->n_unheld, N - held);
}

static void random_operations(void **state) {
    (void)state;
    struct block_pool p;
    struct shadow seq[SEQS] = {0};
    struct rng r = rng_make(7, 0);
    int hits = 0, refused = 0, same = 0;
    int32_t ids[KV_BLOCK];
    blocks_init(&p, N);
    for (int round = 0; round < ROUNDS; round++) {
        struct shadow *s = &seq[rng_below(&r, SEQS)];
        const int32_t parent = s->n ? s->table[s->n - 1] : -1;
        const int kind = (int)rng_below(&r, 3);
        switch (rng_below(&r, 8)) {
        case 0: /* end, last block first */
            while (s->n > 0) blocks_drop(&p, s->table[--s->n]);
            break;
        case 1: { /* go on from another sequence */
            const struct shadow *from = &seq[rng_below(&r, SEQS)];
            if (from == s) break;
            while (s->n > 0) blocks_drop(&p, s->table[--s->n]);
            *s = *from;
            for (int i = 0; i < s->n; i++) blocks_hold(&p, s->table[i]);
            break;
        }
        case 2:
        case 3: /* match as far as it goes */
            while (s->n < MAX_BLOCKS) {
                const int want = (int)rng_below(&r, 3);
                content(ids, want);
                const int32_t b = blocks_find(&p, s->n ? s->table[s->n - 1] : -1, ids);
                if (b < 0) break;
                assert_int_equal(p.block[b].ids[KV_BLOCK - 1], want);
                blocks_hold(&p, b);
                s->kind[s->n] = want;
                s->table[s->n++] = b;
                hits++;
            }
            break;
        case 4: /* weights change, rarely; sequences that hold old blocks end */
            if (rng_below(&r, 500) != 0) break;
            blocks_forget(&p);
            for (int i = 0; i < SEQS; i++)
                while (seq[i].n > 0) blocks_drop(&p, seq[i].table[--seq[i].n]);
            break;
        default: { /* write a block of one's own, and publish it */
            if (s->n == MAX_BLOCKS) break;
            const int32_t b = blocks_take(&p);
            if (b < 0) {
                assert_int_equal(p.n_unheld, 0);
                refused++;
                break;
            }
            assert_int_equal(p.block[b].refs, 1);
            content(p.block[b].ids, kind);
            const int32_t known = blocks_publish(&p, b, parent);
            if (known != b) {
                blocks_hold(&p, known);
                blocks_drop(&p, b);
                same++;
            }
            s->kind[s->n] = kind;
            s->table[s->n++] = known;
        }
        }
        check_counts(&p, seq);
        if (round % 64 == 0) blocks_check(&p);
        /* Nobody's blocks change under them, wherever they came from. */
        for (int i = 0; i < SEQS; i++)
            for (int k = 0; k < seq[i].n; k++)
                assert_int_equal(p.block[seq[i].table[k]].ids[KV_BLOCK - 1], seq[i].kind[k]);
    }
    assert_true(hits > 1000 && refused > 1000 && same > 1000);
    for (int i = 0; i < SEQS; i++)
        while (seq[i].n > 0) blocks_drop(&p, seq[i].table[--seq[i].n]);
    blocks_check(&p);
    assert_int_equal(p.n_unheld, N);
    blocks_free(&p);
}

/* The same tokens behind another prefix are another block, and a prefix that was taken and published again does not
 * bring back what continued the old one by mistake. */
static void prefixes_count(void **state) {
    (void)state;
    struct block_pool p;
    int32_t ids[KV_BLOCK];
    blocks_init(&p, 4);
    int32_t b[3];
    for (int i = 0; i < 3; i++) {
        b[i] = blocks_take(&p);
        content(p.block[b[i]].ids, i);
    }
    assert_int_equal(blocks_publish(&p, b[0], -1), b[0]);
    assert_int_equal(blocks_publish(&p, b[1], -1), b[1]);
    assert_int_equal(blocks_publish(&p, b[2], b[0]), b[2]);
    content(ids, 2);
    assert_int_equal(blocks_find(&p, b[0], ids), b[2]);
    assert_int_equal(blocks_find(&p, b[1], ids), -1);
    assert_int_equal(blocks_find(&p, -1, ids), -1);
    blocks_forget(&p);
    assert_int_equal(blocks_publish(&p, b[0], -1), b[0]);
    assert_int_equal(blocks_find(&p, b[0], ids), -1);
    blocks_free(&p);
}

/* The same tokens behind two beginnings are two blocks, and so is what continues them. */
static void beginnings_count(void **state) {
    (void)state;
    struct block_pool p;
    int32_t ids[KV_BLOCK], b[4];
    blocks_init(&p, 4);
    for (int i = 0; i < 4; i++) {
        b[i] = blocks_take(&p);
        content(p.block[b[i]].ids, i == 3);
    }
    content(ids, 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(blocks_find(&p, -1 - i, ids), -1);
        assert_int_equal(blocks_publish(&p, b[i], -1 - i), b[i]);
    }
    for (int i = 0; i < 3; i++) assert_int_equal(blocks_find(&p, -1 - i, ids), b[i]);
    assert_int_equal(blocks_publish(&p, b[3], b[1]), b[3]);
    content(ids, 1);
    assert_int_equal(blocks_find(&p, b[1], ids), b[3]);
    assert_int_equal(blocks_find(&p, b[0], ids), -1);
    assert_int_equal(blocks_find(&p, b[2], ids), -1);
    blocks_check(&p);
    blocks_free(&p);
}

/* Blocks without content go first, then those dropped longest ago. */
static void oldest_goes_first(void **state) {
    (void)state;
    struct block_pool p;
    int32_t ids[KV_BLOCK];
    blocks_init(&p, 3);
    int32_t b[3];
    for (int i = 0; i < 3; i++) {
        b[i] = blocks_take(&p);
        content(p.block[b[i]].ids, i);
        if (i < 2) blocks_publish(&p, b[i], -1);
    }
    assert_int_equal(blocks_take(&p), -1);
    blocks_drop(&p, b[1]);
    blocks_drop(&p, b[0]);
    blocks_drop(&p, b[2]);
    assert_int_equal(blocks_take(&p), b[2]);
    content(ids, 1);
    assert_int_equal(blocks_find(&p, -1, ids), b[1]);
    assert_int_equal(blocks_take(&p), b[1]);
    assert_int_equal(blocks_find(&p, -1, ids), -1);
    content(ids, 0);
    assert_int_equal(blocks_find(&p, -1, ids), b[0]);
    blocks_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_operations),
        cmocka_unit_test(prefixes_count),
        cmocka_unit_test(beginnings_count),
        cmocka_unit_test(oldest_goes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
