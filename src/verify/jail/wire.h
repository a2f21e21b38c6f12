/* wire: messages between the verifier and the runner, over one SOCK_SEQPACKET socket (docs/formats.md, "Runner
 * protocol"). candidate.c and runner.c share this header; the runner includes nothing else of the program. Both ends
 * are built together and run on one machine, so they are plain structs in native byte order. What the runner sends is
 * checked as hostile, because the answer shares its address space. */
#ifndef KERNELRL_VERIFY_JAIL_WIRE_H
#define KERNELRL_VERIFY_JAIL_WIRE_H

#include <stdint.h>

enum { WIRE_MAGIC = 0x4b524c31, WIRE_MAX_ARGS = 1024 };
/* The file descriptors of the runner. */
enum { WIRE_FD_SOCKET = 3, WIRE_FD_READ_ONLY = 4, WIRE_FD_READ_WRITE = 5, WIRE_FD_FILTER = 6 };

/* Where an argument lies. Inputs of each call and parameters of each set lie in the read-only region; outputs and
 * changed buffers of each call lie in the other one. */
enum wire_region { WIRE_INPUT, WIRE_PARAM, WIRE_OUTPUT };
struct wire_arg {
    uint32_t region;
    /* 1: prepare() gets it from the parameter region, at param_offset. */
    uint32_t is_buffer_of_params;
    uint64_t offset; /* Its offset within the stride of its region. */
    uint64_t param_offset;
};

/* The first message, from the verifier to the runner. n_args struct wire_arg follow it. */
struct wire_setup {
    uint32_t magic, n_args;
    uint32_t slots, param_sets;
    uint64_t read_only_bytes, read_write_bytes;
    uint64_t param_stride;             /* Parameter set p lies at p * param_stride of the read-only region. */
    uint64_t input_base, input_stride; /* Call slot s lies at input_base + s * input_stride of the read-only region. */
    uint64_t output_stride;            /* Call slot s lies at s * output_stride of the read-write region. */
    uint64_t memory_bytes;             /* A limit on memory beside what is mapped. 0: there is none. */
    uint64_t cpu_s;
    uint32_t max_processes, pad;
};

enum wire_op {
    WIRE_HELLO = 1, /* Runner: it is up, and nothing of the answer is loaded yet. */
    WIRE_READY,     /* Runner: the answer is loaded. value: prepared bytes. */
    WIRE_FAILED,    /* Runner: the answer cannot be loaded. A text follows. */
    WIRE_PREPARE,   /* Verifier: run prepare() on a parameter set. */
    WIRE_CALL,      /* Verifier: call the kernel on slots 0 .. count-1. */
    WIRE_DONE,      /* Runner: the request is done. It echoes the nonce. */
    WIRE_FAULT,     /* Runner: a signal has arrived. value: enum wire_fault. */
};
enum wire_fault { WIRE_FAULT_OTHER, WIRE_FAULT_READ_ONLY, WIRE_FAULT_MEMORY, WIRE_FAULT_STACK };

struct wire_request {
    uint32_t op, count, param_set, pad;
    uint64_t nonce;
};
struct wire_reply {
    uint32_t op, value;
    uint64_t nonce;
    char text[240];
};

/* The runner as a shell (jail_shell.h). It says WIRE_SHELL_UP, an int, when it is there. Then a request is a script and
 * its arguments, each ended by a NUL, with the three standard descriptors along. The reply is the script's wait status,
 * an int. */
enum { WIRE_SHELL_BYTES = 16384, WIRE_SHELL_ARGS = 64, WIRE_SHELL_UP = WIRE_MAGIC };

#endif
