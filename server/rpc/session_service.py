"""The session API's servicer: reads a request, asks the session manager, writes the answer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from msgspec import structs

from ...sessions.errors import RequestError
from ...sessions.manager.service import Sessions
from ..field_names import FieldNames, flat_tools
from ..proto import events, keeping, requests, responses, transfer, turns, views
from ..proto import session_pb2 as pb
from ..proto.session_pb2_grpc import SessionServiceServicer
from .authentication import caller
from .patience import Context, send_all

TENANT_KEY = "x-sessile-tenant"
_TOOL_FIELDS = FieldNames(flat_tools("parameters_json"))
CHUNK_BYTES = 256 * 1024  # of an exported file in one message


class SessionService(SessionServiceServicer):
    """Translates only. Errors leave it as they are; the interceptor in ``errors.py`` gives them their status."""

    def __init__(self, sessions: Sessions, read_timeout_s: float) -> None:
        """``read_timeout_s``: after so many seconds without a reader an answer is given up, with its turn."""
        self._sessions = sessions
        self._read_timeout_s = read_timeout_s

    async def Open(self, request: pb.OpenRequest, context: Context) -> pb.OpenResponse:
        opening = requests.read_open(request, _tenant(request.tenant, context))
        with _TOOL_FIELDS.told():
            view = await self._sessions.open(opening)
        return pb.OpenResponse(session=views.write_session(view))

    async def Append(self, request: pb.AppendRequest, context: Context) -> pb.AppendResponse:
        append = requests.read_append(request, _tenant(request.tenant, context))
        appended = await self._sessions.append(structs.replace(append, deadline_s=context.time_remaining()))
        return responses.write_appended(appended)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]
        generate = requests.read_generate(request, _tenant(request.tenant, context))
        turn = self._sessions.generate(structs.replace(generate, deadline_s=context.time_remaining()))
        await send_all(context, turn, responses.write_event, self._read_timeout_s)

    async def Fork(self, request: pb.ForkRequest, context: Context) -> pb.ForkResponse:
        view = await self._sessions.fork(requests.read_fork(request, _tenant(request.tenant, context)))
        return pb.ForkResponse(session=views.write_session(view))

    async def Rollback(self, request: pb.RollbackRequest, context: Context) -> pb.RollbackResponse:
        view = await self._sessions.rollback(requests.read_rollback(request, _tenant(request.tenant, context)))
        return pb.RollbackResponse(session=views.write_session(view))

    async def Close(self, request: pb.CloseRequest, context: Context) -> pb.CloseResponse:
        view = await self._sessions.close(requests.read_close(request, _tenant(request.tenant, context)))
        return pb.CloseResponse(session=views.write_session(view))

    async def Get(self, request: pb.GetRequest, context: Context) -> pb.GetResponse:
        view = await self._sessions.get(request.session_id, _tenant(request.tenant, context))
        return pb.GetResponse(session=views.write_session(view))

    async def List(self, request: pb.ListRequest, context: Context) -> pb.ListResponse:
        page = await self._sessions.list(requests.read_list(request, _tenant(request.tenant, context)))
        return responses.write_page(page)

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        found = await self._sessions.turns(request.session_id, _tenant(request.tenant, context))
        return pb.ListTurnsResponse(turns=[turns.write_turn(turn) for turn in found])

    async def Hint(self, request: pb.HintRequest, context: Context) -> pb.HintResponse:
        hint = keeping.read_hint_request(request, _tenant(request.tenant, context))
        return keeping.write_hint_outcome(await self._sessions.hint(hint))

    async def Suspend(self, request: pb.SuspendRequest, context: Context) -> pb.SuspendResponse:
        suspend = keeping.read_suspend_request(request, _tenant(request.tenant, context))
        return keeping.write_suspended(await self._sessions.suspend(suspend))

    async def Resume(self, request: pb.ResumeRequest, context: Context) -> pb.ResumeResponse:
        resume = keeping.read_resume_request(request, _tenant(request.tenant, context))
        return keeping.write_resumed(await self._sessions.resume(resume))

    async def Watch(self, request: pb.WatchRequest, context: Context) -> None:  # type: ignore[override]
        watch = self._sessions.watch(events.read_watch(request, _tenant(request.tenant, context)))
        await send_all(context, watch, events.write_session_event, self._read_timeout_s)

    async def Export(self, request: pb.ExportRequest, context: Context) -> None:  # type: ignore[override]
        export = self._sessions.export(transfer.read_export(request, _tenant(request.tenant, context)))
        await send_all(context, _in_chunks(export), lambda chunk: pb.ExportResponse(chunk=chunk), self._read_timeout_s)

    async def Import(self, request_iterator: AsyncIterator[pb.ImportRequest], context: Context) -> pb.ImportResponse:
        first = await anext(request_iterator, None)
        if first is None or first.WhichOneof("part") != "header":
            raise RequestError("the first message has no header", field="header", remedy="send the header first")
        request = transfer.read_import(first.header, _tenant(first.header.tenant, context))
        async with aclosing(_chunks(request_iterator)) as chunks:
            return transfer.write_imported(await self._sessions.import_(request, chunks))


async def _in_chunks(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(pieces):
        async for piece in pieces:
            for start in range(0, len(piece), CHUNK_BYTES):
                yield piece[start : start + CHUNK_BYTES]


async def _chunks(messages: AsyncIterator[pb.ImportRequest]) -> AsyncGenerator[bytes, None]:
    async for message in messages:
        if message.WhichOneof("part") != "chunk":
            raise RequestError("a message has no chunk", field="chunk", remedy="send the header once, then chunks")
        yield message.chunk


def _tenant(named: str, context: Context) -> str:
    """The tenant that the request names, or else its metadata, or else its API key's."""
    values = [value for key, value in context.invocation_metadata() or () if key == TENANT_KEY]
    tenants = {tenant for tenant in (named, *values) if tenant}
    if len(tenants) > 1:
        raise RequestError(
            f"the request names one tenant and its metadata {TENANT_KEY} another",
            field="tenant",
            remedy="name it in one place",
        )
    tenant = tenants.pop() if tenants else ""
    if isinstance(tenant, bytes):
        raise RequestError(f"{TENANT_KEY} is not text", field="tenant")
    return caller().tenant_for(tenant)
