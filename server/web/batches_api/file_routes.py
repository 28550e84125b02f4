"""``/v1/files``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ....sessions.batches.batch import FilePurpose, StoredFile
from ....sessions.batches.service import Batches
from ..json_answer import json_answer
from ..openapi import describe_answer, describe_file, describe_form
from ..parts import WebParts
from ..tenant import Tenant
from ..watched import Streamed
from .answers import DeletedFile, FileList, FileObject, file_list, file_object
from .upload import uploaded

_PIECE = 1 << 20
_ONE = "/v1/files/{file_id}"


def file_routes(parts: WebParts) -> APIRouter:
    """The routes of files."""
    router = APIRouter(tags=["batches"])
    batches = parts.batches

    @router.post(
        "/v1/files",
        openapi_extra=describe_form(),
        responses=describe_answer(FileObject),
        response_class=Response,
    )
    async def upload_file(request: Request, tenant: Tenant) -> Response:
        """Keep a file of requests, one a line, for batches."""
        parts.check_admission()
        async with uploaded(request, batches.config.max_file_bytes) as upload:
            file = await batches.add_file(
                tenant, upload.filename, upload.num_bytes, upload.pieces(), keep_s=upload.keep_s
            )
        return json_answer(file_object(file))

    @router.get("/v1/files", responses=describe_answer(FileList), response_class=Response)
    async def list_files(
        tenant: Tenant,
        purpose: FilePurpose | None = None,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
        order: Literal["asc", "desc"] = "desc",
        after: Annotated[str | None, Query(description="`last_id` of the page before")] = None,
    ) -> Response:
        """Files, the newest first."""
        found = await batches.files(tenant, purpose, after=after, limit=limit + 1, newest_first=order == "desc")
        return json_answer(file_list(found, limit))

    @router.get(_ONE, responses=describe_answer(FileObject), response_class=Response)
    async def get_file(file_id: str, tenant: Tenant) -> Response:
        """One file: its name and its size."""
        return json_answer(file_object(await batches.file(tenant, file_id)))

    @router.get(f"{_ONE}/content", responses=describe_file(), response_class=Response)
    async def get_content(file_id: str, tenant: Tenant) -> Response:
        """What is in a file."""
        file = await batches.file(tenant, file_id)
        pieces = _pieces(batches, file)
        return Streamed(pieces, bytes, "application/octet-stream", {"x-content-type-options": "nosniff"})

    @router.delete(_ONE, responses=describe_answer(DeletedFile), response_class=Response)
    async def delete_file(file_id: str, tenant: Tenant) -> Response:
        """Delete a file. One that a running batch reads is kept: that is an error."""
        await batches.delete_file(tenant, file_id)
        return json_answer(DeletedFile(id=file_id))

    return router


async def _pieces(batches: Batches, file: StoredFile) -> AsyncGenerator[bytes, None]:
    with await batches.open_content(file) as content:
        while piece := await asyncio.to_thread(content.read, _PIECE):
            yield piece
