#!/usr/bin/env python3
"""tests/clients/frameworks.py FRAMEWORK PROGRAM: an adapter of python/kernelrl with the real package; frameworks.sh.

Each part gives a right answer, a wrong one, a reply without a kernel, and a problem that fails, for which no reward may
come out."""

import asyncio
import importlib
import json
import os
import pathlib
import pickle
import sys
import tempfile
import types

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../python"))
kernelrl = importlib.import_module("kernelrl")  # found through the path set above
tasks = importlib.import_module("kernelrl.tasks")

KEY = "level1/1_ReLU"
KERNEL = "void kernel(const float *restrict x, float *restrict out) { for (size_t i = 0; i < X_N; i++) out[i] = %s; }"
GOOD, WRONG = ("<KERNEL>\n```c\n%s\n```\n</KERNEL>" % (KERNEL % one) for one in ("x[i] > 0 ? x[i] : 0", "x[i]"))
REPLIES = [GOOD, WRONG, "I cannot."]
OPTIONS = {"measure": False, "trials": 2}
BROKEN = {"code": "raise SystemError('the verifier cannot run this')"}  # no verdict ever


def expect(rewards):
    good, wrong, none = rewards
    assert good > wrong > none >= 0, rewards


def refuses(call):
    """True: no reward came out, and NoVerdict is why. A framework may wrap it."""
    try:
        call()
    except Exception as error:
        while error is not None and not isinstance(error, tasks.NoVerdict):
            error = error.__cause__ or error.__context__
        return error is not None
    return False


def trl(client):
    import trl as real

    adapter = importlib.import_module("kernelrl.for_trl")
    logged = {}
    reward = adapter.reward(client, options=OPTIONS)
    data = adapter.dataset(client, [KEY])
    assert data[0]["problem"] == KEY and data[0]["prompt"] == client.prompt(KEY), data[0]
    messages = [[{"role": "assistant", "content": reply}] for reply in REPLIES]
    for completions in (REPLIES, messages):
        got = reward(
            prompts=[data[0]["prompt"]] * 3,
            completions=completions,
            completion_ids=[[1], [2], [3]],
            problem=[KEY] * 3,
            log_metric=logged.__setitem__,
            trainer_state=None,
        )
        expect(got)
    assert logged["kernelrl/correct"] == 1 / 3 and logged["kernelrl/missing"] == 0, logged
    missing = reward(completions=[GOOD, GOOD], completion_ids=[[1], [1]], problem=[KEY, BROKEN])
    assert missing[0] > 0 and missing[1] is None, missing
    assert reward.__name__ == "kernelrl" and real.GRPOTrainer


def verl(client):
    from verl.trainer.ppo.reward import get_custom_reward_fn

    omegaconf = importlib.import_module("omegaconf")
    adapter = importlib.import_module("kernelrl.for_verl")
    config = omegaconf.OmegaConf.create(
        {
            "reward": {
                "custom_reward_function": {
                    "path": adapter.__file__,
                    "name": "compute_score",
                    "reward_kwargs": {"url": client.url, "options": OPTIONS},
                }
            }
        }
    )
    score = get_custom_reward_fn(config)
    got = [score("kernelrl", reply, KEY, {"index": 0}) for reply in REPLIES]
    expect([one["score"] for one in got])
    assert len({tuple(one) for one in got}) == 1, got
    assert refuses(lambda: score("kernelrl", GOOD, BROKEN))
    row = next(adapter.rows(client, [KEY]))
    assert row["reward_model"]["ground_truth"] == KEY and row["prompt"] == client.prompt(KEY), row


def verifiers(client):
    vf = importlib.import_module("verifiers.v1")
    loaders = importlib.import_module("verifiers.v1.utils.loaders")
    adapter = importlib.import_module("kernelrl.for_verifiers")
    name = "kernelrl_env"
    config = loaders.taskset_config_type(name)(
        id=name, keys=[KEY], task={"url": client.url, "fields": {"options": OPTIONS}}
    )
    (task,) = list(loaders.load_taskset(config))
    assert task.data.problem == KEY, task.data
    system, user = client.prompt(KEY)
    assert task.data.system_prompt == system["content"] and task.data.prompt_text == user["content"]

    class Said:  # a trace after its last reply
        def __init__(self, reply):
            self.last_reply, self.info, self.metrics, self.rewards = reply, {}, {}, {}

        def record_metric(self, key, value):
            self.metrics[key] = value

        def record_reward(self, key, value, weight):
            self.rewards[key] = value * weight

    def score(reply, one=task):
        trace = Said(reply)
        asyncio.run(one.score(trace))
        return trace

    traces = [score(reply) for reply in REPLIES]
    expect([trace.rewards["kernelrl"] for trace in traces])
    assert traces[0].metrics["correct"] == 1 and traces[0].info["kernelrl"]["outcome"] == "correct"
    broken = adapter.KernelTask(adapter.KernelData.model_construct(problem=BROKEN), config.task)
    assert refuses(lambda: score(GOOD, broken)) and vf.Taskset
    nemo_taskset(client)


def skyrl(client):
    gym = importlib.import_module("skyrl_gym")
    gym.register(id="tested", entry_point="kernelrl.for_skyrl:KernelEnv")
    config = {"url": client.url, "fields": {"options": OPTIONS}}

    def make(problem, turns=1):
        row = {"reward_spec": {"ground_truth": problem}, "max_turns": turns}
        return gym.make("tested", env_config=config, extras=row)

    outs = [make(KEY).step(reply) for reply in REPLIES]
    expect([out["reward"] for out in outs])
    assert all(out["done"] and not out["observations"] for out in outs), outs
    env = make(KEY, 2)
    assert env.init(client.prompt(KEY))[0] == client.prompt(KEY)
    first, second = env.step(WRONG), env.step(GOOD)
    assert not first["done"] and "wrong_output" in first["observations"][0]["content"], first
    assert second["done"] and second["reward"] > first["reward"] and env.get_metrics()["correct"] == 1, second
    assert refuses(lambda: make(BROKEN).step(GOOD))


def openenv(client):
    os.environ["KERNELRL_URL"] = client.url
    adapter = importlib.import_module("kernelrl.for_openenv")
    web = importlib.import_module("fastapi.testclient").TestClient(adapter.app)
    assert web.get("/health").json()["status"] == "healthy"
    rewards = []
    for reply in REPLIES:
        with web.websocket_connect("/ws") as ws:
            ws.send_json({"type": "reset", "data": {"problem": KEY}})
            begun = ws.receive_json()["data"]
            assert begun["observation"]["messages"] == client.prompt(KEY) and not begun["done"], begun
            ws.send_json({"type": "step", "data": {"code": reply}})
            out = ws.receive_json()["data"]
            assert out["done"] and out["observation"]["verdict"], out
            rewards.append(out["reward"])
    expect(rewards)
    env = adapter.KernelEnvironment()
    drawn = env.reset(seed=3)
    assert drawn.problem == env.reset(seed=3).problem and drawn.messages
    env.problem = BROKEN
    assert refuses(lambda: env.step(adapter.KernelAction(code=GOOD)))


def tinker(client):
    adapter = importlib.import_module("kernelrl.for_tinker")
    transformers = importlib.import_module("transformers")
    renderers = importlib.import_module("tinker_cookbook.renderers")
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file="models/tiny/tokenizer.json")
        tokenizer.save_pretrained(folder)
        builder = adapter.KernelDatasetBuilder(
            renderer_name="role_colon", model_name_for_tokenizer=folder, group_size=3, url=client.url, keys=[KEY]
        )
        train, test = asyncio.run(builder())
    assert len(train) == 1 and test is None
    (group,) = train.get_batch(0)
    pickle.loads(pickle.dumps(group.server))
    envs = asyncio.run(group.make_envs())

    async def play(env, reply):
        prompt, _ = await env.initial_observation()
        assert KEY and env.messages[1]["content"][:20] in tokenizer.decode(prompt.to_ints()), "the prompt"
        return await env.step(tokenizer.encode(reply, add_special_tokens=False))

    outs = [asyncio.run(play(env, reply)) for env, reply in zip(envs, REPLIES)]
    expect([out.reward for out in outs])
    assert all(out.episode_done for out in outs) and outs[0].metrics["correct"] == 1, outs
    broken = adapter.KernelEnv(adapter.Server(client.url), BROKEN, group.row["prompt"], envs[0].renderer)
    assert refuses(lambda: asyncio.run(play(broken, GOOD))) and renderers


def nemo_gym(client):
    """The rows and the replies in NeMo-Gym's own types."""
    server = importlib.import_module("nemo_gym.base_resources_server")
    config = importlib.import_module("nemo_gym.config_types")
    (row,) = importlib.import_module("kernelrl.for_nemo").rows(client, [KEY], {"options": OPTIONS})
    envelope = {"id": "r", "created_at": 1, "model": "m", "object": "response", "parallel_tool_calls": True}
    envelope.update(tool_choice="auto", tools=[])

    def asked(reply, **other):
        part = {"type": "output_text", "text": reply, "annotations": []}
        said = {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": [part]}
        body = {**row, **other, "response": {**envelope, "output": [said]}}
        return {**body, **server.BaseVerifyRequest.model_validate(body).model_dump(mode="json")}

    got = [client.call("POST", "/verify", asked(reply)) for reply in REPLIES]
    checked = [server.BaseVerifyResponse.model_validate(one) for one in got]
    expect([one.reward for one in checked])
    assert checked[0].response.output_text == GOOD
    means = config.AggregateMetrics.model_validate(client.call("POST", "/aggregate_metrics", {"verify_responses": got}))
    assert abs(means.key_metrics["mean/correct"] - 1 / 3) < 1e-9, means
    impatient = kernelrl.Client(client.url, tries=1)
    try:
        impatient.call("POST", "/verify", asked(GOOD, verifier_metadata={"problem": BROKEN}))
        raise AssertionError("a reward without a verdict")
    except kernelrl.Error as error:
        assert error.status == 503, error


def nemo_taskset(client):
    """verifiers' own client of NeMo-Gym's servers."""
    gym = importlib.import_module("verifiers.v1.tasksets.nemo_gym")
    toolset = importlib.import_module("verifiers.v1.tasksets.nemo_gym.toolset")
    messages = importlib.import_module("verifiers.v1.types")
    rows = importlib.import_module("kernelrl.for_nemo").rows(client, [KEY], {"options": OPTIONS})
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "rows.jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        config = gym.NeMoGymConfig(id="nemo_gym", dataset=path, task={"resources_url": client.url})
        (task,) = gym.NeMoGymTaskset(config).load()

    class Trace:  # after a last reply
        def __init__(self, reply):
            node = types.SimpleNamespace(message=messages.AssistantMessage(content=reply), sampled=True, timestamp=1)
            self.id, self.branches = "t", [types.SimpleNamespace(nodes=[node])]
            self.state, self.info, self.metrics = toolset.NeMoGymState(), {}, {}

        def record_metric(self, key, value):
            self.metrics[key] = value

    async def score(reply):
        trace = Trace(reply)
        await task.setup(trace, None)
        return await task.nemo_gym(trace), trace

    scored = [asyncio.run(score(reply)) for reply in REPLIES]
    expect([reward for reward, _ in scored])
    assert scored[0][1].metrics["correct"] == 1 and scored[1][1].metrics["correct"] == 0, scored[0][1].metrics
    assert scored[0][1].info["nemo_gym"]["verdict"]["outcome"] == "correct"


HEADINGS = {
    "nemo_gym": "NeMo-Gym",
    "trl": "TRL",
    "skyrl": "SkyRL-gym",
    "openenv": "OpenEnv",
    "tinker": "tinker-cookbook",
}


def example(name, url):
    """Runs the framework's example in docs/frameworks.md against this server."""
    with open("docs/frameworks.md", encoding="utf-8") as f:
        section = f.read().split(f"\n## {HEADINGS.get(name, name)}\n")[1].split("\n## ")[0]
    code = section.split("```python\n")[1].split("```")[0]
    assert "http://127.0.0.1:8000" in code, code
    exec(compile(code.replace("http://127.0.0.1:8000", url), f"docs/frameworks.md, {name}", "exec"), {})


if __name__ == "__main__":
    PARTS = {"trl": trl, "verl": verl, "verifiers": verifiers, "skyrl": skyrl, "openenv": openenv, "tinker": tinker}
    PARTS["nemo_gym"] = nemo_gym
    with kernelrl.local(program=sys.argv[2]) as server:
        PARTS[sys.argv[1]](server)
        example(sys.argv[1], server.url)
