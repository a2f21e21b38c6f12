/* help_markdown: the tables of keys, presets and other names, as docs/configuration.md shows them. */
#ifndef KERNELRL_CLI_HELP_MARKDOWN_H
#define KERNELRL_CLI_HELP_MARKDOWN_H

#include "base/str.h"

/* Appends all parts. Each one begins with a line `<!-- made from the keys: NAME -->` and ends with `<!-- end -->`. */
void help_markdown(struct str *out);

#endif
