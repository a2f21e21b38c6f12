"""TRL's VLLMClient against a server: `serve_trl.py URL`. Prints TAP."""

import math
import sys

import trl.generation.vllm_client as vllm_client
from serve_cases import case, equal, run

vllm_client.is_vllm_available = lambda *a, **k: True  # what it asks of vLLM itself, only weight transfer needs
client = vllm_client.VLLMClient(base_url=sys.argv[1], connection_timeout=30)
PROMPTS = [[7, 290, 9, 300], [100, 101], list(range(200, 260))]


@case("the server and its configuration")
def _():
    equal(client.model, "models/tiny")
    equal(client.get_world_size(), 1)
    config = client.get_server_info()["model_config"]
    equal((config["logprobs_mode"], config["max_model_len"]), ("processed_logprobs", 8192))


@case("generate: prompts of ids, several completions each, in their order")
def _():
    r = client.generate(PROMPTS, n=3, max_tokens=20, generation_kwargs={"seed": 5})
    equal(r["prompt_ids"], PROMPTS)
    equal(len(r["completion_ids"]), 9)
    for ids, logprobs, of in zip(r["completion_ids"], r["logprobs"], r["logprob_token_ids"]):
        equal([x[0] for x in of], ids)
        assert all(len(x) == 1 and -60 < x[0] <= 0 for x in logprobs)
    alone = client.generate(PROMPTS[1:2], n=3, max_tokens=20, generation_kwargs={"seed": 5})
    equal(alone["completion_ids"], r["completion_ids"][3:6])
    equal(alone["logprobs"], r["logprobs"][3:6])


@case("generate: texts, every sampling parameter, more log-probabilities")
def _():
    r = client.generate(
        ["int main", "void f"],
        max_tokens=10,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.02,
        repetition_penalty=1.1,
        logprobs=4,
        generation_kwargs={"frequency_penalty": 0.1, "seed": 1},
    )
    equal(len(r["completion_ids"]), 2)
    for ids, logprobs, of in zip(r["completion_ids"], r["logprobs"], r["logprob_token_ids"]):
        for i, values, names in zip(ids, logprobs, of):
            assert i in names and 4 <= len(values) <= 5 and values == sorted(values, reverse=True)
    assert client.generate(["int main"], max_tokens=4, logprobs=None)["logprobs"] is None


@case("generate: log-probabilities are those of what is drawn from")
def _():
    r = client.generate(
        PROMPTS[:1],
        max_tokens=30,
        top_k=2,
        temperature=0.8,
        logprobs=2,
        generation_kwargs={"seed": 2, "ignore_eos": True},
    )
    for values in r["logprobs"][0]:
        assert abs(sum(math.exp(v) for v in values) - 1) < 1e-4, values


@case("chat")
def _():
    talks = [[{"role": "user", "content": f"Kernel {i}."}] for i in range(5)]
    r = client.chat(
        talks, n=2, max_tokens=12, generation_kwargs={"seed": 3}, chat_template_kwargs={"enable_thinking": False}
    )
    equal((len(r["prompt_ids"]), len(r["completion_ids"])), (5, 10))
    parts = [[{"role": "user", "content": [{"type": "text", "text": "Kernel 1."}]}]]
    again = client.chat(
        parts, n=2, max_tokens=12, generation_kwargs={"seed": 3}, chat_template_kwargs={"enable_thinking": False}
    )
    equal(again["prompt_ids"][0], r["prompt_ids"][1])
    equal(again["completion_ids"], r["completion_ids"][2:4])


@case("a teacher's log-probabilities: a hundred a token")
def _():
    drawn = client.generate(PROMPTS, max_tokens=8, generation_kwargs={"seed": 1, "ignore_eos": True})
    whole = [p + c for p, c in zip(PROMPTS, drawn["completion_ids"])]
    r = client.get_sequence_logprobs(whole, [len(p) for p in PROMPTS], chunk_size=2)
    for k in range(3):
        equal((len(r["logprobs"][k]), len(r["logprobs"][k][0])), (8, 100))
        # At temperature 1 without filters the teacher's are those of sampling.
        equal([x[0] for x in r["actual_logprobs"][k]], [x[0] for x in drawn["logprobs"][k]])


@case("its prefix cache is reset")
def _():
    client.reset_prefix_cache()


run()
