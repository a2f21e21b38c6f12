"""The client of renderers against a server: `serve_renderers.py URL KEY MODEL`, where MODEL is the served folder.
Prints TAP."""

import asyncio
import json
import sys
import urllib.request

import openai
from renderers import OverlongPromptError, config_from_name, create_renderer
from renderers.client import generate
from serve_cases import case, equal, raises, run
from transformers import AutoTokenizer

URL, KEY, MODEL = sys.argv[1:4]
renderer = create_renderer(AutoTokenizer.from_pretrained(MODEL), config_from_name("default"))
USER = [{"role": "user", "content": "Write a loop."}]


def ask(**more):
    async def one():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY) as client:
            params = {"max_tokens": 20, "seed": 3, "temperature": 1.0, **more.pop("sampling_params", {})}
            return await generate(
                client=client,
                renderer=renderer,
                messages=more.pop("messages", USER),
                model=MODEL,
                sampling_params=params,
                **more
            )

    return asyncio.run(one())


def post(path, body):
    headers = {"content-type": "application/json", "authorization": "Bearer " + KEY}
    with urllib.request.urlopen(urllib.request.Request(URL + path, json.dumps(body).encode(), headers)) as reply:
        return json.load(reply)


@case("ids and a log-probability for each, those that completions gives")
def _():
    r = ask()
    equal(len(r["completion_logprobs"]), len(r["completion_ids"]))
    thinking = {"chat_template_kwargs": {"enable_thinking": True}}
    equal(r["prompt_ids"], post("/tokenize", {"messages": USER, **thinking})["tokens"])
    same = post(
        "/v1/completions",
        {"prompt": r["prompt_ids"], "max_tokens": 20, "seed": 3, "logprobs": 0, "return_token_ids": True},
    )["choices"][0]
    equal(r["completion_ids"], same["token_ids"])
    equal(r["completion_logprobs"], same["logprobs"]["token_logprobs"])


@case("the weights' version as cache_salt changes nothing, and a priority neither")
def _():
    equal(ask(cache_salt="7", priority=1)["completion_ids"], ask()["completion_ids"])


@case("parameters of sampling")
def _():
    one = ask(sampling_params={"top_k": 1})["completion_ids"]
    equal(ask(sampling_params={"temperature": 0.0})["completion_ids"], one)
    assert len(ask(sampling_params={"min_tokens": 18, "ignore_eos": True})["completion_ids"]) >= 18


@case("a prompt that is too long is not even sent")
def _():
    raises(OverlongPromptError, lambda: ask(prompt_ids=[5] * 8193))
    raises(openai.BadRequestError, lambda: ask(prompt_ids=[5] * 8193, max_prompt_len=10**6), "maximum context length")


run()
