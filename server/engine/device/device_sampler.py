"""The next tokens of a step, chosen on the GPU; see ``sampler`` for what is chosen."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ....kernels.sampling import RowSampling
from ....kernels.sampling import sample as sample_rows
from ..grammar_masks import StepMasks
from ..sampler import AskingRows, SampledToken, SampleRow, uniform
from .interface import DeviceInterface
from .upload import Upload, padded

_FIELDS = ("temperature", "top_p", "min_p", "uniform", "top_k")


def sample_on_device(logits: torch.Tensor, rows: list[SampleRow], masks: StepMasks | None = None) -> list[SampledToken]:
    """As ``sampler.sample``, with one launch and one read for all rows. Equal logits at the edge of a filter all stay,
    and a draw walks the kept tokens in order of their ids: the same distribution, by another path."""
    if not rows:
        return []
    asking = AskingRows(logits, rows, masks)
    params = _row_sampling(torch.from_numpy(_parameters(rows)).to(logits.device))
    return asking.with_logprobs(sample_rows(logits, params).tolist())


class SamplingBuffers:
    """The parameters of the rows of a step, on their way to the GPU."""

    def __init__(self, device: DeviceInterface, most_rows: int) -> None:
        self._stride = padded(4 * most_rows) // 4  # elements between two parameters
        self._upload = Upload(device, 4 * self._stride * len(_FIELDS))
        self._on_device = self._by_field(self._upload.on_device)
        self._pinned = [self._by_field(pinned).numpy() for pinned in self._upload.pinned]

    def write(self, rows: list[SampleRow]) -> RowSampling:
        """Put the copy of the parameters of ``rows`` in the stream; returns where they will be until the next time."""
        self._pinned[self._upload.next()][:, : len(rows)] = _parameters(rows)
        self._upload.send(self._upload.on_device.nbytes)
        return _row_sampling(self._on_device[:, : len(rows)])

    def _by_field(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.view(torch.float32).view(len(_FIELDS), self._stride)


def _parameters(rows: list[SampleRow]) -> npt.NDArray[np.float32]:
    """[5, len(rows)] float32 in the order of ``_FIELDS``; top-k as the bits of int32."""
    params = [row.params for row in rows]
    found = np.empty((len(_FIELDS), len(rows)), dtype=np.float32)
    found[0] = [p.temperature for p in params]
    found[1] = [p.top_p for p in params]
    found[2] = [p.min_p for p in params]
    found[3] = [
        uniform(p.seed or 0, row.position) if p.temperature > 0 else 0.0 for p, row in zip(params, rows, strict=True)
    ]
    found[4] = np.array([p.top_k for p in params], dtype=np.int32).view(np.float32)
    return found


def _row_sampling(parameters: torch.Tensor) -> RowSampling:
    """Views of ``parameters`` [5, R] float32, each row of them contiguous."""
    temperature, top_p, min_p, draws, top_k = parameters.unbind(0)
    return RowSampling(temperature, top_k.view(torch.int32), top_p, min_p, draws)
