"""``/v1/cache/…``: what the cache did, what it could have done, and why it did not.

These are for whoever runs the server. A request that names a tenant sees that tenant's alone.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from ..identity.api_key import Scope
from .authentication import identity_of
from .cache_answers import HitRate, MissList, Tiers, TreeTop, device_state, hit_rate_of, misses_of, tier_state
from .json_answer import json_answer
from .openapi import describe_answer
from .parts import WebParts
from .tenant import TENANT_HEADER, Tenant

MOST_NODES = 2000


def _named_tenant(request: Request, tenant: Tenant) -> str | None:
    """The tenant, if the request names one or its key is one tenant's; None: all of them may be told."""
    identity = identity_of(request)
    is_bound = identity.tenant is not None and Scope.ADMIN not in identity.scopes
    return tenant if is_bound or TENANT_HEADER in request.headers else None


NamedTenant = Annotated[str | None, Depends(_named_tenant)]
Limit = Annotated[int, Query(ge=0, le=1000, description="how many, at most")]


def cache_routes(parts: WebParts) -> APIRouter:
    """The routes that tell of the cache."""
    router = APIRouter(tags=["cache"])
    seen = parts.observatory

    @router.get("/v1/cache/hit-rate", responses=describe_answer(HitRate), response_class=Response)
    async def hit_rate(tenant: NamedTenant, sessions: Limit = 50, tenants: Limit = 50) -> Response:
        """Prompt tokens that were reused, beside those that could have been: by source, cause, tenant, model, session
        and window."""
        return json_answer(hit_rate_of(seen, parts.engine.stats, tenant, sessions=sessions, tenants=tenants))

    @router.get("/v1/cache/misses", responses=describe_answer(MissList), response_class=Response)
    async def misses(tenant: NamedTenant, session: str | None = None, limit: Limit = 50) -> Response:
        """The latest explained misses: rule, place, what it cost and what to do about it."""
        found = seen.misses.latest(limit, tenant, session)
        return json_answer(misses_of(seen, found, counters=tenant is None))

    @router.get("/v1/cache/tree", responses=describe_answer(TreeTop), response_class=Response)
    async def tree(
        tenant: NamedTenant, limit: Annotated[int, Query(ge=1, le=MOST_NODES, description="nodes, at most")] = 200
    ) -> Response:
        """The top of the radix tree: tokens, users, and when each branch was used last."""
        view = await parts.engine.describe_cache(limit)
        nodes = view.nodes if tenant is None else ()
        return json_answer(
            TreeTop(
                tree_blocks=view.tree_blocks,
                pinned_blocks=view.pinned_blocks,
                block_tokens=parts.engine.info.block_size,
                nodes=nodes,
            )
        )

    @router.get("/v1/cache/tiers", responses=describe_answer(Tiers), response_class=Response)
    async def tiers() -> Response:
        """The tiers: how full, how fast, and from where on a load pays."""
        view = await parts.engine.describe_cache(0)
        stats = parts.engine.stats
        states = [device_state(stats, view.block_bytes)]
        states += [tier_state(counters, view.break_even_tokens) for counters in stats.tiers]
        return json_answer(Tiers(tiers=states, prefill_tokens_per_s=stats.prefill_tokens_per_s))

    return router
