/* safetensors: named tensors in a file or in the shards of a model directory.
 *
 * Layout of a file (huggingface/safetensors, README "Format"): a little-endian u64 with the header's length; the header
 * (JSON: {name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {string: string}}, padded with spaces to a
 * multiple of 8); the tensors' bytes. Offsets count from the first byte after the header. The tensors must tile the
 * rest of the file without a gap or an overlap. A sharded model has model.safetensors.index.json with {weight_map:
 * {tensor: shard file}}.
 *
 * Files are untrusted: whatever is wrong with one gives an error that names the file and the tensor. Values are not
 * looked at, so NaN passes; st_check_finite looks. */
#ifndef KERNELRL_SAFETENSORS_H
#define KERNELRL_SAFETENSORS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/fs.h"

#define ST_MAX_DIMS 8
#define ST_MAX_HEADER_BYTES 100000000u /* This is the format's own limit. */

/* X(name as in files, bytes an element, is a float that st_read_f32 converts) */
#define ST_DTYPE_LIST(X) \
    X(BOOL, 1, false)    \
    X(U8, 1, false)      \
    X(I8, 1, false)      \
    X(F8_E4M3, 1, false) \
    X(F8_E5M2, 1, false) \
    X(U16, 2, false)     \
    X(I16, 2, false)     \
    X(F16, 2, true)      \
    X(BF16, 2, true)     \
    X(U32, 4, false)     \
    X(I32, 4, false)     \
    X(F32, 4, true)      \
    X(U64, 8, false)     \
    X(I64, 8, false)     \
    X(F64, 8, true)

enum st_dtype {
#define X(name, bytes, is_float) ST_DTYPE_##name,
    ST_DTYPE_LIST(X)
#undef X
};

const char *st_dtype_name(enum st_dtype d);
size_t st_dtype_bytes(enum st_dtype d); /* The bytes of one element. */

struct st_tensor {
    const char *name;
    const char *file; /* The path of the file that holds it, for messages. */
    enum st_dtype dtype;
    int nd; /* 0 for a scalar. */
    int64_t dim[ST_MAX_DIMS];
    int64_t numel;
    /* Little-endian, row-major, `bytes` = numel * st_dtype_bytes. It points into the map, and is valid until st_close.
     * It is aligned to the element in files of the usual writers. A foreign file may place it anywhere, so copy with
     * memcpy or the readers below unless st_is_aligned says so. */
    const unsigned char *data;
    size_t bytes;
};

struct st_file {
    struct st_tensor *tensor; /* Sorted by name (strcmp). */
    size_t count;
    /* The rest is private. */
    struct fs_map *map;
    size_t n_maps;
    struct arena arena;
};

/* Opens one file. On success the caller must call st_close; on failure *f is empty. Errors: ST_IO (cannot open),
 * ST_PARSE (not a valid file), ST_UNSUPPORTED (unknown dtype, more than ST_MAX_DIMS dimensions). */
enum status st_open(const char *path, struct st_file *f, struct err *e) MUST_USE;
/* Opens DIR/model.safetensors, or all shards of DIR/model.safetensors.index.json. Every tensor of the index must be in
 * the shard the index names, and no tensor may be in two shards. */
enum status st_open_dir(const char *dir, struct st_file *f, struct err *e) MUST_USE;
void st_close(struct st_file *f); /* Works on an empty or zeroed struct, too. */

/* Returns NULL when there is none. */
const struct st_tensor *st_find(const struct st_file *f, const char *name);
/* Does the same as st_find, and requires the shape: nd dimensions dim[0..nd). ST_INVALID names the file, the tensor and
 * both shapes. */
enum status st_get(const struct st_file *f, const char *name, int nd, const int64_t *dim, const struct st_tensor **out,
                   struct err *e) MUST_USE;
/* Returns the value of a key of __metadata__ in the file (in the first shard that has it), or NULL. */
const char *st_metadata(const struct st_file *f, const char *key);
bool st_is_aligned(const struct st_tensor *t);

/* Copies t->numel elements and converts them: from F32, BF16, F16 (exact) or F64 (rounded to nearest). ST_INVALID for
 * others. */
enum status st_read_f32(const struct st_tensor *t, float *dst, struct err *e) MUST_USE;
/* Copies the bits of bfloat16, rounded to nearest even where the file holds more. */
enum status st_read_bf16(const struct st_tensor *t, uint16_t *dst, struct err *e) MUST_USE;
/* Copies from I64, I32, U8 or BOOL. */
enum status st_read_i64(const struct st_tensor *t, int64_t *dst, struct err *e) MUST_USE;
/* ST_INVALID with the index of the first NaN or infinity. Integer tensors pass. */
enum status st_check_finite(const struct st_tensor *t, struct err *e) MUST_USE;

/* One tensor to write. `data` holds elements of `from`; the file gets `dtype`. The two are equal, or both are among
 * F32, BF16 and F16 (rounded to nearest even). `data` is borrowed during the call. */
struct st_entry {
    const char *name;
    enum st_dtype dtype, from;
    int nd;
    int64_t dim[ST_MAX_DIMS];
    const void *data;
};

/* Writes a file by way of a temporary one beside it, fsync and rename. Tensors are laid out by falling element size,
 * then in the order given, so that each is aligned. `metadata` is a list key, value, key, value ... that ends with
 * NULL, or NULL. "format": "pt" is added unless it is given. Equal input gives equal bytes. */
enum status st_write(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                     struct err *e) MUST_USE;
/* The same for tensors that do not lie in host memory. entries[i].data is ignored; fetch is asked for it when its turn
 * comes, once for each. What it gives must stay valid until it is called again. Its failure ends the writing. */
typedef enum status st_fetch_fn(void *ctx, size_t i, const void **data, struct err *e);
enum status st_write_fetched(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                             st_fetch_fn *fetch, void *ctx, struct err *e) MUST_USE;

/* Conversions of single values to nearest even. bfloat16 is the upper half of a float, float16 is IEEE 754 binary16. */
uint16_t st_f32_to_bf16(float x);
float st_bf16_to_f32(uint16_t x);
uint16_t st_f32_to_f16(float x);
float st_f16_to_f32(uint16_t x);

#endif
