#!/usr/bin/env bash
# The CUDA backend on the emulated device: what it owes beside its ops, with all work as late as a device may be, so that
# memory which the host overwrites too early shows.
. "$(dirname "$0")/tap.bash"
BUILD=${BUILD:-build}
test=$BUILD/test/cuda_plugin plugin=$BUILD/test/libkernelrl_cuda_emulated.so
if ! command -v g++ >/dev/null; then
    skip "the emulated device" "g++ is not installed"
    echo "1..$tap_n"
    exit 0
fi
# The generator's native CUDA answers on the same device: flat kernels, rows with sums and maxima, images.
if python=$(command -v python3); then
    answers=("$python" tests/native_answers.py)
    recipes=("rows 5x300 bias gelu layernorm mul" "image 2x4x9x9 relu instancenorm channel_scale global_avg_pool scale:2.0"
        "rows 2x270 softmax scale:2.0 rmsnorm var" "rows 3x40 min clamp:-0.5,0.5" "image 2x3x5x5 channel_scale bias")
    check "native CUDA answers are right, in all styles" "${answers[@]}" "$KRL" tests/cuda/emulate "${recipes[@]}"
    printf '#!/bin/sh\n"%s" "$@"; sed -i "s/s = row_sum(s);//" "$7/answers.jsonl"\n' "$(realpath "$KRL")" >"$tmp/krl"
    chmod +x "$tmp/krl"
    refuses "wrong ones are found out" 1 '[1-9] wrong$' "${answers[@]}" "$tmp/krl" tests/cuda/emulate "rows 3x270 logsumexp"
else
    skip "native CUDA answers" "python3 is not installed"
fi
check "it builds" make --no-print-directory BUILD="$BUILD" "$test" "$plugin"
check "it passes, all work as late as it may be" env KERNELRL_EMULATE_LATE=1 "$test" "$plugin"
if [ -n "${KERNELRL_TESTDATA:-}" ]; then
    golden() { # NAME [FLAG]...
        KERNELRL_CUDA_PLUGIN=$PWD/$plugin "$KRL" selfcheck golden "$KERNELRL_TESTDATA/golden/$1" --device cuda "${@:2}"
    }
    for name in llama3 qwen3_moe qwen3_fp8 qwen2_nf4; do
        check "$name in f32" golden $name
        check "$name in bf16" golden $name --dtype bf16
    done
    for name in "qwen3_moe --base-dtype nf4" qwen3_fp8 qwen2_nf4; do
        # shellcheck disable=SC2086
        check "adapters over $name give the trainer's bits" env KERNELRL_CUDA_PLUGIN="$PWD/$plugin" "$KRL" selfcheck \
            onpolicy --model "$KERNELRL_TESTDATA/golden/"$name --device cuda --dtype bf16 --adapters 2 --tokens 40
    done
else
    skip "Llama 3, a mixture of experts, FP8 and NF4 on the device" "KERNELRL_TESTDATA is not set"
fi
queue=$BUILD/test/engine/queue_test
check "the queue's test builds" make --no-print-directory BUILD="$BUILD" "$queue"
for type in f32 bf16; do
    check "any schedule of the queue on it gives each request its bits, $type" \
        env KERNELRL_CUDA_PLUGIN="$PWD/$plugin" KERNELRL_TEST_DEVICE=cuda "$queue" any_schedule_$type
done
# Many models over one base: what they give in a random order is what each gives alone.
check "adapters' schedules are built" make --no-print-directory BUILD="$BUILD" "$BUILD/test/train/adapters_test"
check "adapters in turns, at rest and awake, give the bits of each alone" env KERNELRL_CUDA_PLUGIN="$PWD/$plugin" \
    KERNELRL_TEST_DEVICE=cuda "$BUILD/test/train/adapters_test"
check_plan() { KERNELRL_CUDA_PLUGIN=$PWD/$plugin tools/plan_check --hidden 64 --layers 1 --feed 64 --heads 1 --vocab "$@"; }
check "a step takes what was planned for it" check_plan 2048 --prompts 1 --answers 1 --tokens 12 --rows 256 --repeat 1
check "with LoRA, over codes, and with all parameters" [ "$(grep -cE '^(lora|fp8|nf4|full) +planned .* (0\.9[5-9]|1\.0[0-5])[0-9]*$' "$tmp/out")" = 4 ]
refuses "a model that is none" 2 'vocab' check_plan 0 --modes lora
# A card that is full: a run of a model of 7 billion parameters ends before it loads anything.
mkdir "$tmp/seven" && cp models/tiny/tokenizer* "$tmp/seven" && cat >"$tmp/seven/config.json" <<'END'
{"model_type": "qwen2", "hidden_size": 3584, "num_hidden_layers": 28, "intermediate_size": 18944,
 "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "rms_norm_eps": 1e-06,
 "rope_theta": 1000000.0, "tie_word_embeddings": false, "max_position_embeddings": 32768}
END
seven() {
    KERNELRL_CUDA_PLUGIN=$PWD/$plugin KERNELRL_EMULATE_MEMORY=$1 "$KRL" train model_name="$tmp/seven" device=cuda \
        lora_rank=32 log_path="$tmp/run" max_steps=1
}
refuses "training what a full card has no room for" 1 'at least [0-9.]+ GiB of device memory, of which 12\.0 GiB are free: weights 14\.3' \
    seven $((12 << 30))
check "before the first step" test ! -s "$tmp/run/metrics.jsonl"
# A model that knows nothing. Adapters of its layers, of its head and of both in recorded steps: what is sampled is what is
# trained.
cat >"$tmp/small.json" <<'END'
{"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "num_attention_heads": 2,
 "num_key_value_heads": 1, "head_dim": 16, "vocab_size": 2048, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
 "tie_word_embeddings": true, "max_position_embeddings": 4096}
END
echo '{"prompt": "a", "completion": "b"}' >"$tmp/rows.jsonl"
check "a model that knows nothing" "$KRL" sft init_config="$tmp/small.json" tokenizer=models/tiny data="$tmp/rows.jsonl" \
    output="$tmp/small" max_steps=1 lora_rank=0
check "adapters on layers and head give the trainer's bits" env KERNELRL_CUDA_PLUGIN="$PWD/$plugin" "$KRL" selfcheck \
    onpolicy --model "$tmp/small" --device cuda --dtype bf16 --adapters 3 --tokens 60
# The demo as it is on a GPU, of that model: held-out problems and KernelBench's easy ones in one evaluation.
if "${KERNELRL_PYTHON:-/usr/bin/python3}" -c 'import torch' 2>/dev/null; then
    module='import torch\nimport torch.nn as nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n        return torch.%s(x)\n'
    module+='\n\ndef get_inputs():\n    return [torch.rand(8, 16)]\n\n\ndef get_init_inputs():\n    return []\n'
    for problem in 1:cos 19:relu 20:sin 21:sigmoid; do
        printf '{"level": 1, "problem_id": %s, "name": "%s", "code": "%s"}\n' "${problem%:*}" "${problem/:/_}" "${module//%s/${problem#*:}}"
    done >"$tmp/kb.jsonl"
    check "the demo on it" env KERNELRL_CUDA_PLUGIN="$PWD/$plugin" KERNELBENCH_ROOT="$tmp/kb.jsonl" "$KRL" demo \
        --config configs/quickstart_cuda.yaml log_path="$tmp/demo" model_name="$tmp/small" backend=c batch_factor=1 level=1 \
        end_problem=12 generated_problems=0 max_tokens=4 max_steps=1 batch_size=1 group_size=2
    check "tells of both kinds, before and after" python3 - "$tmp/demo" <<'END'
import json, sys
demo = json.load(open(f"{sys.argv[1]}/demo.json"))
for when in "before", "after":
    keys = [item["problem"] for item in demo[when + "_kernelbench"]["items"]]
    assert keys == ["level1/19_relu", "level1/20_sin"], keys  # two of the four are easy
    held_out = demo[when + "_greedy"]
    assert held_out["problems"] == 4 and held_out["mean_tokens"] == 4 and demo[when] is None, held_out
    lines = [json.loads(line) for line in open(f"{sys.argv[1]}/{when}.verdicts.jsonl")]
    assert sorted(line["group"] for line in lines) == list(range(6)), lines
log = open(f"{sys.argv[1]}/logs.log").read()
assert log.count("problems of KernelBench, greedy") == 2, log
END
else
    skip "the demo" "no Python with PyTorch"
fi
echo "1..$tap_n"
