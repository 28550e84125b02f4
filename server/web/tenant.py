"""Who is asking. Tenants never share KV and never see each other's sessions."""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from ...sessions.errors import RequestError

TENANT_HEADER = "x-sessile-tenant"
DEFAULT_TENANT = ""  # as over gRPC, so that both name the same sessions and share KV
_VALID = re.compile(r"[!-~]{1,200}")


def tenant_of(
    x_sessile_tenant: Annotated[str | None, Header(description="The tenant; the default one if left out.")] = None,
) -> str:
    """The request's tenant. Raises RequestError for a name that is none."""
    if x_sessile_tenant is None:
        return DEFAULT_TENANT
    if not _VALID.fullmatch(x_sessile_tenant):
        raise RequestError(
            "the tenant's name is not usable",
            field=TENANT_HEADER,
            remedy="send 1 to 200 visible ASCII characters",
        )
    return x_sessile_tenant
