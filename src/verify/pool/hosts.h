/* hosts: what `verify_hosts` says, a list of places where answers are judged:
 *     local:N             N workers on this machine's processors
 *     local:cuda          one on each GPU; local:cuda:1-7 or local:cuda:0+2+5-7: on these, as nvidia-smi counts
 *     ssh:HOST:SLOTS      so many on another host, through ssh; ssh:HOST: one
 *     ssh:HOST:cuda       one on each of its GPUs; ssh:HOST:cuda:0-7 on these
 *     nats:URL            those that serve the queue at URL (nats://..., tls://...)
 * with commas in between. */
#ifndef KERNELRL_VERIFY_POOL_HOSTS_H
#define KERNELRL_VERIFY_POOL_HOSTS_H

#include "base/err.h"

enum { POOL_HOSTS_MAX = 256, POOL_SLOTS_MAX = 1024, POOL_GPUS_MAX = 64 };
enum pool_host_kind { POOL_LOCAL, POOL_SSH, POOL_NATS };

struct pool_host {
    enum pool_host_kind kind;
    char name[200]; /* of ssh: host, or user@host, as ssh takes it; of nats: the URL */
    int slots;      /* on processors; 0: on GPUs */
    bool all_gpus;
    int gpu[POOL_GPUS_MAX], n_gpus;
};
struct pool_hosts {
    struct pool_host *item;
    int n;
};
/* ST_CONFIG: the text names what cannot be read in it. */
enum status pool_hosts_read(const char *text, struct pool_hosts *out, struct err *e) MUST_USE;
void pool_hosts_free(struct pool_hosts *h);
/* "0-2+5" into numbers below 1024; false where it is no such text, or names one twice, or too many. */
bool pool_gpu_list(const char *text, int out[POOL_GPUS_MAX], int *n);

#endif
