"""``/v1/batches``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from msgspec import UNSET
from starlette.responses import Response

from ....sessions.errors import RequestError
from ...field_names import FieldNames
from ..decode import BodyDecoder, read_body
from ..json_answer import json_answer
from ..openapi import describe_answer, describe_body
from ..parts import WebParts
from ..tenant import Tenant
from .answers import BatchList, BatchObject, batch_list, batch_object
from .bodies import BatchBody

_ONE = "/v1/batches/{batch_id}"
_MOST_PAIRS, _MOST_KEY, _MOST_VALUE = 16, 64, 512


def batch_routes(parts: WebParts) -> APIRouter:
    """The routes of batches."""
    router = APIRouter(tags=["batches"])
    batches, decoder = parts.batches, BodyDecoder(BatchBody)

    @router.post(
        "/v1/batches",
        openapi_extra=describe_body(BatchBody),
        responses=describe_answer(BatchObject),
        response_class=Response,
    )
    async def create_batch(request: Request, tenant: Tenant) -> Response:
        """Run the requests of a file when nothing else wants the model; results come as files."""
        parts.check_admission()
        body: BatchBody = decoder.decode(await read_body(request, parts.http.max_body_bytes))
        _check_metadata(body.metadata)
        batch = await batches.create(
            tenant,
            endpoint=body.endpoint,
            input_file_id=body.input_file_id,
            completion_window=body.completion_window,
            model=parts.served.name,
            metadata=body.metadata,
        )
        ignored = {} if body.output_expires_after is UNSET else {"x-sessile-ignored": "output_expires_after"}
        return json_answer(batch_object(batch), headers=ignored)

    @router.get("/v1/batches", responses=describe_answer(BatchList), response_class=Response)
    async def list_batches(
        tenant: Tenant,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        after: Annotated[str | None, Query(description="`last_id` of the page before")] = None,
    ) -> Response:
        """Batches, the newest first."""
        with FieldNames({"batch_id": "after"}).told():
            found = await batches.batches(tenant, after=after, limit=limit + 1)
        return json_answer(batch_list(found, limit))

    @router.get(_ONE, responses=describe_answer(BatchObject), response_class=Response)
    async def get_batch(batch_id: str, tenant: Tenant) -> Response:
        """One batch: how far it has come, and its files."""
        return json_answer(batch_object(await batches.batch(tenant, batch_id)))

    @router.post(f"{_ONE}/cancel", responses=describe_answer(BatchObject), response_class=Response)
    async def cancel_batch(batch_id: str, tenant: Tenant) -> Response:
        """End a batch. What its lines gave until then is kept; what runs is aborted."""
        return json_answer(batch_object(await batches.cancel(tenant, batch_id)))

    return router


def _check_metadata(metadata: dict[str, str] | None) -> None:
    pairs = metadata or {}
    if len(pairs) > _MOST_PAIRS or any(len(k) > _MOST_KEY or len(v) > _MOST_VALUE for k, v in pairs.items()):
        raise RequestError(
            "metadata is too large",
            field="metadata",
            remedy=f"send {_MOST_PAIRS} pairs at most, keys of {_MOST_KEY} and values of {_MOST_VALUE} characters",
        )
