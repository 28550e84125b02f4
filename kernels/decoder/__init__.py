"""A whole dense decoder in one call: a step needs one call from Python, not ten a layer."""

from __future__ import annotations

from torch import Tensor

from ..attention_batch import AttentionBatch
from ..backend import cpu_library
from ..cuda_config import config_of
from . import native, reference
from .layers import DecoderLayer, DecoderWeights

__all__ = ["DecoderLayer", "DecoderWeights", "decoder"]


def decoder(x: Tensor, weights: DecoderWeights, batch: AttentionBatch, kv_pool: Tensor) -> Tensor:
    """All layers and the final norm over the embedded tokens ``x`` [T, H] float32; a new tensor [T, H] float32.

    Writes the tokens' KV to ``kv_pool`` at ``batch.slot_mapping``. The same bits as calling the ops one by one.
    """
    if x.shape != (batch.num_tokens, weights.final_norm.numel()):
        raise ValueError(f"x is {tuple(x.shape)}, expected [{batch.num_tokens}, {weights.final_norm.numel()}]")
    if x.is_cuda:
        from . import cuda

        return cuda.decoder(x, weights, batch, kv_pool, config_of(x.device))
    library = cpu_library(x.device)
    if library is None or weights.native is None:
        return reference.decoder(x, weights, batch, kv_pool)
    return native.decoder(library, x, weights.native, batch, kv_pool)
