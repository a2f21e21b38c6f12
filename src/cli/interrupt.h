/* Ctrl-C: the first asks the command to stop at the next safe point, the second ends the process. */
#ifndef KERNELRL_INTERRUPT_H
#define KERNELRL_INTERRUPT_H

#include <stdbool.h>

const volatile bool *cli_interruptible(void); /* installs the handlers; the flag turns true */

#endif
