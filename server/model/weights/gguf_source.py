"""Weights in GGUF, under their Hugging Face names and with their rotary pairs in Hugging Face's order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import prod

import blake3
import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGMLQuantizationType as Type
from gguf.quants import dequantize
from torch import Tensor

from ....kernels.linear import DenseWeight, Int4Weight, Int8Weight, Weight
from ....sessions.errors import ModelError
from ..config import Family, ModelConfig
from .ggml_blocks import split_q4_0, split_q4_1, split_q8_0
from .gguf_file import GGUFFile, GGUFTensor

_TOP = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
_TOP["lm_head.weight"] = "output.weight"
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}
_TO_HF = {gguf: hf for hf, gguf in _IN_LAYER.items()}
_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_NO_PART = frozenset({"rope_freqs.weight"})  # read by the configuration


class GGUFSource:
    """The tensors of a GGUF file. Q4_0 and Q4_1 stay 4 bits, Q8_0 stays 8; other quantisations become floats."""

    def __init__(self, file: GGUFFile, config: ModelConfig) -> None:
        self._file = file
        self._config = config
        self._places: dict[str, tuple[GGUFTensor, int | None]] = {}
        for tensor in file.tensors.values():
            if tensor.name not in _NO_PART:
                self._place(tensor)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {
            name: tensor.shape if expert is None else tensor.shape[1:]
            for name, (tensor, expert) in self._places.items()
        }

    def vector(self, name: str) -> Tensor:
        tensor, _ = self._places[name]
        values = torch.from_numpy(_floats(self._file.raw(tensor.name), tensor).reshape(tensor.shape).copy())
        order = self._row_order(name)
        return values if order is None else values[order]

    def matrix(self, name: str) -> Weight:
        tensor, expert = self._places[name]
        rows = self._file.raw(tensor.name)
        if expert is not None:
            per_expert = prod(tensor.shape[1:-1])
            rows = rows[expert * per_expert : (expert + 1) * per_expert]
        order = self._row_order(name)
        return _weight(rows if order is None else rows[order.numpy()], tensor)

    def content_hash(self) -> str:
        digest = blake3.blake3(max_threads=blake3.blake3.AUTO)
        digest.update_mmap(self._file.path)
        return str(digest.hexdigest())

    def _place(self, tensor: GGUFTensor) -> None:
        top = {gguf: hf for hf, gguf in _TOP.items()}.get(tensor.name)
        match = _LAYER.fullmatch(tensor.name)
        if top is not None:
            self._places[top] = (tensor, None)
        elif match is not None and match[2] in _EXPERTS and len(tensor.shape) == 3:
            for expert in range(tensor.shape[0]):
                name = f"model.layers.{match[1]}.mlp.experts.{expert}.{_EXPERTS[match[2]]}.{match[3]}"
                self._places[name] = (tensor, expert)
        elif match is not None and match[2] in _TO_HF:
            self._places[f"model.layers.{match[1]}.{_TO_HF[match[2]]}.{match[3]}"] = (tensor, None)
        else:
            self._places[tensor.name] = (tensor, None)  # the check against the configuration names it

    def _row_order(self, name: str) -> Tensor | None:
        """Rows of q and k in Hugging Face's order: the Llama family's files hold rotary pairs side by side."""
        if self._config.family is not Family.LLAMA or ".self_attn." not in name:
            return None
        heads = {"q_proj": self._config.num_heads, "k_proj": self._config.num_kv_heads}.get(name.split(".")[-2])
        if heads is None:
            return None
        rows = torch.arange(heads * self._config.head_dim)
        return rows.view(heads, self._config.head_dim // 2, 2).transpose(1, 2).reshape(-1)


_Splitter = Callable[[npt.NDArray[np.uint8]], Weight]


def _int4(parts: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float16], npt.NDArray[np.float16]]) -> Weight:
    return Int4Weight(*(torch.from_numpy(part) for part in parts))


def _int8(parts: tuple[npt.NDArray[np.int8], npt.NDArray[np.float16]]) -> Weight:
    return Int8Weight(*(torch.from_numpy(part) for part in parts))


_QUANTISED: Mapping[Type, _Splitter] = {
    Type.Q4_0: lambda rows: _int4(split_q4_0(rows)),
    Type.Q4_1: lambda rows: _int4(split_q4_1(rows)),
    Type.Q8_0: lambda rows: _int8(split_q8_0(rows)),
}


def _weight(rows: npt.NDArray[np.uint8], tensor: GGUFTensor) -> Weight:
    """A weight from its rows' bytes [N, bytes of a row]."""
    split = _QUANTISED.get(tensor.type)
    if split is not None:
        try:
            return split(rows)
        except ValueError as error:
            raise ModelError(f"tensor {tensor.name!r} is damaged: {error}", field=tensor.name) from error
    if tensor.type is Type.BF16:
        return DenseWeight(torch.from_numpy(np.array(rows).view(np.int16)).view(torch.bfloat16))
    if tensor.type is Type.F16:
        return DenseWeight(torch.from_numpy(np.array(rows).view(np.float16)))
    return DenseWeight(torch.from_numpy(np.array(_floats(rows, tensor))))


def _floats(rows: npt.NDArray[np.uint8], tensor: GGUFTensor) -> npt.NDArray[np.float32]:
    try:
        values: npt.NDArray[np.float32] = dequantize(np.ascontiguousarray(rows), tensor.type)
    except NotImplementedError as error:
        raise ModelError(
            f"tensor {tensor.name!r} is quantised as {tensor.type.name}, which cannot be read",
            field=tensor.name,
            remedy="take another quantisation of the model",
        ) from error
    return values
