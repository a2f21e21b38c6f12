/* verify_hosts: the flags by which a command has answers judged on other hosts, as the keys verify_hosts and
 * verify_class of `train` do. POOL is the struct pool_options in the command's struct S. */
#ifndef KERNELRL_CLI_VERIFY_HOSTS_H
#define KERNELRL_CLI_VERIFY_HOSTS_H

#include "verify/pool/pool.h"

#define VERIFY_HOSTS_FLAGS(S, POOL, ...)                                                                       \
    FLAG_TEXT(S, POOL.hosts, "verify-hosts", "H,H,...", "this process",                                        \
              "Answers are judged there: local:N, local:cuda:1-7, ssh:HOST:SLOTS, ssh:HOST:cuda, or nats:URL " \
              "(docs/farm.md).",                                                                               \
              __VA_ARGS__),                                                                                    \
        FLAG_TEXT(S, POOL.classes, "verify-class", "C,C,...", "the first to come",                             \
                  "With --verify-hosts only these kinds of machine judge, such as cuda-nvidia-h200.", __VA_ARGS__)

#endif
