#!/usr/bin/env bash
# Supervised fine-tuning of the embedded model: rows in, an adapter or a model out that says what the rows say.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "supervised fine-tuning" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi

# Both shapes of a prompt; a shared prompt has its rows one after the other. None of it is in the model's own corpus, but all of it
# is made of tokens that are: of others the embeddings, frozen under LoRA, may be too small to be drawn at all.
rows=$tmp/rows.jsonl
{
    printf '{"prompt": "ping", "completion": "int m = 4711;"}\n'
    printf '{"prompt": [{"role": "system", "content": "You count."}, {"role": "user", "content": "one"}], '
    printf '"completion": "float two = 2.5f;"}\n'
    printf '{"prompt": "ping", "completion": "int m = 4711;", "renderer": "qwen3_disable_thinking"}\n'
} >"$rows"
# An array, not a function: the process id of `"${sft[@]}" &` must be that of the program, for signals.
sft=("$KRL" sft model_name=models/tiny data="$rows" batch_tokens=512 log_every=1 save_every=1000 max_steps=40
    warmup_steps=2 weight_decay=0)
lora=(lora_rank=8 learning_rate=3e-3)
losses() { grep -o ' loss [0-9.]*' "$1" | cut -d' ' -f3; }
falls_to() { # LIMIT LOG: the loss ends below LIMIT, having begun above it
    losses "$2" | awk -v limit="$1" 'NR == 1 { first = $1 } { last = $1 } END { exit !(first > limit && last < limit) }'
}
says() { # TEXT PROMPT OPTION...: the greedy answer is TEXT
    local want=$1 prompt=$2
    shift 2
    [ "$("$KRL" sample "$@" --prompt "$prompt" --temperature 0 --max-tokens 40 2>"$tmp/err")" = "$want" ]
}

check "LoRA: 40 steps" sh -c '"$@" 2>"$0"' "$tmp/log" "${sft[@]}" "${lora[@]}" output="$tmp/lora"
cp "$tmp/log" "$tmp/out"
check "the loss falls below 0.1" falls_to 0.1 "$tmp/log"
check "the rows and prompts are counted" grep -q '3 rows under 3 prompts' "$tmp/log"
for f in adapter_config.json adapter_model.safetensors; do
    check "the output has $f" test -s "$tmp/lora/$f"
done
check "its rank is the one asked for" grep -q '"r": 8' "$tmp/lora/adapter_config.json"
check "the adapter says what the row says" says 'int m = 4711;' ping --model models/tiny --adapter "$tmp/lora"
check "which the model alone does not" sh -c '! "$@"' - "$BASH" -c "$(declare -f says); KRL=$KRL tmp=$tmp; \
    says 'int m = 4711;' ping --model models/tiny"
cp "$tmp/lora/adapter_model.safetensors" "$tmp/first"
check "a finished output" "${sft[@]}" "${lora[@]}" output="$tmp/lora" learning_rate=1e-3
check "is left as it is" cmp "$tmp/first" "$tmp/lora/adapter_model.safetensors"

# Interrupted and resumed: the same adapter, bit for bit.
"${sft[@]}" "${lora[@]}" output="$tmp/cut" >"$tmp/out" 2>&1 &
pid=$!
for _ in $(seq 6000); do
    grep -q 'sft step 2/' "$tmp/out" && break
    sleep 0.01
done
kill -INT $pid
wait $pid
code=$?
check "Ctrl-C stops it with code 130" test $code = 130
check "and it goes on" sh -c '"$@" 2>&1 | grep "going on from step"' - "${sft[@]}" "${lora[@]}" output="$tmp/cut"
check "to the same adapter" cmp "$tmp/first" "$tmp/cut/adapter_model.safetensors"

check "all parameters" sh -c '"$@" 2>"$0"' "$tmp/log" "${sft[@]}" learning_rate=1e-3 output="$tmp/full"
cp "$tmp/log" "$tmp/out"
check "the loss falls there too" falls_to 0.1 "$tmp/log"
check "the output is a model that says what the row says" says 'int m = 4711;' ping --model "$tmp/full"
check "its configuration names the stored type" grep -q '"torch_dtype": "bfloat16"' "$tmp/full/config.json"

printf '{"prompt": "a", "completion": "b", "renderer": "morse"}\n' >"$tmp/renderer.jsonl"
printf '{"completion": "b"}\n' >"$tmp/prompt.jsonl"
refuses "an unknown renderer in a row" 2 'renderer.jsonl:1.*morse' "${sft[@]}" data="$tmp/renderer.jsonl" output="$tmp/x"
refuses "a row without a prompt" 1 'prompt.jsonl:1.*prompt' "${sft[@]}" data="$tmp/prompt.jsonl" output="$tmp/x"
refuses "rows that are all too long" 1 'max_length' "${sft[@]}" max_length=16 output="$tmp/x"
refuses "a missing model" 2 'model_name: no directory' "${sft[@]}" model_name="$tmp/none" output="$tmp/x"
refuses "a missing file" 1 'none.jsonl' "${sft[@]}" data="$tmp/none.jsonl" output="$tmp/x"
echo "1..$tap_n"
