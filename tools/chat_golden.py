#!/usr/bin/env python3
"""What transformers makes of conversations, for src/text/chat_test.c.

Usage: tools/chat_golden.py TEMPLATES > tests/data/chat_templates.json
TEMPLATES holds the checkpoints' chat templates as TRL ships them (trl/chat_templates): qwen2_5.jinja, qwen3.jinja and
qwen3_instruct_2507.jinja. Exit status 2: transformers or tokenizers is missing."""

import json
import random
import sys

try:
    import tokenizers
    import transformers
except ImportError as error:
    print(f"chat_golden.py: {error}", file=sys.stderr)
    sys.exit(2)

STYLES = {  # name: file, enable_thinking
    "qwen2.5": ("qwen2_5.jinja", None),
    "qwen3": ("qwen3.jinja", True),
    "qwen3_disable_thinking": ("qwen3.jinja", False),
    "qwen3_instruct": ("qwen3_instruct_2507.jinja", None),
}
ENDS = {
    "closed": {},
    "generate": {"add_generation_prompt": True},
    "continue": {"continue_final_message": True},
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": "zwei é"}}}
OTHER = {"type": "function", "function": {"name": "now", "arguments": {}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def tool(text):
    return {"role": "tool", "content": text}


def system(text):
    return {"role": "system", "content": text}


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds é and \"b\".\n",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number", "minimum": 0.5, "maximum": 1e6}, "b": {"type": ["string", "null"]}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"default": [1, 2.0, None, True, {}, []]}}},
]
WITH_TOOLS = [[user("U")], [system("S"), user("U"), assistant("", tool_calls=[CALL]), tool("3")], [system(""), user("U")]]
BY_HAND = [
    [user("Hi")],
    [system("S"), user("Hi")],
    [user("")],
    [user("U"), assistant("A")],
    [user("U"), assistant("")],
    [user("U"), assistant("A  ")],
    [user("U"), assistant("<think>\nt\n</think>\n\nA")],
    [user("U"), assistant("<think>\nt")],
    [user("U"), assistant("A", reasoning_content="\n\nbecause\n")],
    [user("U"), assistant("\n\nA", reasoning_content="\n"), user("V"), assistant("B", reasoning_content="")],
    [user("U"), assistant("<think>x</think>A", reasoning_content="given"), user("V")],
    [user("U"), assistant("<think>\nold\n</think>\n\nA"), user("V"), assistant("<think>\nnew\n</think>\n\nB")],
    [user("U"), system("late"), assistant("A")],
    [assistant("first"), user("U")],
    [user("U"), assistant("", tool_calls=[CALL]), tool("3")],
    [user("U"), assistant("text", tool_calls=[CALL, OTHER]), tool("3"), tool("noon"), assistant("so")],
    [user("U"), assistant("<think>\nw\n</think>\n\n", tool_calls=[OTHER]), tool("noon"), assistant("<think>v</think>")],
    [user("U"), assistant("c", tool_calls=[OTHER], reasoning_content="r"), tool(""), user("V")],
    [user("U"), assistant("call"), user("<tool_response>\n4\n</tool_response>"), assistant("x")],
    [tool("before all"), user("U")],
]
PIECES = ["a", "B c", "\n", "\n\n", "<think>", "</think>", " ", "é€", "<tool_response>", "</tool_response>", "", "{}"]


def by_chance(rng):
    talk = [system(text_by_chance(rng))] if rng.random() < 0.3 else []
    for _ in range(rng.randint(1, 5)):
        role = rng.choice(["user", "assistant", "assistant", "tool"])
        message = {"role": role, "content": text_by_chance(rng)}
        if role == "assistant" and rng.random() < 0.3:
            message["reasoning_content"] = text_by_chance(rng)
        if role == "assistant" and rng.random() < 0.25:
            message["tool_calls"] = rng.choices([CALL, OTHER], k=rng.randint(1, 2))
        talk.append(message)
    return talk


def text_by_chance(rng):
    return "".join(rng.choices(PIECES, k=rng.randint(0, 5)))


def render(template, thinking, talk, end, tools=None):
    """None: transformers refuses to go on with a message that its template does not show as it is."""
    if end == "continue" and talk[-1]["role"] != "assistant":
        return None
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()))
    switch = {} if thinking is None else {"enable_thinking": thinking}
    try:
        return tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False, tools=tools, **switch,
                                             **ENDS[end])
    except ValueError:
        if end != "continue":
            raise
        return None


def plain(message):  # arguments as the text that stands in the prompt
    out = {k: v for k, v in message.items() if k != "tool_calls"}
    if "tool_calls" in message:
        calls = [c["function"] for c in message["tool_calls"]]
        out["calls"] = [[c["name"], json.dumps(c["arguments"], ensure_ascii=False)] for c in calls]
    return out


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].split("\n")[0], file=sys.stderr)
        return 1
    rng = random.Random(1)
    templates = {style: open(f"{sys.argv[1]}/{file}").read() for style, (file, _) in STYLES.items()}
    talks = BY_HAND + [by_chance(rng) for _ in range(25)]
    cases = []
    for talk, tools in [(talk, None) for talk in talks] + [(talk, TOOLS) for talk in WITH_TOOLS]:
        want = {
            style: {end: render(templates[style], STYLES[style][1], talk, end, tools) for end in ENDS}
            for style in STYLES
        }
        cases.append({"messages": [plain(m) for m in talk], "tools": tools or [], "want": want})
    print('{"made_by": "transformers %s",\n"cases": [' % transformers.__version__)
    print(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
    print("]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
