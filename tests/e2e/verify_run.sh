#!/usr/bin/env bash
# Folders of ModelNew answers: KernelBench's files, going on after a kill, many at once on one cache, and nothing left.
. "$(dirname "$0")/tap.bash"
if ! "$KRL" doctor >"$tmp/doctor" 2>&1; then
    skip "folders of answers" "$(grep -m 1 -E '^(sandbox|compiler|python) +no:' "$tmp/doctor" | cut -c 1-100)"
    echo "1..$tap_n"
    exit 0
fi
mkdir -p "$tmp/problems/level1" "$tmp/run"
cp tests/cheats/problems/relu.py "$tmp/problems/level1/1_relu.py"
cp tests/cheats/problems/matmul.py "$tmp/problems/level1/2_matmul.py"
put() { cp "tests/$2" "$tmp/run/level_1_problem_$1_kernel.py"; }
put 1_sample_0 honest/relu_clamp.py
put 1_sample_1 cheats/a15_clone.py
put 1_sample_2 cheats/g_fork_bomb.py
put 1_sample_3 honest/relu_load_inline.py
put 2_sample_0 honest/matmul_mm.py
put 2_sample_1 cheats/f13_hang.py
threads=$((29 + $$ % 16)) # our processes are known by this unusual count in their environment
arguments=(verify --run-dir "$tmp/run" --level 1 --source "$tmp/problems" --backend torch_cpu --timeout 3 --budget 1
    --timed-calls 10 --pass-k 1,2 --threads $threads --cache "$tmp/cache")
run() { "$KRL" "${arguments[@]}" >"$tmp/said" 2>&1; }
left() { grep -lsaz "^OMP_NUM_THREADS=$threads\$" /proc/[0-9]*/environ; }
lines() { cat "$tmp/run/verdicts.jsonl" 2>/dev/null | wc -l; }

"$KRL" "${arguments[@]}" >/dev/null 2>&1 &
for _ in $(seq 600); do
    if [ "$(left | wc -l)" -ge 2 ]; then break; fi
    sleep 0.1
done
sleep 2
{ kill -KILL $! && wait $!; } 2>/dev/null
# Whoever was importing PyTorch notices when that is done.
for _ in $(seq 200); do
    if [ -z "$(left)" ]; then break; fi
    sleep 0.1
done
check "a killed run leaves no process" test -z "$(left)"
check "the next one goes on to the end" run
check "every answer has one verdict" test "$(lines)" -eq 6
check "the summary counts them" grep -q '^answers    6 judged' "$tmp/said"
check "half of them are correct" grep -q '^correct    3 (50.0 %)' "$tmp/said"
nothing_anew() { run && ! grep -q _kernel "$tmp/said"; }
check "a further run judges nothing anew" nothing_anew
check "eval_results.json has KernelBench's layout" python3 - "$tmp/run" <<'PY'
import json, sys
r = json.load(open(sys.argv[1] + "/eval_results.json"))
assert list(r) == ["1", "2"] and [len(r[k]) for k in r] == [4, 2], r
for e in r["1"] + r["2"]:
    assert list(e) == ["sample_id", "compiled", "correctness", "metadata", "runtime", "runtime_stats"], e
    assert e["compiled"] is True
    if e["correctness"]:
        assert e["runtime"] == e["runtime_stats"]["mean"] > 0 and e["metadata"]["correctness_trials"] == "(5 / 5)"
        assert list(e["runtime_stats"]) == ["mean", "std", "min", "max", "num_trials", "hardware", "device"]
    else:
        assert e["runtime"] == -1.0 and e["runtime_stats"] == {}
assert "correctness_issue" in r["1"][1]["metadata"] and "runtime_error" in r["2"][1]["metadata"]
p = json.load(open(sys.argv[1] + "/pass_at_k_results.json"))
assert p["problems"]["1"]["pass@1"] == 0.5 and p["metadata"]["total_evaluated_samples"] == 6, p
PY
for i in 1 2 3 4; do
    "$KRL" verify --problem tests/cheats/problems/relu.py --solution tests/honest/relu_load_inline.py --backend torch_cpu \
        --no-measure --cache "$tmp/shared" --threads 2 >"$tmp/client$i" 2>&1 &
done
wait
check "four at once on one cache are all correct" test "$(cat "$tmp"/client[1-4] | grep -c '^outcome *correct')" -eq 4
check "one object is kept, whole" test "$(find "$tmp/shared" -name '*.so' | wc -l) $(find "$tmp/shared" -name '*.tmp*' | wc -l)" = "1 0"
check "a baseline in KernelBench's layout" sh -c "'$KRL' verify baseline --level 1 --source '$tmp/problems' --backend torch_cpu \
    --timed-calls 10 --budget 1 --out '$tmp/base.json' >/dev/null && grep -q '1_relu.py' '$tmp/base.json'"
echo '[1]' >"$tmp/list.json" && echo '{"level1": 3}' >"$tmp/three.json"
baseline=("$KRL" verify baseline --level 1 --source "$tmp/problems" --backend torch_cpu --out)
refuses "a baseline file that is a list" 1 'list.json: expected an object of levels' "${baseline[@]}" "$tmp/list.json"
refuses "one whose level is a number" 1 'three.json: level1: expected an object' "${baseline[@]}" "$tmp/three.json"
refuses "a baseline of a backend without modules" 2 'backend: expected one whose answers are modules' \
    "$KRL" verify baseline --level 1 --source "$tmp/problems" --out "$tmp/c.json"
check "no process is left at the end" test -z "$(left)"
# What `kernelrl generate` writes for backend c.
mkdir "$tmp/native"
cp tests/verify/answers/good.c "$tmp/native/level_1_problem_1_sample_0_kernel.c"
cp tests/verify/answers/zeros.c "$tmp/native/level_1_problem_1_sample_1_kernel.c"
mkdir -p "$tmp/c/level1" && cp tests/verify/relu.py "$tmp/c/level1/1_relu.py"
check "C answers" "$KRL" verify --run-dir "$tmp/native" --level 1 --source "$tmp/c" --backend c --no-measure
check "each of them" test "$(grep -cE '"outcome":"(correct|wrong_output)"' "$tmp/native/verdicts.jsonl")" -eq 2
refuses "no C answers for another backend" 1 'no files level_1_.*_kernel.py or .cu; 2 files' "$KRL" verify --run-dir "$tmp/native" --level 1 \
    --source "$tmp/c" --backend torch_cpu

# Several levels in a call, as JSON, with rewards.
mkdir -p "$tmp/c/level2" "$tmp/levels" && cp tests/verify/relu.py "$tmp/c/level2/1_relu.py"
for level in 1 2; do
    cp tests/verify/answers/good.c "$tmp/levels/level_${level}_problem_1_sample_0_kernel.c"
    cp tests/verify/answers/zeros.c "$tmp/levels/level_${level}_problem_1_sample_1_kernel.c"
done
cp tests/verify/answers/good.c "$tmp/levels/level_1_problem_1_sample_2_kernel.c"
cp tests/verify/answers/good.c "$tmp/levels/level_1_problem_1_sample_3_kernel.cu"
printf 'dataset_builder: {backend: c, measure_performance: false, reward_preset: stage1, source: %s}\n' "$tmp/c" >"$tmp/rewards.yaml"
several=("$KRL" verify --run-dir "$tmp/levels" --config "$tmp/rewards.yaml" --level)
"${several[@]}" level1,level_2 >"$tmp/said" 2>"$tmp/errors"
check "two levels have two tables and one of both" test "$(grep -cE '^(level [12]|all levels)$' "$tmp/said")" = 3
check "which count" sh -c "grep -A 1 '^all levels' '$tmp/said' | grep -q '^answers    5 judged'"
check "a file of another ending is named" grep -q '1 files have an ending .*sample_3_kernel.cu: not judged' "$tmp/errors"
check "each level has its file" sh -c "cd '$tmp/levels' && ls eval_results_level_1.json eval_results_level_2.json \
    pass_at_k_results_level_1.json && ! ls eval_results.json"
"${several[@]}" all --json >"$tmp/all.json" 2>"$tmp/errors"
check "all of them as one JSON document, judged once" test "$(grep -c '_kernel.c ' "$tmp/errors")" = 0
check "with answers, tables and rewards" python3 - "$tmp" <<'PY'
import json, sys
d = json.load(open(sys.argv[1] + "/all.json"))
assert list(d) == ["answers", "levels", "overall"] and len(d["answers"]) == 5
assert [(x["level"], x["answers"], x["correct"]) for x in d["levels"]] == [(1, 3, 2), (2, 2, 1)]
o = d["overall"]
assert o["answers"] == 5 and o["correct"] == 3 and o["correct_rate"] == 0.6 and o["outcomes"] == {"correct": 3, "wrong_output": 2}
for a in d["answers"]:
    want = 0.3 + 0.5 + 0.2 * (a["tests_passed"] / a["tests_total"] if a["outcome"] != "correct" else 1)
    assert abs(a["reward"]["total"] - want) < 1e-12 and a["problem"] == "level%d/1_relu" % a["level"], a
assert abs(o["mean_reward"] - sum(a["reward"]["total"] for a in d["answers"]) / 5) < 1e-12
PY
"$KRL" verify --run-dir "$tmp/native" --level 1 --source "$tmp/c" --no-measure --json >"$tmp/one.json" 2>/dev/null
check "one level keeps its names" sh -c "cd '$tmp/native' && ls eval_results.json pass_at_k_results.json && ! ls *_level_1.json"
check "and has no rewards without a configuration" python3 -c "import json
d = json.load(open('$tmp/one.json')); assert len(d['levels']) == 1 and not any('reward' in a for a in d['answers'])"
refuses "a level that has no files" 1 'no files level_3_problem_P_sample_S_kernel.py or .c; .* such as level_' "${several[@]}" 1,3
refuses "a level twice" 2 'level: level 1 is named twice' "${several[@]}" 1,level1
refuses "a level that is none" 2 'level: expected all, or levels from 1 to 9' "${several[@]}" 1,x
refuses "a flag for something else" 2 '.-out means nothing with --run-dir' "${several[@]}" 1 --out x
refuses "JSON of a baseline" 2 '.-json means nothing with baseline' "$KRL" verify baseline --level 1 --out x --json
refuses "a configuration that is not there" 1 'none.yaml: No such file' "$KRL" verify --run-dir "$tmp/levels" --level 1 \
    --config "$tmp/none.yaml"

# One answer with its reward, and the same from its verdict.
one=("$KRL" verify --problem "$tmp/c/level1/1_relu.py" --solution tests/verify/answers/good.c --config "$tmp/rewards.yaml")
"${one[@]}" >"$tmp/said" 2>&1
check "one answer's reward" grep -q '^reward     1.0000 (format 1, compile 1, correct 1' "$tmp/said"
"${one[@]}" --json >"$tmp/verdict.json"
check "is what score says of its verdict" sh -c "'$KRL' score --config '$tmp/rewards.yaml' --verdict '$tmp/verdict.json' \
    | grep -q '^{\"line\":1,\"outcome\":\"correct\",\"reward\":{\"total\":1,'"
"$KRL" problems generate --seed 1000000 --first 62 --count 1 --answers --out "$tmp/made" >/dev/null 2>&1
python3 -c 'import json, sys; print(json.loads(open(sys.argv[1]).readline())["source"])' "$tmp/made/answers.jsonl" >"$tmp/made/answer.c"
check "an answer to a problem of the generator, by the key that runs have for it" "$KRL" verify --problem generated/1000000_62 \
    --solution "$tmp/made/answer.c" --no-measure
echo "1..$tap_n"
