#include "verify/jail/cpu_pin.h"

#include <dirent.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* An abstract socket name serves as a lock on a processor: the kernel frees it when the process ends, however it
 * ends. */
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

/* Takes out the processors that share a core with this one. A process that waits without sleeping on such a processor
 * slows the other one down by a third. The system says which ones these are. A virtual machine often says nothing; then
 * it is mostly the neighbour. */
static void clear_siblings(struct cpu_pin *p) {
    char path[100], text[200] = "";
    bool told = false;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", p->cpu);
    FILE *f = fopen(path, "re");
    if (f) {
        const size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    for (char *at = text, *end; *at; at = *end == ',' ? end + 1 : end) {
        long from = strtol(at, &end, 10), to = from;
        if (end == at) break;
        if (*end == '-') to = strtol(end + 1, &end, 10);
        for (long cpu = from; cpu <= to && cpu >= 0 && cpu < CPU_SETSIZE; cpu++) {
            told |= cpu != p->cpu;
            CPU_CLR((size_t)cpu, &p->others);
        }
    }
    if (!told) CPU_CLR((size_t)(p->cpu ^ 1), &p->others);
}

void place_open(struct cpu_pin *p, int least) {
    enum { MANY = 8 };
    *p = (struct cpu_pin){.cpu = -1, .lock = -1};
    if (sched_getaffinity(0, sizeof p->all, &p->all) != 0 || CPU_COUNT(&p->all) < least) return;
    const bool many = CPU_COUNT(&p->all) >= MANY;
    for (size_t cpu = CPU_SETSIZE; cpu-- > 0;) {
        /* Only every second processor is taken, so that it is no neighbour of another verifier's. */
        if (!CPU_ISSET(cpu, &p->all) || (many && cpu % 2 == 0)) continue;
        p->lock = lock_cpu((int)cpu);
        if (p->lock < 0) continue;
        p->cpu = (int)cpu;
        p->others = p->all;
        CPU_CLR(cpu, &p->others);
        if (many) clear_siblings(p);
        return;
    }
}

void place_close(struct cpu_pin *p) {
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

bool place_on(const struct cpu_pin *p, pid_t pid) {
    cpu_set_t set;
    if (p->cpu < 0) return false;
    CPU_ZERO(&set);
    CPU_SET((size_t)p->cpu, &set);
    return bind_threads(pid, &set);
}

bool place_beside(const struct cpu_pin *p, pid_t pid) { return p->cpu >= 0 && bind_threads(pid, &p->others); }

void place_free(const struct cpu_pin *p) {
    if (p->cpu >= 0) (void)bind_threads(0, &p->all);
}
