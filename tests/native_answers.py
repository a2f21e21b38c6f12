#!/usr/bin/env python3
"""tests/native_answers.py KERNELRL EMULATE RECIPE...: the generator's native CUDA answers against its C answers.

All styles of every recipe (as `kernelrl problems generate --recipe` takes them, sizes small) are compiled together with
the emulated device in EMULATE and run on random numbers; the plain C answer says what is right. Needs g++, no GPU.
Prints "N answers, M wrong"; exit status 1 when one is wrong, or a recipe has none."""

import array
import ctypes
import json
import os
import random
import re
import subprocess
import sys
import tempfile


def answers(kernelrl, recipe, backend, folder):
    flags = [] if backend == "c" else ["--backend", backend]
    subprocess.run(
        [kernelrl, "problems", "generate", "--recipe", recipe, "--answers", "--out", folder, *flags],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with open(os.path.join(folder, "answers.jsonl")) as f:
        return {row["style"]: row["source"] for row in map(json.loads, f)}


def unit(number, source, sizes):
    """The answer in a namespace of its own, and a way in with an array of pointers; how many it takes."""
    arguments = re.search(r"\bvoid kernel\(([^)]*)\)", source).group(1).split(",")
    stream = "stream" in arguments[-1]
    n = len(arguments) - stream
    source = re.sub(r"(\w+)<<<(.*?), 256, 0, stream>>>\(", r"LAUNCH(\1, \2, 256, 0, stream, ", source)
    names = {m.group(1) for m in re.finditer(r"\b(\w+)_D\d\b", source)}
    dims = [(f"{name}_D{i}", size) for name in names for i, size in enumerate(sizes)]
    text = "".join(f"#define {k} {v}\n" for k, v in dims)
    text += f"namespace answer{number} {{\n{source}}}\n"
    text += "".join(f"#undef {k}\n" for k, _ in dims)
    passed = ", ".join(f"p[{i}]" for i in range(n)) + (", nullptr" if stream else "")
    text += f'extern "C" void run{number}(float **p) {{ answer{number}::kernel({passed}); }}\n'
    return text, n


def main():
    kernelrl, emulate, recipes = sys.argv[1], sys.argv[2], sys.argv[3:]
    text = '#include <string.h>\n#include "cuda_runtime.h"\n#define restrict __restrict__\n'
    text += 'extern "C" void settle(void) { cudaStreamSynchronize(nullptr); }\n'
    cases, missing = [], 0
    with tempfile.TemporaryDirectory() as folder:
        for recipe in recipes:
            sizes = [int(s) for s in recipe.split()[1].split("x")]
            right = answers(kernelrl, recipe, "c", folder)
            # The plan's style may go by the name of another one that writes the same.
            plain = next(s for name, s in sorted(right.items()) if "libm, names" in s.split("\n")[0])
            mine = answers(kernelrl, recipe, "cuda_native", folder)
            if not mine:
                print(f"{recipe}: no answer")
                missing += 1
                continue
            group = []
            for source in [plain, *mine.values()]:
                number = sum(len(c[1]) for c in cases) + len(group)
                more, n = unit(number, source, sizes)
                text += more
                group.append(number)
            cases.append((recipe, group, list(mine), sizes, n))
        with open(os.path.join(folder, "all.cc"), "w") as f:
            f.write(text)
        library = os.path.join(folder, "all.so")
        subprocess.run(
            [
                "g++",
                "-std=gnu++17",
                "-O1",
                "-w",
                "-fPIC",
                "-shared",
                "-mfma",
                "-DKERNELRL_EMULATED",
                "-I",
                emulate,
                "-o",
                library,
                os.path.join(folder, "all.cc"),
                os.path.join(emulate, "emulate.cc"),
                "-lm",
            ],
            check=True,
        )
        lib = ctypes.CDLL(library)
        draw, total, wrong = random.Random(1), 0, 0
        for recipe, group, styles, sizes, n in cases:
            count = 1
            for s in sizes:
                count *= s
            inputs = [array.array("f", [draw.gauss(0, 1) for _ in range(count)]) for _ in range(n - 1)]
            results = []
            for number in group:
                out = array.array("f", [7.0] * count)
                arrays = [(ctypes.c_float * count).from_buffer(a) for a in (*inputs, out)]
                getattr(lib, f"run{number}")(
                    (ctypes.POINTER(ctypes.c_float) * n)(
                        *[ctypes.cast(a, ctypes.POINTER(ctypes.c_float)) for a in arrays]
                    )
                )
                lib.settle()
                results.append(out)
            scale = max(map(abs, results[0]))
            for style, got in zip(styles, results[1:]):
                total += 1
                error = max(abs(a - b) if a == a and b == b else float("inf") for a, b in zip(got, results[0]))
                if not error <= 1e-4 * scale:
                    wrong += 1
                    print(f"{recipe}, {style}: off by {error / scale:.3g} of the largest number")
    print(f"{total} answers, {wrong} wrong")
    return 1 if wrong or missing or not total else 0


if __name__ == "__main__":
    sys.exit(main())
