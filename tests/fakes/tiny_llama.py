"""A random Llama of a few thousand weights, as a folder that the server loads like any other model."""

from __future__ import annotations

import json
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Shape:
    """Of a random Llama."""

    hidden: int = HIDDEN
    layers: int = LAYERS
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    head_dim: int = HEAD_DIM
    intermediate: int = INTERMEDIATE

    def config(self) -> dict[str, object]:
        """As in ``config.json``."""
        return {
            **CONFIG,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
        }


TINY = Shape()
# Starts as quickly as the tiny one, and takes as long for a token as a disk for a block: its KV is worth reading.
SMALL = Shape(hidden=256, layers=6, heads=8, kv_heads=4, head_dim=32, intermediate=768)


def make_tiny_llama(folder: Path, shape: Shape = TINY, *, vocab_size: int = VOCAB, max_position: int = 2048) -> Path:
    """Write ``config.json`` and ``model.safetensors`` of the same random model each time."""
    generator = torch.Generator().manual_seed(11)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator) / size[-1] ** 0.5

    hidden, queries, keys = shape.hidden, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    tensors = {
        "model.embed_tokens.weight": random(vocab_size, hidden) * 8,
        "model.norm.weight": torch.ones(hidden),
        "lm_head.weight": random(vocab_size, hidden) * 4,
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}"
        tensors |= {
            f"{prefix}.input_layernorm.weight": torch.ones(hidden),
            f"{prefix}.post_attention_layernorm.weight": torch.ones(hidden),
            f"{prefix}.self_attn.q_proj.weight": random(queries, hidden),
            f"{prefix}.self_attn.k_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.v_proj.weight": random(keys, hidden),
            f"{prefix}.self_attn.o_proj.weight": random(hidden, queries),
            f"{prefix}.mlp.gate_proj.weight": random(shape.intermediate, hidden),
            f"{prefix}.mlp.up_proj.weight": random(shape.intermediate, hidden),
            f"{prefix}.mlp.down_proj.weight": random(hidden, shape.intermediate),
        }
    sizes = {**shape.config(), "vocab_size": vocab_size, "max_position_embeddings": max_position}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(sizes))
    return folder
