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

# The way back: kernelrl trains an adapter, with Llama 3's tokenizer and chat template, and PEFT loads it.
text=$tmp/models/llama3_text
printf '{"prompt": "ping", "completion": "int m = 4711;"}\n' >"$tmp/rows.jsonl"
check "Llama 3's tokenizer" "$python" tests/clients/random_tokenizers.py "$tmp/tokenizers" 1
cp "$tmp/tokenizers/llama3/tokenizer.json" "$text/base"
train() {
    "$KRL" sft model_name="$text/base" data="$tmp/rows.jsonl" output="$text/adapter_of_ours" lora_rank=4 max_steps=4 \
        learning_rate=3e-3 batch_tokens=512 "$@"
}
refuses "its chat template must be named" 1 'there is no chat template: name the style .*llama3\.1' train
check "kernelrl trains an adapter" train renderer_name=llama3.1
check "PEFT loads it" "$python" tools/golden.py "$text/base" "$text/adapter_of_ours" "$text/golden_of_ours"
check "and computes what kernelrl does" "$KRL" selfcheck golden "$text/golden_of_ours"
check "sampled and trained, bit for bit" "$KRL" selfcheck onpolicy --model "$text/base" --adapters 2 --tokens 3000
echo "1..$tap_n"
