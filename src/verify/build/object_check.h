/* load: what a compiled answer would run by being loaded, before anybody calls it. No look at the source can tell (an
 * attribute may be pasted together, a section may be named in a string), the object can. */
#ifndef KERNELRL_VERIFY_BUILD_OBJECT_CHECK_H
#define KERNELRL_VERIFY_BUILD_OBJECT_CHECK_H

#include "base/base.h"

enum load_finding {
    LOAD_CLEAN,     /* nothing, but for the resolvers of functions that come in several versions (ifunc) */
    LOAD_RUNS,      /* initialisers or finalisers */
    LOAD_UNREADABLE /* not a shared object as the linker makes them: the loader may see it otherwise than we do */
};
/* Reads a shared object of n bytes, any bytes, as the loader would: program headers and the dynamic section. ELF64 of
 * this machine. The names of what runs are in *tag (static, NULL unless LOAD_RUNS): "DT_INIT_ARRAY". */
enum load_finding load_check(const void *object, size_t n, const char **tag);

#endif
