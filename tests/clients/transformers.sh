#!/usr/bin/env bash
# A checkpoint that kernelrl trained, opened by transformers: the same token ids, the same greedy answer. And a model that
# huggingface_hub downloaded, opened by kernelrl without a network.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if [ ! -f models/tiny/model.safetensors ]; then
    skip "transformers" "models/tiny has no model.safetensors; make embedded-model builds it"
    echo "1..$tap_n"
    exit 0
elif ! why=$("$python" -c 'import torch, transformers, huggingface_hub; transformers.Qwen3Config' 2>&1); then
    skip "transformers" "$(tail -n 1 <<<"$why")"
    echo "1..$tap_n"
    exit 0
fi
printf '{"prompt": "ping", "completion": "int m = 4711;"}\n' >"$tmp/rows.jsonl"
check "a full model is trained" "$KRL" sft model_name=models/tiny data="$tmp/rows.jsonl" output="$tmp/model" \
    lora_rank=0 max_steps=3 learning_rate=1e-3 batch_tokens=512 save_dtype=f32
cat >"$tmp/open.py" <<'P'
import json, subprocess, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
kernelrl, folder = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
texts = ["int main(void) { return 0; }\n", "  größer als π ≥ 3\n\n\tx", "torch.relu(x) ** 2", "e\u0301 ... 12345 '''"]
for text in texts:
    ours = subprocess.run([kernelrl, "tokenize", "--model", folder, "--text", text, "--json"], capture_output=True,
                          text=True, check=True).stdout
    assert json.loads(ours) == tokenizer.encode(text, add_special_tokens=False), (text, ours)
said = json.loads(subprocess.run([kernelrl, "sample", "--model", folder, "--raw", "--prompt", texts[0], "--temperature",
                                  "0", "--max-tokens", "24", "--json"], capture_output=True, text=True, check=True).stdout)
prompt = tokenizer.encode(texts[0], add_special_tokens=False)
ids = torch.tensor([prompt])
for want in said["ids"]:
    with torch.no_grad():
        logits = model(ids).logits[0, -1]
    top = logits.topk(2)
    assert want == top.indices[0] or top.values[0] - logits[want] < 1e-3, (ids.shape, want, top)
    ids = torch.cat([ids, torch.tensor([[want]])], 1)
print(len(said["ids"]), "tokens")
P
check "transformers opens it and answers the same" "$python" "$tmp/open.py" "$KRL" "$tmp/model"

commit=0123456789abcdef0123456789abcdef01234567
here=$tmp/hub/repos/models/org/tiny/$commit
mkdir -p "$here"
printf '{"main": "%s"}' $commit >"$here/../refs.json"
cp models/tiny/{config.json,model.safetensors,tokenizer.json} "$here"
coproc SERVER { exec python3 tests/hub/server.py "$tmp/hub"; }
read -r hub _ <&"${SERVER[0]}"
export HF_ENDPOINT=http://127.0.0.1:$hub HF_HOME=$tmp/home no_proxy=127.0.0.1
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE HF_TOKEN HF_HUB_OFFLINE TRANSFORMERS_OFFLINE
check "huggingface_hub downloads a model" "$python" -c '
from huggingface_hub import hf_hub_download
for name in ("config.json", "model.safetensors", "tokenizer.json"):
    hf_hub_download("org/tiny", name)'
exec {SERVER[1]}>&-
wait "$SERVER_PID"
check "kernelrl opens what it left, without a network" \
    env HF_HUB_OFFLINE=1 "$KRL" sample --model org/tiny --prompt x --temperature 0 --max-tokens 4
echo "1..$tap_n"
