#!/usr/bin/env bash
# eval, generate and corpus with sampler=openai, against a scripted stand-in for a server: answers, faults, what stays on
# disk when they are interrupted, where the key goes, and every refusal.
. "$(dirname "$0")/tap.bash"
cat >"$tmp/answers.json" <<'JSON'
[{"when": "class Model", "say": [
 "<KERNEL>\n```c\nvoid kernel(const float *restrict x, float *restrict out) {\n    for (int i = 0; i < OUT_N; i++) out[i] = x[i] > 0 ? x[i] : 0;\n}\n```\n</KERNEL>",
 "I would write:\n\n```c\nvoid kernel(const float *restrict x, float *restrict out) { out[0] = x[0] }\n```\n"]}]
JSON
serve() { # NAME [OPTION]...: a server of that name; its address is in $NAME
    local name=$1
    shift
    mkfifo "$tmp/$name.in"
    python3 tests/remote/server.py --answers "$tmp/answers.json" --log "$tmp/$name.log" "$@" \
        <"$tmp/$name.in" >"$tmp/$name.port" &
    exec {hold}>"$tmp/$name.in"
    for _ in $(seq 100); do [ -s "$tmp/$name.port" ] && break || sleep 0.1; done
    printf -v "$name" 'http://127.0.0.1:%s/v1' "$(cat "$tmp/$name.port")"
}
serve plain
serve locked --key sk-secret-of-the-test
unset OPENAI_API_KEY KERNELRL_API_KEY SGLANG_API_KEY
rows() { python3 -c 'import sys; print(sum(1 for _ in open(sys.argv[1])))' "$1"; }
has_rows() { [ "$(rows "$1")" = "$2" ]; }
common=(source=builtin level=1 end_problem=2 num_correct_trials=2 measure_performance=false)
eval=("$KRL" eval sampler=openai base_url="$plain" num_samples=4 "${common[@]}")

check "eval, with a server that is busy at first" "${eval[@]}" model_name=429ms:10,503:0,gone,html,ok output_path="$tmp/a.json"
check "eight answers, right and wrong ones" python3 - "$tmp/a" <<'PY'
import json, sys
rows = [json.loads(line) for line in list(open(sys.argv[1] + ".samples.jsonl"))[1:]]
assert len(rows) == 8 and all(r["tokens"] > 10 for r in rows), rows
kinds = {r["verdict"]["outcome"] for r in rows if r["problem"] == "level1/1_ReLU"}
assert kinds == {"correct", "compile_error"}, kinds
result = json.load(open(sys.argv[1] + ".json"))
assert 0 < result["metrics"]["num_correct"] < 8 and result["config"]["temperature"] == 1
PY
check "no two requests of a prompt have one seed" python3 - "$tmp/plain.log" <<'PY'
import json, sys
bodies = [json.loads(line)["body"] for line in open(sys.argv[1])]
seen = {(json.dumps(b["messages"]), b["seed"]) for b in bodies}
assert len(seen) == 8, len(seen)
assert {m["role"] for b in bodies for m in b["messages"]} == {"system", "user"}
PY
before=$(rows "$tmp/plain.log")
cp "$tmp/a.json" "$tmp/first.json"
check "the same command again" "${eval[@]}" model_name=429ms:10,503:0,gone,html,ok output_path="$tmp/a.json"
check "asks nothing and says the same" eval 'cmp "$tmp/a.json" "$tmp/first.json" && has_rows "$tmp/plain.log" $before'

# Interrupted behind some answers: what was paid for is there.
"${eval[@]}" model_name=ok,ok,ok,slow:60 output_path="$tmp/c.json" >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 100); do [ "$(rows "$tmp/c.replies.jsonl" 2>/dev/null || echo 0)" -ge 3 ] && break || sleep 0.1; done
kill -INT $pid
check "interrupted: exit code 130" eval "wait $pid; [ \$? = 130 ]"
kept=$(rows "$tmp/c.replies.jsonl")
check "answers are on disk" [ "$kept" -ge 3 ]
check "turns, which show the verdict of the one before" "${eval[@]}" model_name=ok output_path="$tmp/t.json" \
    mode=multi_turn max_turns=2 num_samples=2 early_stop_on_correct=true full_feedback=true
check "a second turn has the attempt in its prompt" grep -q 'Attempt 1:.*expected .;. before' "$tmp/plain.log"

check "one request at a time, of a model that thinks little" "${eval[@]}" model_name=thinks,slow:0.05 output_path="$tmp/o.json" \
    sampler_concurrency=1 reasoning_effort=low end_problem=1
check "is what the server saw" python3 - "$tmp/plain.log" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
rows = [r for r in rows if r["body"]["model"].startswith("thinks")]
assert len(rows) == 4 and all(r["flying"] == 1 and r["body"]["reasoning_effort"] == "low" for r in rows), rows
PY

check "generate" "$KRL" generate sampler=openai base_url="$plain" model_name=ok "${common[@]}" num_samples=2 \
    run_name=g runs_dir="$tmp" log_prompt=true
check "writes KernelBench's layout" test -s "$tmp/g/level_1_problem_1_sample_1_kernel.c"
check "and the prompt" grep -q 'class Model' "$tmp/g/level_1_problem_1_sample_0_prompt.txt"
check "corpus" "$KRL" corpus sampler=openai base_url="$plain" model_name=ok from=problems/level1/1_ReLU.py \
    output="$tmp/rows.jsonl" num_samples=6 measure=false refine=1
check "has rows of right answers, and of repairs of wrong ones" python3 - "$tmp/rows.jsonl" <<'PY'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert any("Attempt 1" in r["prompt"][1]["content"] for r in rows) and len(rows) >= 2, rows
assert all("out[i] = x[i] > 0" in r["completion"] for r in rows)
PY
check "the answers that they are made of stay" grep -q '"style":"sampled"' "$tmp/rows.answers.jsonl"

export SGLANG_API_KEY=sk-secret-of-the-test
check "a key of the server type's variable" "$KRL" eval server_type=local base_url="$locked" model_name=ok "${common[@]}" \
    output_path="$tmp/k.json"
check "is in no file" eval '! grep -rqs sk-secret "$tmp"/k.* "$tmp/out"'
unset SGLANG_API_KEY
refuses "no key" 2 'answered 401: wrong key; SGLANG_API_KEY is not set' \
    "$KRL" eval server_type=local base_url="$locked" model_name=ok "${common[@]}" output_path="$tmp/n.json"
refuses "a variable that is not set" 2 'api_key_env: the environment variable NO_SUCH is not set' \
    "${eval[@]}" model_name=ok api_key_env=NO_SUCH output_path="$tmp/n.json"
refuses "nobody there" 1 'base_url: nobody answers at http://127.0.0.1:9/v1' \
    "${eval[@]}" model_name=ok base_url=http://127.0.0.1:9/v1 output_path="$tmp/n0.json"
refuses "too slow" 1 'gave no whole answer within 0.2 s' \
    "${eval[@]}" model_name=slow:3 sampler_timeout_s=0.2 sampler_tries=1 output_path="$tmp/n1.json"
refuses "nonsense" 1 'no JSON; it begins with "<!DOCTYPE' \
    "${eval[@]}" model_name=html sampler_tries=1 output_path="$tmp/n2.json"
refuses "an address that is none" 2 'base_url: expected the address' \
    "${eval[@]}" model_name=ok base_url=localhost output_path="$tmp/n.json"
refuses "another model's checkpoint" 2 'checkpoint_path: with sampler: openai' \
    "${eval[@]}" model_name=ok checkpoint_path=models/tiny output_path="$tmp/n.json"
refuses "base_url alone, as in old files" 2 'base_url: .*add sampler=openai' \
    "$KRL" eval base_url="$plain" model_name=ok output_path="$tmp/n.json"
refuses "train" 2 'sampler: train learns from .*expected engine' \
    "$KRL" train sampler=openai base_url="$plain" model_name=ok log_path="$tmp/run"
echo "1..$tap_n"
