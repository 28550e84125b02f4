"""A turn as its caller reads it: one stream of deltas, whatever happens to the connection."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from types import TracebackType

from ...sessions.errors import SessileError
from ...sessions.manager.requests import TextDelta, TurnFinished
from ..proto import session_pb2 as pb
from .connection import Connection
from .errors import ConnectionLost, DeadlineExceeded, TurnInterrupted


class AsyncTurn:
    """A running turn. Iterate over it for the deltas, each token and each character exactly once.

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
        self._deltas = self._run()

    def __aiter__(self) -> AsyncTurn:
        return self

    async def __anext__(self) -> TextDelta:
        return await anext(self._deltas)

    async def __aenter__(self) -> AsyncTurn:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the turn if it still runs. The session's view then tells whether the server was quicker."""
        await self._deltas.aclose()
        if self._started and self._finished is None:
            self._started = False
            await self._on_cancelled()

    async def wait(self) -> TurnFinished:
        """Read what is left of the turn; returns its end."""
        async for _ in self._deltas:
            pass
        return self.finished

    @property
    def text(self) -> str:
        """The answer, as far as it was read."""
        return self._delivered.text

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

    async def _run(self) -> AsyncGenerator[TextDelta, None]:
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

    async def _attempt(self) -> AsyncGenerator[TextDelta, None]:
        self._delivered.start_again()
        async with aclosing(self._connection.generate_once(self._message, self._timeout_s)) as events:
            async for event in events:
                if isinstance(event, TurnFinished):
                    self._finished = event
                    self._on_finished(event)
                    return
                fresh = self._delivered.fresh(event)
                if fresh.text or fresh.token_ids:
                    yield fresh
        raise ConnectionLost("the server ended the stream before the turn's end")


class _Delivered:
    """What the caller has of a turn, and how far the present attempt has told it again."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self._pieces: list[str] = []
        self._known_ids: tuple[int, ...] = ()  # told by earlier attempts, not yet by this one
        self._known_text = ""

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def start_again(self) -> None:
        self._known_ids, self._known_text = tuple(self.token_ids), self.text

    def fresh(self, delta: TextDelta) -> TextDelta:
        """The part of a delta that the caller has not seen.

        Raises:
            TurnInterrupted: the turn says something else this time.
        """
        num_ids = min(len(delta.token_ids), len(self._known_ids))
        num_characters = min(len(delta.text), len(self._known_text))
        if delta.token_ids[:num_ids] != self._known_ids[:num_ids] or not self._known_text.startswith(
            delta.text[:num_characters]
        ):
            raise TurnInterrupted(
                f"the turn broke off after {len(self.token_ids)} tokens and goes on otherwise when it runs again",
                remedy="drop what was read, refresh the session, and send the request again under a new id",
            )
        self._known_ids, self._known_text = self._known_ids[num_ids:], self._known_text[num_characters:]
        fresh = TextDelta(
            text=delta.text[num_characters:],
            token_ids=delta.token_ids[num_ids:],
            logprobs=delta.logprobs[num_ids:],
        )
        self.token_ids += fresh.token_ids
        self._pieces.append(fresh.text)
        return fresh
