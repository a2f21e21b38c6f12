#!/usr/bin/env bash
# kernelrl serve --verify: verdicts over HTTP.
. "$(dirname "$0")/tap.bash"
part() { mkdir "$tmp/$1" && python3 tests/e2e/verdict_service.py "$KRL" "$1" "$tmp/$1"; }
check "jobs, batches, events, cancelling, problems, and what a new process knows" part works
check "what is refused, and with which status" part refuses
check "kill -9 in the middle: no job is lost" part killed
check "as a resources server of NeMo-Gym, and as a server of KernelGYM" part gyms
check "a model beside it stands aside while answers are timed" part aside
refuses "flags of verdicts without verdicts" 2 'max-jobs means nothing without' "$KRL" serve --model models/tiny --max-jobs 3
refuses "flags of a model without one" 2 'adapter means nothing with' "$KRL" serve --verify-only --adapter a=b
refuses "a model beside --verify-only" 2 'no model with it' "$KRL" serve --verify-only --model models/tiny
refuses "a configuration that is not there" 1 'nowhere.yaml' "$KRL" serve --verify-only --verify-config "$tmp/nowhere.yaml"
refuses "a file of jobs in no folder" 1 "$tmp/none/jobs" "$KRL" serve --verify-only --port 0 --jobs "$tmp/none/jobs"
: >"$tmp/keys"
refuses "a file of keys without a key" 2 'has no key' "$KRL" serve --verify-only --port 0 --api-key-file "$tmp/keys"
refuses "the same, in front of a model" 2 'has no key' "$KRL" serve --model models/tiny --port 0 --api-key-file "$tmp/keys"
refuses "neither a model nor verdicts" 2 'model is needed' "$KRL" serve --port 0
echo "1..$tap_n"
