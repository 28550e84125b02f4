"""``/``: the dashboard. One page, three files, nothing from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ...sessions.errors import SessionNotFound
from . import dashboard_state
from .json_answer import json_answer
from .parts import WebParts

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "dashboard.css": "text/css; charset=utf-8",
    "dashboard.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "sessions.js": "text/javascript; charset=utf-8",
    "words.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_NO_STORE = {"cache-control": "no-store"}


def dashboard_routes(parts: WebParts) -> APIRouter:
    """The page, its files, and what it asks for."""
    router = APIRouter(include_in_schema=False)
    folder = Path(__file__).parent / "dashboard"
    content = {name: (folder / name).read_bytes() for name in _KINDS}
    seen = parts.observatory

    @router.get("/")
    async def page() -> Response:
        return _file("index.html")

    @router.get("/dashboard/state")
    async def state(sessions: Annotated[int, Query(ge=0, le=2000)] = 1000) -> Response:
        return json_answer(dashboard_state.overview(seen, parts.engine.stats, sessions), headers=_NO_STORE)

    @router.get("/dashboard/session")
    async def session(name: str) -> Response:
        found = dashboard_state.timeline(seen, name)
        if found is None:
            raise SessionNotFound("no turn of this session is remembered", field="name")
        return json_answer(found, headers=_NO_STORE)

    @router.get("/dashboard/{name}")
    async def asset(name: str) -> Response:
        if name not in _KINDS:
            return Response(status_code=404)
        return _file(name)

    def _file(name: str) -> Response:
        return Response(content[name], 200, _HEADERS, _KINDS[name])

    return router
