/* Fuzz target: what load_check() says of any bytes, in a memory that ends where they do. The loader finds nothing to
 * run in what is clean. */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "verify/build/object_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *tag;
    const enum load_finding found = load_check(data, size, &tag);
    ASSERT((tag != NULL) == (found == LOAD_RUNS));
    if (found != LOAD_CLEAN) return 0;
    /* Some segment is dynamic, and the bytes at its address tell of nothing that runs. */
    Elf64_Ehdr h;
    memcpy(&h, data, sizeof h);
    unsigned char *memory = NULL;
    Elf64_Phdr p, dynamic = {0};
    for (int i = 0; i < h.e_phnum; i++) {
        memcpy(&p, data + h.e_phoff + (size_t)i * sizeof p, sizeof p);
        if (p.p_type == PT_DYNAMIC) dynamic = p;
    }
    ASSERT(dynamic.p_type == PT_DYNAMIC);
    for (int i = 0; i < h.e_phnum; i++) {
        memcpy(&p, data + h.e_phoff + (size_t)i * sizeof p, sizeof p);
        if (p.p_type != PT_LOAD || dynamic.p_vaddr < p.p_vaddr || dynamic.p_vaddr >= p.p_vaddr + p.p_filesz) continue;
        ASSERT(!memory);
        memory = xmalloc(p.p_filesz);
        memcpy(memory, data + p.p_offset, p.p_filesz);
        Elf64_Dyn d = {.d_tag = -1};
        for (const unsigned char *at = memory + (dynamic.p_vaddr - p.p_vaddr); d.d_tag != DT_NULL; at += sizeof d) {
            memcpy(&d, at, sizeof d);
            ASSERT(d.d_tag != DT_INIT && d.d_tag != DT_FINI && d.d_tag != DT_INIT_ARRAY && d.d_tag != DT_FINI_ARRAY);
        }
    }
    ASSERT(memory);
    free(memory);
    return 0;
}
