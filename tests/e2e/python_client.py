#!/usr/bin/env python3
"""tests/e2e/python_client.py PROGRAM: the Python package against a server that it starts."""

import asyncio
import importlib
import json
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
kernelrl = importlib.import_module("kernelrl")  # found through the path set above

RELU = "void kernel(const float *restrict x, float *restrict out) { for (size_t i = 0; i < X_N; i++) out[i] = %s; }"
QUICK = {"measure": False, "trials": 2}

with kernelrl.local(program=sys.argv[1]) as client:
    good, wrong = (RELU % "x[i] > 0 ? x[i] : 0"), (RELU % "x[i]")
    job = client.verify("level1/1_ReLU", good, options=QUICK)
    assert job["verdict"]["correct"] and kernelrl.reward_of(job) > 0, job
    items = [{"problem": "1/1", "solution": s, "options": QUICK} for s in (wrong, good, wrong + "//")]
    items.append({"problem": {"code": "raise SystemError('no')"}, "solution": good, "options": QUICK})
    jobs = client.verify_many(items)
    assert [j["verdict"] and j["verdict"]["correct"] for j in jobs] == [False, True, False, None], jobs
    assert kernelrl.reward_of(jobs[3]) is None and jobs[1]["cached"]
    assert "level1/1_ReLU" in [p["key"] for p in client.problems()]
    try:
        client.verify("level1/999", good)
        raise SystemExit("a problem that is not there was judged")
    except kernelrl.Error as error:
        assert error.status == 404, error


async def beside(client):
    """Verdicts, a prompt and samples at once: the samples are those that are drawn alone."""
    many = kernelrl.AsyncClient(client)
    messages = await many.prompt("level1/1_ReLU")
    said = json.loads(subprocess.check_output([sys.argv[1], "problems", "prompt", "level1/1_ReLU", "--json"]))
    assert messages == said["messages"], messages
    how = {"model": "models/tiny", "seed": 3, "max_tokens": 40}
    alone = client.chat(messages, n=2, **how)
    assert len(alone) == 2 and all(alone), alone
    texts, text, job, problems = await asyncio.gather(
        many.chat(messages, n=2, **how),
        many.complete("def f(", **how),
        many.verify("1/1", RELU % "x[i] > 0 ? x[i] : 0", options=QUICK),
        many.problems(),
    )
    assert texts == alone and text == client.complete("def f(", **how) and job["verdict"]["correct"] and problems
    assert (await many.verify_many([{"problem": "1/1", "solution": "x", "options": QUICK}]))[0]["verdict"]
    many.close()


with kernelrl.local(program=sys.argv[1], model="models/tiny") as client:
    asyncio.run(beside(client))
