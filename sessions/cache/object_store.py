"""What the shared tier needs of a store that other processes and machines use too."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NewType, Protocol

from .tiers import Block

Task = NewType("Task", tuple[str, int])
"""Names an operation under way."""


@dataclasses.dataclass(frozen=True, slots=True)
class Completion:
    """An operation that ended, and for each of its keys whether it worked or was found."""

    task: Task
    succeeded: tuple[bool, ...]


class ObjectStore(Protocol):
    """Starts operations without waiting and says later which ended.

    Buffers are used until the operation ended, however late that is. Any method may raise any exception: the library
    behind it is not ours, and the tier treats whatever it raises as a failure of the store.
    """

    def descriptors(self) -> Sequence[int]:
        """File descriptors, one of which is readable when ``completed`` has something to say."""
        ...

    def submit_store(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task: ...

    def submit_contains(self, keys: Sequence[bytes]) -> Task: ...

    def submit_load(self, keys: Sequence[bytes], buffers: Sequence[Block]) -> Task: ...

    def completed(self) -> list[Completion]:
        """The operations that ended since the last call."""
        ...

    def close(self) -> None: ...
