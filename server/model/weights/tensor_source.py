"""What the loader asks of a checkpoint, whatever its file format, and the check of its tensors against the config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from ....kernels.linear import Weight
from ....sessions.errors import ModelError
from ..config import ModelConfig


class TensorSource(Protocol):
    """Tensors by their Hugging Face names (``model.layers.0.mlp.up_proj.weight``), read one at a time."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor's shape as the model has it, from the headers alone."""
        ...

    def vector(self, name: str) -> Tensor:
        """A norm or a bias, float32."""
        ...

    def matrix(self, name: str) -> Weight:
        """A linear layer's weight or the embedding, [out, in], in the form in which the checkpoint holds it."""
        ...

    def content_hash(self) -> str:
        """BLAKE3 of the checkpoint's bytes, hexadecimal."""
        ...


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Each tensor that a model of this configuration has, with its shape."""
    hidden = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config.vocab_size, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {f"{prefix}{name}": shape for name, shape in _attention_shapes(config).items()}
        mlp = _moe_shapes(config) if config.is_moe_layer(layer) else _mlp_shapes(config, config.intermediate_size)
        shapes |= {f"{prefix}mlp.{name}": shape for name, shape in mlp.items()}
    return shapes


def check_tensors(source: TensorSource, config: ModelConfig) -> None:
    """Compare a checkpoint's tensors with those of its configuration, before any is read.

    Raises:
        ModelError: a tensor is missing, has another shape, or belongs to no part of the model; it names the first.
    """
    expected, found = expected_shapes(config), source.shapes
    for name, shape in expected.items():
        if name not in found:
            raise ModelError(f"the weights have no tensor {name!r}", field=name, remedy=_OTHER_CONFIG)
        if found[name] != shape:
            raise ModelError(
                f"tensor {name!r} has the shape {found[name]}, by the configuration it is {shape}",
                field=name,
                remedy=_OTHER_CONFIG,
            )
    for name in found:
        if name not in expected and not _is_derived(name, config):
            raise ModelError(f"tensor {name!r} is no part of the model", field=name, remedy=_OTHER_CONFIG)


_OTHER_CONFIG = "the weights and the configuration do not belong together, or a file is missing"


def _is_derived(name: str, config: ModelConfig) -> bool:
    """Tensors that some checkpoints carry although others determine them."""
    return name.endswith("rotary_emb.inv_freq") or (name == "lm_head.weight" and config.tie_word_embeddings)


def _attention_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, q = config.hidden_size, config.num_heads * config.head_dim
    kv = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
    }
    if config.qkv_bias:
        shapes |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    return shapes


def _mlp_shapes(config: ModelConfig, width: int) -> dict[str, tuple[int, ...]]:
    return {
        "gate_proj.weight": (width, config.hidden_size),
        "up_proj.weight": (width, config.hidden_size),
        "down_proj.weight": (config.hidden_size, width),
    }


def _moe_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    assert config.moe is not None
    shapes: dict[str, tuple[int, ...]] = {"gate.weight": (config.moe.num_experts, config.hidden_size)}
    for expert in range(config.moe.num_experts):
        one = _mlp_shapes(config, config.moe.intermediate_size)
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in one.items()}
    return shapes
