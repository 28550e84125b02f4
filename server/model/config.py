"""What a model is: its sizes and its variations, whatever file they came from."""

from __future__ import annotations

import enum

import msgspec

from ...sessions.errors import ModelError

MAX_LAYERS = 4096


class Family(enum.StrEnum):
    """A family of decoders that share a forward pass and the names of their weights."""

    LLAMA = "llama"  # Llama 2 and 3.x, SmolLM2, TinyLlama
    MISTRAL = "mistral"
    QWEN2 = "qwen2"  # Qwen2 and Qwen2.5
    QWEN3 = "qwen3"
    QWEN3_MOE = "qwen3_moe"


class RopeKind(enum.StrEnum):
    """How rotary frequencies are changed for contexts longer than those of the first training."""

    DEFAULT = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"
    FACTORS = "factors"  # one divisor for each frequency, given by the weights' file (GGUF)


class RopeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding. ``original_max_position`` is the context length before scaling.

    The fields after it belong to one kind each: ``low_frequency_factor`` and ``high_frequency_factor`` to LLAMA3,
    ``beta_fast``, ``beta_slow`` and ``attention_factor`` (None: from the factor) to YARN, ``factors`` to FACTORS.
    """

    base: float
    kind: RopeKind = RopeKind.DEFAULT
    factor: float = 1.0
    original_max_position: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    factors: tuple[float, ...] = ()


class MoeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in place of the MLP; ``intermediate_size`` is that of one expert."""

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize_weights: bool
    dense_layers: tuple[int, ...] = ()  # layers that keep a plain MLP


def check_layers(num_layers: int, field: str) -> None:
    """Raise ModelError for a number of layers that no model has: there is a list of them before any tensor is seen."""
    if not 1 <= num_layers <= MAX_LAYERS:
        raise ModelError(f"{field} is {num_layers}; it must be from 1 to {MAX_LAYERS}", field=field)


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer with grouped heads, RMS norms and a gated SiLU MLP.

    ``max_position`` is the longest context that is computed exactly: where a model attends over a sliding window, the
    context ends with the window, since nothing beyond it would be seen.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_position: int
    rope: RopeConfig
    tie_word_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False  # of the attention's output projection
    qk_norm: bool = False
    moe: MoeConfig | None = None

    def is_moe_layer(self, layer: int) -> bool:
        return self.moe is not None and layer not in self.moe.dense_layers

    def validate(self) -> None:
        """Raise ModelError naming the first key that cannot be right."""
        sizes = (
            "vocab_size",
            "hidden_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
            "max_position",
        )
        for key in sizes:
            if not 1 <= getattr(self, key) <= 1 << 31:
                raise ModelError(f"{key} is {getattr(self, key)}; it must be at least 1", field=key)
        check_layers(self.num_layers, "num_layers")
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_heads ({self.num_heads}) is not a multiple of num_kv_heads ({self.num_kv_heads})",
                field="num_kv_heads",
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim is {self.head_dim}; rotary embedding needs an even one", field="head_dim")
        if self.rope.base <= 0 or self.rope.factor <= 0:
            raise ModelError("the rotary base and factor must be more than 0", field="rope")
        if not 0.0 <= self.rms_norm_eps < 1.0:
            raise ModelError(f"rms_norm_eps is {self.rms_norm_eps}; it must be from 0 to 1", field="rms_norm_eps")
        self._validate_moe()

    def _validate_moe(self) -> None:
        if self.moe is not None and not 1 <= self.moe.experts_per_token <= self.moe.num_experts:
            raise ModelError(
                f"num_experts_per_tok is {self.moe.experts_per_token} of {self.moe.num_experts} experts",
                field="num_experts_per_tok",
            )
        if self.intermediate_size < 1 and (self.moe is None or self.moe.dense_layers):
            raise ModelError(f"intermediate_size is {self.intermediate_size}", field="intermediate_size")
