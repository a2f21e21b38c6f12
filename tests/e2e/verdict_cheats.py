#!/usr/bin/env python3
"""tests/e2e/verdict_cheats.py PROGRAM FOLDER [all]: the catalogue of cheats through `kernelrl serve --verify-only`.

Each answer comes with the text of its problem, as from a stranger, so that the problem runs jailed. The outcome must
be one that expected.tsv lists, as for the verifier itself. A problem that tries to get out reaches nothing, either.
Without `all` these are the answers in C that no clock is needed for; with it, all answers in C and for PyTorch on the
CPU, timed: a quarter of an hour."""

import os
import re
import socket
import sys

from verdict_service import Server, until_done

CLOCK = re.compile(r"unstable|hidden_work|too_fast|timeout|<")
RELU = "void kernel(const float *restrict x, float *restrict out) { for (size_t i = 0; i < X_N; i++) out[i] = %s; }"
OPTIONS = {"measure": False}


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def rows(folder, ending, everything):
    """(name, problem, outcomes) of answers."""
    for line in read(f"{folder}/expected.tsv").splitlines():
        if line.startswith("#") or not line.strip():
            continue
        name, problem, outcomes = line.split("\t")[:3]
        if name.endswith(ending) and (everything or not CLOCK.search(outcomes)):
            yield name, problem, outcomes


def listed(outcomes, verdict):
    for one in outcomes.split("|"):
        name, _, limit = one.partition("<")
        if name == verdict["outcome"] and (not limit or (verdict["speedup"] or 0) < float(limit)):
            return True
    return False


def ask(folder, backend, row, everything):
    name, problem, _ = row
    asked = {"problem": {"code": read(f"tests/cheats/problems/{problem}.py")}, "solution": read(f"{folder}/{name}")}
    return {**asked, "backend": backend, "metadata": name, "options": {} if everything else OPTIONS}


def outcomes_of(server, items):
    """Verdicts by metadata, and the jobs without one."""
    status, made, _ = server.ask("POST", "/v1/verify/batches", {"items": items})
    assert status == 202, made
    until_done(server, made["id"], "batches/", seconds=7200)
    jobs = server.ask("GET", f"/v1/verify/batches/{made['id']}/results?limit=1000")[1]["data"]
    assert len(jobs) == len(items)
    return {job["metadata"]: job for job in jobs}


def judge(server, folder, backend, ending, everything):
    wanted = list(rows(folder, ending, everything))
    jobs = outcomes_of(server, [ask(folder, backend, row, everything) for row in wanted])
    wrong = []
    for name, problem, outcomes in wanted:
        job = jobs[name]
        verdict = job["verdict"] or {"outcome": job["error"]["code"], "speedup": None}
        if not listed(outcomes, verdict):
            wrong.append(f"{name} ({problem}): {verdict}, expected {outcomes}")
        if not job["verdict"]:
            assert job["reward"] is None, job
    print(f"# {folder}: {len(wanted)} answers, {len(wrong)} not as expected")
    assert not wrong, "\n".join(wrong)
    return len(wanted)


def hostile(server, folder):
    """What tries to get out is an ordinary ReLU where nothing of it worked."""
    with open(f"{folder}/secret", "w", encoding="utf-8") as f:
        f.write("secret")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        text = read("tests/cheats/problems/hostile.py")
        text = text.replace("@SECRET_FILE@", f"{folder}/secret").replace("@PORT@", str(listener.getsockname()[1]))
        kernels = {"good": RELU % "x[i] > 0 ? x[i] : 0", "bad": RELU % "x[i] > 0 ? x[i] : 1"}
        quick = {"measure": False, "trials": 2}
        items = [
            {"problem": {"code": text}, "solution": kernel, "metadata": name, "options": quick}
            for name, kernel in kernels.items()
        ]
        jobs = outcomes_of(server, items)
    assert jobs["good"]["verdict"] and jobs["good"]["verdict"]["correct"], jobs["good"]
    assert jobs["bad"]["verdict"]["outcome"] == "wrong_output", jobs["bad"]


def main():
    program, folder, everything = sys.argv[1], sys.argv[2], sys.argv[3:] == ["all"]
    with open(f"{folder}/cheats.yaml", "w", encoding="utf-8") as f:
        f.write("sandbox:\n  run_timeout_s: 3\n")  # as expected.tsv has it
    server = Server(
        program, folder, "--verify-only", "--verify-config", f"{folder}/cheats.yaml", env={"FAKE_TOKEN": "1"}
    )
    assert judge(server, "tests/cheats/c", "c", ".c", everything) > 10
    if everything:
        assert judge(server, "tests/cheats", "torch_cpu", ".py", True) > 50
    os.chmod(folder, 0o755)
    hostile(server, folder)
    assert server.end() == 0


if __name__ == "__main__":
    main()
