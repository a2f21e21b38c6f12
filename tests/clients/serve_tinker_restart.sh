#!/usr/bin/env bash
# The official client of the Tinker protocol while its server is killed (SIGKILL) in the middle of calls and started
# again: it notices a wait, and its model has the bits of one that nothing disturbed.
. "$(dirname "$0")/serve.bash"
needs tinker numpy
export TINKER_TELEMETRY=0 TINKER_API_KEY=tml-test KRL
"$python" -W ignore tests/clients/serve_tinker_restart.py models/tiny "$tmp"
