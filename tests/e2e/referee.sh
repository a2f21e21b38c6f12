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
    for family in ("shipped", "spikes", "signed", "offset", "unit", "negated"):
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
                values, _, _ = case.expected(dict(s, forward_seed=3))
                assert all(torch.equal(a, b) for a, b in zip(values, w))
            kept = [t for kept in case.kept.values() for part in kept[:2] for t in part]
            assert kept and not any(case.lanes[lane].holds(t) for t in kept for lane in (0, 1))
            case.kept, case.kept_bytes = {}, 0
    spiky = case._draw("spikes", 11, 0)[0]
    assert (spiky.abs() > 1).sum() >= 2
assert {("as they come", "shipped"), ("as they come", "spikes"), ("shapes as lists", "shipped")} <= direct, direct
assert ("as they come", "offset") in direct
assert not any(name in ("one twice", "and a part of it") and family != "shipped" for name, family in direct), direct
# What the families are, on numbers that have zeros and both signs.
case = referee.Case({"device": "cpu", "precision": "fp32", "cpu_inputs": False, "code": HEAD + "    return [torch.rand(8, 8)]\n",
                     "init_seeds": [1, 2]})
x = torch.linspace(-2, 2, 4001).reshape(-1, 1)
for fresh in (False, True):
    of = lambda family: case._change(x.clone() if fresh else x, family, torch.Generator().manual_seed(3), fresh)
    signs = torch.where(x == 0, torch.ones(()), of("signed") / x)
    assert (signs.abs() == 1).all() and 1500 < int((signs > 0).sum()) < 2500
    assert torch.equal(of("scaled"), x * signs * 3) and torch.equal(of("small"), x * signs * 0.01)
    assert torch.equal(of("negated"), -x)
    assert torch.equal(of("offset"), torch.where(x != 0, x * signs + 50, x))
    assert torch.equal(of("unit"), torch.where(x != 0, (1 + 0.01 * x) * signs, x))
assert torch.equal(x, torch.linspace(-2, 2, 4001).reshape(-1, 1))
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
r.cuda = types.SimpleNamespace(close_all=lambda: None, opened={})
torch.cuda.mem_get_info = lambda: (1, 2)
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
cat >"$tmp/sample.py" <<'PY'
# What is looked at of large tensors around timed calls: the same places on both sides, a wrong part is found there and
# is where it is said to be, and nothing of it depends on the type of the elements.
import mmap, sys, types

sys.path.insert(0, "worker")
import torch
from kernelrl_worker import referee, tensors

referee.SAMPLED_BYTES = 1 << 20
N = 41 * 16384 + 24  # elements of four bytes: 41 pieces and a bit
piece = referee.PIECE_BYTES // 4
x = torch.rand(N)
assert referee.Sample.fits(x) and not referee.Sample.fits(x[: N // 4]) and not referee.Sample.fits(x[: N - 1])
sample = referee.Sample(5, 4 * N, "cpu")
part = sample.of(x)
assert part.numel() == (41 // referee.SAMPLED_SHARE + 1) * piece
assert torch.equal(sample.of(x.view(torch.uint8)).view(torch.float32), part)
assert all(part[i] == x[sample.place(i, x)] for i in range(0, part.numel(), 97)) and sample.place(part.numel() - 1, x) == N - 1
assert not torch.equal(sample.pieces, referee.Sample(6, 4 * N, "cpu").pieces)

code = """import torch, torch.nn as nn
class Model(nn.Module):
    def forward(self, a):
        return a * 2
def get_inputs():
    return [torch.rand(%d, 8)]
def get_init_inputs():
    return []
""" % (N // 8)
case = referee.Case({"device": "cpu", "precision": "fp32", "cpu_inputs": False, "code": code, "init_seeds": [1, 2]})
memory = tensors.Memory(0, case.inputs_layout.bytes, "cpu", mmap.mmap(-1, case.inputs_layout.bytes))
memory.slot_base, memory.slot_stride = 0, case.inputs_layout.bytes
case.lanes[1] = memory
entry = {"family": "shipped", "seed": 3, "param_set": 0, "slot": 0, "forward_seed": 4}
case.stage([1], [entry])
right = case._draw("shipped", 3, 0)[0] * 2


def judged(output, seed):
    flat = output.reshape(-1)
    sample = referee.Sample(seed, 4 * N, "cpu")
    return case.judge(1, entry, [referee.Pieces(sample, sample.of(flat.view(torch.uint8)))], True, seed)


assert judged(right, 9)["verdict"] == "equal"
wrong = right.clone()
wrong.view(-1)[-3] += 1  # the last piece is always looked at
said = judged(wrong, 9)
assert said["verdict"] == "different" and said["different"] == 1 and said["place"] == [N // 8 - 1, 5], said
found = 0
for seed in range(1, 21):  # a third of the work left out
    wrong = right.clone()
    wrong.view(-1)[: N // 3] = 0
    said = judged(wrong, seed)
    found += said["verdict"] == "different"
    assert said["verdict"] == "equal" or said["place"][0] < N // 24 + 1, said
assert found >= 14, found
scaled = right * (1 + 1e-3)  # wrong by more than the tolerance, everywhere
assert judged(scaled, 2)["different"] > 0.9 * part.numel() and judged(right * (1 + 1e-6), 2)["verdict"] == "equal"

# Inputs that the answer has changed: in part seen in part, in full always.
view = case._places(1, 0)[0].view(-1)
view[: N // 2] += 1
assert sum(judged(right, seed)["verdict"] == "inputs_changed" for seed in range(1, 21)) >= 17
assert case.judge(1, entry, [right], True)["verdict"] == "inputs_changed"
case.stage([1], [entry])
assert case.judge(1, entry, [right], True)["verdict"] == "equal"

# On a GPU: copies in part where a seed says so, the memory is dense and no stride contradicts it.
r = referee.Referee()
r.cases[0] = types.SimpleNamespace(device="cpu", kind="cuda")
r.cuda = types.SimpleNamespace(close_all=lambda: None, opened={})
torch.cuda.synchronize = lambda: None
torch.cuda.mem_get_info = lambda: (1, 2)
r._opened = lambda handle, offset, size, device: right.reshape(-1).view(torch.uint8)
item = {"shape": [N // 8, 8], "stride": [8, 1], "dtype": "float32", "copy": 0}
for seed, dense, stride, kind in ((0, True, [8, 1], torch.Tensor), (7, False, [8, 1], torch.Tensor),
                                  (7, True, [8, 1], referee.Pieces), (7, True, [1, N // 8], type(None))):
    places = [{"handle": "", "offset": 0, "bytes": 4 * N, "dense": dense}]
    r.do_copy({"problem": 0, "seed": seed, "fresh": False, "places": places}, None)
    assert type(r._output(r.cases[0], dict(item, stride=stride))) is kind, (seed, dense, stride)
PY
cat >"$tmp/open.py" <<'PY'
# Blocks of an answer's memory stay open between calls, with the driver's part played here: until there is little room,
# somebody asks for a fresh look, or the handle stands for another block.
import ctypes, sys, types

sys.path.insert(0, "worker")
import torch
from kernelrl_worker import referee, tensors

said = []
free = [100]


class Driver:
    def cuIpcOpenMemHandle_v2(self, pointer, handle, flags):
        said.append("open")
        ctypes.cast(pointer, ctypes.POINTER(ctypes.c_uint64))[0] = 4096 + len(said)
        return 0

    def cuIpcCloseMemHandle(self, pointer):
        said.append("close")


class Opening:  # takes the place of a function with argument types
    def __init__(self, f):
        self.f = f

    def __call__(self, *a):
        return self.f(*a)


driver = Driver()
driver.cuIpcOpenMemHandle_v2 = Opening(driver.cuIpcOpenMemHandle_v2)
cuda = tensors.Cuda.__new__(tensors.Cuda)
cuda.lib, cuda.opened = driver, {}
torch.cuda.synchronize = lambda: None
torch.cuda.mem_get_info = lambda: (free[0], 100)
r = referee.Referee()
r.cuda = cuda
r.cases[0] = types.SimpleNamespace(device="cpu", kind="cuda")
r._opened = lambda handle, offset, size, device: cuda.open(handle) and torch.zeros(size, dtype=torch.uint8)
one, other = "ab" * 64, "cd" * 64


def copy(handle, fresh=False):
    del said[:]
    places = [{"handle": handle, "offset": 0, "bytes": 64, "dense": True}]
    return r.do_copy({"problem": 0, "seed": 0, "fresh": fresh, "places": places}, None)["kept"], said[:]


assert copy(one + ":1") == (False, ["open"])
assert copy(one + ":1") == (True, [])
assert copy(other + ":2") == (False, ["open"])
assert copy(one + ":3") == (False, ["close", "open"])  # another block under the same handle
assert copy(one + ":3", fresh=True) == (False, ["close", "close", "open"])
r.do_let_go(None, None)
assert copy(one + ":3") == (False, ["open"])
free[0], r.looks = 20, 16
assert copy(one + ":3") == (True, ["close"]) and cuda.opened == {}
PY
check "staged inputs are what get_inputs draws" "$python" -B "$tmp/inputs.py"
check "what is looked at in front of a timed turn" "$python" -B "$tmp/guards.py"
check "what is looked at of large tensors" "$python" -B "$tmp/sample.py"
check "what stays open of an answer's memory" "$python" -B "$tmp/open.py"
echo "1..$tap_n"
