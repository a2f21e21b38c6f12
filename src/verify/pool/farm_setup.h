/* farm_setup: what a site needs for a farm: the server's configuration with rights by subject, certificates, NKeys and
 * the secret of inputs, in a folder with a folder for each who gets something (docs/farm.md). */
#ifndef KERNELRL_VERIFY_POOL_FARM_SETUP_H
#define KERNELRL_VERIFY_POOL_FARM_SETUP_H

#include "base/err.h"
#include "base/str.h"

enum { FARM_WORKERS_MAX = 1024 };
struct farm_setup {
    const char *folder, *server; /* server: host name or address under which it is reached */
    int port;
    const char *const *worker; /* NAME=CLASS: hosts that are added */
    int n_workers;
};
/* Makes the folder, or adds hosts to it; what is there is kept. Appends what to do next. ST_CONFIG, ST_IO. */
enum status farm_setup(const struct farm_setup *s, struct str *next, struct err *e) MUST_USE;

#endif
