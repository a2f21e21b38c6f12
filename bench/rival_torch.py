#!/usr/bin/env python3
"""The same measurements as `kernelrl bench`, made with PyTorch and transformers (and peft for LoRA).

Usage: bench/rival_torch.py [decode|prefill|train-lora|all] [--arch NAME] [--batch N,N] [--context FROM-TO]
       [--tokens N] [--repeat N] [--threads N] [--lora-rank R]
Prints one JSON object a measurement, with the keys that `kernelrl bench` prints: random bfloat16 weights, random
tokens, one warm-up, medians. What is not installed is a line {"skipped": WHY}, and no failure."""
import argparse
import json
import os
import statistics
import sys
import time

ARCHS = {  # hidden, layers, ffn, heads, kv heads, vocabulary, tied
    "qwen2.5-0.5b": (896, 24, 4864, 14, 2, 151936, True),
    "qwen2.5-1.5b": (1536, 28, 8960, 12, 2, 151936, True),
    "qwen2.5-7b": (3584, 28, 18944, 28, 4, 152064, False),
    "llama3.1-8b": (4096, 32, 14336, 32, 8, 128256, False),
}


def skip(why):
    print(json.dumps({"program": "pytorch", "skipped": why}), flush=True)


def arguments():
    p = argparse.ArgumentParser()
    p.add_argument("what", nargs="?", default="all", choices=["decode", "prefill", "train-lora", "all"])
    p.add_argument("--arch", default="qwen2.5-0.5b", choices=sorted(ARCHS))
    p.add_argument("--batch", default="1,16,64", help="sequences decoded at once")
    p.add_argument("--context", default="256-512")
    p.add_argument("--tokens", type=int, default=512)
    p.add_argument("--repeat", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--lora-rank", type=int, default=16)
    return p.parse_args()


def report(torch, args, what, times, step_tokens, **more):
    times = sorted(times)
    median = statistics.median(times)
    line = {
        "bench": what,
        "program": "pytorch",
        "version": torch.__version__,
        "model": args.arch,
        "dtype": "bf16",
        "device": "cpu",
        "threads": args.threads,
        "load": os.getloadavg()[0],
        **more,
        "tokens_per_s": step_tokens / median,
        "median_ms": median * 1e3,
        "low_ms": times[0] * 1e3,
        "high_ms": times[-1] * 1e3,
    }
    print(json.dumps(line), flush=True)


def build(args):
    import torch
    import transformers

    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    d, layers, ffn, heads, kv_heads, vocab, tied = ARCHS[args.arch]
    name = "Llama" if args.arch.startswith("llama") else "Qwen2"
    config = getattr(transformers, name + "Config")(
        hidden_size=d,
        num_hidden_layers=layers,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        vocab_size=vocab,
        tie_word_embeddings=tied,
        max_position_embeddings=32768,
        rope_theta=1e6,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    model = getattr(transformers, name + "ForCausalLM")(config)
    torch.set_default_dtype(before)
    return torch, model.eval(), vocab


def decode(torch, model, vocab, args):
    begin, end = (int(n) for n in args.context.split("-"))
    for batch in (int(n) for n in args.batch.split(",")):
        times = []
        with torch.inference_mode():
            past = None
            # A few sequences' prompts at a time would need caches to be joined: all at once, as a batch.
            for start in range(0, begin, 64):
                ids = torch.randint(vocab, (batch, min(64, begin - start)))
                past = model(ids, past_key_values=past, use_cache=True).past_key_values
            for _ in range(begin, end):
                ids = torch.randint(vocab, (batch, 1))
                t0 = time.perf_counter()
                past = model(ids, past_key_values=past, use_cache=True).past_key_values
                times.append(time.perf_counter() - t0)
        report(torch, args, "decode", times, batch, batch=batch, context_begin=begin, context_end=end)


def prefill(torch, model, vocab, args):
    times = []
    ids = torch.randint(vocab, (1, args.tokens))
    with torch.inference_mode():
        for _ in range(args.repeat + 1):
            t0 = time.perf_counter()
            hidden = model.model(ids, use_cache=True)[0]
            model.lm_head(hidden[:, -1:])
            times.append(time.perf_counter() - t0)
    report(torch, args, "prefill", times[1:], args.tokens, batch=1, tokens=args.tokens)


def peak_resident_bytes():
    with open("/proc/self/status") as f:
        for line in f:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return -1


def train_lora(torch, model, vocab, args, batch=8):
    try:
        import peft
    except ImportError as error:
        skip(f"train_lora: {error}")
        return
    target = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = peft.get_peft_model(model, peft.LoraConfig(r=args.lora_rank, lora_alpha=32, target_modules=target))
    model.train()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable()  # without it the batch takes tens of gigabytes
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-6)
    ids = torch.randint(vocab, (batch, args.tokens))
    times = []
    for _ in range(args.repeat + 1):
        t0 = time.perf_counter()
        opt.zero_grad()
        for row in ids.split(1):  # logits of all rows at once would take gigabytes more
            (model(row, labels=row).loss / batch).backward()
        opt.step()
        times.append(time.perf_counter() - t0)
    report(
        torch,
        args,
        "train_lora",
        times[1:],
        batch * args.tokens,
        batch=batch,
        tokens=args.tokens,
        lora_rank=args.lora_rank,
        peak_resident_bytes=peak_resident_bytes(),
    )


def main():
    args = arguments()
    try:
        torch, model, vocab = build(args)
    except ImportError as error:
        skip(str(error))
        return 0
    if args.what in ("decode", "all"):
        decode(torch, model, vocab, args)
    if args.what in ("prefill", "all"):
        prefill(torch, model, vocab, args)
    if args.what in ("train-lora", "all"):
        train_lora(torch, model, vocab, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
