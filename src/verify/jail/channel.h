/* channel: framed JSON over a Unix stream socket, as the Python processes speak it (docs/formats.md, "Worker
 * protocol"): a 4-byte little-endian length and that many bytes. */
#ifndef KERNELRL_VERIFY_JAIL_CHANNEL_H
#define KERNELRL_VERIFY_JAIL_CHANNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "base/str.h"
#include "verify/worker_constants.h"

/* Sends one message with n_fds descriptors on it, which stay the caller's. False: the other end has gone. */
bool channel_send(int socket, const char *text, size_t n, const int *fds, int n_fds);

enum channel_result { CHANNEL_OK, CHANNEL_LATE, CHANNEL_CLOSED, CHANNEL_TOO_LONG };
/* Receives one message into *text, which is cleared first. deadline_s is a time of clock_now_s(). sender, when not
 * NULL, gets the process that wrote its first byte, in this process's numbering, from the kernel; SO_PASSCRED must be
 * set for that. */
enum channel_result channel_receive(int socket, double deadline_s, size_t max_bytes, struct str *text, pid_t *sender);

#endif
