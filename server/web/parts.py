"""What the HTTP application is made of. It gets these at its creation and holds nothing else."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...sessions.batches.service import Batches
from ...sessions.manager.requests import CompletionRequest
from ...sessions.manager.responses import Responses
from ...sessions.manager.service import Sessions
from ...sessions.manager.turn_events import CompletionEvent
from ..engine.cache_messages import CacheView
from ..engine.grammar import Grammar
from ..engine.messages import EngineReady, EngineStats
from ..engine.supervisor import EngineState
from ..identity.gate import Gate
from ..observe.observatory import Observatory
from ..readiness import Readiness
from .http_config import HttpConfig
from .http_listener import ConnectionCounts
from .names import ServedName
from .writers import TokenBytes


class Turns(Protocol):
    """What HTTP asks of the session manager."""

    async def check_grammar(self, grammar: Grammar | None, field: str) -> None:
        """Raise RequestError naming ``field`` unless ``grammar`` can be used."""
        ...

    @property
    def responses(self) -> Responses:
        """What is kept for the Responses API."""
        ...

    async def count_tokens(self, request: CompletionRequest) -> int:
        """Tokens of the prompt that ``complete`` would run."""
        ...

    async def prompt_tokens(self, request: CompletionRequest) -> list[int]:
        """The prompt that ``complete`` would run, in tokens."""
        ...

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of ``token_ids``, special tokens included. Raises RequestError for one that is none."""
        ...

    def complete(self, request: CompletionRequest) -> AsyncGenerator[CompletionEvent, None]:
        """A turn of a client that names no session. Closing the iterator aborts it."""
        ...


class Engine(Protocol):
    """What HTTP asks of the engine's client; all but ``describe_cache`` without waiting."""

    @property
    def info(self) -> EngineReady:
        """The loaded model. Raises EngineError while none is ready."""
        ...

    @property
    def state(self) -> EngineState:
        """What it can do for a new turn."""
        ...

    @property
    def stats(self) -> EngineStats:
        """The latest counters."""
        ...

    async def describe_cache(self, most_nodes: int) -> CacheView:
        """The top of the radix tree, and what the cost model says. Raises EngineError while the engine is not ready."""
        ...


@dataclass(frozen=True, slots=True)
class WebParts:
    """``readiness`` says what probes are told; ``check_admission`` raises Draining once no new work is taken;
    ``connections`` counts those over HTTP; ``copies_fail``: the last copy of the data could not be made."""

    turns: Turns
    sessions: Sessions
    batches: Batches
    engine: Engine
    token_bytes: TokenBytes
    served: ServedName
    http: HttpConfig
    gate: Gate
    check_admission: Callable[[], None]
    readiness: Callable[[], Readiness]
    connections: Callable[[], ConnectionCounts]
    copies_fail: Callable[[], bool]
    version: str
    started_at: float  # seconds since the epoch
    observatory: Observatory
