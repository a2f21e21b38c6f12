#!/usr/bin/env bash
# The simulation of runs on many ranks beside closed forms, and what plan says of ranks.
. "$(dirname "$0")/tap.bash"
check "the simulation agrees with closed forms" tests/e2e/scale_cases.py
check "a table" bash -c "[ \$(tools/scale_simulation --table ranks steps=2 | wc -l) = 11 ]"
refuses "a key that is none" 1 'rungs: no such key' tools/scale_simulation rungs=2
seven() { "$KRL" plan --arch qwen2.5-7b --memory 139 max_tokens=1024 prompt_max_tokens=512 "$@" >"$tmp/plan"; }
check "plan with measured rates" seven lora_rank=32
check "has a row for 1, 2, 4 and 8 ranks, with seconds" bash -c "[ \$(grep -cE '^ +[1248] .* s, +[0-9.]+x\$' '$tmp/plan') = 4 ]"
"$KRL" plan model_name=models/tiny >"$tmp/tiny"
check "a model without rates says so" grep -q ' unknown' "$tmp/tiny"
echo "1..$tap_n"
