"""What the front asks of the engine's cache, and what the cache tells the front: msgspec Structs, msgpack on the wire.

A *path* is a session's tokens under its tenant's salt, from the first one on; an *owner* is a session's id. Requests
travel in a ``CacheCall`` and are answered by one ``CacheAnswer``; ``CacheEvents`` come by themselves. Nothing here is
needed for correctness: the tokens are in the session's log, and what the cache does not have is computed.
"""

from __future__ import annotations

import enum

import msgspec

from ...sessions.cache.lifetime import Lifetime
from ...sessions.cache.retention import Retention, Verdict
from ...sessions.cache.tree_view import TreeNode


class _Path(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of ``owner``'s session, whole from the first one on. ``cache_salt``: that of its turns."""

    token_ids: list[int]
    cache_salt: str = ""
    owner: str = ""


class RetainPath(_Path, frozen=True, tag=True, kw_only=True):
    """Keep a path as ``retention`` says, instead of what was said for this owner before.

    It lasts over turns: the end of the owner's next turn takes the place of the path's end. What was expected of its
    return (``Retention.expected_idle_s``) holds until the owner's next turn only.
    """

    retention: Retention


class ReleasePath(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """``owner`` is done (final, closed, expired): its path is kept like any other that nobody asked for."""

    owner: str


class SupersedePath(_Path, frozen=True, tag=True, kw_only=True):
    """The path's tokens from ``from_token`` on were rolled back, replaced or closed: they go first, and are not
    demoted, except where another owner's path ends there or goes on. Used again, they are like any others."""

    from_token: int = 0


class PersistPath(_Path, frozen=True, tag=True, kw_only=True):
    """Write a path to where it outlives the process, and leave it on the device."""


class SuspendPath(_Path, frozen=True, tag=True, kw_only=True):
    """Write a path to where it outlives the process, and give back the device's blocks that nobody shares.

    ``persist`` False: it goes to host memory alone.
    """

    persist: bool = True


class ResumePath(_Path, frozen=True, tag=True, kw_only=True):
    """Bring a path back to the device, where that is worth while and there is room that nobody needs.

    ``lifetime``: how far its KV may go.
    """

    lifetime: Lifetime = Lifetime.DURABLE


class ExportPath(_Path, frozen=True, tag=True, kw_only=True):
    """Write the KV of a path to ``file``, an absolute path of this machine that does not exist yet."""

    file: str


class ImportPath(_Path, frozen=True, tag=True, kw_only=True):
    """Take the KV of a path from ``file``, which ``ExportPath`` wrote on any machine.

    ``lifetime``: how far it may go.
    """

    file: str
    lifetime: Lifetime = Lifetime.DURABLE


class DescribeCache(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Tell what the cache looks like, for people."""

    most_nodes: int = 400


class CacheView(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The top of the tree and its size; ``break_even_tokens``: from how many tokens on, by tier's name, loading beats
    computing (None: never)."""

    nodes: tuple[TreeNode, ...]
    tree_blocks: int
    pinned_blocks: int
    block_bytes: int
    break_even_tokens: dict[str, int | None]


class RetainOutcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """``pinned_tokens`` of the path are on the device and kept from now on. ``reason``: why not all, or none."""

    verdict: Verdict
    reason: str = ""
    pinned_tokens: int = 0
    expires_in_s: float | None = None  # None: not by itself


class PersistOutcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """``tokens_by_tier``: how many leading tokens of the path each tier below the device has now, by its name."""

    tokens_by_tier: dict[str, int]


class SuspendOutcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """``tokens_by_tier``: how many leading tokens of the path each tier has now, by its name; the ``device`` those that
    others use, too. ``device_blocks_given_back`` were the path's alone."""

    tokens_by_tier: dict[str, int]
    device_blocks_given_back: int


class ResumeEstimate(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Where the path's tokens are at this moment, by tier's name (``device`` too), and what its next turn has to wait
    for: ``tokens_to_compute``, and ``seconds`` predicted for loading and computing."""

    tokens_by_tier: dict[str, int]
    tokens_to_compute: int
    seconds: float
    prefetching: bool  # a load to the device was started


class ExportOutcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The file holds the KV of the path's first ``tokens``; ``num_bytes`` is its size."""

    tokens: int
    num_bytes: int


class ImportOutcome(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The cache has the KV of the path's first ``tokens`` now, and knows in which tiers."""

    tokens: int
    tokens_by_tier: dict[str, int]


class Done(msgspec.Struct, frozen=True, tag=True):
    """It was done; there is nothing to say about it."""


class CallError(enum.StrEnum):
    """Which of ``SessileError``'s kinds a call ended with."""

    REQUEST = "request"
    CAPACITY = "capacity"
    ENGINE = "engine"


class CallFailed(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The call changed nothing. The rest as in ``SessileError``."""

    kind: CallError
    message: str
    field: str | None = None
    remedy: str | None = None


CacheRequest = (
    RetainPath
    | ReleasePath
    | SupersedePath
    | PersistPath
    | SuspendPath
    | ResumePath
    | ExportPath
    | ImportPath
    | DescribeCache
)
CacheResponse = (
    RetainOutcome
    | PersistOutcome
    | SuspendOutcome
    | ResumeEstimate
    | ExportOutcome
    | ImportOutcome
    | CacheView
    | Done
    | CallFailed
)


class CacheCall(msgspec.Struct, frozen=True, tag=True):
    """Front → engine: a request; its answer has the same ``call_id``."""

    call_id: int
    request: CacheRequest


class CacheAnswer(msgspec.Struct, frozen=True, tag=True):
    """Engine → front."""

    call_id: int
    response: CacheResponse


class CacheEventKind(enum.StrEnum):
    """What happened to a run of tokens."""

    STORED = "stored"  # computed or imported, and cached in ``tier`` since
    LOADED = "loaded"  # from ``tier`` to the device
    DEMOTED = "demoted"  # from the device to ``tier``
    EVICTED = "evicted"  # from ``tier``, to nowhere; a lower tier may have it all the same
    PERSISTED = "persisted"  # given to ``tier``, the device keeps it
    EXPIRED = "expired"  # a pin's time is over; nothing moved
    UNPINNED = "unpinned"  # a hard pin gave way to a turn that could not run otherwise; nothing moved


class CacheEvent(msgspec.Struct, frozen=True, kw_only=True):
    """``tokens`` tokens that end in the block of content key ``key`` (empty for a pin's events).

    ``owner``: the session whose path ends there, empty where none does. ``at``: seconds since the epoch.
    """

    kind: CacheEventKind
    tier: str
    tokens: int
    owner: str = ""
    key: bytes = b""
    at: float = 0.0


class CacheEvents(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Engine → front: what happened since the last of these. ``num_lost``: events beyond the bound, dropped."""

    events: list[CacheEvent]
    num_lost: int = 0
