#!/usr/bin/env python3
"""What transformers and PEFT compute, for `kernelrl selfcheck golden DIR`.

Usage: tools/golden.py MODEL ADAPTER DIR [MODEL ADAPTER DIR]...
Fills each DIR with MODEL's config.json and model.safetensors, with ADAPTER (a PEFT adapter, such as kernelrl writes),
and with expected.safetensors: logits, hidden states, a greedy continuation, log-probabilities, a loss, its gradients
and one AdamW step, all in float32. Exit status 2: transformers, peft or torch is missing."""

import os
import shutil
import sys

try:
    import torch
    import transformers
    import peft
    from safetensors.torch import save_file
except ImportError as error:
    print(f"golden.py: {error}", file=sys.stderr)
    sys.exit(2)

LENGTHS = (37, 5, 64)
GREEDY = 40
ADAMW = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.01)  # as in src/cli/cmd_selfcheck.c


def log_probabilities(logits, ids):
    return torch.log_softmax(logits[:-1], -1).gather(1, ids[1:, None])[:, 0]


def plain_name(name):  # PEFT calls a parameter of an adapter by the adapter's name, too; its files do not
    return name.replace(".default.", ".")


def by_expert(name, value, experts):
    """The tensors of each expert, where newer versions hold those of a layer in one.

    Of an adapter, gate's and up's rows of A lie one under the other (src/model/peft_experts.c)."""
    front, found, last = name.partition(".mlp.experts.")
    if not found or last[0].isdigit():
        return [(name, value)]
    both = last == "gate_up_proj" or last.startswith("base_layer.")
    parts = ("gate_proj", "up_proj") if both else ("down_proj",)
    if ".lora_A" in "." + last:
        value = value.reshape(experts, -1, value.shape[1])
    elif ".lora_B" in "." + last:
        value = value.reshape(value.shape[0], -1, experts).permute(2, 0, 1)
        columns = value.shape[2] // len(parts)
    out = []
    for e in range(experts):
        for i, (part, rows) in enumerate(zip(parts, value[e].chunk(len(parts)))):
            if ".lora_B" in "." + last:
                rows = rows[:, i * columns : (i + 1) * columns]
            matrix = last[last.index("lora_") :] if "lora_" in last else "weight"
            out.append((f"{front}.mlp.experts.{e}.{part}.{matrix}", rows))
    return out


def main():
    given = sys.argv[1:]
    if not given or len(given) % 3:
        print(__doc__.split("\n\n")[1].split("\n")[0], file=sys.stderr)
        return 1
    for i in range(0, len(given), 3):
        fill(*given[i : i + 3])
    return 0


def fill(source, adapter, target):
    os.makedirs(target, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
    shutil.copytree(adapter, os.path.join(target, "adapter"), dirs_exist_ok=True)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    vocabulary = model.config.vocab_size
    ids = [torch.randint(vocabulary, (n,)) for n in LENGTHS]
    out = {f"ids_{i}": x for i, x in enumerate(ids)}

    with torch.no_grad():
        for i, x in enumerate(ids):
            out[f"logits_{i}"] = model(x[None]).logits[0]
        out["hidden_2"] = model.model(ids[2][None])[0][0]
        text = ids[0]
        for _ in range(GREEDY):
            text = torch.cat([text, model(text[None]).logits[0, -1].argmax()[None]])
        out["greedy_0"] = text
    nll = torch.cat([-log_probabilities(model(x[None]).logits[0], x) for x in ids])
    nll.mean().backward()
    out["full_loss"] = nll.mean().detach()[None]
    experts = getattr(model.config, "num_experts", 0) or 0
    for name, p in model.named_parameters():
        for own, value in by_expert(name, p.grad, experts):
            out[f"fullgrad.{own}"] = value.clone()

    model.zero_grad()
    tuned = peft.PeftModel.from_pretrained(model, os.path.join(target, "adapter"), is_trainable=True).eval()
    loss = 0
    for i, x in enumerate(ids):
        logits = tuned(x[None]).logits[0]
        logp = log_probabilities(logits, x)
        # Of both signs, but not such that the loss is close to 0, where a relative error of it says nothing.
        advantage = torch.randn(len(x) - 1) + 1
        loss = loss - (advantage * logp).sum()
        out |= {f"lora_logits_{i}": logits.detach(), f"lora_logp_{i}": logp.detach(), f"adv_{i}": advantage}
    loss.backward()
    out["loss"] = loss.detach()[None]
    trained = [(plain_name(name), p) for name, p in tuned.named_parameters() if p.requires_grad]
    for name, p in trained:
        for own, value in by_expert(name, p.grad, experts):
            out[f"grad.{own}"] = value.clone()
    torch.optim.AdamW([p for _, p in trained], **ADAMW).step()
    for name, p in trained:
        for own, value in by_expert(name, p.detach(), experts):
            out[f"after.{own}"] = value
    save_file({k: v.contiguous().clone() for k, v in out.items()}, os.path.join(target, "expected.safetensors"))
    print(
        f"torch {torch.__version__}, transformers {transformers.__version__}, peft {peft.__version__}: "
        f"{len(trained)} adapter tensors, {sum(LENGTHS)} tokens"
    )


if __name__ == "__main__":
    sys.exit(main())
