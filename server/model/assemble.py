"""A model from its configuration and its tensors: each is read, packed for the kernels and let go before the next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ...kernels.decoder import DecoderLayer, DecoderWeights
from ...kernels.linear import DenseWeight, PackedLinear, Weight, concatenate, pack
from ...kernels.moe import Experts
from ...kernels.rotary import Heads, QKNorm, cos_sin_table
from ...sessions.errors import ModelError
from .causal_lm import CausalLM, Precision
from .config import ModelConfig
from .dense_decoder import DenseDecoder
from .moe_decoder import Layer, Mlp, MoeDecoder, RoutedExperts
from .rope import attention_factor, inverse_frequencies
from .weights.tensor_source import TensorSource, check_tensors

Progress = Callable[[str, float], None]


def assemble(
    config: ModelConfig, source: TensorSource, device: torch.device, precision: Precision, progress: Progress
) -> CausalLM:
    """Check the tensors, then load them. ``progress`` hears a stage and a fraction from 0 to 1.

    Raises:
        ModelError: tensors that are missing, surplus, of another shape or damaged.
    """
    check_tensors(source, config)
    part = _Assembly(config, source, device, precision)
    table = part.matrix("model.embed_tokens.weight")
    output = table if config.tie_word_embeddings else part.matrix("lm_head.weight")
    layers: list[Layer] = []
    for layer in range(config.num_layers):
        layers.append(part.layer(layer))
        progress("load weights", (layer + 1) / config.num_layers)
    final_norm = part.vector("model.norm.weight")
    cos_sin = part.cos_sin()
    if config.moe is not None:
        return MoeDecoder(config, precision, table, output, layers, final_norm, cos_sin)
    weights = DecoderWeights(
        layers=[_dense(layer) for layer in layers],
        final_norm=final_norm,
        cos_sin=cos_sin,
        heads=Heads(config.num_heads, config.num_kv_heads, config.head_dim),
        attention_scale=config.head_dim**-0.5,
        eps=config.rms_norm_eps,
    )
    return DenseDecoder(config, precision, table, output, weights)


def _dense(layer: Layer) -> DecoderLayer:
    assert isinstance(layer.mlp, Mlp)
    return DecoderLayer(
        input_norm=layer.input_norm,
        qkv=layer.qkv,
        o=layer.o,
        post_norm=layer.post_norm,
        gate_up=layer.mlp.gate_up,
        down=layer.mlp.down,
        qkv_bias=layer.qkv_bias,
        o_bias=layer.o_bias,
        qk_norm=layer.qk_norm,
    )


@dataclass(frozen=True, slots=True)
class _Assembly:
    """Reads and packs the parts of one model."""

    config: ModelConfig
    source: TensorSource
    device: torch.device
    precision: Precision

    def layer(self, layer: int) -> Layer:
        config, prefix = self.config, f"model.layers.{layer}."
        attention, qkv = f"{prefix}self_attn.", [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
        qk_norm = None
        if config.qk_norm:
            norms = [self.vector(f"{attention}{name}_norm.weight") for name in "qk"]
            qk_norm = QKNorm(norms[0], norms[1], config.rms_norm_eps)
        return Layer(
            input_norm=self.vector(f"{prefix}input_layernorm.weight"),
            qkv=self.rows([f"{name}.weight" for name in qkv]),
            qkv_bias=torch.cat([self.vector(f"{name}.bias") for name in qkv]) if config.qkv_bias else None,
            qk_norm=qk_norm,
            o=self.matrix(f"{attention}o_proj.weight"),
            o_bias=self.vector(f"{attention}o_proj.bias") if config.output_bias else None,
            post_norm=self.vector(f"{prefix}post_attention_layernorm.weight"),
            mlp=self._experts(f"{prefix}mlp.") if config.is_moe_layer(layer) else self._mlp(f"{prefix}mlp."),
        )

    def vector(self, name: str) -> Tensor:
        return self.source.vector(name).to(self.device, torch.float32).contiguous().clone()

    def matrix(self, name: str) -> PackedLinear:
        return self.rows([name])

    def rows(self, names: list[str]) -> PackedLinear:
        """The rows of several weights one after the other, packed."""
        try:
            weights = [self._kept(self.source.matrix(name)) for name in names]
            return pack(weights[0] if len(weights) == 1 else concatenate(weights), device=self.device)
        except ValueError as error:
            raise ModelError(f"tensor {names[0]!r} cannot be used: {error}", field=names[0]) from error

    def cos_sin(self) -> Tensor:
        rope, config = self.config.rope, self.config
        frequencies = inverse_frequencies(rope, config.head_dim)
        return cos_sin_table(frequencies, config.max_position, attention_factor(rope)).to(self.device)

    def _kept(self, weight: Weight) -> Weight:
        """The weight as this precision keeps it: quantised ones stay so in bfloat16."""
        if self.precision is Precision.FLOAT32:
            return DenseWeight(weight.dequantise(torch.float32))
        return DenseWeight(weight.tensor.to(torch.bfloat16)) if isinstance(weight, DenseWeight) else weight

    def _mlp(self, prefix: str) -> Mlp:
        gate_up = self.rows([f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight"])
        return Mlp(gate_up, self.matrix(f"{prefix}down_proj.weight"))

    def _experts(self, prefix: str) -> RoutedExperts:
        moe = self.config.moe
        assert moe is not None
        experts = [self._mlp(f"{prefix}experts.{expert}.") for expert in range(moe.num_experts)]
        return RoutedExperts(
            router=self.matrix(f"{prefix}gate.weight"),
            experts=Experts(
                gate_up=[expert.gate_up for expert in experts],
                down=[expert.down for expert in experts],
                num_per_token=moe.experts_per_token,
                normalise=moe.normalize_weights,
            ),
        )
