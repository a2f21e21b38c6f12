#!/usr/bin/env bash
# The real verifier on two hosts behind a real queue: every command that judges uses it, answers are judged again by the
# other host and compared, hosts read their null probes, drain, and the next runs find verdicts that two agree on.
. "$(dirname "$0")/../e2e/tap.bash"
. tests/faults/farm.bash
trap 'farm_end; rm -rf "$tmp"' EXIT
if ! why=$(farm_here); then
    skip "hosts that judge for real" "$why"
elif ! "$KRL" doctor >"$tmp/doctor" 2>&1; then
    skip "hosts that judge for real" "$(grep -m 1 -E '^(sandbox|compiler|python) +no:' "$tmp/doctor" | cut -c 1-100)"
else
    farm_here
    # The commands of docs/farm.md, "A farm, through a queue": 1 names the class, 2 makes keys, 3 starts the server.
    farm_begin 127.0.0.1 h1 h2 h3 || exit 1
    real_host() { # NAME [FLAG]... Command 4 of docs/farm.md
        KERNELRL_FARM=$farm/worker-$1 setsid "$KRL" verify-worker --name "$@" --slots 1 --nats "$url" \
            >>"$tmp/$1.log" 2>&1 &
        host_pid[${1#h}]=$!
        farm_pids+=("$!")
    }
    real_host h1
    real_host h2
    export KERNELRL_FARM=$farm/trainer # command 5
    answers=tests/verify/answers
    verify() { "$KRL" verify --problem tests/verify/relu.py --trials 1 --no-measure --verify-hosts "nats:$url" "$@"; }
    check "verify: a right answer" verify --solution $answers/good.c
    refuses "verify: a wrong one" 1 '^outcome +wrong_output' verify --solution $answers/nearly.c
    mkdir -p "$tmp/problems/level1" "$tmp/folder"
    cp tests/cheats/problems/relu.py "$tmp/problems/level1/1_relu.py"
    cp tests/honest/relu_clamp.py "$tmp/folder/level_1_problem_1_sample_0_kernel.py"
    cp tests/cheats/a15_clone.py "$tmp/folder/level_1_problem_1_sample_1_kernel.py"
    check "verify --run-dir" "$KRL" verify --run-dir "$tmp/folder" --level 1 --source "$tmp/problems" --backend torch_cpu \
        --no-measure --trials 2 --verify-hosts "nats:$url"
    cp "$tmp/out" "$tmp/said"
    check "one of two is right" grep -q '^correct    1 (50.0 %)' "$tmp/said"
    check "problems generate --verify" "$KRL" problems generate --count 4 --seed 3 --answers --verify --out "$tmp/made" \
        --verify-hosts "nats:$url"
    small=(model_name=models/tiny max_tokens=300 measure_performance=false num_correct_trials=1 level=1
        verify_hosts="nats:$url")
    check "eval" "$KRL" eval "${small[@]}" end_problem=3 output_path="$tmp/report.json"
    # Each run samples the same answers. The first two have them judged; the third finds that two judgements agree.
    for n in 1 2 3; do
        check "train, run $n" "$KRL" train "${small[@]}" lora_rank=0 end_problem=8 batch_size=2 group_size=4 max_steps=1 \
            verify_audit=1 verify_cache="$tmp/cache" log_path="$tmp/runs/run$n"
    done
    figure() { # RUN NAME
        grep -oE "\"$2\": *[0-9]+" "$tmp/runs/run$1/metrics.jsonl" | grep -oE '[0-9]+$' | sort -n | tail -n 1
    }
    check "the first run finds nothing in the cache" test "$(figure 1 verify/cache_hits)" = 0
    check "the third finds what two agree on" test "$(figure 3 verify/cache_hits)" -gt 0
    check "no two hosts disagreed" test "$(figure 1 verify/disagreements)$(figure 2 verify/disagreements)" = 00
    watched() { "$KRL" runs --runs-dir "$tmp/runs" watch run1 --once | tee "$tmp/watch" && grep -q '^verifiers .* slots at' "$tmp/watch"; }
    check "runs watch has a line of it" watched
    shown() { "$KRL" verifiers show --nats "$url" --json | tee "$tmp/shown"; }
    check "verifiers show" shown
    check "both hosts are there" sh -c "grep -q '\"host\":\"h1\"' '$tmp/shown' && grep -q '\"host\":\"h2\"' '$tmp/shown'"
    kill -TERM ${host_pid[1]}
    if wait ${host_pid[1]}; then ok "told to end, a host drains and exits with 0"; else not_ok "told to end, a host drains"; fi
    check "verifiers show after that" shown
    check "the registry has the other one alone" sh -c "! grep -q '\"host\":\"h1\"' '$tmp/shown' && grep -q '\"host\":\"h2\"' '$tmp/shown'"
    # A null probe every second: it is in the registry, or read wrong twice, as on a machine that is busy, and drains.
    kill_host KILL 2
    real_host h3 --probe 1
    check "a host that probes itself" verify --solution $answers/good.c
    probed() {
        for ((i = 0; i < 600; i++)); do
            grep -q 'it drains: .*a reference that was its own answer read' "$tmp/h3.log" && return
            shown 2>/dev/null | grep -qE '"host":"h3".*"probe":[0-9]' && return
            sleep 0.2
        done
        cat "$tmp/h3.log"
        return 1
    }
    check "says what it read" probed
fi
echo "1..$tap_n"
