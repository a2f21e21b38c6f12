/* home: where our own files lie: the worker, problems and models below the home folder; the runner and the plugin
 * beside the program. */
#ifndef KERNELRL_HOME_H
#define KERNELRL_HOME_H

#include <stdbool.h>
#include <stddef.h>

/* The folder that holds worker/kernelrl_worker: KERNELRL_HOME, else the first one upwards from the program; "." when
 * there is none. Safe to call from several threads. */
const char *home_dir(void);
/* A file that lies beside the program, or in a folder above it: tests lie up to four levels deeper in the build folder.
 * False: nowhere, or its path is longer than size allows. */
bool home_beside_program(const char *name, char *path, size_t size);

#endif
