"""The HTTP application."""

from __future__ import annotations

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from ...sessions.errors import RequestError, SessileError
from .anthropic import errors as messages_errors
from .anthropic.routes import messages_routes
from .authentication import authentication
from .batches_api.batch_routes import batch_routes
from .batches_api.file_routes import file_routes
from .batches_api.metrics import BatchCollector
from .cache_routes import cache_routes
from .dashboard_routes import dashboard_routes
from .errors import answer_http_error, answer_sessile_error, answer_unexpected
from .inference_routes import inference_routes
from .metrics import HttpMetrics
from .no_such_route import no_such_route
from .openapi import install_openapi
from .parts import WebParts
from .query_names import require_known_query
from .responses_api.routes import responses_routes
from .session_routes import session_routes
from .status_routes import status_routes
from .token_routes import token_routes


def create_app(parts: WebParts) -> FastAPI:
    """An application on ``parts``; several may live in one process."""
    app = FastAPI(
        title="Sessile",
        version=parts.version,
        description="A session inference server for LLM agents, with OpenAI's and Anthropic's endpoints.",
        redoc_url=None,
        dependencies=[Depends(authentication(parts.gate)), Depends(require_known_query)],
    )
    metrics = HttpMetrics(parts)
    metrics.registry.register(BatchCollector(lambda: parts.batches.counts()))
    app.include_router(inference_routes(parts, metrics))
    app.include_router(responses_routes(parts, metrics))
    app.include_router(messages_routes(parts, metrics))
    app.include_router(file_routes(parts))
    app.include_router(batch_routes(parts))
    app.include_router(session_routes(parts))
    app.include_router(token_routes(parts))
    app.include_router(status_routes(parts, metrics))
    app.include_router(cache_routes(parts))
    app.include_router(dashboard_routes(parts))

    async def answer_error(request: Request, error: Exception) -> Response:
        if isinstance(error, SessileError):
            metrics.count_error(error)
        return await _answer_sessile_error(request, error)

    app.add_exception_handler(SessileError, answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_validation_error)
    app.add_exception_handler(Exception, _answer_unexpected)
    install_openapi(app)
    return app


async def _answer_validation_error(request: Request, error: Exception) -> Response:
    """For what FastAPI checks itself: headers and paths."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = str(first["loc"][-1])
    return await _answer_sessile_error(request, RequestError(f"{field}: {first['msg']}", field=field))


async def _answer_sessile_error(request: Request, error: Exception) -> Response:
    answer = await answer_sessile_error(request, error)
    if isinstance(error, SessileError) and messages_errors.is_addressed(request.url.path):
        return messages_errors.error_response(error)
    return answer


async def _answer_http_error(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and messages_errors.is_addressed(request.url.path):
        told, headers = no_such_route(request, error)
        return messages_errors.plain_error_response(error.status_code, str(told), headers)
    return await answer_http_error(request, error)


async def _answer_unexpected(request: Request, error: Exception) -> Response:
    if messages_errors.is_addressed(request.url.path):
        return messages_errors.plain_error_response(500, "internal error; the server's log has the details")
    return await answer_unexpected(request, error)
