"""The checks of serve.sh."""

import base64
import json
import math
import os
import signal
import socket
import struct
import subprocess
import threading
import time

from serve_client import KRL, MODEL, Server, check, finish, without_ids, write_adapter

TMP = os.environ["tmp"]
TEXT = "Write a kernel that adds two vectors."
CHAT = {"messages": [{"role": "user", "content": TEXT}]}
BASE = {"prompt": TEXT, "max_tokens": 12, "seed": 5}


# ---- the command -------------------------------------------------------------------------------------------------


def command():
    assert subprocess.run([KRL, "serve", "--help"], capture_output=True).returncode == 0
    for flags, said in (
        ([], "--model is needed"),
        (["--model", MODEL, "--port", "x"], "--port"),
        (["--model", MODEL, "--host", "0.0.0.0"], "no API key"),
        (["--model", MODEL, "--adapter", "a"], "NAME=VALUE"),
        (["--model", MODEL, "--adapter", "a=/nowhere"], "adapter_config.json"),
        (["--model", MODEL, "--alias", "a=b"], 'no model "b"'),
        (["--model", "/nowhere"], "no directory"),
        (["--model", MODEL, "--config", "/nowhere"], "nowhere"),
        (["--model", MODEL, "--api-key-file", "/dev/null"], "has no key"),
        (["--model", MODEL, "--cors-origin", "x"], "SCHEME://HOST"),
    ):
        r = subprocess.run([KRL, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=60)
        assert r.returncode in (1, 2) and said in r.stderr, (flags, r.returncode, r.stderr)


def config_file():
    path = os.path.join(TMP, "serve.yaml")
    open(path, "w").write("max_queue: 7\napi_key: [key-a1, key-b2]\nadmin: true\nalias: [tiny=models/tiny]\nmax_n: 3\n")
    s = Server("--config", path, "--max-n", "5", env={"KERNELRL_API_KEYS": "key-c3, key-d4"})
    try:
        for key in ("key-a1", "key-b2", "key-c3", "key-d4"):
            s.post("/v1/completions", BASE, {"Authorization": f"Bearer {key}"})
        s.error("/v1/completions", BASE, 401, {"Authorization": "Bearer key-e5"})
        k = {"X-API-Key": "key-a1"}
        s.post("/v1/completions", {**BASE, "n": 5, "model": "tiny"}, k)
        assert s.error("/v1/completions", {**BASE, "n": 6}, 400, k)["param"] == "n"
        assert s.raw("POST", "/reset_prefix_cache", headers=k)[0] == 200
        assert "key-" not in s.log
    finally:
        assert s.stop() == 0
    open(path, "w").write("max_queu: 7\n")
    r = subprocess.run([KRL, "serve", "--model", MODEL, "--config", path], capture_output=True, text=True)
    assert r.returncode == 2 and "serve.yaml:1:1" in r.stderr and "max_queue" in r.stderr, r.stderr


# ---- shapes ------------------------------------------------------------------------------------------------------


def models():
    status, _, out = S.get("/v1/models")
    data = json.loads(out)["data"]
    assert status == 200 and data[0]["id"] == MODEL and data[0]["max_model_len"] == 8192 and data[0]["root"] == MODEL
    assert [m["id"] for m in data] == [MODEL, "tiny"] and S.get("/models")[2] == out
    assert json.loads(S.get("/v1/models/models%2Ftiny")[2]) == data[0] == json.loads(S.get("/v1/models/models/tiny")[2])
    assert S.get("/v1/models/x")[0] == 404
    e = S.error("/v1/completions", {**BASE, "model": "x"}, 404)
    assert e["code"] == "model_not_found" and e["param"] == "model"
    for name in (MODEL, "default", "", "tiny", None):
        o = S.post("/v1/completions", {**BASE, "model": name})
        assert o["model"] == (name if name == "tiny" else MODEL), o["model"]


def completion():
    o = S.post("/v1/completions", {**BASE, "logprobs": 3, "return_token_ids": True})
    assert o["id"].startswith("cmpl-") and o["object"] == "text_completion" and o["seed"] == 5
    assert o["system_fingerprint"].startswith("kernelrl-") and abs(o["created"] - time.time()) < 60
    (c,) = o["choices"]
    assert c["index"] == 0 and c["finish_reason"] == "length" and c["stop_reason"] is None
    assert len(c["token_ids"]) == 12 == o["usage"]["completion_tokens"]
    assert o["usage"]["prompt_tokens"] == len(c["prompt_token_ids"]) == o["usage"]["total_tokens"] - 12
    found = c["logprobs"]
    assert all(len(found[k]) == 12 for k in ("tokens", "token_logprobs", "top_logprobs", "text_offset"))
    assert "".join(found["tokens"]) == c["text"]
    at = 0
    for token, value, top, offset in zip(
        found["tokens"], found["token_logprobs"], found["top_logprobs"], found["text_offset"]
    ):
        assert offset == at and value <= 0 and top[token] == value and 3 <= len(top) <= 4
        at += len(token)
    ids = S.post("/v1/completions", {**BASE, "prompt": c["prompt_token_ids"], "return_token_ids": True})
    assert ids["choices"][0]["token_ids"] == c["token_ids"] and ids["choices"][0]["text"] == c["text"]
    named = S.post("/v1/completions", {**BASE, "logprobs": 0, "return_tokens_as_token_ids": True})["choices"][0]
    assert named["logprobs"]["tokens"] == [f"token_id:{i}" for i in c["token_ids"]]
    assert [list(t) for t in named["logprobs"]["top_logprobs"]] == [[t] for t in named["logprobs"]["tokens"]]
    assert S.post("/v1/completions", {**BASE, "max_tokens": None})["usage"]["completion_tokens"] <= 16


def chat():
    o = S.post("/v1/chat/completions", {**CHAT, "max_tokens": 9, "seed": 1, "logprobs": True, "top_logprobs": 2})
    assert o["id"].startswith("chatcmpl-") and o["object"] == "chat.completion"
    (c,) = o["choices"]
    assert c["message"]["role"] == "assistant" and isinstance(c["message"]["content"], str)
    assert c["message"]["refusal"] is None and c["logprobs"]["refusal"] is None
    content = c["logprobs"]["content"]
    assert len(content) == 9 and "".join(t["token"] for t in content) == c["message"]["content"]
    for t in content:
        assert bytes(t["bytes"]).decode() == t["token"] and len(t["top_logprobs"]) == 2
        assert t["top_logprobs"][0]["logprob"] >= t["top_logprobs"][1]["logprob"]
    none = S.post("/v1/chat/completions", {**CHAT, "max_tokens": 2, "logprobs": True})["choices"][0]["logprobs"]
    assert none["content"][0]["top_logprobs"] == []
    off = S.post("/v1/chat/completions", {**CHAT, "max_tokens": 2, "logprobs": True, "top_logprobs": None})
    assert off["choices"][0]["logprobs"] is None
    long = S.post("/v1/chat/completions", {**CHAT, "seed": 3, "return_token_ids": True})
    assert long["choices"][0]["finish_reason"] in ("stop", "length")
    tokens = S.post("/tokenize", CHAT)["tokens"]
    assert tokens == long["prompt_token_ids"]
    assert (
        S.post("/v1/chat/completions", {**CHAT, "max_tokens": 9, "max_completion_tokens": 2})["usage"][
            "completion_tokens"
        ]
        == 2
    )
    parts = {"messages": [{"role": "user", "content": [{"type": "text", "text": TEXT}]}]}
    assert S.post("/tokenize", parts)["tokens"] == tokens
    both = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}
    assert S.post("/tokenize", both) == S.post("/tokenize", {"messages": [{"role": "user", "content": "a\nb"}]})
    roles = [{"role": r, "content": "x"} for r in ("developer", "user", "assistant", "tool", "user")]
    S.post("/v1/chat/completions", {"messages": roles, "max_tokens": 1})
    goes_on = {"messages": CHAT["messages"] + [{"role": "assistant", "content": "<KERNEL>\n"}], "max_tokens": 1}
    S.post("/v1/chat/completions", {**goes_on, "continue_final_message": True, "add_generation_prompt": False})
    S.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "chat_template_kwargs": {"enable_thinking": False}})


def several():
    o = S.post("/v1/completions", {**BASE, "prompt": [TEXT, "Hello"], "n": 3, "return_token_ids": True})
    c = o["choices"]
    assert [x["index"] for x in c] == list(range(6)) and o["usage"]["completion_tokens"] == 72
    assert c[0]["prompt_token_ids"] == c[2]["prompt_token_ids"] != c[3]["prompt_token_ids"]
    assert c[0]["text"] != c[1]["text"]
    for k, prompt in enumerate((TEXT, "Hello")):
        alone = S.post("/v1/completions", {**BASE, "prompt": prompt, "n": 3, "return_token_ids": True})["choices"]
        assert [x["token_ids"] for x in alone] == [x["token_ids"] for x in c[3 * k : 3 * k + 3]]
    assert o["usage"]["prompt_tokens"] == len(c[0]["prompt_token_ids"]) + len(c[3]["prompt_token_ids"])
    first = S.post("/v1/completions", {**BASE, "n": 1, "return_token_ids": True})["choices"][0]
    assert first["token_ids"] == c[0]["token_ids"]
    many = S.post("/v1/completions", {"prompt": ["a", "b", "c"], "max_tokens": 3})
    again = [
        S.post("/v1/completions", {"prompt": p, "max_tokens": 3, "seed": m["seed"]})["choices"][0]["text"]
        for p, m in zip("abc", many["choices"])
    ]
    assert again == [m["text"] for m in many["choices"]] and len({m["seed"] for m in many["choices"]}) == 3
    chats = S.post("/v1/chat/completions", {**CHAT, "n": 2, "max_tokens": 4, "seed": 1})
    assert [x["index"] for x in chats["choices"]] == [0, 1]


def generate():
    ids = S.post("/tokenize", {"prompt": TEXT})["tokens"]
    body = {"token_ids": ids, "request_id": "abc", "sampling_params": {"max_tokens": 5, "seed": 5, "logprobs": 1}}
    o = S.post("/inference/v1/generate", body)
    assert o["request_id"] == "abc"
    (c,) = o["choices"]
    want = S.post("/v1/completions", {**BASE, "max_tokens": 5, "logprobs": 1, "return_token_ids": True})["choices"][0]
    assert c["token_ids"] == want["token_ids"] and c["finish_reason"] == "length"
    content = c["logprobs"]["content"]
    assert [t["token"] for t in content] == [f"token_id:{i}" for i in c["token_ids"]]
    assert [t["logprob"] for t in content] == want["logprobs"]["token_logprobs"]
    rest = S.post("/inference/v1/generate", {"token_ids": ids[:3], "sampling_params": {"seed": 1, "stop": ["\n"]}})
    assert rest["choices"][0]["finish_reason"] == "stop" and rest["choices"][0]["logprobs"] is None
    assert S.error("/inference/v1/generate", {"token_ids": []}, 400)["param"] == "token_ids"
    assert S.error("/inference/v1/generate", {"token_ids": [9999]}, 400)["param"] == "token_ids"


def echo():
    ids = S.post("/tokenize", {"prompt": TEXT})["tokens"]
    body = {"prompt": [ids], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    found = S.post("/v1/completions", body)["choices"][0]["logprobs"]
    assert (
        len(found["tokens"]) == len(ids) + 1 and found["token_logprobs"][0] is None and found["top_logprobs"][0] is None
    )
    assert found["text_offset"][0] == 0 and "".join(found["tokens"][:-1]) == TEXT
    # What was sampled has, as a prompt, the log-probabilities that it was sampled with: the same text of each number.
    drawn = S.post("/v1/completions", {**BASE, "logprobs": 1, "max_tokens": 30, "return_token_ids": True})["choices"][0]
    body = {**body, "prompt": [ids + drawn["token_ids"]]}
    again = S.post("/v1/completions", body)["choices"][0]["logprobs"]
    assert again["token_logprobs"][len(ids) : -1] == drawn["logprobs"]["token_logprobs"]
    assert again["top_logprobs"][len(ids) : -1] == drawn["logprobs"]["top_logprobs"]
    alone = S.post("/v1/completions", {"prompt": TEXT, "echo": True, "max_tokens": 0})
    assert alone["choices"][0]["text"] == TEXT and alone["usage"]["completion_tokens"] == 0
    stop = S.post("/v1/completions", {**BASE, "echo": True, "stop": ["kernel"]})["choices"][0]
    assert stop["text"].startswith(TEXT)
    p = S.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "prompt_logprobs": 2})["choices"][0]
    p = p["prompt_logprobs"]
    assert len(p) == len(ids) and p[0] is None
    for i, places in zip(ids[1:], p[1:]):
        own = places[str(i)]
        assert len(places) in (2, 3) and (own["rank"] <= 2) == (len(places) == 2)
        assert sorted(v["rank"] for v in places.values())[:2] == [1, 2]
    l0 = S.post("/v1/completions", {"prompt": TEXT, "max_tokens": 1, "echo": True, "logprobs": 0})["choices"][0]
    assert [v[str(i)]["logprob"] for i, v in zip(ids[1:], p[1:])] == l0["logprobs"]["token_logprobs"][1:-1]
    c = S.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "prompt_logprobs": 0})
    assert len(c["prompt_logprobs"]) == c["usage"]["prompt_tokens"]


def stops():
    full = S.post("/v1/completions", {**BASE, "max_tokens": 60, "ignore_eos": True, "return_token_ids": True})
    c = full["choices"][0]
    text = c["text"]
    for at in (10, 25, 40):
        for n in (1, 5, 12):
            stop = text[at : at + n]
            for keep in (False, True):
                body = {**BASE, "max_tokens": 60, "ignore_eos": True, "stop": [stop, "\0x"[1:] * 30]}
                o = S.post("/v1/completions", {**body, "include_stop_str_in_output": keep, "return_token_ids": True})
                got = o["choices"][0]
                end = text.index(stop) + (len(stop) if keep else 0)
                assert got["text"] == text[:end], (stop, got["text"], text[:end])
                assert got["finish_reason"] == "stop" and got["stop_reason"] == stop
                n_ids = len(got["token_ids"])
                assert got["token_ids"] == c["token_ids"][:n_ids] and o["usage"]["completion_tokens"] == n_ids
    target = c["token_ids"][7]
    o = S.post("/v1/completions", {**BASE, "stop_token_ids": [target], "max_tokens": 60, "return_token_ids": True})
    got = o["choices"][0]
    assert got["token_ids"][-1] == target and got["stop_reason"] == target and got["finish_reason"] == "stop"
    assert S.post("/v1/completions", {**BASE, "stop": text[3]})["choices"][0]["text"] == text[:3]
    ended = S.post("/v1/chat/completions", {**CHAT, "seed": 1, "return_token_ids": True, "max_tokens": 2000})
    last = ended["choices"][0]
    if last["finish_reason"] == "stop":
        assert last["stop_reason"] is None and "<|im_end|>" not in last["message"]["content"]
        kept = S.post("/v1/chat/completions", {**CHAT, "seed": 1, "max_tokens": 2000, "skip_special_tokens": False})
        assert kept["choices"][0]["message"]["content"].startswith(last["message"]["content"])


def parameters():
    ids = lambda **k: S.post("/v1/completions", {**BASE, "return_token_ids": True, **k})["choices"][0]["token_ids"]
    plain = ids()
    assert ids(temperature=0) == ids(temperature=0, seed=9) == ids(top_k=1, seed=4)
    assert ids(logit_bias={"100": 100}) == [100] * 12
    assert 100 not in ids(logit_bias={"100": -100}, temperature=0) and plain[0] not in ids(
        logit_bias={str(plain[0]): -100}
    )
    assert set(ids(allowed_token_ids=[7, 8, 9])) <= {7, 8, 9}
    for i in ids(temperature=0, max_tokens=40):
        bad = S.post("/detokenize", {"tokens": [i]})["prompt"]
        if bad.startswith(" ") or S.post("/tokenize", {"prompt": bad})["tokens"] != [i]:
            continue
        assert i not in ids(temperature=0, max_tokens=40, bad_words=[bad])
        break
    else:
        raise AssertionError("no word to forbid")
    assert ids(temperature=0, max_tokens=40) != ids(temperature=0, max_tokens=40, frequency_penalty=2)
    assert ids(temperature=0, max_tokens=40) != ids(temperature=0, max_tokens=40, presence_penalty=2)
    assert ids(temperature=0, max_tokens=40) != ids(temperature=0, max_tokens=40, repetition_penalty=1.5)
    eos = S.post("/tokenize", {"prompt": "<|im_end|>"})["tokens"]
    force = {str(eos[0]): 100}
    assert ids(logit_bias=force) == eos and ids(logit_bias=force, ignore_eos=True) == eos * 12
    assert len(ids(logit_bias=force, min_tokens=5)) == 6
    neutral = dict(top_k=-1, top_p=1.0, min_p=0, frequency_penalty=0, presence_penalty=0.0, repetition_penalty=1.0)
    ignored = dict(user="u", store=False, metadata={}, cache_salt="s", priority=0, logit_bias=None, stop=None, n=None)
    assert ids(**neutral, **ignored, best_of=1, suffix=None, response_format={"type": "text"}, nobody_knows=1) == plain
    assert ids(max_tokens=12.0) == plain
    assert ids(seed=-1) == ids(seed=-1) != ids(seed=2**63 - 1)
    assert S.log.count('"nobody_knows"') == 1


def refused():
    for fields, param in (
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"n": True}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**30}, None),
        ({"min_tokens": 13}, "min_tokens"),
        ({"best_of": 2}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": ["x"] * 65}, "stop"),
        ({"stop": "x" * 1025}, "stop"),
        ({"stop": "a\0b"}, "stop"),
        ({"stop_token_ids": [2048]}, "stop_token_ids"),
        ({"logit_bias": {"5000": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"seed": 1.5}, "seed"),
        ({"seed": 2**63}, None),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"suffix": "x"}, "suffix"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"guided_json": {}}, "guided_json"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [""]}, "prompt"),
        ({"prompt": 5}, "prompt"),
        ({"prompt": {}}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [2048]}, "prompt"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 128}, "n"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"presence_penalty": -2.5}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"echo": 1}, "echo"),
    ):
        e = S.error("/v1/completions", {**BASE, **fields}, 400)
        assert e["param"] == param and e["type"] == "invalid_request_error", (fields, e)
    for fields, param in (
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": None}]}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
        ({"tools": []}, "tools"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"chat_template": "x"}, "chat_template"),
        ({"reasoning_effort": "much"}, "reasoning_effort"),
        ({"continue_final_message": True}, "continue_final_message"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
    ):
        assert S.error("/v1/chat/completions", {**CHAT, **fields}, 400)["param"] == param, fields
    S.post("/v1/chat/completions", {**CHAT, "max_tokens": 1, "tools": [{"type": "function"}], "tool_choice": "none"})
    for body in (b"", b"{", b"[]", b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "\\ud800"}', b'{"a": NaN}', b"\xff"):
        S.error("/v1/completions", body, 400)
    S.error("/v1/completions", b'{"prompt": ' + b"[" * 100000, 400)


def lengths():
    s = Server("--max-len", "300", "--access-log", "off")
    try:
        assert json.loads(s.get("/v1/models")[2])["data"][0]["max_model_len"] == 300
        e = s.error("/v1/completions", {"prompt": [5] * 300}, 400)
        assert e["code"] == "context_length_exceeded" and "maximum context length is 300 tokens" in e["message"]
        o = s.post("/v1/completions", {"prompt": [5] * 297, "max_tokens": 500, "ignore_eos": True})
        assert o["usage"]["completion_tokens"] == 3 and o["choices"][0]["finish_reason"] == "length"
        assert s.post("/v1/completions", {"prompt": [5] * 297, "max_tokens": 500, "min_tokens": 400}) and s.error(
            "/v1/completions", {"prompt": [5] * 97, "min_tokens": 17}, 400
        )
        o = s.post("/v1/completions", {"prompt": [5] * 900, "max_tokens": 2, "truncate_prompt_tokens": 3})
        assert o["usage"]["prompt_tokens"] == 3
        cut = {"prompt": [5] * 900, "max_tokens": 2, "truncate_prompt_tokens": -1, "echo": True}
        o = s.post("/v1/completions", cut)
        assert o["usage"]["prompt_tokens"] == 298
        long = {"messages": [{"role": "user", "content": "xyz" * 9000}]}
        assert s.error("/v1/chat/completions", long, 400)["code"] == "context_length_exceeded"
        o = s.post("/v1/chat/completions", {**CHAT, "ignore_eos": True})
        assert o["usage"]["total_tokens"] == 300
    finally:
        assert s.stop() == 0
    s = Server("--max-len", "300", "--strict-length", "--access-log", "off")
    try:
        e = s.error("/v1/completions", {"prompt": [5] * 297, "max_tokens": 4}, 400)
        assert e["param"] == "max_tokens" and e["code"] == "context_length_exceeded"
        s.post("/v1/completions", {"prompt": [5] * 297, "max_tokens": 3})
    finally:
        assert s.stop() == 0


# ---- streams -----------------------------------------------------------------------------------------------------


def joined(chunks):
    """The unstreamed reply that the chunks of a stream add up to."""
    whole = {k: v for k, v in chunks[0].items() if k not in ("choices", "usage", "object")}
    choices = {}
    for chunk in chunks:
        assert all(chunk[k] == whole[k] for k in ("id", "created", "model", "system_fingerprint", "seed") if k in whole)
        for c in chunk["choices"]:
            o = choices.setdefault(c["index"], {"text": "", "ids": [], "logprobs": None, "finishes": 0})
            delta = c.get("delta")
            o["text"] += (delta.get("content") or "") if delta is not None else c["text"]
            o["ids"] += c.get("token_ids") or []
            if "prompt_token_ids" in c:
                o["prompt_token_ids"] = c["prompt_token_ids"]
            if c["logprobs"]:
                if o["logprobs"] is None:
                    o["logprobs"] = {k: [] for k in c["logprobs"]}
                for k, v in c["logprobs"].items():
                    o["logprobs"][k] = o["logprobs"][k] + v if v is not None else None
            assert o["finishes"] == 0
            if c["finish_reason"]:
                o["finishes"] += 1
                o["finish_reason"], o["stop_reason"] = c["finish_reason"], c["stop_reason"]
    assert all(o["finishes"] == 1 for o in choices.values())
    return [choices[i] for i in sorted(choices)]


def same_as_streamed(path, body):
    whole = S.post(path, body)
    parts = joined(S.stream(path, body))
    assert len(parts) == len(whole["choices"])
    for p, c in zip(parts, whole["choices"]):
        assert p["text"] == (c["message"]["content"] if "message" in c else c["text"]), body
        assert (p["finish_reason"], p["stop_reason"]) == (c["finish_reason"], c["stop_reason"]), body
        assert p["ids"] == (c.get("token_ids") or []), body
        if c["logprobs"] and c["logprobs"].get("tokens") != []:
            assert p["logprobs"] == c["logprobs"], body
        assert p.get("prompt_token_ids") == c.get("prompt_token_ids")


def streams():
    for n, extra in enumerate(
        (
            {},
            {"logprobs": 2},
            {"logprobs": 0, "echo": True},
            {"echo": True},
            {"return_token_ids": True},
            {"n": 3, "return_token_ids": True, "logprobs": 1},
            {"prompt": [TEXT, "Hi"], "n": 2, "return_token_ids": True},
            {"stop": ["\n", ";"], "max_tokens": 50},
            {"stop": ["kernel", "float", "  "], "include_stop_str_in_output": True, "max_tokens": 50},
            {"logit_bias": {str(i): -100 for i in range(256, 1000)}, "temperature": 2, "max_tokens": 60},
            {"skip_special_tokens": False, "ignore_eos": True, "temperature": 2, "max_tokens": 60},
            {"max_tokens": 280, "temperature": 1.8, "ignore_eos": True, "return_token_ids": True, "logprobs": 1},
        )
    ):
        same_as_streamed("/v1/completions", {**BASE, "seed": n, **extra})
    for n, extra in enumerate(
        (
            {},
            {"logprobs": True, "top_logprobs": 2},
            {"n": 2, "return_token_ids": True},
            {"stop": ["\n\n", "}"]},
            {"temperature": 2, "ignore_eos": True},
        )
    ):
        same_as_streamed("/v1/chat/completions", {**CHAT, "max_tokens": 60, "seed": n, **extra})


def stream_form():
    usage = {"stream_options": {"include_usage": True}}
    chunks = S.stream("/v1/completions", {**BASE, **usage})
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 12
    assert all(c["usage"] is None and len(c["choices"]) == 1 for c in chunks[:-1])
    assert all("usage" not in c for c in S.stream("/v1/completions", BASE))
    every = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [c["usage"]["completion_tokens"] for c in S.stream("/v1/completions", {**BASE, **every})]
    assert counts == sorted(counts) and counts[-1] == 12
    said = S.stream("/v1/chat/completions", {**CHAT, "max_tokens": 5, "seed": 1, **every})
    assert said[0]["usage"]["completion_tokens"] == 0 and said[-1]["usage"]["completion_tokens"] == 5
    for path, body in (("/v1/completions", BASE), ("/v1/chat/completions", {**CHAT, "max_tokens": 5})):
        whole = S.post(path, body)
        nulls = {**whole, **whole["choices"][0]}
        for name in ("prompt_logprobs", "prompt_token_ids", "token_ids"):
            assert nulls[name] is None, (path, name)
    chat = S.stream("/v1/chat/completions", {**CHAT, "max_tokens": 5, "seed": 1})
    assert chat[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all(c["object"] == "chat.completion.chunk" for c in chat)
    for c in chat[1:]:
        assert c["choices"][0]["delta"].get("content") != "" or c["choices"][0]["finish_reason"]
    assert S.error("/v1/completions", {**BASE, "stream": True, "temperature": 9}, 400)["param"] == "temperature"


# ---- seeds -------------------------------------------------------------------------------------------------------


def seeded(i):
    body = {"prompt": f"{TEXT} {i}", "seed": i * 1000003, "max_tokens": 20 + i, "logprobs": i % 3, "n": 1 + i % 2}
    return {**body, "temperature": [0, 0.7, 1][i % 3]}


def at_once(s, bodies, leavers=False):
    """All bodies at once, in that order; the replies."""
    replies = [None] * len(bodies)

    def ask(i):
        replies[i] = without_ids(s.post("/v1/completions", bodies[i]))

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for k, t in enumerate(threads):
        t.start()
        if leavers and k % 3 == 0:
            gone = s.send("/v1/completions", {**seeded(k), "stream": k % 2 == 0, "max_tokens": 500})
            time.sleep(0.01)
            gone.close()
    for t in threads:
        t.join()
    return replies


def seeds():
    bodies = [seeded(i) for i in range(24)]
    alone = [without_ids(S.post("/v1/completions", b)) for b in bodies]
    assert at_once(S, bodies) == alone
    assert at_once(S, bodies[::-1]) == alone[::-1]
    assert at_once(S, bodies, leavers=True) == alone
    other = Server("--max-batch", "3", "--access-log", "off", "--threads", "1")
    try:
        assert at_once(other, bodies) == alone
    finally:
        assert other.stop() == 0
    o = S.post("/v1/completions", {"prompt": TEXT, "max_tokens": 8})
    again = S.post("/v1/completions", {"prompt": TEXT, "max_tokens": 8, "seed": o["seed"]})
    assert without_ids(o) == without_ids(again) and o["seed"] >= 0


# ---- tokens and embeddings ---------------------------------------------------------------------------------------


def tokens():
    o = S.post("/tokenize", {"prompt": "héllo<|im_end|>", "return_token_strs": True})
    assert o["count"] == len(o["tokens"]) == len(o["token_strs"]) and o["max_model_len"] == 8192
    assert o["token_strs"][-1] == "<|im_end|>"
    assert S.post("/detokenize", {"tokens": o["tokens"]}) == {"prompt": "héllo<|im_end|>"}
    pieces = S.post("/tokenize", {"content": "a 媽", "with_pieces": True})["tokens"]
    assert [t["id"] for t in pieces] == S.post("/tokenize", {"content": "a 媽"})["tokens"]
    raw = [p.encode() if isinstance(p, str) else bytes(p) for p in (t["piece"] for t in pieces)]
    assert b"".join(raw) == "a 媽".encode() and any(isinstance(t["piece"], list) for t in pieces)
    assert S.post("/v1/tokenize", {"content": "a", "add_special": False})["count"] == 1
    assert S.error("/detokenize", {"tokens": [99999]}, 400)["param"] == "tokens"
    assert S.error("/tokenize", {}, 400)
    assert S.error("/tokenize", {"content": "a", "add_special": 1}, 400)["param"] == "add_special"
    inside = {"messages": [{"role": "user", "content": "<|im_end|>"}]}
    marks = S.post("/tokenize", inside)["tokens"].count(o["tokens"][-1])
    plain = S.post("/tokenize", {"messages": [{"role": "user", "content": "x"}]})["tokens"]
    assert marks == plain.count(o["tokens"][-1])
    info = json.loads(S.get("/tokenizer_info")[2])
    assert info["eos_token"] == "<|im_end|>" and info["tokenizer_class"]
    long = "kernel " * 40000  # so long that another thread works on it
    n = S.post("/tokenize", {"prompt": long})
    assert S.post("/detokenize", {"tokens": n["tokens"]})["prompt"] == long
    assert S.post("/detokenize", {"tokens": [0] * 20000})["prompt"]


def embeddings():
    o = S.post("/v1/embeddings", {"input": ["one", "two words here"]})
    v = [d["embedding"] for d in o["data"]]
    assert [d["index"] for d in o["data"]] == [0, 1] and len(v[0]) == 256 and o["usage"]["prompt_tokens"] > 3
    assert all(abs(math.sqrt(sum(x * x for x in e)) - 1) < 1e-5 for e in v)
    b = S.post("/v1/embeddings", {"input": ["one", "two words here"], "encoding_format": "base64"})
    for d, e in zip(b["data"], v):
        packed = struct.unpack("<256f", base64.b64decode(d["embedding"]))
        assert all(struct.unpack("<f", struct.pack("<f", x))[0] == y for x, y in zip(e, packed))
    assert S.post("/v1/embeddings", {"input": "two words here"})["data"][0]["embedding"] == v[1]
    many = S.post("/v1/embeddings", {"input": ["two words here"] + ["x" * 50] * 200})
    assert many["data"][0]["embedding"] == v[1] and len(many["data"]) == 201
    ids = S.post("/tokenize", {"prompt": "one"})["tokens"]
    assert S.post("/v1/embeddings", {"input": [ids]})["data"][0]["embedding"] == v[0]
    for fields, param in (
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 64}, "dimensions"),
        ({"input": [5] * 9000}, "input"),
    ):
        assert S.error("/v1/embeddings", fields, 400)["param"] == param, fields
    S.error("/v1/embeddings", {"input": "a", "model": "x"}, 404)


# ---- metrics and the log -----------------------------------------------------------------------------------------


def metrics():
    text = S.get("/metrics")[2].decode()
    types = {line.split()[2]: line.split()[3] for line in text.splitlines() if line.startswith("# TYPE")}
    for line in text.splitlines():
        if not line.startswith("#"):
            name = line.split("{")[0].split()[0]
            family = name if name in types else name.rsplit("_", 1)[0]
            assert family in types, line
            float(line.split()[-1])
    for name in (
        "kernelrl_requests_running",
        "kernelrl_requests_waiting",
        "vllm:num_requests_running",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:prompt_tokens_total",
        "vllm:generation_tokens_total",
        "vllm:request_success_total",
        "vllm:time_to_first_token_seconds",
        "vllm:inter_token_latency_seconds",
        "vllm:e2e_request_latency_seconds",
        "vllm:lora_requests_info",
        "vllm:prefix_cache_hits_total",
    ):
        assert name in types, name
    before = S.metric("vllm:generation_tokens_total")
    S.post("/v1/completions", {**BASE, "ignore_eos": True})
    assert S.metric("vllm:generation_tokens_total") == before + 12
    assert S.metric("kernelrl_requests_running") == 0
    assert S.get("/version")[0] == 200 and json.loads(S.get("/get_world_size")[2]) == {"world_size": 1}
    info = json.loads(S.get("/server_info?config_format=json")[2])["vllm_config"]["model_config"]
    assert info["max_model_len"] == 8192 and info["logprobs_mode"] == "raw_logprobs"
    lines = [json.loads(line) for line in S.log.splitlines() if line.startswith("{")]
    done = [line for line in lines if line["path"] == "/v1/completions" and line["status"] == 200]
    assert done[-1]["completion_tokens"] == 12 and done[-1]["model"] == MODEL and done[-1]["ms"] > 0
    assert not [line for line in lines if line["path"] == "/health" and line["status"] == 200]
    status, head, _ = S.raw("POST", "/v1/completions", BASE, {"X-Request-Id": "my-own"})
    assert status == 200 and head["x-request-id"] == "my-own"


# ---- who leaves --------------------------------------------------------------------------------------------------


def leave(sock, how):
    if how == "reset":
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    if how == "half":
        sock.shutdown(socket.SHUT_WR)
        return sock  # still open
    sock.close()


def leavers():
    s = Server("--max-batch", "2", "--access-log", "off")
    try:
        long = {"prompt": TEXT, "max_tokens": 8000, "ignore_eos": True}
        stay = {**long, "max_tokens": 250, "seed": 3}
        want = without_ids(s.post("/v1/completions", stay))
        for how in ("close", "reset", "half"):
            for stream in (False, True):
                # decoding
                c = s.send("/v1/completions", {**long, "stream": stream})
                s.wait_metric("kernelrl_sequences_running", 1)
                leave(c, how)
                s.wait_metric("kernelrl_sequences_running", 0)
                # queued, behind two that run
                runs = [s.send("/v1/completions", {**long, "stream": True}) for _ in range(2)]
                s.wait_metric("kernelrl_sequences_running", 2)
                c2 = s.send("/v1/completions", {**long, "stream": stream})
                s.wait_metric("kernelrl_requests_waiting", 1)
                leave(c2, how)
                s.wait_metric("kernelrl_requests_waiting", 0)
                assert s.metric("kernelrl_sequences_running") == 2
                for r in runs:
                    r.close()
                s.wait_metric("kernelrl_sequences_running", 0)
        # prefill of a long prompt, and while it is scored
        for extra in ({}, {"prompt_logprobs": 1}):
            c = s.send("/v1/completions", {"prompt": [7] * 3000, "max_tokens": 100, "ignore_eos": True, **extra})
            s.wait_metric("kernelrl_sequences_waiting", 1)
            c.close()
            s.wait_metric("kernelrl_sequences_waiting", 0)
            s.wait_metric("kernelrl_requests_running", 0)
        # one who stays beside many who leave gets what it gets alone
        got = []
        t = threading.Thread(target=lambda: got.append(without_ids(s.post("/v1/completions", stay))))
        t.start()
        for i in range(40):
            c = s.send("/v1/completions", {**long, "stream": i % 2 == 0})
            time.sleep(0.005 * (i % 5))
            leave(c, ("close", "reset")[i % 2])
        t.join()
        assert got == [want]
        s.wait_metric("kernelrl_requests_running", 0)
        s.wait_metric("kernelrl_http_exchanges", 1)  # this request for metrics
        assert s.metric("kernelrl_requests_left_total") >= 50
    finally:
        assert s.stop() == 0


def full_queue():
    s = Server("--max-batch", "1", "--max-queue", "3", "--access-log", "off")
    try:
        long = {"prompt": TEXT, "max_tokens": 8000, "ignore_eos": True, "stream": True}
        first = s.send("/v1/completions", long)
        s.wait_metric("kernelrl_sequences_running", 1)
        # A request that comes to an empty queue is admitted, whatever its size.
        wide = s.send("/v1/completions", {**BASE, "n": 100, "max_tokens": 1})
        s.wait_metric("kernelrl_sequences_waiting", 100)
        status, head, out = s.raw("POST", "/v1/completions", BASE)
        assert status == 429 and 1 <= int(head["retry-after"]) <= 60, (status, head)
        e = json.loads(out)["error"]
        assert e["type"] == "rate_limit_error" and e["code"] == "queue_full" and "3" in e["message"]
        assert s.get("/health")[0] == 200
        wide.close()
        s.wait_metric("kernelrl_sequences_waiting", 0)
        waiting = [s.send("/v1/completions", {**BASE, "max_tokens": 1}) for _ in range(3)]
        s.wait_metric("kernelrl_sequences_waiting", 3)
        assert s.raw("POST", "/v1/completions", BASE)[0] == 429
        assert s.metric("kernelrl_requests_refused_total") == 2
        first.close()
        for w in waiting:
            assert w.recv(12) == b"HTTP/1.1 200"
    finally:
        assert s.stop() == 0


def waits_too_long():
    s = Server("--max-batch", "1", "--max-wait", "0.5", "--access-log", "off")
    try:
        first = s.send("/v1/completions", {"prompt": TEXT, "max_tokens": 8000, "ignore_eos": True, "stream": True})
        s.wait_metric("kernelrl_sequences_running", 1)
        assert s.error("/v1/completions", BASE, 503)["code"] == "busy"
        c = s.stream("/v1/completions", BASE)
        assert c[-1]["error"]["code"] == "busy"
        first.close()
        s.wait_metric("kernelrl_sequences_running", 0)
    finally:
        assert s.stop() == 0


def slow_clients():
    s = Server("--header-timeout", "1", "--body-timeout", "2", "--idle-timeout", "2", "--access-log", "off")
    try:
        drips = [s.socket() for _ in range(200)]
        body = s.socket()
        body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
        body.sendall(b"Content-Length: 1000\r\n\r\n{")
        from_ = time.monotonic()
        open_ = list(drips)
        while open_ and time.monotonic() - from_ < 20:
            for d in list(open_):
                try:
                    d.sendall(b"G")
                    d.setblocking(False)
                    if d.recv(100) == b"":
                        open_.remove(d)
                except BlockingIOError:
                    pass
                except OSError:
                    open_.remove(d)
            assert s.get("/health")[0] == 200
            time.sleep(0.1)
        assert not open_
        assert b"408" in body.recv(1000)
        assert s.metric("kernelrl_http_timeouts_total") >= 201
        s.wait_metric("kernelrl_http_connections", 1)
    finally:
        assert s.stop() == 0


# ---- adapters ----------------------------------------------------------------------------------------------------


def adapters():
    folder = os.path.join(TMP, "adapters")
    for k in range(4):
        write_adapter(os.path.join(folder, f"a{k}"), seed=k)
    os.makedirs(os.path.join(TMP, "elsewhere"))
    write_adapter(os.path.join(TMP, "elsewhere", "b"), seed=9)
    os.symlink(os.path.join(TMP, "elsewhere", "b"), os.path.join(folder, "link"))
    flags = ("--admin", "--adapter-dir", folder, "--adapter", f"first={folder}/a0", "--max-adapters", "3")
    s = Server(*flags, "--access-log", "off")
    try:
        ask = lambda name: without_ids(s.post("/v1/completions", {**BASE, "model": name}))
        load = lambda status=200, path="/v1/load_lora_adapter", **k: s.raw("POST", path, k)
        base, first = ask(MODEL), ask("first")
        text = lambda o: o["choices"][0]["text"]
        assert text(base) != text(first) and base["system_fingerprint"] != first["system_fingerprint"]
        status, head, out = load(lora_name="x", lora_path="a1")
        assert status == 200 and head["content-type"].startswith("text/plain") and b"x" in out
        listed = json.loads(s.get("/v1/models")[2])["data"]
        assert [m["id"] for m in listed] == [MODEL, "first", "x"] and listed[2]["parent"] == MODEL
        one = ask("x")
        assert load(lora_name="x", lora_path="a2")[0] == 400
        assert load(lora_name="x", lora_path=f"{folder}/a2", load_inplace=True)[0] == 200
        two = ask("x")
        assert text(one) != text(two) and one["system_fingerprint"] != two["system_fingerprint"]
        status, _, out = load(path="/load_lora_adapter", lora_name="x", lora_path="a1")
        assert status == 200 and json.loads(out) == {"status": "ok"} and ask("x") == one
        # paths that lead out, and what is no adapter
        for path in ("../elsewhere/b", f"{TMP}/elsewhere/b", "link", "nothing", "a0/../../elsewhere/b", "/etc"):
            status, _, out = load(lora_name="y", lora_path=path)
            assert status == 404, (path, status, out)
        for bad in ({"lora_name": "y"}, {"lora_path": "a1"}, {"lora_name": "", "lora_path": "a1"}):
            assert load(**bad)[0] == 400
        assert load(lora_name=MODEL, lora_path="a1")[0] == 400 and load(lora_name="default", lora_path="a1")[0] == 400
        os.makedirs(os.path.join(folder, "empty"))
        assert load(lora_name="y", lora_path="empty")[0] == 400
        # more names than are held: who was used least is given up, and comes back
        assert load(lora_name="y", lora_path="a2")[0] == 200 and load(lora_name="z", lora_path="a3")[0] == 200
        assert ask("first") == first and ask("x") == one and ask("y")["choices"] == two["choices"]
        assert s.metric("vllm:lora_requests_info") == 3
        # each answer is one version's, which its fingerprint names, while they change
        versions = {one["system_fingerprint"]: text(one), two["system_fingerprint"]: text(two)}
        stop, wrong, seen, answers = [], [], set(), [0]

        def asks():
            while not stop:
                o = ask("x")
                seen.add(o["system_fingerprint"])
                answers[0] += 1
                if versions.get(o["system_fingerprint"]) != text(o):
                    wrong.append(o)

        threads = [threading.Thread(target=asks) for _ in range(4)]
        for t in threads:
            t.start()
        for k in range(30):
            before = answers[0]
            assert load(lora_name="x", lora_path=("a2", "a1")[k % 2], load_inplace=True)[0] == 200
            while answers[0] < before + k % 6 and not wrong:
                time.sleep(0.005)
        stop.append(True)
        for t in threads:
            t.join()
        assert not wrong and len(seen) == 2, (wrong[:1], seen)
        assert s.raw("POST", "/v1/unload_lora_adapter", {"lora_name": "x"})[0] == 200
        s.error("/v1/completions", {**BASE, "model": "x"}, 404)
        s.error("/v1/unload_lora_adapter", {"lora_name": "x"}, 404)
        s.error("/v1/unload_lora_adapter", {"lora_name": MODEL}, 400)
        assert ask(MODEL) == base
    finally:
        assert s.stop() == 0


def run_directory():
    run = os.path.join(TMP, "run")
    for name, seed in (("2", 1), ("10", 2)):
        write_adapter(os.path.join(run, "checkpoints", name), seed)
    open(os.path.join(run, "config.yaml"), "w").write(f"model_name: {MODEL}\n")
    os.makedirs(os.path.join(run, "checkpoints", "12"))  # not complete
    s = Server(model=run)
    try:
        data = json.loads(s.get("/v1/models")[2])["data"]
        assert [m["id"] for m in data] == [run, MODEL, f"{run}@10", f"{run}@2"], data
        text = lambda **k: s.post("/v1/completions", {**BASE, **k})["choices"][0]["text"]
        newest = text()
        assert newest == text(model=run) == text(model=f"{run}@10") != text(model=f"{run}@2")
        assert text(model=MODEL) not in (newest, text(model=f"{run}@2"))
    finally:
        assert s.stop() == 0
    s = Server(model=os.path.join(run, "checkpoints", "2"))
    try:
        assert s.post("/v1/completions", BASE)["choices"][0]["text"] not in (newest,)
    finally:
        assert s.stop() == 0


# ---- pauses ------------------------------------------------------------------------------------------------------


def pauses():
    s = Server("--admin", "--access-log", "off")
    try:
        long = {"prompt": TEXT, "max_tokens": 300, "ignore_eos": True, "seed": 1}
        want = without_ids(s.post("/v1/completions", long))
        got = []

        def ask():
            got.append(without_ids(s.post("/v1/completions", long)))

        def begin():
            t = threading.Thread(target=ask)
            t.start()
            s.wait_metric("kernelrl_sequences_running", 1)
            return t

        for clear in ("true", "false"):
            t = begin()
            assert s.raw("POST", f"/pause?mode=keep&clear_cache={clear}")[0] == 200
            assert json.loads(s.get("/is_paused")[2]) == {"is_paused": True}
            steps = s.metric("kernelrl_sequences_running")
            time.sleep(0.2)
            assert steps == 1 and t.is_alive() and s.get("/health")[0] == 200
            assert s.raw("POST", "/resume")[0] == 200
            t.join()
            assert got.pop() == want
        t = begin()
        assert s.raw("POST", "/pause?mode=wait")[0] == 200  # when what runs has ended
        t.join()
        assert got.pop() == want
        t = threading.Thread(target=ask)
        t.start()
        time.sleep(0.2)
        assert t.is_alive() and s.metric("kernelrl_sequences_running") == 0
        s.raw("POST", "/resume")
        t.join()
        assert got.pop() == want
        t = begin()
        assert s.raw("POST", "/pause")[0] == 200  # abort
        t.join()
        assert got[0]["choices"][0]["finish_reason"] == "abort" and want["choices"][0]["text"].startswith(
            got.pop()["choices"][0]["text"]
        )
        s.raw("POST", "/resume")
        assert s.raw("POST", "/pause?mode=x")[0] == 400
        c = s.send("/v1/completions", {**long, "stream": True}, "X-Request-Id: to-end\r\n")
        s.wait_metric("kernelrl_sequences_running", 1)
        assert s.raw("POST", "/abort_requests", {"request_ids": ["to-end", "unknown"]})[0] == 200
        out = b""
        while b"[DONE]" not in out:
            out += c.recv(65536)
        assert b'"finish_reason":"abort"' in out
        s.wait_metric("kernelrl_sequences_running", 0)
    finally:
        assert s.stop() == 0


# ---- who may ask -------------------------------------------------------------------------------------------------


def keys():
    path = os.path.join(TMP, "keys")
    open(path, "w").write("file-key\n\n  spaced  \n")
    s = Server("--api-key", "flag-key", "--api-key-file", path, "--admin-key", "admin-key")
    try:
        ask = lambda h: s.raw("POST", "/v1/completions", BASE, h)[0]
        for key in ("flag-key", "file-key", "spaced", "admin-key"):
            assert ask({"Authorization": f"Bearer {key}"}) == 200 and ask({"X-API-Key": key}) == 200
        for h in ({}, {"Authorization": "Bearer x"}, {"Authorization": "flag-key"}, {"Authorization": "Bearer "}):
            assert ask(h) == 401
        assert s.get("/health")[0] == 200 and s.get("/v1/models")[0] == 200
        for path in ("/metrics", "/tokenizer_info", "/is_paused"):
            assert s.get(path)[0] == 401
        assert s.raw("POST", "/pause", headers={"X-API-Key": "flag-key"})[0] == 403
        assert s.raw("POST", "/pause?mode=keep", headers={"X-API-Key": "admin-key"})[0] == 200
        assert s.raw("POST", "/resume", headers={"X-API-Key": "admin-key"})[0] == 200
        for word in ("flag-key", "file-key", "spaced", "admin-key", "Bearer"):
            assert word not in s.log
    finally:
        assert s.stop() == 0
    assert S.raw("POST", "/pause")[0] == 403  # without --admin
    assert S.raw("POST", "/v1/completions", BASE, {"Host": "evil.example"})[0] == 421
    assert S.raw("POST", "/v1/completions", BASE, {"Origin": "http://evil.example"})[0] == 403
    assert S.raw("POST", "/v1/completions", BASE, {"Content-Type": "text/plain"})[0] == 415
    assert S.raw("OPTIONS", "/v1/completions", headers={"Origin": "http://evil.example"})[0] == 405
    c = S.socket()
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n")
    c.sendall(b"Content-Length: 17000000\r\n\r\n" + b"x" * 1000000)  # refused before it is read, and yet answered
    assert b"413" in c.recv(4096)


# ---- the end -----------------------------------------------------------------------------------------------------


def drain():
    s = Server("--max-batch", "4", "--access-log", "off")
    bodies = [{**BASE, "max_tokens": 150, "ignore_eos": True, "seed": i} for i in range(8)]
    want = [s.post("/v1/completions", b)["choices"][0]["text"] for b in bodies]
    got = [None] * 8

    def ask(i):
        if i % 2:
            got[i] = joined(s.stream("/v1/completions", bodies[i]))[0]["text"]
        else:
            got[i] = s.post("/v1/completions", bodies[i])["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(8)]
    idle = s.socket()
    for t in threads:
        t.start()
    s.wait_metric("kernelrl_sequences_running", 4)
    s.wait_metric("kernelrl_requests_waiting", 4)
    late = s.connect()
    late.request("GET", "/health")
    assert late.getresponse().read()
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    try:
        s.socket().close()
        raise RuntimeError("it still listens")
    except ConnectionError:
        pass
    for t in threads:
        t.join()
    assert got == want, (got, want)
    assert s.process.wait(30) == 0
    idle.close()
    # One that goes on too long is cut off at the end, with an error.
    s = Server("--drain-timeout", "0.3", "--access-log", "off")
    long = {"prompt": TEXT, "max_tokens": 8000, "ignore_eos": True}
    streams = s.send("/v1/completions", {**long, "stream": True})
    waits = s.send("/v1/completions", long)
    s.wait_metric("kernelrl_sequences_running", 2)
    from_ = time.monotonic()
    s.process.send_signal(signal.SIGINT)
    out = b""
    while part := streams.recv(65536):
        out += part
    assert b'"code":"draining"' in out and b"[DONE]" in out and out.endswith(b"0\r\n\r\n")
    assert b"503" in waits.recv(4096)
    assert s.process.wait(30) == 0 and time.monotonic() - from_ < 20
    # A second signal ends it at once.
    s = Server("--drain-timeout", "600", "--access-log", "off")
    c = s.send("/v1/completions", {**long, "stream": True})
    s.wait_metric("kernelrl_sequences_running", 1)
    s.process.send_signal(signal.SIGTERM)
    time.sleep(0.2)
    assert s.process.poll() is None
    s.process.send_signal(signal.SIGTERM)
    assert s.process.wait(20) == 0
    c.close()


def port_taken():
    r = subprocess.run([KRL, "serve", "--model", MODEL, "--port", str(S.port)], capture_output=True, text=True)
    assert r.returncode == 1 and "cannot listen" in r.stderr, r.stderr


check("what the command refuses", command)
S = Server("--alias", "tiny=models/tiny", "--embeddings", "mean")
for test in (
    models,
    completion,
    chat,
    several,
    generate,
    echo,
    stops,
    parameters,
    refused,
    lengths,
    streams,
    stream_form,
    seeds,
    tokens,
    embeddings,
    metrics,
    keys,
    port_taken,
):
    check(test.__name__.replace("_", " "), test)
check("the server ends with nothing to do", lambda: S.stop() == 0 or 1 / 0)
for test in (config_file, leavers, full_queue, waits_too_long, slow_clients, adapters, run_directory, pauses, drain):
    check(test.__name__.replace("_", " "), test)
finish()
