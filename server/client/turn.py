"""A turn as its caller reads it: one stream of deltas, whatever happens to the connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType

from ...sessions.errors import DeadlineExceeded, SessileError
from ...sessions.manager.turn_events import TextDelta, TurnDelta, TurnFinished
from ...sessions.messages import ToolCall
from ..proto import session_pb2 as pb
from ..text.tool_calls import MalformedCall, ReasoningDelta, ToolCallArguments, ToolCallStarted
from .connection import Connection
from .errors import ConnectionLost, TurnInterrupted


class AsyncTurn:
    """A running turn. Iterate over it for the text, each token and each character exactly once; over ``events()``
    for reasoning and tool calls as well.

    If the connection breaks, or the engine behind it restarts, the request is sent again under its id: a turn that was
    committed is told again by the server, another one runs again with the same seed, and what was delivered before is
    skipped. Closing it (or the end of ``async with``) before the end cancels the turn; the session stays as it was,
    unless the turn was over on the server already.
    """

    def __init__(
        self,
        connection: Connection,
        message: pb.GenerateRequest,
        timeout_s: float | None,
        on_finished: Callable[[TurnFinished], None],
        on_cancelled: Callable[[], Awaitable[None]],
    ) -> None:
        self._connection = connection
        self._message = message
        self._timeout_s = timeout_s
        self._on_finished = on_finished
        self._on_cancelled = on_cancelled
        self._started = False
        self._delivered = _Delivered()
        self._finished: TurnFinished | None = None
        self._events = self._run()

    def __aiter__(self) -> AsyncTurn:
        return self

    async def __anext__(self) -> TextDelta:
        while not isinstance(delta := await anext(self._events), TextDelta):
            pass
        return delta

    def events(self) -> AsyncIterator[TurnDelta]:
        """All kinds of deltas: text, reasoning, tool calls, and notes of calls that are malformed."""
        return self._events

    async def __aenter__(self) -> AsyncTurn:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the turn if it still runs. The session's view then tells whether the server was quicker."""
        await self._events.aclose()
        if self._started and self._finished is None:
            self._started = False
            await self._on_cancelled()

    async def wait(self) -> TurnFinished:
        """Read what is left of the turn; returns its end."""
        async for _ in self._events:
            pass
        return self.finished

    @property
    def text(self) -> str:
        """The answer, as far as it was read."""
        return self._delivered.text

    @property
    def reasoning(self) -> str:
        """What the model thought before it answered, as far as it was read."""
        return self._delivered.reasoning

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls that the answer makes. Raises SessileError before the turn is finished."""
        return self.finished.tool_calls

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The sampled tokens, as far as they were read."""
        return tuple(self._delivered.token_ids)

    @property
    def finished(self) -> TurnFinished:
        """The turn's end: reason, usage, version.

        Raises:
            SessileError: the turn was not read to its end.
        """
        if self._finished is None:
            raise SessileError("the turn is not finished", remedy="read all its deltas, or await wait()")
        return self._finished

    async def _run(self) -> AsyncGenerator[TurnDelta, None]:
        self._started = True
        attempt = 1
        while True:
            try:
                async with aclosing(self._attempt()) as deltas:
                    async for delta in deltas:
                        yield delta
                return
            except SessileError as error:
                delay_s = self._connection.retry.delay_s(error, attempt)
                given_up = isinstance(error, TurnInterrupted | DeadlineExceeded)
                if given_up:
                    await self._on_cancelled()
                if given_up or delay_s is None:
                    raise
            await self._connection.retry.sleep(delay_s)
            attempt += 1

    async def _attempt(self) -> AsyncGenerator[TurnDelta, None]:
        self._delivered.start_again()
        async with aclosing(self._connection.generate_once(self._message, self._timeout_s)) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    self._finished = event
                    self._on_finished(event)
                    return
                fresh = self._delivered.fresh(event)
                if fresh is not None:
                    yield fresh
        raise ConnectionLost("the server ended the stream before the turn's end")


class _Channel:
    """One stream of text of a turn: what the caller has of it, and how far the present attempt has told it again."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._known = ""  # told by earlier attempts, not yet by this one

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def start_again(self) -> None:
        self._known = self.text

    def fresh(self, text: str) -> str | None:
        """The part that the caller has not seen; None if it was something else before."""
        length = min(len(text), len(self._known))
        if not self._known.startswith(text[:length]):
            return None
        self._known = self._known[length:]
        self._pieces.append(text[length:])
        return text[length:]


class _Delivered:
    """What the caller has of a turn, and how far the present attempt has told it again."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._known_ids: tuple[int, ...] = ()
        self._text, self._reasoning = _Channel(), _Channel()
        self._arguments: dict[int, _Channel] = {}
        self._started: dict[int, ToolCallStarted] = {}
        self._malformed: list[MalformedCall] = []
        self._malformed_again = 0

    @property
    def text(self) -> str:
        return self._text.text

    @property
    def reasoning(self) -> str:
        return self._reasoning.text

    def start_again(self) -> None:
        self._known_ids, self._malformed_again = tuple(self.token_ids), 0
        for channel in (self._text, self._reasoning, *self._arguments.values()):
            channel.start_again()

    def fresh(self, delta: TurnDelta) -> TurnDelta | None:
        """The part of a delta that the caller has not seen, None if that is nothing.

        Raises:
            TurnInterrupted: the turn says something else this time.
        """
        match delta:
            case TextDelta():
                return self._fresh_text(delta)
            case ReasoningDelta(text=text):
                text = self._seen_or_fresh(self._reasoning.fresh(text))
                return ReasoningDelta(text=text) if text else None
            case ToolCallStarted(index=index):
                return self._fresh_call(index, delta)
            case ToolCallArguments(index=index, fragment=fragment):
                fragment = self._seen_or_fresh(self._arguments[index].fresh(fragment))
                return ToolCallArguments(index=index, fragment=fragment) if fragment else None
            case MalformedCall():
                return self._fresh_malformed(delta)

    def _fresh_text(self, delta: TextDelta) -> TextDelta | None:
        num_ids = min(len(delta.token_ids), len(self._known_ids))
        if delta.token_ids[:num_ids] != self._known_ids[:num_ids]:
            raise self._interrupted()
        text = self._seen_or_fresh(self._text.fresh(delta.text))
        self._known_ids = self._known_ids[num_ids:]
        self.token_ids += delta.token_ids[num_ids:]
        if not text and len(delta.token_ids) == num_ids:
            return None
        return TextDelta(text=text, token_ids=delta.token_ids[num_ids:], logprobs=delta.logprobs[num_ids:])

    def _fresh_call(self, index: int, started: ToolCallStarted) -> ToolCallStarted | None:
        before = self._started.setdefault(index, started)
        if before != started:
            raise self._interrupted()
        if index in self._arguments:
            return None
        self._arguments[index] = _Channel()
        return started

    def _fresh_malformed(self, delta: MalformedCall) -> MalformedCall | None:
        self._malformed_again += 1
        if self._malformed_again <= len(self._malformed):
            if self._malformed[self._malformed_again - 1] != delta:
                raise self._interrupted()
            return None
        self._malformed.append(delta)
        return delta

    def _seen_or_fresh(self, fresh: str | None) -> str:
        if fresh is None:
            raise self._interrupted()
        return fresh

    def _interrupted(self) -> TurnInterrupted:
        return TurnInterrupted(
            f"the turn broke off after {len(self.token_ids)} tokens and goes on otherwise when it runs again",
            remedy="drop what was read, refresh the session, and send the request again under a new id",
        )
