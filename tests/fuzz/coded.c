/* Fuzz target: matrices in codes. A safetensors file of any bytes is read as if each of its tensors were a weight in
 * FP8 or NF4: it is refused with a message, or its codes decode within bounds to numbers. The first two bytes are the
 * shape that is asked for, and choose the format. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "io/json.h"
#include "model/coded_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_as(const struct st_file *f, const char *name, enum weight_format format, int64_t rows, int64_t K) {
    struct coded_matrix m;
    struct err e = {0};
    (void)coded_in_file(f, name, format);
    if (coded_read(f, name, format, rows, K, &m, &e) != ST_OK) {
        ASSERT(e.msg[0] && !m.own);
        return;
    }
    uint16_t *out = malloc((size_t)(rows * K) * sizeof *out);
    ASSERT(out);
    format_of(format)->decode(&m, 0, rows * K, out);
    for (int64_t i = 0; i < rows * K; i++) ASSERT(isfinite(st_bf16_to_f32(out[i])));
    free(out);
    coded_release(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[64];
    static int fd = -1;
    if (size < 2) return 0;
    if (fd < 0) {
        fd = memfd_create("fuzz", 0);
        ASSERT(fd >= 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    const int64_t rows = 1 + data[0], K = 1 + (data[1] >> 1);
    const enum weight_format format = data[1] & 1 ? FORMAT_NF4 : FORMAT_FP8;
    data += 2, size -= 2;
    struct err e = {0};
    enum weight_format said;
    json_t *config = NULL;
    if (js_parse((const char *)data, size, "config.json", &config, &e) == ST_OK) {
        if (coded_config(config, "config.json", &said, &e) != ST_OK) ASSERT(e.msg[0]);
        json_decref(config);
        return 0;
    }
    ASSERT(ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    struct st_file f;
    if (st_open(path, &f, &e) != ST_OK) return 0;
    for (size_t i = 0; i < f.count; i++) read_as(&f, f.tensor[i].name, format, rows, K);
    st_close(&f);
    return 0;
}
