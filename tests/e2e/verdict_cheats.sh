#!/usr/bin/env bash
# Cheats and a hostile problem through the verdict service: they reach nothing that they do not reach on the command line.
# `tests/e2e/verdict_cheats.py PROGRAM FOLDER all` takes the whole catalogue.
. "$(dirname "$0")/tap.bash"
check "cheats in C and a hostile problem over HTTP" python3 tests/e2e/verdict_cheats.py "$KRL" "$tmp"
echo "1..$tap_n"
