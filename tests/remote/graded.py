#!/usr/bin/env python3
"""A module, and answers to it of graded quality: tests/remote/graded.py BLOCK.py ANSWERS.json, for server.py --answers.

Each of three grades is better than the one before, and is written only by who is shown that one. Beside it come, for
each grade others, seven that are no answers: four that cheat, and three that are wrong, right for the first shape
alone, or do not compile. An oracle asks for the next grade as soon as it can; of the eight answers to such a prompt,
which come in any order, it judges 4.5 until the good one has come: 13.5 for all three."""

import json
import sys

BLOCK = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, n, scale):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(n))
        self.scale = scale

    def forward(self, x):
        return torch.relu(x + self.bias) * self.scale


def example_inputs(rows=256):
    return torch.randn(rows, 300)


init_inputs = [300, 2.0]
shapes = [{"rows": 256}, {"rows": 64, "weight": 3}]
"""

head = "// plan: grade %d\nvoid kernel(const float *restrict x, const float *restrict bias, float *restrict out) {\n"
body = (
    "    for (int i = 0; i < OUT_D0; i++)\n        for (int j = 0; j < OUT_D1; j++) {\n"
    "            volatile float v = 0;\n            for (int k = 0; k < %d; k++) {\n"
    "                float y = x[i * OUT_D1 + j] + bias[j];\n                v = y > 0 ? y * 2 : 0;\n            }\n"
    "            out[i * OUT_D1 + j] = v;\n        }\n}\n"
)
best = (
    "    for (int i = 0; i < OUT_D0; i++)\n        for (int j = 0; j < OUT_D1; j++) {\n"
    "            float y = x[i * OUT_D1 + j] + bias[j];\n"
    "            out[i * OUT_D1 + j] = y > 0 ? y * 2 : 0;\n        }\n}\n"
)
grade = [head % g + (body % 64 if g == 0 else body % 8 if g == 1 else best) for g in range(3)]


def bad(g):
    begin = head % 9
    return [
        begin + "    static int calls;\n    if (calls++ > %d) return;\n" % (30 + g) + best,
        begin + "    static const float *last;\n    static int same;\n    if (x == last && ++same > %d) return;\n"
        "    last = x;\n" % g + best,
        "#include <stdlib.h>\n" + begin + "    for (int i = 0; i < OUT_N; i++) out[i] = %d;\n    exit(0);\n}\n" % g,
        "#include <pthread.h>\nstatic void *later(void *p) { return p; }\n"
        + begin
        + "    pthread_t t[%d];\n    pthread_create(t, 0, later, out);\n" % (g + 1)
        + best,
        begin + best.replace("* 2", "* %d" % (3 + g)),
        begin + best.replace("OUT_D0", "256 + %d - %d" % (g, g)).replace("OUT_D1", "300"),
        begin + "    out[%d] = y;\n}\n" % g,
    ]


fence = lambda code: "I think so:\n<KERNEL>\n```c\n" + code + "```\n</KERNEL>\n"  # noqa: E731
rules = [{"when": "plan: grade %d" % (g - 1), "say": [fence(k) for k in [grade[g], *bad(g)]]} for g in (2, 1)]
rules.insert(0, {"when": "plan: grade 2", "say": [fence(k) for k in bad(2)]})
rules.append({"when": "", "say": [fence(k) for k in [grade[0], *bad(0)]]})
open(sys.argv[1], "w").write(BLOCK)
json.dump(rules, open(sys.argv[2], "w"))
