"""inspect-ai against a server that KERNELRL_BASE_URL and VLLM_BASE_URL name. Prints TAP."""

import asyncio

from inspect_ai import Task, eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import ChatMessageAssistant, ChatMessageUser, GenerateConfig, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate
from serve_cases import case, equal, run

OPENAI, VLLM = "openai-api/kernelrl/models/tiny", "vllm/models/tiny"


def generated(model, text, **config):
    async def one():
        return await get_model(model).generate(text, config=GenerateConfig(**config))

    return asyncio.run(one())


@case("a task: twelve samples, scored, with log-probabilities, twice the same")
def _():
    samples = [Sample(input=f"Write kernel number {i}.", target="}") for i in range(12)]
    task = Task(dataset=samples, solver=generate(), scorer=match(location="any"))

    def completions():
        (log,) = evaluate(task, model=OPENAI, max_tokens=20, temperature=1.0, seed=5, logprobs=True, top_logprobs=2)
        equal(log.status, "success")
        assert log.results.scores[0].metrics["accuracy"].value >= 0
        for s in log.samples:
            content = s.output.choices[0].logprobs.content
            assert content and all(len(t.top_logprobs) == 2 for t in content)
        return [s.output.completion for s in log.samples]

    one = completions()
    assert len(set(one)) > 3
    equal(completions(), one)


@case("every setting that it sends")
def _():
    r = generated(
        OPENAI,
        "Write a loop.",
        max_tokens=16,
        stop_seqs=["}"],
        top_p=0.9,
        frequency_penalty=0.2,
        presence_penalty=0.1,
        logit_bias={300: 1.0},
        num_choices=2,
        seed=3,
    )
    equal(len(r.choices), 2)
    assert all("}" not in c.message.text for c in r.choices)
    assert r.usage.output_tokens > 0


@case("a prompt that is too long ends a sample as model_length")
def _():
    equal(generated(OPENAI, "word " * 20000, max_tokens=8).stop_reason, "model_length")


@case("as a server of vLLM's kind: more fields, and a last message that goes on")
def _():
    greedy = generated(OPENAI, "Write a loop.", max_tokens=16, temperature=0.0).completion
    first = generated(VLLM, "Write a loop.", max_tokens=16, temperature=1.0, extra_body={"top_k": 1})
    equal(first.completion, greedy)
    talk = [ChatMessageUser(content="Write a loop."), ChatMessageAssistant(content="for (int i = 0; i <")]
    r = generated(VLLM, talk, max_tokens=6, temperature=0.0)
    assert not r.completion.startswith("<KERNEL>"), r.completion


run()
