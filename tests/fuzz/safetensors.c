/* Fuzz target: a safetensors file of any bytes is refused with a message or read completely and within bounds. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[64];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0); /* a real file for the reader's mmap, without a disk */
        ASSERT(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);

    struct st_file f;
    struct err e = {0};
    enum status st = st_open(path, &f, &e);
    if (st != ST_OK) {
        ASSERT(e.code == st && strncmp(e.msg, path, strlen(path)) == 0);
        return 0;
    }
    size_t total = 0;
    for (size_t i = 0; i < f.count; i++) {
        const struct st_tensor *t = &f.tensor[i];
        ASSERT(t->bytes == (size_t)t->numel * st_dtype_bytes(t->dtype));
        total += t->bytes;
        ASSERT(total <= size && st_find(&f, t->name) == t);
        void *buf = malloc((size_t)t->numel * sizeof(int64_t) + 1);
        ASSERT(buf);
        /* Any status will do: the sanitizers watch the accesses. */
        if (st_read_f32(t, buf, &e) != ST_OK && st_read_i64(t, buf, &e) != ST_OK) ASSERT(e.msg[0]);
        if (st_read_bf16(t, buf, &e) == ST_OK && st_check_finite(t, &e) != ST_OK) ASSERT(e.msg[0]);
        free(buf);
    }
    (void)st_metadata(&f, "format");
    st_close(&f);
    return 0;
}
