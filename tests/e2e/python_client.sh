#!/usr/bin/env bash
# python/kernelrl: verdicts for trainers in Python.
. "$(dirname "$0")/tap.bash"
check "a server of its own, one answer, many answers, what is missing, what is refused; prompts and samples" python3 tests/e2e/python_client.py "$KRL"
echo "1..$tap_n"
