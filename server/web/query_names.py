"""Query parameters that a route does not know."""

from __future__ import annotations

from fastapi import Request
from fastapi.routing import APIRoute

from ...sessions.errors import RequestError
from ..settings import suggest


def require_known_query(request: Request) -> None:
    """A dependency of all routes: raises RequestError for a parameter that is none of those a route takes. A route that
    takes none is asked with what clients add to every address."""
    route = request.scope.get("route")
    if not isinstance(route, APIRoute):
        return
    known = {str(parameter.alias) for parameter in route.dependant.query_params}
    for name in request.query_params if known else ():
        if name not in known:
            shown = name[:80]
            raise RequestError(f"unknown parameter {shown}", field=shown, remedy=suggest(shown, known))
