#!/usr/bin/env bash
# optimize's proof beside torch.compile, which starts compilers while it runs. Needs PyTorch 2 or newer.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! "$python" -c 'import torch, sys; sys.exit(int(torch.__version__.split(".")[0]) < 2)' >/dev/null 2>&1; then
    skip "torch.compile beside the winner" "no Python with PyTorch 2 (KERNELRL_PYTHON)"
    echo "1..$tap_n"
    exit 0
fi
export KERNELRL_PYTHON=$python
check "a proof with torch.compile" "$KRL" optimize source=builtin level=1 start_problem=1 end_problem=1 model_name=models/tiny \
    verdicts=8 proof_processes=1 proof_finalists=1 proof_budget_s=900 output_path="$tmp/run"
check "both modes were judged right and were timed" "$python" - "$tmp/run/results.json" <<'P'
import json, sys
compiled = json.load(open(sys.argv[1]))["tasks"][0]["torch_compile"]
assert [c["mode"] for c in compiled] == ["default", "max-autotune"], compiled
for c in compiled:
    assert c["measured"] and 0.01 < c["winner_over_it"]["ratio"] < 100, c
P
# Answers are not trusted with what the proof's own code may do.
cat problems/level1/1_ReLU.py - >"$tmp/answer.py" <<'P'


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.run = torch.compile(Model())

    def forward(self, *a):
        return self.run(*a)
P
refuses "an answer on a CPU starts no compiler" 1 "exception" "$KRL" verify --problem problems/level1/1_ReLU.py \
    --solution "$tmp/answer.py" --backend torch_cpu --allow-library
echo "1..$tap_n"
