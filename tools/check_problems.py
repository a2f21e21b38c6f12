#!/usr/bin/env python3
"""Checks that the built-in problems are real work: PyTorch eager takes long enough to measure, spends its time inside
operators rather than in dispatch, and plain C does not beat it by itself. Writes docs/problems.md.

    tools/check_problems.py [--kernelrl build/kernelrl] [--output docs/problems.md] [--limit N]

Dispatch is what the same module takes with every size at most 8, on one thread. The naive
answer is the generator's (separate passes, one thread, libm, gcc -O3 -march=native) for the same operators and sizes.
Needs PyTorch and gcc; run it on an otherwise idle machine.
"""

import argparse
import ctypes
import inspect
import json
import os
import pathlib
import re
import subprocess
import tempfile
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads time each other on a shared machine
import torch  # noqa: E402

THREADS = 2
ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = "#include <math.h>\n#include <stddef.h>\n#include <stdint.h>\n#include <string.h>\n"
FLAGS = ["-std=gnu11", "-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-shared", "-fPIC"]


def load(code):
    scope = {}
    exec(compile(code, "problem", "exec"), scope)
    torch.manual_seed(1)
    return scope["Model"](*scope["get_init_inputs"]()), scope["get_inputs"]()


def best_ms(call, budget_s=0.4, most=200):
    """Smallest of repeated times, in milliseconds: the least disturbed by other processes."""
    best, end = float("inf"), time.perf_counter() + budget_s
    for i in range(most):
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now > end and i >= 3:
            break
    return best * 1e3


def small(code):
    """The same module with every size at most 8: what is left is dispatch."""
    return re.sub(r"(?m)^(\w+) = (\d+)$", lambda m: f"{m.group(1)} = {min(int(m.group(2)), 8)}", code)


def eager_ms(code):
    model, inputs = load(code)
    with torch.no_grad():
        for _ in range(3):
            model(*inputs)
        return best_ms(lambda: model(*inputs))


def naive_ms(kernelrl, recipe, folder):
    subprocess.run(
        [kernelrl, "problems", "generate", "--recipe", recipe, "--out", folder, "--answers"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    folder = pathlib.Path(folder)
    code = json.loads((folder / "problems.jsonl").read_text())["code"]
    answers = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    # equal texts are written once, under the better style's name
    source = {a["style"]: a["source"] for a in answers}
    naive = next(source[s] for s in ("naive", "fused", "fused_simd") if s in source)
    model, inputs = load(code)
    with torch.no_grad():
        out = model(*inputs)
    named = list(zip(inspect.signature(model.forward).parameters, inputs))
    named += [(n.replace(".", "_"), p.detach()) for n, p in model.named_parameters()]
    text = HEADERS
    for name, t in named + [("out", out)]:
        for k, size in enumerate(t.shape):
            text += f"#define {name.upper()}_D{k} {size}\n"
    (folder / "naive.c").write_text(text + naive)
    subprocess.run(["gcc", *FLAGS, "-o", str(folder / "naive.so"), str(folder / "naive.c"), "-lm"], check=True)
    kernel = ctypes.CDLL(str(folder / "naive.so")).kernel
    got = torch.zeros_like(out)
    args = [ctypes.c_void_p(t.data_ptr()) for _, t in named] + [ctypes.c_void_p(got.data_ptr())]
    ms = best_ms(lambda: kernel(*args), most=20)
    if not torch.allclose(got, out, rtol=1e-3, atol=1e-3):
        raise SystemExit(f"{recipe}: the naive answer is wrong")
    return ms


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernelrl", default=str(ROOT / "build" / "kernelrl"))
    parser.add_argument("--output", default=str(ROOT / "docs" / "problems.md"))
    parser.add_argument("--limit", type=int, default=0, help="check only the first N problems and write nothing")
    args = parser.parse_args()
    torch.set_num_threads(THREADS)
    rows = []
    index = [json.loads(line) for line in (ROOT / "problems" / "index.jsonl").read_text().splitlines()]
    for row in index[: args.limit or None]:
        code = (ROOT / "problems" / (row["key"] + ".py")).read_text()
        eager = eager_ms(code)
        torch.set_num_threads(1)  # waking a second thread is not dispatch
        tiny = eager_ms(small(code))
        torch.set_num_threads(THREADS)
        with tempfile.TemporaryDirectory() as folder:
            naive = naive_ms(args.kernelrl, row["recipe"], folder)
        rows.append((row, eager, tiny / eager, naive / eager))
        print(
            f"{row['key']:60} eager {eager:7.3f} ms  dispatch {100 * tiny / eager:5.1f} %  naive/eager "
            f"{naive / eager:6.2f}",
            flush=True,
        )
    slower = sum(r[3] > 1 for r in rows)
    within = sum(0.1 <= r[1] <= 2 for r in rows)
    inside = sum(r[2] <= 0.1 for r in rows)
    summary = (
        f"{len(rows)} problems: eager takes 0.1-2 ms on {within}, dispatch is at most 10 % on {inside}, naive "
        f"C is slower than eager on {slower}."
    )
    print(summary)
    if args.limit:
        return
    head = f"""# Built-in problems

{len(rows)} problems in KernelBench format, `problems/levelN/ID_Name.py`: level 1 single operators, level 2 fused
chains, level 3 small blocks. `problems/index.jsonl` has one line each: key, level, problem_id, name, split (48 are for
testing, the others for training), difficulty, ops (the operator sequence), recipe (sizes and operators, as
`kernelrl problems generate --recipe` takes them). The generator never draws the operator sequence of a test problem;
every operator of the test problems occurs in other sequences.

Measured by `tools/check_problems.py` with PyTorch {torch.__version__} on {THREADS} threads of a machine with
{os.cpu_count()} CPUs. Dispatch: time of the same module on tiny inputs, as a share of eager. Naive: the generator's
plain C answer (one pass an operator, one thread, libm), its time over eager's; above 1 it is slower than PyTorch.

{summary}

| Problem | Split | Operators | Eager, ms | Dispatch, % | Naive / eager |
|---|---|---|---:|---:|---:|
"""
    table = "".join(
        f"| {r['key']} | {r['split']} | {r['ops']} | {e:.3f} | {100 * d:.0f} | {n:.2f} |\n" for r, e, d, n in rows
    )
    pathlib.Path(args.output).write_text(head + table)


if __name__ == "__main__":
    main()
