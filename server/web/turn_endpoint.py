"""The way of a request of ``/v1/chat/completions`` and ``/v1/completions``, from bytes to an answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from fastapi import Request
from starlette.responses import Response

from ...sessions.manager.requests import CompletionRequest
from ...sessions.manager.turn_events import CompletionEvent
from .bodies import ChatBody, CompletionBody
from .caller import Caller, Lane
from .choices import StreamedChoices, WholeChoices, merged
from .decode import BodyDecoder, read_body
from .grammar_fields import wanted_grammar
from .identity import told_headers
from .metrics import HttpMetrics
from .parts import WebParts
from .turn_answer import StreamedTurn, WholeTurn
from .turn_requests import chat_request, completion_request, ignored_fields, num_choices, of_choice, sent_names
from .writers import ChatWriter, ChoiceWriter, CompletionWriter, TurnHead

Body = TypeVar("Body", ChatBody, CompletionBody)


@dataclass(frozen=True, slots=True)
class TurnKind(Generic[Body]):
    """What tells the two endpoints apart. ``translate``: from a body and a tenant to a turn."""

    name: str
    body: type[Body]
    translate: Callable[[Body, str], CompletionRequest]
    id_prefix: str
    writer: Callable[..., ChoiceWriter]


CHAT = TurnKind("chat", ChatBody, chat_request, "chatcmpl", ChatWriter)
COMPLETIONS = TurnKind("completions", CompletionBody, completion_request, "cmpl", CompletionWriter)


class TurnEndpoint(Generic[Body]):
    """Reads, checks and starts turns of one kind."""

    def __init__(self, parts: WebParts, metrics: HttpMetrics, kind: TurnKind[Body]) -> None:
        self._parts = parts
        self._metrics = metrics
        self._kind: TurnKind[Body] = kind
        self._decoder = BodyDecoder(kind.body)

    async def answer(self, request: Request, tenant: str) -> Response:
        """The answer to an HTTP request. Raises SessileError before the turn has started."""
        self._parts.check_admission()
        sent = await read_body(request, self._parts.http.max_body_bytes)
        return await self.begin(sent, Caller.of(request, tenant))

    async def begin(self, sent: bytes, caller: Caller) -> Response:
        """The answer to a body, which runs the turn. Raises SessileError before it has started."""
        parts = self._parts
        parts.check_admission()
        body: Body = self._decoder.decode(sent)
        parts.served.check(body.model)
        caller.check_stream(body.stream)
        turn = caller.turn(self._kind.translate(body, caller.tenant), sent, body)
        if caller.lane is Lane.OFFLINE:  # thousands of conversations that nobody goes on with
            turn = msgspec.structs.replace(turn, keep=False)
        count = num_choices(body)
        wanted = wanted_grammar(body)
        if wanted is not None:
            await parts.turns.check_grammar(wanted.grammar, wanted.field)
        head = TurnHead.new(
            self._kind.id_prefix,
            parts.served.name,
            parts.engine.info.fingerprint,
            include_usage=bool(body.stream_options and body.stream_options.include_usage),
            want_logprobs=turn.sampling.logprobs is not None,
        )
        headers = {"x-request-id": head.id, **told_headers(head.model, ignored_fields(body), turn)}
        names = sent_names(body, wanted)
        turns = [names.told_of(parts.turns.complete(of_choice(turn, index))) for index in range(count)]
        return self._started(turns, head, headers, stream=bool(body.stream))

    def _started(
        self,
        turns: Sequence[AsyncGenerator[CompletionEvent, None]],
        head: TurnHead,
        headers: dict[str, str],
        *,
        stream: bool,
    ) -> Response:
        parts, writer = self._parts, self._kind.writer
        meter = self._metrics.start_turn(self._kind.name)
        ping_s = parts.http.ping_s
        if len(turns) > 1:
            writers = [writer(head, parts.token_bytes, index) for index in range(len(turns))]
            several = StreamedChoices if stream else WholeChoices
            return several(merged(turns), writers, meter, headers, ping_s)
        one = StreamedTurn if stream else WholeTurn
        return one(turns[0], writer(head, parts.token_bytes), meter, headers, ping_s)
