#!/usr/bin/env bash
# kernelrl plan: what fits is printed, what does not is refused with the numbers, more memory means less computed again.
. "$(dirname "$0")/tap.bash"
seven() { "$KRL" plan --arch qwen2.5-7b --memory "$@"; }
again() { seven "$1" train_tokens=16384 >"$tmp/plan" && grep -oE '[0-9]+ of 28 layers' "$tmp/plan" | cut -d' ' -f1; }
check "the embedded model" "$KRL" plan model_name=models/tiny
check "LoRA of 7 billion parameters on 48 GB" seven 44.5 train_tokens=4096
cp "$tmp/out" "$tmp/fits"
check "its weights, two bytes a parameter, in whole pages" grep -qE '^weights +14\.28 GiB' "$tmp/fits"
more() { [ "$(again 44.5)" -gt "$(again 60)" ] && [ "$(again 139)" = 0 ]; }
check "more memory, less computed again" more
# A base in codes, on what a card of 24 GB has free.
coded() { "$KRL" plan --arch "$1" --memory 22 base_dtype="$2" train_tokens=2048 max_tokens=1536 prompt_max_tokens=512 lora_rank=32; }
for of in qwen2.5-7b:fp8 qwen2.5-7b:nf4 llama3.1-8b:fp8 llama3.1-8b:nf4 qwen2.5-14b:nf4; do
    check "LoRA of ${of%:*} in ${of#*:} within 22 GiB" coded "${of%:*}" "${of#*:}"
    cp "$tmp/out" "$tmp/${of/:/_}"
done
check "the weights of 7 billion in fp8" grep -qE '^weights +8\.25 GiB' "$tmp/qwen2.5-7b_fp8"
check "the weights of 7 billion in nf4" grep -qE '^weights +5\.22 GiB' "$tmp/qwen2.5-7b_nf4"
refuses "14 billion in fp8 within 15 GiB" 1 'at least [0-9.]+ GiB of device memory' \
    "$KRL" plan --arch qwen2.5-14b --memory 15 base_dtype=fp8
refuses "a base in codes that is trained" 2 'base_dtype' "$KRL" plan --arch tiny base_dtype=nf4 lora_rank=0
refuses "what does not fit" 1 'at least [0-9.]+ GiB of device memory, of which 20\.0 GiB are free: weights 14\.3' seven 20
cp "$tmp/out" "$tmp/refused"
check "and the table says by how much" grep -qE '^together +[0-9.]+ GiB of 20\.00' "$tmp/refused"
# All parameters: one card of 80 GB is too small, and each of four has a slice of the float32 weights, moments and sums.
all_of() { seven 79 dtype=bf16 lora_rank=0 gpus="$1" train_tokens=2048 max_tokens=1536 prompt_max_tokens=512; }
refuses "all of 7 billion parameters on one card" 1 'at least 158\.[0-9] GiB' all_of 1
check "but on four" all_of 4
cp "$tmp/out" "$tmp/four"
check "its slice of weights, moments and sums" grep -qE "^the optimizer's moments and the sum of the gradients +28\.[0-9]+ GiB" "$tmp/four"
refuses "no memory" 2 'expected GiB' seven none
refuses "an unknown shape" 2 'expected qwen2' "$KRL" plan --arch llama
refuses "an unknown key" 2 'rungs' "$KRL" plan --arch tiny rungs=2
echo "1..$tap_n"
