/* kernelrl verify-worker: judges answers for others. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"
#include "verify/pool/worker_main.h"

#define A struct worker_args
static const struct args_flag flags[] = {
    FLAG_SECTION("Slots"),
    FLAG_INT(A, slots, "slots", "N", 1, POOL_SLOTS_MAX, "1",
             "So many answers are judged at once, on this machine's processors; they take turns where times are "
             "measured."),
    FLAG_TEXT(A, gpus, "gpus", "LIST", NULL,
              "One answer is judged at a time on each of these GPUs: all, or 0-3+6, as nvidia-smi counts."),
    FLAG_INT(A, ahead, "ahead", "N", 0, 255, "15, on a GPU 7",
             "So many jobs may wait at a slot; those at hand are judged together, which is quicker."),
    FLAG_SECTION("This machine"),
    FLAG_TEXT(A, name, "name", "NAME", "the host's", "Verdicts are signed with this name."),
    FLAG_TEXT(A, python, "python", "FILE", "KERNELRL_PYTHON, ./.venv, PATH", "The Python that has torch."),
    FLAG_TEXT(A, cache_dir, "cache", "DIR", NULL, "Compiled objects are kept there."),
    FLAG_BOOL(A, allow_weaker, "allow-weaker",
              "Without bubblewrap it goes on with seccomp and resource limits only. Unsafe."),
    FLAG_FLOAT(
        A, probe_s, "probe", "S", 0, 86400, "600",
        "So often a reference is its own answer; a machine on which it reads outside of 0.97 to 1.03 twice takes "
        "no more jobs. 0: never."),
    FLAG_SECTION("A farm"),
    FLAG_TEXT(
        A, nats, "nats", "URL", NULL,
        "Jobs are taken from the queue of this NATS server, nats://HOST:4222 or tls://HOST:4222, until the process "
        "is told to end (SIGTERM)."),
    FLAG_TEXT(A, credentials, "credentials", "DIR", "KERNELRL_FARM",
              "The folder with what `kernelrl verifiers setup` made for this host."),
    FLAG_BOOL(A, no_cache, "no-cache", "Verdicts that other hosts have given are not looked up."),
    FLAG_SECTION("Set by who starts a worker"),
    FLAG_TEXT(A, secret, "secret", "FILE", NULL, "Secrets of runs are made from what this file holds."),
    FLAG_INT(A, gpu, "gpu", "N", 0, 1023, NULL, "This process is the slot of one GPU, the first that CUDA shows it."),
    FLAG_TEXT(A, cpus, "cpus", "LIST", NULL, "This process keeps to these processors, such as 8-11."),
    FLAG_FLOAT(A, beat_s, "beat", "S", 0.05, 60, "2", "It says so often that it is alive."),
    FLAG_FLOAT(A, lease_s, "lease", "S", 0.5, 3600, "30", "A slot that is silent for so long is begun anew."),
};

const struct args_command verify_worker_command = {
    .name = "verify-worker",
    .usage = "[FLAG]...",
    .about = "Reads jobs from standard input and writes verdicts to standard output, a JSON object a line "
             "(docs/formats.md, \"Verifier workers\"), until its input ends or it is told to drain (SIGTERM).\n"
             "verify_hosts starts it on this machine and, through ssh, on others (docs/farm.md).",
    .flags = flags,
    .n_flags = ARRAY_LEN(flags),
    .notes = "Exit status: 0 behind a drain, 1 when its parent has gone or it could not begin, 2 usage.",
};

int verify_worker_with(int argc, char **argv, const struct worker_judge *judge) {
    struct worker_args a = WORKER_ARGS_INIT;
    struct args given;
    if (!args_parse(&verify_worker_command, argc, argv, &a, &given)) return given.code;
    if (a.gpus && args_has(&verify_worker_command, &given, "slots"))
        return args_wrong(&verify_worker_command, &given, "--gpus and --slots exclude each other");
    if (!a.nats && isatty(STDIN_FILENO))
        return args_wrong(&verify_worker_command, &given, "standard input is a terminal; jobs come from a program");
    return worker_main(&a, judge);
}

int cmd_verify_worker(int argc, char **argv) { return verify_worker_with(argc, argv, NULL); }
