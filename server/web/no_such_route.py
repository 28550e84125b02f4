"""What is told to who asks for a path that does not exist, or for one in a way that it does not take."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.routing import compile_path

from ...sessions.errors import RequestError
from ..settings import suggest

_SHOWN = 200  # characters of a path


def no_such_route(request: Request, error: HTTPException) -> tuple[RequestError, dict[str, str]]:
    """The router's error in our words, with the headers that belong to it."""
    documented = request.app.openapi()["paths"]
    path = request.url.path
    shown = path[:_SHOWN]
    if error.status_code == 404:
        meant = f"did you mean /v1{shown}?" if f"/v1{path}" in documented else suggest(shown, documented)
        return RequestError(f"there is no {shown} here", remedy=meant or "GET /openapi.json lists what there is"), {}
    headers = dict(error.headers or {})
    if error.status_code == 405:
        matching = [methods for known, methods in documented.items() if compile_path(known)[0].match(path)]
        allowed = sorted({method.upper() for methods in matching for method in methods})
        headers = {"allow": ", ".join(allowed)} if allowed else headers
        message = f"{shown} does not take {request.method[:_SHOWN]}"
        return RequestError(message, remedy=f"it takes {headers['allow']}" if allowed else None), headers
    return RequestError(error.detail), headers
