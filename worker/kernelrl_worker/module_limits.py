"""What bounds the time of a module: module_limits.py FILE DEVICE. FILE is a problem in KernelBench's form. Prints one
JSON object: `flops` and `bytes` of a call (bytes: inputs, parameters and outputs, each once), and the most of either
that this device was seen to do in a second (`flops_per_s`: a product of two matrices; `bytes_per_s`: a copy).

Exit status 3: no torch. 1: the last line on standard error says what is wrong."""

import json
import sys
import time

try:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
except ImportError:
    sys.exit(3)

VIEWS = (
    *("view", "reshape", "transpose", "permute", "t.", "expand", "slice", "select", "squeeze", "detach"),
    *("empty", "alias"),
)


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors(item)


class Counting(TorchDispatchMode):
    """Counts a multiplication and an addition as two operations, and one for each element of any other result."""

    flops = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        name = str(function).split(".", 1)[-1]
        elements = sum(t.numel() for t in tensors(out))
        shapes = [t.shape for t in tensors(args)]
        if name.startswith(("mm.", "bmm.")):
            self.flops += 2 * elements * shapes[0][-1]
        elif name.startswith(("addmm.", "baddbmm.")):
            self.flops += 2 * elements * shapes[1][-1]
        elif name.startswith(("convolution.", "_convolution", "mkldnn_convolution")):
            weight = shapes[1]
            taps = 1
            for size in weight[1:]:
                taps *= size
            self.flops += 2 * elements * taps
        elif not name.startswith(VIEWS):
            self.flops += max(elements, sum(s.numel() for s in shapes[:1]))
        return out


def seconds(work, device):
    """The shortest of several turns of 30 ms."""
    best = float("inf")
    for _ in range(5):
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < 0.03 or calls < 2:
            work()
            calls += 1
            if device != "cpu":
                torch.cuda.synchronize(device)
        best = min(best, (time.perf_counter() - start) / calls)
    return best


def machine(device):
    n = 1024 if device == "cpu" else 4096
    a, b = torch.rand(n, n, device=device), torch.rand(n, n, device=device)
    many = torch.rand(1 << 24 if device == "cpu" else 1 << 28, device=device)
    copy = torch.empty_like(many)
    torch.mm(a, b)
    copy.copy_(many)
    return 2 * n**3 / seconds(lambda: torch.mm(a, b), device), 8 * many.numel() / seconds(
        lambda: copy.copy_(many), device
    )


def main():
    with open(sys.argv[1], encoding="utf-8") as f:
        code = f.read()
    device = sys.argv[2]
    names = {"__name__": "kernelrl_problem"}
    exec(compile(code, sys.argv[1], "exec"), names)
    made = names["get_init_inputs"]()
    model = names["Model"](**made) if isinstance(made, dict) else names["Model"](*made)
    inputs = names["get_inputs"]()
    with torch.no_grad(), Counting() as counting:
        output = model(*inputs)
    held = list(tensors(inputs)) + list(model.parameters()) + list(model.buffers()) + list(tensors(output))
    rates = machine(device)
    out = {"flops": counting.flops, "bytes": sum(t.numel() * t.element_size() for t in held)}
    print(json.dumps({**out, "flops_per_s": rates[0], "bytes_per_s": rates[1]}))


main()
