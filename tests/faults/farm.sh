#!/usr/bin/env bash
# A run whose hosts, queue and trainer are killed in turn: the weights of the undisturbed run, each place judged once.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
trap 'farm_end; rm -rf "$tmp"' EXIT
if ! why=$(farm_here); then
    skip "a farm" "$why"
    echo "1..$tap_n"
    exit 0
fi
farm_here
farm_begin 127.0.0.1 h1 h2 h3 || exit 1
for h in h1 h2 h3; do farm_host $h; done
check "the undisturbed run" "${train[@]}" verify_hosts="nats:$url" log_path="$tmp/whole"
check "200 jobs, each place once" each_place_once "$tmp/whole" 200
check "its verdicts are counted" grep -q '"verify/verdicts": *[1-9]' "$tmp/whole/metrics.jsonl"

# Each time something else is killed while the run goes on; the trainer is killed, too, and begun again.
lines() { cat "$tmp/killed/verdicts.jsonl" 2>/dev/null | wc -l; }
until_lines() { # N: until the journal has so many, or the run has ended
    for ((i = 0; i < 3000; i++)); do
        [ "$(lines)" -ge "$1" ] && return 0
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.05
    done
}
begin_run() {
    "${train[@]}" verify_hosts="nats:$url" log_path="$tmp/killed" >>"$tmp/said" 2>&1 &
    pid=$!
}
begin_run
RANDOM=7 killed=
for at in 10 35 60 85 110 135 160; do
    until_lines $at || begin_run
    case $at in
    10 | 60 | 135)
        k=$((1 + RANDOM % 3))
        kill_host KILL $k
        farm_host h$k
        killed+=" host"
        ;;
    35 | 110)
        kill_server
        if [ $at = 110 ]; then rm -rf "$farm/server/jetstream"; fi
        farm_server
        killed+=" server"
        ;;
    *)
        kill -KILL $pid
        wait $pid 2>/dev/null
        begin_run
        killed+=" trainer"
        ;;
    esac
done
wait $pid
cp "$tmp/said" "$tmp/out"
check "killed in turn:$killed; it ends" test -s "$tmp/killed/checkpoints/final/model.safetensors"
check "each place is judged once" each_place_once "$tmp/killed" 200
check "with the weights of the undisturbed run" same_weights "$tmp/whole" "$tmp/killed"
verdicts() { # RUN: a line for each place
    python3 - "$1/verdicts.jsonl" <<'PY'
import json, sys
at = ("step", "eval", "group", "sample", "turn")
lines = [json.loads(line) for line in open(sys.argv[1])]
for line in sorted([[str(v.get(k)) for k in at] + [json.dumps(v["verdict"]["outcome"])] for v in lines]):
    print(*line)
PY
}
check "and its verdicts" diff <(verdicts "$tmp/whole") <(verdicts "$tmp/killed")
echo "1..$tap_n"
