"""The parts of the radix tree: its edges, what a search finds, and what keeps an edge from being given up."""

from __future__ import annotations

import bisect
import dataclasses
from typing import TYPE_CHECKING

from .lifetime import Lifetime
from .token_key import TOKEN_BYTES, common_prefix_tokens

if TYPE_CHECKING:
    from .path_ends import PathEnd


class Node:
    """One edge of the tree and the branches below it. Only the tree changes it."""

    __slots__ = (
        "_child_keys",
        "_child_nodes",
        "blocks",
        "content_keys",
        "ends",
        "key",
        "last_use",
        "lifetime",
        "lock_count",
        "parent",
        "pin_count",
        "salt",
        "soft_pin_count",
        "start",
        "superseded",
    )

    def __init__(
        self,
        salt: str,
        parent: Node | None,
        key: bytes | bytearray,
        blocks: list[int],
        content_keys: list[bytes],
        lifetime: Lifetime,
    ) -> None:
        self.salt = salt
        self.parent = parent
        self.key = bytearray(key)  # tokens of this edge, packed
        self.blocks = blocks  # [ceil(num_tokens / block_size)]
        self.content_keys = content_keys  # of ``blocks``, a half-full last one included
        self.start: int = 0 if parent is None else parent.start + parent.num_tokens  # tokens before this edge
        self.lock_count = 0  # locks held at this node or below it
        self.pin_count = 0  # of these, those of pins
        self.soft_pin_count = 0  # soft pins, no locks, that end at this node or below it and count for their tenant
        self.last_use = 0.0  # seconds
        self.lifetime = lifetime  # the longest of those who used it
        self.superseded = False  # nobody is expected to use it again
        self.ends: dict[str, PathEnd] = {}  # by owner, those whose paths end here
        self._child_keys: list[bytes] = []  # key of the first block of each child, sorted
        self._child_nodes: list[Node] = []

    @property
    def num_tokens(self) -> int:
        return len(self.key) // TOKEN_BYTES

    @property
    def children(self) -> tuple[Node, ...]:
        return tuple(self._child_nodes)

    @property
    def is_leaf(self) -> bool:
        return not self._child_nodes

    def first_block(self, block_size: int) -> bytes:
        """The key of the first block: what the children of a node are sorted by."""
        return bytes(self.key[: block_size * TOKEN_BYTES])

    def add_child(self, first_block: bytes, child: Node) -> None:
        place = bisect.bisect_left(self._child_keys, first_block)
        self._child_keys.insert(place, first_block)
        self._child_nodes.insert(place, child)

    def remove_child(self, first_block: bytes, child: Node) -> None:
        place = self._place_of(first_block, child)
        del self._child_keys[place]
        del self._child_nodes[place]

    def replace_child(self, old_key: bytes, old: Node, new_key: bytes, new: Node) -> None:
        self.remove_child(old_key, old)
        self.add_child(new_key, new)

    def closest_child(self, first_block: bytes) -> tuple[Node | None, int]:
        """The child whose first block shares the most leading tokens with ``first_block``, and how many."""
        place = bisect.bisect_left(self._child_keys, first_block)
        best: Node | None = None
        best_length = 0
        for candidate in (place, place - 1):
            if 0 <= candidate < len(self._child_keys):
                length = common_prefix_tokens(self._child_keys[candidate], first_block)
                if length > best_length:
                    best, best_length = self._child_nodes[candidate], length
        return best, best_length

    def _place_of(self, first_block: bytes, child: Node) -> int:
        place = bisect.bisect_left(self._child_keys, first_block)
        while self._child_nodes[place] is not child:
            place += 1
        return place


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
    """How much of a sequence is cached: ``blocks`` whole, and ``partial_tokens`` of ``partial_block`` after them."""

    salt: str
    path_end: Node | None  # the node in which the whole blocks end; None: at the root
    path_end_blocks: int  # how many of its blocks are matched
    blocks: list[int]
    content_keys: list[bytes]  # of ``blocks``
    partial_block: int | None
    partial_tokens: int
    num_tokens: int  # all matched tokens, those of the partial block included
    tail: Node | None = None  # the half-full leaf that is matched as a whole, if there is one

    def whole_blocks(self) -> Match:
        """The same match without its partial block."""
        whole = self.num_tokens - self.partial_tokens
        return dataclasses.replace(self, partial_block=None, partial_tokens=0, num_tokens=whole, tail=None)


@dataclasses.dataclass(slots=True, eq=False)
class PathLock:
    """Keeps the blocks from the root to the end of ``node`` cached. Made, moved and ended by the tree alone.

    ``lifetime``: how far what its holder adds to the path may go.
    """

    node: Node
    lifetime: Lifetime = Lifetime.PROCESS


@dataclasses.dataclass(slots=True, eq=False)
class Pin(PathLock):
    """A lock that no sequence holds. ``num_blocks``: from the root to its end."""

    num_blocks: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Evicted:
    """A run of blocks that the tree is about to give up, while their KV is still there.

    ``start``: tokens of the path before the first of them. ``owners``: whose paths end in them.
    """

    salt: str
    content_keys: list[bytes]
    blocks: list[int]
    start: int
    num_tokens: int
    superseded: bool
    owners: tuple[str, ...]
    lifetime: Lifetime = Lifetime.DURABLE
