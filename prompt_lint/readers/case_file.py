"""A recorded case: one JSON document with consecutive requests and what belongs to them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..errors import UnusableInput
from ..request import Json, Request
from .records import Record
from .requests import request_from
from .times import seconds


def looks_like_case(value: Any) -> bool:
    """A document with a list of requests."""
    return isinstance(value, dict) and isinstance(value.get("requests"), list) and "log" not in value


def read_case(file: str, records: Iterator[Record]) -> Iterator[Request]:
    """The requests of a document, each with its session, time, purpose and response."""
    for record in records:
        if not looks_like_case(record.value):
            raise UnusableInput(file, "requests are missing", record.line)
        value: Json = record.value
        for i, body in enumerate(value["requests"]):
            request = request_from(file, record.line, body)
            request.session = _item(value, "sessions", i)
            request.timestamp = seconds(_item(value, "timestamps", i))
            request.purpose = _item(value, "purposes", i)
            request.provider = value.get("provider")
            response = _item(value, "responses", i)
            request.response_text = response if isinstance(response, str) else None
            request.response_token_ids = body.get("response_token_ids")
            yield request


def _item(value: Json, key: str, i: int) -> Any:
    items = value.get(key) or []
    return items[i] if i < len(items) else None


def vocabulary_decoder(vocabulary: dict[str, str]) -> Callable[[list[int]], str | None]:
    """Spells token ids from a table; None when one is not in it."""

    def decode(ids: list[int]) -> str | None:
        pieces = [vocabulary.get(str(i)) for i in ids]
        return None if None in pieces else "".join(p for p in pieces if p)

    return decode
