#!/usr/bin/env python3
"""What transformers makes of conversations, for src/text/chat_test.c.

Usage: tools/chat_golden.py TEMPLATES > tests/data/chat_templates.json
TEMPLATES holds the checkpoints' chat templates as TRL ships them (trl/chat_templates): those of STYLES below. The
hashes of src/text/chat_template.c are of these files, and of what CHANGES makes of them. Exit status 2: transformers or
tokenizers is missing, or a template has another hash."""

import hashlib
import json
import os
import random
import sys

try:
    import tokenizers
    import transformers
except ImportError as error:
    print(f"chat_golden.py: {error}", file=sys.stderr)
    sys.exit(2)

STYLES = {  # name: file, arguments of the template
    "qwen2.5": ("qwen2_5.jinja", {}),
    "qwen2.5_base": ("qwen2_5.jinja", {}),
    "qwen2.5_math": ("qwen2_5.jinja", {}),
    "qwen3": ("qwen3.jinja", {"enable_thinking": True}),
    "qwen3_disable_thinking": ("qwen3.jinja", {"enable_thinking": False}),
    "qwen3_instruct": ("qwen3_instruct_2507.jinja", {}),
    "qwen3_thinking": ("qwen3.jinja", {}),
    "llama3": ("llama3.jinja", {}),
    "llama3.1": ("llama3_1.jinja", {}),
    "deepseek_r1": ("deepseek_r1_distill.jinja", {}),
}
QWEN = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
GENERATION = "{%- if add_generation_prompt %}"
CHANGES = {  # what further checkpoints have in the place of these files' texts
    "qwen2.5_base": lambda t: t.replace(QWEN, "You are a helpful assistant."),
    "qwen2.5_math": lambda t: t.replace(
        QWEN, r"Please reason step by step, and put your final answer within \\boxed{}."
    ),
    "qwen3_thinking": lambda t: t[: t.index(GENERATION)]
    + GENERATION
    + r"""
    {{- '<|im_start|>assistant\n<think>\n' }}
{%- endif %}""",
}
TOKENS = {"deepseek_r1": "<｜begin▁of▁sentence｜>", "llama3": "<|begin_of_text|>", "llama3.1": "<|begin_of_text|>"}
# Llama 3.2's template asks for today's date; told that of 3.1's, it renders the same.
ALSO = {"llama3.1": ("llama3_2.jinja", {"date_string": "26 Jul 2024"})}
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
    [system(" \u00a0S\n"), user("\u3000 U\t"), assistant("\x1c A\x85"), user("")],
    [system("first"), user("U"), system("last"), assistant("A"), user("V")],
    [user("U"), assistant("", tool_calls=[CALL]), tool('a "quoted"\n\\ \x7f\x01 é'), tool("2"), user("V")],
    [user("U"), assistant("", tool_calls=[OTHER]), tool("x"), assistant("", tool_calls=[CALL, OTHER]), assistant("B")],
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


def can_be_rendered(style, talk):
    calls = [len(m["tool_calls"]) for m in talk if "tool_calls" in m]
    return max(calls, default=0) <= {"llama3.1": 1, "llama3": 0, "deepseek_r1": 0}.get(style, 9)


def render(style, template, arguments, talk, end):
    """None: transformers refuses to go on with a message that its template does not show as it is."""
    if not can_be_rendered(style, talk) or (end == "continue" and talk[-1]["role"] != "assistant"):
        return None
    if end == "continue" and not talk[-1]["content"].strip():
        return None  # there is nothing to go on with
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()), bos_token=TOKENS.get(style)
    )
    try:
        return tokenizer.apply_chat_template(talk, chat_template=template, tokenize=False, **arguments, **ENDS[end])
    except ValueError:
        if end != "continue":
            raise
        return None


def read_template(folder, style, file):
    with open(os.path.join(folder, file), encoding="utf-8") as f:
        text = f.read().removesuffix("\n")
    if file == STYLES[style][0]:
        text = CHANGES.get(style, lambda t: t)(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    known = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "src", "text", "chat_template.c")
    if f'"{digest}"' not in open(known, encoding="utf-8").read():
        print(f"chat_golden.py: {file} ({style}) has the hash {digest}, which chat_template.c lacks", file=sys.stderr)
        sys.exit(2)
    return text


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
    templates = {style: read_template(sys.argv[1], style, file) for style, (file, _) in STYLES.items()}
    others = {style: read_template(sys.argv[1], style, file) for style, (file, _) in ALSO.items()}
    talks = BY_HAND + [by_chance(rng) for _ in range(25)]
    cases = []
    for i, talk in enumerate(talks):
        want = {
            style: {end: render(style, templates[style], STYLES[style][1], talk, end) for end in ENDS}
            for style in STYLES
            if i < 4 or style not in ("qwen2.5_base", "qwen2.5_math")  # which have another system message, that is all
        }
        for style, template in others.items():
            assert want[style] == {end: render(style, template, ALSO[style][1], talk, end) for end in ENDS}, talk
        cases.append({"messages": [plain(m) for m in talk], "want": want})
    print('{"made_by": "transformers %s",\n"cases": [' % transformers.__version__)
    print(",\n".join(json.dumps(c, ensure_ascii=False) for c in cases))
    print("]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
