"""openai-python against a server: `serve_openai.py URL KEY`, where URL is without /v1. Prints TAP."""

import asyncio
import base64
import json
import math
import re
import struct
import sys
import time
import urllib.request

import openai
from serve_cases import case, equal, raises, run

URL, KEY = sys.argv[1:3]
client = openai.OpenAI(base_url=URL + "/v1", api_key=KEY)
MODEL = client.models.list().data[0].id
TEXT = "int main(void) {\n"
USER = [{"role": "user", "content": "Write a loop."}]


def post(path, body):
    request = urllib.request.Request(
        URL + path,
        json.dumps(body).encode(),
        {"content-type": "application/json", "authorization": "Bearer " + KEY},
    )
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def complete(prompt=TEXT, **more):
    more = {"max_tokens": 24, "seed": 7, **more}
    names = (
        "top_k min_p repetition_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens "
        "return_token_ids return_tokens_as_token_ids prompt_logprobs skip_special_tokens add_special_tokens "
        "truncate_prompt_tokens truncation_side allowed_token_ids bad_words cache_salt priority request_id"
    ).split()
    extra = {k: more.pop(k) for k in list(more) if k in names}
    extra.update(more.pop("extra_body", {}))
    return client.completions.create(model=more.pop("model", MODEL), prompt=prompt, extra_body=extra, **more)


def chat(messages=USER, **more):
    more = {"max_completion_tokens": 24, "seed": 7, **more}
    return client.chat.completions.create(model=more.pop("model", MODEL), messages=messages, **more)


def ids_of(reply, i=0):
    return reply.choices[i].model_extra["token_ids"]


def tokens(text):
    return post("/tokenize", {"prompt": text})["tokens"]


GREEDY = ids_of(complete(temperature=0, return_token_ids=True))


# ---- models --------------------------------------------------------------------------------------------------------


@case("models.list and models.retrieve")
def _():
    card = client.models.retrieve(MODEL)
    equal(card.id, MODEL)
    equal(card.object, "model")
    assert card.model_extra["max_model_len"] == 8192


@case("a model that is not there")
def _():
    error = raises(openai.NotFoundError, lambda: complete(model="nobody"), "nobody")
    equal((error.code, error.param), ("model_not_found", "model"))
    raises(openai.NotFoundError, lambda: client.models.retrieve("nobody"))


# ---- completions ---------------------------------------------------------------------------------------------------


@case("completions: a text")
def _():
    r = complete()
    equal((r.object, r.model, len(r.choices)), ("text_completion", MODEL, 1))
    assert re.fullmatch("cmpl-[0-9a-f]{24}", r.id)
    equal(r.usage.prompt_tokens, len(tokens(TEXT)))
    equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens)
    assert r.choices[0].finish_reason in ("stop", "length") and r.choices[0].logprobs is None
    assert r.system_fingerprint.startswith("kernelrl-")


@case("completions: texts, ids, lists of ids, one after the other, n samples each")
def _():
    one, two = tokens("for (int i"), tokens("return 0;")
    assert one and two
    of_ids = complete(one)
    equal(complete("for (int i").choices[0].text, of_ids.choices[0].text)
    r = complete([one, two], n=2, return_token_ids=True)
    equal([c.index for c in r.choices], [0, 1, 2, 3])
    equal([c.model_extra["prompt_token_ids"] for c in r.choices], [one, one, two, two])
    equal(complete(["for (int i", "return 0;"], n=2, return_token_ids=True).choices, r.choices)
    equal(r.choices[0].text, of_ids.choices[0].text)
    assert r.choices[0].text != r.choices[1].text
    equal(r.usage.prompt_tokens, len(one) + len(two))


@case("completions: max_tokens is 16 when nothing is said, and is shortened to what fits")
def _():
    r = client.completions.create(model=MODEL, prompt=TEXT, extra_body={"ignore_eos": True})
    equal(r.usage.completion_tokens, 16)
    long = [5] * 8190
    r = complete(long, max_tokens=100, ignore_eos=True)
    equal((r.usage.completion_tokens, r.choices[0].finish_reason), (2, "length"))


@case("a prompt that is too long")
def _():
    error = raises(
        openai.BadRequestError, lambda: complete([5] * 8192), "maximum context length is 8192 tokens", "8192"
    )
    equal(error.code, "context_length_exceeded")


@case("seed: the same answer each time, and the answer names the seed that was drawn")
def _():
    equal(complete(n=3).choices, complete(n=3).choices)
    r = complete(seed=None)
    drawn = r.model_extra["seed"]
    equal(complete(seed=drawn).choices, r.choices)
    equal(complete(seed=-(2**63)).choices, complete(seed=-(2**63)).choices)
    assert complete(seed=8).choices[0].text != complete(seed=7).choices[0].text


@case("temperature 0, and what leaves one token only")
def _():
    r = complete(temperature=0, n=2, return_token_ids=True)
    equal(ids_of(r, 0), ids_of(r, 1))
    for one in ({"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}):
        equal(ids_of(complete(temperature=1.5, return_token_ids=True, **one)), GREEDY)
    equal(complete(top_k=0).choices, complete(top_k=-1).choices)


@case("penalties")
def _():
    def runs(**more):
        return ids_of(complete(temperature=0, max_tokens=60, ignore_eos=True, return_token_ids=True, **more))

    plain = runs()
    assert len(set(runs(frequency_penalty=2.0))) > len(set(plain))
    assert len(set(runs(presence_penalty=2.0))) > len(set(plain))
    assert len(set(runs(repetition_penalty=1.5))) > len(set(plain))
    equal(runs(frequency_penalty=0.0, presence_penalty=0.0, repetition_penalty=1.0), plain)
    raises(openai.BadRequestError, lambda: runs(frequency_penalty=2.5), "frequency_penalty")
    raises(openai.BadRequestError, lambda: runs(repetition_penalty=0), "repetition_penalty")


@case("logit_bias, allowed_token_ids, bad_words")
def _():
    def ids(**more):
        return ids_of(complete(return_token_ids=True, ignore_eos=True, **more))

    equal(set(ids(logit_bias={"300": 100})), {300})
    banned = {str(i): -100 for i in GREEDY}
    assert not set(ids(temperature=0, logit_bias=banned)) & set(GREEDY)
    assert set(ids(allowed_token_ids=[300, 301])) <= {300, 301}
    texts = [(i, post("/detokenize", {"tokens": [i]})["prompt"]) for i in GREEDY]
    i, word = next((i, text) for i, text in texts if not text[0].isspace() and tokens(text) == [i])
    assert i not in ids(temperature=0, bad_words=[word])
    raises(openai.BadRequestError, lambda: ids(logit_bias={"1000000": 1}), "logit_bias")
    raises(openai.BadRequestError, lambda: ids(logit_bias={"a": 1}), "logit_bias")


@case("stop strings across tokens, in the text or not")
def _():
    whole = complete(temperature=0).choices[0].text
    stop = whole[9:15]
    assert "\0" not in stop
    r = complete(temperature=0, stop=["never there", stop])
    equal(r.choices[0].text, whole[: whole.index(stop)])
    equal((r.choices[0].finish_reason, r.choices[0].model_extra["stop_reason"]), ("stop", stop))
    r = complete(temperature=0, stop=stop, include_stop_str_in_output=True)
    equal(r.choices[0].text, whole[: whole.index(stop) + len(stop)])
    raises(openai.BadRequestError, lambda: complete(stop=[""]), "stop")
    raises(openai.BadRequestError, lambda: complete(stop=["x"] * 65), "stop")


@case("stop_token_ids, ignore_eos, min_tokens")
def _():
    at = GREEDY.index(GREEDY[4])
    r = complete(temperature=0, stop_token_ids=[GREEDY[4]], return_token_ids=True)
    equal(ids_of(r), GREEDY[: at + 1])
    equal((r.choices[0].finish_reason, r.choices[0].model_extra["stop_reason"]), ("stop", GREEDY[4]))
    later = complete(temperature=0, stop_token_ids=[GREEDY[4]], min_tokens=12, return_token_ids=True)
    assert len(ids_of(later)) > 12 or later.choices[0].finish_reason == "length"
    assert GREEDY[4] not in ids_of(later)[:12]
    equal(complete(ignore_eos=True, max_tokens=200).usage.completion_tokens, 200)
    raises(openai.BadRequestError, lambda: complete(min_tokens=25), "min_tokens")


@case("logprobs of completions")
def _():
    r = complete(logprobs=3, return_token_ids=True)
    p = r.choices[0].logprobs
    n = len(ids_of(r))
    equal([len(p.tokens), len(p.token_logprobs), len(p.top_logprobs), len(p.text_offset)], [n] * 4)
    for token, logp, top in zip(p.tokens, p.token_logprobs, p.top_logprobs):
        assert logp <= 0 and 3 <= len(top) <= 4 and top[token] == logp
        assert logp <= max(top.values())
    text = r.choices[0].text
    for token, offset in zip(p.tokens, p.text_offset):
        if "\ufffd" not in token and offset + len(token) <= len(text):
            equal(text[offset : offset + len(token)], token)
    p = complete(logprobs=0).choices[0].logprobs
    assert all(list(top.values()) == [logp] for top, logp in zip(p.top_logprobs, p.token_logprobs))
    p = complete(logprobs=0, return_tokens_as_token_ids=True, return_token_ids=True)
    equal(p.choices[0].logprobs.tokens, [f"token_id:{i}" for i in ids_of(p)])
    raises(openai.BadRequestError, lambda: complete(logprobs=21), "logprobs")


@case("echo, and the same numbers as sampling gave")
def _():
    ids = tokens(TEXT)
    drawn = complete(ids, logprobs=2, return_token_ids=True)
    all_ids = ids + ids_of(drawn)
    r = complete(all_ids, max_tokens=0, echo=True, logprobs=2)
    p = r.choices[0].logprobs
    equal(len(p.tokens), len(all_ids))
    equal((p.token_logprobs[0], p.top_logprobs[0]), (None, None))
    equal(p.token_logprobs[len(ids) :], drawn.choices[0].logprobs.token_logprobs)
    equal(p.top_logprobs[len(ids) :], drawn.choices[0].logprobs.top_logprobs)
    equal(r.choices[0].text, TEXT + post("/detokenize", {"tokens": ids_of(drawn)})["prompt"])
    equal(complete(echo=True).choices[0].text, TEXT + complete().choices[0].text)


@case("prompt_logprobs")
def _():
    ids = tokens(TEXT)
    r = complete(ids, max_tokens=1, prompt_logprobs=2, return_token_ids=True)
    rows = r.choices[0].model_extra["prompt_logprobs"]
    equal((len(rows), rows[0]), (len(ids), None))
    for i, row in zip(ids[1:], rows[1:]):
        mine = row[str(i)]
        assert mine["rank"] >= 1 and mine["logprob"] <= 0 and len(row) in (2, 3)
        equal(mine["rank"] <= 2, len(row) == 2)
    echoed = complete(ids, max_tokens=0, echo=True, logprobs=0).choices[0].logprobs.token_logprobs
    equal([row[str(i)]["logprob"] for i, row in zip(ids[1:], rows[1:])], echoed[1:])


@case("skip_special_tokens, add_special_tokens, truncate_prompt_tokens")
def _():
    special = {"temperature": 0, "max_tokens": 1, "allowed_token_ids": [2044], "return_token_ids": True}  # im_start
    equal(complete(**special).choices[0].text, "")
    r = complete(**special, skip_special_tokens=False)
    equal((r.choices[0].text, ids_of(r)), ("<|im_start|>", [2044]))
    equal(complete(add_special_tokens=False).choices, complete().choices)
    ids = tokens("a b c d e f g h")
    equal(complete(ids, truncate_prompt_tokens=3).choices[0].text, complete(ids[-3:]).choices[0].text)
    right = complete(ids, truncate_prompt_tokens=3, truncation_side="right")
    equal(right.choices[0].text, complete(ids[:3]).choices[0].text)
    raises(openai.BadRequestError, lambda: complete(truncation_side="up"), "truncation_side")


def streamed(stream):
    """Texts, ids and log-probabilities by choice, ends, and usage, of the pieces of a completion."""
    text, ids, logp, ends, usage = {}, {}, {}, {}, None
    for piece in stream:
        if not piece.choices:
            usage = piece.usage
            continue
        (c,) = piece.choices
        extra = c.model_extra or {}
        assert c.text or extra.get("token_ids") or c.finish_reason
        text[c.index] = text.get(c.index, "") + c.text
        ids.setdefault(c.index, []).extend(extra.get("token_ids") or [])
        if c.logprobs:
            kept = logp.setdefault(c.index, ([], [], []))
            kept[0].extend(c.logprobs.tokens)
            kept[1].extend(c.logprobs.token_logprobs)
            kept[2].extend(c.logprobs.text_offset)
        if c.finish_reason:
            assert c.index not in ends
            ends[c.index] = c.finish_reason
    return text, ids, logp, ends, usage


@case("streams equal whole answers, whatever is asked for")
def _():
    stop = complete(temperature=0).choices[0].text[9:15]
    cases = [
        {},
        {"n": 3},
        {"logprobs": 2},
        {"return_token_ids": True},
        {"echo": True},
        {"echo": True, "logprobs": 0},
        {"stop": [stop, "}"]},
        {"stop": "}", "include_stop_str_in_output": True, "n": 2},
        {"temperature": 0},
        {"frequency_penalty": 0.5, "n": 2},
        {"skip_special_tokens": False, "ignore_eos": True},
    ]
    for more in cases:
        whole = complete(max_tokens=80, **more)
        parts = complete(max_tokens=80, stream=True, stream_options={"include_usage": True}, **more)
        text, ids, logp, ends, usage = streamed(parts)
        for c in whole.choices:
            equal(text[c.index], c.text)
            equal(ends[c.index], c.finish_reason)
            if "return_token_ids" in more:
                equal(ids[c.index], c.model_extra["token_ids"])
            if c.logprobs:
                want = (c.logprobs.tokens, c.logprobs.token_logprobs, c.logprobs.text_offset)
                equal(logp[c.index], want)
        equal(usage, whole.usage)


@case("streams: usage in each piece, or none")
def _():
    options = {"include_usage": True, "continuous_usage_stats": True}
    pieces = list(complete(stream=True, stream_options=options))
    assert all(p.usage.prompt_tokens > 0 for p in pieces)
    counts = [p.usage.completion_tokens for p in pieces]
    equal(counts, sorted(counts))
    assert all(p.choices and p.usage is None for p in complete(stream=True))
    raises(openai.BadRequestError, lambda: complete(stream_options={"include_usage": True}), "stream")


@case("what is accepted and changes nothing")
def _():
    r = complete(
        user="me",
        extra_body={
            "metadata": {"a": "b"},
            "store": False,
            "service_tier": "auto",
            "best_of": 1,
            "suffix": None,
            "response_format": {"type": "text"},
            "an_unknown_field": 1,
        },
    )
    equal(r.choices, complete().choices)
    equal(complete(cache_salt="x", priority=0).choices, r.choices)
    assert complete(request_id="mine-1").id.endswith("mine-1")


@case("what is refused, with its name")
def _():
    refused = [
        ({"suffix": "x"}, "suffix"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format"),
        ({"best_of": 3}, "best_of"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"min_p": 2}, "min_p"),
        ({"extra_body": {"guided_json": {}}}, "guided_json"),
        ({"extra_body": {"use_beam_search": True}}, "use_beam_search"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"extra_body": {"seed": "x"}}, "seed"),
    ]
    for more, name in refused:
        error = raises(openai.BadRequestError, lambda: complete(**more))
        equal(error.param, name)
        equal(error.type, "invalid_request_error")
        assert len(error.body["message"]) > 10


# ---- chat ----------------------------------------------------------------------------------------------------------


@case("chat: an answer")
def _():
    r = chat()
    equal((r.object, r.model, len(r.choices)), ("chat.completion", MODEL, 1))
    equal((r.choices[0].message.role, r.choices[0].message.refusal), ("assistant", None))
    assert isinstance(r.choices[0].message.content, str) and r.choices[0].logprobs is None
    ids = post("/tokenize", {"messages": USER})["tokens"]
    equal(r.usage.prompt_tokens, len(ids))
    raw = complete(ids, stop_token_ids=[2045])
    equal(raw.choices[0].text, r.choices[0].message.content)


@case("chat: roles, parts, names, nothing said")
def _():
    system = chat([{"role": "system", "content": "Be brief."}, *USER])
    equal(chat([{"role": "developer", "content": "Be brief."}, *USER]).choices, system.choices)
    parts = [{"role": "user", "name": "me", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    equal(chat(parts).choices, chat([{"role": "user", "content": "a\nb"}]).choices)
    chat([*USER, {"role": "assistant", "content": None}, *USER])
    raises(openai.BadRequestError, lambda: chat([{"role": "robot", "content": "x"}]), "role")
    image = [{"type": "image_url", "image_url": {"url": "data:x"}}]
    raises(openai.BadRequestError, lambda: chat([{"role": "user", "content": image}]), "text")
    raises(openai.BadRequestError, lambda: chat([]), "messages")


@case("chat: max_tokens and max_completion_tokens")
def _():
    def count(**more):
        return client.chat.completions.create(model=MODEL, messages=USER, extra_body={"ignore_eos": True}, **more).usage

    equal(count(max_tokens=5).completion_tokens, 5)
    equal(count(max_tokens=5, max_completion_tokens=7).completion_tokens, 7)


@case("chat: logprobs")
def _():
    r = chat(logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    text = b"".join(bytes(t.bytes) for t in content)
    assert text.decode().startswith(r.choices[0].message.content)
    for t in content:
        equal(len(t.top_logprobs), 3)
        values = [x.logprob for x in t.top_logprobs]
        equal(values, sorted(values, reverse=True))
        equal(bytes(t.bytes).decode(errors="replace"), t.token)
    assert all(t.top_logprobs == [] for t in chat(logprobs=True).choices[0].logprobs.content)
    equal(chat(logprobs=False).choices[0].logprobs, None)
    raises(openai.BadRequestError, lambda: chat(top_logprobs=2), "top_logprobs")
    r = chat(logprobs=True, extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True})
    want = [f"token_id:{i}" for i in ids_of(r)]
    equal([t.token for t in r.choices[0].logprobs.content], want)
    assert r.model_extra["prompt_token_ids"] == post("/tokenize", {"messages": USER})["tokens"]


@case("chat: the template's switches")
def _():
    def ids(**more):
        return chat(max_completion_tokens=1, extra_body={"return_token_ids": True, **more}).model_extra[
            "prompt_token_ids"
        ]

    end = tokens("<|im_start|>assistant\n")
    equal(ids()[: len(end)], tokens("<|im_start|>user\nWrite a loop.<|im_end|>\n<|im_start|>assistant\n")[: len(end)])
    on, off = ids(chat_template_kwargs={"enable_thinking": True}), ids(chat_template_kwargs={"enable_thinking": False})
    equal(off, on + tokens("<think>\n\n</think>\n\n"))
    equal(ids(reasoning_effort="none"), off)
    closed = ids(add_generation_prompt=False)
    equal(closed, tokens("<|im_start|>user\nWrite a loop.<|im_end|>\n"))
    talk = [*USER, {"role": "assistant", "content": "for (int"}]
    going_on = {"continue_final_message": True, "add_generation_prompt": False, "return_token_ids": True}
    r = chat(talk, max_completion_tokens=1, extra_body=going_on)
    assert r.model_extra["prompt_token_ids"][-len(tokens("for (int")) :] == tokens("for (int")
    both = {"continue_final_message": True, "add_generation_prompt": True}
    raises(openai.BadRequestError, lambda: chat(talk, extra_body=both), "continue_final_message")
    raises(openai.BadRequestError, lambda: chat(extra_body={"continue_final_message": True}), "assistant")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@case("chat: tools and formats that are not there")
def _():
    equal(chat(tools=[TOOL], tool_choice="none").choices, chat().choices)
    error = raises(openai.BadRequestError, lambda: chat(tools=[TOOL]), "tool_choice")
    equal((error.param, error.code), ("tools", "unsupported_parameter"))
    raises(openai.BadRequestError, lambda: chat(tools=[TOOL], tool_choice="required"), "tool")
    for kind in ({"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}):
        equal(raises(openai.BadRequestError, lambda: chat(response_format=kind)).param, "response_format")
    equal(chat(response_format={"type": "text"}).choices, chat().choices)
    history = [
        *USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "3"},
    ]
    text = post("/detokenize", {"tokens": post("/tokenize", {"messages": history})["tokens"]})["prompt"]
    assert '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>' in text, text
    assert "<tool_response>\n3\n</tool_response>" in text, text
    chat(history)


@case("chat: hints are ignored")
def _():
    r = chat(
        user="me",
        parallel_tool_calls=False,
        store=False,
        metadata={"a": "b"},
        service_tier="auto",
        prompt_cache_key="x",
        safety_identifier="y",
    )
    equal(r.choices, chat().choices)


@case("chat: sampling parameters mean what they mean for completions")
def _():
    prompt = post("/tokenize", {"messages": USER})["tokens"]
    both = [
        dict(temperature=0),
        dict(top_p=0.5),
        dict(frequency_penalty=1.0, presence_penalty=0.5),
        dict(n=2),
        dict(logit_bias={"300": 5}),
        dict(stop=["}"]),
    ]
    for more in both:
        a, b = chat(**more), complete(prompt, **more)
        equal([c.message.content for c in a.choices], [c.text for c in b.choices])
    extra = {"top_k": 3, "min_p": 0.1, "repetition_penalty": 1.2, "min_tokens": 5, "ignore_eos": True}
    a, b = chat(extra_body=extra), complete(prompt, extra_body=extra)
    equal(a.choices[0].message.content, b.choices[0].text)


@case("chat: streams equal whole answers")
def _():
    for more in (
        {},
        {"n": 3},
        {"logprobs": True, "top_logprobs": 2},
        {"stop": ["}"]},
        {"extra_body": {"return_token_ids": True}},
    ):
        whole = chat(max_completion_tokens=60, **more)
        text, ids, logp, ends, roles, first = {}, {}, {}, {}, {}, {}
        for piece in chat(max_completion_tokens=60, stream=True, stream_options={"include_usage": True}, **more):
            equal(piece.object, "chat.completion.chunk")
            if not piece.choices:
                usage = piece.usage
                continue
            (c,) = piece.choices
            if c.index not in roles:
                equal((c.delta.role, c.delta.content), ("assistant", ""))
                first[c.index] = piece
            roles[c.index] = True
            text[c.index] = text.get(c.index, "") + (c.delta.content or "")
            ids.setdefault(c.index, []).extend((c.model_extra or {}).get("token_ids") or [])
            if c.logprobs:
                logp.setdefault(c.index, []).extend(c.logprobs.content)
            if c.finish_reason:
                ends[c.index] = c.finish_reason
        for c in whole.choices:
            equal((text[c.index], ends[c.index]), (c.message.content, c.finish_reason))
            if c.logprobs:
                equal(logp[c.index], c.logprobs.content)
            if "extra_body" in more:
                equal(ids[c.index], c.model_extra["token_ids"])
                equal(first[c.index].model_extra["prompt_token_ids"], whole.model_extra["prompt_token_ids"])
        equal(usage, whole.usage)


@case("chat: the client's own stream helper")
def _():
    ends = {"seed": 7, "max_completion_tokens": 200, "stop": [";"]}
    with client.chat.completions.stream(model=MODEL, messages=USER, **ends) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion()
    assert "content.delta" in kinds
    equal(last.choices[0].message.content, chat(**ends).choices[0].message.content)


# ---- embeddings ----------------------------------------------------------------------------------------------------


@case("embeddings: base64 unless floats are asked for, texts and ids")
def _():
    r = client.embeddings.create(model=MODEL, input=["a loop", "another"])
    equal([d.index for d in r.data], [0, 1])
    v = r.data[0].embedding
    assert abs(math.fsum(x * x for x in v) - 1) < 1e-5
    floats = client.embeddings.create(model=MODEL, input="a loop", encoding_format="float").data[0].embedding
    equal([struct.unpack("f", struct.pack("f", x))[0] for x in floats], v)
    raw = post("/v1/embeddings", {"model": MODEL, "input": tokens("a loop"), "encoding_format": "base64"})
    equal(list(struct.unpack(f"<{len(v)}f", base64.b64decode(raw["data"][0]["embedding"]))), v)
    equal(r.usage.total_tokens, r.usage.prompt_tokens)
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input=""), "input")
    raises(openai.BadRequestError, lambda: client.embeddings.create(model=MODEL, input="a", dimensions=8), "dimensions")


# ---- the connection ------------------------------------------------------------------------------------------------


@case("keys")
def _():
    for wrong in ("wrong", KEY + "x"):
        other = openai.OpenAI(base_url=URL + "/v1", api_key=wrong)
        error = raises(openai.AuthenticationError, lambda: other.completions.create(model=MODEL, prompt=TEXT))
        equal((error.type, error.code), ("authentication_error", "invalid_api_key"))


@case("an address without /v1")
def _():
    other = openai.OpenAI(base_url=URL, api_key=KEY)
    equal(other.models.list().data[0].id, MODEL)
    r = other.chat.completions.create(model=MODEL, messages=USER, max_completion_tokens=24, seed=7)
    equal(r.choices, chat().choices)
    equal(other.completions.create(model=MODEL, prompt=TEXT, max_tokens=24, seed=7).choices, complete().choices)


@case("headers: the request's id is given back, and shown in errors")
def _():
    raw = client.completions.with_raw_response.create(model=MODEL, prompt=TEXT, extra_headers={"x-request-id": "mine"})
    equal(raw.headers["x-request-id"], "mine")
    assert raw.parse().choices
    error = raises(openai.BadRequestError, lambda: complete(n=0))
    assert error.request_id


@case("an error of the user is not tried again")
def _():
    before = metric("http_requests_total")
    raises(openai.BadRequestError, lambda: complete(n=0))
    assert metric("http_requests_total") - before <= 2  # this one, and the look at the metrics


def metric(name):
    request = urllib.request.Request(URL + "/metrics", headers={"authorization": "Bearer " + KEY})
    lines = urllib.request.urlopen(request).read().decode().splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if re.match(rf"kernelrl_{name}[ {{]", x))


@case("a stream that its client closes ends its work")
def _():
    stream = complete(max_tokens=8000, ignore_eos=True, stream=True)
    next(iter(stream))
    assert metric("requests_running") == 1
    stream.close()
    for _ in range(100):
        if metric("requests_running") == 0:
            break
        time.sleep(0.05)
    equal(metric("requests_running"), 0)


@case("a hundred streams at once, each the answer that it is alone")
def _():
    many = openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY)

    async def one(i):
        text = ""
        stream = await many.completions.create(model=MODEL, prompt=TEXT, max_tokens=20, seed=i % 10, stream=True)
        async for piece in stream:
            text += piece.choices[0].text
        return text

    async def all_of_them():
        return await asyncio.gather(*(one(i) for i in range(100)))

    got = asyncio.run(all_of_them())
    for i in range(10):
        want = complete(max_tokens=20, seed=i).choices[0].text
        assert all(got[k] == want for k in range(i, 100, 10)), i


run()
