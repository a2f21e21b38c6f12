/* dashboard: a page that shows runs, and the read-only JSON behind it, as a front end of the HTTP server. Owns the
 * routes, the files of the page, which are in the program, and the thread that reads runs, so that the server's thread
 * never waits for a disk. May include http, rl/view and io.
 *
 * The routes: / and /dashboard (the page), /dashboard/FILE, and below /api/runs what docs/dashboard.md lists. */
#ifndef KERNELRL_DASHBOARD_DASHBOARD_H
#define KERNELRL_DASHBOARD_DASHBOARD_H

#include "http/http.h"

struct dashboard;
/* Of the runs in this folder. Starts the thread; signals that the caller has blocked stay blocked in it. */
enum status dashboard_open(const char *runs_dir, struct dashboard **out, struct err *e) MUST_USE;
struct http_front dashboard_front(struct dashboard *d);
/* Lets replies of the thread reach the server; once, when the server is open. */
enum status dashboard_attach(struct dashboard *d, struct http_server *s, struct err *e) MUST_USE;
/* When the server is closed. NULL is fine. */
void dashboard_close(struct dashboard *d);

/* A file of the page. NULL: there is none of that name. */
struct dashboard_file {
    const char *name, *content_type;
    const char *bytes, *end;
};
const struct dashboard_file *dashboard_file(const char *name);

#endif
