"""``/v1/sessions``: the session API for those without gRPC. The same values, the same errors, the same sessions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ...sessions.errors import RequestError
from ...sessions.manager.events import SessionEvent
from ...sessions.manager.requests import (
    Appended,
    ExportRequest,
    HintOutcome,
    Imported,
    ImportSession,
    ListSessions,
    Resumed,
    SessionView,
    Suspended,
    WatchRequest,
)
from ...sessions.manager.service import Sessions
from ...sessions.manager.turn_events import TurnDelta, TurnEvent, TurnFinished
from ..field_names import FieldNames
from .decode import BodyDecoder, read_body, require_plain
from .header_text import header_text
from .json_answer import json_answer
from .openapi import describe_answer, describe_body, describe_file, describe_upload
from .parts import WebParts
from .session_answers import SessionList, TurnAnswer, TurnList, TurnStreamEvent, WatchStreamEvent, whole_turn
from .session_bodies import (
    AppendBody,
    CloseBody,
    ForkBody,
    GenerateBody,
    HintBody,
    OpenBody,
    ResumeBody,
    RollbackBody,
    SuspendBody,
)
from .tenant import Tenant
from .watched import Streamed, StreamedEvents, sse

_Body = TypeVar("_Body", bound=msgspec.Struct)
_encode = msgspec.json.Encoder().encode
_ONE = "/v1/sessions/{session_id}"
_SENT_NAMES = FieldNames(
    {
        r"input\.(messages\b.*)": r"\1",
        r"input(\[\d+\])": r"token_ids\1",
        r"input\.(tool_call_id|name|content)": r"tool_result.\1",
        r"hint\.\w+\.(\w+_s)econds": r"hint.\1",
        r"hint\.\w+\.(\w+)": r"hint.\1",
        r"persistence\.idle_seconds": "persistence.idle_s",
    }
)
"""What the bodies call the fields that errors name."""


def session_routes(parts: WebParts) -> APIRouter:
    """All routes of sessions."""
    router = APIRouter(tags=["sessions"])
    _add_looks(router, parts)
    _add_changes(router, parts)
    _add_keeping(router, parts)
    _add_turns(router, parts)
    _add_files(router, parts.sessions)
    return router


def _add_looks(router: APIRouter, parts: WebParts) -> None:
    sessions = parts.sessions

    @router.get("/v1/sessions", responses=describe_answer(SessionList), response_class=Response)
    async def list_sessions(
        tenant: Tenant,
        page_size: Annotated[int, Query(description="sessions on a page, from 1 to 1,000")] = 100,
        page_token: Annotated[str, Query(description="`next_page_token` of the page before")] = "",
    ) -> Response:
        """Open sessions, oldest first."""
        page = await sessions.list(ListSessions(tenant=tenant, page_size=page_size, page_token=page_token))
        return json_answer(SessionList(data=page.sessions, next_page_token=page.next_page_token))

    @router.get(
        "/v1/sessions/events",
        responses=describe_answer(WatchStreamEvent, only_streamed=True),
        response_class=Response,
    )
    async def watch_sessions(tenant: Tenant) -> Response:
        """What happens in all of the tenant's sessions from now on: turns, misses, KV that moves."""
        return StreamedEvents(sessions.watch(WatchRequest(tenant=tenant)), _watch_event, parts.http.ping_s)

    @router.get(_ONE, responses=describe_answer(SessionView), response_class=Response)
    async def get_session(session_id: str, tenant: Tenant) -> Response:
        """One open session."""
        return json_answer(await sessions.get(session_id, tenant))

    @router.get(f"{_ONE}/turns", responses=describe_answer(TurnList), response_class=Response)
    async def list_turns(session_id: str, tenant: Tenant) -> Response:
        """The session's finished turns: what each added to the log, and what it cost."""
        return json_answer(TurnList(data=await sessions.turns(session_id, tenant)))

    @router.get(
        f"{_ONE}/events", responses=describe_answer(WatchStreamEvent, only_streamed=True), response_class=Response
    )
    async def watch_session(session_id: str, tenant: Tenant) -> Response:
        """What happens in a session from now on: turns, misses, KV that moves."""
        events = sessions.watch(WatchRequest(session_id=session_id, tenant=tenant))
        return StreamedEvents(events, _watch_event, parts.http.ping_s)


def _add_changes(router: APIRouter, parts: WebParts) -> None:
    read, sessions = _Reader(parts), parts.sessions

    @router.post(
        "/v1/sessions",
        openapi_extra=describe_body(OpenBody, required=False),
        responses=describe_answer(SessionView),
        response_class=Response,
    )
    async def open_session(request: Request, tenant: Tenant) -> Response:
        """Open a session with an empty log."""
        body = await read(request, OpenBody)
        parts.served.check(body.model)
        with _SENT_NAMES.told():
            return json_answer(await sessions.open(body.request(tenant)))

    @router.post(
        f"{_ONE}/fork",
        openapi_extra=describe_body(ForkBody, required=False),
        responses=describe_answer(SessionView),
        response_class=Response,
    )
    async def fork_session(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Another session on the same log, or on a beginning of it; shares all tokens and KV."""
        return json_answer(await sessions.fork((await read(request, ForkBody)).request(session_id, tenant)))

    @router.post(
        f"{_ONE}/rollback",
        openapi_extra=describe_body(RollbackBody),
        responses=describe_answer(SessionView),
        response_class=Response,
    )
    async def roll_session_back(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Back to a point of the session's own log."""
        return json_answer(await sessions.rollback((await read(request, RollbackBody)).request(session_id, tenant)))

    @router.post(
        f"{_ONE}/close",
        openapi_extra=describe_body(CloseBody, required=False),
        responses=describe_answer(SessionView),
        response_class=Response,
    )
    async def close_session(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Close a session; it is not found afterwards."""
        return json_answer(await sessions.close((await read(request, CloseBody)).request(session_id, tenant)))


def _add_keeping(router: APIRouter, parts: WebParts) -> None:
    read, sessions = _Reader(parts), parts.sessions

    @router.post(
        f"{_ONE}/hint",
        openapi_extra=describe_body(HintBody),
        responses=describe_answer(HintOutcome),
        response_class=Response,
    )
    async def give_hint(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Say what is going to happen, so that the session's KV is kept, or let go of, accordingly."""
        hint = (await read(request, HintBody)).request(session_id, tenant)
        with _SENT_NAMES.told():
            return json_answer(await sessions.hint(hint))

    @router.post(
        f"{_ONE}/suspend",
        openapi_extra=describe_body(SuspendBody, required=False),
        responses=describe_answer(Suspended),
        response_class=Response,
    )
    async def suspend_session(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Give a session's device memory back; its KV goes to slower tiers."""
        return json_answer(await sessions.suspend((await read(request, SuspendBody)).request(session_id, tenant)))

    @router.post(
        f"{_ONE}/resume",
        openapi_extra=describe_body(ResumeBody, required=False),
        responses=describe_answer(Resumed),
        response_class=Response,
    )
    async def resume_session(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Begin to bring a session's KV back, and say how long its next turn would wait for it."""
        return json_answer(await sessions.resume((await read(request, ResumeBody)).request(session_id, tenant)))


def _add_turns(router: APIRouter, parts: WebParts) -> None:
    read, sessions = _Reader(parts), parts.sessions

    @router.post(
        f"{_ONE}/append",
        openapi_extra=describe_body(AppendBody),
        responses=describe_answer(Appended),
        response_class=Response,
    )
    async def append_to_session(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Add to the log and prefill, without an answer."""
        append = (await read(request, AppendBody)).request(session_id, tenant)
        with _SENT_NAMES.told():
            return json_answer(await sessions.append(append))

    @router.post(
        f"{_ONE}/generate",
        openapi_extra=describe_body(GenerateBody, required=False),
        responses=describe_answer(TurnAnswer, events=TurnStreamEvent),
        response_class=Response,
    )
    async def generate(session_id: str, request: Request, tenant: Tenant) -> Response:
        """Run a turn: add the input, sample an answer. With `stream`, events as the tokens come."""
        body = await read(request, GenerateBody)
        events = _SENT_NAMES.told_of(sessions.generate(body.request(session_id, tenant)))
        if body.stream:
            return StreamedEvents(events, _turn_event, parts.http.ping_s)
        return Streamed(_whole(events), _encode, "application/json")


def _add_files(router: APIRouter, sessions: Sessions) -> None:
    @router.get(f"{_ONE}/export", responses=describe_file(), response_class=Response)
    async def export_session(
        session_id: str,
        tenant: Tenant,
        without_kv: Annotated[bool, Query(description="leave the KV out: a small file")] = False,
        expected_version: Annotated[int | None, Query(description="refuse unless it is at this version")] = None,
    ) -> Response:
        """The session as a file, bound to its tenant: its log and, unless it is left out, its KV."""
        file = sessions.export(
            ExportRequest(
                session_id=session_id, tenant=tenant, without_kv=without_kv, expected_version=expected_version
            )
        )
        name = f'attachment; filename="{header_text(session_id)}.sessile"'
        return Streamed(file, bytes, "application/octet-stream", {"content-disposition": name})

    @router.post(
        "/v1/sessions/import",
        openapi_extra=describe_upload(),
        responses=describe_answer(Imported),
        response_class=Response,
    )
    async def import_session(
        request: Request,
        tenant: Tenant,
        without_kv: Annotated[bool, Query(description="do not use the file's KV")] = False,
        request_id: Annotated[str | None, Query(description="the same import under the same id is done once")] = None,
    ) -> Response:
        """A session from a file that an export wrote; the file is the body. All of it or nothing."""
        wanted = ImportSession(tenant=tenant, request_id=request_id, without_kv=without_kv)
        async with aclosing(import_pieces(request)) as pieces:
            return json_answer(await sessions.import_(wanted, pieces))


class _Reader:
    """Reads bodies. An empty one is an object without fields."""

    def __init__(self, parts: WebParts) -> None:
        self._limit = parts.http.max_body_bytes
        self._decoders: dict[type[msgspec.Struct], BodyDecoder] = {}

    async def __call__(self, request: Request, kind: type[_Body]) -> _Body:
        decoder = self._decoders.get(kind)
        if decoder is None:
            decoder = self._decoders[kind] = BodyDecoder(kind)
        body = await read_body(request, self._limit)
        decoded: _Body = decoder.decode(body if body.strip() else b"{}")
        return decoded


async def import_pieces(request: Request) -> AsyncGenerator[bytes, None]:
    """The file of an import as it comes.

    Raises:
        EncodedBody: it is compressed.
        RequestError: the client went away.
    """
    require_plain(request)
    try:
        async with aclosing(request.stream()) as pieces:
            async for piece in pieces:
                if piece:
                    yield piece
    except ClientDisconnect as error:
        raise RequestError("the client went away before its file was complete", field="file") from error


async def _whole(events: AsyncGenerator[TurnEvent, None]) -> AsyncGenerator[TurnAnswer, None]:
    """The turn's answer, when it is over."""
    deltas: list[TurnDelta] = []
    async with aclosing(events):
        async for event in events:
            if isinstance(event, TurnFinished):
                yield whole_turn(deltas, event)
            else:
                deltas.append(event)


def _turn_event(event: TurnEvent) -> bytes:
    return sse(_tag(event), event)


def _watch_event(event: SessionEvent) -> bytes:
    return sse(_tag(event.what), event)


def _tag(value: msgspec.Struct) -> str:
    tag: Any = value.__struct_config__.tag
    return str(tag)
