"""Steps on a GPU: the model's launch and the draw of its tokens, both put in the stream without waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ....kernels.sampling import sample as sample_rows
from ..batch import StepArrays
from ..sampler import SampledToken, SampleRow
from ..steps import LaunchedStep, Masks
from .device_sampler import SamplingBuffers, sample_on_device
from .graph_runner import Draw, GraphRunner, Ticket
from .interface import DeviceInterface


@dataclass(frozen=True, slots=True)
class _DrawnStep:
    """The GPU draws the tokens by itself."""

    runner: GraphRunner
    ticket: Ticket

    def result(self) -> list[SampledToken]:
        return [SampledToken(token_id, None) for token_id in self.runner.collect(self.ticket)]


@dataclass(frozen=True, slots=True)
class _AdjustedStep:
    """Some rows ask for more than a draw: their logits are changed first, by what the host knows when it reads them."""

    device: DeviceInterface
    ticket: Ticket
    rows: list[SampleRow]
    masks: Masks

    def result(self) -> list[SampledToken]:
        sampled: list[SampledToken] = []
        masks = None if self.masks is None else self.masks.result()
        self.device.put(lambda: sampled.extend(sample_on_device(self.ticket.logits, self.rows, masks)))
        self.device.record().wait()
        return sampled


class GraphSteps:
    """See ``Steps``."""

    goes_on_alone = True

    def __init__(self, runner: GraphRunner, device: DeviceInterface, most_rows: int) -> None:
        self._runner = runner
        self._device = device
        self._sampling = SamplingBuffers(device, most_rows)

    def launch(self, arrays: StepArrays, masks: Masks, previous: npt.NDArray[np.int64] | None = None) -> LaunchedStep:
        """See ``Steps``."""
        rows = arrays.rows
        if any(row.sequence.adjusts_logits for row in rows):
            return _AdjustedStep(self._device, self._runner.launch(arrays, previous), rows, masks)
        return _DrawnStep(self._runner, self._runner.launch(arrays, previous, self._draw(rows)))

    def _draw(self, rows: list[SampleRow]) -> Draw | None:
        """How the tokens are drawn; None: each is the likeliest. The parameters cross the bus before the step."""
        if not any(row.params.temperature > 0 for row in rows):
            return None
        params = self._sampling.write(rows)
        return lambda logits: sample_rows(logits, params)
