#!/usr/bin/env bash
# bitsandbytes: the codes that are made at load, of every matrix of a model, mean what bitsandbytes' own codes mean.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-python3}
if ! "$python" -c 'import bitsandbytes, safetensors.torch' 2>/dev/null; then
    skip "bitsandbytes" "$python has no bitsandbytes"
    echo "1..$tap_n"
    exit 0
fi
check "a model through bitsandbytes' NF4" "$python" tests/clients/quantised_model.py "$tmp/model"
check "our codes decode to its matrices, bit for bit" "$KRL" selfcheck golden "$tmp/model" --base-dtype nf4
cp "$tmp/out" "$tmp/said"
check "7 of them" grep -q '^decoded (7 tensors) that differ  *0.000e+00 .*ok$' "$tmp/said"
refuses "which the matrices themselves are not" 1 'FAIL' "$KRL" selfcheck golden "$tmp/model" --base-dtype bf16
echo "1..$tap_n"
