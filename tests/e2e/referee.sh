#!/usr/bin/env bash
# The referee's inputs: written straight to where they belong or copied there, the numbers are those that get_inputs
# draws, in every order that a problem may return them in; spikes are the same whenever they are drawn. And its guards.
. "$(dirname "$0")/tap.bash"
python=${KERNELRL_PYTHON:-}
for p in ./.venv/bin/python python3 /usr/bin/python3; do
    if [ -z "$python" ] && "$p" -c 'import torch' >/dev/null 2>&1; then python=$p; fi
done
if [ -z "$python" ] || ! "$python" -c 'import torch' >/dev/null 2>&1; then
    skip "inputs" "no Python with PyTorch"
    echo "1..$tap_n"
    exit 0
fi
cat >"$tmp/inputs.py" <<'PY'
import mmap, sys

sys.path.insert(0, "worker")
import torch
from kernelrl_worker import referee, tensors

HEAD = """import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a, b=None):
        return a * 2 if b is None else a @ b.T if a.shape[1] == b.shape[1] else a @ b
def get_init_inputs():
    return []
def get_inputs():
"""
BODIES = {
    "as they come": "return [torch.rand(64, 32), torch.rand(32, 64)]",
    "swapped": "a = torch.rand(64, 64); b = torch.rand(64, 64); return [b, a]",
    "one twice": "a = torch.rand(64, 64); return [a, a]",
    "and a part of it": "a = torch.rand(64, 64); return [a, a[32:]]",
    "transposed": "a = torch.rand(64, 64); return [a.T, torch.rand(64, 64)]",
    "worked on": "a = torch.rand(64, 64); return [a * 3, torch.rand(64, 64)]",
    "symmetric": "a = torch.rand(64, 64); return [torch.rand(64, 64).triu(), a + a.T]",
    "shapes as lists": "return [torch.rand([64, 64]), torch.rand((64, 64))]",
    "rounded": "return [torch.rand(64, 64).half().float(), torch.rand(128, 64)[:64]]",
}
direct = set()
for name, body in BODIES.items():
    code = HEAD + "    " + body + "\n"
    case = referee.Case({"device": "cpu", "precision": "fp32", "cpu_inputs": False, "code": code, "init_seeds": [1, 2]})
    for lane in (0, 1):
        memory = tensors.Memory(0, 2 * case.inputs_layout.bytes, "cpu", mmap.mmap(-1, 2 * case.inputs_layout.bytes))
        memory.slot_base, memory.slot_stride = 0, case.inputs_layout.bytes
        case.lanes[lane] = memory
    for family in ("shipped", "spikes", "signed"):
        want = [case._draw(family, seed, 0) for seed in (11, 12)]
        again = [case._draw(family, seed, 0) for seed in (11, 12)]
        assert all(torch.equal(a, b) for w, v in zip(want, again) for a, b in zip(w, v)), (name, family)
        for lanes in ([0, 1], [1]):
            sets = [{"family": family, "seed": s, "param_set": 0, "slot": i} for i, s in enumerate((11, 12))]
            drawn = case._draw(family, 11, 0, into=case._places(lanes[0], 0))
            if any(case.lanes[lanes[0]].holds(v) for v in drawn):
                direct.add((name, family))
            case.stage(lanes, sets)
            for lane in lanes:
                for i in range(2):
                    for got, wanted in zip(case._places(lane, i), want[i]):
                        assert torch.equal(got, wanted), (name, family, lanes, lane, i)
            assert len(case.staged) == (2 if 0 in lanes else 0)
            for s, w in zip(sets, want):
                values, _ = case.expected(dict(s, forward_seed=3))
                assert all(torch.equal(a, b) for a, b in zip(values, w))
            kept = [t for pair in case.kept.values() for part in pair for t in part]
            assert kept and not any(case.lanes[lane].holds(t) for t in kept for lane in (0, 1))
            case.kept, case.kept_bytes = {}, 0
    spiky = case._draw("spikes", 11, 0)[0]
    assert (spiky.abs() > 1).sum() >= 2
assert {("as they come", "shipped"), ("as they come", "spikes"), ("shapes as lists", "shipped")} <= direct, direct
assert not any(family == "signed" for _, family in direct)
PY
cat >"$tmp/guards.py" <<'PY'
# What is looked at in front of a timed turn on a GPU, with the driver's part played by this machine's memory and clock.
import sys, types

sys.path.insert(0, "worker")
import torch
from kernelrl_worker import referee

clock, taken = [0.0], []


def synchronize():
    clock[0] += taken.pop(0) if len(taken) > 1 else taken[0]


referee.time = types.SimpleNamespace(perf_counter=lambda: clock[0])
torch.cuda.synchronize = synchronize
r = referee.Referee()
r.tick = torch.zeros(1)
taken[:] = [30e-6]
assert r._comes_to_rest("cpu")  # the first time says what is usual
taken[:] = [2e-3]
begun = clock[0]
assert not r._comes_to_rest("cpu") and clock[0] - begun >= referee.REST_WAIT_S
taken[:] = [2e-3, 2e-3, 40e-6]
assert r._comes_to_rest("cpu") and r.usual_s == 30e-6  # others were busy for a while

memory = {"aa": torch.zeros(4096, dtype=torch.uint8), "bb": torch.ones(64, dtype=torch.uint8)}
r._opened = lambda handle, offset, size, device: memory.get(handle)
r.cuda = types.SimpleNamespace(close_all=lambda: None)
r.cases[0] = types.SimpleNamespace(device="cpu", kind="cpu", stage=lambda lanes, slots: None)
request = {"problem": 0, "timed": True, "lanes": [0, 1], "slots": []}
blocks = [[0, 4096, "aa"], [8192, 64, "bb"], [16384, 64, "gone"]]
for changed in (False, True):
    assert r.do_stage(dict(request, watch=blocks), None) == {"busy": False}
    memory["aa"][4095] += changed
    assert r.do_watch({"problem": 0}, None) == {"changed": changed}
assert r.do_watch({"problem": 0}, None) == {"changed": False}  # nothing has been staged since

# Want of memory: once, room is made; for good, it is said whose fault it is not.
assert referee.lacks_room("CUDA out of memory. Tried to allocate") and not referee.lacks_room("invalid argument")
refusals = [1]


def do_ask(request, channel):
    refusals[0] -= 1
    if refusals[0] >= 0:
        raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return {"here": 1}


r.cases = {}
r.do_ask = do_ask
assert r.handle("ask", {}, None) == {"here": 1}
refusals[0] = 2
try:
    r.handle("ask", {}, None)
    assert False
except referee.reference.NoRoom as error:
    assert "out of memory" in str(error)
PY
check "staged inputs are what get_inputs draws" "$python" -B "$tmp/inputs.py"
check "what is looked at in front of a timed turn" "$python" -B "$tmp/guards.py"
echo "1..$tap_n"
