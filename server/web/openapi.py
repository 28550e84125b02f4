"""The OpenAPI document: FastAPI's routes, with the schemas of our own Structs."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from ...sessions.manager import requests
from . import answers, bodies, cache_answers, session_answers, session_bodies, token_bodies
from .anthropic import answers as messages_answers
from .anthropic import bodies as messages_bodies
from .batches_api import answers as batch_answers
from .batches_api import bodies as batch_bodies
from .responses_api import answers as responses_answers
from .responses_api import bodies as responses_bodies

_REFERENCE = "#/components/schemas/{name}"
_DOCUMENTED: tuple[type[msgspec.Struct], ...] = (
    bodies.ChatBody,
    bodies.CompletionBody,
    answers.ChatCompletion,
    answers.ChatChunk,
    answers.TextCompletion,
    answers.ModelList,
    answers.ModelCard,
    answers.Health,
    answers.Ready,
    cache_answers.HitRate,
    cache_answers.MissList,
    cache_answers.TreeTop,
    cache_answers.Tiers,
    answers.ErrorAnswer,
    session_bodies.OpenBody,
    session_bodies.ForkBody,
    session_bodies.RollbackBody,
    session_bodies.CloseBody,
    session_bodies.HintBody,
    session_bodies.SuspendBody,
    session_bodies.ResumeBody,
    session_bodies.AppendBody,
    session_bodies.GenerateBody,
    session_answers.SessionList,
    session_answers.TurnList,
    session_answers.TurnAnswer,
    session_answers.TurnStreamEvent,
    session_answers.WatchStreamEvent,
    messages_bodies.MessagesBody,
    messages_bodies.CountTokensBody,
    messages_answers.MessageAnswer,
    messages_answers.MessageEvent,
    messages_answers.TokenCount,
    messages_answers.MessageErrorAnswer,
    responses_bodies.ResponsesBody,
    responses_bodies.ConversationBody,
    responses_answers.ResponseObject,
    responses_answers.ResponseEvent,
    responses_answers.DeletedResponse,
    responses_answers.InputItems,
    responses_answers.InputTokens,
    responses_answers.ConversationObject,
    responses_answers.DeletedConversation,
    batch_bodies.BatchBody,
    batch_answers.FileObject,
    batch_answers.FileList,
    batch_answers.DeletedFile,
    batch_answers.BatchObject,
    batch_answers.BatchList,
    token_bodies.TokenizeBody,
    token_bodies.DetokenizeBody,
    token_bodies.Tokens,
    token_bodies.DetokenizedText,
    requests.SessionView,
    requests.HintOutcome,
    requests.Suspended,
    requests.Resumed,
    requests.Appended,
    requests.Imported,
)
_CHUNKS: dict[type, type[msgspec.Struct]] = {
    answers.ChatCompletion: answers.ChatChunk,
    answers.TextCompletion: answers.TextCompletion,
    messages_answers.MessageAnswer: messages_answers.MessageEvent,
    responses_answers.ResponseObject: responses_answers.ResponseEvent,
}


def describe_body(body: type[msgspec.Struct], *, required: bool = True) -> dict[str, Any]:
    """What a route adds to its operation for a body that we decode ourselves."""
    return {"requestBody": {"required": required, "content": _json_of(body)}}


def describe_upload() -> dict[str, Any]:
    """As ``describe_body``, for a file."""
    return {"requestBody": {"required": True, "content": {"application/octet-stream": {"schema": _BYTES}}}}


def describe_form() -> dict[str, Any]:
    """As ``describe_body``, for an upload of a form."""
    properties = {
        "file": _BYTES,
        "purpose": {"type": "string", "enum": ["batch"]},
        "expires_after[anchor]": {"type": "string", "enum": ["created_at"]},
        "expires_after[seconds]": {
            "type": "integer",
            "minimum": batch_bodies.LEAST_EXPIRES_AFTER_S,
            "maximum": batch_bodies.MOST_EXPIRES_AFTER_S,
        },
    }
    schema = {
        "type": "object",
        "properties": properties,
        "required": ["file", "purpose"],
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}


def describe_file() -> dict[int | str, dict[str, Any]]:
    """The answers of a route that sends a file."""
    responses: dict[int | str, dict[str, Any]] = {
        200: {"description": "The file.", "content": {"application/octet-stream": {"schema": _BYTES}}},
        "default": {"description": "An error.", "content": _json_of(answers.ErrorAnswer)},
    }
    return responses


def describe_answer(
    answer: type[msgspec.Struct],
    *,
    streamed: bool = False,
    events: type[msgspec.Struct] | None = None,
    only_streamed: bool = False,
    unready: type[msgspec.Struct] | None = None,
    error: type[msgspec.Struct] = answers.ErrorAnswer,
) -> dict[int | str, dict[str, Any]]:
    """The answers of a route: its own, as events too where it streams, and errors."""
    content = _json_of(answer)
    if only_streamed:
        content = {"text/event-stream": content["application/json"]}
    if streamed:
        events = _CHUNKS[answer]
    if events is not None:
        content["text/event-stream"] = {"schema": {"$ref": _REFERENCE.format(name=events.__name__)}}
    responses: dict[int | str, dict[str, Any]] = {200: {"description": "Done.", "content": content}}
    if unready is not None:
        responses[503] = {"description": "Not now.", "content": _json_of(unready)}
    responses["default"] = {"description": "An error.", "content": _json_of(error)}
    return responses


def install_openapi(app: FastAPI) -> None:
    """Make ``app`` serve the completed document."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes, tags=_TAGS
            )
            _, components = msgspec.json.schema_components(_DOCUMENTED, ref_template=_REFERENCE)
            schemas = schema.setdefault("components", {}).setdefault("schemas", {})
            for unused in ("HTTPValidationError", "ValidationError"):
                schemas.pop(unused, None)
            schemas.update(components)
            schema["components"]["securitySchemes"] = _SECURITY
            schema["security"] = [*({name: []} for name in _SECURITY), {}]  # {}: none, where there are no keys
            for operations in schema["paths"].values():
                for operation in operations.values():
                    operation["responses"].pop("422", None)
            _add_links(schema["paths"])
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _add_links(paths: dict[str, Any]) -> None:
    """Say where the ids of paths come from: what the answer to ``POST /v1/files`` calls ``id`` is a ``file_id``."""
    for creator, field, parameter in _IDS:
        links = paths[creator]["post"]["responses"]["200"].setdefault("links", {})
        for path, operations in paths.items():
            if f"{{{parameter}}}" in path:
                for operation in operations.values():
                    name = operation["operationId"]
                    links[name] = {"operationId": name, "parameters": {parameter: f"$response.body#/{field}"}}


_IDS = (
    ("/v1/sessions", "session_id", "session_id"),
    ("/v1/files", "id", "file_id"),
    ("/v1/batches", "id", "batch_id"),
    ("/v1/responses", "id", "response_id"),
    ("/v1/conversations", "id", "conversation_id"),
)
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "An API key; `sessile keys create` makes one."},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "The same, as Anthropic's."},
}
_BYTES = {"type": "string", "format": "binary"}
_TAGS = [
    {"name": "sessions", "description": "Sessions: the same as over gRPC."},
    {"name": "inference", "description": "Turns, in OpenAI's shapes."},
    {"name": "cache", "description": "What was reused, what could have been, and why it was not."},
    {"name": "responses", "description": "Turns, in the shapes of OpenAI's Responses API, kept in the session store."},
    {"name": "messages", "description": "Turns, in Anthropic's shapes."},
    {"name": "batches", "description": "Files of requests that run when nothing else wants the model."},
    {"name": "tokens", "description": "Texts and tokens, without a turn."},
    {"name": "status", "description": "What the server says about itself."},
]


def _json_of(kind: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": _REFERENCE.format(name=kind.__name__)}}}
