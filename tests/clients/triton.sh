#!/usr/bin/env bash
# The real Triton without a GPU, by its interpreter: library functions, and kernels that would be tuned on a device.
. "$(dirname "$0")/../e2e/tap.bash"
python=${KERNELRL_PYTHON:-/usr/bin/python3}
if ! "$python" -c 'import torch, triton; triton.runtime' >/dev/null 2>&1; then
    skip "the real Triton, without a GPU" "$python has no triton and torch"
    echo "1..$tap_n"
    exit 0
fi
cat >"$tmp/softmax.py" <<'PY'
import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.rand(16, 50)]


def get_init_inputs():
    return []
PY
cat >"$tmp/plain.py" <<'PY'
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    v = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * n + at, v / tl.sum(v, axis=0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        softmax_kernel[(x.shape[0],)](x, out, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
PY
tune='@triton.autotune(configs=[triton.Config({}, num_warps=w) for w in (2, 4)], key=["n"])'
sed "s/^@triton.jit/$tune\n&/" "$tmp/plain.py" >"$tmp/tuned.py"
for answer in plain tuned; do
    check "the real Triton, without a GPU: $answer" "$KRL" verify --problem "$tmp/softmax.py" \
        --solution "$tmp/$answer.py" --backend triton --device cpu
done
echo "1..$tap_n"
