#!/usr/bin/env python3
"""How far the engine and transformers are from float32, each in bfloat16, on models of random weights at real sizes.

Usage: bench/against_transformers.py [--models NAME,NAME] [--device cuda|cpu] [--dtype bf16|f32] [--full NAME,NAME]
       [--scratch DIR] [--kernelrl PROGRAM] [--out FILE]
For each model: the largest and the rms difference of logits, greedy tokens that differ (256, each behind the text that
float32 continued), the loss of a LoRA adapter, its gradients (length and cosine of each matrix); for the models of
--full also the gradients of all weights. The reference is transformers and PEFT in float32 on the same weights. Prints
a table and writes every number to FILE (JSON). Exit status 1: the engine is farther from float32 than transformers is.
Needs torch, transformers and peft, and downloads nothing. DIR holds the weights and the expected numbers of one model:
18 GB for llama3.1-8b, 16 GB for qwen2.5-1.5b with --full. A card of 80 GB has room for all models, for --full up to
qwen2.5-1.5b."""

import argparse
import gc
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time

QWEN = dict(max_position_embeddings=4096, rms_norm_eps=1e-6, rope_parameters=dict(rope_type="default", rope_theta=1e6))
LLAMA = dict(
    max_position_embeddings=131072,
    rms_norm_eps=1e-5,
    rope_parameters=dict(
        rope_type="llama3",
        rope_theta=500000.0,
        factor=8.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
    ),
)


def moe(experts, chosen, width, head):
    return QWEN | dict(
        num_experts=experts,
        num_experts_per_tok=chosen,
        moe_intermediate_size=width,
        head_dim=head,
        norm_topk_prob=True,
        decoder_sparse_step=1,
    )


KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "tie_word_embeddings",
)
MODELS = {  # architecture, the values of KEYS, further ones
    "tiny-qwen2": ("Qwen2", (64, 2, 160, 4, 2, 300, True), QWEN),
    "tiny-llama": ("Llama", (64, 2, 160, 4, 2, 300, False), LLAMA),
    "qwen2.5-0.5b": ("Qwen2", (896, 24, 4864, 14, 2, 151936, True), QWEN),
    "qwen2.5-1.5b": ("Qwen2", (1536, 28, 8960, 12, 2, 151936, True), QWEN),
    "qwen2.5-7b": ("Qwen2", (3584, 28, 18944, 28, 4, 152064, False), QWEN),
    "llama3.1-8b": ("Llama", (4096, 32, 14336, 32, 8, 128256, False), LLAMA),
    "tiny-moe": ("Qwen3Moe", (64, 2, 160, 4, 2, 300, False), moe(8, 2, 32, 16)),
    "qwen3-30b-a3b-8": ("Qwen3Moe", (2048, 8, 6144, 32, 4, 151936, False), moe(128, 8, 768, 128)),
}
LENGTHS = (96, 7, 160)
PROMPT, GREEDY = 32, 256
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
TARGETS = ATTENTION + ["gate_proj", "up_proj", "down_proj"]


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("--models", default="qwen2.5-0.5b,qwen2.5-1.5b,qwen2.5-7b,llama3.1-8b")
    p.add_argument("--full", default="qwen2.5-0.5b,qwen2.5-1.5b", help="models all of whose gradients are compared")
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", default="bf16", choices=["bf16", "f32"])
    p.add_argument("--scratch", default=None, help="without it /dev/shm where that has 20 GB free, else TMPDIR")
    p.add_argument("--kernelrl", default="build/kernelrl")
    p.add_argument("--greedy", type=int, default=GREEDY)
    p.add_argument("--out", default="against_transformers.json")
    return p.parse_args()


def scratch_of(args):
    if args.scratch or not os.path.isdir("/dev/shm"):
        return args.scratch
    return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 20e9 else None


def build(torch, transformers, name, device):
    """Random weights in bfloat16; norms and biases are not what they begin as either."""
    architecture, shape, more = MODELS[name]
    config = getattr(transformers, architecture + "Config")(
        **dict(zip(KEYS, shape)), **more, bos_token_id=1, eos_token_id=2
    )
    torch.manual_seed(1)
    with torch.device(device):
        torch.set_default_dtype(torch.bfloat16)
        model = getattr(transformers, architecture + "ForCausalLM")(config)
        torch.set_default_dtype(torch.float32)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
    return model.eval()


def cast(model, dtype):
    """The parameters alone: the rotary embedding's frequencies stay in float32, as they do when a file is loaded."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def text_of(torch, model, prompt, n):
    """The text that a model continues greedily."""
    with torch.no_grad():
        out = model.generate(prompt[None], max_new_tokens=n, min_new_tokens=n, do_sample=False, pad_token_id=0)
    return out[0]


def logits_of(torch, model, sequences):
    with torch.no_grad():
        return [model(x[None]).logits[0].float() for x in sequences]


def gradients(torch, model, sequences, weights, named):
    """The loss -sum(weight * log-probability), and its gradients by name."""
    loss = 0
    for x, w in zip(sequences, weights):
        logits = model(x[None]).logits[0].float()
        logp = torch.log_softmax(logits[:-1], -1).gather(1, x[1:, None])[:, 0]
        loss = loss - (w * logp).sum()
    loss.backward()
    out = {n: p.grad.float().cpu() for n, p in named() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return loss.item(), out


def greedy_differs(torch, model, text, n):
    """How many of its last n tokens the model would not have chosen."""
    with torch.no_grad():
        best = model(text[None]).logits[0].float().argmax(-1)
    return int((best[-n - 1 : -1] != text[-n:]).sum())


def plain(name):
    return name.replace(".default.", ".")


class Side:
    """What one implementation computed, as differences from float32."""

    def __init__(self):
        self.number, self.matrices = {}, {}

    def logits(self, what, got, want):
        squares = sum(((a - b).double() ** 2).sum().item() for a, b in zip(got, want))
        count = sum(a.numel() for a in got)
        self.number[what + " max"] = max((a - b).abs().max().item() for a, b in zip(got, want))
        self.number[what + " rms"] = math.sqrt(squares / count)

    def loss(self, what, got, want):
        self.number[what + " relative"] = abs(got - want) / abs(want)

    def matrix(self, prefix, name, norm, expected, cosine):
        self.matrices.setdefault(prefix, {})[name] = (norm / expected if expected else math.nan, cosine)

    def summary(self):
        for prefix, matrices in self.matrices.items():
            known = [(abs(r - 1), 1 - c) for r, c in matrices.values() if math.isfinite(r)]
            self.number[prefix + " length, worst"] = max(r for r, _ in known)
            self.number[prefix + " 1 - cosine, worst"] = max(c for _, c in known)
            self.number[prefix + " 1 - cosine, mean"] = sum(c for _, c in known) / len(known)
        return self.number


def transformers_side(torch, peft, model, lora, folder, args, full, data):
    """Everything in the model's present type; the adapter's weights are float32 as PEFT has them."""
    out = {"logits": logits_of(torch, model, data["ids"])}
    if "text" not in data:
        data["text"] = text_of(torch, model, data["ids"][0][:PROMPT], args.greedy)
    out["greedy"] = greedy_differs(torch, model, data["text"], args.greedy)
    if full:
        count = sum(len(x) - 1 for x in data["ids"])
        even = [torch.full((len(x) - 1,), 1.0 / count, device=x.device) for x in data["ids"]]
        out["full_loss"], out["fullgrad"] = gradients(torch, model, data["ids"], even, model.named_parameters)
    if lora:
        tuned = peft.get_peft_model(model, lora)
        tuned.save_pretrained(folder)
    else:
        tuned = peft.PeftModel.from_pretrained(model, folder, is_trainable=True)
    tuned.eval()
    named = lambda: ((plain(n), p) for n, p in tuned.named_parameters() if p.requires_grad)  # noqa: E731
    out["lora_logits"] = logits_of(torch, tuned, data["ids"])
    out["loss"], out["grad"] = gradients(torch, tuned, data["ids"], data["advantages"], named)
    tuned.unload()
    model.requires_grad_(True)
    return out


def compare(torch, got, want):
    side = Side()
    for what in ("logits", "lora_logits"):
        side.logits(what, got[what], want[what])
    side.number["greedy tokens that differ"] = got["greedy"]
    for what, prefix in (("loss", "grad"), ("full_loss", "fullgrad")):
        if what not in want:
            continue
        side.loss(what, got[what], want[what])
        for name, b in want[prefix].items():
            a = got[prefix][name]
            cosine = torch.nn.functional.cosine_similarity(a.double().flatten(), b.double().flatten(), 0).item()
            side.matrix(prefix, name, a.double().norm().item(), b.double().norm().item(), cosine)
    return side.summary()


def write_expected(torch, save_file, want, data, path):
    out = {"greedy_0": data["text"].cpu().long()}
    for i, x in enumerate(data["ids"]):
        logp = torch.log_softmax(want["lora_logits"][i][:-1], -1).gather(1, x[1:, None])[:, 0]
        out |= {
            f"ids_{i}": x.cpu().long(),
            f"logits_{i}": want["logits"][i].cpu(),
            f"lora_logits_{i}": want["lora_logits"][i].cpu(),
            f"lora_logp_{i}": logp.cpu(),
            f"adv_{i}": data["advantages"][i].cpu(),
        }
    for what, prefix in (("loss", "grad"), ("full_loss", "fullgrad")):
        if what in want:
            out[what] = torch.tensor([want[what]])
            out |= {f"{prefix}.{n}": g for n, g in want[prefix].items()}
    save_file({k: v.contiguous() for k, v in out.items()}, path)


def kernelrl_side(args, folder):
    lines = os.path.join(folder, "measured.jsonl")
    print(f"kernelrl in {args.dtype} on {args.device} ...", file=sys.stderr, flush=True)
    command = [
        args.kernelrl,
        "selfcheck",
        "golden",
        folder,
        "--device",
        args.device,
        "--dtype",
        args.dtype,
        "--measure",
        lines,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    side = Side()
    for line in open(lines, encoding="utf-8"):
        line = json.loads(line)
        what = line["what"]
        if "max" in line:
            side.number[what + " max"], side.number[what + " rms"] = line["max"], line["rms"]
        elif what == "greedy":
            side.number["greedy tokens that differ"] = line["differ"]
        elif "value" in line:
            side.loss(what, line["value"], line["expected"])
        elif "." in what:
            prefix, name = what.split(".", 1)
            side.matrix(prefix, name, line["norm"], line["expected_norm"], line["cosine"])
    return side.summary()


def one_model(torch, transformers, peft, save_file, name, args):
    begin = time.time()
    full = name in args.full.split(",")
    with tempfile.TemporaryDirectory(dir=scratch_of(args)) as folder:
        model = build(torch, transformers, name, args.device)
        model.save_pretrained(folder)
        # Experts are one parameter for all of a layer in transformers, and no module that could be named here: a
        # mixture's adapter is on attention alone.
        targets = ATTENTION if "Moe" in MODELS[name][0] else TARGETS
        lora = peft.LoraConfig(
            r=16, lora_alpha=32, target_modules=targets, init_lora_weights=False, task_type="CAUSAL_LM"
        )
        vocabulary, generator = model.config.vocab_size, torch.Generator().manual_seed(2)
        lengths = (PROMPT,) + LENGTHS
        data = {
            "ids": [torch.randint(vocabulary, (n,), generator=generator).to(args.device) for n in lengths],
            "advantages": [torch.randn(n - 1, generator=generator).to(args.device) for n in lengths],
        }
        # Float32 first, whose text both continue; the same weights then in bfloat16.
        cast(model, torch.float32)
        want = transformers_side(torch, peft, model, lora, os.path.join(folder, "adapter"), args, full, data)
        write_expected(torch, save_file, want, data, os.path.join(folder, "expected.safetensors"))
        cast(model, torch.bfloat16)
        got = transformers_side(torch, peft, model, None, os.path.join(folder, "adapter"), args, full, data)
        theirs = compare(torch, got, want)
        del model, want, got
        gc.collect()
        if args.device.startswith("cuda"):
            torch.cuda.empty_cache()
        ours = kernelrl_side(args, folder)
    return {"model": name, "seconds": time.time() - begin, "kernelrl": ours, "transformers": theirs}


def report(result, dtype):
    """The table; True: the engine is nowhere farther from float32. A tenth and a token are chance."""
    print(f"\n{result['model']}: distance from float32 ({result['seconds']:.0f} s)")
    print(f"{'':34} {'kernelrl ' + dtype:>14} {'transformers bf16':>18}")
    fine = True
    for what, theirs in result["transformers"].items():
        ours = result["kernelrl"][what]
        near = ours <= 1.1 * theirs + (1 + 0.02 * GREEDY if "greedy" in what else 0)
        # The loss is one number: either side may hit it by chance.
        fine &= near or "relative" in what
        print(f"{what:34} {ours:14.3e} {theirs:18.3e}{'' if near else '   farther'}")
    return fine


def main():
    args = arguments()
    try:
        import peft
        import torch
        import transformers
        from safetensors.torch import save_file
    except ImportError as error:
        print(f"against_transformers.py: {error}", file=sys.stderr)
        return 2
    if shutil.which(args.kernelrl) is None:
        print(f"against_transformers.py: no program {args.kernelrl}: run make, or give --kernelrl", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    results, fine = [], True
    for name in args.models.split(","):
        results.append(one_model(torch, transformers, peft, save_file, name, args))
        fine &= report(results[-1], args.dtype)
        with open(args.out, "w", encoding="utf-8") as f:
            json.dump(
                {
                    "torch": torch.__version__,
                    "transformers": transformers.__version__,
                    "device": args.device,
                    "dtype": args.dtype,
                    "results": results,
                },
                f,
                indent=1,
            )
        sys.stdout.flush()
    print("\nthe engine is", "nowhere" if fine else "somewhere", "farther from float32 than transformers in bfloat16")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
