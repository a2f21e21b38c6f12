"""tests/clients/trl_train.py OUTPUT START: what a step of examples/trl_grpo.py leaves; trl_train.sh."""

import json
import sys

import safetensors.torch

output, start = sys.argv[1:]
with open(f"{output}/trainer_state.json", encoding="utf-8") as state:
    (step,) = [row for row in json.load(state)["log_history"] if "loss" in row]
assert step["kernelrl/missing"] == 0 and 0 <= step["kernelrl/correct"] <= 1, step
assert step["rewards/kernelrl/mean"] >= 0 and step["completions/mean_length"] > 1, step
before, after = (safetensors.torch.load_file(f"{folder}/model.safetensors") for folder in (start, output))
changed = [name for name, value in after.items() if not value.equal(before[name].to(value.dtype))]
assert set(after) == set(before), set(after) ^ set(before)
# Answers that are all paid alike teach nothing; any others move the weights.
assert bool(changed) == (step["grad_norm"] > 0), (len(changed), step)
