/* home: where our own files lie. All is found from the place of the program, so a tree may be moved as a whole.
 *
 *                            a build, a bundle                  installed (make install)
 *   the program              HOME/build/kernelrl                PREFIX/bin/kernelrl
 *   worker, problems,        HOME                               PREFIX/share/kernelrl
 *     configs, models
 *   runner, CUDA backend     beside the program                 PREFIX/libexec/kernelrl
 */
#ifndef KERNELRL_HOME_H
#define KERNELRL_HOME_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the folder that holds worker/kernelrl_worker: KERNELRL_HOME, else the nearest one upwards from the program,
 * or share/kernelrl in a folder upwards from it; "." when there is none. Several threads may call it. */
const char *home_dir(void);
/* Finds a file that lies beside the program, in a folder above it (tests lie up to four levels deeper in the build
 * folder), or in libexec/kernelrl of one of these. False: it is nowhere, or its path is longer than size allows. */
bool home_beside_program(const char *name, char *path, size_t size);

#endif
