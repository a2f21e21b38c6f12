#!/usr/bin/env bash
# Small random models of each architecture by transformers, with adapters by PEFT: kernelrl computes what they do, and not
# when config.json asks for another rotary embedding. KERNELRL_PYTHON names a Python that has both.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! why=$("$python" -c 'import torch, transformers, peft; transformers.Qwen3Config' 2>&1); then
    skip "architectures" "$(tail -n 1 <<<"$why")"
    echo "1..$tap_n"
    exit 0
fi
check "transformers and PEFT make random models" "$python" tests/clients/random_models.py "$tmp/models"
for folder in "$tmp"/models/*; do folders+=("$folder"/{base,adapter,golden}); done
check "and say what these compute" "$python" tools/golden.py "${folders[@]}"
for folder in "$tmp"/models/*; do
    name=$(basename "$folder")
    check "$name in f32" "$KRL" selfcheck golden "$folder/golden"
    check "$name in bf16" "$KRL" selfcheck golden "$folder/golden" --dtype bf16
done
for name in llama3_tied llama_linear llama_yarn qwen3_yarn; do
    sed -i 's/"factor": [0-9.]*/"factor": 6.0/' "$tmp/models/$name/golden/config.json"
    refuses "$name with another factor" 1 'logits +[0-9.e+-]+ +limit +[0-9.e+-]+ +FAIL' "$KRL" selfcheck golden \
        "$tmp/models/$name/golden"
done
echo "1..$tap_n"
