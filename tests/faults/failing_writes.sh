#!/usr/bin/env bash
# A run whose N-th write, fsync, rename or ftruncate fails ends with a message that names the file, or goes on where only
# a line of the log is lost. Resumed, it ends as the run that nothing disturbed: the same weights, metrics and traces.
. "$(dirname "$0")/../e2e/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "failing writes" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
elif ! why=$(strace -qq -o /dev/null true 2>&1); then
    skip "failing writes" "strace does not work here: $(tail -n 1 <<<"$why")"
    echo "1..$tap_n"
    exit 0
fi
train=("$KRL" train model_name=models/tiny lora_rank=0 max_tokens=200 batch_size=2 group_size=4 measure_performance=false
    num_correct_trials=1 level=1 end_problem=8 save_every=1 max_steps=3)
no_times() { sed -E 's/"time\/[a-z_]+":[^,}]*,?//g' "$1/metrics.jsonl"; }
traces() { # without what differs from run to run: seconds, and errors on inputs that are secret
    zstdcat "$1/traces.jsonl.zst" | python3 -c 'import json, sys
for line in sys.stdin:
    row = json.loads(line)
    if row.get("verdict"):
        row["verdict"] = row["verdict"]["outcome"]
    print(json.dumps(row))'
}
same_as_whole() {
    cmp "$tmp/run/checkpoints/final/model.safetensors" "$tmp/whole/checkpoints/final/model.safetensors" &&
        diff <(no_times "$tmp/run") <(no_times "$tmp/whole") &&
        cmp <(traces "$tmp/run") <(traces "$tmp/whole")
}
check "the undisturbed run" "${train[@]}" log_path="$tmp/whole"
check "has metrics" test -n "$(no_times "$tmp/whole")"
hurt() { # CALL N ERROR MESSAGE: one run, ended or not, and the run that goes on
    local code=0
    rm -rf "$tmp/run"
    # shellcheck disable=SC2086
    strace $threads -qq -o "$tmp/calls" -e trace="$1" -e inject="$1:error=$3:when=$2" "${train[@]}" log_path="$tmp/run" \
        >"$tmp/out" 2>&1 || code=$?
    grep -q INJECTED "$tmp/calls" || { echo "the run makes fewer calls" >>"$tmp/out" && return 1; }
    case $code in
    0) ;;
    1) grep -qE "^kernelrl: .*(cannot|fsync).*: $4\$" "$tmp/out" || return 1 ;;
    *) echo "exit code $code" >>"$tmp/out" && return 1 ;;
    esac
    "${train[@]}" log_path="$tmp/run" >>"$tmp/out" 2>&1 && same_as_whole >>"$tmp/out" 2>&1
}
try() { # like check, which writes over the output that it shows
    if hurt "$@"; then ok "$1 $2: $3"; else not_ok "$1 $2: $3"; fi
}
threads=
for n in 1 5 7 12 20 60 200 400; do try write $n ENOSPC "No space left on device"; done
# Each thread counts its own calls: the second one fails in the main thread, the fourth and later ones in the thread that
# forces a checkpoint onto the disk.
threads=-f
for n in 1 2 4 7; do try fsync $n EIO "Input/output error"; done
threads=
for n in 1 3 6 10 14; do try rename $n ENOSPC "No space left on device"; done
for n in 1 2 3; do try ftruncate $n EIO "Input/output error"; done
echo "1..$tap_n"
