"""AWQ and GPTQ checkpoints, packed by hand as the formats say, against transformers with the same values."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file

from sessile.kernels.linear import DenseWeight, Int4Weight
from sessile.server.model.registry import load_model
from sessile.server.model.source import ModelSource
from sessile.server.model.weights.int4_checkpoint import Int4CheckpointSource, Int4Format
from sessile.server.model.weights.safetensors_source import FLOATS, SafetensorsSource
from sessile.sessions.errors import ModelError

GROUP = 64
CONFIG = transformers.Qwen2Config(
    vocab_size=90,
    hidden_size=128,
    intermediate_size=192,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    tie_word_embeddings=False,
)
QUANTIZATION = {
    Int4Format.AWQ: {"quant_method": "awq", "bits": 4, "group_size": GROUP, "version": "gemm", "zero_point": True},
    Int4Format.GPTQ: {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "sym": False, "desc_act": False},
    Int4Format.GPTQ_V2: {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"},
}
TOKEN_IDS = [(5 * i * i + 1) % 90 for i in range(30)]
Tensors = dict[str, torch.Tensor]


def packed(nibbles: torch.Tensor, order: list[int]) -> torch.Tensor:
    """[R, C * 8] to int32 [R, C]: nibble i of an int32 is its column ``order[i]``."""
    words = torch.zeros(nibbles.shape[0], nibbles.shape[1] // 8, dtype=torch.int64)
    for place, column in enumerate(order):
        words |= nibbles[:, column::8].long() << (4 * place)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


class Layer:
    """One linear layer's random q, zeros and scales; scales are powers of two, so that no product is rounded."""

    def __init__(self, outputs: int, inputs: int, generator: torch.Generator, *, shuffled: bool) -> None:
        groups = inputs // GROUP
        self.q = torch.randint(16, (inputs, outputs), generator=generator)
        self.zero = torch.randint(1, 16, (groups, outputs), generator=generator)
        self.scale = 2.0 ** torch.randint(-8, -5, (groups, outputs), generator=generator)
        self.group = torch.arange(inputs) // GROUP
        if shuffled:
            self.group = self.group[torch.randperm(inputs, generator=generator)]

    @property
    def weight(self) -> torch.Tensor:
        return ((self.q - self.zero[self.group]) * self.scale[self.group]).T.float()

    def tensors(self, name: str, form: Int4Format) -> Tensors:
        if form is Int4Format.AWQ:
            order = [0, 2, 4, 6, 1, 3, 5, 7]
            parts = {"qweight": packed(self.q, order), "qzeros": packed(self.zero, order)}
        else:
            order = list(range(8))
            stored = self.zero - 1 if form is Int4Format.GPTQ else self.zero
            parts = {"qweight": packed(self.q.T, order).T.contiguous(), "qzeros": packed(stored, order)}
            parts["g_idx"] = self.group.to(torch.int32)
        parts["scales"] = self.scale.half()
        return {f"{name}.{part}": tensor for part, tensor in parts.items()}


def write(source: ModelSource, form: Int4Format, *, shuffled: bool = False) -> tuple[Any, Tensors]:
    """A checkpoint, and transformers with its values."""
    generator = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    oracle = transformers.AutoModelForCausalLM.from_config(CONFIG, dtype=torch.float32).eval()
    tensors: Tensors = {}
    with torch.no_grad():
        for name, parameter in oracle.named_parameters():
            if "_proj.weight" in name:
                layer = Layer(*parameter.shape, generator, shuffled=shuffled)
                parameter.copy_(layer.weight)
                tensors |= layer.tensors(name.removesuffix(".weight"), form)
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.3 + parameter)
                tensors[name] = parameter.detach().clone()
    if form is not Int4Format.AWQ:  # packers write zeros where a layer has no bias
        tensors["model.layers.0.mlp.up_proj.bias"] = torch.zeros(192, dtype=torch.float16)
    save(source, form, tensors)
    return oracle, tensors


def save(source: ModelSource, form: Int4Format, tensors: Tensors) -> None:
    config = {**CONFIG.to_dict(), "model_type": "qwen2", "quantization_config": QUANTIZATION[form]}
    (source.path / "config.json").write_text(json.dumps(config, default=str))
    save_file(tensors, source.path / "model.safetensors")


def load(source: ModelSource) -> Any:
    return load_model(source, device="cpu", dtype="float32").model


@pytest.mark.parametrize("form", Int4Format)
def test_logits_equal_the_dequantised_model(folder_source: ModelSource, run: Any, form: Int4Format) -> None:
    oracle, _ = write(folder_source, form)
    (logits,) = run(load(folder_source), [TOKEN_IDS], 16)
    with torch.no_grad():
        expected = oracle(torch.tensor([TOKEN_IDS])).logits[0]
    assert (logits - expected).abs().max() < 1e-4
    assert expected.abs().max() > 1.0


def test_inputs_out_of_order_are_dequantised(folder_source: ModelSource, run: Any) -> None:
    oracle, _ = write(folder_source, Int4Format.GPTQ, shuffled=True)
    (logits,) = run(load(folder_source), [TOKEN_IDS], 16)
    with torch.no_grad():
        expected = oracle(torch.tensor([TOKEN_IDS])).logits[0]
    assert (logits - expected).abs().max() < 1e-4


@pytest.mark.parametrize(("shuffled", "kind"), [(False, Int4Weight), (True, DenseWeight)])
def test_weights_stay_four_bits_where_kernels_can_read_them(
    folder_source: ModelSource, shuffled: bool, kind: type
) -> None:
    write(folder_source, Int4Format.GPTQ, shuffled=shuffled)
    files = SafetensorsSource([folder_source.path / "model.safetensors"], FLOATS | {"I32"})
    source = Int4CheckpointSource(files, Int4Format.GPTQ, frozenset())
    assert isinstance(source.matrix("model.layers.0.mlp.up_proj.weight"), kind)


LAYER = "model.layers.0.self_attn.o_proj"


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({f"{LAYER}.scales": None}, f"{LAYER}.scales"),
        ({f"{LAYER}.qzeros": None}, f"{LAYER}.qzeros"),
        ({f"{LAYER}.scales": torch.ones(3, 128)}, f"{LAYER}.scales"),
        ({f"{LAYER}.qweight": torch.zeros(16, dtype=torch.int32)}, f"{LAYER}.qweight"),
        ({f"{LAYER}.g_idx": torch.full((128,), 9, dtype=torch.int32)}, f"{LAYER}.g_idx"),
        ({f"{LAYER}.scales": torch.full((2, 128), torch.inf)}, f"{LAYER}.weight"),
        ({"model.layers.0.mlp.up_proj.bias": torch.ones(192)}, "model.layers.0.mlp.up_proj.bias"),
    ],
)
def test_parts_that_do_not_fit_are_named(
    folder_source: ModelSource, change: dict[str, torch.Tensor | None], field: str
) -> None:
    _, tensors = write(folder_source, Int4Format.GPTQ)
    changed = {name: tensor for name, tensor in (tensors | change).items() if tensor is not None}
    save(folder_source, Int4Format.GPTQ, changed)
    with pytest.raises(ModelError) as caught:
        load(folder_source)
    assert caught.value.field == field


@pytest.mark.parametrize(
    "quantization",
    [
        {"quant_method": "bitsandbytes", "load_in_4bit": True},
        {"quant_method": "awq", "bits": 4, "version": "gemv"},
        {"quant_method": "gptq", "bits": 3},
        {"quant_method": "gptq", "bits": "four"},
        {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
        {},
        "awq",
    ],
)
def test_other_quantisations_are_refused(folder_source: ModelSource, quantization: Any) -> None:
    write(folder_source, Int4Format.AWQ)
    path = folder_source.path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "quantization_config": quantization}))
    with pytest.raises(ModelError) as caught:
        load(folder_source)
    assert caught.value.field == "quantization_config"
