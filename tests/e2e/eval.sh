#!/usr/bin/env bash
# kernelrl eval and generate on the embedded model: files, numbers, interruption, comparison, and every refusal.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "evaluation" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
eval=("$KRL" eval model_name=models/tiny max_tokens=300 num_correct_trials=2 level=1 end_problem=6)
lines() { [ "$(wc -l <"$1")" = "$2" ]; }

check "two samples of six problems" "${eval[@]}" output_path="$tmp/a.json" num_samples=2 measure_performance=false
check "twelve samples and a header" lines "$tmp/a.samples.jsonl" 13
check "greedy, timed" "${eval[@]}" output_path="$tmp/g.json" tensorboard_log_dir="$tmp/tb" tensorboard_step=7
check "report and JSON agree, and the picture is XML" python3 - "$tmp" <<'PY'
import json, sys, xml.etree.ElementTree as ET
tmp = sys.argv[1]
r = json.load(open(tmp + "/g.json"))
m = r["metrics"]
assert m["num_problems"] == 6 == len(r["results"]) and r["config"]["temperature"] == 0, m
rows = [json.loads(line) for line in open(tmp + "/g.samples.jsonl")][1:]
assert m["num_correct"] == sum(x["verdict"]["correct"] for x in rows)
speeds = [x["verdict"]["speedup"] for x in rows if x["verdict"]["correct"]]
assert abs(m["mean_speedup"] - sum(speeds) / len(speeds)) < 1e-9
assert r["intervals"]["pass@1"]["mean"] == m["correct_rate"]
assert abs(r["intervals"]["fast_1"]["mean"] - sum(s > 1 for s in speeds) / 6) < 1e-9
text = open(tmp + "/g.md").read()
assert "| fast_1 (correct, and over 1x of PyTorch) | %.1f %% |" % (100 * r["intervals"]["fast_1"]["mean"]) in text
assert "(g.svg)" in text
lines = [e.get("class") for e in ET.parse(tmp + "/g.svg").iter() if e.tag.endswith("polyline")]
assert lines == ["fast_p", "best"], lines
PY
check "TensorBoard has the level" grep -q 'Eval/Level1/CorrectRate' -r "$tmp/tb"
cp "$tmp/g.json" "$tmp/first.json"
check "the same command again" "${eval[@]}" output_path="$tmp/g.json"
check "samples nothing and says the same" cmp "$tmp/first.json" "$tmp/g.json"
check "more samples" "${eval[@]}" output_path="$tmp/a.json" num_samples=3 measure_performance=false
check "are added" lines "$tmp/a.samples.jsonl" 19
check "three at once" "${eval[@]}" output_path="$tmp/three.json" num_samples=3 measure_performance=false
kernels() { python3 -c 'import json, sys
print(sorted((r["problem"], r["sample"], r["text"]) for r in map(json.loads, list(open(sys.argv[1]))[1:])))' "$1"; }
kernels "$tmp/a.samples.jsonl" >"$tmp/added" && kernels "$tmp/three.samples.jsonl" >"$tmp/whole"
check "are the same three" cmp "$tmp/added" "$tmp/whole"
refuses "other settings" 1 'other settings \("seed: 0", now "seed: 1"\)' \
    "${eval[@]}" output_path="$tmp/a.json" num_samples=3 measure_performance=false seed=1

check "turns, with built-in examples" "${eval[@]}" output_path="$tmp/t.json" mode=multi_turn max_turns=2 num_samples=2 \
    early_stop_on_correct=true prompt_option=one_shot
check "a sample counts by the better of its turns" python3 - "$tmp/t" <<'PY'
import json, sys
rows = [json.loads(line) for line in list(open(sys.argv[1] + ".samples.jsonl"))[1:]]
r = json.load(open(sys.argv[1] + ".json"))
assert r["metrics"]["num_samples"] == 12 and r["config"]["turns"] == 2
assert len(rows) == 12 + sum(not x["verdict"]["correct"] for x in rows if x["turn"] == 0), "wrong answers get a second turn"
good = {(x["problem"], x["sample"]) for x in rows if x["verdict"]["correct"]}
assert sum(p["counts"]["correct"] for p in r["results"]) == len(good)
PY

# Interrupted: nine problems of 20 samples are made three at a time.
big=("$KRL" eval model_name=models/tiny max_tokens=200 num_correct_trials=1 level=1 split=all num_samples=20 measure_performance=false)
"${big[@]}" end_problem=9 output_path="$tmp/cut.json" >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 1200); do
    if [ -f "$tmp/cut.samples.jsonl" ] && [ "$(wc -l <"$tmp/cut.samples.jsonl")" -gt 1 ]; then break; fi
    sleep 0.05
done
kill -INT $pid
wait $pid
code=$?
check "Ctrl-C: code 130" test $code = 130
check "the first problems are there" sh -c "test \$(wc -l <'$tmp/cut.samples.jsonl') -lt 181"
check "it goes on" "${big[@]}" end_problem=9 output_path="$tmp/cut.json"
check "to all" lines "$tmp/cut.samples.jsonl" 181
check "without doubles" sh -c "test \$(cut -d, -f1,3 '$tmp/cut.samples.jsonl' | sort | uniq -d | wc -l) = 0"

# A run and its checkpoint: the run's own configuration is where the keys start.
check "a run" "$KRL" train model_name=models/tiny log_path="$tmp/run" lora_rank=8 max_steps=1 max_tokens=64 batch_size=1 group_size=2 \
    measure_performance=false num_correct_trials=1 seed=5
check "eval checkpoint_path=RUN" "$KRL" eval checkpoint_path="$tmp/run" output_path="$tmp/r.json" level=1 end_problem=2
check "takes its final checkpoint and its keys" sh -c "grep -q '\"checkpoint_path\": \".*run/checkpoints/final\"' '$tmp/r.json' &&
    grep -q 'seed: 5.*max_tokens: 64' '$tmp/r.samples.jsonl'"
key=$(zstdcat "$tmp/run/traces.jsonl.zst" | grep -o '"problem":"level[0-9]*/[0-9]*' | head -n 1 | grep -o 'level.*')
level=${key%/*} level=${level#level} id=${key#*/}
check "generate for the problem it was trained on" "$KRL" generate checkpoint_path="$tmp/run" run_name=same runs_dir="$tmp/runs" \
    split=train level="$level" start_problem="$id" end_problem="$id" max_tokens=8 log_prompt=true
zstdcat "$tmp/run/traces.jsonl.zst" | grep -o '"prompt_ids":\[[0-9,]*' | head -n 1 | grep -o '[0-9,]*$' | tr , ' ' >"$tmp/ids"
"$KRL" tokenize --model models/tiny --decode "$(cat "$tmp/ids")" >"$tmp/trained"
check "its prompt is the one that was trained on" sh -c "test -s '$tmp/trained' &&
    test \"\$(cat '$tmp/trained')\" = \"\$(cat '$tmp/runs/same/level_${level}_problem_${id}_sample_0_prompt.txt')\""
check "RUN/final is short for it" "$KRL" eval checkpoint_path="$tmp/run/final" output_path="$tmp/f.json" level=1 end_problem=2
mkdir "$tmp/empty"
echo 'lora_rank: 8' >"$tmp/empty/config.yaml"
refuses "a run without a checkpoint" 2 'empty holds no checkpoint yet' "$KRL" eval checkpoint_path="$tmp/empty" \
    output_path="$tmp/x.json"
cp -r "$tmp/run" "$tmp/lost" && rm "$tmp/lost/config.yaml"
refuses "a run without its configuration" 2 'lost is of a run whose config.yaml is missing.*give model_name' \
    "$KRL" eval checkpoint_path="$tmp/lost" output_path="$tmp/x.json"
refuses "a checkpoint of one" 2 'config.yaml is missing' "$KRL" eval checkpoint_path="$tmp/lost/checkpoints/final" \
    output_path="$tmp/x.json"
check "unless told what it is for" "$KRL" eval checkpoint_path="$tmp/lost" model_name=models/tiny source=builtin level=1 \
    end_problem=2 max_tokens=100 measure_performance=false output_path="$tmp/lost.json"
refuses "an output that is a folder" 2 'output_path: .*is a folder' "${eval[@]}" output_path="$tmp/lost"
refuses "a checkpoint that is not there" 2 'checkpoint_path: no directory' "$KRL" eval checkpoint_path="$tmp/none" \
    output_path="$tmp/x.json"
refuses "a bad key in the run's configuration" 2 'bad/config.yaml:1:1: .*lora_rnk' sh -c \
    'mkdir "$1/bad" && echo "lora_rnk: 8" >"$1/bad/config.yaml" && shift && "$@"' sh "$tmp" \
    "$KRL" eval checkpoint_path="$tmp/bad"

check "comparison" "$KRL" eval --compare "$tmp/first.json" "$tmp/three.json" --output "$tmp/c.md"
cp "$tmp/out" "$tmp/said"
check "of six problems" grep -q '^6 problems in common' "$tmp/said"
check "its report and picture" sh -c "grep -q '^| correct |' '$tmp/c.md' && grep -q polyline '$tmp/c.svg'"
check "comparison as a page" "$KRL" eval --compare "$tmp/first.json" "$tmp/three.json" --output "$tmp/c.html"
check "with its table and picture" sh -c "grep -q '<td>correct</td>' '$tmp/c.html' && grep -q polyline '$tmp/c.html'"
"$KRL" eval --compare "$tmp/first.json" "$tmp/first.json" --json >"$tmp/same.json"
check "a file against itself: no difference, p = 1" python3 -c "import json
d = json.load(open('$tmp/same.json'))['differences']['correct']; assert d['change']['mean'] == 0 and d['p'] == 1"
refuses "comparing what is no report" 1 'config.json: results' "$KRL" eval --compare "$tmp/first.json" models/tiny/config.json
refuses "comparing one file" 2 '^usage' "$KRL" eval --compare "$tmp/first.json"

check "generate" "$KRL" generate model_name=models/tiny run_name=gen runs_dir="$tmp/runs" level=1 end_problem=3 max_tokens=300 num_samples=2 \
    log_prompt=true
check "writes KernelBench's layout" sh -c "ls '$tmp'/runs/gen/level_1_problem_2_sample_1_kernel.c \
    '$tmp'/runs/gen/generation_config.yaml '$tmp'/runs/gen/level_1_problem_1_sample_0_prompt.txt"
check "kernels and nothing else" sh -c "! grep -l '<KERNEL>' '$tmp'/runs/gen/*.c"
touch -d 2020-01-01 "$tmp/runs/gen/"*.c
check "again" "$KRL" generate model_name=models/tiny run_name=gen runs_dir="$tmp/runs" level=1 end_problem=3 max_tokens=300 num_samples=2
check "what is there is left" sh -c "test -z \"\$(find '$tmp/runs/gen' -name '*.c' -newermt 2021-01-01)\""
refuses "generate without a name" 2 'run_name: expected' "$KRL" generate level=1

check "an output folder that is not there is made" "${eval[@]}" output_path="$tmp/new/er/x.json" end_problem=1
refuses "an output folder that cannot be" 1 'g.json: exists and is not a directory' "${eval[@]}" output_path="$tmp/g.json/x.json"
refuses "no problem left" 2 'no problem is left' "$KRL" eval model_name=models/tiny output_path="$tmp/x.json" source=builtin level=4
refuses "an unknown key" 2 'num_sample' "$KRL" eval num_sample=2
echo "1..$tap_n"
