"""Small inputs on their way to the GPU: written in pinned memory, moved in one copy."""

from __future__ import annotations

import torch

from .interface import DeviceInterface, Event

ALIGNMENT = 256  # bytes


def padded(num_bytes: int) -> int:
    """The bytes that ``num_bytes`` take where each part of a buffer begins aligned."""
    return num_bytes + -num_bytes % ALIGNMENT


class Upload:
    """Alone owns a buffer on the device and the two pinned ones it is filled from in turns, so that one can be written
    while the other is still being copied."""

    def __init__(self, device: DeviceInterface, num_bytes: int) -> None:
        self._device = device
        self.on_device = torch.zeros(num_bytes, dtype=torch.uint8, device=device.torch_device)
        self.pinned = (device.pinned(num_bytes), device.pinned(num_bytes))
        self._copied: list[Event | None] = [None, None]
        self._place = 0

    def next(self) -> int:
        """Which of ``pinned`` to write to now, once its last copy is done; ``send`` follows."""
        self._place ^= 1
        copied = self._copied[self._place]
        if copied is not None:
            copied.wait()
        return self._place

    def send(self, num_bytes: int) -> None:
        """Put the copy of the first ``num_bytes``, which were written, in the stream."""
        self._device.copy(self.on_device[:num_bytes], self.pinned[self._place][:num_bytes])
        self._copied[self._place] = self._device.record()
