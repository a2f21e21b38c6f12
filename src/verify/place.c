#include "verify/place.h"

#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A name that one process on this machine can have, and loses when it ends, however it ends. */
static int lock_cpu(int cpu) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    int n = snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "kernelrl processor %d", cpu);
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    if (bind(fd, (struct sockaddr *)&name, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) == 0)
        return fd;
    close(fd);
    return -1;
}

void place_open(struct place *p, int least) {
    *p = (struct place){.cpu = -1, .lock = -1};
    if (sched_getaffinity(0, sizeof p->all, &p->all) != 0 || CPU_COUNT(&p->all) < least) return;
    for (size_t cpu = CPU_SETSIZE; cpu-- > 0;) {
        if (!CPU_ISSET(cpu, &p->all)) continue;
        p->lock = lock_cpu((int)cpu);
        if (p->lock < 0) continue;
        p->cpu = (int)cpu;
        return;
    }
}

void place_close(struct place *p) {
    if (p->lock >= 0) close(p->lock);
    p->cpu = p->lock = -1;
}

static bool bind_threads(pid_t pid, const cpu_set_t *set) {
    char path[40];
    bool good = true;
    if (pid == 0) return sched_setaffinity(0, sizeof *set, set) == 0;
    snprintf(path, sizeof path, "/proc/%ld/task", (long)pid);
    DIR *d = opendir(path);
    if (!d) return false;
    for (struct dirent *one; (one = readdir(d)) && good;) {
        long thread = strtol(one->d_name, NULL, 10);
        if (thread > 0) good = sched_setaffinity((pid_t)thread, sizeof *set, set) == 0;
    }
    closedir(d);
    return good;
}

bool place_on(const struct place *p, pid_t pid) {
    cpu_set_t set;
    if (p->cpu < 0) return false;
    CPU_ZERO(&set);
    CPU_SET((size_t)p->cpu, &set);
    return bind_threads(pid, &set);
}

bool place_beside(const struct place *p, pid_t pid) {
    cpu_set_t set = p->all;
    if (p->cpu < 0) return false;
    CPU_CLR((size_t)p->cpu, &set);
    return bind_threads(pid, &set);
}

void place_free(const struct place *p) {
    if (p->cpu >= 0) (void)bind_threads(0, &p->all);
}
