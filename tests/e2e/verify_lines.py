#!/usr/bin/env python3
"""tests/e2e/verify_lines.py PROGRAM CASES [FLAG]...: what `kernelrl verify --jsonl` answers; see verify_lines.sh."""

import json
import subprocess
import sys

RELU = "void kernel(const float *restrict x, float *restrict out) {\n    for (size_t i = 0; i < X_N; i++) %s;\n}\n"
GOOD = RELU % "out[i] = x[i] > 0 ? x[i] : 0"
WRONG = RELU % "out[i] = x[i]"
BROKEN = RELU % "out[i] = y[i]"
PROBLEM = """import torch
import torch.nn as nn
class Model(nn.Module):
    def forward(self, x):
        return x.clamp(min=%s)
def get_inputs():
    return [torch.randn(64, 64)]
def get_init_inputs():
    return []
"""
REPLY = "<think>simple</think>\n<KERNEL>\n```c\n" + GOOD + "```\n</KERNEL>\n"


def start(program, *flags):
    return subprocess.Popen(
        [program, "verify", "--jsonl", *flags], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(program, requests, *flags):
    """The answers by id, and the exit status."""
    p = start(program, *flags)
    out, _ = p.communicate("".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in requests))
    answers = [json.loads(line) for line in out.splitlines()]
    assert len(answers) == len([r for r in requests if r != ""]), (len(answers), out)
    return {a["id"] or a["line"]: a for a in answers}, p.returncode


def cases(program, *flags):
    quick = {"measure": False, "trials": 2}
    requests = [
        {"id": "timed", "problem": {"key": "level1/1_ReLU"}, "solution": GOOD, "metadata": {"row": [1, None]}},
        {"id": "wrong", "problem": "1/1", "solution": WRONG, "options": quick},
        "",
        {"id": "compile", "problem": "1_ReLU", "solution": BROKEN, "options": quick},
        {"id": "reply", "problem": "level1/1_ReLU", "solution": REPLY, "extract": True, "options": quick},
        {"id": "nothing", "problem": "level1/1_ReLU", "solution": "I do not know.", "extract": True, "options": quick},
        {"id": "text", "problem": {"code": PROBLEM % "0"}, "solution": GOOD, "options": quick},
        {"id": "other text", "problem": {"code": PROBLEM % "-1"}, "solution": GOOD, "options": quick},
        {"id": "made", "problem": "generated/7_3", "solution": BROKEN, "options": quick},
        {"id": "broken problem", "problem": {"code": "raise SystemError('no')"}, "solution": GOOD, "options": quick},
        "{broken",
        {"id": "no such", "problem": "level1/999", "solution": GOOD},
        {"id": "typo", "problem": "1/1", "solution": GOOD, "option": {}},
        {"id": "range", "problem": "1/1", "solution": GOOD, "options": {"trials": 0}},
        {"id": "config", "problem": "1/1", "solution": GOOD, "config": "other"},
        {"id": "both", "problem": {"key": "1/1", "code": "x"}, "solution": GOOD},
        {"id": "none", "problem": "1/1"},
        {"id": "zero", "problem": "1/1", "solution": "a\0b"},
    ]
    got, code = ask(program, requests, *flags)
    assert code == 1, code
    outcome = {name: a["verdict"]["outcome"] for name, a in got.items() if a["verdict"]}
    assert outcome == {
        "timed": "correct",
        "wrong": "wrong_output",
        "compile": "compile_error",
        "reply": "correct",
        "nothing": "no_kernel",
        "text": "correct",
        "other text": "wrong_output",
        "made": "compile_error",
    }, outcome
    assert got["timed"]["verdict"]["speedup"] > 0 and got["reply"]["verdict"]["speedup"] is None
    assert got["wrong"]["verdict"]["tests_total"] == 2
    assert got["timed"]["metadata"] == {"row": [1, None]} and got["timed"]["problem"] == "level1/1_ReLU"
    assert got["reply"]["format_ok"] and got["reply"]["thought_chars"] == 6 and not got["nothing"]["format_ok"]
    names = [a["verdict"]["answer"] for a in got.values() if a["verdict"]]
    assert len(set(names)) == len(names), names
    settings = {name: a["verdict"]["settings"] for name, a in got.items() if a["verdict"]}
    assert len(set(settings.values())) == 2 and settings["timed"] != settings["reply"] == settings["wrong"], settings
    # Without a verdict there is nothing that could be taken for a bad one.
    for name in ("broken problem", "no such", "typo", "range", "config", "both", "none", "zero", 11):
        assert got[name]["verdict"] is None and got[name]["reward"] is None and got[name]["error"], got[name]
    assert got["broken problem"]["status"] == "failed" and got["broken problem"]["error"]["code"] == "problem_error"
    assert [got[n]["error"]["param"] for n in ("no such", "typo", "range", "config", "both", "none", "zero")] == [
        "problem.key",
        "option",
        "options.trials",
        "config",
        "problem",
        "solution",
        "solution",
    ]
    assert got["typo"]["status"] == "refused"


def talk(program):
    p = start(program)
    for i in range(5):
        request = {
            "id": str(i),
            "problem": "1/1",
            "solution": GOOD + "// %d\n" % (i // 2),
            "options": {"measure": False},
        }
        p.stdin.write(json.dumps(request) + "\n")
        p.stdin.flush()
        answer = json.loads(p.stdout.readline())
        assert answer["id"] == str(i) and answer["verdict"]["correct"], answer
        assert answer["cached"] == (i % 2 == 1) == answer["verdict"]["cached"], answer
    request["force"] = True
    p.stdin.write(json.dumps(request) + "\n")
    p.stdin.close()
    assert json.loads(p.stdout.readline())["cached"] is False
    assert p.wait() == 0


def rewards(program, folder):
    config = folder + "/pay.yaml"
    with open(config, "w") as f:
        f.write(
            "dataset_builder:\n  reward_speed_weight: 0.3\n  reward_length_weight: 0.2\n  partial_correctness: true\n"
        )
    requests = [
        {"id": "a", "problem": "1/1", "solution": GOOD},
        {"id": "b", "problem": "1/1", "solution": WRONG},
        {"id": "c", "problem": "1/1", "solution": REPLY, "extract": True},
    ]
    for flags in ([], ["--config", config]):
        got, code = ask(program, requests, *flags)
        assert code == 0, code
        lines = "".join(json.dumps(a) + "\n" for a in got.values())
        scored = subprocess.run([program, "score", *flags], input=lines, capture_output=True, text=True, check=True)
        again = [json.loads(line) for line in scored.stdout.splitlines()]
        assert len(again) == 3
        for a, s in zip(got.values(), again):
            assert a["reward"]["total"] == s["reward"]["total"], (a["reward"], s["reward"])
        assert got["a"]["reward"]["total"] > got["b"]["reward"]["total"]
    # A configuration that pays by tokens has to be told them.
    with open(config, "a") as f:
        f.write("  overlong_buffer_tokens: 100\n  overlong_penalty: 0.5\nmax_tokens: 1000\n")
    with_tokens = dict(requests[0], id="d", tokens=1000)
    got, code = ask(program, [requests[0], with_tokens], "--config", config)
    assert got["a"]["status"] == "refused" and got["a"]["error"]["param"] == "tokens"
    assert got["d"]["reward"]["overlong"] == -1, got["d"]["reward"]


def fatal(program):
    """Problems that end the process they run in."""
    ends = "import os\nos._exit(3)\n"
    requests = [
        {"id": "first", "problem": "1/1", "solution": GOOD, "options": {"measure": False}},
        {"id": "fatal", "problem": {"code": ends}, "solution": GOOD, "options": {"measure": False}},
        {"id": "last", "problem": "1/1", "solution": WRONG, "options": {"measure": False}},
    ]
    got, code = ask(program, requests)
    assert code == 1
    assert got["first"]["verdict"]["correct"] and got["last"]["verdict"]["outcome"] == "wrong_output", got
    assert got["fatal"]["verdict"] is None and got["fatal"]["error"]["type"] == "no_verdict", got["fatal"]


def requests(_):
    print(json.dumps({"problem": "1/1", "solution": GOOD}))


if __name__ == "__main__":
    {"cases": cases, "talk": talk, "rewards": rewards, "fatal": fatal, "requests": requests}[sys.argv[2]](
        sys.argv[1], *sys.argv[3:]
    )
