/* home: where our own files lie. The worker, problems and models lie below the home folder; the runner and the plugin
 * lie beside the program. */
#ifndef KERNELRL_HOME_H
#define KERNELRL_HOME_H

#include <stdbool.h>
#include <stddef.h>

/* Returns the folder that holds worker/kernelrl_worker: KERNELRL_HOME, else the first such folder upwards from the
 * program; "." when there is none. Several threads may call it. */
const char *home_dir(void);
/* Finds a file that lies beside the program, or in a folder above it: tests lie up to four levels deeper in the build
 * folder. False: it is nowhere, or its path is longer than size allows. */
bool home_beside_program(const char *name, char *path, size_t size);

#endif
