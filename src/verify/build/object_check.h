/* load: what a compiled answer would run when it is loaded, before anybody calls it. A look at the source cannot tell,
 * because an attribute may be pasted together, and a section may be named in a string. A look at the object can. */
#ifndef KERNELRL_VERIFY_BUILD_OBJECT_CHECK_H
#define KERNELRL_VERIFY_BUILD_OBJECT_CHECK_H

#include "base/base.h"

enum load_finding {
    LOAD_CLEAN,     /* It runs nothing, but for the resolvers of functions that come in several versions (ifunc). */
    LOAD_RUNS,      /* It has initialisers or finalisers. */
    LOAD_UNREADABLE /* It is no shared object as the linker makes them: the loader may see it otherwise than we do. */
};
/* Reads a shared object of n bytes, which may be any bytes, as the loader would: program headers and the dynamic
 * section of ELF64 for this machine. *tag names what runs ("DT_INIT_ARRAY"). It is static, and NULL unless LOAD_RUNS is
 * returned. */
enum load_finding load_check(const void *object, size_t n, const char **tag);

#endif
