"""A ModelConfig from a Hugging Face ``config.json``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...sessions.errors import ModelError
from .config import Family, ModelConfig, MoeConfig, RopeConfig, RopeKind, check_layers

logger = logging.getLogger(__name__)

MAX_JSON_BYTES = 64 << 20
_T = TypeVar("_T")
_FAMILIES: Mapping[str, Family] = {
    "llama": Family.LLAMA,
    "mistral": Family.MISTRAL,
    "qwen2": Family.QWEN2,
    "qwen3": Family.QWEN3,
    "qwen3_moe": Family.QWEN3_MOE,
}
_DEFAULT_ROPE_BASE = 10_000.0


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        ModelError: the file is missing, unreadable, longer than 64 MiB or holds no JSON object.
    """
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelError(f"{path} is longer than {MAX_JSON_BYTES >> 20} MiB")
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{path} is not a JSON object: {error}") from error


class Keys:
    """Typed access to a parsed config; every error names the key and the file."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def __contains__(self, key: str) -> bool:
        return self._values.get(key) is not None

    def need(self, key: str, kind: type[_T]) -> _T:
        if key not in self:
            raise ModelError(f"{self._where} has no {key!r}", field=key)
        return self._convert(key, kind)

    def get(self, key: str, kind: type[_T], default: _T) -> _T:
        return self._convert(key, kind) if key in self else default

    def part(self, key: str) -> Keys:
        return Keys(self.get(key, dict, {}), f"{key} of {self._where}")

    def _convert(self, key: str, kind: type[_T]) -> _T:
        try:
            return msgspec.convert(self._values[key], kind)
        except msgspec.ValidationError as error:
            raise ModelError(f"{key} in {self._where}: {error}", field=key) from error


def config_from_hf(values: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
    """Read a parsed ``config.json``; ``where`` names the file in errors.

    Raises:
        ModelError: an unknown family, a missing or impossible key, or a variation that is not computed here.
    """
    keys = Keys(values, where)
    family = _family(keys, where)
    _refuse_variations(keys, where)
    num_heads = keys.need("num_attention_heads", int)
    hidden_size = keys.need("hidden_size", int)
    if num_heads < 1:
        raise ModelError(f"num_attention_heads in {where} is {num_heads}", field="num_attention_heads")
    num_layers = keys.need("num_hidden_layers", int)
    check_layers(num_layers, "num_hidden_layers")
    attention_bias = keys.get("attention_bias", bool, False)
    max_position = keys.need("max_position_embeddings", int)
    config = ModelConfig(
        family=family,
        vocab_size=keys.need("vocab_size", int),
        hidden_size=hidden_size,
        intermediate_size=keys.get("intermediate_size", int, 0),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=keys.get("num_key_value_heads", int, num_heads),
        head_dim=keys.get("head_dim", int, _default_head_dim(family, hidden_size, num_heads)),
        rms_norm_eps=keys.get("rms_norm_eps", float, 1e-6),
        max_position=_window_or(max_position, keys, family),
        rope=_rope(keys, max_position),
        tie_word_embeddings=keys.get("tie_word_embeddings", bool, False),
        qkv_bias=family is Family.QWEN2 or attention_bias,
        output_bias=family is not Family.QWEN2 and attention_bias,
        qk_norm=family in (Family.QWEN3, Family.QWEN3_MOE),
        moe=_moe(keys) if family is Family.QWEN3_MOE else None,
    )
    config.validate()
    return config


def _family(keys: Keys, where: str) -> Family:
    model_type = keys.need("model_type", str)
    if model_type not in _FAMILIES:
        raise ModelError(
            f"{where}: the model type {model_type!r} is not known",
            field="model_type",
            remedy=f"known are {', '.join(sorted(_FAMILIES))}",
        )
    return _FAMILIES[model_type]


def _refuse_variations(keys: Keys, where: str) -> None:
    activation = keys.get("hidden_act", str, "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(f"{where}: the activation {activation!r} is not computed here", field="hidden_act")
    if keys.get("mlp_bias", bool, False):
        raise ModelError(f"{where}: biases in the MLP are not computed here", field="mlp_bias")


def _default_head_dim(family: Family, hidden_size: int, num_heads: int) -> int:
    return 128 if family in (Family.QWEN3, Family.QWEN3_MOE) else hidden_size // num_heads


def _window_or(max_position: int, keys: Keys, family: Family) -> int:
    """The context length, cut to the sliding window where the model uses one."""
    if family in (Family.LLAMA,) or "sliding_window" not in keys:
        return max_position
    if family is not Family.MISTRAL and not keys.get("use_sliding_window", bool, False):
        return max_position
    window = keys.need("sliding_window", int)
    if window < 1:
        raise ModelError(f"sliding_window is {window}", field="sliding_window")
    if window < max_position:
        logger.warning("the model attends over a window of %d tokens: the context is limited to it", window)
    return min(max_position, window)


def _rope(keys: Keys, max_position: int) -> RopeConfig:
    """From ``rope_parameters`` (transformers 5) or ``rope_theta`` and ``rope_scaling`` (before)."""
    scaling = keys.part("rope_parameters" if "rope_parameters" in keys else "rope_scaling")
    base = scaling.get("rope_theta", float, keys.get("rope_theta", float, _DEFAULT_ROPE_BASE))
    name = scaling.get("rope_type", str, scaling.get("type", str, "default"))
    if scaling.get("partial_rotary_factor", float, keys.get("partial_rotary_factor", float, 1.0)) != 1.0:
        raise ModelError("partial rotary embedding is not computed here", field="partial_rotary_factor")
    if name not in ("default", "linear", "llama3", "yarn"):
        raise ModelError(
            f"the rotary scaling {name!r} is not computed here",
            field="rope_scaling",
            remedy="known are default, linear, llama3 and yarn",
        )
    kind = RopeKind(name)
    if kind is RopeKind.DEFAULT:
        return RopeConfig(base=base)
    original = scaling.get(
        "original_max_position_embeddings", int, keys.get("original_max_position_embeddings", int, max_position)
    )
    attention_factor = scaling.get("attention_factor", float, 0.0)
    if "mscale" in scaling or "mscale_all_dim" in scaling:
        raise ModelError("yarn with mscale is not computed here", field="rope_scaling.mscale")
    return RopeConfig(
        base=base,
        kind=kind,
        factor=scaling.need("factor", float),
        original_max_position=original,
        low_frequency_factor=scaling.get("low_freq_factor", float, 1.0),
        high_frequency_factor=scaling.get("high_freq_factor", float, 4.0),
        beta_fast=scaling.get("beta_fast", float, 32.0),
        beta_slow=scaling.get("beta_slow", float, 1.0),
        attention_factor=attention_factor or None,
    )


def _moe(keys: Keys) -> MoeConfig:
    dense = set(keys.get("mlp_only_layers", list[int], []))
    every = keys.get("decoder_sparse_step", int, 1)
    num_layers = keys.need("num_hidden_layers", int)
    if every < 1:
        raise ModelError(f"decoder_sparse_step is {every}", field="decoder_sparse_step")
    dense.update(layer for layer in range(num_layers) if (layer + 1) % every)
    num_experts = keys.get("num_experts", int, 0) or keys.need("num_local_experts", int)
    return MoeConfig(
        num_experts=num_experts,
        experts_per_token=keys.need("num_experts_per_tok", int),
        intermediate_size=keys.need("moe_intermediate_size", int),
        normalize_weights=keys.get("norm_topk_prob", bool, False),
        dense_layers=tuple(sorted(dense)),
    )
