"""The engine's side of what the front asks of its cache (``cache_messages``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

from ...sessions.cache.lifetime import Lifetime
from ...sessions.cache.prefix_cache import CachedPath
from ...sessions.cache.tiers import Tier
from ...sessions.cache.token_key import pack_tokens
from ...sessions.cache.tree_view import top_of_tree
from ...sessions.errors import SessileError
from .block_loads import BlockLoad
from .cache_messages import (
    CacheAnswer,
    CacheCall,
    CacheEventKind,
    CacheRequest,
    CacheResponse,
    CacheView,
    DescribeCache,
    Done,
    ExportPath,
    ImportPath,
    PersistOutcome,
    PersistPath,
    ReleasePath,
    ResumeEstimate,
    ResumePath,
    RetainOutcome,
    RetainPath,
    SupersedePath,
    SuspendOutcome,
    SuspendPath,
)
from .engine_cache import EngineCache
from .kv_transfer import KVTransfer
from .messages import SubmitTurn
from .path_jobs import PathJob, PathJobs, failure
from .sampling_params import SamplingParams
from .scheduler import Scheduler
from .sequence import Sequence


class CacheService:
    """Answers calls, at once where nothing has to be waited for. The engine's step owns it."""

    def __init__(self, cache: EngineCache, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self._cache = cache.prefixes
        self._ends = cache.ends
        self._transfer = cache.transfer
        self._files = cache.files
        self._lookup = cache.lookup
        self._events = cache.events
        self._scheduler = scheduler
        self._clock = clock
        self._jobs = PathJobs()
        self._answers: list[CacheAnswer] = []
        self._prefetches = itertools.count(-1, -1)  # their orders: before all turns

    @property
    def num_open(self) -> int:
        """Calls that are not answered yet."""
        return self._jobs.num_open

    @property
    def has_answers(self) -> bool:
        """``take_answers`` would return some, of calls that were answered at once."""
        return bool(self._answers)

    def call(self, call: CacheCall) -> BlockLoad | None:
        """Do, or begin, what is asked. Returns a load that is to be started."""
        try:
            return self._begin(call)
        except SessileError as error:
            self._answers.append(CacheAnswer(call.call_id, failure(error)))
            return None

    def _begin(self, call: CacheCall) -> BlockLoad | None:
        match call.request:
            case ResumePath() as path:
                estimate, load = self._resume(path)
                self._answers.append(CacheAnswer(call.call_id, estimate))
                return load
            case PersistPath() | SuspendPath() as path:
                self._write(call.call_id, path)
            case ExportPath() as path:
                self._jobs.start(self._files.export(call.call_id, path))
            case ImportPath() as path:
                self._jobs.start(self._files.import_(call.call_id, path))
            case request:
                self._answers.append(CacheAnswer(call.call_id, self._answer(request)))
        return None

    def take_answers(self) -> list[CacheAnswer]:
        """What is answered since the last call."""
        answers, self._answers = self._answers + self._jobs.take_answers(), []
        return answers

    def close(self) -> None:
        """Finish what was begun."""
        self._jobs.close()

    # -- at once --------------------------------------------------------------------------------------------------

    def _answer(self, request: CacheRequest) -> CacheResponse:
        match request:
            case RetainPath():
                return self._retain(request)
            case DescribeCache(most_nodes=most_nodes):
                return self._describe(most_nodes)
            case ReleasePath(owner=owner):
                self._ends.release(owner)
                self._scheduler.note_room()
            case SupersedePath():
                key = pack_tokens(request.token_ids)
                self._cache.supersede(request.owner, request.cache_salt, key, request.from_token)
        return Done()

    def _describe(self, most_nodes: int) -> CacheView:
        cost = None if self._transfer is None else self._transfer.cost
        tiers = () if self._transfer is None else self._transfer.tiers.local
        tree = self._cache.tree
        return CacheView(
            nodes=top_of_tree(tree.roots, most_nodes, self._clock()),
            tree_blocks=tree.num_blocks,
            pinned_blocks=tree.num_pinned_blocks,
            block_bytes=self._cache.block_bytes,
            break_even_tokens={} if cost is None else {tier.value: cost.break_even_tokens(tier) for tier in tiers},
        )

    def _retain(self, path: RetainPath) -> RetainOutcome:
        key = pack_tokens(path.token_ids)
        kept = self._cache.retain(path.owner, path.cache_salt, key, path.retention)
        self._scheduler.note_room()  # an earlier pin may have become smaller
        return RetainOutcome(
            verdict=kept.verdict,
            reason=kept.reason,
            pinned_tokens=min(kept.blocks * self._cache.block_size, kept.cached_tokens),
            expires_in_s=path.retention.ttl_s,
        )

    def _resume(self, path: ResumePath) -> tuple[ResumeEstimate, BlockLoad | None]:
        """What the path's next turn has to wait for, and a load that makes it less."""
        params = SamplingParams(max_tokens=1)
        turn = SubmitTurn(
            turn_id="",
            token_ids=path.token_ids,
            sampling=params,
            cache_salt=path.cache_salt,
            owner=path.owner,
            persist=False,
            lifetime=path.lifetime,
        )
        sequence = Sequence(turn, 1, self._clock(), next(self._prefetches))
        match, decision = self._scheduler.plan_load(sequence)
        tokens = {Tier.DEVICE.value: len(match.blocks) * self._cache.block_size}
        if decision.num_blocks:
            for tier, count in decision.tokens(self._cache.block_size).items():
                tokens[tier.value] = tokens.get(tier.value, 0) + count
        else:
            tokens[Tier.DEVICE.value] += match.partial_tokens
        load = self._scheduler.load_ahead(sequence)
        estimate = ResumeEstimate(
            tokens_by_tier=tokens,
            tokens_to_compute=len(path.token_ids) - sum(tokens.values()),
            seconds=decision.load_s + decision.compute_s,
            prefetching=load is not None,
        )
        return estimate, load

    # -- beside the step ------------------------------------------------------------------------------------------

    def _write(self, call_id: int, path: PersistPath | SuspendPath) -> None:
        """Write what the device has of ``path`` to where it outlives the process, if it may, then answer."""
        key = pack_tokens(path.token_ids)
        cached = self._cache.hold(path.cache_salt, key)
        in_memory = isinstance(path, SuspendPath) and not path.persist
        lifetime = Lifetime.PROCESS if in_memory else Lifetime.DURABLE
        work = partial(_keep, self._transfer, cached, path.cache_salt, lifetime)
        self._jobs.start(PathJob(call_id, work, partial(self._written, path, cached)))

    def _written(self, path: PersistPath | SuspendPath, cached: CachedPath, result: object) -> CacheResponse | None:
        self._cache.let_go(cached)
        self._scheduler.note_room()
        given_up, key = 0, pack_tokens(path.token_ids)
        if result is None:
            return None
        if isinstance(path, SuspendPath):
            given_up = self._cache.give_up(path.owner, path.cache_salt, key)
        tokens = self._lookup.tokens_below(path.cache_salt, key)
        for tier, count in tokens.items():
            self._events.note(CacheEventKind.PERSISTED, Tier(tier), count, [path.owner])
        if isinstance(path, PersistPath):
            return PersistOutcome(tokens_by_tier=tokens)
        tokens = {Tier.DEVICE.value: self._lookup.tokens_on_device(path.cache_salt, key), **tokens}
        return SuspendOutcome(tokens_by_tier=tokens, device_blocks_given_back=given_up)


def _keep(transfer: KVTransfer | None, cached: CachedPath, tenant: str, lifetime: Lifetime) -> bool:
    if transfer is not None:
        transfer.keep_all(cached.content_keys, cached.blocks, tenant, lifetime)
    return True
