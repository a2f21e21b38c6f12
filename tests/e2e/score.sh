#!/usr/bin/env bash
# kernelrl score: the rewards that a configuration gives to verdicts are those that a run records.
. "$(dirname "$0")/tap.bash"
score=("$KRL" score)
says() { printf '%s\n' "$1" | "${score[@]}" "${@:2}" 2>"$tmp/errors"; }
# `total NAME REWARD LINE [ARGUMENT]...`: the line's reward is that number.
total() {
    local name=$1 want=$2
    says "${@:3}" >"$tmp/said"
    cat "$tmp/said" "$tmp/errors" >"$tmp/out"
    check "$name" python3 -c 'import json, sys; assert abs(json.load(open(sys.argv[1]))["reward"]["total"] - float(sys.argv[2])) < 1e-12' \
        "$tmp/said" "$want"
}
right='{"outcome": "correct", "speedup": 2, "format_ok": true}'
total "the default weights" 1.3 "$right"
total "speed" 1.9 "$right" reward_speed_weight=0.3
total "a preset" 1 "$right" reward_preset=stage2
total "a format that is not right" 1.2 '{"outcome": "correct", "format_ok": false}'
total "partial credit" 0.7 '{"outcome": "wrong_output", "tests_passed": 2, "tests_total": 5, "format_ok": true}' \
    reward_correctness_weight=1 partial_correctness=true
total "which the schedule takes away" 0.3 '{"outcome": "wrong_output", "tests_passed": 2, "tests_total": 5, "format_ok": true}' \
    partial_correctness=true schedule.partial_until=0.5
total "but not at the beginning" 0.7 '{"outcome": "wrong_output", "tests_passed": 2, "tests_total": 5, "format_ok": true}' \
    partial_correctness=true schedule.partial_until=0.5 --progress 0
total "a cheat" -0.5 '{"outcome": "too_fast"}' cheating_penalty=0.5
total "no kernel" 0 '{"outcome": "no_kernel"}'
total "what is counted in an answer" 1.45 '{"outcome": "correct", "format_ok": true, "kernel_chars": 4250, "tokens": 990}' \
    reward_length_weight=0.5 overlong_buffer_tokens=20 max_tokens=1000 overlong_penalty=0.2
total "an answer's text" 1.4 '{"outcome": "correct", "text": "<think>so</think><KERNEL>int x;</KERNEL>"}' reward_thinking_weight=0.1
check "a verdict that is missing has no reward" sh -c "echo '{\"outcome\": \"infrastructure\"}' | '$KRL' score | grep -q '\"total\":null'"
says '{"outcome": "correct", "format_ok": true, "file": "a.c", "sample": 3}' >"$tmp/said"
check "the line says which answer it is, and what is not known" sh -c "grep -q '\"file\":\"a.c\",\"sample\":3,' '$tmp/said' &&
    grep -q '\"think\":null,\"length\":null' '$tmp/said'"

wrong() { # NAME REGEX LINE [ARGUMENT]...
    printf '%s\n' "$3" >"$tmp/in"
    refuses "$1" 1 "$2" "${score[@]}" --verdict "$tmp/in" "${@:4}"
}
wrong "format_ok is not known" 'in:1: format_ok is not known, which reward_format_weight' '{"outcome": "correct"}'
wrong "nor the kernel's length" 'in:1: kernel_chars is not known, which reward_length_weight' "$right" reward_length_weight=1
wrong "nor the thought's" 'in:1: thought_chars is not known, which reward_thinking_weight' "$right" reward_thinking_weight=1
wrong "nor the tokens" 'in:1: tokens is not known, which overlong_penalty' "$right" overlong_penalty=1 overlong_buffer_tokens=9
wrong "an outcome that is none" 'in:2: outcome: .*"great"' "$right"$'\n{"outcome": "great", "format_ok": true}'
wrong "a line that is broken" 'in:2:1:' "$right"$'\n{broken'
wrong "a list" 'in:1: expected a JSON object' '[]'
wrong "an object without a verdict" 'in:1: expected a verdict' '{"a": 1}'
wrong "more tests passed than there are" 'in:1: tests_passed: expected at most tests_total' '{"outcome": "wrong_output", "tests_passed": 1}'
wrong "a wrong type" 'in:1: format_ok: expected' '{"outcome": "correct", "format_ok": 1}'
wrong "a negative number" 'in:1: tokens: expected a whole number of at least 0' '{"outcome": "correct", "tokens": -1}'
wrong "a text that is not of that backend" 'in:1: format_ok is true, .* backend triton .*backend right' \
    '{"outcome": "correct", "format_ok": true, "text": "<KERNEL>\n```c\nint x;\n```\n</KERNEL>"}' dataset_builder.backend=triton
wrong "nothing at all" 'in: no verdicts' ''
refuses "an empty standard input" 1 'standard input: no verdicts' sh -c "'$KRL' score </dev/null"
refuses "a file that is not there" 1 'nowhere: No such file' "${score[@]}" --verdict "$tmp/nowhere"
refuses "a configuration that is not there" 1 'nowhere.yaml: No such file' "${score[@]}" --config "$tmp/nowhere.yaml"
refuses "an unknown key" 2 'unknown key "reward_speed"; did you mean' "${score[@]}" reward_speed=1
refuses "a share of the run that is none" 2 'progress: expected a number from 0 to 1' "${score[@]}" --progress 2

if [ ! -f models/tiny/model.safetensors ]; then
    skip "the rewards of a run" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
weights=(reward_speed_weight=0.3 reward_length_weight=0.2 reward_thinking_weight=0.1 format_penalty=0.25 partial_correctness=true
    overlong_buffer_tokens=100 overlong_penalty=0.5)
check "a run" "$KRL" train model_name=models/tiny source=builtin level=1 max_tokens=220 batch_size=4 group_size=4 num_correct_trials=2 \
    max_steps=2 lora_rank=4 "${weights[@]}" schedule.speed_until=0.5 log_path="$tmp/run"
for step in 0 1; do
    zstdcat "$tmp/run/traces.jsonl.zst" | grep "^{\"step\":$step," >"$tmp/traces"
    "${score[@]}" --verdict "$tmp/traces" --config "$tmp/run/config.yaml" --progress 0.$((5 * step)) >"$tmp/scores" 2>"$tmp/errors"
    check "step $step: every reward and its parts are those that it recorded" python3 - "$tmp" <<'PY'
import json, sys
traces, scores = ([json.loads(line) for line in open(sys.argv[1] + "/" + name)] for name in ("traces", "scores"))
assert len(traces) == len(scores) == 16 and len({t["reward"]["total"] for t in traces}) > 2
for t, s in zip(traces, scores):
    assert t["reward"] == s["reward"] and all(t[k] == s[k] for k in ("step", "group", "sample", "problem")), (t["reward"], s)
PY
done
check "samples of eval are read, too" "$KRL" eval checkpoint_path="$tmp/run" level=1 end_problem=2 output_path="$tmp/eval.json"
check "with their header" sh -c "test \"\$('$KRL' score --verdict '$tmp/eval.samples.jsonl' --config '$tmp/run/config.yaml' |
    grep -c '\"reward\":{\"total\":-*[0-9]')\" = \$((\$(wc -l <'$tmp/eval.samples.jsonl') - 1))"
echo "1..$tap_n"
