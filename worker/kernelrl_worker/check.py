"""Looks for problems that reward the wrong thing: check.py FILE SECONDS, where FILE has a JSON line {key, code} a
problem.

Prints a line a problem: {"key", "findings": {NAME: explanation}, "eager_ms", "outputs"}. Exit status 3: no torch. Each
problem runs in a process of its own, so that one that hangs or dies says so and does no harm to the others. Findings:

    error           it does not load or run
    random          two calls on the same inputs and parameters differ
    not_finite      NaN or infinity in the output of the inputs it draws itself
    constant        every element of the output has the same value
    input_blind     outputs of inputs of other seeds, signs and sizes are the same within the tolerance
    below_tolerance zeros would be accepted
"""

import json
import math
import multiprocessing
import os
import sys
import time

try:
    import torch
except ImportError:
    sys.exit(3)

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
from kernelrl_worker.constants import TOLERANCE_SINGLE as TOLERANCE  # noqa: E402  (found through the path set above)


def tensors(value):
    if torch.is_tensor(value):
        return [value]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    if isinstance(value, dict):
        return [t for k in sorted(value, key=str) for t in tensors(value[k])]
    return []


def close(a, b):
    """As KernelBench compares."""
    return len(a) == len(b) and all(
        x.shape == y.shape and torch.allclose(x.double(), y.double(), atol=TOLERANCE, rtol=TOLERANCE, equal_nan=True)
        for x, y in zip(a, b)
    )


def look(code):
    scope = {}
    exec(compile(code, "problem", "exec"), scope)
    torch.manual_seed(1)
    init = scope["get_init_inputs"]() if "get_init_inputs" in scope else []
    model = scope["Model"](*init)
    model.train(False)  # dropout and batch statistics are no randomness of the problem

    def inputs(seed, change=lambda t: t):
        torch.manual_seed(seed)
        drawn = scope["get_inputs"]()
        return [change(t) if torch.is_tensor(t) and t.is_floating_point() else t for t in drawn]

    def run(args, seed):
        torch.manual_seed(seed)
        with torch.no_grad():
            out = model(*[a.clone() if torch.is_tensor(a) else a for a in args])
        return [t.detach().clone() for t in tensors(out)]

    def signs(t):
        return t * (torch.randint(0, 2, t.shape) * 2 - 1).to(t.dtype)

    findings = {}
    shipped = inputs(2)
    first = run(shipped, 10)
    if not first:
        return {"findings": {"error": "forward() gives no tensor"}, "eager_ms": None, "outputs": 0}
    if not close(first, run(shipped, 11)):
        findings["random"] = "two calls on the same inputs differ"
    if any(not torch.isfinite(t.double()).all() for t in first):
        findings["not_finite"] = "NaN or infinity in the output"
    if all(t.numel() > 1 and (t == t.reshape(-1)[0]).all() for t in first):
        findings["constant"] = "every element is %g" % float(first[0].reshape(-1)[0])
    others = [run(inputs(3), 10), run(inputs(4, signs), 10), run(inputs(5, lambda t: 3 * signs(t)), 10)]
    if shipped and all(close(first, o) for o in others):
        findings["input_blind"] = "three other draws of inputs give the same output"
    if all(close([torch.zeros_like(t) for t in o], o) for o in [first] + others):
        findings["below_tolerance"] = "zeros would be accepted: no element is larger than the tolerance"
    elif close([torch.zeros_like(t) for t in first], first):
        findings["below_tolerance"] = "zeros would be accepted for the inputs it draws itself"
    best, calls, end = math.inf, 0, time.perf_counter() + 0.2
    with torch.no_grad():
        while calls < 3 or (time.perf_counter() < end and calls < 200):
            start = time.perf_counter()
            model(*shipped)
            best = min(best, time.perf_counter() - start)
            calls += 1
    return {"findings": findings, "eager_ms": best * 1e3, "outputs": sum(t.numel() for t in first)}


def child(code, pipe):
    try:
        pipe.send(look(code))
    except BaseException as e:  # whatever a problem does
        pipe.send({"findings": {"error": "%s: %s" % (type(e).__name__, e)}, "eager_ms": None, "outputs": 0})


def main():
    context = multiprocessing.get_context("fork")
    limit = float(sys.argv[2])
    for line in open(sys.argv[1], encoding="utf-8"):
        problem = json.loads(line)
        mine, its = context.Pipe(False)
        p = context.Process(target=child, args=(problem["code"], its))
        p.start()
        its.close()
        result = None
        if mine.poll(limit):
            try:
                result = mine.recv()
            except EOFError:
                pass
        else:
            p.kill()
            result = {"findings": {"error": "takes longer than %g s" % limit}, "eager_ms": None, "outputs": 0}
        p.join()
        if result is None:
            result = {
                "findings": {"error": "its process died (exit code %s)" % p.exitcode},
                "eager_ms": None,
                "outputs": 0,
            }
        result["key"] = problem["key"]
        print(json.dumps(result), flush=True)


main()
