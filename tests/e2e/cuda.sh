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
refuses "training what a full card has no room for" 1 'at least [0-9.]+ GiB of device memory, of which 12\.0 GiB are free: weights 14\.2' \
    seven $((12 << 30))
check "before the first step" test ! -s "$tmp/run/metrics.jsonl"
echo "1..$tap_n"
