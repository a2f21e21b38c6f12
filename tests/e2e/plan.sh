#!/usr/bin/env bash
# kernelrl plan: what fits is printed, what does not is refused with the numbers, more memory means less computed again.
. "$(dirname "$0")/tap.bash"
seven() { "$KRL" plan --arch qwen2.5-7b --memory "$@"; }
again() { seven "$1" train_tokens=16384 >"$tmp/plan" && grep -oE '[0-9]+ of 28 layers' "$tmp/plan" | cut -d' ' -f1; }
check "the embedded model" "$KRL" plan model_name=models/tiny
check "LoRA of 7 billion parameters on 48 GB" seven 44.5 train_tokens=4096
cp "$tmp/out" "$tmp/fits"
check "its weights, two bytes a parameter" grep -qE '^weights +14\.19 GiB' "$tmp/fits"
more() { [ "$(again 44.5)" -gt "$(again 60)" ] && [ "$(again 139)" = 0 ]; }
check "more memory, less computed again" more
refuses "what does not fit" 1 'at least [0-9.]+ GiB of device memory, of which 20\.0 GiB are free: weights 14\.2' seven 20
cp "$tmp/out" "$tmp/refused"
check "and the table says by how much" grep -qE '^together +[0-9.]+ GiB of 20\.00' "$tmp/refused"
refuses "no memory" 2 'expected GiB' seven none
refuses "an unknown shape" 2 'expected qwen2' "$KRL" plan --arch llama
refuses "an unknown key" 2 'rungs' "$KRL" plan --arch tiny rungs=2
echo "1..$tap_n"
