"""How long a short request waits while another client sends large bodies: `tinker_delay.py PORT`, on the port of a
`kernelrl serve --model models/tiny --tinker DIR --max-body 67108864`. No call is computed: each waits for one in front
of it, or asks for too long an answer. For each kind of body it prints the longest delays, one for each body, in ms."""

import http.client
import json
import multiprocessing
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../tests/faults"))
from tinker_client import Client, datum, field  # noqa: E402

PORT, MB = int(sys.argv[1]), 1 << 20
client = Client(PORT)


def short_requests(stop, out):
    """Asks every 2 ms on one connection; what it puts is the seconds that each took."""
    connection, took = http.client.HTTPConnection("127.0.0.1", PORT, timeout=100), []
    while not stop.is_set():
        begin = time.perf_counter()
        connection.request("GET", "/api/v1/healthz")
        connection.getresponse().read()
        took.append(time.perf_counter() - begin)
        time.sleep(0.002)
    out.put(took)


def texts(model, seq, size):
    """Texts of 1,000 tokens with 16 bytes each."""
    tokens = [5 + (7 * i + seq) % 2000 for i in range(1001)]
    text = field(3, datum(tokens[:-1], tokens[1:], [1.0] * 1000, [1000]))
    return field(1, model.encode()) + field(2, seq) + text * (size // len(text)) + field(4, b"cross_entropy")


def packed(model, seq, size):
    return subprocess.run(["zstd", "-qc"], input=texts(model, seq, size), stdout=subprocess.PIPE, check=True).stdout


def prompt(session, seq, size):
    tokens = [5 + k % 2000 for k in range(size // 6)]
    what = {"sampling_session_id": f"{session}:sample:0", "seq_id": seq, "num_samples": 1}
    return json.dumps(what | {"prompt": {"chunks": [{"type": "encoded_text", "tokens": tokens}]}}).encode()


def send(path, kind, body):
    connection = http.client.HTTPConnection("127.0.0.1", PORT, timeout=100)
    connection.request("POST", f"/api/v1/{path}", body, kind)
    answer = connection.getresponse()
    if answer.status != 200:
        sys.exit(f"{path}: {answer.status} {answer.read()[:200]}")
    connection.close()


def measure(name, path, kind, bodies):
    stop, out = multiprocessing.Event(), multiprocessing.Queue()
    other = multiprocessing.Process(target=short_requests, args=(stop, out))
    other.start()
    for body in bodies:
        send(path, kind, body)
        time.sleep(0.1)
    stop.set()
    took = sorted(out.get())
    other.join()
    longest = " ".join(f"{1e3 * s:.0f}" for s in took[: -len(bodies) - 1 : -1])
    print(f"{name}: {longest}; the median of {len(took)} is {1e3 * took[len(took) // 2]:.2f}", flush=True)


session = json.loads(client.call("create_session", {"tags": []}))["session_id"]
made = {"session_id": session, "model_seq_id": 0, "base_model": "models/tiny", "lora_config": {"rank": 4, "seed": 1}}
model = json.loads(client.result(client.promise("create_model", made)))["model_id"]
base = {"session_id": session, "sampling_session_seq_id": 0, "base_model": "models/tiny"}
client.call("create_sampling_session", base)
proto, seq = {"Content-Type": "application/x-protobuf"}, 1
for size, n in (5, 8), (15, 4), (50, 3):
    numbers = range(seq + 1, seq + 1 + 3 * n)
    seq += 3 * n
    for k, (name, path, kind, make, of) in enumerate(
        (
            ("texts", "forward_backward", proto, texts, model),
            ("texts, packed", "forward_backward", proto | {"Content-Encoding": "zstd"}, packed, model),
            ("tokens as JSON", "asample", {"Content-Type": "application/json"}, prompt, session),
        )
    ):
        measure(f"{size} MB of {name}", path, kind, [make(of, i, size * MB) for i in numbers[k * n : (k + 1) * n]])
