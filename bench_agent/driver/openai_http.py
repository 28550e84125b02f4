"""OpenAI's HTTP protocol: each request holds the whole conversation, answers are streamed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from aiohttp.connector import Connection

from ..arrival_stamps import StampedSocket, StampedSockets
from ..traces.writers import openai
from ..workload.plan import ToolCall
from .ask import Ask, Conversation, ServerBusy, ServerSilent, ServerUnreachable, TurnRefused
from .dialects import Dialect
from .logprobs import answer_logprobs, echoed_logprobs
from .observation import Observation, Usage
from .sse import CallPiece, Chunk, EventReader, WireUsage

_BUSY = (429, 503)
_LAST_BYTES_S = 0.5  # an answer that is over may be followed by the end of its connection's message
_IN_HEADERS = " !#$&'()*+,/:;=?@[]"
_encode = msgspec.json.Encoder().encode


class OpenAiDriver:
    """Turns over ``/v1/chat/completions`` (messages) and ``/v1/completions`` (text).

    ``session_header``: each request says its session's id in it (None: it does not). ``extra`` is merged into bodies.
    """

    wire = "http"

    def __init__(
        self,
        url: str,
        *,
        model: str | None,
        dialect: Dialect,
        timeout_s: float = 600.0,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        session_header: str | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.dialect = dialect
        self._model = model
        self._extra = dict(extra or {})
        self._session_header = session_header
        self._timeout_s = timeout_s
        self._sockets = StampedSockets()
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=10),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60, socket_factory=self._sockets.connecting),
            response_class=_Response,
            headers={"content-type": "application/json", **(headers or {})},
            read_bufsize=2**20,
        )

    def conversation(self, session_id: str) -> Conversation:
        """A session: over HTTP it is nothing but a name."""
        headers = {self._session_header: quote(session_id, safe=_IN_HEADERS)} if self._session_header else {}
        return _HttpConversation(self, headers, {})

    def cold_conversation(self, nonce: str) -> Conversation | None:
        """A session that shares no cache with any other; None when the server has no way to ask for that."""
        if self.dialect.cold is None:
            return None
        headers, body = self.dialect.cold(nonce)
        return _HttpConversation(self, headers, body)

    async def close(self) -> None:
        """Close all connections."""
        await self._http.close()

    async def prompt_logprobs(self, text: str) -> list[float]:
        """The logarithms of the probabilities of a text's tokens but the first. Raises TurnRefused."""
        body = {"prompt": text, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0.0, "stream": False}
        if self._model:
            body["model"] = self._model
        try:
            async with self._http.post(self.url + "/v1/completions", data=_encode(body | self._extra)) as response:
                if response.status != 200:
                    await _refuse(response)
                raw = await response.read()
        except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
            raise ServerUnreachable(f"{self.url}: {error or type(error).__name__}") from error
        return echoed_logprobs(raw)

    async def run(self, ask: Ask, headers: Mapping[str, str], more: Mapping[str, Any], seen: Observation) -> None:
        """One request, with ``more`` in its body. Raises TurnRefused, ServerBusy or ServerUnreachable."""
        path, sampling = "/v1/completions" if ask.text is not None else "/v1/chat/completions", ask.sampling
        body = _encode({**self.body(ask), **more})
        tried, seen.started = bool(seen.started), seen.started or seen.clock()
        over: float | None = None
        try:
            async with self._http.post(self.url + path, data=body, headers=headers) as response:
                assert isinstance(response, _Response)
                socket = self._sockets.under(response.transport)
                if socket is not None and not tried:
                    seen.started = _started(seen, socket)
                if response.status != 200:
                    await _refuse(response)
                over = await _read(response, seen, socket, sampling.max_tokens)
        except (aiohttp.ClientError, ConnectionError) as error:
            raise ServerUnreachable(f"{self.url}: {error or type(error).__name__}") from error
        except TimeoutError as error:
            late = f"the answer was not over within {self._timeout_s:g} s, the time of a turn"
            raise (TurnRefused(late) if seen.arrivals else ServerSilent(f"{self.url}: {late}")) from error
        finally:
            seen.ended = seen.clock() if over is None else over

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request's body."""
        sampling = ask.sampling
        body: dict[str, Any] = {"max_tokens": sampling.max_tokens, "temperature": sampling.temperature, "stream": True}
        if self._model:
            body["model"] = self._model
        if self.dialect.takes_stream_usage:
            body["stream_options"] = {"include_usage": True}
        if sampling.exact_length:
            body |= self.dialect.exact_length(sampling.max_tokens)
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if ask.text is not None:
            body["prompt"] = ask.text
            if sampling.logprobs is not None:
                body["logprobs"] = sampling.logprobs
            return body | self._extra
        body["messages"] = [openai(message) for message in ask.conversation]
        if ask.tools:
            body["tools"] = list(ask.tools)
        if sampling.logprobs is not None:
            body |= {"logprobs": True, "top_logprobs": sampling.logprobs}
        return body | self._extra


class _HttpConversation:
    """The session's headers, and what its bodies have beside the driver's."""

    def __init__(self, driver: OpenAiDriver, headers: Mapping[str, str], more: Mapping[str, Any]) -> None:
        self._driver = driver
        self._headers = headers
        self._more = more

    async def turn(self, ask: Ask, seen: Observation) -> None:
        await self._driver.run(ask, self._headers, self._more, seen)

    async def close(self) -> None:
        pass


async def _refuse(response: aiohttp.ClientResponse) -> None:
    text = (await response.read())[:500].decode(errors="replace")
    message = f"the server answered {response.status}: {text}"
    if response.status in _BUSY:
        raise ServerBusy(message, retry_after_s=_seconds(response.headers.get("retry-after")))
    raise TurnRefused(message)


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, float(text or 1.0))
    except ValueError:
        return 1.0


class _Response(aiohttp.ClientResponse):
    """Knows its transport to the end: aiohttp forgets it as soon as the whole answer was read from the socket."""

    transport: asyncio.Transport | None = None

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        self.transport = connection.transport
        return await super().start(connection)


def _started(seen: Observation, socket: StampedSocket) -> float:
    """When the turn's request began to go out. A connection that was opened for the turn belongs to the turn."""
    opened_for_it = socket.made(seen.clock) >= seen.started
    return seen.started if opened_for_it else max(seen.started, socket.began(seen.clock))


async def _read(
    response: aiohttp.ClientResponse, seen: Observation, socket: StampedSocket | None, max_tokens: int
) -> float:
    """Until the event that ends the answer, or the end of the bytes. Returns when that came in."""
    events = EventReader()
    calls: dict[int, CallPiece] = {}
    at = seen.clock()
    try:
        async for raw in response.content.iter_any():
            at = seen.clock() if socket is None else socket.came_in(seen.clock)
            for chunk in events.feed(raw):
                _take(chunk, seen, calls, at)
            if events.done:
                await _last_bytes(response)
                break
        for chunk in events.end():
            _take(chunk, seen, calls, at)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TurnRefused(f"an event that cannot be read: {error}") from error
    _check_end(response, seen, events, max_tokens)
    seen.tool_calls = [
        ToolCall(call.id or "", (call.function and call.function.name) or "", _arguments(call))
        for call in calls.values()
    ]
    return at


async def _last_bytes(response: aiohttp.ClientResponse) -> None:
    """Of the message, so that the connection can be used again; a server that keeps them back is not waited for."""
    if not response.content.at_eof():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(response.content.read(), _LAST_BYTES_S)


def _check_end(response: aiohttp.ClientResponse, seen: Observation, events: EventReader, max_tokens: int) -> None:
    """Raises TurnRefused for what is no answer, ServerUnreachable for one that broke off: no sign of an end came."""
    if not events.events:
        said = events.begins.decode(errors="replace")
        raise TurnRefused(f"the answer is no stream of events but {response.content_type}: {said}")
    ended = seen.finish_reason is not None or seen.usage.completion_tokens is not None
    if not seen.arrivals and not ended:
        raise TurnRefused("the answer is empty, and nothing says why")
    if not (ended or events.done or sum(tokens for _, tokens in seen.arrivals) >= max_tokens):
        raise ServerUnreachable("the stream ended before the answer did")


def _take(chunk: Chunk, seen: Observation, calls: dict[int, CallPiece], at: float) -> None:
    if chunk.error is not None:
        raise TurnRefused(f"the server ended the turn: {str(chunk.error)[:500]}")
    for choice in chunk.choices or ():
        delta = choice.delta
        text = choice.text if delta is None else delta.content
        pieces = (delta.tool_calls or []) if delta is not None else []
        if text or pieces or (delta is not None and (delta.reasoning_content or delta.reasoning)):
            seen.arrived(text or "", at=at)
        for piece in pieces:
            _join(calls, piece)
        if choice.logprobs:
            seen.logprobs += answer_logprobs(choice)
        seen.finish_reason = choice.finish_reason or seen.finish_reason
    if chunk.usage is not None:
        seen.usage = _usage(chunk.usage)


def _usage(usage: WireUsage) -> Usage:
    details = usage.prompt_tokens_details
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=None if details is None else details.cached_tokens,
        by_source=usage.prompt_tokens_by_source or {},
    )


def _join(calls: dict[int, CallPiece], piece: CallPiece) -> None:
    whole = calls.setdefault(piece.index, CallPiece(piece.index))
    whole.id = piece.id or whole.id
    if piece.function is None:
        return
    if whole.function is None:
        whole.function = piece.function
        return
    whole.function.name = piece.function.name or whole.function.name
    whole.function.arguments = (whole.function.arguments or "") + (piece.function.arguments or "")


def _arguments(call: CallPiece) -> str:
    return (call.function and call.function.arguments) or ""
