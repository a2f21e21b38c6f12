#!/usr/bin/env bash
# KernelBench's fourth level: a problem that loads a model by its name on the Hub, and its answers, with a model that the
# test makes. Needs transformers beside PyTorch.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
"$python" -c 'import torch, transformers' >/dev/null 2>&1 || python=/usr/bin/python3
if ! "$python" -c 'import torch, transformers' >/dev/null 2>&1; then
    skip "KernelBench's fourth level" "no Python with PyTorch and transformers (KERNELRL_PYTHON)"
    echo "1..$tap_n"
    exit 0
fi
unset HF_HUB_CACHE HUGGINGFACE_HUB_CACHE
export HF_HOME=$tmp/hf HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 KERNELRL_PYTHON=$python
"$python" - "$HF_HOME/hub/models--gpt2" <<'P' >"$tmp/made" 2>&1
import os, sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
folder, commit = sys.argv[1], "0" * 40
os.makedirs(folder + "/refs")
with open(folder + "/refs/main", "w") as f:
    f.write(commit)
torch.manual_seed(0)
config = GPT2Config(vocab_size=300, n_positions=64, n_embd=32, n_layer=2, n_head=2)
GPT2LMHeadModel(config).save_pretrained(f"{folder}/snapshots/{commit}")
# As the Hub's library leaves them: links to files that everybody may read. From 0.8 on safetensors writes files that their
# owner alone may read, and answers to a program of root's are nobody's.
os.makedirs(folder + "/blobs")
for number, name in enumerate(os.listdir(f"{folder}/snapshots/{commit}")):
    os.rename(f"{folder}/snapshots/{commit}/{name}", f"{folder}/blobs/{number}")
    os.chmod(f"{folder}/blobs/{number}", 0o644)
    os.symlink(f"../../blobs/{number}", f"{folder}/snapshots/{commit}/{name}")
P
mkdir -p "$tmp/problems/level4" "$tmp/run"
write() { # CLASS LOGITS FILE
    cat >"$3" <<P
import torch
from transformers import AutoModelForCausalLM, AutoConfig


class $1(torch.nn.Module):
    def __init__(self, model_name, config):
        super().__init__()
        self.model = AutoModelForCausalLM.from_pretrained(model_name, config=config)

    def forward(self, x):
        return $2


model_name = "gpt2"
config = AutoConfig.from_pretrained(model_name)


def get_inputs():
    return [torch.randint(0, config.vocab_size, (2, 32))]


def get_init_inputs():
    return [model_name, config]
P
}
write Model "self.model(x).logits" "$tmp/problems/level4/16_gpt2_bs1_seq1023.py"
write ModelNew "self.model(input_ids=x).logits" "$tmp/run/level_4_problem_16_sample_0_kernel.py"
write ModelNew "self.model(x.flip(1)).logits.flip(1)" "$tmp/run/level_4_problem_16_sample_1_kernel.py"
judge() {
    "$KRL" verify --run-dir "$tmp/run" --level 4 --source "$tmp/problems" --backend torch_cpu --timeout 60 --no-measure \
        --threads 1 >"$tmp/said" 2>&1
}
check "answers to it are judged" judge
check "the right one is correct" grep -qE 'sample_0_kernel.py +correct' "$tmp/said"
check "one that reads backwards is not" grep -qE 'sample_1_kernel.py +wrong_output' "$tmp/said"
if [ "$(id -u)" = 0 ]; then # who is not root is the files' owner in the jail as well
    chmod 600 "$HF_HOME/hub/models--gpt2/blobs/"*
    rm "$tmp/run/"*.json*
    refuses "one that answers cannot read is not theirs to bear" 0 'problem_error +2$' "$KRL" verify --run-dir "$tmp/run" \
        --level 4 --source "$tmp/problems" --backend torch_cpu --timeout 60 --no-measure --threads 1
fi
rm -rf "$HF_HOME" "$tmp/run/"*.json*
refuses "without the model the problem is at fault" 0 'problem_error' "$KRL" verify --run-dir "$tmp/run" --level 4 \
    --source "$tmp/problems" --backend torch_cpu --timeout 60 --no-measure --threads 1
echo "1..$tap_n"
