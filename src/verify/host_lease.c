#include "verify/host_lease.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fs.h"

static int open_lock(const char *path, struct err *e) {
    /* Anybody's file does: a lock needs no right to write. O_CREAT on a file of somebody else is refused in /tmp. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT) {
        fd = open(path, O_RDONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        if (fd < 0 && errno == EEXIST) fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    }
    if (fd < 0) (void)FAIL(e, ST_IO, "%s: %s (KERNELRL_LEASE_DIR names the folder)", path, strerror(errno));
    return fd;
}

static const char *folder(void) {
    const char *given = getenv("KERNELRL_LEASE_DIR");
    if (given && *given) return given;
    return access("/run/lock", W_OK | X_OK) == 0 ? "/run/lock" : "/tmp";
}

enum status host_lease_open(const char *name, struct host_lease *out, struct err *e) {
    char gate[sizeof out->path + 8];
    *out = HOST_LEASE_NONE;
    const char *given = getenv("KERNELRL_LEASE_DIR");
    if (given && *given) TRY(fs_mkdirs(given, e));
    snprintf(out->path, sizeof out->path, "%s/kernelrl-%s.lease", folder(), name);
    snprintf(gate, sizeof gate, "%s.gate", out->path);
    if ((out->room = open_lock(out->path, e)) < 0 || (out->gate = open_lock(gate, e)) < 0) {
        host_lease_close(out);
        return e->code;
    }
    return ST_OK;
}

void host_lease_close(struct host_lease *l) {
    if (l->room >= 0) close(l->room);
    if (l->gate >= 0) close(l->gate);
    l->room = l->gate = -1;
}

/* flock() with a deadline: signals are the program's, so it asks again and again, less and less often. */
static bool lock(int fd, int how, double until) {
    for (int64_t pause_ns = 200000;; pause_ns = i64_min(2 * pause_ns, 4000000)) {
        if (flock(fd, how | LOCK_NB) == 0) return true;
        if (errno != EWOULDBLOCK && errno != EINTR) return false;
        if (until >= 0 && clock_now_s() >= until) return false;
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
    }
}

static bool enter(struct host_lease *l, int how, double seconds) {
    const double until = seconds < 0 ? -1 : clock_now_s() + seconds;
    (void)flock(l->room, LOCK_UN);
    if (!lock(l->gate, how, until)) return false;
    const bool in = lock(l->room, how, until);
    /* Who has it alone needs the gate no more: whoever comes waits for the room. */
    (void)flock(l->gate, LOCK_UN);
    return in;
}

bool host_lease_share(struct host_lease *l, double seconds) { return enter(l, LOCK_SH, seconds); }
bool host_lease_take(struct host_lease *l, double seconds) { return enter(l, LOCK_EX, seconds); }
void host_lease_release(struct host_lease *l) { (void)flock(l->room, LOCK_UN); }

bool host_lease_wanted(const struct host_lease *l) {
    if (flock(l->gate, LOCK_SH | LOCK_NB) != 0) return true;
    (void)flock(l->gate, LOCK_UN);
    return false;
}
