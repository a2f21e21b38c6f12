#!/usr/bin/env python3
"""upcycle.py DENSE OUT [EXPERTS [CHOSEN [NOISE]]]: a mixture of experts out of a dense Qwen3 model.

Each expert is a copy of the dense feed-forward part whose rows are stretched by random factors of spread NOISE, so
that experts differ; routers are random. The weights of the chosen experts add up to 1, so without noise the mixture is
the dense model.
"""
import json
import pathlib
import random
import shutil
import struct
import sys


def read(path):
    data = path.read_bytes()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + n])
    header.pop("__metadata__", None)
    body = data[8 + n :]
    return {k: (v["dtype"], v["shape"], body[slice(*v["data_offsets"])]) for k, v in header.items()}


def write(path, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, _, d in tensors.values()))


def bf16(x):
    return struct.pack("<f", x)[2:]


def noisy(data, width, noise, rng):
    if noise == 0:
        return data
    out = []
    for row in range(0, len(data), 2 * width):
        values = struct.unpack(f"<{width}H", data[row : row + 2 * width])
        floats = struct.unpack(f"<{width}f", struct.pack(f"<{width}I", *(v << 16 for v in values)))
        factor = rng.gauss(1, noise)
        out.append(struct.pack(f"<{width}f", *(x * factor for x in floats)))
    wide = b"".join(out)
    narrow = bytearray(len(data))
    narrow[0::2], narrow[1::2] = wide[2::4], wide[3::4]
    return bytes(narrow)


def main():
    dense, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    experts, chosen = (int(x) for x in (sys.argv[3:5] + ["4", "2"][len(sys.argv[3:5]) :]))
    noise = float(sys.argv[5]) if len(sys.argv) > 5 else 0.0
    rng = random.Random(1)
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((dense / "config.json").read_text())
    config["architectures"], config["model_type"] = ["Qwen3MoeForCausalLM"], "qwen3_moe"
    config.update(num_experts=experts, num_experts_per_tok=chosen, norm_topk_prob=True)
    config.update(moe_intermediate_size=config["intermediate_size"], decoder_sparse_step=1, mlp_only_layers=[])
    (out / "config.json").write_text(json.dumps(config, indent=1))
    tensors = {}
    for name, (dtype, shape, data) in read(dense / "model.safetensors").items():
        if ".mlp." not in name:
            tensors[name] = (dtype, shape, data)
            continue
        assert dtype == "BF16", dtype
        front, part = name.split(".mlp.")
        width = config["hidden_size"]
        router = b"".join(bf16(rng.gauss(0, 1 / width**0.5)) for _ in range(experts * width))
        tensors.setdefault(front + ".mlp.gate.weight", ("BF16", [experts, width], router))
        for e in range(experts):
            tensors[f"{front}.mlp.experts.{e}.{part}"] = (dtype, shape, noisy(data, shape[1], noise, rng))
    write(out / "model.safetensors", tensors)
    for file in dense.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, out)


main()
