#include "ranks/ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/pool.h"
#include "tensor/backend.h"
#include "train/follow.h"

enum { FINGERPRINT_MAX = 2000 };

/* true: Slurm has given each of its tasks a GPU of its own, and shows it no other. */
static bool sees_one_gpu(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return getenv("SLURM_STEP_ID") && visible && *visible && !strchr(visible, ',');
}

bool ranks_place(const char *ranks, const char **device, int64_t *threads) {
    const struct comm_launch l = comm_launched();
    if (strcmp(ranks, "self") == 0 || l.size == 1) return true;
    if (strcmp(*device, "cuda") == 0) {
        static char own[32];
        snprintf(own, sizeof own, "cuda:%d", sees_one_gpu() ? 0 : l.local_rank);
        *device = own;
    }
    const int64_t machine = sysconf(_SC_NPROCESSORS_ONLN);
    if (*threads == 0) *threads = i64_max(1, i64_min(pool_cpu_count(), machine / l.local_size));
    if (l.rank == 0) return true;
    char host[64] = "", who[80];
    gethostname(host, sizeof host - 1);
    snprintf(who, sizeof who, "rank %d on %s", l.rank, host);
    log_set_process(who);
    return false;
}

/* The program's own bytes: two builds of one version may differ. */
static uint64_t program_hash(void) {
    FILE *f = fopen("/proc/self/exe", "rbe");
    uint64_t hash = 0;
    if (!f) return 0;
    char *block = xmalloc(1 << 20);
    for (size_t n; (n = fread(block, 1, 1 << 20, f)) > 0;) hash = hash_bytes(block, n, hash);
    fclose(f);
    free(block);
    return hash;
}

void ranks_fingerprint(struct backend *be, struct str *out) {
    str_addf(out, "program: %016llx\ndevice: %s\n", (unsigned long long)program_hash(), be->kind);
}

/* What is sent of a rank. */
struct fingerprint {
    char host[64], text[FINGERPRINT_MAX];
};

/* The first line in which b is not a; false: there is none. */
static bool difference(const char *a, const char *b, struct str *line_a, struct str *line_b) {
    while (*a || *b) {
        const size_t n = strcspn(a, "\n"), m = strcspn(b, "\n");
        if (n != m || memcmp(a, b, n) != 0) {
            str_add(line_a, a, n);
            str_add(line_b, b, m);
            return true;
        }
        a += n + (a[n] == '\n');
        b += m + (b[m] == '\n');
    }
    return false;
}

enum status ranks_compare(struct comm *c, const struct str *fingerprint, struct err *e) {
    struct fingerprint mine = {.host = ""};
    if (c->size == 1) return ST_OK;
    gethostname(mine.host, sizeof mine.host - 1);
    ASSERT(fingerprint->len < sizeof mine.text);
    memcpy(mine.text, fingerprint->p, fingerprint->len);
    struct fingerprint *all = xcalloc((size_t)c->size, sizeof *all);
    enum status st = c->allgather(c, &mine, sizeof mine, all, e);
    for (int r = 1; r < c->size && st == ST_OK; r++) {
        CLEANUP_STR struct str first = STR_INIT, other = STR_INIT;
        if (difference(all[0].text, all[r].text, &first, &other))
            st = FAIL(e, ST_CONFIG, "ranks must be alike: rank 0 on %s has \"%s\", rank %d on %s has \"%s\"",
                      all[0].host, str_c(&first), r, all[r].host, str_c(&other));
    }
    free(all);
    return st;
}

static void end_peers(void *ctx) {
    struct backend *be = ctx;
    be->peers_end(be);
}

enum status ranks_join_devices(struct comm *c, struct backend *be, struct str *how, struct err *e) {
    struct {
        char id[PEERS_ID_BYTES], why[200];
    } offer = {.why = "the devices have no way of their own"};
    int64_t cannot = 1;
    if (c->size == 1) return ST_OK;
    /* Every rank tries to load the library; rank 0's name of the group is the one that counts. */
    if (be->peers_id) cannot = !be->peers_id(be, offer.id, offer.why, sizeof offer.why);
    TRY(c->max_i64(c, &cannot, 1, e));
    if (cannot) {
        str_addf(how, "host memory: %s", offer.why);
        return ST_OK;
    }
    TRY(c->bcast(c, 0, &offer, sizeof offer, e));
    const bool joined = be->peers_join(be, offer.id, c->rank, c->size, offer.why, sizeof offer.why);
    TRY(comm_agree(c, joined ? ST_OK : FAIL(e, ST_DEVICE, "%s", offer.why), e));
    c->stop_waiting_ctx = be;
    c->stop_waiting = end_peers;
    str_adds(how, "NCCL");
    return ST_OK;
}

enum status ranks_follow(struct rank_sampler *s, struct trainer *t, struct model *reference, struct err *e) {
    CLEANUP_STR struct str payload = STR_INIT;
    for (;;) {
        enum rank_command what;
        TRY(command_await(s->comm, &what, &payload, e));
        if (what == RANK_QUIT) return ST_OK;
        const enum status st =
            what == RANK_SAMPLE ? rank_sample_follow(s, &payload, e) : train_follow(t, reference, what, &payload, e);
        if (st == ST_LOST) return st;
    }
}
