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
check "no process is left at the end" test -z "$(left)"
# What `kernelrl generate` writes for backend c.
mkdir "$tmp/native"
cp tests/verify/answers/good.c "$tmp/native/level_1_problem_1_sample_0_kernel.c"
cp tests/verify/answers/zeros.c "$tmp/native/level_1_problem_1_sample_1_kernel.c"
mkdir -p "$tmp/c/level1" && cp tests/verify/relu.py "$tmp/c/level1/1_relu.py"
check "C answers" "$KRL" verify --run-dir "$tmp/native" --level 1 --source "$tmp/c" --backend c --no-measure
check "each of them" test "$(grep -cE '"outcome":"(correct|wrong_output)"' "$tmp/native/verdicts.jsonl")" -eq 2
refuses "no C answers for another backend" 1 'no files .*_kernel.py .or .cu' "$KRL" verify --run-dir "$tmp/native" --level 1 \
    --source "$tmp/c" --backend torch_cpu
echo "1..$tap_n"
