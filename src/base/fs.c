#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum status fs_read(const char *path, size_t max_bytes, char **out, size_t *len, struct err *e) {
    CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    struct stat sb;
    if (fstat(fd, &sb) != 0) return FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(sb.st_mode)) return FAIL(e, ST_IO, "%s: is a directory, expected a file", path);
    size_t cap = sb.st_size > 0 ? (size_t)sb.st_size + 1 : 65536, n = 0;
    if (cap - 1 > max_bytes && sb.st_size > 0)
        return FAIL(e, ST_INVALID, "%s: %lld bytes, the limit is %zu", path, (long long)sb.st_size, max_bytes);
    char *buf = xmalloc(cap);
    for (;;) {
        if (n + 1 >= cap) buf = xrealloc(buf, cap *= 2);
        ssize_t r = read(fd, buf + n, cap - n - 1);
        if (r < 0 && errno == EINTR) continue;
        if (r < 0) {
            free(buf);
            return FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
        }
        if (r == 0) break;
        n += (size_t)r;
        if (n > max_bytes) {
            free(buf);
            return FAIL(e, ST_INVALID, "%s: more than the limit of %zu bytes", path, max_bytes);
        }
    }
    buf[n] = 0;
    *out = buf;
    if (len) *len = n;
    return ST_OK;
}

bool fs_write_all(int fd, const void *data, size_t n) {
    const char *p = data;
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) return false;
        p += w;
        n -= (size_t)w;
    }
    return true;
}

static _Thread_local bool force_later;

void fs_force_later(bool later) { force_later = later; }

bool fs_force(int fd) { return force_later || fsync(fd) == 0; }

enum status fs_write_atomic(const char *path, const void *data, size_t n, struct err *e) {
    char tmp[PATH_MAX];
    if (snprintf(tmp, sizeof tmp, "%s.tmp.%d", path, (int)getpid()) >= (int)sizeof tmp)
        return FAIL(e, ST_IO, "%s: path too long", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return FAIL(e, ST_IO, "%s: cannot write: %s", path, strerror(errno));
    bool ok = fs_write_all(fd, data, n) && fs_force(fd);
    int saved = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(tmp, path) != 0) {
        ok = false;
        saved = errno;
    }
    if (ok) return ST_OK;
    unlink(tmp);
    return FAIL(e, ST_IO, "%s: cannot write: %s", path, strerror(saved));
}

enum status fs_mkdirs(const char *path, struct err *e) {
    char buf[PATH_MAX];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof buf) return FAIL(e, ST_IO, "cannot create directory \"%s\": bad path", path);
    memcpy(buf, path, n + 1);
    for (char *p = buf + 1;; p++) {
        if (*p != '/' && *p != 0) continue;
        char c = *p;
        *p = 0;
        if (mkdir(buf, 0777) != 0 && errno != EEXIST)
            return FAIL(e, ST_IO, "%s: cannot create directory: %s", buf, strerror(errno));
        *p = c;
        if (c == 0) break;
    }
    if (!fs_is_dir(path)) return FAIL(e, ST_IO, "%s: exists and is not a directory", path);
    return ST_OK;
}

char *fs_join(const char *dir, const char *name) {
    const size_t n = strlen(dir), m = strlen(name);
    char *path = xmalloc(n + m + 2);
    memcpy(path, dir, n);
    path[n] = '/';
    memcpy(path + n + 1, name, m + 1);
    return path;
}

bool fs_is_file(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISREG(sb.st_mode);
}

bool fs_is_dir(const char *path) {
    struct stat sb;
    return stat(path, &sb) == 0 && S_ISDIR(sb.st_mode);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw) {
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

enum status fs_remove(const char *path, struct err *e) {
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return FAIL(e, ST_IO, "%s: cannot remove: %s", path, strerror(errno));
    return ST_OK;
}

static _Thread_local char not_forced[PATH_MAX]; /* the file that fs_force_tree has failed at */

static int force_one(const char *path, const struct stat *sb, int kind, struct FTW *ftw) {
    (void)sb;
    (void)ftw;
    if (kind == FTW_SL) return 0;
    CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fsync(fd) == 0) return 0;
    const int why = errno;
    snprintf(not_forced, sizeof not_forced, "%s", path);
    errno = why;
    return -1;
}

enum status fs_force_tree(const char *dir, struct err *e) {
    not_forced[0] = 0;
    if (nftw(dir, force_one, 16, FTW_DEPTH | FTW_PHYS) == 0) return ST_OK;
    const int why = errno;
    return FAIL(e, ST_IO, "%s: cannot write: %s", not_forced[0] ? not_forced : dir, strerror(why));
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

enum status fs_list(const char *dir, char ***names, size_t *count, struct err *e) {
    DIR *d = opendir(dir);
    if (!d) return FAIL(e, ST_IO, "%s: %s", dir, strerror(errno));
    size_t n = 0, cap = 16;
    char **list = xmalloc(cap * sizeof *list);
    struct dirent *de;
    while ((de = readdir(d))) {
        if (strcmp(de->d_name, ".") == 0 || strcmp(de->d_name, "..") == 0) continue;
        if (n == cap) list = xrealloc(list, (cap *= 2) * sizeof *list);
        list[n++] = xstrdup(de->d_name);
    }
    closedir(d);
    qsort(list, n, sizeof *list, by_name);
    *names = list;
    *count = n;
    return ST_OK;
}

enum status fs_map_open(const char *path, struct fs_map *m, struct err *e) {
    *m = (struct fs_map){0};
    CLEANUP_FD int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return FAIL(e, ST_IO, "%s: %s", path, strerror(errno));
    struct stat sb;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode)) return FAIL(e, ST_IO, "%s: not a regular file", path);
    if (sb.st_size == 0) return ST_OK;
    void *p = mmap(NULL, (size_t)sb.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) return FAIL(e, ST_IO, "%s: mmap: %s", path, strerror(errno));
    m->data = p;
    m->len = (size_t)sb.st_size;
    return ST_OK;
}

void fs_map_close(struct fs_map *m) {
    if (m->data) munmap((void *)(uintptr_t)m->data, m->len);
    *m = (struct fs_map){0};
}
