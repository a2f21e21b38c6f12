/* Ctrl-C: the first asks the command to stop at the next safe point, the second ends the process. */
#ifndef KERNELRL_BASE_INTERRUPT_H
#define KERNELRL_BASE_INTERRUPT_H

#include <stdbool.h>

const volatile bool *interrupt_flag(void); /* installs the handlers; the flag turns true */

#endif
