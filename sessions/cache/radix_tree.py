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

import time
from collections.abc import Callable

from .block_pool import BlockPool
from .evictable import EvictableLeaves
from .eviction import EvictionPolicy, ExpectedValue
from .lifetime import Lifetime
from .path_ends import PathEnd
from .path_locks import PathLocks
from .radix_node import Evicted, Match, Node, PathLock, Pin
from .token_key import TOKEN_BYTES, common_prefix_tokens
from .tree_integrity import count_nodes


class RadixTree:
    """Alone owns the edges from tokens to blocks, and the locks on them.

    The tree is one user (in the pool's count) of each block that it holds. Sequences of different salts never meet.
    ``on_evict`` is told of each run of blocks that is given up, while its KV is still there: that is where it moves on
    to a lower tier. ``clock`` gives seconds; only differences count. ``quota_blocks``: see ``EvictableLeaves``.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        policy: EvictionPolicy | None = None,
        on_evict: Callable[[Evicted], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        quota_blocks: int | None = None,
    ) -> None:
        self._pool = pool
        self._on_evict = on_evict
        self._block_size = block_size
        self._block_bytes = block_size * TOKEN_BYTES
        self._roots: dict[str, Node] = {}
        self._clock = clock
        self._order = EvictableLeaves(policy or ExpectedValue(), clock, quota_blocks)
        self._locks = PathLocks(self._order, clock)
        self.num_blocks = 0  # blocks that the tree holds
        self.num_evicted = 0  # since the start
        self.num_superseded_evicted = 0  # of these, superseded ones
        self.num_over_quota_evicted = 0  # of these, those that went since their tenant had more than its quota
        self.nodes_visited = 0  # since the start, by match, insert and evict

    @property
    def roots(self) -> tuple[Node, ...]:
        """One for each salt, to look at."""
        return tuple(self._roots.values())

    @property
    def num_evictable_blocks(self) -> int:
        """Of the blocks that the tree holds, those that are not locked."""
        return self._locks.num_evictable_blocks

    @property
    def num_pinned_blocks(self) -> int:
        """Blocks kept by pins."""
        return self._locks.num_pinned_blocks

    def num_pinned_blocks_of(self, salt: str) -> int:
        """Of these, a tenant's."""
        return self._locks.num_pinned_blocks_of(salt)

    def num_kept_blocks_of(self, salt: str) -> int:
        """A tenant's blocks that are kept by pins, or counted by ``count_softly``."""
        return self._locks.num_kept_blocks_of(salt)

    # -- matching -------------------------------------------------------------------------------------------------

    def match(self, salt: str, key: bytes) -> Match:
        """The longest cached prefix of ``key``, to the token. Changes nothing."""
        node = self._roots.get(salt)
        path_end: Node | None = None
        blocks: list[int] = []
        content_keys: list[bytes] = []
        offset, path_end_blocks, partial_block, partial_tokens = 0, 0, None, 0
        tail: Node | None = None
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
                tail = child if shared == child.num_tokens else None
            if shared % self._block_size or shared < child.num_tokens:
                break
            node, offset = child, offset + shared * TOKEN_BYTES
        matched = len(blocks) * self._block_size + partial_tokens
        return Match(
            salt, path_end, path_end_blocks, blocks, content_keys, partial_block, partial_tokens, matched, tail
        )

    # -- locks ----------------------------------------------------------------------------------------------------

    def lock(self, match: Match) -> PathLock:
        """Keep the whole blocks of ``match`` cached until ``unlock``. Splits the edge in which they end, if need be.

        ``match`` must be fresh: no insertion or eviction since.
        """
        node = self._end_of_whole_blocks(match) or self._root(match.salt)
        return self._locks.lock(node)

    def use(self, lock: PathLock, lifetime: Lifetime) -> None:
        """A sequence goes on from the path of ``lock``, and its KV may go as far as ``lifetime`` says. One whose KV is
        DURABLE makes the whole path so."""
        self._locks.use(lock, lifetime)

    def num_durable_blocks(self, match: Match) -> int:
        """How many leading ones of the whole blocks of ``match`` may go to where they outlive the process."""
        count, node = len(match.blocks), match.path_end
        here = match.path_end_blocks
        while node is not None and node.parent is not None and node.lifetime is Lifetime.PROCESS:
            count -= here
            node = node.parent
            here = len(node.blocks)
        return count

    def lock_tail(self, leaf: Node) -> PathLock:
        """Keep ``leaf``, and all above it, cached until ``unlock``."""
        return self._locks.lock(leaf)

    def unlock(self, lock: PathLock) -> None:
        """Give up ``lock``; its blocks become evictable where nobody else holds them."""
        self._drop_if_empty(self._locks.unlock(lock))

    def pin(self, node: Node, room: int) -> Pin | None:
        """Keep the blocks from the root to the end of ``node`` cached, or as many leading ones as have at most ``room``
        blocks that no pin keeps yet; None if that is none. Splits an edge, if need be."""
        path = [node]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        end = path.pop()  # the root
        for at in reversed(path):
            wanted = 0 if at.pin_count else len(at.blocks)
            if wanted > room:
                end = self._split(at, room) if room > 0 else end
                break
            room -= wanted
            end = at
        if end.parent is None:
            return None
        return self._locks.pin(end, end.start // self._block_size + len(end.blocks))

    def unpin(self, pin: Pin) -> None:
        """Give up ``pin``."""
        self._drop_if_empty(self._locks.unpin(pin))

    def num_unkept_blocks(self, node: Node) -> int:
        """Blocks from the root to the end of ``node`` that ``num_kept_blocks_of`` has not counted yet."""
        return self._locks.num_unkept_blocks(node)

    def count_softly(self, node: Node) -> None:
        """Count the blocks from the root to the end of ``node`` as kept, until ``uncount_softly``; nothing is locked.
        What of them is given up counts no more."""
        self._locks.count_softly(node)

    def uncount_softly(self, node: Node) -> None:
        """End a ``count_softly``, of whose path ``node`` is the end by now."""
        self._locks.uncount_softly(node)

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
        self._locks.move(lock, node)
        return held

    def insert_tail(self, lock: PathLock, key: bytes, block: int, content_key: bytes) -> Node:
        """Cache the tokens of ``key``, less than a block, which continue ``lock``'s path in ``block``.

        Nothing happens where these tokens are cached already. The lock stays where it is. Returns the node in which
        the tokens end.
        """
        if not 0 < len(key) < self._block_bytes:
            raise ValueError("a tail has at least one token and fewer than a block")
        child, shared = lock.node.closest_child(key)
        self.nodes_visited += 1
        if child is not None and shared * TOKEN_BYTES == len(key):
            self._touch(child)
            if lock.lifetime is Lifetime.DURABLE and child.num_tokens == shared:  # no more than what the turn has
                child.lifetime = lock.lifetime
            return child
        self._drop_covered_tail(lock.node, key)
        return self._add_leaf(lock.node, key, [block], [content_key], lock.lifetime)

    # -- eviction -------------------------------------------------------------------------------------------------

    def evict(self, count: int) -> int:
        """Give up about ``count`` blocks, the tail of a path first; returns how many. Locked blocks stay."""
        given_up = 0
        while given_up < count and (next_to_go := self._order.next()) is not None:
            self.nodes_visited += 1
            cut = self._evict_tail(next_to_go.leaf, min(next_to_go.most_blocks, count - given_up))
            self.num_over_quota_evicted += cut if next_to_go.over_quota else 0
            given_up += cut
        return given_up

    def supersede(self, node: Node, from_block: int) -> None:
        """Nobody is expected to use the path that ends in ``node`` again, from its block ``from_block`` on, as far as
        nobody shares it: those blocks go first. Splits an edge, if need be. A use of them takes it back."""
        at, below = node, None
        while at.parent is not None and at.start // self._block_size + len(at.blocks) > from_block:
            self.nodes_visited += 1
            if at.lock_count or at.ends or any(child is not below for child in at.children[:2]):
                return
            first = at.start // self._block_size
            if first < from_block:
                self._split(at, from_block - first)
            at.superseded = True
            self._rank_again(at)
            at, below = at.parent, at

    def give_up(self, node: Node, owner: str) -> int:
        """Evict the path that ends in ``node``, its tail first, as far as nobody else shares it: no lock, no branch,
        and no path but ``owner``'s ends there. Returns how many blocks."""
        given_up = 0
        at = node
        while at.parent is not None and at.is_leaf and at.lock_count == 0 and at.ends.keys() <= {owner}:
            self.nodes_visited += 1
            above = at.parent
            given_up += self._evict_tail(at, len(at.blocks))
            at = above
        return given_up

    def end_of(self, match: Match) -> Node | None:
        """The node in which the tokens of ``match`` end, a half-full leaf included; None: at the root. Splits the edge
        in which they end, if need be. ``match`` must be fresh."""
        return match.tail or self._end_of_whole_blocks(match)

    # -- where paths end ------------------------------------------------------------------------------------------

    def set_end(self, node: Node, end: PathEnd) -> None:
        """``end.owner``'s path ends in ``node``, which ranks accordingly."""
        if end.node is not None:
            self.clear_end(end)
        if node.parent is not None:
            end.node = node
            node.ends[end.owner] = end
            self._rank_again(node)

    def clear_end(self, end: PathEnd) -> None:
        """``end.owner``'s path ends nowhere."""
        if end.node is not None:
            node, end.node = end.node, None
            del node.ends[end.owner]
            self._rank_again(node)

    # -- the tree's own moves -------------------------------------------------------------------------------------

    def _end_of_whole_blocks(self, match: Match) -> Node | None:
        node = match.path_end
        if node is None or match.path_end_blocks == len(node.blocks):
            return node
        return self._split(node, match.path_end_blocks)

    def _root(self, salt: str) -> Node:
        return self._roots.setdefault(salt, Node(salt, None, b"", [], [], Lifetime.DURABLE))

    def _drop_if_empty(self, root: Node) -> None:
        if root.is_leaf and root.lock_count == 0:
            self._roots.pop(root.salt, None)

    def _first_block(self, node: Node) -> bytes:
        return node.first_block(self._block_size)

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
        alone = node is lock.node and node.is_leaf and node.lock_count == 1 and not node.ends
        if not alone or node.parent is None or node.lifetime is not lock.lifetime:
            return self._add_leaf(node, key, blocks, content_keys, lock.lifetime)
        self._pool.retain(blocks)
        node.key += key
        node.blocks += blocks
        node.content_keys += content_keys
        self._count_blocks(node.salt, len(blocks))
        return node

    def _add_leaf(
        self, parent: Node, key: bytes, blocks: list[int], content_keys: list[bytes], lifetime: Lifetime
    ) -> Node:
        self._pool.retain(blocks)
        leaf = Node(parent.salt, parent, key, list(blocks), list(content_keys), lifetime)
        self._order.discard(parent)
        parent.add_child(self._first_block(leaf), leaf)
        self._count_blocks(leaf.salt, len(blocks))
        self._locks.added(leaf, len(blocks))
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

    def _rank_again(self, node: Node) -> None:
        if node in self._order:
            self._order.add(node)

    def _split(self, node: Node, num_blocks: int) -> Node:
        """Cut the edge of ``node`` after ``num_blocks``; returns the new upper node.

        ``node`` stays the lower one, so that whoever is at its end still is.
        """
        parent = node.parent
        assert parent is not None and 0 < num_blocks < len(node.blocks)
        old_first = self._first_block(node)
        border = num_blocks * self._block_bytes
        upper = Node(
            node.salt,
            parent,
            node.key[:border],
            node.blocks[:num_blocks],
            node.content_keys[:num_blocks],
            node.lifetime,
        )
        upper.lock_count, upper.pin_count, upper.last_use = node.lock_count, node.pin_count, node.last_use
        upper.soft_pin_count, upper.superseded = node.soft_pin_count, node.superseded
        node.start += num_blocks * self._block_size
        node.key = node.key[border:]
        node.blocks = node.blocks[num_blocks:]
        node.content_keys = node.content_keys[num_blocks:]
        node.parent = upper
        parent.replace_child(old_first, node, self._first_block(upper), upper)
        upper.add_child(self._first_block(node), node)
        return upper

    def _touch(self, node: Node) -> None:
        node.last_use = self._clock()
        node.superseded = False
        if node.is_leaf and node.lock_count == 0 and node.parent is not None:
            self._order.add(node)

    def _evict_tail(self, leaf: Node, count: int) -> int:
        """Give up to ``count`` blocks from the end of an unlocked leaf; returns how many."""
        first = max(0, len(leaf.blocks) - count)
        superseded = leaf.superseded and not leaf.ends
        if self._on_evict is not None:
            self._on_evict(
                Evicted(
                    salt=leaf.salt,
                    content_keys=leaf.content_keys[first:],
                    blocks=leaf.blocks[first:],
                    start=leaf.start + first * self._block_size,
                    num_tokens=leaf.num_tokens - first * self._block_size,
                    superseded=superseded,
                    owners=tuple(leaf.ends),
                    lifetime=leaf.lifetime,
                )
            )
        given_up = self._cut_tail(leaf, count)
        self.num_evicted += given_up
        self.num_superseded_evicted += given_up if superseded else 0
        return given_up

    def _count_blocks(self, salt: str, change: int) -> None:
        self.num_blocks += change
        self._order.note_blocks(salt, change)

    def _cut_tail(self, leaf: Node, count: int) -> int:
        """Take up to ``count`` blocks from the end of an unlocked leaf; returns how many."""
        parent = leaf.parent
        assert parent is not None and leaf.is_leaf and leaf.lock_count == 0
        cut = min(count, len(leaf.blocks))
        keep = len(leaf.blocks) - cut
        self._pool.release(reversed(leaf.blocks[keep:]))
        self._count_blocks(leaf.salt, -cut)
        self._locks.added(leaf, -cut)
        if keep:
            del leaf.blocks[keep:]
            del leaf.content_keys[keep:]
            del leaf.key[keep * self._block_bytes :]
            return cut
        self._order.discard(leaf)
        parent.remove_child(self._first_block(leaf), leaf)
        leaf.parent = None
        self._move_ends(leaf, parent)
        if parent.is_leaf and parent.lock_count == 0:
            if parent.parent is None:
                self._roots.pop(parent.salt, None)
            else:
                self._order.add(parent)
        return cut

    def _move_ends(self, leaf: Node, parent: Node) -> None:
        """The paths that ended in ``leaf``, which is gone, now end in ``parent``; those that nobody asked to keep only
        where no other branch goes on from there."""
        for end in list(leaf.ends.values()):
            self.clear_end(end)
            if end.keeping.retention is not None or parent.is_leaf:
                self.set_end(parent, end)
            if end.node is None:
                end.lose()

    # -- for tests ------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Raise AssertionError unless the tree is consistent in itself and with the pool. Visits every node."""
        counted = count_nodes(self._roots.values(), self._block_size, self._pool)
        counts = {
            "held": (counted.held, self.num_blocks),
            "evictable": (counted.evictable, self.num_evictable_blocks),
            "pinned": (sum(counted.pinned.values()), self.num_pinned_blocks),
        }
        counts |= {
            f"of {salt!r} pinned": (found, self.num_pinned_blocks_of(salt)) for salt, found in counted.pinned.items()
        }
        counts |= {f"of {salt!r} kept": (found, self.num_kept_blocks_of(salt)) for salt, found in counted.kept.items()}
        for what, (found, known) in counts.items():
            assert found == known, f"{found} blocks are {what}, {known} counted"
        assert all(node in self._order for node in counted.leaves) and len(counted.leaves) == len(self._order)
