"""A ModelConfig from the metadata of a GGUF file."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...sessions.errors import ModelError
from .config import Family, ModelConfig, MoeConfig, RopeConfig, RopeKind
from .hf_config import Keys
from .weights.gguf_file import GGUFFile

_FAMILIES = {
    "llama": Family.LLAMA,  # Mistral's files name this architecture too
    "qwen2": Family.QWEN2,
    "qwen3": Family.QWEN3,
    "qwen3moe": Family.QWEN3_MOE,
}
_ROPE_FACTORS = "rope_freqs.weight"


def config_from_gguf(file: GGUFFile) -> ModelConfig:
    """Read the metadata and the names of the tensors.

    Raises:
        ModelError: an unknown architecture, a missing or impossible key, or a variation that is not computed here.
    """
    family, architecture = _family(file), file.architecture
    prefix = f"{architecture}."
    own = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    keys = Keys(own, f"the {prefix}* keys of {file.path}")
    num_heads, hidden_size = keys.need("attention.head_count", int), keys.need("embedding_length", int)
    if num_heads < 1:
        raise ModelError(f"{prefix}attention.head_count is {num_heads}", field=f"{prefix}attention.head_count")
    head_dim = keys.get("attention.key_length", int, hidden_size // num_heads)
    _refuse_variations(keys, head_dim, file)
    config = ModelConfig(
        family=family,
        vocab_size=_vocab_size(file),
        hidden_size=hidden_size,
        intermediate_size=keys.get("feed_forward_length", int, 0),
        num_layers=keys.need("block_count", int),
        num_heads=num_heads,
        num_kv_heads=keys.get("attention.head_count_kv", int, num_heads),
        head_dim=head_dim,
        # The file holds a float32; its shortest decimal is what the model's makers wrote.
        rms_norm_eps=float(str(np.float32(keys.need("attention.layer_norm_rms_epsilon", float)))),
        max_position=_context_length(keys),
        rope=_rope(keys, file),
        tie_word_embeddings="output.weight" not in file.tensors,
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        output_bias="blk.0.attn_output.bias" in file.tensors,
        qk_norm=family in (Family.QWEN3, Family.QWEN3_MOE),
        moe=_moe(keys) if family is Family.QWEN3_MOE else None,
    )
    config.validate()
    return config


def _family(file: GGUFFile) -> Family:
    architecture = file.architecture
    if architecture not in _FAMILIES:
        raise ModelError(
            f"{file.path}: the architecture {architecture!r} is not known",
            field="general.architecture",
            remedy=f"known are {', '.join(sorted(_FAMILIES))}",
        )
    if file.metadata.get("split.count", 1) not in (0, 1):
        raise ModelError(
            f"{file.path} is one of {file.metadata['split.count']} parts of a model",
            field="split.count",
            remedy="merge the parts into one file (llama-gguf-split --merge)",
        )
    return _FAMILIES[architecture]


def _refuse_variations(keys: Keys, head_dim: int, file: GGUFFile) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.get(key, int, head_dim) != head_dim:
            raise ModelError(f"{file.path}: {key} differs from the head's {head_dim}: not computed here", field=key)
    if "expert_count" in keys and keys.get("expert_count", int, 0) and file.architecture == "llama":
        raise ModelError(f"{file.path}: a Llama with experts (Mixtral) is not computed here", field="expert_count")


def _vocab_size(file: GGUFFile) -> int:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path} has no tensor 'token_embd.weight'", field="token_embd.weight")
    return embedding.shape[0]


def _context_length(keys: Keys) -> int:
    length = keys.need("context_length", int)
    window = keys.get("attention.sliding_window", int, 0)
    return min(length, window) if window else length


def _rope(keys: Keys, file: GGUFFile) -> RopeConfig:
    base = keys.get("rope.freq_base", float, 10_000.0)
    if _ROPE_FACTORS in file.tensors:
        factors: Any = file.raw(_ROPE_FACTORS).view(np.float32)
        return RopeConfig(base=base, kind=RopeKind.FACTORS, factors=tuple(float(f) for f in factors.ravel()))
    name = keys.get("rope.scaling.type", str, "none")
    if name == "none":
        return RopeConfig(base=base)
    if name not in ("linear", "yarn"):
        raise ModelError(f"{file.path}: the rotary scaling {name!r} is not computed here", field="rope.scaling.type")
    return RopeConfig(
        base=base,
        kind=RopeKind(name),
        factor=keys.need("rope.scaling.factor", float),
        original_max_position=keys.get("rope.scaling.original_context_length", int, keys.need("context_length", int)),
    )


def _moe(keys: Keys) -> MoeConfig:
    return MoeConfig(
        num_experts=keys.need("expert_count", int),
        experts_per_token=keys.need("expert_used_count", int),
        intermediate_size=keys.need("expert_feed_forward_length", int),
        normalize_weights=True,
    )
