"""Three clients of `kernelrl serve --tinker` on two processors, all of which are killed at random, over a network that
cuts connections, delays calls and repeats them: `tinker_chaos.py FOLDER SEED`. KRL is the program. The weights and
moments of every model in the end are those of a run that nothing disturbs. Prints TAP."""

import concurrent.futures
import filecmp
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time

from tinker_client import Client, datum, forward_backward

MODEL = "models/tiny"
CLIENTS, STEPS = 3, 6

# ---- a client, as a process of its own


def calls_of(who, model):
    """All calls of a model behind the one that makes it: (path, body), numbered from 1."""
    draw, out = random.Random(who), []

    def texts(n):
        many = []
        for _ in range(n):
            tokens = [draw.randrange(5, 2000) for _ in range(draw.randrange(8, 40))]
            weights = [draw.uniform(-1, 1) for _ in tokens[1:]]
            many.append(datum(tokens[:-1], tokens[1:], weights, [len(weights)]))
        return many

    for step in range(STEPS):
        for _ in range(2):
            out.append(("forward_backward", forward_backward(model, len(out) + 1, texts(3))))
        adam = {"learning_rate": 0.003, "beta1": 0.9, "beta2": 0.95, "eps": 1e-12}
        out.append(("optim_step", {"model_id": model, "seq_id": len(out) + 1, "adam_params": adam}))
        if step % 2:
            sampler = {"model_id": model, "seq_id": len(out) + 1, "sampling_session_seq_id": step}
            out.append(("save_weights_for_sampler", sampler))
    out.append(("save_weights", {"model_id": model, "seq_id": len(out) + 1, "path": f"end-{who}"}))
    return out


def work(who, port, notes):
    """Goes on where the notes say that a client before this one was; they are session, model, calls that are done."""
    client = Client(port)
    state = json.load(open(notes, encoding="utf-8")) if os.path.exists(notes) else {"done": 0}

    def note(**more):
        state.update(more)
        with open(notes + ".new", "w", encoding="utf-8") as f:
            json.dump(state, f)
        os.replace(notes + ".new", notes)

    if "session" not in state:
        note(session=json.loads(client.call("create_session", {"tags": []}))["session_id"])
    made = {"session_id": state["session"], "model_seq_id": 0, "base_model": MODEL}
    made["lora_config"] = {"rank": 4, "seed": who}
    model = f"{state['session']}:train:0"
    promise = client.promise("create_model", made)
    if "model" not in state:
        client.result(promise)
        note(model=model)
    calls = calls_of(who, model)
    ahead = 4  # calls that are sent together, the last one first
    with concurrent.futures.ThreadPoolExecutor(ahead) as threads:
        while state["done"] < len(calls):
            batch = calls[state["done"] : state["done"] + ahead]
            promises = list(threads.map(lambda c: client.promise(*c), reversed(batch)))
            for p in promises:
                client.result(p)
            note(done=state["done"] + len(batch))


# ---- what lies between


class Network:
    """Takes connections, one request each, to the server: some are cut before or behind it, some come late or twice."""

    def __init__(self, draw):
        self.draw, self.lock, self.server_port = draw, threading.Lock(), 0
        self.counts = {"cut before": 0, "cut behind": 0, "late": 0, "twice": 0, "passed": 0}
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.handle, args=[connection], daemon=True).start()

    def fate(self):
        with self.lock:
            x = self.draw.random()
            names = list(self.counts)
            name = names[min(int(x * 10), 4)] if x < 0.4 else "passed"
            self.counts[name] += 1
            return name, self.draw.uniform(0, 0.2)

    @staticmethod
    def read_request(connection):
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head = data.split(b"\r\n\r\n")[0]
        length = re.search(rb"content-length: (\d+)", head, re.I)
        whole = len(head) + 4 + (int(length.group(1)) if length else 0)
        while len(data) < whole:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        return data

    def ask(self, data):
        with socket.create_connection(("127.0.0.1", self.server_port), timeout=60) as server:
            server.sendall(data)
            answer = b""
            while more := server.recv(65536):
                answer += more
            return answer

    def handle(self, connection):
        with connection:
            try:
                data = self.read_request(connection)
                fate, seconds = self.fate()
                if data is None or fate == "cut before":
                    return
                if fate == "late":
                    time.sleep(seconds)
                answer = self.ask(data)
                if fate == "twice":
                    again = self.ask(data)
                    answer = again if seconds < 0.1 else answer
                if fate != "cut behind":
                    connection.sendall(answer)
            except OSError:
                return


# ---- processes that are killed


class Server:
    port = 0

    def __init__(self, folder):
        self.folder, self.log = os.path.join(folder, "state"), os.path.join(folder, "server.log")

    def start(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [os.environ["KRL"], "serve", "--model", MODEL, "--port", str(self.port), "--access-log", "off"]
                + ["--tinker", self.folder, "--tinker-keep", "1", "--train-tokens", "64"],
                stdout=log,
                stderr=log,
            )
        for _ in range(2400):
            found = re.search(r"is ready at http://[^:]*:(\d+)/v1", open(self.log, encoding="utf-8").read())
            if found:
                self.port = int(found.group(1))
                return
            assert self.process.poll() is None, open(self.log, encoding="utf-8").read()
            time.sleep(0.05)
        raise AssertionError("the server does not become ready")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def start_client(who, port, folder):
    notes = os.path.join(folder, f"client-{who}")
    return subprocess.Popen([sys.executable, __file__, "client", str(who), str(port), notes])


def undisturbed(folder):
    server = Server(folder)
    server.start()
    for who in range(CLIENTS):
        assert start_client(who, server.port, folder).wait() == 0
    server.kill()


def disturbed(folder, draw):
    """Kills somebody now and then until all clients are done. Returns what was done to them."""
    server, network = Server(folder), Network(draw)
    server.start()
    network.server_port = server.port
    clients = [start_client(who, network.port, folder) for who in range(CLIENTS)]
    kills = {"server": 0, "clients": 0}
    while any(c.poll() is None for c in clients):
        time.sleep(draw.uniform(0.3, 1.5))
        who = draw.randrange(CLIENTS + 2)
        if who >= CLIENTS and kills["server"] < 12:
            server.kill()
            time.sleep(draw.uniform(0, 0.3))
            server.start()
            kills["server"] += 1
        elif who < CLIENTS and clients[who].poll() is None and kills["clients"] < 12:
            clients[who].kill()
            clients[who].wait()
            clients[who] = start_client(who, network.port, folder)
            kills["clients"] += 1
    codes = [c.returncode for c in clients]
    server.kill()
    assert codes == [0] * CLIENTS, codes
    return {**kills, **network.counts}


def checkpoint(folder, who):
    """The folder of a client's last checkpoint."""
    found = []
    root = os.path.join(folder, "state", "checkpoints")
    for name in os.listdir(root):
        path = os.path.join(root, name, "checkpoint.json")
        if os.path.exists(path) and json.load(open(path, encoding="utf-8"))["name"] == f"end-{who}":
            found.append(os.path.join(root, name))
    assert len(found) == 1, found
    return found[0]


def main():
    folder, seed = sys.argv[1], int(sys.argv[2])
    calm, wild = os.path.join(folder, "calm"), os.path.join(folder, "wild")
    os.makedirs(calm)
    os.makedirs(wild)
    undisturbed(calm)
    counts = disturbed(wild, random.Random(seed))
    print("# " + ", ".join(f"{k} {v}" for k, v in counts.items()))
    print(f"{'ok' if counts['server'] and counts['clients'] else 'not ok'} 1 - somebody was killed")
    for who in range(CLIENTS):
        a, b = checkpoint(calm, who), checkpoint(wild, who)
        same = all(
            filecmp.cmp(os.path.join(a, f), os.path.join(b, f), shallow=False)
            for f in ("adapter_model.safetensors", "optimizer.safetensors")
        )
        print(f"{'ok' if same else 'not ok'} {who + 2} - client {who} has the weights and moments of a calm run")
    print(f"1..{CLIENTS + 1}")


if sys.argv[1] == "client":
    work(int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
else:
    main()
