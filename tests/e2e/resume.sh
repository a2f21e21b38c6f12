#!/usr/bin/env bash
# A run killed at any moment goes on exactly, speed measured and rewarded, and half-written lines are mended.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "resuming" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
export BIN
BIN=$(dirname "$KRL")
# Twelve problems, four of which are held out; checkpoints and evaluations in between.
small=(model_name=models/tiny lora_rank=0 max_tokens=300 batch_size=2 group_size=4 reward_speed_weight=1 num_correct_trials=2 level=1
    end_problem=12 save_every=2 eval_every=3 eval_samples=1 max_steps=4)
check "killed three times, resumed: the uninterrupted run's bits" \
    tools/kill_resume --kills 3 --within 4 --seed 1 "$tmp/k" "${small[@]}"

# Without the journal the same run measures again, and what it measures differs.
check "the same run without its verdicts" "$KRL" train "${small[@]}" log_path="$tmp/again"
check "takes another way" sh -c "! cmp -s '$tmp/again/checkpoints/final/model.safetensors' \
    '$tmp/k/whole/checkpoints/final/model.safetensors'"

# A run's own answers as supervised rows: of each problem with both, wrong ones as attempts and a right one behind them.
check "a run's own answers" tools/own_answers.py "$tmp/again" "$tmp/own"
check "make rows" "$KRL" corpus from="$tmp/own" output="$tmp/own/rows.jsonl" answers=1 think=0 refine=2 examples=0
check "in which what failed ends in what was right" python3 - "$tmp/own" <<'P'
import collections, json, sys
rows = lambda name: [json.loads(l) for l in open(f"{sys.argv[1]}/{name}.jsonl", encoding="utf-8")]
code = {p["key"]: p["code"].strip() for p in rows("problems")}
answers = collections.defaultdict(lambda: {True: [], False: []})
for a in rows("answers"):
    answers[code[a["key"]]][a["outcome"] == "correct"].append(a["source"].strip())
assert sum(len(a[True]) + len(a[False]) for a in answers.values()) >= 24, answers
repaired = collections.Counter()
for r in rows("rows"):
    prompt = r["prompt"][1]["content"]
    c = next(c for c in answers if c in prompt)
    assert any(a in r["completion"] for a in answers[c][True])
    if "Attempt 1:" in prompt and answers[c][False]:
        repaired[c] += any(a in prompt.split("Attempt 1:")[1] for a in answers[c][False])
both = {c for c, a in answers.items() if a[True] and a[False]}
assert both and {c: n for c, n in repaired.items()} == {c: 2 for c in both}, (repaired, both)
P
refuses "a run that is none" 1 'No such file' tools/own_answers.py "$tmp/nothing" "$tmp/own2"

# Half a line at the end of every file, as a writer leaves it that was killed in the middle of one.
printf '\050\265\057\375half a frame' >>"$tmp/k/whole/traces.jsonl.zst"
for f in metrics checkpoints verdicts; do printf '{"step":99,"na' >>"$tmp/k/whole/$f.jsonl"; done
printf '2025-01-01T00:00:00Z info half a' >>"$tmp/k/whole/logs.log"
check "torn lines do not hinder a run" "$KRL" train "${small[@]}" log_path="$tmp/k/whole" max_steps=5
check "and are gone" sh -c "! grep -h 'na\$' '$tmp'/k/whole/*.jsonl && ! grep -h '\"na{' '$tmp'/k/whole/*.jsonl"
check "the log goes on on a line of its own" grep -qE '^2025-01-01T00:00:00Z info half a$' "$tmp/k/whole/logs.log"
echo "1..$tap_n"
