#!/usr/bin/env python3
"""tests/e2e/verdict_service.py PROGRAM PART FOLDER: what `kernelrl serve --verify-only` answers; see
verdict_service.sh."""

import atexit
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

from verify_lines import GOOD, PROBLEM, WRONG

QUICK = {"measure": False, "trials": 2}


class Server:
    def __init__(self, program, folder, *flags, env=None):
        self.log = open(f"{folder}/log", "a+")
        self.log.seek(0, os.SEEK_END)
        start = self.log.tell()
        self.process = subprocess.Popen(
            [program, "serve", "--port", "0", "--jobs", f"{folder}/jobs.sqlite", *flags],
            stderr=self.log,
            env=dict(os.environ, **(env or {})),
        )
        atexit.register(self.process.kill)
        for _ in range(1200):
            self.log.seek(start)
            found = re.search(r" is ready at (http://\S+)/v1", self.log.read())
            if found:
                self.url = found[1]
                return
            assert self.process.poll() is None, "the server ended"
            time.sleep(0.05)
        raise AssertionError("the server is not ready")

    def ask(self, method, path, body=None, headers=None):
        data = json.dumps(body).encode() if body is not None and not isinstance(body, bytes) else body
        request = urllib.request.Request(self.url + path, data=data, method=method)
        if data is not None:
            request.add_header("content-type", "application/json")
        for name, value in (headers or {}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=120) as reply:
                return reply.status, json.loads(reply.read() or b"null"), reply.headers
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read()), error.headers

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        return self.process.wait(timeout=120)


def request(solution, problem="level1/1_ReLU", **more):
    return {"problem": problem, "solution": solution, "options": QUICK, **more}


def until_done(server, name, kind="", seconds=600):
    for _ in range(seconds // 10):
        status, reply, _ = server.ask("GET", f"/v1/verify/{kind}{name}?wait=10")
        assert status in (200, 202), (status, reply)
        if status == 200:
            return reply
    raise AssertionError("not done")


def works(program, folder):
    server = Server(program, folder, "--verify-only")
    status, job, _ = server.ask("POST", "/v1/verify?wait=60", request(GOOD, metadata={"row": [1, None]}))
    assert status == 200 and job["status"] == "succeeded" and job["object"] == "verify.job", job
    assert job["verdict"]["correct"] and job["reward"]["total"] > 0 and job["attempts"] == 1 and not job["cached"], job
    assert job["metadata"] == {"row": [1, None]} and job["config"] == "default" and job["problem"] == "level1/1_ReLU"
    assert job["created_at"] <= job["started_at"] <= job["finished_at"], job
    again = server.ask("GET", "/v1/verify/" + job["id"])
    assert again[0] == 200 and again[1] == job
    # An equal answer is not judged twice, and `force` judges it.
    assert server.ask("POST", "/v1/verify?wait=60", request(GOOD))[1]["cached"]
    assert not server.ask("POST", "/v1/verify?wait=60", request(GOOD, force=True))[1]["cached"]
    # The same request with the same key is the same job; another one is refused.
    key = {"idempotency-key": "k1"}
    _, first, headers = server.ask("POST", "/v1/verify", request(WRONG), key)
    assert headers["idempotent-replayed"] is None
    _, second, headers = server.ask("POST", "/v1/verify?wait=60", request(WRONG), key)
    assert second["id"] == first["id"] and headers["idempotent-replayed"] == "true"
    assert second["verdict"]["outcome"] == "wrong_output", second
    status, error, _ = server.ask("POST", "/v1/verify", request(GOOD), key)
    assert status == 422 and error["error"]["code"] == "idempotency_key_reused", error
    # A timed one, and the text of a problem, which runs jailed.
    timed = server.ask("POST", "/v1/verify?wait=60", {"problem": "1/1", "solution": GOOD + "// timed"})[1]
    assert timed["verdict"]["speedup"] > 0, timed
    text = server.ask("POST", "/v1/verify?wait=60", request(GOOD, {"code": PROBLEM % "0"}))[1]
    assert text["verdict"]["correct"], text
    batch(server)
    status, problems, _ = server.ask("GET", "/v1/problems")
    assert status == 200 and len(problems["data"]) > 100 and "code" not in problems["data"][0]
    status, problem, _ = server.ask("GET", "/v1/problems/level1/1_ReLU")
    assert status == 200 and "class Model" in problem["code"] and problem["level"] == 1
    prompts(program, server)
    assert server.ask("GET", "/v1/verify/queue")[1]["queued"] == 0
    assert server.ask("GET", "/v1/verify/settings")[1]["configs"][0]["backend"] == "c"
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        metrics = reply.read().decode()
    assert re.search(r'kernelrl_verdicts_total\{class="correct"\} [1-9]', metrics), metrics
    assert server.end() == 0
    # A new process knows the verdicts of the old one.
    server = Server(program, folder, "--verify-only")
    assert server.ask("GET", "/v1/verify/" + job["id"])[1] == job
    known = server.ask("POST", "/v1/verify?wait=60", request(GOOD))[1]
    assert known["cached"] and known["verdict"]["settings"] == job["verdict"]["settings"], known
    assert server.end() == 0


def prompts(program, server):
    """A prompt is what `problems prompt` prints, for each backend."""
    route = "/v1/problems/level1/1_ReLU/prompt"
    for query, key in (("", None), ("?backend=triton", "backend=triton")):
        said = json.loads(
            subprocess.check_output([program, "problems", "prompt", "level1/1_ReLU", "--json"] + [key] * bool(key))
        )
        status, prompt, _ = server.ask("GET", route + query)
        assert status == 200 and prompt["object"] == "problem.prompt" and prompt["config"] == "default", prompt
        assert all(prompt[member] == said[member] for member in ("problem", "backend", "messages")), (prompt, said)
    assert server.ask("GET", route + "?backend=none")[0] == 400
    assert server.ask("GET", route + "?config=none")[0] == 404
    assert server.ask("GET", "/v1/problems/level1/999/prompt")[0] == 404


def batch(server):
    items = [request(GOOD + "// batch %d" % (i % 4), metadata=i) for i in range(8)] + [
        request(WRONG + "//", metadata=8)
    ]
    status, made, _ = server.ask("POST", "/v1/verify/batches", {"items": items})
    assert status == 202 and made["total"] == 9 and made["object"] == "verify.batch", made
    events = []
    with urllib.request.urlopen(f"{server.url}/v1/verify/batches/{made['id']}/events", timeout=120) as stream:
        for line in stream:
            if line.startswith(b"event:"):
                events.append(line.split()[1].decode())
    assert events.count("verdict") == 9 and events[-1] == "done", events
    done = until_done(server, made["id"], "batches/")
    assert done["counts"]["succeeded"] == 9 and done["status"] == "done", done
    seen, after = [], 0
    while True:
        page = server.ask("GET", f"/v1/verify/batches/{made['id']}/results?after={after}&limit=4")[1]
        seen += page["data"]
        after = page["next"]
        if page["done"]:
            break
    assert sorted(j["metadata"] for j in seen) == list(range(9)), seen
    assert all(j["index"] == j["metadata"] for j in seen)
    assert sum(not j["cached"] for j in seen) == 5, [j["cached"] for j in seen]  # four texts and the wrong one
    lines = "\n".join(json.dumps(i) for i in items[:3]).encode()
    status, made, _ = server.ask("POST", "/v1/verify/batches?wait=60", lines, {"content-type": "application/jsonl"})
    assert status == 200 and made["counts"]["succeeded"] == 3, made
    # Of what is cancelled nothing is judged, and what is over stays as it is.
    made = server.ask("POST", "/v1/verify/batches", {"items": [request(GOOD + f"// c{i}") for i in range(300)]})[1]
    status, gone, _ = server.ask("DELETE", f"/v1/verify/batches/{made['id']}")
    assert status == 200 and gone["counts"]["cancelled"] > 200 and gone["status"] == "done", gone
    one = server.ask("GET", f"/v1/verify/batches/{made['id']}/results?limit=1000")[1]["data"][-1]
    assert one["status"] == "cancelled" and one["verdict"] is None and one["reward"] is None and one["error"], one
    assert server.ask("POST", f"/v1/verify/{one['id']}/cancel")[1] == one


def refuses(program, folder):
    keys = {"KERNELRL_API_KEYS": "alpha,beta"}
    server = Server(program, folder, "--verify-only", "--problems", "known", "--max-jobs", "40", env=keys)
    alpha, beta = {"authorization": "Bearer alpha"}, {"authorization": "Bearer beta"}
    assert server.ask("POST", "/v1/verify", request(GOOD))[0] == 401
    for body, status, param in (
        (request(GOOD, "level1/999"), 404, "problem.key"),
        (request(GOOD, {"code": PROBLEM % "0"}), 403, "problem.code"),
        (request(GOOD, {"key": "1/1", "source": "/etc"}), 404, "problem.source"),
        (request(GOOD, typo=1), 400, "typo"),
        (request(GOOD, config="other"), 404, "config"),
        ({"problem": "1/1"}, 400, "solution"),
    ):
        got, error, _ = server.ask("POST", "/v1/verify", body, alpha)
        assert got == status and error["error"]["param"] == param, (got, error)
    got, error, _ = server.ask("POST", "/v1/verify", b"{broken", alpha)
    assert got == 400, error
    got, error, _ = server.ask("POST", "/v1/verify/batches", {"items": [request(GOOD), {"problem": "1/1"}]}, alpha)
    assert got == 400 and error["error"]["param"] == "items[1].solution", error
    assert server.ask("POST", "/v1/verify?wait=61", request(GOOD), alpha)[0] == 400
    assert server.ask("POST", "/v1/verify/batches", b"x", dict(alpha, **{"content-type": "text/plain"}))[0] == 415
    assert server.ask("GET", "/v1/verify/vj-nothing", None, alpha)[0] == 404
    assert server.ask("GET", "/v1/verify/vj-0000000100000000000000ff", None, alpha)[0] == 410
    assert server.ask("GET", "/v1/verify/queue", None, alpha)[1]["queued"] == 0
    # A full queue says when to come again; two keys take turns in it.
    many = {"items": [request(GOOD + f"// a{i}") for i in range(30)]}
    got, first, _ = server.ask("POST", "/v1/verify/batches", many, alpha)
    assert got == 202, first
    got, error, headers = server.ask("POST", "/v1/verify/batches", many, beta)
    assert got == 429 and int(headers["retry-after"]) >= 1, error
    assert server.end() == 0


def killed(program, folder):
    """kill -9 in the middle: no job is lost, each is judged, and what was begun twice is counted."""
    server = Server(program, folder, "--verify-only")
    items = [request(GOOD + f"// k{i}", metadata=i) for i in range(120)]
    made = server.ask("POST", "/v1/verify/batches", {"items": items})[1]
    while server.ask("GET", f"/v1/verify/batches/{made['id']}")[1]["counts"]["succeeded"] < 10:
        time.sleep(0.02)
    server.end(signal.SIGKILL)
    server = Server(program, folder, "--verify-only")
    done = until_done(server, made["id"], "batches/")
    assert done["counts"]["succeeded"] == 120 == done["total"], done
    results = server.ask("GET", f"/v1/verify/batches/{made['id']}/results?limit=1000")[1]["data"]
    assert sorted(j["metadata"] for j in results) == list(range(120))
    twice = sum(j["attempts"] == 2 for j in results)
    assert 0 <= twice <= 64 and all(j["attempts"] in (1, 2) for j in results), twice
    print(f"# {twice} of 120 were begun twice")
    # A second server may not have the same file.
    other = subprocess.run(
        [program, "serve", "--verify-only", "--port", "0", "--jobs", f"{folder}/jobs.sqlite"],
        capture_output=True,
        text=True,
    )
    assert other.returncode == 1 and "another server has this file" in other.stderr, other.stderr
    assert server.end() == 0


def aside(program, folder):
    """A model beside it: both work at once, and sampling gives the bits that it gives alone."""
    server = Server(program, folder, "--model", "models/tiny", "--verify")
    prompt = {"model": "models/tiny", "prompt": "def f(", "max_tokens": 200, "seed": 7, "ignore_eos": True}
    alone = server.ask("POST", "/v1/completions", prompt)[1]["choices"][0]["text"]
    made = server.ask(
        "POST", "/v1/verify/batches", {"items": [{"problem": "1/1", "solution": GOOD + f"//{i}"} for i in range(6)]}
    )
    for _ in range(3):
        assert server.ask("POST", "/v1/completions", prompt)[1]["choices"][0]["text"] == alone
    done = until_done(server, made[1]["id"], "batches/")
    assert done["counts"]["succeeded"] == 6, done
    with urllib.request.urlopen(server.url + "/metrics") as reply:
        metrics = reply.read().decode()
    assert float(re.search(r"(?m)^kernelrl_model_aside_seconds_total (\S+)$", metrics)[1]) > 0, metrics
    assert server.end() == 0


def response(*texts):
    """A response of a model, as NeMo-Gym has it."""
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {
        "output": [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": parts}]
    }


def nemo(server):
    """The server as a resources server of NeMo-Gym."""
    row = {
        "responses_create_params": {"input": [{"role": "user", "content": "Write a kernel."}]},
        "verifier_metadata": {"problem": "level1/1_ReLU", "options": QUICK},
        "own": {"index": 3},
    }
    reply = "Here.\n<KERNEL>\n```c\n%s```\n</KERNEL>\n"
    assert server.ask("POST", "/seed_session", row)[:2] == (200, {})
    assert server.ask("GET", "/reverify_mode")[:2] == (200, "stateless")
    replies = []
    for said in (response(*(reply % GOOD).partition("<KERNEL>")), response(reply % WRONG), response()):
        status, got, _ = server.ask("POST", "/verify", {**row, "response": said})
        assert status == 200 and got["response"] == said and all(got[k] == row[k] for k in row), got
        replies.append(got)
    good, wrong, none = replies
    assert good["correct"] is True and good["verdict"]["outcome"] == "correct", good
    assert wrong["correct"] is False and wrong["compiled"] is True and none["verdict"]["outcome"] == "no_kernel"
    assert good["reward"] > wrong["reward"] > none["reward"] >= 0 and good["reward_components"]["correct"] == 1, replies
    status, means, _ = server.ask("POST", "/aggregate_metrics", {"verify_responses": replies})
    assert status == 200 and abs(means["key_metrics"]["mean/correct"] - 1 / 3) < 1e-9, means
    # What has no verdict gets no reward, and what cannot be judged is refused.
    broken = {**row, "verifier_metadata": {"problem": {"code": "raise SystemError('no')"}, "options": QUICK}}
    status, error, _ = server.ask("POST", "/verify", {**broken, "response": response(reply % GOOD)})
    assert status == 503 and error["error"]["code"] == "no_verdict" and "reward" not in error, error
    for about, said, status, param in (
        ({"problem": "level1/999"}, response("x"), 404, "problem.key"),
        ({"problem": "1/1", "typo": 1}, response("x"), 400, "typo"),
        ({"problem": "1/1"}, {"output": "x"}, 400, "response"),
    ):
        got, error, _ = server.ask("POST", "/verify", {**row, "verifier_metadata": about, "response": said})
        assert got == status and error["error"]["param"] == param, error


def kernel_gym(server):
    """The server as one of KernelGYM: submit, poll, fetch, as its client does."""
    known = server.ask("GET", "/v1/problems/level1/1_ReLU")[1]["code"]

    def task(name, kernel, reference=known, **more):
        codes = {"task_id": name, "reference_code": "\n" + reference + "\n", "kernel_code": kernel}
        return {**codes, "backend": "c", "num_correct_trials": 2, "run_performance": False, "timeout": 100, **more}

    status, got, _ = server.ask("POST", "/evaluate", task("t-good", GOOD, run_performance=True, force_refresh=True))
    assert status == 200 and got["status"] == "completed" and got["correctness"] and got["compiled"], got
    assert (
        got["speedup"] > 0 and got["kernel_runtime"] > 0 and got["reference_runtime"] > 0 and got["task_id"] == "t-good"
    )
    assert not got["decoy_kernel"] and got["error_message"] is None and got["processing_time"] > 0
    job = server.ask("GET", "/v1/verify/" + got["metadata"]["job"])[1]
    assert job["problem"] == "level1/1_ReLU" and job["verdict"] == got["metadata"]["verdict"], job  # known by its text
    assert server.ask("GET", "/status/t-good")[1]["status"] == "completed"
    assert server.ask("GET", "/results/t-good")[:2] == (200, got)
    # The same task again is the same job; another one under its name is refused.
    again = server.ask("POST", "/evaluate", task("t-good", GOOD, run_performance=True, force_refresh=True))[1]
    assert again == got, again
    assert server.ask("POST", "/evaluate", task("t-good", WRONG))[0] == 409
    # A text that is not known runs jailed; an answer that is wrong is completed, one without a verdict has failed.
    batch = {
        "batch_id": "b1",
        "tasks": [
            task("t-wrong", WRONG),
            task("t-jailed", GOOD, PROBLEM % "0"),
            task("t-missing", GOOD, "raise SystemError('no')"),
        ],
    }
    status, got, _ = server.ask("POST", "/evaluate/batch", batch)
    assert status == 200 and got["batch_status"] == "completed" and got["batch_id"] == "b1", got
    assert (got["total_tasks"], got["completed_tasks"], got["failed_tasks"]) == (3, 2, 1), got
    wrong, jailed, missing = got["results"]
    assert [one["task_id"] for one in got["results"]] == ["t-wrong", "t-jailed", "t-missing"], got
    assert wrong["status"] == "completed" and wrong["correctness"] is False and wrong["error_message"], wrong
    assert jailed["correctness"] is True and missing["status"] == "failed" and missing["correctness"] is None, missing
    failed = server.ask("GET", "/status/t-missing")[1]
    assert failed["status"] == "failed" and failed["error_message"], failed
    assert server.ask("POST", "/evaluate/batch", batch)[1]["results"][0] == wrong
    for path in ("/status/none", "/results/none"):
        assert server.ask("GET", path)[0] == 404
    assert server.ask("DELETE", "/tasks/none")[0] == 404
    assert server.ask("DELETE", "/tasks/t-wrong")[1]["status"] == "completed"
    got, error, _ = server.ask("POST", "/evaluate", task("t-x", GOOD, precision="bf16"))
    assert got == 400 and error["error"]["param"] == "precision", error
    got, error, _ = server.ask("POST", "/evaluate/batch", {"batch_id": "b2", "tasks": [task("t-y", GOOD, backend="x")]})
    assert got == 400 and error["error"]["param"] == "tasks[0].backend", error


def gyms(program, folder):
    server = Server(program, folder, "--verify-only")
    nemo(server)
    kernel_gym(server)
    assert server.end() == 0


if __name__ == "__main__":
    {"works": works, "refuses": refuses, "killed": killed, "aside": aside, "gyms": gyms}[sys.argv[2]](
        sys.argv[1], sys.argv[3]
    )
