#!/usr/bin/env bash
# examples/trl_grpo.py: a step of TRL's GRPOTrainer on our verdicts; what it saves is a model that kernelrl samples from.
# TRL_PYTHON has TRL, else KERNELRL_PYTHON.
. "$(dirname "$0")/../e2e/tap.bash"
python=${TRL_PYTHON:-${KERNELRL_PYTHON:-python3}}
if ! "$python" -c "import importlib.util as u; assert u.find_spec('trl')" 2>/dev/null; then
    skip "a step of training with TRL" "$python has no trl"
    echo "1..$tap_n"
    exit 0
fi
export PYTHONPATH=$PWD/python
check "examples/trl_grpo.py: a step" "$python" examples/trl_grpo.py --program "$KRL" --steps 1 --prompts 2 --group 4 \
    --rows 4 --max-tokens 200 --keys level1/1_ReLU level1/2_LeakyReLU --output "$tmp/trained"
check "its log, and weights that moved" "$python" tests/clients/trl_train.py "$tmp/trained" models/tiny
check "kernelrl samples from it" "$KRL" sample --model "$tmp/trained" --max-tokens 20 --prompt "def f("
echo "1..$tap_n"
