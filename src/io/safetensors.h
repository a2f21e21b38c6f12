/* safetensors: named tensors in a file or in the shards of a model directory.
 *
 * Layout of a file (huggingface/safetensors, README "Format"): a little-endian u64 with the header's length; the header
 * (JSON: {name: {dtype, shape, data_offsets: [begin, end]}, "__metadata__": {string: string}}, padded with spaces to a
 * multiple of 8); the tensors' bytes. Offsets count from the first byte after the header. The tensors must tile the
 * rest of the file without a gap or an overlap. A sharded model has model.safetensors.index.json with {weight_map:
 * {tensor: shard file}}.
 *
 * Files are untrusted: whatever is wrong with one gives an error that names the file and the tensor. Opening a file
 * does not read the values; st_check_finite finds NaN and infinity among them. */
#ifndef KERNELRL_SAFETENSORS_H
#define KERNELRL_SAFETENSORS_H

#include "base/arena.h"
#include "base/err.h"
#include "base/fs.h"

#define ST_MAX_DIMS 8
#define ST_MAX_HEADER_BYTES 100000000u /* This is the format's own limit. */

/* X(name as in files, bytes of an element, true: the readers and st_write convert it as a float) */
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
size_t st_dtype_bytes(enum st_dtype d); /* of one element */

struct st_tensor {
    const char *name;
    const char *file; /* The path of the file that holds it, for messages. */
    enum st_dtype dtype;
    int nd; /* 0 for a scalar. */
    int64_t dim[ST_MAX_DIMS];
    int64_t numel;
    /* The elements, little-endian and row-major, in the mapped file: valid until st_close. A file may place them at any
     * address. Unless st_is_aligned says true, read them with memcpy or the readers below. */
    const unsigned char *data;
    size_t bytes; /* numel * st_dtype_bytes(dtype) */
};

struct st_file {
    struct st_tensor *tensor; /* Sorted by name (strcmp). */
    size_t count;
    /* The rest is private. */
    struct fs_map *map; /* [n_maps], one for each file */
    size_t n_maps;
    struct arena arena;
};

/* Opens one file. On success the caller must call st_close; on failure *f is empty. Errors: ST_IO (cannot open),
 * ST_PARSE (not a valid file), ST_UNSUPPORTED (unknown dtype, more than ST_MAX_DIMS dimensions). */
enum status st_open(const char *path, struct st_file *f, struct err *e) MUST_USE;
/* Opens DIR/model.safetensors, or all shards of DIR/model.safetensors.index.json. Each tensor of the index must be in
 * the shard that the index names for it, and no tensor may be in two shards. Tensors that the index leaves out are
 * opened, too. Errors are as with st_open. */
enum status st_open_dir(const char *dir, struct st_file *f, struct err *e) MUST_USE;
void st_close(struct st_file *f); /* Works on an empty or zeroed struct, too. */

/* Returns NULL when there is none. */
const struct st_tensor *st_find(const struct st_file *f, const char *name);
/* Finds a tensor that must have the shape dim[0..nd). ST_INVALID: there is none of that name, or its shape is another,
 * and the message gives both. */
enum status st_get(const struct st_file *f, const char *name, int nd, const int64_t *dim, const struct st_tensor **out,
                   struct err *e) MUST_USE;
/* Returns the value of a key of __metadata__, of the first shard that has the key, or NULL. It is valid until st_close.
 */
const char *st_metadata(const struct st_file *f, const char *key);
bool st_is_aligned(const struct st_tensor *t); /* True: t->data may be cast to a pointer to its elements. */

/* The readers copy t->numel elements and convert them. ST_INVALID: the tensor is of a dtype that is not named here.
 * st_read_f32 reads F32, BF16 and F16 exactly, and rounds F64 to the nearest float. */
enum status st_read_f32(const struct st_tensor *t, float *dst, struct err *e) MUST_USE;
/* Reads BF16, and rounds F32, F16 and F64 to it, to nearest even. F64 is rounded to float first. */
enum status st_read_bf16(const struct st_tensor *t, uint16_t *dst, struct err *e) MUST_USE;
/* Reads I64, I32, U8 and BOOL. */
enum status st_read_i64(const struct st_tensor *t, int64_t *dst, struct err *e) MUST_USE;
/* ST_INVALID names the index of the first NaN or infinity. Tensors of integers and of 8-bit floats are not looked at.
 */
enum status st_check_finite(const struct st_tensor *t, struct err *e) MUST_USE;

/* One tensor to write. `data`, which is borrowed during the call, holds elements of `from`; the file gets elements of
 * `dtype`. Where these differ, both are of F32, BF16 and F16, and values are rounded to nearest even. */
struct st_entry {
    const char *name;
    enum st_dtype dtype, from;
    int nd;
    int64_t dim[ST_MAX_DIMS];
    const void *data;
};

/* Writes a file by way of a temporary one beside it, fsync and rename. Tensors are laid out by falling element size,
 * then in the order given, so that each is aligned. `metadata` is NULL, or a list key, value, key, value ... that
 * ends with NULL. "format": "pt" is added unless the list has a "format": readers of checkpoints ask for it. Equal
 * input gives equal bytes. */
enum status st_write(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                     struct err *e) MUST_USE;
/* The same for tensors that do not lie in host memory. entries[i].data is ignored; fetch is asked for it when its turn
 * comes, once for each. What it gives must stay valid until it is called again. Its failure ends the writing. */
typedef enum status st_fetch_fn(void *ctx, size_t i, const void **data, struct err *e);
enum status st_write_fetched(const char *path, const struct st_entry *entries, size_t n, const char *const *metadata,
                             st_fetch_fn *fetch, void *ctx, struct err *e) MUST_USE;

/* Conversions of single values: exact to float, to nearest even from it. bfloat16 is the upper half of a float, float16
 * is IEEE 754 binary16. */
uint16_t st_f32_to_bf16(float x);
float st_bf16_to_f32(uint16_t x);
uint16_t st_f32_to_f16(float x);
float st_f16_to_f32(uint16_t x);

#endif
