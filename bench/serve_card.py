#!/usr/bin/env python3
"""bench/serve_card.py [--arch ARCH] [--device cuda] [--streams 64,256] [--rounds 3] [--folder DIR]: the share of the
engine's own tokens a second that `kernelrl serve` gives its clients on a card, with random weights of a shape.

Writes the weights (bfloat16; of 7b 15.2 GB, into DIR, which is kept when it is given), and needs models/tiny for its
tokenizer, build/kernelrl, and for a card the CUDA plugin. In each round and for each number of streams it runs
`kernelrl bench decode` while contexts grow from 256 to 512 tokens, then as many streams of 256 tokens in and 256 out.
It prints a table: tokens a second of the engine, those of streams once all have their first token (streams / median
time between two tokens), those of the whole run with its prefill, and the median of the rounds' ratios. The engine's
measurement runs while the server is stopped, because each takes a large part of the memory."""

import argparse
import array
import json
import os
import random
import shutil
import signal
import statistics
import struct
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
os.chdir(ROOT)
sys.path.insert(0, "tests/e2e")
os.environ.setdefault("tmp", tempfile.mkdtemp())
from serve_client import KRL, Server  # noqa: E402

# width, layers, MLP, heads, heads of keys and values, vocabulary: those of `bench --arch qwen2.5-...`
SHAPES = {
    "tiny": (64, 2, 128, 4, 2, 4096, True),
    "qwen2.5-0.5b": (896, 24, 4864, 14, 2, 151936, True),
    "qwen2.5-1.5b": (1536, 28, 8960, 12, 2, 151936, True),
    "qwen2.5-7b": (3584, 28, 18944, 28, 4, 152064, False),
}


def tensors(arch):
    d, layers, mlp, heads, kv_heads, vocab, tied = SHAPES[arch]
    kv = d // heads * kv_heads
    yield "model.embed_tokens.weight", (vocab, d)
    yield "model.norm.weight", (d,)
    if not tied:
        yield "lm_head.weight", (vocab, d)
    for i in range(layers):
        at = f"model.layers.{i}."
        for name, rows in (("q", d), ("k", kv), ("v", kv)):
            yield f"{at}self_attn.{name}_proj.weight", (rows, d)
            yield f"{at}self_attn.{name}_proj.bias", (rows,)
        yield f"{at}self_attn.o_proj.weight", (d, d)
        yield f"{at}mlp.gate_proj.weight", (mlp, d)
        yield f"{at}mlp.up_proj.weight", (mlp, d)
        yield f"{at}mlp.down_proj.weight", (d, mlp)
        yield f"{at}input_layernorm.weight", (d,)
        yield f"{at}post_attention_layernorm.weight", (d,)


def write_model(arch, folder):
    """A folder as transformers writes it. Numbers repeat every 524,287, a prime, so that no two rows are alike."""
    d, layers, mlp, heads, kv_heads, vocab, tied = SHAPES[arch]
    os.makedirs(folder, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "pre_split.txt"):
        if os.path.exists(f"models/tiny/{name}"):
            shutil.copy(f"models/tiny/{name}", folder)
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": d,
        "num_hidden_layers": layers,
        "intermediate_size": mlp,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "tie_word_embeddings": tied,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "rms_norm_eps": 1e-6,
        "eos_token_id": 2045,
    }
    with open(f"{folder}/config.json", "w") as f:
        json.dump(config, f)
    rng = random.Random(1)
    floats = array.array("f", (rng.gauss(0, 0.02) for _ in range(524287)))
    block = bytes(b for i, b in enumerate(floats.tobytes()) if i % 4 >= 2)  # the upper halves are bfloat16
    head, at = {}, 0
    for name, shape in tensors(arch):
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        head[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{folder}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name, shape in tensors(arch):
            left = head[name]["data_offsets"][1] - head[name]["data_offsets"][0]
            if "norm" in name:
                f.write(b"\x80\x3f" * (left // 2))  # ones
                continue
            while left > 0:
                f.write(block[: min(left, len(block))])
                left -= min(left, len(block))


def engine_rate(model, device, streams):
    command = [KRL, "bench", "decode", "--model", model, "--device", device, "--batch", str(streams)]
    out = subprocess.run([*command, "--context", "256-512"], capture_output=True, text=True, check=True).stdout
    return json.loads(out.splitlines()[-1])["tokens_per_s"]


def served(model, device, streams, round_):
    """Tokens a second while all decode, and of the whole run."""
    s = Server("--access-log", "off", "--device", device, "--max-batch", str(streams), model=model)
    try:
        flags = ["--input-len", "256", "--output-len", "256", "--ignore-eos", "--json", "--num-warmups", "8"]
        command = [KRL, "bench", "serve", "--port", str(s.port), "--num-prompts", str(streams), *flags]
        r = subprocess.run([*command, "--seed", str(round_)], capture_output=True, text=True)
        if r.returncode != 0:
            raise SystemExit(f"bench serve failed: {r.stderr[-600:]}")
        o = json.loads(r.stdout)
        return streams / o["median_itl_ms"] * 1e3, o["output_throughput"]
    finally:
        s.stop(signal.SIGTERM)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--arch", choices=SHAPES, default="qwen2.5-7b")
    p.add_argument("--device", default="cuda")
    p.add_argument("--streams", default="64,256")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--folder")
    a = p.parse_args()
    folder = a.folder or os.path.join(os.environ["tmp"], "model")
    if not os.path.exists(f"{folder}/model.safetensors"):
        write_model(a.arch, folder)
    print("| streams | engine, tokens/s | served while all decode | served with prefill | decode / engine |")
    print("|---|---|---|---|---|", flush=True)
    try:
        for streams in map(int, a.streams.split(",")):
            rows = []
            for k in range(a.rounds):
                engine = engine_rate(folder, a.device, streams)
                decode, whole = served(folder, a.device, streams, k)
                rows.append((engine, decode, whole, decode / engine))
            e, d, w, ratio = (statistics.median(c) for c in zip(*rows))
            each = ", ".join(f"{100 * r[3]:.0f}" for r in rows)
            print(f"| {streams} | {e:,.0f} | {d:,.0f} | {w:,.0f} | {100 * ratio:.1f} % ({each}) |", flush=True)
    finally:
        if not a.folder:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
