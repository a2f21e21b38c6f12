"""A server of the Tinker protocol under what a busy day brings: `tinker_load.py PORT PID SECONDS`. 1,000 polls wait all
the time, 40 models are trained with bodies of 5 MB, and sampled. Prints TAP: no call fails, and the memory of the
server's process (PID) stays below what its limits add up to."""

import asyncio
import json

import sys
import time

from tinker_client import Client, datum, field

PORT, PID, SECONDS = int(sys.argv[1]), sys.argv[2], float(sys.argv[3])
MODEL, MODELS, POLLS, WORKERS = "models/tiny", 40, 1000, 4
counts = {"polls": 0, "bodies": 0, "steps": 0, "samples": 0, "later": 0}
errors, memory = [], []


def resident():
    """Bytes of the server's own memory, without files that it maps, such as a log of calls: they are the kernel's."""
    with open(f"/proc/{PID}/status", encoding="utf-8") as f:
        return next(1024 * int(line.split()[1]) for line in f if line.startswith("RssAnon"))


def large(salt):
    """What a body of 5 MB has behind its model and number. It is little work: most of it says where tokens came from,
    which the loss does not ask for."""
    tokens = [5 + (7 * i + salt) % 2000 for i in range(64)]
    span = field(3, field(2, field(1, b"s" * 1000) + field(3, 1)))
    text = datum(tokens[:-1], tokens[1:], [1.0] * 63, [63]) + span * 5000
    return field(3, text) + field(4, b"cross_entropy")


async def ask(path, body):
    """Status and body of one call, on a connection of its own."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "x-protobuf" if isinstance(body, bytes) else "json"
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        writer.write(
            f"POST /api/v1/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
        )
        writer.write(data)
        await writer.drain()
        answer = await reader.read()
    finally:
        writer.close()
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


async def sure(path, body, until):
    """The answer of a call that may be told to come back."""
    while True:
        status, answer = await ask(path, body)
        if status == 200:
            return answer
        if status not in (408, 429, 503) or time.monotonic() > until + 120:
            errors.append(f"{path}: {status} {answer[:200]}")
            return b"{}"
        counts["later"] += status != 408
        await asyncio.sleep(0.2)


async def poll(gaps, until):
    while time.monotonic() < until:
        status, answer = await ask("retrieve_future", {"request_id": gaps[-1]})
        counts["polls"] += 1
        if status != 408:
            errors.append(f"a poll: {status} {answer[:200]}")


async def learn(models, texts, until):
    """Trains and samples its models in turn."""
    seqs = {m: 1 for m in models}
    while time.monotonic() < until:
        for m in models:
            session, seq = m.split(":")[0], seqs[m]
            body = field(1, m.encode()) + field(2, seq) + texts[seq % len(texts)]
            adam = {"model_id": m, "seq_id": seq + 1, "adam_params": {"learning_rate": 1e-4}}
            number = int(m.split(":")[2]) * 100000 + seq
            sampler = {"model_id": m, "seq_id": seq + 2, "sampling_session_seq_id": number}
            calls = ("forward_backward", body), ("optim_step", adam), ("save_weights_for_sampler", sampler)
            for path, what in calls:
                promise = json.loads(await sure(path, what, until)).get("request_id")
                answer = await sure("retrieve_future", {"request_id": promise}, until)
                if b'"error"' in answer[:20]:
                    errors.append(f"{path}: {answer[:200]}")
            asked = {"sampling_session_id": f"{session}:sample:{number}", "seq_id": 0, "num_samples": 2}
            asked["prompt"] = {"chunks": [{"type": "encoded_text", "tokens": [5, 6, 7, seq % 2000]}]}
            asked["sampling_params"] = {"max_tokens": 8}
            promise = json.loads(await sure("asample", asked, until)).get("request_id")
            await sure("retrieve_future", {"request_id": promise}, until)
            seqs[m] += 3
            for k in "bodies", "steps", "samples":
                counts[k] += 1
            if time.monotonic() > until:
                return


async def watch(until):
    while time.monotonic() < until:
        memory.append(resident())
        await asyncio.sleep(0.5)


async def move_gap(gaps, open_gap, until):
    """A call waits ten minutes for the one in front of it, and then fails; so polls move on to another one in time."""
    while time.monotonic() + 300 < until:
        await asyncio.sleep(300)
        gaps.append(await asyncio.to_thread(open_gap))


async def load(models, gaps, open_gap):
    until = time.monotonic() + SECONDS
    texts = [large(salt) for salt in range(2)]
    work = [poll(gaps, until) for _ in range(POLLS)] + [move_gap(gaps, open_gap, until)]
    work += [learn(models[w::WORKERS], texts, until) for w in range(WORKERS)]
    await asyncio.gather(watch(until), *work)


def report(name, holds, what):
    report.n += 1
    print(f"{'ok' if holds else 'not ok'} {report.n} - {name}\n# {what}")


report.n = 0
client = Client(PORT)
session = json.loads(client.call("create_session", {"tags": []}))["session_id"]


def new_model(number):
    what = {"session_id": session, "model_seq_id": number, "base_model": MODEL}
    what["lora_config"] = {"rank": 4, "seed": number}
    return json.loads(client.result(client.promise("create_model", what)))["model_id"]


def open_gap():
    """A step that waits for the call in front of it, which does not come."""
    open_gap.made += 1
    model = new_model(MODELS + open_gap.made)
    return client.promise("optim_step", {"model_id": model, "seq_id": 2, "adam_params": {}})


open_gap.made = 0
asyncio.run(load([new_model(k) for k in range(MODELS)], [open_gap()], open_gap))
report("no call fails", not errors, errors[:3] or counts)
report("there were polls, bodies and samples", min(counts["polls"], counts["bodies"], counts["samples"]) > 0, counts)
most = max(memory)
report("the server's memory is bounded", most < 1.5e9, f"{most / 1e6:.0f} MB at most, {memory[0] / 1e6:.0f} at first")
print("# MB, each tenth of the time: " + " ".join(f"{v / 1e6:.0f}" for v in memory[:: max(1, len(memory) // 10)]))
if SECONDS >= 300:  # long enough for what has a limit to fill it
    middle = len(memory) // 2
    first, second = max(memory[:middle]), max(memory[middle:])
    report(
        "and does not grow in the second half", second <= 1.15 * first, f"{second / first:.2f} times the first half's"
    )
print(f"1..{report.n}")
