"""What the front and the engine say to each other: msgspec Structs, msgpack on the wire.

Front → engine: ``SubmitTurn``, ``AbortTurn``, ``CacheCall``, ``Shutdown``. Engine → front: ``LoadProgress``,
``EngineReady``, ``TurnOutputs`` (what one step produced), ``Alive``, ``CacheAnswer``, ``CacheEvents``, ``StepFailed``,
``EngineFailed``. The engine never sees text.
"""

from __future__ import annotations

import enum

import msgspec

from ...sessions.cache.lifetime import Lifetime
from .cache_messages import CacheAnswer, CacheCall, CacheEvents
from .sampling_params import SamplingParams

STEP_TIMES = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1, 0.2, 0.5, 1.0)  # seconds


class FinishReason(enum.StrEnum):
    """Why a turn ended."""

    STOP = "stop"  # an end-of-turn token, a stop token or a stop string
    LENGTH = "length"  # max_tokens or the context's end
    TOOL_CALLS = "tool_calls"  # as STOP, after tool calls; the front says this, the engine never
    ABORTED = "aborted"  # the client went away or cancelled
    EXPIRED = "expired"  # its deadline passed while it waited
    FAILED = "failed"  # its grammar cannot be used, or not be followed any further


class Priority(enum.IntEnum):
    """Class of a turn; lower runs first."""

    INTERACTIVE = 0
    BACKGROUND = 1
    BATCH = 2


class TokensBySource(msgspec.Struct, frozen=True, kw_only=True):
    """Where the KV of the prompt's tokens came from, counted once, at admission. The parts sum to the prompt."""

    device: int = 0
    host: int = 0
    disk: int = 0
    shared: int = 0
    in_flight: int = 0  # computed for another turn while this one waited for it
    computed: int = 0

    @property
    def total(self) -> int:
        return self.device + self.host + self.disk + self.shared + self.in_flight + self.computed

    @property
    def cached(self) -> int:
        """Tokens that this turn did not compute."""
        return self.total - self.computed

    def plus(self, other: TokensBySource) -> TokensBySource:
        """The sums, source by source."""
        return TokensBySource(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class MissedTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Why prompt tokens were computed that a cache without bounds would have had. The parts sum to that gap."""

    evicted: int = 0  # given up for want of room
    expired: int = 0  # given up because the time for which it was kept had passed
    other_engine: int = 0  # the session's log has it; another server computed it, or this engine's predecessor
    cheaper_to_compute: int = 0  # a slower tier has it, and computing was predicted to be faster
    load_failed: int = 0  # a slower tier had it, and it came damaged, late or not at all
    no_room: int = 0  # the pool had no block to copy a part of a block to

    @property
    def total(self) -> int:
        return sum(getattr(self, name) for name in self.__struct_fields__)

    def plus(self, other: MissedTokens) -> MissedTokens:
        """The sums, cause by cause."""
        return MissedTokens(**{name: getattr(self, name) + getattr(other, name) for name in self.__struct_fields__})


class TurnUsage(msgspec.Struct, frozen=True, kw_only=True):
    """What one turn cost. Times are seconds on the engine's clock.

    ``reusable_tokens``: of the prompt's, what a cache without bounds would have had; ``missed`` says why the rest of
    these was computed.
    """

    prompt_tokens: int
    completion_tokens: int
    tokens_by_source: TokensBySource
    reusable_tokens: int = 0
    missed: MissedTokens = MissedTokens()
    queue_s: float = 0.0
    load_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities (natural) of one sampled token and of the likeliest alternatives, likeliest first."""

    logprob: float
    top_token_ids: tuple[int, ...]
    top_logprobs: tuple[float, ...]


class SubmitTurn(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Continue ``token_ids`` (the whole prompt). Turns of one ``cache_salt`` share KV; others never do.

    ``eos_token_ids``: the tokenizer's end-of-turn tokens, which end the turn unless ``sampling.ignore_eos``.
    ``tenant``: who shares the engine fairly with others. ``owner``: the session that the turn is of; empty for none.
    ``logged_tokens``: of the prompt, what the session's log says was computed before.
    ``persist`` False: its blocks are not written, at its end, to where they outlive the process; ``lifetime`` PROCESS:
    they never are, under pressure neither. ``deadline_s``: a turn that still waits so many seconds after the engine got
    it ends with ``FinishReason.EXPIRED``; one that runs goes on.
    ``expected_token_ids``: what the answer may be like; drafts may be taken from it. ``tool_schema`` names the tools
    that it may call: what turns of the same salt and tools said is drafted from too.
    """

    turn_id: str
    token_ids: list[int]
    sampling: SamplingParams
    eos_token_ids: tuple[int, ...] = ()
    cache_salt: str = ""
    priority: Priority = Priority.INTERACTIVE
    tenant: str = ""
    owner: str = ""
    persist: bool = True
    lifetime: Lifetime = Lifetime.DURABLE
    deadline_s: float | None = None
    expected_token_ids: tuple[int, ...] = ()
    tool_schema: str = ""
    logged_tokens: int = 0


class AbortTurn(msgspec.Struct, frozen=True, tag=True):
    """Stop a turn within one step. Its finished blocks stay in the cache. Unknown ids are ignored."""

    turn_id: str


class Shutdown(msgspec.Struct, frozen=True, tag=True):
    """Leave after the present step."""


class AdmittedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn's prompt, as it was counted when the turn began to compute."""

    turn_id: str
    tokens_by_source: TokensBySource
    reusable_tokens: int
    missed: MissedTokens


class ReuseTotals(msgspec.Struct, frozen=True, kw_only=True):
    """What could be reused since the engine's start, and the index that knows it.

    ``other_salts``: tokens that only another salt's turns had computed, in whole blocks. They are no part of what is
    reusable. ``index_forgotten`` above 0: the index was full, and ``reusable_tokens`` are a lower bound.
    """

    reusable_tokens: int = 0
    missed: MissedTokens = MissedTokens()
    other_salts: int = 0
    index_blocks: int = 0
    index_forgotten: int = 0


class TurnOutput(msgspec.Struct, frozen=True, kw_only=True):
    """New tokens of one turn. ``usage`` stands in the last output only, the one with a ``finish_reason``."""

    turn_id: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: FinishReason | None = None
    usage: TurnUsage | None = None
    error: str = ""  # why it failed


class TierCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One tier below the pool: counters since the engine's start, and its state now.

    ``typical_error``: by which factor the cost model's predictions of its loads are off; 1.0 is perfect.
    """

    tier: str
    events: dict[str, int]  # hits, misses, corrupt, errors, late, stored, rejected, evicted
    read_bytes: int
    written_bytes: int
    used_bytes: int
    capacity_bytes: int
    read_bandwidth: float  # bytes a second, of the recent past
    write_bandwidth: float
    unavailable: str  # why it answers nothing at the moment; empty when it works
    typical_error: float = 1.0


class DraftCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens guessed by one source that were verified, and those of them that were right, since the engine's start."""

    source: str  # session, outputs, expected, draft_model
    drafted: int
    accepted: int


class QueueStats(msgspec.Struct, frozen=True, kw_only=True):
    """One class's queue: gauges of this moment, and counters since the engine's start."""

    waiting: int = 0
    waiting_tokens: int = 0  # of these turns' prompts, what was not cached when they began to wait
    started: int = 0
    expired: int = 0  # turns whose deadline passed while they waited
    waited_s: float = 0.0  # seconds that the turns which started or expired had waited


class CacheStats(msgspec.Struct, frozen=True, kw_only=True):
    """Of the cache, in blocks: counters since the engine's start; pins as they are now.

    By tier: what turns loaded from it, what they computed although it was there (that was predicted to be faster), and
    what was moved there, or dropped, when the device gave it up. ``prefill_error``: by which factor the cost model's
    predictions of prefills are off; 1.0 is perfect.
    """

    evicted_blocks: int = 0
    superseded_blocks_evicted: int = 0
    over_quota_blocks_evicted: int = 0
    pins: int = 0  # hard ones
    pinned_blocks: int = 0
    pin_budget_blocks: int = 0
    broken_pins: int = 0
    tenant_limited_pins: int = 0  # of which less was kept than asked, since their tenant had no room for more
    loaded_blocks: dict[str, int] = {}
    recomputed_blocks: dict[str, int] = {}
    demoted_blocks: dict[str, int] = {}
    not_demoted_blocks: dict[str, int] = {}
    prefill_error: float = 1.0


class EngineStats(msgspec.Struct, frozen=True, kw_only=True):
    """Counters since the engine's start, and gauges of this moment."""

    steps: int = 0
    running: int = 0
    waiting: int = 0
    total_blocks: int = 0
    free_blocks: int = 0
    cached_blocks: int = 0
    used_blocks: int = 0
    evicted_blocks: int = 0
    preemptions: int = 0
    queues: tuple[QueueStats, ...] = ()  # in the order of Priority
    prefill_tokens_per_s: float = 0.0  # recently, while there were prompts to compute
    turn_s: float = 0.0  # recent mean from a turn's start to its end
    prompt_tokens_by_source: TokensBySource = TokensBySource()
    reuse: ReuseTotals = ReuseTotals()
    generated_tokens: int = 0
    forced_tokens: int = 0  # of these, those that a grammar left no choice about
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    drafts: tuple[DraftCounters, ...] = ()  # the same by source
    damaged_draft_files: int = 0  # of past outputs, thrown away
    step_s: float = 0.0  # seconds spent in steps
    steps_by_time: tuple[int, ...] = ()  # steps of up to so many seconds each (STEP_TIMES), and longer ones
    model_s: float = 0.0  # of these, in the model
    tiers: tuple[TierCounters, ...] = ()
    cache: CacheStats = CacheStats()


class TurnOutputs(msgspec.Struct, frozen=True, tag=True):
    """What one step produced."""

    outputs: list[TurnOutput]
    stats: EngineStats
    admitted: list[AdmittedTurn] = []


class Alive(msgspec.Struct, frozen=True, tag=True):
    """Said once a second by an engine that has nothing else to say."""

    stats: EngineStats


class StepFailed(msgspec.Struct, frozen=True, tag=True):
    """A step raised an error that should not be; the engine exits after this message. ``turn_ids``: who was in it."""

    turn_ids: tuple[str, ...]
    error: str


class EngineReady(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The model is loaded and the pool allocated."""

    model: str
    fingerprint: str
    device: str
    dtype: str
    vocab_size: int
    context_length: int
    block_size: int
    num_blocks: int
    kernels: dict[str, str]  # op -> implementation that serves it


class LoadProgress(msgspec.Struct, frozen=True, tag=True):
    """What the engine is doing while it starts."""

    stage: str
    fraction: float


class EngineFailed(msgspec.Struct, frozen=True, tag=True):
    """The engine cannot start or go on; it exits after this message."""

    error: str
    remedy: str | None = None


ToEngine = SubmitTurn | AbortTurn | CacheCall | Shutdown
FromEngine = EngineReady | Alive | StepFailed | LoadProgress | TurnOutputs | CacheAnswer | CacheEvents | EngineFailed
