#!/usr/bin/env bash
# A mixture of experts, from the command line: sampled, tuned by sft, trained by reinforcement learning with an adapter on
# each expert and with all parameters, resumed. The mixture is made of the embedded model, whose feed-forward parts its
# experts are.
. "$(dirname "$0")/tap.bash"
if [ ! -f models/tiny/model.safetensors ]; then
    skip "a mixture of experts" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
fi
python3 tests/e2e/upcycle.py models/tiny "$tmp/equal" 3 2 || exit 1
python3 tests/e2e/upcycle.py models/tiny "$tmp/moe" 3 2 0.1 || exit 1

# Experts that are all the dense model's feed-forward part: the mixture says what that model says.
sample() { "$KRL" sample --model "$1" --prompt "relu of a matrix" --temperature 0 --max-tokens 40 "${@:2}" 2>/dev/null; }
same() { [ -n "$1" ] && [ "$1" = "$2" ]; }
check "experts that are all alike" same "$(sample "$tmp/equal")" "$(sample models/tiny)"
onpolicy() { "$KRL" selfcheck onpolicy --model "$tmp/moe" --tokens 150 "$@"; }
check "sampler and trainer agree" onpolicy
check "with adapters on experts" onpolicy --adapters 2 --dtype bf16
check "with experts in codes" onpolicy --base-dtype nf4 --dtype bf16

train=("$KRL" train model_name="$tmp/moe" max_tokens=160 batch_size=2 group_size=4 measure_performance=false
    reward_speed_weight=0 num_correct_trials=1 save_every=1 learning_rate=1e-3 lora_rank=8)
value() { sed -n "$2p" "$1/metrics.jsonl" | grep -o "\"$3\":[^,}]*" | cut -d: -f2; }
check "two steps with an adapter" "${train[@]}" log_path="$tmp/a" max_steps=2
check "sampler and trainer agree before each update" same "$(value "$tmp/a" 1 train/kl_sampler_trainer)$(value "$tmp/a" 2 train/kl_sampler_trainer)" 00
shifts() { # of the experts' choices the update changes some, and not all
    value "$1" 1 train/expert_shift | awk '{ exit !($1 > 0 && $1 < 0.5) }'
}
check "an update changes some experts, which is a metric" shifts "$tmp/a"
adapter="$tmp/a/checkpoints/final/adapter_config.json"
says_rank() { tr -d ' \n' <"$1" | grep -q "experts[^,]*[.]up_proj\":$2,"; }
check "experts have half of the rank, two being chosen" says_rank "$adapter" 4
check "tensors of the last expert" grep -aq 'layers.5.mlp.experts.2.down_proj.lora_B' "$tmp/a/checkpoints/final/adapter_model.safetensors"
refuse_router() { ! grep -aq 'mlp.gate.lora' "$tmp/a/checkpoints/final/adapter_model.safetensors"; }
check "none of the router" refuse_router
check "the first of two steps" "${train[@]}" log_path="$tmp/b" max_steps=1
check "and the second, resumed" "${train[@]}" log_path="$tmp/b" max_steps=2
check "give the same adapter" cmp "$tmp/a/checkpoints/final/adapter_model.safetensors" "$tmp/b/checkpoints/final/adapter_model.safetensors"
check "the first step, with one pair of tensors for all experts of a layer" \
    "${train[@]}" log_path="$tmp/h" max_steps=1 lora_expert_files=fused
check "has such a file" grep -aq 'layers.5.mlp.experts.base_layer.lora_A' "$tmp/h/checkpoints/final/adapter_model.safetensors"
check "the second step goes on from there" "${train[@]}" log_path="$tmp/h" max_steps=2 lora_expert_files=each
check "and gives the same adapter as well" cmp "$tmp/a/checkpoints/final/adapter_model.safetensors" "$tmp/h/checkpoints/final/adapter_model.safetensors"
check "the adapter is loaded again" sample "$tmp/moe" --adapter "$tmp/a/checkpoints/final"

check "a rank of their own" "${train[@]}" log_path="$tmp/c" max_steps=1 lora_expert_rank=3
check "is what the files say" says_rank "$tmp/c/checkpoints/final/adapter_config.json" 3
check "attention alone" "${train[@]}" log_path="$tmp/d" max_steps=1 lora_expert_rank=-1
attention_alone() { ! grep -aq experts "$tmp/d/checkpoints/final/adapter_model.safetensors"; }
check "leaves the experts as they are" attention_alone
refuses "a dense model has no experts" 1 'LoRA rank of experts: expected 0' \
    "${train[@]}" model_name=models/tiny log_path="$tmp/e" lora_expert_rank=3
refuses "nor files of experts" 1 'files of experts: expected auto' \
    "${train[@]}" model_name=models/tiny log_path="$tmp/e" lora_expert_files=fused
refuses "nor has training of all parameters such files" 2 'lora_expert_files' "${train[@]}" log_path="$tmp/e" lora_rank=0 \
    lora_expert_files=fused
refuses "or a rank" 2 'lora_expert_rank' "${train[@]}" log_path="$tmp/e" lora_rank=0 lora_expert_rank=3

check "several updates of one batch" "${train[@]}" log_path="$tmp/f" max_steps=1 update_epochs=2
check "are warned of" grep -q 'is a mixture of experts: with num_substeps' "$tmp/f/logs.log"
no_warning() { ! grep -q 'is a mixture of experts' "$tmp/a/logs.log"; }
check "which one is not" no_warning

# All parameters, the router among them.
check "all parameters" "${train[@]}" log_path="$tmp/g" max_steps=1 lora_rank=0 learning_rate=1e-4
router() { # the bytes of a router
    python3 - "$1" <<'P'
import json, struct, sys
d = open(sys.argv[1], "rb").read()
n = struct.unpack("<Q", d[:8])[0]
a, b = json.loads(d[8 : 8 + n])["model.layers.2.mlp.gate.weight"]["data_offsets"]
sys.stdout.buffer.write(d[8 + n + a : 8 + n + b])
P
}
router "$tmp/moe/model.safetensors" >"$tmp/before"
router "$tmp/g/checkpoints/final/model.safetensors" >"$tmp/after"
moved() { [ -s "$tmp/after" ] && ! cmp -s "$tmp/before" "$tmp/after"; }
check "train the router, too" moved

# Supervised, from nothing.
rows=$tmp/rows.jsonl
printf '{"prompt": "ping", "completion": "int m = 4711;"}\n{"prompt": "pong", "completion": "float two = 2.5f;"}\n' >"$rows"
sft=("$KRL" sft init_config="$tmp/moe/config.json" tokenizer=models/tiny data="$rows" batch_tokens=512 log_every=1 max_steps=60
    warmup_steps=2 weight_decay=0 learning_rate=1e-3 output="$tmp/sft" renderer_name=qwen3_disable_thinking)
check "a mixture from random weights" "${sft[@]}"
says() { [ "$("$KRL" sample --model "$tmp/sft" --prompt "$1" --temperature 0 --max-tokens 40 2>/dev/null)" = "$2" ]; }
check "says what the first row says" says ping 'int m = 4711;'
check "and the second" says pong 'float two = 2.5f;'

check "what it takes of a GPU" "$KRL" plan model_name="$tmp/moe"
check "and in NF4" "$KRL" plan model_name="$tmp/moe" base_dtype=nf4
echo "1..$tap_n"
