/* runs_dashboard: `kernelrl runs dashboard`, the page that shows runs. */
#ifndef KERNELRL_CLI_RUNS_DASHBOARD_H
#define KERNELRL_CLI_RUNS_DASHBOARD_H

#include "base/err.h"

/* Serves the page on 127.0.0.1 until SIGINT or SIGTERM. port: 0 takes one that is free. */
enum status runs_dashboard(const char *runs_dir, int port, struct err *e) MUST_USE;

#endif
