#!/usr/bin/env python3
"""bench/serve_table.py [WORD...]: what is demanded of `kernelrl serve` with the embedded model on two cores, and what
is seen: a table, a row a demand. With words only rows whose names have one of them. `make all` builds what it needs.
Rates
of the engine and of the server are taken in turns, so that a busy machine does not decide; latencies need an idle one.
All rows take some 20 minutes."""

import json
import os
import re
import resource
import select
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
os.chdir(ROOT)
sys.path.insert(0, "tests/e2e")
os.environ.setdefault("tmp", tempfile.mkdtemp())
from serve_client import KRL, MODEL, Server, without_ids, write_adapter  # noqa: E402

TMP = os.environ["tmp"]
PROMPT = list(range(100, 228))
LONG = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True}
QUIET = ("--access-log", "off")
rows = []


def row(name, demanded):
    """Registers a row; what it returns is what was seen: (text, whether the demand is met)."""

    def take(fn):
        rows.append((name, demanded, fn))
        return fn

    return take


def run_json(*command):
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])


def load(server, *flags):
    """kernelrl bench serve against a server: its JSON."""
    usual = {"--input-len": "128", "--output-len": "128"}
    usual = [w for k, v in usual.items() if k not in flags for w in (k, v)]
    command = [KRL, "bench", "serve", "--port", str(server.port), *usual, "--ignore-eos", "--json", *flags]
    r = subprocess.run(command, capture_output=True, text=True)
    assert r.stdout, r.stderr[-500:]
    return {**json.loads(r.stdout), "exit": r.returncode, "stderr": r.stderr}


def percentile(v, p):
    v = sorted(v)
    return v[min(len(v) - 1, int(p * len(v)))]


def rss(server):
    for line in open(f"/proc/{server.process.pid}/status"):
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024


def descriptors(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def thread_seconds(server):
    """Processor time of the server's main thread, which speaks HTTP."""
    pid = server.process.pid
    fields = open(f"/proc/{pid}/task/{pid}/stat").read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pipelined(server, request, n, batch=64):
    """Requests a second over one connection that sends them in batches."""
    s = server.socket()
    from_, done = time.monotonic(), 0
    while done < n:
        s.sendall(request * batch)
        got, text = 0, b""
        while got < batch:
            text += s.recv(1 << 18)
            got = text.count(b"HTTP/1.1 200")
            assert b"HTTP/1.1 4" not in text
        while not (text.endswith(b"}") or text.endswith(b"\n")):
            text += s.recv(1 << 16)
        done += batch
    s.close()
    return n / (time.monotonic() - from_)


def post_bytes(path, body):
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {len(data)}\r\n\r\n".encode() + data


# ---- rates and latencies -----------------------------------------------------------------------------------------


@row("throughput at 64 streams, 128 in, 128 out", ">= 95 % of the engine's own tokens/s (pairs, median)")
def throughput():
    s = Server(*QUIET)
    ratios = []
    for i in range(5):
        engine = run_json("build/bench/serve", MODEL, "64", "128", "128")["tokens_per_s"]
        served = load(s, "--num-prompts", "64", "--seed", str(100 + i))["output_throughput"]
        ratios.append(served / engine)
    s.stop()
    m = statistics.median(ratios)
    return f"{100 * m:.1f} % ({', '.join(f'{100 * r:.0f}' for r in ratios)})", m >= 0.95


@row("serve's cost of a streamed token", "<= 8 us of processor time; <= 20 us with 5 log-probabilities")
def cost():
    s = Server(*QUIET)
    seen = []
    for extra in ("{}", '{"logprobs": 5}'):
        load(s, "--num-prompts", "64", "--seed", "1", "--extra-body", extra)
        before = thread_seconds(s)
        tokens = load(s, "--num-prompts", "192", "--seed", "2", "--extra-body", extra)["total_output_tokens"]
        seen.append((thread_seconds(s) - before) / tokens * 1e6)
    s.stop()
    return f"{seen[0]:.1f} us; {seen[1]:.1f} us", seen[0] <= 8 and seen[1] <= 20


@row("the HTTP layer's latency of a token, 200 streams", "p50 <= 0.1 ms, p99 <= 1 ms; one stream likewise")
def sse():
    one, many = run_json("build/bench/http", "1", "5", "5"), run_json("build/bench/http", "200", "20", "5")
    text = "; ".join(f"{r['streams']} at once: p50 {r['p50_ms']:.2f}, p99 {r['p99_ms']:.2f} ms" for r in (one, many))
    return text, many["p50_ms"] <= 0.1 and many["p99_ms"] <= 1


@row("200 streams for 60 s", "no error, each equal to its unstreamed twin")
def two_hundred():
    s = Server(*QUIET)
    n, from_ = 400, time.monotonic()
    total = failed = differ = 0
    while time.monotonic() - from_ < 60:
        r = load(s, "--num-prompts", str(n), "--max-concurrency", "200", "--seed", str(total), "--verify", "100")
        total += r["completed"]
        failed += r["failed"]
        differ += r["different_answers"]
    s.stop()
    return (
        f"{total} streams in {time.monotonic() - from_:.0f} s, {failed} failed, {differ} differ",
        failed + differ == 0,
    )


@row("1,000 streams at once", "no error; the queue holds them")
def thousand():
    s = Server(*QUIET)
    r = load(s, "--num-prompts", "1000", "--output-len", "16", "--seed", "7")
    s.stop()
    return f"{r['completed']} complete, {r['failed']} failed", r["completed"] == 1000


@row("time to the first token, one stream, 128 in", "p50 <= prefill + 2 ms, p99 <= prefill + 5 ms")
def first_token():
    s = Server(*QUIET)
    alone = 1e3 / run_json("build/bench/serve", MODEL, "1", "128", "1", "300")["tokens_per_s"]
    r = load(s, "--num-prompts", "300", "--max-concurrency", "1", "--output-len", "1", "--seed", "3")
    s.stop()
    p50, p99 = r["median_ttft_ms"] - alone, r["p99_ttft_ms"] - alone
    return f"prefill {alone:.2f} ms, p50 + {p50:.2f} ms, p99 + {p99:.2f} ms", p50 <= 2 and p99 <= 5


@row("time to the first token, 64 streams, steady", "p99 <= 3 times p50")
def first_token_steady():
    s = Server(*QUIET)
    r = load(
        s, "--num-prompts", "600", "--max-concurrency", "64", "--output-len", "64", "--seed", "4", "--num-warmups", "64"
    )
    s.stop()
    ratio = r["p99_ttft_ms"] / r["median_ttft_ms"]
    return f"p50 {r['median_ttft_ms']:.0f} ms, p99 {ratio:.1f} times that", ratio <= 3


@row("/health over one connection, pipelined", ">= 20,000 a second")
def health_rate():
    s = Server(*QUIET)
    rate = pipelined(s, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", 40000)
    s.stop()
    return f"{rate:,.0f} a second", rate >= 20000


@row("/health while 64 streams decode", "p99 <= 5 ms")
def health_under_load():
    s = Server(*QUIET)
    streams = [s.send("/v1/completions", {**LONG, "stream": True}) for _ in range(64)]
    drain = threading.Thread(target=drain_all, args=(streams,), daemon=True)
    drain.start()
    s.wait_metric("kernelrl_sequences_running", 64)
    c, times = s.socket(), []
    for _ in range(1000):
        t = time.monotonic()
        c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        c.recv(4096)
        times.append(1e3 * (time.monotonic() - t))
        time.sleep(0.002)
    s.stop(signal.SIGKILL)
    return f"p50 {percentile(times, 0.5):.2f} ms, p99 {percentile(times, 0.99):.2f} ms", percentile(times, 0.99) <= 5


def drain_all(sockets):
    import select

    live = list(sockets)
    while live:
        for c in select.select(live, [], [], 1)[0]:
            try:
                if not c.recv(1 << 16):
                    live.remove(c)
            except OSError:
                live.remove(c)


@row("/tokenize of 1 KB", ">= 5,000 a second")
def tokenize_rate():
    s = Server(*QUIET)
    text = open("src/http/request.c").read()[:1024]
    rate = pipelined(s, post_bytes("/tokenize", {"prompt": text}), 4000, 16)
    s.stop()
    return f"{rate:,.0f} a second", rate >= 5000


# ---- memory ------------------------------------------------------------------------------------------------------


@row("memory of idle connections that were used", "<= 20 KiB each; RSS <= 250 MB above the start with 10,000")
def idle_memory():
    n = min(10000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 600)
    resource.setrlimit(resource.RLIMIT_NOFILE, (n + 600, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    s = Server(*QUIET, "--idle-timeout", "600")
    before, open_ = rss(s), []
    for i in range(n):
        c = s.socket()
        c.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        c.recv(4096)
        open_.append(c)
    each = (rss(s) - before) / n
    for c in open_:
        c.close()
    s.stop()
    return f"{n}: {each / 1024:.1f} KiB each, {each * n / 1e6:.0f} MB", each <= 20 * 1024 and each * n <= 250e6


@row("memory of a stream that waits", "<= 30 KiB and 8 bytes a token")
def waiting_memory():
    s = Server(*QUIET, "--max-batch", "1")
    first = s.send("/v1/completions", {**LONG, "stream": True})
    s.wait_metric("kernelrl_sequences_running", 1)
    before = rss(s)
    streams = [s.send("/v1/completions", {**LONG, "prompt": PROMPT, "stream": True}) for _ in range(1000)]
    s.wait_metric("kernelrl_sequences_waiting", 1000)
    each = (rss(s) - before) / 1000
    for c in streams + [first]:
        c.close()
    s.stop()
    return f"{each / 1024:.1f} KiB", each <= 30 * 1024


@row("leaks over 100,000 mixed requests", "RSS +- 2 % from request 10,000 on; no descriptor left")
def leaks():
    s = Server(*QUIET)
    small = {"prompt": "ab", "max_tokens": 1}
    mixed = [
        post_bytes("/v1/completions", small),
        post_bytes("/v1/completions", {**small, "stream": True, "logprobs": 2}),
        post_bytes("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}),
        post_bytes("/tokenize", {"prompt": "some text"}),
        post_bytes("/v1/completions", {"prompt": "", "n": 0}),
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ]
    done, at, fds = [0], {}, descriptors(s)

    def client(k):
        c = s.socket()
        for i in range(k, 100000, 16):
            if i % 50 == 49:  # one who leaves
                c.sendall(mixed[i % len(mixed)])
                c.close()
                c = s.socket()
            else:
                c.sendall(mixed[i % len(mixed)])
                text = b""
                while not whole(text):
                    text += c.recv(1 << 16)
            done[0] += 1
        c.close()

    threads = [threading.Thread(target=client, args=(k,)) for k in range(16)]
    for t in threads:
        t.start()
    for mark in (10000, 25000, 50000, 75000):
        while done[0] < mark:
            time.sleep(0.05)
        at[mark] = rss(s)
    for t in threads:
        t.join()
    at[100000] = rss(s)
    time.sleep(0.5)
    left = descriptors(s) - fds
    s.stop()
    change = [100 * (v / at[10000] - 1) for v in at.values()]
    seen = ", ".join(f"{k // 1000}k: {v / 1e6:.1f} MB" for k, v in at.items())
    return f"{seen}; {left} descriptors left", max(map(abs, change)) <= 2 and left <= 0


def whole(text):
    head = text.find(b"\r\n\r\n")
    if head < 0:
        return False
    length = re.search(rb"Content-Length: (\d+)", text[:head])
    return len(text) >= head + 4 + int(length.group(1)) if length else text.endswith(b"0\r\n\r\n")


# ---- clients that leave, stall, flood ----------------------------------------------------------------------------


@row("a client leaves", "its slot is free within 50 ms, in every phase")
def leaver():
    s = Server(*QUIET, "--max-batch", "2")
    worst = {}
    for phase in ("decode, streamed", "decode", "queued", "prefill"):
        for how in ("close", "reset", "half"):
            for _ in range(5):
                others = []
                if phase == "queued":
                    others = [s.send("/v1/completions", {**LONG, "stream": True}) for _ in range(2)]
                    s.wait_metric("kernelrl_sequences_running", 2)
                body = {**LONG, "stream": phase.endswith("streamed")}
                if phase == "prefill":
                    body = {**body, "prompt": [9] * 8000}
                metric = "kernelrl_sequences_running" if phase.startswith("decode") else "kernelrl_sequences_waiting"
                c = s.send("/v1/completions", body)
                s.wait_metric(metric, 1)
                m = s.connect()
                if how == "reset":
                    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                t = time.monotonic()
                if how == "half":
                    c.shutdown(socket.SHUT_WR)
                else:
                    c.close()
                while True:
                    m.request("GET", "/metrics")
                    if re.search(rf"^{metric} 0$", m.getresponse().read().decode(), re.M):
                        break
                worst[phase] = max(worst.get(phase, 0), 1e3 * (time.monotonic() - t))
                for o in others:
                    o.close()
                s.wait_metric("kernelrl_sequences_running", 0)
    s.stop()
    return ", ".join(f"{k}: {v:.0f} ms" for k, v in worst.items()), max(worst.values()) <= 50


@row("1,000 random leavers beside 16 who stay", "the bytes of those who stay are unchanged")
def leavers():
    import random

    s = Server(*QUIET)
    rng = random.Random(1)
    bodies = [{"prompt": f"stay {i}", "max_tokens": 600, "ignore_eos": True, "seed": i} for i in range(16)]
    want = [without_ids(s.post("/v1/completions", b)) for b in bodies]
    got = [None] * 16

    def stay(i):
        got[i] = without_ids(s.post("/v1/completions", bodies[i]))

    threads = [threading.Thread(target=stay, args=(i,)) for i in range(16)]
    for t in threads:
        t.start()
    for i in range(1000):
        c = s.send("/v1/completions", {**LONG, "prompt": f"leave {i}", "stream": i % 2 == 0})
        time.sleep(rng.random() * 0.01)
        c.close()
    for t in threads:
        t.join()
    s.wait_metric("kernelrl_requests_running", 0)
    s.stop()
    return f"{sum(g == w for g, w in zip(got, want))} of 16 equal", got == want


@row("100 readers that stall", "all cut off after 60 s; others' p99 as beside 100 who read; <= 300 MB more")
def stalled():
    s = Server(*QUIET, "--kv-memory", "300000000")
    big = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True, "logprobs": 20}
    count = 'kernelrl_http_timeouts_total{deadline="write"'

    def ask():
        t = time.monotonic()
        assert s.get("/health")[0] == 200
        s.post("/tokenize", {"prompt": "x"})
        return 1e3 * (time.monotonic() - t)

    def ask_for(seconds, until):
        took, end = [], time.monotonic() + seconds
        while time.monotonic() < end and not until():
            took.append(ask())
            time.sleep(0.05)
        return took

    def streams():
        made = []
        for _ in range(100):
            c = socket.socket()
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(post_bytes("/v1/completions", big))
            made.append(c)
        return made

    read, going = streams(), True

    def drain():
        while going:
            for c in select.select(read, [], [], 0.1)[0]:
                c.recv(1 << 16)

    reader = threading.Thread(target=drain)
    reader.start()
    beside_read = ask_for(20, lambda: False)
    going = False
    reader.join()
    for c in read:
        c.close()
    s.wait_metric("kernelrl_requests_running", 0)
    before = rss(s)  # with the cache, which these streams have filled: 20 s draw more tokens than it holds
    stalled_, begun = streams(), time.monotonic()
    beside_stalled = ask_for(400, lambda: s.metric(count) >= 100)
    seconds, grown, n = time.monotonic() - begun, (rss(s) - before) / 1e6, s.metric(count)
    s.stop(signal.SIGKILL)
    p = percentile(beside_read, 0.99), percentile(beside_stalled, 0.99)
    return (
        f"{n:.0f} cut after {seconds:.0f} s; p99 of {len(beside_stalled)} others {p[1]:.1f} ms, {p[0]:.1f} ms beside "
        f"those who read; {grown:.0f} MB more",
        n == len(stalled_) and p[1] <= 1.5 * p[0] and grown <= 300,
    )


@row("slowloris: 1,000 heads that drip, 50 slow bodies", "heads cut within 15 s, bodies within 60 s; live p99 <= 2x")
def slowloris():
    s = Server(*QUIET)

    def times(seconds):
        out, from_ = [], time.monotonic()
        while time.monotonic() - from_ < seconds:
            t = time.monotonic()
            s.post("/v1/completions", {"prompt": "x", "max_tokens": 1})
            out.append(1e3 * (time.monotonic() - t))
        return percentile(out, 0.99)

    quiet = times(3)
    heads = {s.socket(): 0.0 for _ in range(1000)}
    bodies = {s.socket(): 0.0 for _ in range(50)}
    for c in bodies:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        c.sendall(b"Content-Length: 100000\r\n\r\n{")
    from_, stop = time.monotonic(), []

    def drip():
        while not stop:
            for group in (heads, bodies):
                for c, cut in group.items():
                    if cut:
                        continue
                    try:
                        c.send(b"G", socket.MSG_DONTWAIT)
                        if c.recv(4096, socket.MSG_DONTWAIT) == b"":
                            group[c] = time.monotonic() - from_
                    except BlockingIOError:
                        pass
                    except OSError:
                        group[c] = time.monotonic() - from_
            time.sleep(0.5)

    t = threading.Thread(target=drip)
    t.start()
    during = times(9)
    while time.monotonic() - from_ < 75 and not all(list(heads.values()) + list(bodies.values())):
        time.sleep(0.5)
    stop.append(True)
    t.join()
    s.stop()
    h, b = max(heads.values()), max(bodies.values())
    cut = all(heads.values()) and all(bodies.values())
    text = f"heads {h:.1f} s, bodies {b:.1f} s, p99 {quiet:.1f} -> {during:.1f} ms"
    return text, cut and h <= 15 and b <= 60 and during <= 2 * quiet


@row("more connections than allowed", "503 or refused within 100 ms; recovers in 1 s")
def flood():
    s = Server(*QUIET, "--max-connections", "100")
    held = [s.socket() for _ in range(100)]
    time.sleep(0.3)
    times, answers = [], []
    for _ in range(20):
        t = time.monotonic()
        c = s.socket()
        c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n")
        try:
            answers.append(c.recv(12)[9:12] or b"closed")
        except OSError:
            answers.append(b"closed")
        times.append(1e3 * (time.monotonic() - t))
        c.close()
    for c in held:
        c.close()
    t = time.monotonic()
    while True:
        try:
            if s.get("/health")[0] == 200:
                break
        except OSError:
            pass
    back = time.monotonic() - t
    s.stop()
    fine = all(a in (b"503", b"closed") for a in answers)
    return (
        f"{answers[0].decode()} within {max(times):.0f} ms, back in {back:.2f} s",
        fine and max(times) <= 100 and back <= 1,
    )


@row("a full queue", "429 with Retry-After in <= 5 ms; those admitted unharmed")
def full():
    s = Server(*QUIET, "--max-batch", "1", "--max-queue", "4")
    first = s.send("/v1/completions", {**LONG, "max_tokens": 1500, "stream": True})
    s.wait_metric("kernelrl_sequences_running", 1)
    waiting = [s.send("/v1/completions", {"prompt": "x", "max_tokens": 2}) for _ in range(4)]
    s.wait_metric("kernelrl_sequences_waiting", 4)
    c, times = s.connect(), []
    for _ in range(100):
        t = time.monotonic()
        c.request("POST", "/v1/completions", '{"prompt": "x"}', {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        times.append(1e3 * (time.monotonic() - t))
        assert r.status == 429 and r.getheader("retry-after")
    text = b""
    while not text.endswith(b"0\r\n\r\n"):
        text += first.recv(1 << 16)
    fine = b"[DONE]" in text and all(w.recv(12) == b"HTTP/1.1 200" for w in waiting)
    s.stop()
    return (
        f"median {statistics.median(times):.2f} ms, p99 {percentile(times, 0.99):.2f} ms",
        fine and statistics.median(times) <= 5,
    )


@row("a body over the limit", "413 before 64 KiB were read")
def big_body():
    s = Server(*QUIET)
    c = s.socket()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    c.sendall(b"Content-Length: 100000000\r\n\r\n")
    status = c.recv(12)[9:12].decode()  # not a byte of the body was sent
    s.stop()
    return f"{status} behind its head", status == "413"


# ---- the end, restarts, adapters ---------------------------------------------------------------------------------


@row("SIGTERM under load", "no admitted stream broken; new ones refused; exit 0")
def sigterm():
    s = Server(*QUIET, "--drain-timeout", "120")
    streams = [s.send("/v1/completions", {**LONG, "max_tokens": 200, "seed": i, "stream": True}) for i in range(100)]
    s.wait_metric("kernelrl_sequences_running", 64)
    texts, t = [b""] * 100, time.monotonic()
    s.process.send_signal(signal.SIGTERM)

    def read(i):
        while part := streams[i].recv(1 << 16):
            texts[i] += part
            if texts[i].endswith(b"0\r\n\r\n"):
                return

    threads = [threading.Thread(target=read, args=(i,)) for i in range(100)]
    for th in threads:
        th.start()
    for th in threads:
        th.join()
    code, took = s.process.wait(60), time.monotonic() - t
    whole_ = sum(b"[DONE]" in x and b'"finish_reason":"length"' in x for x in texts)
    return f"{whole_} of 100 complete, exit {code} after {took:.1f} s", whole_ == 100 and code == 0


@row("a second SIGTERM", "ends within 1 s")
def second_signal():
    s = Server(*QUIET)
    streams = [s.send("/v1/completions", {**LONG, "stream": True}) for _ in range(64)]
    drain = threading.Thread(target=drain_all, args=(streams,), daemon=True)
    drain.start()
    s.wait_metric("kernelrl_sequences_running", 64)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    t = time.monotonic()
    s.process.send_signal(signal.SIGTERM)
    code = s.process.wait(60)
    took = time.monotonic() - t
    return f"exit {code} after {took:.2f} s", took <= 1


@row("kill -9 and start again", "the port is free")
def kill9():
    s = Server(*QUIET)
    c = s.send("/v1/completions", {**LONG, "stream": True})
    s.wait_metric("kernelrl_sequences_running", 1)
    port = s.port
    s.stop(signal.SIGKILL)
    again = Server(*QUIET, "--port", str(port))
    fine = again.port == port
    again.stop()
    c.close()
    return f"port {port} again", fine


@row("start to ready", "<= 1 s")
def start():
    times = []
    for _ in range(5):
        t = time.monotonic()
        s = Server(*QUIET)
        times.append(time.monotonic() - t)
        s.stop()
    return f"median {statistics.median(times):.2f} s", statistics.median(times) <= 1


@row("an adapter replaced 100 times under load", "no error; each answer is one version's, which it names; memory back")
def adapters():
    folder = os.path.join(TMP, "adapters")
    for k in (0, 1):
        write_adapter(os.path.join(folder, f"a{k}"), k)
    s = Server(*QUIET, "--admin", "--adapter-dir", folder)
    place = lambda k: s.raw(
        "POST", "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": f"a{k}", "load_inplace": True}
    )
    body = {"prompt": "x", "max_tokens": 20, "seed": 1, "model": "x"}
    versions = {}
    for k in (0, 1):
        assert place(k)[0] == 200
        o = s.post("/v1/completions", body)
        versions[o["system_fingerprint"]] = o["choices"][0]["text"]
    stop, wrong, answers = [], [], [0]

    def ask():
        while not stop:
            o = s.post("/v1/completions", body)
            answers[0] += 1
            if versions.get(o["system_fingerprint"]) != o["choices"][0]["text"]:
                wrong.append(o)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    at = []
    for i in range(100):
        assert place(i % 2)[0] == 200
        at.append(rss(s))
        time.sleep(0.02)
    stop.append(True)
    for t in threads:
        t.join()
    s.stop()
    grown = (at[-1] - at[20]) / 1e6
    return f"{answers[0]} answers, {len(wrong)} wrong, {grown:+.1f} MB from the 20th on", not wrong and grown < 5


def main():
    words = sys.argv[1:]
    missed = 0
    print("| what | demanded | seen | |\n|---|---|---|---|", flush=True)
    for name, demanded, fn in rows:
        if words and not any(w in name or w == fn.__name__ for w in words):
            continue
        try:
            seen, met = fn()
        except Exception as e:  # noqa: BLE001
            seen, met = f"{type(e).__name__}: {e}"[:300], False
        missed += not met
        print(f"| {name} | {demanded} | {seen} | {'met' if met else 'MISSED'} |", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
