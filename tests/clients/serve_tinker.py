"""The official Tinker client against a server: `serve_tinker.py FOLDER`, the folder of its model. TINKER_BASE_URL and
TINKER_API_KEY say where it is. Prints TAP, and a table of the client's methods."""

import asyncio
import json
import os
import sys
import urllib.request

import numpy as np
import tinker
from serve_cases import case, equal, raises, run
from tinker import types

try:
    import torch  # of custom losses alone

    torch.zeros(1).numpy()  # a PyTorch that knows this NumPy
except (ModuleNotFoundError, RuntimeError):
    torch = None

MODEL = "Qwen/Qwen3-8B"
FOLDER = sys.argv[1]
TEXT = [5, 6, 7, 8, 9, 10, 11]
used, refused = set(), {}
asynchronous = []  # the model of asynchronous callers


def call(client, method, *args, **kwargs):
    """Calls a method and notes it down; a promise is waited for."""
    value = getattr(client, method)(*args, **kwargs)
    if asyncio.iscoroutine(value):
        value = asyncio.run(value)
    if hasattr(value, "result"):
        value = value.result()
    used.add(f"{type(client).__name__}.{method}")
    return value


def refuses(words, client, method, *args, **kwargs):
    """The call fails, and the text that reaches the user says why."""
    name = f"{type(client).__name__}.{method}"
    try:
        call(client, method, *args, **kwargs)
    except Exception as e:
        refused[name] = str(e).splitlines()[0][:100]
        assert words in str(e), f"{name}: {e}"
        return
    raise AssertionError(f"{name}: no error")


def tensor(values, dtype, *shape):
    return types.TensorData(data=values, dtype=dtype, shape=list(shape) or [len(values)])


def datum(tokens, **inputs):
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tensor(tokens[1:], "int64"), **inputs},
    )


def likelihood(tokens, weights=None):
    return datum(tokens, weights=tensor(weights or [1.0] * (len(tokens) - 1), "float32"))


def logprobs_of(output):
    return [np.array(x["logprobs"].tolist(), dtype=np.float32) for x in output.loss_fn_outputs]


service = tinker.ServiceClient(user_metadata={"purpose": "test"})
rest = tinker.RestClient()
training = None


@case("the service: capabilities, a model, what it says of itself")
def _():
    global training
    names = [m.model_name for m in call(service, "get_server_capabilities").supported_models]
    equal(names, ["models/tiny", MODEL])
    equal([m.model_name for m in call(rest, "get_server_capabilities").supported_models], names)
    training = call(
        service, "create_lora_training_client", base_model=MODEL, rank=8, seed=7, user_metadata={"renderer": "qwen3"}
    )
    info = call(training, "get_info")
    equal([info.model_data.model_name, info.lora_rank, info.is_lora], [MODEL, 8, True])
    equal(info.model_data.tokenizer_id, os.path.realpath(FOLDER))


@case("a tokenizer without a network")
def _():
    ids = call(training, "get_tokenizer").encode("int main")
    assert ids and all(isinstance(i, int) for i in ids)
    folder = call(service, "create_sampling_client", base_model="models/tiny")  # its name is a folder here
    equal(call(folder, "get_tokenizer").encode("int main"), ids)


@case("a model that the server does not have")
def _():
    refuses("another base model", service, "create_lora_training_client", base_model="a/b", rank=8)


@case("supervised learning: the loss falls, forward changes nothing")
def _():
    rows = [likelihood(TEXT), likelihood([5, 9, 9, 9])]
    first = call(training, "forward", rows, "cross_entropy")
    again = call(training, "forward", rows, "cross_entropy")
    for a, b in zip(logprobs_of(first), logprobs_of(again)):
        assert np.array_equal(a, b)
    total = -sum(float(x.sum()) for x in logprobs_of(first))
    assert abs(first.metrics["loss:sum"] - total) < 1e-3
    for _ in range(5):
        call(training, "forward_backward", rows, "cross_entropy")
        metrics = call(training, "optim_step", types.AdamParams(learning_rate=1e-3)).metrics
        assert metrics["grad_norm"] > 0
    last = call(training, "forward", rows, "cross_entropy")
    assert last.metrics["loss:sum"] < 0.5 * first.metrics["loss:sum"]


@case("calls that are queued before any of them is done")
def _():
    promises = []
    for _ in range(4):
        promises.append(training.forward_backward([likelihood(TEXT)], "cross_entropy"))
        promises.append(training.optim_step(types.AdamParams(learning_rate=1e-4)))
    steps = [p.result().metrics for p in promises]
    equal([s["step"] for s in steps[1::2]], [6.0, 7.0, 8.0, 9.0])


@case("a batch in pieces has the sum of its losses")
def _():
    rows = [likelihood(TEXT, [0.001 * i] * (len(TEXT) - 1)) for i in range(1200)]
    whole = call(training, "forward", rows, "cross_entropy")
    equal(len(whole.loss_fn_outputs), 1200)
    one = call(training, "forward", [likelihood(TEXT)], "cross_entropy").metrics["loss:sum"]
    assert abs(whole.metrics["loss:sum"] / (one * 0.001 * sum(range(1200))) - 1) < 1e-4


@case("every loss, its options, and what is unknown")
def _():
    now = logprobs_of(call(training, "forward", [likelihood(TEXT)], "cross_entropy"))[0]
    n = len(TEXT) - 1
    policy = {"logprobs": tensor(now.tolist(), "float32"), "advantages": tensor([0.5] * n, "float32")}
    for loss in "importance_sampling", "ppo", "cispo", "dro":
        out = call(training, "forward", [datum(TEXT, **policy)], loss)
        want = -0.5 * float(now.sum()) if loss in ("cispo", "dro") else -0.5 * n
        assert abs(out.metrics["loss:sum"] - want) < 1e-4, (loss, out.metrics)
    mask = {"sequence_ratio_mask": tensor([1.0] * n, "float32")}
    out = call(training, "forward", [datum(TEXT, **policy, **mask)], "gspo")
    assert abs(out.metrics["loss:sum"] + 0.5 * n) < 1e-4
    far = {**policy, "logprobs": tensor((now - 1).tolist(), "float32")}
    clip = {"clip_low_threshold": 0.5, "clip_high_threshold": 1.5}
    out = call(training, "forward", [datum(TEXT, **far)], "ppo", loss_fn_config=clip)
    assert abs(out.metrics["loss:sum"] + 1.5 * 0.5 * n) < 1e-4
    refuses("has no option 'beta'", training, "forward", [datum(TEXT, **far)], "ppo", loss_fn_config={"beta": 1.0})
    refuses("importance_sampling", training, "forward_backward", [datum(TEXT, **far)], "stable_reinforce")


@case("soft targets, dense and sparse")
def _():
    n = len(TEXT) - 1
    targets = [t for i in range(n) for t in (TEXT[i + 1], 40 + i)]
    weights = [w for i in range(n) for w in (0.75, 0.25 if i % 2 else 0.0)]
    dense = types.Datum(
        model_input=types.ModelInput.from_ints(TEXT[:-1]),
        loss_fn_inputs={
            "target_tokens": tensor(targets, "int64", n, 2),
            "weights": tensor(weights, "float32", n, 2),
        },
    )
    kept = [i for i, w in enumerate(weights) if w]
    rows = [0]
    for r in range(n):
        rows.append(rows[-1] + sum(1 for i in kept if i // 2 == r))

    def sparse(values, dtype):
        return types.TensorData(
            data=[values[i] for i in kept],
            dtype=dtype,
            shape=[n, 2],
            sparse_crow_indices=rows,
            sparse_col_indices=[i % 2 for i in kept],
        )

    csr = types.Datum(
        model_input=types.ModelInput.from_ints(TEXT[:-1]),
        loss_fn_inputs={"target_tokens": sparse(targets, "int64"), "weights": sparse(weights, "float32")},
    )
    out = call(training, "forward", [dense, csr], "cross_entropy")
    a, b = logprobs_of(out)
    equal(list(out.loss_fn_outputs[0]["logprobs"].shape), [n, 2])
    want = -float((a.reshape(n, 2) * np.array(weights).reshape(n, 2)).sum())
    assert abs(out.metrics["loss:sum"] - 2 * want) < 1e-3
    equal(float(a.reshape(n, 2)[1, 1]), float(b.reshape(n, 2)[1, 1]))


@case("sampled, forward and compute_logprobs: equal bit for bit")
def _():
    sampler = call(training, "save_weights_and_get_sampling_client")
    prompt = types.ModelInput.from_ints(TEXT[:4])
    params = types.SamplingParams(max_tokens=8, seed=3, temperature=1.0, stop=[])
    out = call(sampler, "sample", prompt=prompt, num_samples=3, sampling_params=params)
    equal(len(out.sequences), 3)
    assert len({tuple(s.tokens) for s in out.sequences}) > 1
    for s in out.sequences:
        text = TEXT[:4] + list(s.tokens)
        by_forward = logprobs_of(call(training, "forward", [likelihood(text)], "cross_entropy"))[0]
        scored = call(sampler, "compute_logprobs", types.ModelInput.from_ints(text))
        assert scored[0] is None
        assert np.array_equal(by_forward, np.array(scored[1:], dtype=np.float32))
        assert np.array_equal(by_forward[3:], np.array(s.logprobs, dtype=np.float32))
    again = call(sampler, "sample", prompt=prompt, num_samples=3, sampling_params=params)
    equal([list(s.tokens) for s in again.sequences], [list(s.tokens) for s in out.sequences])


@case("what sampling may ask for")
def _():
    sampler = call(service, "create_sampling_client", base_model=MODEL)
    equal(call(sampler, "get_base_model"), MODEL)
    prompt = types.ModelInput.from_ints(TEXT)
    out = call(
        sampler,
        "sample",
        prompt=prompt,
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=4, stop="\n\n", top_k=5, top_p=0.9, temperature=0.7),
        include_prompt_logprobs=True,
        topk_prompt_logprobs=2,
    )
    equal(len(out.prompt_logprobs), len(TEXT))
    equal([out.topk_prompt_logprobs[0], len(out.topk_prompt_logprobs[1])], [None, 2])
    many = [
        sampler.sample(prompt=prompt, num_samples=2, sampling_params=types.SamplingParams(max_tokens=5, seed=i))
        for i in range(40)
    ]
    assert all(len(p.result().sequences) == 2 for p in many)
    copy = type(sampler).from_sampler_handle(call(sampler, "get_sampler_handle"))
    assert call(copy, "sample", prompt=prompt, num_samples=1, sampling_params=types.SamplingParams(max_tokens=2))


@case("checkpoints: save, list, load, go on with the same bits, delete")
def _():
    rows = [likelihood(TEXT)]
    saved = call(training, "save_state", "s1", ttl_seconds=7200).path
    weights = call(training, "save_weights_for_sampler", "m1").path
    equal(saved, f"tinker://{training.model_id}/weights/s1")
    refuses("already", training, "save_state", "s1")
    call(training, "save_state", "s1", overwrite=True)
    run_info = call(rest, "get_training_run", training.model_id)
    equal([run_info.base_model, run_info.lora_rank, run_info.user_metadata], [MODEL, 8, {"renderer": "qwen3"}])
    equal(run_info.last_checkpoint.tinker_path, saved)
    equal(call(rest, "get_training_run_by_tinker_path", saved).training_run_id, training.model_id)
    assert training.model_id in [r.training_run_id for r in call(rest, "list_training_runs").training_runs]
    equal(len(call(rest, "list_checkpoints", training.model_id).checkpoints), 2)
    equal(len(call(rest, "list_user_checkpoints").checkpoints), 2)
    info = call(rest, "get_weights_info_by_tinker_path", saved)
    equal([info.base_model, info.lora_rank, info.train_unembed], [MODEL, 8, True])
    call(rest, "set_checkpoint_ttl_from_tinker_path", saved, 3600)

    def go_on(client):
        call(client, "forward_backward", rows, "cross_entropy")
        call(client, "optim_step", types.AdamParams(learning_rate=1e-3))
        return logprobs_of(call(client, "forward", rows, "cross_entropy"))[0]

    other = call(service, "create_training_client_from_state_with_optimizer", saved)
    fresh = call(service, "create_training_client_from_state", saved)
    call(other, "get_info")
    want = go_on(training)
    assert np.array_equal(want, go_on(other))
    assert not np.array_equal(want, go_on(fresh))
    call(fresh, "load_state_with_optimizer", saved)
    assert np.array_equal(want, go_on(fresh))
    call(fresh, "load_state", saved)
    sampler = call(service, "create_sampling_client", model_path=weights)
    before = call(sampler, "compute_logprobs", types.ModelInput.from_ints(TEXT))
    equal(call(sampler, "get_base_model"), MODEL)
    same = call(training, "create_sampling_client", weights)
    equal(call(same, "compute_logprobs", types.ModelInput.from_ints(TEXT)), before)
    call(rest, "delete_checkpoint", training.model_id, "weights/s1")
    call(rest, "delete_checkpoint_from_tinker_path", weights)
    equal(call(rest, "list_user_checkpoints").checkpoints, [])
    raises(Exception, lambda: call(service, "create_training_client_from_state", saved))


@case("files for PEFT")
def _():
    path = call(training, "save_weights_external", "x1").path
    urls = call(rest, "get_external_weights_urls", path).urls
    equal(sorted(urls), ["adapter_config.json", "adapter_model.safetensors"])
    with urllib.request.urlopen(urls["adapter_config.json"]) as f:
        config = json.load(f)
    equal([config["peft_type"], config["r"], config["lora_alpha"]], ["LORA", 8, 32])
    with urllib.request.urlopen(urls["adapter_model.safetensors"]) as f:
        assert len(f.read()) > 1000
    call(rest, "delete_checkpoint_from_tinker_path", path)


@case("sessions and samplers")
def _():
    sessions = call(rest, "list_sessions").sessions
    mine = training.model_id.split(":")[0]
    assert mine in sessions
    session = call(rest, "get_session", mine)
    assert training.model_id in session.training_run_ids
    equal(call(rest, "get_sampler", session.sampler_ids[0]).base_model, MODEL)


async def wait_for(client, method, *args, **kwargs):
    """Calls an asynchronous method and notes it down; a promise is waited for."""
    value = await getattr(client, method)(*args, **kwargs)
    if hasattr(value, "__await__"):
        value = await value
    used.add(f"{type(client).__name__}.{method}")
    return value


@case("asynchronous callers: training and sampling")
def _():
    async def work():
        rows = [likelihood(TEXT)]
        model = await wait_for(service, "create_lora_training_client_async", base_model=MODEL, rank=4, seed=1)
        equal((await wait_for(model, "get_info_async")).lora_rank, 4)
        gradient = await model.forward_backward_async(rows, "cross_entropy")
        step = await wait_for(model, "optim_step_async", types.AdamParams(learning_rate=1e-4))
        await gradient
        assert step.metrics["grad_norm"] > 0
        await wait_for(model, "forward_backward_async", rows, "cross_entropy")
        sampler = await wait_for(model, "save_weights_and_get_sampling_client_async")
        prompt = types.ModelInput.from_ints(TEXT)
        params = types.SamplingParams(max_tokens=3)
        out = await wait_for(sampler, "sample_async", prompt=prompt, num_samples=2, sampling_params=params)
        equal(len(out.sequences), 2)
        scored = await wait_for(sampler, "compute_logprobs_async", prompt)
        by_forward = await wait_for(model, "forward_async", rows, "cross_entropy")
        assert np.array_equal(np.array(scored[1:], dtype=np.float32), logprobs_of(by_forward)[0])
        equal(await wait_for(sampler, "get_base_model_async"), MODEL)
        path = (await wait_for(model, "save_state_async", "async")).path
        await wait_for(model, "load_state_with_optimizer_async", path)
        await wait_for(model, "load_state_async", path)
        weights = (await wait_for(model, "save_weights_for_sampler_async", "async")).path
        await wait_for(model, "create_sampling_client_async", weights)
        await wait_for(model, "save_weights_external_async", "async")
        await wait_for(service, "create_sampling_client_async", model_path=weights)
        await wait_for(service, "create_training_client_from_state_async", path)
        again = await wait_for(service, "create_training_client_from_state_with_optimizer_async", path)
        step = await wait_for(again, "optim_step_async", types.AdamParams(learning_rate=1e-4))
        equal(step.metrics["step"], 2)
        assert (await wait_for(service, "get_server_capabilities_async")).supported_models
        return model.model_id

    asynchronous.append(asyncio.run(work()))


@case("asynchronous callers: management")
def _():
    async def work(run):
        listed = await wait_for(rest, "list_checkpoints_async", run)
        equal(len(listed.checkpoints), 3)
        assert (await wait_for(rest, "list_user_checkpoints_async")).checkpoints
        assert (await wait_for(rest, "list_training_runs_async")).training_runs
        equal((await wait_for(rest, "get_training_run_async", run)).training_run_id, run)
        path = f"tinker://{run}/weights/async"
        equal((await wait_for(rest, "get_training_run_by_tinker_path_async", path)).training_run_id, run)
        await wait_for(rest, "get_external_weights_urls_async", f"tinker://{run}/external_weights/async")
        await wait_for(rest, "set_checkpoint_ttl_from_tinker_path_async", path, 7200)
        session = (await wait_for(rest, "list_sessions_async")).sessions[0]
        samplers = (await wait_for(rest, "get_session_async", session)).sampler_ids
        equal((await wait_for(rest, "get_sampler_async", samplers[0])).base_model, MODEL)
        await wait_for(rest, "delete_checkpoint_from_tinker_path_async", path)
        await wait_for(rest, "delete_checkpoint_async", run, "sampler_weights/async")
        equal(len((await wait_for(rest, "list_checkpoints_async", run)).checkpoints), 1)

    asyncio.run(work(asynchronous[0]))


@case("a sampler that is handed on")
def _():
    sampler = call(training, "save_weights_and_get_sampling_client")
    other = tinker.SamplingClient.from_sampler_handle(call(sampler, "get_sampler_handle"))
    used.add("SamplingClient.from_sampler_handle")
    params = types.SamplingParams(max_tokens=4, seed=1)
    asked = {"prompt": types.ModelInput.from_ints(TEXT), "num_samples": 1, "sampling_params": params}
    a, b = (call(x, "sample", **asked).sequences[0] for x in (sampler, other))
    equal((a.tokens, a.logprobs), (b.tokens, b.logprobs))


@case("a loss that the client computes" + ("" if torch else " # SKIP no PyTorch that knows this NumPy"))
def _():
    if not torch:
        return
    weights = [0.5, -1.0, 2.0, 0.0, 0.25, 1.0]

    def loss(data, logprobs):
        return -(torch.tensor(weights) * logprobs[0]).sum(), {"n:sum": float(len(data))}

    def new():
        return service.create_lora_training_client(base_model=MODEL, rank=4, seed=1).result()

    custom, plain = new(), new()
    equal(call(custom, "forward_backward_custom", [likelihood(TEXT)], loss).metrics["n:sum"], 1.0)
    call(plain, "forward_backward", [likelihood(TEXT, weights)], "cross_entropy")
    adam = types.AdamParams(learning_rate=1e-3)
    equal(custom.optim_step(adam).result().metrics, plain.optim_step(adam).result().metrics)
    rows = [likelihood(TEXT)]
    a, b = (logprobs_of(call(x, "forward", rows, "cross_entropy"))[0] for x in (custom, plain))
    assert np.array_equal(a, b)
    asyncio.run(wait_for(custom, "forward_backward_custom_async", rows, loss))


@case("a loss that is traced for the server runs at the client, which it is told to" + ("" if torch else " # SKIP"))
def _():
    if not torch:
        return

    def likely(logprobs, weights):
        loss = -(logprobs * weights).sum()
        return loss, {"custom/likely:sum": loss}

    handle = call(service, "create_custom_loss", likely, {"logprobs": 1, "weights": 1})
    model = service.create_lora_training_client(base_model=MODEL, rank=4, seed=1).result()
    rows = [likelihood(TEXT)]
    want = call(model, "forward", rows, "cross_entropy").metrics["loss:sum"]
    got = call(model, "forward_backward_custom", rows, handle).metrics["custom/likely:sum"]
    assert abs(got - want) < 1e-3, (got, want)


@case("log-probabilities of named ids at a prompt's places, dense and sparse")
def _():
    sampler = call(service, "create_sampling_client", base_model=MODEL)
    prompt, places = types.ModelInput.from_ints(TEXT), len(TEXT) - 1
    ids = [i for at in range(places) for i in (TEXT[at + 1], 40 + at)]
    asked = {"prompt": prompt, "num_samples": 1, "sampling_params": types.SamplingParams(max_tokens=1)}
    dense = call(sampler, "sample", **asked, target_prompt_logprobs=tensor(ids, "int64", places, 2))
    dense = np.array(dense.target_prompt_logprobs.tolist()).reshape(places, 2)
    kept = types.TensorData(
        data=[ids[0], ids[2], ids[3], ids[11]],
        dtype="int64",
        shape=[places, 2],
        sparse_crow_indices=[0, 1, 3, 3, 3, 3, 4],
        sparse_col_indices=[0, 0, 1, 1],
    )
    sparse = call(sampler, "sample", **asked, target_prompt_logprobs=kept).target_prompt_logprobs
    equal([list(sparse.sparse_crow_indices), list(sparse.sparse_col_indices)], [[0, 1, 3, 3, 3, 3, 4], [0, 0, 1, 1]])
    equal([float(x) for x in sparse.data], [float(x) for x in (dense[0, 0], dense[1, 0], dense[1, 1], dense[5, 1])])
    scored = call(sampler, "compute_logprobs", prompt)
    equal([float(x) for x in dense[:, 0]], scored[1:])


@case("copies, projects, the search for sessions, what checkpoints take")
def _():
    path = call(training, "save_state", "copied").path
    project = tinker.ServiceClient(project_id="archive")
    copy = call(project, "copy_weights", path)
    other = call(rest, "copy_weights", path, "archive", ttl_seconds=7200)
    asyncio.run(wait_for(rest, "copy_weights_async", path, "elsewhere"))
    assert len({path, copy, other}) == 3
    call(rest, "delete_checkpoint_from_tinker_path", path)
    model = call(service, "create_training_client_from_state_with_optimizer", copy)
    rows = [likelihood(TEXT)]
    a, b = (logprobs_of(call(x, "forward", rows, "cross_entropy"))[0] for x in (model, training))
    assert np.array_equal(a, b)
    runs = call(rest, "list_training_runs", project_id="archive").training_runs
    equal(len(runs), 2)
    usage = {u.project_id: u for u in call(rest, "get_current_checkpoint_storage_usage").data}
    equal([usage["archive"].checkpoint_count, usage["elsewhere"].checkpoint_count], [2, 1])
    assert asyncio.run(wait_for(rest, "get_current_checkpoint_storage_usage_async", "archive")).data[0].size_bytes > 0

    named = tinker.ServiceClient(user_metadata={"night": "7"}, display_name="Nightly run 7")
    mine = call(named, "create_lora_training_client", base_model=MODEL, rank=4).model_id.split(":")[0]
    call(rest, "assign_session_project", mine, "nights")
    asyncio.run(wait_for(rest, "assign_session_project_async", mine, "nights"))

    def search(**asked):
        return call(rest, "search_sessions", types.SessionSearchRequest(**asked))

    for asked in {"display_name": "run nightly"}, {"user_metadata": {"night": "7"}}, {"project_ids": ["nights"]}:
        found = search(**asked).sessions
        equal([(s.session_id, s.display_name, s.project_id) for s in found], [(mine, "Nightly run 7", "nights")])
    equal(search(session_id=mine).sessions[0].status.type, "active")
    call(named, "close", "success")
    equal(search(session_id=mine).sessions[0].status.reason.type, "success")
    total, page = len(search(limit=200).sessions), search(limit=2)
    seen = [s.session_id for s in page.sessions]
    while page.next_cursor:
        page = search(limit=2, cursor=page.next_cursor)
        seen += [s.session_id for s in page.sessions]
    equal([len(seen), len(set(seen))], [total, total])


@case("what a client knows without its server")
def _():
    equal(type(call(service, "create_rest_client")).__name__, "RestClient")
    assert call(service, "get_console_url") and call(training, "get_console_url")
    sampler = call(service, "create_sampling_client", base_model=MODEL)
    for client in service, training, sampler, rest:
        equal(call(client, "get_telemetry"), None)


@case("what is not built says so by name")
def _():
    refuses("does not have this call", rest, "export_session_trace", training.model_id.split(":")[0])
    refuses("does not have this call", rest, "get_audit_log")
    window = ("2026-07-13T00:00:00Z", "2026-07-14T00:00:00Z")
    refuses("does not have this call", rest, "get_billing_usage", *window)
    refuses("requires JWT", rest, "whoami")
    refuses(
        "prompt_alt_tokens_k",
        call(service, "create_sampling_client", base_model=MODEL),
        "sample",
        prompt=types.ModelInput.from_ints(TEXT),
        num_samples=1,
        sampling_params=types.SamplingParams(max_tokens=1),
        prompt_alt_tokens_k=2,
    )


@case("another key: what is not its own does not exist, unless it was published")
def _():
    path = call(training, "save_state", "shown").path
    key = os.environ["TINKER_OTHER_KEY"]
    other, others_rest = tinker.ServiceClient(api_key=key), tinker.RestClient(api_key=key)
    equal(call(others_rest, "list_training_runs").training_runs, [])
    equal(call(others_rest, "list_sessions").sessions, [])
    raises(Exception, lambda: call(others_rest, "get_weights_info_by_tinker_path", path))
    raises(Exception, lambda: call(other, "create_training_client_from_state", path))
    call(rest, "publish_checkpoint_from_tinker_path", path)
    equal(call(others_rest, "get_weights_info_by_tinker_path", path).lora_rank, 8)
    call(other, "create_training_client_from_state", path)
    raises(Exception, lambda: call(others_rest, "delete_checkpoint_from_tinker_path", path))
    call(rest, "unpublish_checkpoint_from_tinker_path", path)
    raises(Exception, lambda: call(others_rest, "get_weights_info_by_tinker_path", path))
    asyncio.run(wait_for(rest, "publish_checkpoint_from_tinker_path_async", path))
    asyncio.run(wait_for(rest, "unpublish_checkpoint_from_tinker_path_async", path))
    call(other, "close", "success")


@case("a wrong key, and a session that ends")
def _():
    raises(Exception, lambda: tinker.RestClient(api_key="tml-other").get_server_capabilities().result())
    other = tinker.ServiceClient()
    model = call(other, "create_lora_training_client", base_model=MODEL, rank=4)
    call(other, "close", "success")
    raises(Exception, lambda: model.forward([likelihood(TEXT)], "cross_entropy").result())


# Asynchronous twins of what is refused, and what only a server calls or a library calls.
ALIKE = {
    "RestClient.export_session_trace_async",
    "RestClient.get_audit_log_async",
    "RestClient.get_billing_usage_async",
}
INTERNAL = {"SamplingClient.create", "SamplingClient.on_queue_state_change"}


@case("the table of methods: each one works, or is refused with a reason")
def _():
    unknown = []
    for c in tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient:
        for n in dir(c):
            name = f"{c.__name__}.{n}"
            if n.startswith("_") or not callable(getattr(c, n)):
                continue
            if name in ALIKE or name in INTERNAL:
                continue
            said = "works" if name in used else f"refused: {refused[name]}" if name in refused else "not called"
            print(f"# {name}: {said}")
            if said == "not called" and (torch or name not in ("ServiceClient.create_custom_loss",)):
                unknown.append(name)
    if tinker.__version__ == "0.38.0":
        equal([n for n in unknown if torch or not n.startswith("TrainingClient.forward_backward_custom")], [])


run()
