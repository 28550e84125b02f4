"""A random Llama of a few thousand weights, as a folder that the server loads like any other model."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

VOCAB = 320
HIDDEN = 64
LAYERS = 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 16
INTERMEDIATE = 96

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


def make_tiny_llama(folder: Path, *, vocab_size: int = VOCAB, max_position: int = 2048) -> Path:
    """Write ``config.json`` and ``model.safetensors`` of the same random model each time."""
    generator = torch.Generator().manual_seed(11)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    tensors = {
        "model.embed_tokens.weight": random(vocab_size, HIDDEN) * 8,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": random(vocab_size, HIDDEN) * 4,
    }
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(HIDDEN),
            f"{prefix}.self_attn.q_proj.weight": random(HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": random(KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": random(HIDDEN, HEADS * HEAD_DIM),
            f"{prefix}.mlp.gate_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": random(INTERMEDIATE, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": random(HIDDEN, INTERMEDIATE),
        }
    sizes = {**CONFIG, "vocab_size": vocab_size, "max_position_embeddings": max_position}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder
