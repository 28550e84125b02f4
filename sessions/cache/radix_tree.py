"""The radix tree: which token sequences' KV is cached, and in which blocks.

An edge holds a run of tokens and the blocks of their KV. Edges split at block borders only, so a node starts on a block
border of every sequence through it. The half-full block at the end of a turn (*) is a leaf of its own:

      root ── "system prompt …" [b0 b1 b2] ─┬─ "task A …" [b3 b4] ── "… done" [b5*]
                                            └─ "task B …" [b6 b7]

Matching is by token: where a sequence leaves an edge inside a block, the matching tokens of that block can be copied to
a new block (copy on write), so reuse is to the token although blocks are shared whole.

The children of a node are kept sorted by the key of their first block. Of a sorted list the entry with the longest
common prefix with a key stands next to the key's place: finding it is one bisection, however many branches there are.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections.abc import Callable

from .block_pool import BlockPool
from .eviction import EvictionOrder, EvictionPolicy, LeastRecentlyUsed
from .token_key import TOKEN_BYTES, common_prefix_tokens


class Node:
    """One edge of the tree and the branches below it. Only the tree changes it."""

    __slots__ = (
        "_child_keys",
        "_child_nodes",
        "blocks",
        "content_keys",
        "key",
        "last_use",
        "lock_count",
        "parent",
        "salt",
    )

    def __init__(
        self,
        salt: str,
        parent: Node | None,
        key: bytes | bytearray,
        blocks: list[int],
        content_keys: list[bytes],
    ) -> None:
        self.salt = salt
        self.parent = parent
        self.key = bytearray(key)  # tokens of this edge, packed
        self.blocks = blocks  # [ceil(num_tokens / block_size)]
        self.content_keys = content_keys  # of the whole blocks: [num_tokens // block_size]
        self.lock_count = 0  # locks held at this node or below it
        self.last_use = 0  # logical time
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

    def whole_blocks(self) -> Match:
        """The same match without its partial block."""
        whole = self.num_tokens - self.partial_tokens
        return dataclasses.replace(self, partial_block=None, partial_tokens=0, num_tokens=whole)


@dataclasses.dataclass(slots=True, eq=False)
class PathLock:
    """Keeps the blocks from the root to the end of ``node`` cached. Made, moved and ended by the tree alone."""

    node: Node


class RadixTree:
    """Alone owns the edges from tokens to blocks, and the locks on them.

    The tree is one user (in the pool's count) of each block that it holds. Sequences of different salts never meet.
    ``on_evict`` is told the content key and the number of each whole block that is evicted, while its KV is still
    there: that is where it moves on to a lower tier.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        policy: EvictionPolicy | None = None,
        on_evict: Callable[[bytes, int], None] | None = None,
    ) -> None:
        self._pool = pool
        self._on_evict = on_evict
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._order = EvictionOrder(policy or LeastRecentlyUsed())
        self._time = itertools.count(1)
        self.num_blocks = 0  # blocks that the tree holds
        self.num_evictable_blocks = 0  # of these, not locked
        self.num_evicted = 0  # since the start
        self.nodes_visited = 0  # since the start, by match, insert and evict

    # -- matching -------------------------------------------------------------------------------------------------

    def match(self, salt: str, key: bytes) -> Match:
        """The longest cached prefix of ``key``, to the token. Changes nothing."""
        node = self._roots.get(salt)
        path_end: Node | None = None
        blocks: list[int] = []
        content_keys: list[bytes] = []
        offset, path_end_blocks, partial_block, partial_tokens = 0, 0, None, 0
        while node is not None and offset < len(key):
            child, _ = node.closest_child(key[offset : offset + self._block_bytes])
            self.nodes_visited += 1
            if child is None:
                break
            shared = common_prefix_tokens(child.key, memoryview(key)[offset:])
            whole = shared // self._block_size
            blocks += child.blocks[:whole]
            content_keys += child.content_keys[:whole]
            if whole:
                path_end, path_end_blocks = child, whole
            if shared % self._block_size:
                partial_block, partial_tokens = child.blocks[whole], shared % self._block_size
            if shared % self._block_size or shared < child.num_tokens:
                break
            node, offset = child, offset + shared * TOKEN_BYTES
        matched = len(blocks) * self._block_size + partial_tokens
        return Match(salt, path_end, path_end_blocks, blocks, content_keys, partial_block, partial_tokens, matched)

    # -- locks ----------------------------------------------------------------------------------------------------

    def lock(self, match: Match) -> PathLock:
        """Keep the whole blocks of ``match`` cached until ``unlock``. Splits the edge in which they end, if need be.

        ``match`` must be fresh: no insertion or eviction since.
        """
        node = match.path_end
        if node is None:
            node = self._root(match.salt)
        elif match.path_end_blocks < len(node.blocks):
            node = self._split(node, match.path_end_blocks)
        self._add_lock(node)
        return PathLock(node)

    def unlock(self, lock: PathLock) -> None:
        """Give up ``lock``; its blocks become evictable where nobody else holds them."""
        self._remove_lock(lock.node)

    # -- insertion ------------------------------------------------------------------------------------------------

    def insert(self, lock: PathLock, key: bytes, blocks: list[int], content_keys: list[bytes]) -> list[int]:
        """Cache whole ``blocks``, which continue ``lock``'s path with ``key``, and move the lock to their end.

        Tokens that are cached already keep the blocks that they have. The tree becomes a user of the blocks that it
        takes; the caller stays a user of all that it offered. Returns the blocks that the tree holds for these tokens.
        """
        if len(key) != len(blocks) * self._block_bytes:
            raise ValueError(f"{len(blocks)} whole blocks do not hold {len(key) // TOKEN_BYTES} tokens")
        held: list[int] = []
        node = lock.node
        while len(held) < len(blocks):
            rest = key[len(held) * self._block_bytes :]
            child = self._known_child(node, rest)
            if child is None:
                node = self._append(node, lock, rest, blocks[len(held) :], content_keys[len(held) :])
                held += blocks[len(held) :]
            else:
                held += child.blocks
                node = child
        self._move_lock(lock, node)
        return held

    def insert_tail(self, lock: PathLock, key: bytes, block: int) -> None:
        """Cache the tokens of ``key``, less than a block, which continue ``lock``'s path in ``block``.

        Nothing happens where these tokens are cached already. The lock stays where it is.
        """
        if not 0 < len(key) < self._block_bytes:
            raise ValueError("a tail has at least one token and fewer than a block")
        child, shared = lock.node.closest_child(key)
        self.nodes_visited += 1
        if child is not None and shared * TOKEN_BYTES == len(key):
            self._touch(child)
            return
        self._drop_covered_tail(lock.node, key)
        self._add_leaf(lock.node, key, [block], [])

    # -- eviction -------------------------------------------------------------------------------------------------

    def evict(self, count: int) -> int:
        """Give up about ``count`` blocks, the tail of a path first; returns how many. Locked blocks stay."""
        given_up = 0
        while given_up < count:
            leaf = self._order.first()
            if leaf is None:
                break
            self.nodes_visited += 1
            self._tell_evicted(leaf, count - given_up)
            given_up += self._cut_tail(leaf, count - given_up)
        self.num_evicted += given_up
        return given_up

    # -- the tree's own moves -------------------------------------------------------------------------------------

    def _root(self, salt: str) -> Node:
        return self._roots.setdefault(salt, Node(salt, None, b"", [], []))

    def _first_block(self, node: Node) -> bytes:
        return bytes(node.key[: self._block_bytes])

    def _known_child(self, node: Node, key: bytes) -> Node | None:
        """The child whose edge is a prefix of ``key`` in whole blocks, split off where ``key`` leaves the edge."""
        child, shared = node.closest_child(key[: self._block_bytes])
        self.nodes_visited += 1
        if child is None or shared < self._block_size:
            return None
        whole = common_prefix_tokens(child.key, key) // self._block_size
        return child if whole * self._block_size == child.num_tokens else self._split(child, whole)

    def _append(self, node: Node, lock: PathLock, key: bytes, blocks: list[int], content_keys: list[bytes]) -> Node:
        """Put new tokens below ``node``: into its own edge where nobody else can notice, else as a new leaf."""
        self._drop_covered_tail(node, key[: self._block_bytes])
        if node is not lock.node or not node.is_leaf or node.lock_count > 1 or node.parent is None:
            return self._add_leaf(node, key, blocks, content_keys)
        self._pool.retain(blocks)
        node.key += key
        node.blocks += blocks
        node.content_keys += content_keys
        self.num_blocks += len(blocks)
        return node

    def _add_leaf(self, parent: Node, key: bytes, blocks: list[int], content_keys: list[bytes]) -> Node:
        self._pool.retain(blocks)
        leaf = Node(parent.salt, parent, key, list(blocks), list(content_keys))
        self._order.discard(parent)
        parent.add_child(self._first_block(leaf), leaf)
        self.num_blocks += len(blocks)
        self.num_evictable_blocks += len(blocks)
        self._touch(leaf)
        return leaf

    def _drop_covered_tail(self, node: Node, first_block: bytes) -> None:
        """A half-full leaf whose tokens begin ``first_block`` holds nothing that the new block will not hold too."""
        child, shared = node.closest_child(first_block)
        if (
            child is not None
            and child.lock_count == 0
            and child.is_leaf
            and child.num_tokens < self._block_size
            and shared == child.num_tokens
        ):
            self._cut_tail(child, 1)

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cut the edge of ``node`` after ``num_blocks``; returns the new upper node.

        ``node`` stays the lower one, so that whoever is at its end still is.
        """
        parent = node.parent
        assert parent is not None and 0 < num_blocks < len(node.blocks)
        old_first = self._first_block(node)
        border = num_blocks * self._block_bytes
        upper = Node(node.salt, parent, node.key[:border], node.blocks[:num_blocks], node.content_keys[:num_blocks])
        upper.lock_count, upper.last_use = node.lock_count, node.last_use
        node.key = node.key[border:]
        node.blocks = node.blocks[num_blocks:]
        node.content_keys = node.content_keys[num_blocks:]
        node.parent = upper
        parent.replace_child(old_first, node, self._first_block(upper), upper)
        upper.add_child(self._first_block(node), node)
        return upper

    def _touch(self, node: Node) -> None:
        node.last_use = next(self._time)
        if node.is_leaf and node.lock_count == 0 and node.parent is not None:
            self._order.add(node)

    def _add_lock(self, node: Node) -> None:
        now = next(self._time)
        at: Node | None = node
        while at is not None:
            if at.lock_count == 0:
                self._order.discard(at)
                self.num_evictable_blocks -= len(at.blocks)
            at.lock_count += 1
            at.last_use = now
            at = at.parent

    def _remove_lock(self, node: Node) -> None:
        at: Node | None = node
        while at is not None:
            assert at.lock_count > 0
            at.lock_count -= 1
            if at.lock_count == 0:
                self.num_evictable_blocks += len(at.blocks)
                if at.is_leaf and at.parent is not None:
                    self._order.add(at)
            parent = at.parent
            if parent is None and at.is_leaf and at.lock_count == 0:
                self._roots.pop(at.salt, None)
            at = parent

    def _move_lock(self, lock: PathLock, node: Node) -> None:
        """Lock from ``lock.node`` down to ``node``, which lies below it."""
        now = next(self._time)
        at = node
        while at is not lock.node:
            if at.lock_count == 0:
                self._order.discard(at)
                self.num_evictable_blocks -= len(at.blocks)
            at.lock_count += 1
            at.last_use = now
            assert at.parent is not None
            at = at.parent
        at.last_use = now
        lock.node = node

    def _tell_evicted(self, leaf: Node, count: int) -> None:
        """Tell ``on_evict`` the whole ones of the last ``count`` blocks of a leaf."""
        if self._on_evict is not None:
            first = max(0, len(leaf.blocks) - count)
            for content_key, block in zip(leaf.content_keys[first:], leaf.blocks[first:], strict=False):
                self._on_evict(content_key, block)

    def _cut_tail(self, leaf: Node, count: int) -> int:
        """Take up to ``count`` blocks from the end of an unlocked leaf; returns how many."""
        parent = leaf.parent
        assert parent is not None and leaf.is_leaf and leaf.lock_count == 0
        cut = min(count, len(leaf.blocks))
        keep = len(leaf.blocks) - cut
        self._pool.release(reversed(leaf.blocks[keep:]))
        self.num_blocks -= cut
        self.num_evictable_blocks -= cut
        if keep:
            del leaf.blocks[keep:]
            del leaf.content_keys[keep:]
            del leaf.key[keep * self._block_bytes :]
            return cut
        self._order.discard(leaf)
        parent.remove_child(self._first_block(leaf), leaf)
        leaf.parent = None
        if parent.is_leaf and parent.lock_count == 0:
            if parent.parent is None:
                self._roots.pop(parent.salt, None)
            else:
                self._order.add(parent)
        return cut

    # -- for tests ------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError unless the tree is consistent in itself and with the pool. Visits every node."""
        held = evictable = 0
        leaves: set[Node] = set()
        stack = list(self._roots.values())
        for root in stack:
            assert root.parent is None and not root.key and not root.blocks
            assert root.children or root.lock_count, "an empty root was kept"
        while stack:
            node = stack.pop()
            held += len(node.blocks)
            evictable += 0 if node.lock_count else len(node.blocks)
            self._check_node(node)
            if node.parent is not None and node.is_leaf and node.lock_count == 0:
                leaves.add(node)
            stack += node.children
        assert held == self.num_blocks, f"{held} blocks in nodes, {self.num_blocks} counted"
        assert evictable == self.num_evictable_blocks, f"{evictable} evictable, {self.num_evictable_blocks} counted"
        assert leaves == {node for node in leaves if node in self._order} and len(leaves) == len(self._order)

    def _check_node(self, node: Node) -> None:
        assert len(node.blocks) == -(-node.num_tokens // self._block_size)
        assert len(node.content_keys) == node.num_tokens // self._block_size
        assert node.is_leaf or node.num_tokens % self._block_size == 0, "only a leaf may end inside a block"
        assert node.lock_count >= sum(child.lock_count for child in node.children)
        keys = [self._first_block(child) for child in node.children]
        assert keys == sorted(keys)
        for child in node.children:
            assert child.parent is node and child.key
        for block in node.blocks:
            assert self._pool.refcount(block) >= 1
