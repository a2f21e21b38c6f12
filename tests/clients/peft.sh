#!/usr/bin/env bash
# Adapters that kernelrl trained, loaded by PEFT on transformers' model: the same logits, gradients and AdamW step. Among
# them some that act on the head, of models whose head is the embedding table and of others; and what PEFT itself writes.
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
    compare() { # NAME MODEL ADAPTER
        check "$1: PEFT loads it" "$python" tools/golden.py "$2" "$3" "$tmp/golden-$tap_n"
        check "$1: and computes what kernelrl does" "$KRL" selfcheck golden "$tmp/golden-$((tap_n - 1))"
    }
    "$python" - models/tiny "$tmp" >"$tmp/made" 2>&1 <<'END'
import sys, torch, transformers, peft

tiny, out = sys.argv[1:]
torch.manual_seed(3)
load = lambda folder: transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
config = transformers.AutoConfig.from_pretrained(tiny, tie_word_embeddings=False)
untied = transformers.AutoModelForCausalLM.from_pretrained(tiny, config=config, dtype=torch.float32)
torch.nn.init.normal_(untied.lm_head.weight, std=0.05)
untied.save_pretrained(f"{out}/untied")
lora = peft.LoraConfig(
    r=4, lora_alpha=8, target_modules=["q_proj", "lm_head"], init_lora_weights=False, task_type="CAUSAL_LM"
)
for name, folder in ("tied", tiny), ("untied", f"{out}/untied"):
    peft.get_peft_model(load(folder), lora).save_pretrained(f"{out}/peft-{name}")
END
    check "models and adapters are made" test -f "$tmp/peft-untied/adapter_model.safetensors"
    cp models/tiny/tokenizer* "$tmp/untied"
    check "a program trains two adapters with heads" bash -c 'make --no-print-directory "$1" &&
        mkdir "$2/own-tied" "$2/own-untied" && "$1" models/tiny "$2/own-tied" && "$1" "$2/untied" "$2/own-untied"' - \
        build/test/library/two_adapters "$tmp"
    for kind in tied untied; do
        model=models/tiny
        if [ $kind = untied ]; then model=$tmp/untied; fi
        compare "layers and head, $kind" "$model" "$tmp/own-$kind/0"
        compare "the head alone, $kind" "$model" "$tmp/own-$kind/1"
        compare "written by PEFT, $kind" "$model" "$tmp/peft-$kind"
    done
    # A mixture of experts, whose adapter has tensors of each expert, or one pair for all experts of a layer. PEFT reads
    # both; what it writes itself has numbers where kernelrl writes zeros, and one A for gate and up.
    python3 tests/e2e/upcycle.py models/tiny "$tmp/moe" 3 2 0.1
    for files in each fused; do
        check "experts, $files: an adapter is trained" "$KRL" sft model_name="$tmp/moe" data="$tmp/rows.jsonl" \
            output="$tmp/experts-$files" lora_rank=8 lora_expert_rank=3 lora_expert_files=$files max_steps=5 \
            learning_rate=3e-3 batch_tokens=512
        compare "experts, $files" "$tmp/moe" "$tmp/experts-$files"
    done
    "$python" - "$tmp" >"$tmp/made" 2>&1 <<'END'
import sys, torch, transformers, peft

out = sys.argv[1]
torch.manual_seed(3)
model = transformers.AutoModelForCausalLM.from_pretrained(f"{out}/moe", dtype=torch.float32)
lora = peft.LoraConfig(
    r=4,
    lora_alpha=8,
    target_modules=["q_proj"],
    target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    rank_pattern={"mlp.experts.down_proj": 2},
    init_lora_weights=False,
    task_type="CAUSAL_LM",
)
peft.get_peft_model(model, lora).save_pretrained(f"{out}/experts-peft")
END
    if check "experts of PEFT's: an adapter is made" test -f "$tmp/experts-peft/adapter_model.safetensors"; then
        check "experts of PEFT's: what PEFT computes" "$python" tools/golden.py "$tmp/moe" "$tmp/experts-peft" "$tmp/theirs"
        "$KRL" selfcheck golden "$tmp/theirs" >"$tmp/theirs.txt" 2>&1 # gate and up have gradients of their own here
        check "experts of PEFT's: kernelrl does" grep -q '^lora_logp .* ok$' "$tmp/theirs.txt"
        check "experts of PEFT's: and all logits" grep -q '^lora_logits .* ok$' "$tmp/theirs.txt"
    fi
    # The base's own weights, which PEFT writes beside the head's adapter, must be those of the base.
    refuses "an adapter over another head" 1 'lm_head.base_layer.weight" is not that of the base' \
        "$KRL" sample --model models/tiny --adapter "$tmp/peft-untied" --prompt hello --max-tokens 4
fi
echo "1..$tap_n"
