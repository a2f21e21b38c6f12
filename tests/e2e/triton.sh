#!/usr/bin/env bash
# The generator's Triton answers: all styles of every kind of kernel, run by a stand-in for Triton (tests/triton_answers.py),
# and the rows that `kernelrl corpus` makes of them.
. "$(dirname "$0")/tap.bash"
python=${KERNELRL_PYTHON:-/usr/bin/python3}
all=$tmp/all one=$tmp/one
mkdir "$all"
recipes=(
    "rows 9x70 scale leaky_relu elu selu gelu gelu_tanh" "rows 9x70 silu sigmoid tanh softplus mish hardswish"
    "seq 3x7x40 hardsigmoid shift hardtanh abs square" "rows 5x33 clamp relu6 softsign logsigmoid div exp sub_const clamp_min"
    "rows 6x40 add mul residual" "rows 6x40 sub maximum silu_gate" "rows 6x40 tanh residual sigmoid_gate" "seq 2x9x30 bias gelu softmax channel_scale"
    "image 2x6x8x8 channel_scale bias relu" "rows 9x70 log_softmax scale layernorm layernorm_plain relu rmsnorm"
    "rows 9x70 l2_normalize shift center cumsum" "image 2x6x9x8 relu instancenorm channel_scale silu"
    "signal 2x6x40 instancenorm tanh" "rows 9x70 scale sum relu" "rows 9x70 mean abs" "rows 9x70 gelu max add"
    "seq 3x5x33 min" "rows 9x70 l1_norm" "rows 9x70 bias l2_norm scale" "rows 9x70 var" "rows 9x70 logsumexp tanh"
    "rows 9x70 relu argmax" "image 2x6x8x7 relu global_avg_pool bias" "image 2x6x8x8 global_max_pool linear:5 relu"
    "rows 9x70 scale mean_all" "rows 9x70 sum mean_all" "rows 9x70 sum_all" "rows 9x70 tanh mse_loss" "rows 9x70 l1_loss"
    "rows 9x70 smooth_l1_loss" "rows 9x70 bce_logits_loss" "rows 9x70 scale cross_entropy"
    "rows 9x70 linear:64 glu relu" "seq 2x5x24 linear:32 swiglu linear:24 residual" "rows 9x64 geglu softmax"
    "image 2x6x9x8 relu max_pool2d:2 bias" "image 2x6x9x9 gelu avg_pool2d:3" "image 2x6x8x8 groupnorm:3 silu"
    "image 2x6x8x8 relu groupnorm:2 bias" "image 2x6x8x8 batchnorm relu" "seq 3x7x40 relu sum_dim1 abs"
    "seq 3x7x40 mean_dim1" "seq 3x7x40 bias max_dim1 scale" "rows 9x70 relu transpose bias" "rows 9x70 concat gelu"
    "ids 3x7 embedding:50,40 scale layernorm" "image 2x6x8x8 global_avg_pool linear:6 sigmoid channel_gate relu"
    "image 2x6x8x8 conv2d:4,3,1,1 relu" "seq 2x6x24 bmm_t:6 scale softmax bmm:24 residual" "rows 9x70 matmul:32 relu"
)
for i in "${!recipes[@]}"; do
    "$KRL" problems generate --recipe "${recipes[i]}" --seed "$i" --answers --backend triton --out "$one" >"$tmp/out" 2>&1 ||
        { not_ok "${recipes[i]}"; continue; }
    cat "$one/problems.jsonl" >>"$all/problems.jsonl"
    cat "$one/answers.jsonl" >>"$all/answers.jsonl"
done
check "answers of every kind of kernel are right, in all styles" "$python" tests/triton_answers.py "$all"
grep -E '^[0-9]+ answers' "$tmp/out" | sed 's/^/# /'
check "each operator has an answer" test "$(grep -o '"key":"[^"]*"' "$all/answers.jsonl" | sort -u | wc -l)" = "${#recipes[@]}"
sed 's/mask=m)/mask=m) + 0.01/' "$all/answers.jsonl" >"$tmp/answers" && mkdir "$tmp/wrong" && mv "$tmp/answers" "$tmp/wrong/answers.jsonl"
head -n 3 "$tmp/wrong/answers.jsonl" >"$tmp/few" && mv "$tmp/few" "$tmp/wrong/answers.jsonl"
cp "$all/problems.jsonl" "$tmp/wrong"
refuses "wrong ones are found out" 1 '^3 answers, 3 wrong' "$python" tests/triton_answers.py "$tmp/wrong"

generate=("$KRL" problems generate --seed 5 --answers --out "$one")
check "answers of the stream" "${generate[@]}" --count 20 --backend triton --per-problem 3
check "at most three a problem" test "$(wc -l <"$one/answers.jsonl")" -le 60
check "with their styles" grep -qE '"style":"(fused|separate)(_small)?(_numbers)?"' "$one/answers.jsonl"
corpus=("$KRL" corpus from="$one" backend=triton refine=0 examples=0)
check "rows of them" "${corpus[@]}" output="$tmp/rows.jsonl" unverified=true think=1
check "in the prompt and the fence of Triton answers" \
    sh -c "grep -q 'correct Triton kernels' '$tmp/rows.jsonl' && grep -q 'KERNEL>.n\`\`\`python.n# plan: ' '$tmp/rows.jsonl'"
check "whose thoughts name the plan" grep -qE '<think>.n- operators: [a-z_0-9, ]+.n- plan: (fused|separate), block' "$tmp/rows.jsonl"
# A module that is written as KernelBench writes is the same module: the answers to the other one are right for it.
mkdir "$tmp/other"
"$KRL" corpus from="$all" output="$tmp/other.jsonl" backend=triton unverified=true answers=1 refine=0 examples=0 think=0 \
    kernelbench=1 >"$tmp/out" 2>&1
"$python" - "$tmp/other.jsonl" "$tmp/other" <<'PY'
import json, sys
with open(sys.argv[2] + "/problems.jsonl", "w") as problems, open(sys.argv[2] + "/answers.jsonl", "w") as answers:
    for i, line in enumerate(open(sys.argv[1])):
        row = json.loads(line)
        between = lambda text: text.split("```python\n")[1].split("\n```")[0]
        code = between(row["prompt"][1]["content"])
        assert "super(Model, self).__init__()" in code and code.count('"""') >= 2
        json.dump({"key": str(i), "code": code}, problems)
        json.dump({"key": str(i), "style": "any", "source": between(row["completion"])}, answers)
        problems.write("\n"), answers.write("\n")
PY
check "modules as KernelBench writes them" "$python" tests/triton_answers.py "$tmp/other"
check "one a problem" test "$(wc -l <"$tmp/other/answers.jsonl")" = "${#recipes[@]}"
# The committed model, asked as in training: of its greedy answers to four problems two at least are right;
# where it writes products of sizes as numbers they are not.
if [ -f models/tiny-triton/model.safetensors ]; then
    mkdir "$tmp/model"
    "$python" -c 'import json, sys; print(json.loads(next(open(sys.argv[1])))["prompt"][0]["content"], end="")' \
        "$tmp/other.jsonl" >"$tmp/system"
    for p in level1/7_SiLU level1/20_LayerNorm level2/6_SubtractConstant_Square level2/23_ReLU_Sum; do
        "$KRL" problems show $p --source builtin >"$tmp/module"
        "$KRL" sample --model models/tiny-triton --renderer qwen3_disable_thinking --temperature 0 --max-tokens 600 --json \
            --system "$(cat "$tmp/system")" --prompt "$(printf 'Module:\n```python\n%s\n```' "$(cat "$tmp/module")")" \
            2>"$tmp/errors" | "$python" -c '
import json, sys
key, module, folder = sys.argv[1:]
text = json.loads(sys.stdin.readline())["text"]
source = text.split("```python\n")[1].split("\n```")[0]
for name, row in (("problems", {"key": key, "code": open(module).read()}),
                  ("answers", {"key": key, "style": "greedy", "source": source})):
    with open(f"{folder}/{name}.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")' $p "$tmp/module" "$tmp/model"
    done
    "$python" tests/triton_answers.py "$tmp/model" >"$tmp/said" 2>&1
    check "the committed model's answers" grep -qE '^4 answers, [0-2] wrong' "$tmp/said"
else
    skip "the committed model's answers" "models/tiny-triton has no weights"
fi
refuses "unverified ones unasked" 1 'no outcome: generate with --verify' "${corpus[@]}" output="$tmp/none.jsonl"
refuses "retrieval for Triton" 2 'backend c only' "${corpus[@]}" output="$tmp/none.jsonl" index="$tmp"
refuses "broken Triton answers" 2 'wrong variants are of C answers' "${generate[@]}" --count 1 --backend triton --broken
refuses "a backend without answers" 2 'backend: expected c, triton or cuda_native, got "cuda"' "${generate[@]}" --count 1 --backend cuda
refuses "a device for C answers" 2 'device: give --backend triton' "${generate[@]}" --count 1 --device cpu
refuses "untimed without judging" 2 'untimed: give --verify' "${generate[@]}" --count 1 --untimed
echo "1..$tap_n"
