/* What a server of the Tinker protocol costs: the same training steps and the same samples in this process and through
 * `kernelrl serve --tinker`, one after the other, again and again. Usage: build/bench/tinker_rates KERNELRL MODEL
 * [ROUNDS [THREADS [DEVICE]]]. KERNELRL is the program, MODEL a folder, DEVICE cpu or cuda. Prints one JSON object:
 * medians over rounds of wall and processor seconds of a forward_backward with its optim_step, and of a batch of
 * samples, here and there, and the quotients (there / here; of sampling the rate, here / there). The processor time
 * there is that of both processes. */
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"
#include "base/pool.h"
#include "base/rng.h"
#include "dist/comm.h"
#include "hosted/hosted.h"
#include "policy/policy.h"

enum { TEXTS = 32, TOKENS = 129, PROMPT = 32, LEAF = 2048, RANK = 8, REQUESTS = 8, SAMPLES = 4, NEW = 96, MOST = 64 };

static struct err err;
static void must(enum status st) {
    if (st == ST_OK) return;
    fprintf(stderr, "tinker_rates: %s\n", err.msg);
    exit(1);
}

/* ---- the work -----------------------------------------------------------------------------------------------------*/

static int32_t ids[TEXTS][TOKENS];
static float weights[TOKENS], logp[TEXTS][TOKENS];
static struct datum datum[TEXTS];
static struct request request[REQUESTS];
static int32_t stops[1];
static const struct train_call call = {.loss.kind = LOSS_CROSS_ENTROPY};
static const struct adamw_config adam = {.learning_rate = 1e-5, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-12};

static void make_work(int32_t vocab) {
    struct rng r = rng_make(1, 1);
    for (int i = 0; i < TEXTS; i++) {
        for (int k = 0; k < TOKENS; k++) ids[i][k] = (int32_t)rng_below(&r, (uint64_t)vocab - 16);
        datum[i] = (struct datum){.ids = ids[i],
                                  .n = TOKENS - 1,
                                  .prompt = PROMPT,
                                  .begin = PROMPT - 1,
                                  .end = TOKENS - 1,
                                  .targets = ids[i] + PROMPT,
                                  .weights = weights,
                                  .scale = 1,
                                  .logp = logp[i]};
    }
    for (int k = 0; k < TOKENS; k++) weights[k] = 1;
    stops[0] = vocab - 1;
    for (int i = 0; i < REQUESTS; i++)
        request[i] = (struct request){
            .prompt = ids[i],
            .n_prompt = PROMPT,
            .n_samples = SAMPLES,
            .id = (uint64_t)i,
            .params = {.temperature = 1, .top_p = 1, .max_tokens = NEW, .stop_ids = stops, .n_stop_ids = 1, .seed = 7}};
}

/* ---- here ---------------------------------------------------------------------------------------------------------*/

static struct policy policy;
static struct trainer *trainer;

/* Bytes of the KV cache, here and there: all samples of a call go at a time. */
static int64_t cache_bytes(const char *device) {
    return strcmp(device, "cpu") == 0 ? INT64_C(1) << 28 : INT64_C(1) << 31;
}

static void open_here(const char *folder, const char *device, struct pool *pool) {
    static struct comm *comm;
    const struct adapter_shape shape = {RANK, 32, ADAPTER_LAYERS, 0};
    const struct policy_options o = {
        .model = {"MODEL", folder, NULL, HUB_MODEL},
        .device = device,
        .pool = pool,
        .weights = {.frozen = true},
        .no_chat = true,
        .engine = {.max_batch = engine_batch_on(device), .memory_bytes = cache_bytes(device)}};
    int adapter;
    must(policy_open(&o, NULL, &policy, &err));
    must(comm_open("self", NULL, &comm, &err));
    must(model_adapter_create(policy.model, &shape, 3, &adapter, &err));
    must(model_adapter_prepare(policy.model, adapter, &err));
    must(trainer_open(comm, policy.model, adapter, LEAF, &trainer, &err));
    make_work(model_cfg(policy.model)->V);
}

static void train_here(void) {
    struct train_stats s = {0};
    double norm;
    must(train_accumulate(trainer, &call, datum, TEXTS, &s, &err));
    must(train_optimizer_step(trainer, &adam, 0, trainer->opt->step + 1, &norm, &err));
}

static void drop_samples(struct sample *out) {
    for (int i = 0; i < REQUESTS * SAMPLES; i++) sample_free(&out[i]);
}

static void sample_here(void) {
    struct sample out[REQUESTS * SAMPLES] = {{0}};
    struct request own[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        own[i] = request[i];
        own[i].adapter = trainer->adapter;
    }
    must(engine_run(policy.engine, own, REQUESTS, out, NULL, NULL, &err));
    drop_samples(out);
}

/* ---- there --------------------------------------------------------------------------------------------------------*/

static struct hosted *hosted;
static pid_t server;
static char dir[] = "/tmp/tinker_rates.XXXXXX";

static void end_server(void) {
    struct err e;
    if (server > 0) kill(server, SIGKILL);
    if (server > 0) waitpid(server, NULL, 0);
    if (fs_remove(dir, &e) != ST_OK) fprintf(stderr, "%s\n", e.msg);
}

static void start_server(const char *program, const char *folder, const char *threads, const char *device) {
    char log[64], state[64], leaf[16], cache[24], *text = NULL;
    size_t n;
    if (!mkdtemp(dir)) exit(1);
    atexit(end_server);
    snprintf(log, sizeof log, "%s/log", dir);
    snprintf(state, sizeof state, "%s/state", dir);
    snprintf(leaf, sizeof leaf, "%d", LEAF);
    snprintf(cache, sizeof cache, "%lld", (long long)cache_bytes(device));
    server = fork();
    if (server == 0) {
        const int fd = open(log, O_WRONLY | O_CREAT, 0600);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        execl(program, program, "serve", "--model", folder, "--port", "0", "--tinker", state, "--access-log", "off",
              "--kv-memory", cache, "--train-tokens", leaf, "--threads", threads, "--device", device, (char *)NULL);
        _exit(127);
    }
    for (int i = 0; i < 1200; i++) {
        usleep(50000);
        free(text);
        if (fs_read(log, 1 << 20, &text, &n, &err) != ST_OK) text = NULL;
        char *at = text ? strstr(text, "is ready at ") : NULL, *end = at ? strstr(at, "/v1") : NULL;
        if (!end) continue;
        *end = 0;
        setenv("TINKER_BASE_URL", at + strlen("is ready at "), 1);
        free(text);
        return;
    }
    fprintf(stderr, "tinker_rates: the server is not ready; %s has its log\n", log);
    exit(1);
}

static void open_there(const char *folder, int32_t vocab) {
    setenv("TINKER_API_KEY", "tml-rates", 1);
    const struct hosted_options o = {.model = folder,
                                     .trains = true,
                                     .rank = RANK,
                                     .seed = 3,
                                     .vocab = vocab,
                                     .in_flight = REQUESTS,
                                     .patience_s = 60,
                                     .train_tokens = LEAF};
    must(hosted_open(&o, &hosted, &err));
}

static void train_there(void) {
    struct train_stats s = {0};
    double norm;
    must(hosted_accumulate(hosted, &call, datum, TEXTS, &s, &err));
    must(hosted_step(hosted, &adam, 0, &norm, &err));
}

static void sample_there(void) {
    struct sample out[REQUESTS * SAMPLES] = {{0}};
    must(hosted_sample(hosted, request, REQUESTS, out, NULL, NULL, &err));
    drop_samples(out);
}

/* ---- clocks -------------------------------------------------------------------------------------------------------*/

/* Processor seconds of this process, and of the server. */
static double used(void) {
    struct rusage r;
    char path[40], *text;
    unsigned long user = 0, system = 0;
    size_t n;
    getrusage(RUSAGE_SELF, &r);
    const double own =
        (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
    snprintf(path, sizeof path, "/proc/%d/stat", (int)server);
    must(fs_read(path, 1 << 16, &text, &n, &err));
    const char *at = strrchr(text, ')');
    if (at) sscanf(at + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system);
    free(text);
    return own + (double)(user + system) / (double)sysconf(_SC_CLK_TCK);
}

struct series {
    double wall[MOST], cpu[MOST];
};
static void measure(void (*work)(void), struct series *s, int round) {
    const double from = used(), began = clock_now_s();
    work();
    s->wall[round] = clock_now_s() - began;
    s->cpu[round] = used() - from;
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, ascending_f64);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static void print_pair(const char *name, struct series *here, struct series *there, int n, bool rate) {
    const double a = median(here->wall, n), b = median(there->wall, n), c = median(here->cpu, n),
                 d = median(there->cpu, n);
    printf("\"%s\": {\"here_s\": %.4f, \"there_s\": %.4f, \"wall\": %.3f, \"here_cpu_s\": %.4f, \"there_cpu_s\": %.4f, "
           "\"cpu\": %.3f}",
           name, a, b, rate ? a / b : b / a, c, d, rate ? c / d : d / c);
}

int main(int argc, char **argv) {
    static struct series step[2], sampling[2];
    int64_t rounds = 11, threads = 0;
    if (argc < 3 || argc > 6 || (argc > 3 && (!parse_i64(argv[3], &rounds) || rounds < 1 || rounds > MOST)) ||
        (argc > 4 && (!parse_i64(argv[4], &threads) || threads < 0)))
        return fprintf(stderr, "usage: tinker_rates KERNELRL MODEL [ROUNDS [THREADS [DEVICE]]]\n"), 2;
    const char *device = argc > 5 ? argv[5] : "cpu";
    start_server(argv[1], argv[2], argc > 4 ? argv[4] : "0", device);
    struct pool *pool = pool_create((int)threads);
    open_here(argv[2], device, pool);
    open_there(argv[2], model_cfg(policy.model)->V);
    for (int i = 0; i <= rounds; i++) { /* round 0 warms up, and is measured again */
        const int at = i > 0 ? i - 1 : 0;
        measure(train_here, &step[0], at);
        measure(train_there, &step[1], at);
        sample_here(); /* both remember the prompts, and the server has the sampler of these weights */
        sample_there();
        measure(sample_here, &sampling[0], at);
        measure(sample_there, &sampling[1], at);
    }
    printf("{\"rounds\": %d, ", (int)rounds);
    print_pair("step", &step[0], &step[1], (int)rounds, false);
    printf(", ");
    print_pair("sampling", &sampling[0], &sampling[1], (int)rounds, true);
    printf("}\n");
    hosted_close(hosted);
    return 0;
}
