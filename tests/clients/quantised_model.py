"""tests/clients/quantised_model.py DIR: a model of random weights in bfloat16, and what bitsandbytes makes of its
layers' matrices in NF4 with double quantisation: decoded.safetensors. The mean of the scales is summed in double."""

import json
import os
import sys

import torch
from bitsandbytes.functional import create_dynamic_map, dequantize_4bit, quantize_4bit, quantize_blockwise
from safetensors.torch import save_file

D, F, V, H, G, K = 192, 320, 100, 4, 2, 48
LAYER = {
    "self_attn.q_proj": (H * K, D),
    "self_attn.k_proj": (G * K, D),
    "self_attn.v_proj": (G * K, D),
    "self_attn.o_proj": (D, H * K),
    "mlp.gate_proj": (F, D),
    "mlp.up_proj": (F, D),
    "mlp.down_proj": (D, F),
}


def through_nf4(w):
    """The matrix that bitsandbytes' codes mean, in bfloat16."""
    codes, state = quantize_4bit(w, blocksize=64, quant_type="nf4", compress_statistics=False)
    offset = state.absmax.double().mean().float()
    scales, nested = quantize_blockwise(state.absmax - offset, code=create_dynamic_map(), blocksize=256)
    values = nested.code[scales.long()] * nested.absmax.repeat_interleave(256)[: scales.numel()] + offset
    state.absmax, state.dtype = values, torch.float32  # code times scale in float32, rounded once
    return dequantize_4bit(codes, state).bfloat16()


def main(folder):
    torch.manual_seed(5)
    os.makedirs(folder, exist_ok=True)
    weights = {"model.embed_tokens.weight": torch.randn(V, D), "model.norm.weight": torch.ones(D)}
    decoded = {}
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"model.layers.0.{name}.weight"] = torch.ones(D)
    for name in ("q_norm", "k_norm"):
        weights[f"model.layers.0.self_attn.{name}.weight"] = torch.ones(K)
    for name, shape in LAYER.items():
        w = (0.05 * torch.randn(shape)).bfloat16()
        if name == "mlp.up_proj":
            w[3] = 0  # blocks of zeros
        weights[f"model.layers.0.{name}.weight"] = w
        decoded[f"model.layers.0.{name}.weight"] = through_nf4(w)
    save_file({k: v.bfloat16() for k, v in weights.items()}, f"{folder}/model.safetensors")
    save_file(decoded, f"{folder}/decoded.safetensors")
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "vocab_size": V,
        "hidden_size": D,
        "intermediate_size": F,
        "num_hidden_layers": 1,
        "num_attention_heads": H,
        "num_key_value_heads": G,
        "head_dim": K,
        "tie_word_embeddings": True,
    }
    with open(f"{folder}/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)


main(sys.argv[1])
