/* fs: whole files, directories, and writes that are either complete or absent. */
#ifndef KERNELRL_FS_H
#define KERNELRL_FS_H

#include "base/err.h"

/* Reads a whole file into malloc'ed memory with a NUL after it; fails above max_bytes. Caller frees *out. */
enum status fs_read(const char *path, size_t max_bytes, char **out, size_t *len, struct err *e) MUST_USE;
/* Writes PATH by way of a temporary file beside it, fsync and rename; nothing half-written is ever seen. */
enum status fs_write_atomic(const char *path, const void *data, size_t n, struct err *e) MUST_USE;
/* Writes n bytes to a file descriptor, whatever it takes; false with errno. */
bool fs_write_all(int fd, const void *data, size_t n) MUST_USE;
/* fs_write_atomic and writers of the same kind ask this before they rename: whether what a file holds is on the disk
 * now (fsync; false with errno), or will be. */
bool fs_force(int fd) MUST_USE;
/* With true files that this thread writes are not forced onto the disk one by one: fs_force() says yes at once, until
 * false. fs_force_tree() must follow before anybody may rely on the files. */
void fs_force_later(bool later);
/* Forces all files and directories below DIR, and DIR, onto the disk. ST_IO. */
enum status fs_force_tree(const char *dir, struct err *e) MUST_USE;
enum status fs_mkdirs(const char *path, struct err *e) MUST_USE;
/* Returns DIR/NAME. The caller frees it. */
char *fs_join(const char *dir, const char *name);
bool fs_is_file(const char *path);
bool fs_is_dir(const char *path);
/* Removes a file or a whole tree. A missing path is fine. Symbolic links are never followed. */
enum status fs_remove(const char *path, struct err *e) MUST_USE;
/* Lists the names in a directory (without . and ..), sorted. The caller frees each name and the array. */
enum status fs_list(const char *dir, char ***names, size_t *count, struct err *e) MUST_USE;
/* A read-only map of a file. */
struct fs_map {
    const unsigned char *data;
    size_t len;
};
enum status fs_map_open(const char *path, struct fs_map *m, struct err *e) MUST_USE;
void fs_map_close(struct fs_map *m);

#endif
