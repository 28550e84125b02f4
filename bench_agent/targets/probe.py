"""Who a server is, asked over HTTP: its dialect, version and model."""

from __future__ import annotations

from typing import Any

import aiohttp
import msgspec

from ..errors import TargetError


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """What a server says of itself. None: it does not say."""

    dialect: str = "openai"
    version: str | None = None
    model: str | None = None
    dtype: str | None = None
    context_length: int | None = None


async def identify(url: str, headers: dict[str, str] | None = None) -> Identity:
    """Ask. A server that has none of the pages is one of which nothing is known. Raises TargetError when nobody
    answers, or it wants a key."""
    timeout = aiohttp.ClientTimeout(total=20)
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as http:
        models = await _models(http, url)
        card = _first_card(models)
        model = card.get("id") if isinstance(card.get("id"), str) else None
        if card.get("owned_by") == "sessile":
            health = await _json(http, f"{url}/health") or {}
            length = card.get("context_length")
            return Identity(
                dialect="sessile",
                version=_text(health.get("version")),
                model=model,
                dtype=_text(card.get("dtype")),
                context_length=length if isinstance(length, int) else None,
            )
        version = await _json(http, f"{url}/version")
        if card.get("owned_by") == "vllm" or (version and "version" in version):
            return Identity(dialect="vllm", version=_text((version or {}).get("version")), model=model)
        props = await _json(http, f"{url}/props")
        if props and "default_generation_settings" in props:
            return Identity(dialect="llama-server", version=_text(props.get("build_info")), model=model)
        if await _has_path(http, url, "/extras/tokenize"):
            return Identity(dialect="llama-cpp-python", model=model)
        return Identity(model=model)


async def _models(http: aiohttp.ClientSession, url: str) -> dict[str, Any]:
    """The list of models; empty when the server has none."""
    try:
        async with http.get(f"{url}/v1/models") as response:
            status, found = response.status, await response.read()
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        reason = str(error) or type(error).__name__
        raise TargetError(f"no server answers at {url}: {reason}", remedy="is it started, and ready?") from None
    if status in (401, 403):
        raise TargetError(f"{url} answered {status}: it wants a key", remedy="pass --header 'authorization=Bearer KEY'")
    return _object(found) or {} if status == 200 else {}


def _first_card(models: dict[str, Any]) -> dict[str, Any]:
    rows = models.get("data")
    return rows[0] if isinstance(rows, list) and rows and isinstance(rows[0], dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


async def _has_path(http: aiohttp.ClientSession, url: str, path: str) -> bool:
    described = await _json(http, f"{url}/openapi.json")
    return described is not None and path in (described.get("paths") or {})


async def _json(http: aiohttp.ClientSession, url: str) -> dict[str, Any] | None:
    try:
        async with http.get(url) as response:
            if response.status != 200:
                return None
            return _object(await response.read())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _object(raw: bytes) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
