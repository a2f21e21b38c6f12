/* Ctrl-C. The first one asks the command to stop at the next safe point, the second one ends the process. */
#ifndef KERNELRL_BASE_INTERRUPT_H
#define KERNELRL_BASE_INTERRUPT_H

#include <stdbool.h>

const volatile bool *interrupt_flag(void); /* Installs the handlers. The flag turns true. */

#endif
