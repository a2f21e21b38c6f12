"""The official Tinker client while its server is killed and started again: `serve_tinker_restart.py MODEL FOLDER`. KRL
is the program, FOLDER has room for its files. Prints TAP."""

import os
import random
import re
import signal
import subprocess
import sys
import time

from serve_cases import case, equal, run

MODEL, FOLDER = sys.argv[1:3]
LOG = os.path.join(FOLDER, "server.log")
SEED, STEPS = 5, 8


class Server:
    """A server that can be killed. The next one has its port and its folder."""

    port = 0

    def start(self):
        with open(LOG, "wb") as log:
            self.process = subprocess.Popen(
                [os.environ["KRL"], "serve", "--model", MODEL, "--port", str(self.port), "--access-log", "off"]
                + ["--tinker", os.path.join(FOLDER, "state"), "--tinker-keep", "1", "--train-tokens", "16"]
                + ["--api-key", os.environ["TINKER_API_KEY"]],
                stdout=log,
                stderr=log,
            )
        for _ in range(600):
            with open(LOG, encoding="utf-8") as log:
                found = re.search(r"is ready at http://[^:]*:(\d+)/v1", log.read())
            if found:
                self.port = int(found.group(1))
                return
            assert self.process.poll() is None, open(LOG, encoding="utf-8").read()
            time.sleep(0.05)
        raise AssertionError("the server does not become ready")

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


server = Server()
server.start()
os.environ["TINKER_BASE_URL"] = f"http://127.0.0.1:{server.port}"

import tinker  # noqa: E402  its client reads the address
from tinker import types  # noqa: E402


def tensor(values, dtype):
    return types.TensorData(data=values, dtype=dtype, shape=[len(values)])


def rows(step):
    """Two texts of a step, with weights."""
    out = []
    for k in range(2):
        tokens = [5 + (7 * i + 13 * step + 31 * k) % 200 for i in range(12)]
        weights = [0.25 * (1 + (i + step) % 4) for i in range(11)]
        inputs = {"target_tokens": tensor(tokens[1:], "int64"), "weights": tensor(weights, "float32")}
        out.append(types.Datum(model_input=types.ModelInput.from_ints(tokens[:-1]), loss_fn_inputs=inputs))
    return out


def learn(training, disturb):
    """Steps of a model, with a sampler behind every third. Returns all that a client sees."""
    seen = []
    for step in range(STEPS):
        gradient = training.forward_backward(rows(step), "cross_entropy")
        made = training.optim_step(types.AdamParams(learning_rate=1e-3))
        disturb()
        output = gradient.result()
        seen.append((output.metrics["loss:sum"], made.result().metrics["step"]))
        seen.append([x["logprobs"].tolist() for x in output.loss_fn_outputs])
        if step % 3 == 2:
            sampler = training.save_weights_and_get_sampling_client()
            params = types.SamplingParams(max_tokens=8, seed=3, stop=[])
            promise = sampler.sample(
                prompt=types.ModelInput.from_ints([5, 6, 7]), num_samples=2, sampling_params=params
            )
            disturb()
            seen.append([(s.tokens, s.logprobs) for s in promise.result().sequences])
    training.save_state("end").result()
    seen.append([x["logprobs"].tolist() for x in training.forward(rows(0), "cross_entropy").result().loss_fn_outputs])
    return seen


service = tinker.ServiceClient()


def new_model():
    return service.create_lora_training_client(base_model=MODEL, rank=4, seed=9)


@case("a server that is killed in the middle of calls: the bits of one that is not")
def _():
    draw = random.Random(SEED)
    kills = 0

    def kill():
        nonlocal kills
        time.sleep(draw.uniform(0, 0.06))
        server.kill()
        time.sleep(draw.uniform(0, 0.3))
        server.start()
        kills += 1

    want = learn(new_model(), lambda: None)
    got = learn(new_model(), kill)
    equal(len(want), len(got))
    for a, b in zip(want, got):
        equal(a, b)
    assert kills == STEPS + STEPS // 3, kills
    equal([x[1] for x in got if isinstance(x, tuple)], list(range(1, STEPS + 1)))


@case("its checkpoints, and a session that goes on")
def _():
    rest = service.create_rest_client()
    paths = [c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints]
    equal(len(paths), 2)
    model = service.create_training_client_from_state_with_optimizer(paths[0])
    step = model.optim_step(types.AdamParams(learning_rate=1e-3)).result()
    equal(step.metrics["step"], STEPS + 1)


try:
    run()
finally:
    server.kill()
