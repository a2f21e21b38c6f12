"""litellm against a server: `serve_litellm.py URL KEY`, where URL is without /v1. Prints TAP."""

import asyncio
import os
import sys

from serve_cases import case, equal, raises, run

URL, KEY = sys.argv[1:3]
os.environ.update(
    OPENAI_API_BASE=URL + "/v1", OPENAI_API_KEY=KEY, HOSTED_VLLM_API_BASE=URL + "/v1", HOSTED_VLLM_API_KEY=KEY
)
import litellm  # noqa: E402

litellm.suppress_debug_info = True
USER = [{"role": "user", "content": "Write a loop."}]
OPENAI, VLLM = "openai/models/tiny", "hosted_vllm/models/tiny"


def ask(model=OPENAI, messages=USER, **more):
    return litellm.completion(model=model, messages=messages, **{"max_tokens": 24, "seed": 3, **more})


@case("an answer, the same by both ways")
def _():
    r = ask()
    assert r.choices[0].message.content and r.usage.completion_tokens > 0
    equal(ask(VLLM).choices[0].message.content, r.choices[0].message.content)


@case("samples, stop strings, log-probabilities, penalties")
def _():
    r = ask(n=2, logprobs=True, top_logprobs=2, stop=["}"], frequency_penalty=0.3, presence_penalty=0.2, top_p=0.9)
    equal(len(r.choices), 2)
    assert all("}" not in c.message.content for c in r.choices)
    equal(len(r.choices[0].logprobs["content"][0]["top_logprobs"]), 2)


@case("top_k reaches the server of vLLM's kind")
def _():
    equal(ask(VLLM, top_k=1).choices[0].message.content, ask(temperature=0).choices[0].message.content)


@case("a stream is the answer")
def _():
    text, usage = "", None
    for piece in ask(stream=True, stream_options={"include_usage": True}):
        text += piece.choices[0].delta.content or "" if piece.choices else ""
        usage = getattr(piece, "usage", None) or usage
    equal(text, ask().choices[0].message.content)
    equal(usage.completion_tokens, ask().usage.completion_tokens)


@case("many at once")
def _():
    async def all_of_them():
        calls = (litellm.acompletion(model=OPENAI, messages=USER, max_tokens=12, seed=i % 4) for i in range(24))
        return await asyncio.gather(*calls)

    got = [r.choices[0].message.content for r in asyncio.run(all_of_them())]
    for i in range(4):
        equal(set(got[i::4]), {ask(max_tokens=12, seed=i).choices[0].message.content})


@case("text completions")
def _():
    r = litellm.text_completion(model="text-completion-openai/models/tiny", prompt="int main", max_tokens=8, seed=1)
    assert r.choices[0].text


@case("its errors")
def _():
    raises(litellm.AuthenticationError, lambda: ask(api_key="wrong"))
    raises(litellm.NotFoundError, lambda: ask("openai/nobody"))
    raises(litellm.BadRequestError, lambda: ask(temperature=7), "temperature")
    long = [{"role": "user", "content": "word " * 20000}]
    raises(litellm.ContextWindowExceededError, lambda: ask(messages=long))
    raises(litellm.ContextWindowExceededError, lambda: ask(VLLM, messages=long))


run()
