#!/usr/bin/env python3
"""Byte-level BPE vocabularies, trained here with the pre-tokenizers of published models, and what Hugging Face's
tokenizers makes of random strings with them.

Usage: tests/clients/random_tokenizers.py DIR STRINGS
       tests/clients/random_tokenizers.py --golden FILE
Writes DIR/NAME/tokenizer.json and DIR/NAME/rows.jsonl, STRINGS lines {"text", "ids"} each, and prints each NAME.
--golden: writes tests/tokenizers/golden.jsonl, in which a line {"name", "tokenizer"} stands before its lines {"text",
"ids"}.
SEED (7): what the strings are drawn with. Exit status 2: tokenizers is missing."""

import glob
import json
import os
import random
import sys

try:
    from tokenizers import AddedToken, Regex, Tokenizer
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
except ImportError as error:
    print(f"random_tokenizers.py: {error}", file=sys.stderr)
    sys.exit(2)

HERE = os.path.dirname(os.path.abspath(__file__))
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")
ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASES = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
BLOOM = " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+"


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior, invert=invert)


def byte_level(regex=False, space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=regex)


def steps(*list_):
    return pre_tokenizers.Sequence(list(list_))


# name: normalizer, pre-tokenizer, whether words that are tokens are taken whole
KINDS = {
    "llama3": (None, steps(split(LLAMA3), byte_level()), True),
    "qwen2": (normalizers.NFC(), steps(split(QWEN2), byte_level()), False),
    "gpt2": (None, byte_level(regex=True), False),
    "gpt2_space": (None, byte_level(regex=True, space=True), False),
    "starcoder": (None, steps(pre_tokenizers.Digits(individual_digits=True), byte_level(regex=True)), False),
    "cases": (None, steps(split(CASES), byte_level()), True),
    "deepseek_v3": (normalizers.Sequence([]), steps(*map(split, DEEPSEEK_V3), byte_level()), False),
    "deepseek_coder": (
        None,
        steps(*map(split, DEEPSEEK_CODER), pre_tokenizers.Digits(individual_digits=True), byte_level()),
        False,
    ),
    "bloom": (normalizers.NFC(), steps(split(BLOOM), byte_level()), False),
    "words": (
        normalizers.NFC(),
        steps(split(r"\w+|\b", invert=True), pre_tokenizers.Digits(), byte_level(space=True)),
        True,
    ),
    "merged": (
        None,
        steps(split(r"\s", "merged_with_previous"), split(r"[\d_]", "merged_with_next"), byte_level()),
        False,
    ),
    "removed": (
        None,
        steps(
            split("[aeiou]", "contiguous"),
            split(r"\n", "removed"),
            pre_tokenizers.Split("->", "merged_with_next"),
            byte_level(),
        ),
        False,
    ),
}
ADDED = [
    AddedToken("<|begin_of_text|>", special=True, normalized=False),
    AddedToken("<|im_start|>", special=True, normalized=False),
    AddedToken("<a>", normalized=False, lstrip=True),
    AddedToken("<b>", normalized=False, rstrip=True),
    AddedToken("<bb>", normalized=True, lstrip=True, rstrip=True),
    AddedToken("<n\u00e9>", normalized=True),
    AddedToken("x_", normalized=False, single_word=True),
    AddedToken("\u2126", normalized=True),
    AddedToken("  ", normalized=True),
    AddedToken("the", normalized=True, single_word=True),
]
WHOLE = ["\u0120zebraq", "qwxyz", "\u00c3\u00a9\u00c3\u00a9"]  # tokens that merges do not lead to, spelled in bytes
WORDS = """the I'm don't DON'T we'LL it'\u017f int return for === -> :: \u4f60\u597d \u3053\u3093\u306b\u3061\u306f
\uc548\ub155 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 na\u00efve e\u0301 \U0001f600
\U0001f468\u200d\U0001f469 \u212a \u017f \ufb06 \u0130 \u00df 1234567 3.14 0x1F \u0661\u0662\u0663 \u2167 \u00bd
<|im_start|> <|begin_of_text|> <a> <b> <bb> <n\u00e9> <ne\u0301> _x_ x_ \u1e9b\u0323 \u2126 \u2124 \uac01
\u1100\u1161\u11a8 \u0958 \u0345 \u203f \u2460 \u00b2 zebraq \u00e9\u00e9 qwxyz""".split()
BLANKS = "\u2028 \u00a0 \u3000 \u200b \u180e \ufeff \x85 \x0b \x0c \x1c \0".split(" ")
WORDS += [" <a>", "<b> ", " <bb> "] + BLANKS
MARKS = "e a o \u0301 \u0308 \u0323 \u0327 \u1100 \u1161 \u11a8 \u3099 \u30ab q \u0344 \u0374".split()


class Strings:
    """Random Unicode, pieces of code and words, blanks, apostrophes, marks: what splits and normal forms differ by."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.code = []
        for pattern in ("../../src/*/*.[ch]", "../../docs/*.md", "../../worker/*/*.py"):
            for path in sorted(glob.glob(os.path.join(HERE, pattern))):
                with open(path, encoding="utf-8") as file:
                    self.code.append(file.read())

    def code_point(self):
        while 0xD800 <= (c := self.rng.randrange(0x110000 if self.rng.randrange(2) else 0x3000)) < 0xE000:
            pass
        return chr(c)

    def near(self):
        low, high = self.rng.choice([(0x20, 0x250), (0x300, 0x370), (0x2000, 0x2070), (0x4E00, 0x4E50)])
        return chr(self.rng.randrange(low, high))

    def several(self, draw, most):
        return "".join(draw() for _ in range(self.rng.randrange(most)))

    def next(self):
        choice, kind = self.rng.choice, self.rng.randrange(9)
        if kind == 0:
            return self.several(self.code_point, 40)
        if kind == 1:
            return self.several(lambda: chr(self.rng.randrange(0x20, 0x7F)), 60)
        if kind == 2:
            return self.several(lambda: choice([" ", "\t", "\n", "\r", "\r\n", "  ", "a", "B", "1", "'", "\u00e9"]), 40)
        if kind == 3:
            return self.several(lambda: choice(WORDS) + choice(["", "", " ", "  ", "\n"]), 14)
        if kind == 4:
            return self.several(self.near, 30)
        if kind == 5:
            return self.several(
                lambda: "'" + choice("sStTrRvVmMlLdDeE\u017f") + choice(["", "e", "E", "l", "L", " "]), 12
            )
        if kind == 6:
            return self.several(lambda: choice(MARKS), 20)
        text = choice(self.code)
        at = self.rng.randrange(len(text))
        return text[at : at + self.rng.randrange(1, 400)]


def train(name, texts, size):
    normalizer, pre_tokenizer, whole = KINDS[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole))
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    if whole:
        file = json.loads(tokenizer.to_str())
        for word in WHOLE:
            file["model"]["vocab"].setdefault(word, len(file["model"]["vocab"]))
        tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.add_tokens(ADDED)
    begin, start = ((t, tokenizer.token_to_id(t)) for t in ("<|begin_of_text|>", "<|im_start|>"))
    if name == "words":
        tokenizer.post_processor = processors.RobertaProcessing(start, begin)
    elif name != "qwen2":
        around = processors.TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), around])
    return tokenizer


def row(tokenizer, text):
    return json.dumps({"text": text, "ids": tokenizer.encode(text).ids}) + "\n"


def main():
    if len(sys.argv) != 3:
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 1
    strings = Strings(int(os.environ.get("SEED", "7")))
    if sys.argv[1] == "--golden":
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            for name in KINDS:
                tokenizer = train(name, strings.code[:20] + [" ".join(WORDS)] * 9, 330)
                line = {"name": name, "tokenizer": json.loads(tokenizer.to_str())}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
                for _ in range(40):
                    file.write(row(tokenizer, strings.next()[:80]))
        return 0
    for name in KINDS:
        tokenizer = train(name, strings.code[:80] + [" ".join(WORDS)] * 9, 4000)
        folder = os.path.join(sys.argv[1], name)
        os.makedirs(folder, exist_ok=True)
        tokenizer.save(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
            for _ in range(int(sys.argv[2])):
                file.write(row(tokenizer, strings.next()))
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
