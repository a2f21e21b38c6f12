/* wire: messages between the verifier and the runner, over one SOCK_SEQPACKET socket (docs/formats.md, "Runner
 * protocol"). Shared by candidate.c and runner.c; the runner includes nothing else of the program. Both ends are built
 * together and run on one machine, so plain structs in native byte order will do; whatever the runner sends is checked
 * as hostile, because the answer shares its address space. */
#ifndef KERNELRL_VERIFY_JAIL_WIRE_H
#define KERNELRL_VERIFY_JAIL_WIRE_H

#include <stdint.h>

enum { WIRE_MAGIC = 0x4b524c31, WIRE_MAX_ARGS = 1024 };
/* File descriptors of the runner. */
enum { WIRE_FD_SOCKET = 3, WIRE_FD_READ_ONLY = 4, WIRE_FD_READ_WRITE = 5, WIRE_FD_FILTER = 6 };

/* Where an argument lies: inputs per call and parameters per set in the read-only region, outputs and changed buffers
 * per call in the other. */
enum wire_region { WIRE_INPUT, WIRE_PARAM, WIRE_OUTPUT };
struct wire_arg {
    uint32_t region;
    uint32_t is_buffer_of_params; /* 1: prepare() gets it from the parameter region at param_offset */
    uint64_t offset;              /* within the stride of its region */
    uint64_t param_offset;
};

/* First message, verifier to runner, followed by n_args struct wire_arg. */
struct wire_setup {
    uint32_t magic, n_args;
    uint32_t slots, param_sets;
    uint64_t read_only_bytes, read_write_bytes;
    uint64_t param_stride;             /* parameter set p at p * param_stride of the read-only region */
    uint64_t input_base, input_stride; /* call slot s at input_base + s * input_stride */
    uint64_t output_stride;            /* call slot s at s * output_stride of the read-write region */
    uint64_t memory_bytes;             /* over what is mapped; 0: no limit */
    uint64_t cpu_s;
    uint32_t max_processes, pad;
};

enum wire_op {
    WIRE_HELLO = 1, /* runner: is up, nothing of the answer is loaded yet */
    WIRE_READY,     /* runner: the answer is loaded; value: prepared bytes */
    WIRE_FAILED,    /* runner: cannot load; text follows */
    WIRE_PREPARE,   /* verifier: run prepare() on a parameter set */
    WIRE_CALL,      /* verifier: call the kernel on slots 0 .. count-1 */
    WIRE_DONE,      /* runner: done, echoes the nonce */
    WIRE_FAULT,     /* runner: a signal arrived; value: enum wire_fault */
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

/* The runner as a shell (jail_shell.h): it says WIRE_SHELL_UP, an int, when it is there; then a request is a script and
 * its arguments, each ended by a NUL, with the three standard descriptors along, and the reply is the script's wait
 * status, an int. */
enum { WIRE_SHELL_BYTES = 16384, WIRE_SHELL_ARGS = 64, WIRE_SHELL_UP = WIRE_MAGIC };

#endif
