#!/usr/bin/env bash
# kernelrl bench: every measurement of a small shape gives its lines, options do what they say, and nonsense is refused.
. "$(dirname "$0")/tap.bash"
bench() { "$KRL" bench "$@" --threads 2 2>"$tmp/table" >"$tmp/lines"; }
# Every line is an object with these keys that hold positive numbers, and has reached some of a limit.
lines() { # COUNT KEY...
    python3 - "$tmp/lines" "$@" <<'END'
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
assert len(rows) == int(sys.argv[2]), len(rows)
always = ["load", "median_ms", "low_ms", "high_ms", "limit_ms", "of_limit", "of_limit_best", "memory_gb_per_s",
          "matmul_gflops_per_s", "cpu_share", "threads"]
for row in rows:
    for key in always + sys.argv[3:]:
        assert row[key] > 0 or key == "load", (key, row[key])
    assert row["low_ms"] <= row["median_ms"] <= row["high_ms"], row
    assert row["spread"] >= 0 and 0 < row["of_limit"] < 20, row
END
}
field() { # KEY: its value in each line
    python3 -c 'import json, sys
for line in open(sys.argv[1]): print(json.loads(line)[sys.argv[2]])' "$tmp/lines" "$1" | paste -sd ' '
}

check "decode" bench decode --arch tiny --batch 3,1 --context 20-28
check "a line for each batch" lines 2 tokens_per_s context_begin
check "in that order" [ "$(field batch)" = "3 1" ]
check "and a row of the table" [ "$(grep -c 'of the limit' "$tmp/table")" = 2 ]
check "prefill in bf16" bench prefill --arch tiny --tokens 40 --repeat 2 --dtype bf16
check "its line" lines 1 tokens_per_s of_matmul_rate
check "says so" [ "$(field dtype) $(field tokens)" = "bf16 40" ]
check "decode with three adapters" bench decode --arch tiny --batch 4 --context 3-6 --lora-rank 4 --adapters 3
check "its line" lines 1 tokens_per_s adapters lora_rank
refuses "adapters of no rank" 2 'adapters: expected --lora-rank' "$KRL" bench decode --arch tiny --adapters 3
refuses "a rank of experts that are not there" 1 'LoRA rank of experts' "$KRL" bench train-lora --arch tiny --lora-expert-rank 3
check "train" bench train --arch tiny --batch 2 --tokens 60 --repeat 1 --lora-rank 4
check "its lines" lines 2 tokens_per_s forward_s backward_s optimizer_s step_flop peak_resident_bytes activation_bytes
check "of LoRA and of all parameters" [ "$(field bench)" = "train_lora train_full" ]
check "nothing is recomputed" [ "$(field recomputed_layers)" = "0 0" ]
roomy=$(field activation_bytes)
check "train-lora in little memory" bench train-lora --arch tiny --batch 2 --tokens 60 --repeat 1 --lora-rank 4 \
    --train-tokens 120 --activation-memory $((${roomy%% *} * 3 / 4))
less() { [ "$(field recomputed_layers)" -gt 0 ] && [ "$(field activation_bytes)" -le $((${roomy%% *} * 3 / 4)) ]; }
check "recomputes" less
check "train-lora in micro-batches" bench train-lora --arch tiny --batch 3 --tokens 60 --repeat 1 --train-tokens 120
check "of two sequences and one" [ "$(field train_tokens) $(field batch)" = "120 3" ]
refuses "train-lora in too little memory" 1 'activation_memory' \
    "$KRL" bench train-lora --arch tiny --batch 2 --tokens 60 --activation-memory 1000
check "rlstep" bench rlstep --arch tiny --batch 2 --answers 3 --tokens 30 --new-tokens 8 --lora-rank 4 --train-tokens 60
check "its line" lines 1 tokens_per_s sample_s update_s kv_bytes activation_bytes
check "of two prompts with three answers" [ "$(field bench) $(field batch) $(field answers) $(field new_tokens)" = "rlstep 2 3 8" ]
check "rlstep of all parameters, as planned" bench rlstep --arch tiny --batch 2 --answers 3 --tokens 30 --new-tokens 8 --full \
    --planned --train-tokens 256
check "says what was planned" [ "$(field lora_rank) $(($(field device_planned_bytes) > 80000000))" = "0 1" ]
refuses "a plan of no step" 2 'planned means nothing to decode' "$KRL" bench decode --arch tiny --planned
refuses "a step off policy" 2 'numerics fast' "$KRL" bench rlstep --arch tiny --numerics fast
refuses "answers to no measurement" 2 'answers means nothing to decode' "$KRL" bench decode --arch tiny --answers 3
check "matmul" bench matmul --arch tiny --batch 1,64
check "five matrices: one row, and 64 with their gradients" lines 20 gflops_per_s rows outputs inputs
check "matmul --repeat" bench matmul --arch tiny --batch 1 --repeat 3
check "five products of one row" lines 5 gflops_per_s
check "the shape of a model" bench decode --model models/tiny --random-weights --batch 1 --context 4-6
check "is named" [ "$(field model)" = models/tiny ]

refuses "no measurement" 2 '^usage' "$KRL" bench --arch tiny
refuses "an unknown measurement" 2 '^usage' "$KRL" bench speed --arch tiny
refuses "no model" 2 'expected --arch NAME or --model DIR' "$KRL" bench decode
refuses "two models" 2 'expected --arch NAME or --model DIR' "$KRL" bench decode --arch tiny --model models/tiny
refuses "an unknown shape" 2 'qwen2.5-0.5b' "$KRL" bench decode --arch qwen9
refuses "a batch of nothing" 2 'batch: expected a whole number' "$KRL" bench decode --arch tiny --batch 4,,1
refuses "a context that shrinks" 2 'context: expected a whole number' "$KRL" bench decode --arch tiny --context 9-9
refuses "no range" 2 'expected FROM-TO' "$KRL" bench decode --arch tiny --context 9
refuses "an option of another measurement" 2 'context means nothing to prefill' \
    "$KRL" bench prefill --arch tiny --context 1-2
refuses "a batch for all" 2 'batch means nothing to all' "$KRL" bench all --arch tiny --batch 1
refuses "an unknown device" 2 'device: expected cpu' "$KRL" bench decode --arch tiny --device tpu
refuses "verdicts on an unknown device" 2 'device: expected cpu, cuda or cuda:N' "$KRL" bench verify --device tpu
refuses "an unknown dtype" 2 'dtype: expected' "$KRL" bench decode --arch tiny --dtype fp8
echo "1..$tap_n"
