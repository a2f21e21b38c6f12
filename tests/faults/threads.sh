#!/usr/bin/env bash
# One thread submits to the engine's queue while another steps: ThreadSanitizer finds no race.
. "$(dirname "$0")/../e2e/tap.bash"
test=build/tsan/test/engine/queue_test
check "it builds" make --no-print-directory -j2 SAN=thread NVCC= "$test"
check "no race in the queue" env TSAN_OPTIONS="halt_on_error=1 exitcode=66" "$test"
echo "1..$tap_n"
