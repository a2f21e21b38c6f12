#!/usr/bin/env bash
# kernelrl serve --verify: verdicts over HTTP.
. "$(dirname "$0")/tap.bash"
part() { mkdir "$tmp/$1" && python3 tests/e2e/verdict_service.py "$KRL" "$1" "$tmp/$1"; }
check "jobs, batches, events, cancelling, problems, and what a new process knows" part works
check "what is refused, and with which status" part refuses
check "kill -9 in the middle: no job is lost" part killed
check "a model beside it stands aside while answers are timed" part aside
refuses "neither a model nor verdicts" 2 'model is needed' "$KRL" serve --port 0
echo "1..$tap_n"
