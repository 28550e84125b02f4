"""Who is asking. Tenants never share KV and never see each other's sessions."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Depends, Header, Request

from ...sessions.errors import RequestError
from .authentication import identity_of

TENANT_HEADER = "x-sessile-tenant"
DEFAULT_TENANT = ""  # as over gRPC, so that both name the same sessions and share KV
_VALID = re.compile(r"[!-~]{1,200}")


def tenant_of(
    request: Request,
    x_sessile_tenant: Annotated[str | None, Header(description="The tenant; the default one if left out.")] = None,
) -> str:
    """The request's tenant: its API key's, or the one that it names where it may.

    Raises:
        RequestError: a name that is none.
        PermissionDenied: another tenant than the key's.
    """
    if x_sessile_tenant is None:
        return identity_of(request).tenant_for(DEFAULT_TENANT)
    if not _VALID.fullmatch(x_sessile_tenant):
        raise RequestError(
            "the tenant's name is not usable",
            field=TENANT_HEADER,
            remedy="send 1 to 200 visible ASCII characters",
        )
    return identity_of(request).tenant_for(x_sessile_tenant)


Tenant = Annotated[str, Depends(tenant_of)]  # of a route's arguments
