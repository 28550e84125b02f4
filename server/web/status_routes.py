"""What the server says about itself: models, health, readiness and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response

from .answers import Health, ModelCard, ModelList, Ready
from .errors import UnknownModel
from .json_answer import json_answer
from .metrics import HttpMetrics
from .openapi import describe_answer
from .parts import WebParts


def status_routes(parts: WebParts, metrics: HttpMetrics) -> APIRouter:
    """The routes that only read."""
    router = APIRouter(tags=["status"])

    @router.get("/v1/models", responses=describe_answer(ModelList), response_class=Response)
    @router.head("/v1/models", include_in_schema=False)
    async def list_models() -> Response:
        """The served model."""
        return json_answer(ModelList(data=[_model_card(parts)]))

    @router.get("/v1/models/{name:path}", responses=describe_answer(ModelCard), response_class=Response)
    async def get_model(name: str) -> Response:
        """One model, by its name or an alias."""
        if not name:
            raise UnknownModel(name, parts.served.name, parts.served.aliases)
        parts.served.check(name)
        return json_answer(_model_card(parts))

    @router.get("/health", responses=describe_answer(Health), response_class=Response)
    @router.head("/health", include_in_schema=False)
    async def health() -> Response:
        """Whether the process is alive. Says nothing about the model: that is ``/ready``."""
        return json_answer(Health(engine=parts.engine.state.value, version=parts.version))

    @router.get("/ready", responses=describe_answer(Ready, unready=Ready), response_class=Response)
    @router.head("/ready", include_in_schema=False)
    async def ready() -> Response:
        """Whether turns are taken now, and whether what they leave is kept: a full disk does not end the service."""
        now = parts.readiness()
        answer = Ready(ready=now.takes_turns, state=now.state, reason=now.reason, persistence=now.persistence)
        if now.takes_turns:
            return json_answer(answer)
        return json_answer(answer, 503, {"retry-after": str(max(1, round(now.retry_after_s)))})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def prometheus() -> Response:
        """Counters for Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return router


def _model_card(parts: WebParts) -> ModelCard:
    info = parts.engine.info
    return ModelCard(
        id=parts.served.name,
        created=int(parts.started_at),
        owned_by="sessile",
        aliases=sorted(parts.served.aliases),
        fingerprint=info.fingerprint,
        context_length=info.context_length,
        dtype=info.dtype,
        device=info.device,
    )
