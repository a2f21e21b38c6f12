#!/usr/bin/env bash
# The table of the methods, from evaluations small enough to work out by hand.
. "$(dirname "$0")/tap.bash"
runs=$tmp/runs
mkdir -p "$runs"/{start_0,grpo_0,grpo_1,grpo+a=1+max_staleness=1_0/run,half_0,stage1}
evaluation() { # FILE TOKENS, then LEVEL/ID SAMPLE:TURN:COMPILED:SPEEDUP (- when wrong) ... a problem
    python3 - "$@" <<'P'
import json, sys
path, tokens, *rest = sys.argv[1:]
results = []
for word in rest:
    if "/" in word:
        level, i = word.split("/")
        results.append({"level": int(level), "problem_id": int(i), "samples": []})
        continue
    sample, turn, compiled, speed = word.split(":")
    results[-1]["samples"].append({"sample_id": int(sample), "turn": int(turn), "compiled": compiled == "1",
                                   "correct": speed != "-", "speedup": None if speed == "-" else float(speed)})
json.dump({"results": results, "metrics": {"mean_tokens": float(tokens)}}, open(path, "w"))
P
}
times() { echo "{\"train_s\": $2, \"cores\": 2}" >"$runs/$1/times.json"; }
wrong=(0:0:1:- 1:0:0:- 2:0:0:- 3:0:0:-)
evaluation "$runs/start_0/test.json" 100 1/1 0:0:1:1 1:0:1:- 2:0:1:- 3:0:1:- 2/1 "${wrong[@]}"
evaluation "$runs/start_0/turns.json" 200 1/1 0:0:1:- 0:1:1:1 1:0:1:- 1:1:1:- 2/1 0:0:0:- 0:1:0:- 1:0:0:- 1:1:0:-
evaluation "$runs/grpo_0/test.json" 100 1/1 0:0:1:3 1:0:1:1 2:0:1:1 3:0:1:1 2/1 "${wrong[@]}"
evaluation "$runs/grpo_1/test.json" 100 1/1 0:0:1:3 1:0:1:3 2:0:1:1 3:0:1:1 2/1 "${wrong[@]}"
evaluation "$runs/grpo+a=1+max_staleness=1_0/test.json" 100 1/1 "${wrong[@]}" 2/1 "${wrong[@]}"
for s in 2 4 6; do echo "{\"step\":0,\"time/total\":$s,\"reward/mean\":0.5,\"train/kl_k3\":2e-4}"; done \
    >"$runs/grpo+a=1+max_staleness=1_0/run/metrics.jsonl"
evaluation "$runs/stage1/before_0.json" 9 1/1 "${wrong[@]}"
evaluation "$runs/stage1/after_0.json" 9 1/1 0:0:1:- 1:0:1:- 2:0:1:- 3:0:0:-
times grpo_0 100
times grpo_1 200
times grpo+a=1+max_staleness=1_0 300
echo 'kill_resume: identical' >"$runs/kills.txt"
table=(python3 tools/methods_table.py --verdicts 64 --out "$tmp/t.md" "$runs" grpo grpo+a=1+max_staleness=1 half)
check "a table" "${table[@]}"
row() { grep -m 1 "^| $1 |" "$tmp/t.md" | tr '|' '\n' | sed -n "$(($2 + 1))p" | sed 's/ \[.*//; s/^ *//; s/ *$//'; }
cell() { check "$1: $3 of $2 is $4" test "$(row "$2" "$3")" = "$4"; }
cell "compiles" start 3 62.5
cell "correct" start 4 12.5
cell "a method's seeds" grpo 2 2
cell "correct, the mean over problems" grpo 4 50.0
cell "above the start" grpo 5 +37.5
cell "fast_1, the mean over seeds" grpo 6 18.8
# A: (2.1 + 3 x 1.6) / 4 and (2 x 2.1 + 2 x 1.6) / 4; B: 0.1 / 4.
cell "the score" grpo 7 0.91
cell "how far grpo's is above" 'grpo+a=1+max_staleness=1' 8 +0.88
cell "by seed" grpo 9 "50.0, 50.0"
cell "by level" grpo 10 "100.0, 0.0, -"
cell "its time and cores" grpo 11 "150 (2)"
check "solved by a turn: a quarter; of four answers, half" grep -q '^| start | 25.0 \[.*| 2.0 | 50.0 \[' "$tmp/t.md"
check "stage 1" grep -qE '^\| compiles, % \| 25.0 .*75.0 .*\+50.0' "$tmp/t.md"
check "a step without the first, the rewards, the divergence" grep -q '^| grpo+a=1+max_staleness=1 | 5.00 | 0.50 | 2.00 |$' "$tmp/t.md"
check "kills" grep -q 'kill_resume: identical' "$tmp/t.md"
check "what is missing is named" grep -q '^No result: half.$' "$tmp/t.md"
check "the same table again" sh -c 'cp "$1/t.md" "$1/first.md" && shift && "$@"' sh "$tmp" "${table[@]}"
check "bit for bit" cmp "$tmp/t.md" "$tmp/first.md"
echo "1..$tap_n"
