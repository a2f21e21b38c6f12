"""What the tests of `kernelrl serve` share: starting and stopping it, requests, streams, TAP lines."""

import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback

KRL = os.environ.get("KERNELRL", "build/kernelrl")
MODEL = "models/tiny"
count = failures = 0


def check(name, fn):
    """Runs fn; prints a TAP line. Words of the command line: only checks whose names have one of them."""
    global count, failures
    if sys.argv[1:] and not any(a in name for a in sys.argv[1:]):
        return
    count += 1
    from_ = time.monotonic()
    try:
        fn()
        print(f"ok {count} - {name}", flush=True)
        print(f"# {time.monotonic() - from_:.1f} s", flush=True)
    except Exception:
        failures += 1
        print(f"not ok {count} - {name}", flush=True)
        for line in traceback.format_exc().splitlines()[-12:]:
            print("#", line[:600], flush=True)


def finish():
    print(f"1..{count}")
    sys.exit(failures > 0)


class Server:
    """A server on a free port. log: what it has said so far."""

    def __init__(self, *flags, model=MODEL, env=None, wait=True):
        self.flags = flags
        port = [] if "--port" in flags else ["--port", "0"]
        command = [KRL, "serve", *port] + (["--model", model] if model else []) + list(flags)
        self.log_path = os.path.join(os.environ["tmp"], f"serve-{time.monotonic_ns()}.log")
        self.process = subprocess.Popen(
            command, stderr=open(self.log_path, "w"), env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL
        )
        self.port = None
        if wait:
            self.wait_ready()

    @property
    def log(self):
        with open(self.log_path) as f:
            return f.read()

    def wait_port(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.search(r"listening at http://\S+:(\d+)$", self.log, re.M)
            if found:
                self.port = int(found.group(1))
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise AssertionError("no port: " + self.log)

    def wait_ready(self):
        self.wait_port()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            if self.get("/health")[0] == 200:
                return
            time.sleep(0.02)
        raise AssertionError("not ready: " + self.log)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def raw(self, method, path, body=None, headers=None):
        c = self.connect()
        h = dict(headers or {})
        data = None
        if body is not None:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            h.setdefault("Content-Type", "application/json")
        c.request(method, path, data, h)
        r = c.getresponse()
        out = r.read()
        c.close()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, out

    def get(self, path, **k):
        return self.raw("GET", path, **k)

    def post(self, path, body, headers=None, status=200):
        """The JSON of a reply, which must have that status."""
        got, head, out = self.raw("POST", path, body, headers)
        assert got == status, (got, out[:400])
        return json.loads(out) if "json" in head.get("content-type", "") else out.decode()

    def error(self, path, body, status, headers=None):
        got, head, out = self.raw("POST", path, body, headers)
        e = json.loads(out)["error"]
        assert got == status and set(e) == {"message", "type", "param", "code"} and e["message"], (got, out)
        return e

    def stream(self, path, body):
        """The chunks of a stream, which must end as one should."""
        c = self.connect()
        c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200, (r.status, r.read()[:400])
        assert r.getheader("content-type").startswith("text/event-stream")
        text = r.read().decode()
        c.close()
        assert text.endswith("data: [DONE]\n\n")
        events = [e for e in text.split("\n\n") if e and not e.startswith(":")]
        assert all(e.startswith("data: ") for e in events)
        return [json.loads(e[6:]) for e in events[:-1]]

    def metric(self, name):
        text = self.get("/metrics")[2].decode()
        values = [
            float(line.split()[-1]) for line in text.splitlines() if line.startswith(name) and line[len(name)] in " {,}"
        ]
        assert values, name
        return sum(values)

    def wait_metric(self, name, value, seconds=90):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.metric(name) == value:
                return
            time.sleep(0.02)
        raise AssertionError((name, self.metric(name), value))

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def send(self, path, body, headers=""):
        """A socket on which a request was sent, and nothing read."""
        s = self.socket()
        data = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{headers}"
        s.sendall(head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data)
        return s

    def stop(self, sig=signal.SIGTERM, seconds=60):
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(seconds)


def without_ids(o):
    """A reply without what differs from one time to the next."""
    return {k: v for k, v in o.items() if k not in ("id", "created", "request_id")}


def write_adapter(folder, seed, rank=4, base=MODEL, scale=0.05):
    """A PEFT adapter for the embedded model with random weights."""
    import random

    os.makedirs(folder, exist_ok=True)
    c = json.load(open(os.path.join(base, "config.json")))
    d, f, k = c["hidden_size"], c["intermediate_size"], c["head_dim"]
    q, kv = c["num_attention_heads"] * k, c["num_key_value_heads"] * k
    sites = {
        "self_attn.q_proj": (d, q),
        "self_attn.k_proj": (d, kv),
        "self_attn.v_proj": (d, kv),
        "self_attn.o_proj": (q, d),
        "mlp.gate_proj": (d, f),
        "mlp.up_proj": (d, f),
        "mlp.down_proj": (f, d),
    }
    rng = random.Random(seed)
    header, data = {}, bytearray()
    for layer in range(c["num_hidden_layers"]):
        for site, (inner, outer) in sites.items():
            for part, shape in (("A", (rank, inner)), ("B", (outer, rank))):
                n = shape[0] * shape[1]
                values = struct.pack(f"<{n}f", *(rng.uniform(-scale, scale) for _ in range(n)))
                name = f"base_model.model.model.layers.{layer}.{site}.lora_{part}.weight"
                header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(values)]}
                data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "adapter_model.safetensors.new"), "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text + data)
    os.replace(out.name, out.name[:-4])
    json.dump(
        {
            "peft_type": "LORA",
            "r": rank,
            "lora_alpha": 2 * rank,
            "target_modules": [s.split(".")[1] for s in sites],
            "base_model_name_or_path": base,
            "bias": "none",
            "task_type": "CAUSAL_LM",
        },
        open(os.path.join(folder, "adapter_config.json"), "w"),
    )
