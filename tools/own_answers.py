#!/usr/bin/env python3
"""tools/own_answers.py RUN DIR: a run's own answers as a folder for `kernelrl corpus from=DIR`.

Reads RUN/traces.jsonl.zst (single turns, zero-shot prompts; backend c, cuda_native or triton) and writes
DIR/problems.jsonl and DIR/answers.jsonl as `kernelrl problems generate --answers --verify` does: what failed is a
broken answer with its verdict, all are of the one style "own". Their refinement rows show the model's own failures with
the verifier's feedback, and end with an answer of its own that is right. Needs zstdcat; standard library otherwise.
"""

import json
import os
import re
import subprocess
import sys


def byte_decoder():
    """The byte of each character of a byte-level BPE vocabulary (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table, extra = {chr(b): b for b in plain}, 0
    for b in range(256):
        if b not in plain:
            table[chr(256 + extra)] = b
            extra += 1
    return table


def decoder(folder):
    with open(os.path.join(folder, "tokenizer.json"), encoding="utf-8") as f:
        tokenizer = json.load(f)
    special = {t["id"]: t["content"].encode() for t in tokenizer["added_tokens"]}
    table = byte_decoder()
    vocabulary = {i: bytes(table[c] for c in s) for s, i in tokenizer["model"]["vocab"].items() if i not in special}
    vocabulary.update(special)
    return lambda ids: b"".join(vocabulary[i] for i in ids).decode("utf-8", "replace")


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    run, out = sys.argv[1:]
    decode = decoder(os.path.join(run, "checkpoints", "final"))
    lines = subprocess.run(["zstdcat", os.path.join(run, "traces.jsonl.zst")], capture_output=True, check=True).stdout
    os.makedirs(out, exist_ok=True)
    code, n = {}, {"right": 0, "wrong": 0}
    with open(os.path.join(out, "answers.jsonl"), "w", encoding="utf-8") as answers:
        for line in lines.decode().splitlines():
            t = json.loads(line)
            if t.get("prompt_ids"):
                prompt = decode(t["prompt_ids"])
                code[t["problem"]] = re.findall(r"```python\n(.*?)\n?```", prompt, re.S)[-1] + "\n"
            kernel = re.search(r"```(?:c|cuda|python)\n(.*?)```", t["text"], re.S)
            v = t.get("verdict")
            if not kernel or not v or v["class"] == "I":
                continue
            right = v["outcome"] == "correct"
            n["right" if right else "wrong"] += 1
            row = {"key": t["problem"], "style": "own", "broken": None if right else "own", "source": kernel[1]}
            row |= {"outcome": v["outcome"], "message": v["message"], "speedup": v["speedup"]}
            answers.write(json.dumps(row) + "\n")
    with open(os.path.join(out, "problems.jsonl"), "w", encoding="utf-8") as problems:
        for i, (key, text) in enumerate(code.items()):
            name = key.rpartition("/")[2]
            row = {"key": key, "level": 1, "problem_id": i + 1, "name": name, "split": "train", "code": text}
            problems.write(json.dumps(row) + "\n")
    print(f"{out}: {len(code)} problems, {n['right']} right answers, {n['wrong']} wrong ones")


if __name__ == "__main__":
    main()
