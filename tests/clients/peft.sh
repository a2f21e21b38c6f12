#!/usr/bin/env bash
# An adapter that kernelrl trained, loaded by PEFT on transformers' model: the same logits, gradients and AdamW step.
# KERNELRL_PYTHON names a Python that has both; without one the test is skipped.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if [ ! -f models/tiny/model.safetensors ]; then
    skip "adapters in PEFT" "models/tiny has no model.safetensors; make embedded-model builds it"
elif ! why=$("$python" -c 'import torch, transformers, peft; transformers.Qwen3Config' 2>&1); then
    skip "adapters in PEFT" "$(tail -n 1 <<<"$why")"
else
    printf '{"prompt": "ping", "completion": "int m = 4711;"}\n' >"$tmp/rows.jsonl"
    check "an adapter is trained" "$KRL" sft model_name=models/tiny data="$tmp/rows.jsonl" output="$tmp/adapter" \
        lora_rank=8 max_steps=5 learning_rate=3e-3 batch_tokens=512
    check "PEFT loads it" "$python" tools/golden.py models/tiny "$tmp/adapter" "$tmp/golden"
    check "and computes what kernelrl does" "$KRL" selfcheck golden "$tmp/golden"
fi
echo "1..$tap_n"
