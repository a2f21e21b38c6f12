/* coded_file: matrices in codes as files of the Hub have them. FP8: X in F8_E4M3 beside X_scale_inv, with blocks of 128
 * x 128. NF4: bitsandbytes' bytes of X beside X.quant_state.bitsandbytes__nf4, X.quant_map and X.absmax, the latter in
 * 8 bits with X.nested_absmax and X.nested_quant_map, or in float32. Files are untrusted: what is wrong with one gives
 * an error that names the tensor or the key. Not for other rooms. */
#ifndef KERNELRL_MODEL_CODED_FILE_H
#define KERNELRL_MODEL_CODED_FILE_H

#include <jansson.h>

#include "io/safetensors.h"
#include "tensor/formats.h"

/* The format that quantization_config of a config.json says, FORMAT_F32 where there is none. ST_UNSUPPORTED names a key
 * whose value is not read here. */
enum status coded_config(const json_t *config, const char *where, enum weight_format *out, struct err *e) MUST_USE;
/* True: the weight `name` is in codes of this format; false for FORMAT_F32. */
bool coded_in_file(const struct st_file *f, const char *name, enum weight_format format);
/* The length of the name of the weight to whose codes a tensor belongs, as a scale or a table: its own name begins with
 * that. 0: it is called like none. */
size_t coded_beside(const char *tensor);
/* Reads and checks the codes of [rows,K]; they stay in the file's map, scales are copied. coded_release afterwards. */
enum status coded_read(const struct st_file *f, const char *name, enum weight_format format, int64_t rows, int64_t K,
                       struct coded_matrix *out, struct err *e) MUST_USE;

#endif
