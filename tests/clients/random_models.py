#!/usr/bin/env python3
"""Small random models by transformers, each with a random adapter by PEFT, for tools/golden.py: the architectures and
rotary embeddings that kernelrl loads, with widths and head sizes that are no multiple of 8.

Usage: tests/clients/random_models.py DIR
Writes DIR/NAME/{base,adapter} and prints each NAME. Exit status 2: torch, transformers or peft is missing."""

import os
import sys

try:
    import torch
    import transformers
    import peft
except ImportError as error:
    print(f"random_models.py: {error}", file=sys.stderr)
    sys.exit(2)

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
MLP = ["gate_proj", "up_proj", "down_proj"]
LLAMA3 = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=64)


def shape(vocabulary, hidden, mlp, layers, heads, kv_heads, head, rope, **more):
    return dict(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=mlp,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        rope_parameters=rope,
        max_position_embeddings=256,
        initializer_range=0.1,
        **more,
    )


def lora(**more):
    return dict(dict(r=4, lora_alpha=2, target_modules=ATTENTION + MLP), **more)


# name: architecture, shape, adapter
MODELS = {
    "llama3_tied": (
        "Llama",
        shape(211, 30, 50, 3, 5, 1, 6, LLAMA3 | dict(original_max_position_embeddings=16), tie_word_embeddings=True),
        lora(r=3, lora_alpha=1, use_rslora=True),
    ),
    "llama3_wide_heads": (
        "Llama",
        shape(130, 36, 44, 2, 6, 2, 22, LLAMA3 | dict(original_max_position_embeddings=32), rms_norm_eps=1e-5),
        lora(target_modules=MLP),
    ),
    "llama_linear": (
        "Llama",
        shape(97, 42, 61, 2, 3, 3, 14, dict(rope_type="linear", rope_theta=100000.0, factor=4.0)),
        lora(r=1, target_modules=["q_proj", "down_proj"]),
    ),
    "llama_yarn": ("Llama", shape(97, 20, 33, 2, 2, 1, 10, YARN | dict(beta_fast=16, beta_slow=2)), lora()),
    "llama3_16": ("Llama", shape(161, 76, 91, 2, 4, 2, 16, LLAMA3 | dict(original_max_position_embeddings=32)), lora()),
    "llama3_text": (
        "Llama",
        shape(4100, 40, 48, 2, 4, 2, 10, LLAMA3 | dict(original_max_position_embeddings=64)),
        lora(),
    ),
    "llama3_patterns": (
        "Llama",
        shape(161, 76, 91, 3, 4, 2, 16, LLAMA3 | dict(original_max_position_embeddings=32)),
        lora(
            rank_pattern={"layers.0.self_attn.q_proj": 7, "q_proj": 2, r"layers\.[12]\.mlp\.\w+": 3},
            alpha_pattern={"v_proj": 5, "model.layers.2.mlp.up_proj": 1.5, "down_proj": 0.5},
        ),
    ),
    "qwen2_patterns": (
        "Qwen2",
        shape(97, 36, 41, 2, 3, 1, 12, dict(rope_type="default", rope_theta=1e4)),
        lora(
            r=5,
            use_rslora=True,
            rank_pattern={"k_proj": 1, "gate_proj": 9, ".*1.*o_proj": 8},
            alpha_pattern={"^model.layers.0.*": 3},
        ),
    ),
    "mistral": (
        "Mistral",
        shape(120, 33, 52, 2, 4, 2, 12, dict(rope_type="default", rope_theta=1e6), sliding_window=None),
        lora(r=5, lora_alpha=2.5),
    ),
    "seed_oss": (
        "SeedOss",
        # Its own pad_token_id is 1, whose embedding transformers would not train.
        shape(
            *(113, 28, 45, 3, 6, 2, 10),
            dict(rope_type="default", rope_theta=1e7),
            attention_bias=True,
            pad_token_id=None,
        ),
        lora(r=3),
    ),
    "qwen3_yarn": ("Qwen3", shape(101, 26, 35, 3, 3, 1, 18, YARN), lora(r=2)),
}


def main():
    if len(sys.argv) != 2:
        print(__doc__.split("\n\n")[1].split("\n")[0], file=sys.stderr)
        return 1
    for seed, (name, (architecture, config, adapter)) in enumerate(MODELS.items()):
        torch.manual_seed(seed)
        config = getattr(transformers, architecture + "Config")(**config, bos_token_id=1, eos_token_id=2)
        model = getattr(transformers, architecture + "ForCausalLM")(config).to(torch.float32)
        for parameter in model.parameters():
            if parameter.dim() == 1:  # norms, which begin as ones
                parameter.data.add_(torch.randn_like(parameter), alpha=0.1)
        base = os.path.join(sys.argv[1], name, "base")
        model.to(torch.bfloat16).save_pretrained(base)
        tuned = peft.get_peft_model(
            model.to(torch.float32), peft.LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **adapter)
        )
        tuned.save_pretrained(os.path.join(sys.argv[1], name, "adapter"))
        print(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
