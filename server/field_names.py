"""What clients call the fields that errors name: each API has words of its own for some of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import TypeVar

from ..sessions.errors import SessileError

Event = TypeVar("Event")


def flat_tools(parameters: str) -> dict[str, str]:
    """The names of an API whose tools have no ``function`` within them; what that takes, it calls ``parameters``."""
    return {
        r"tools\[(\d+)\]\.function\.parameters": rf"tools[\1].{parameters}",
        r"tools\[(\d+)\]\.function\.(\w+)": r"tools[\1].\2",
    }


class FieldNames:
    """From the session manager's names of fields, as regular expressions, to what one client called them."""

    def __init__(self, sent_as: Mapping[str, str]) -> None:
        self._sent_as = tuple((re.compile(name), sent) for name, sent in sent_as.items())

    @contextlib.contextmanager
    def told(self) -> Iterator[None]:
        """Errors that are raised inside name their field as the client did."""
        try:
            yield
        except SessileError as error:
            self._rename(error)
            raise

    async def told_of(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """``events``, whose errors name their field as the client did."""
        with self.told():
            async with aclosing(events):
                async for event in events:
                    yield event

    def _rename(self, error: SessileError) -> None:
        field = error.field or ""
        for name, sent in self._sent_as:
            if found := name.fullmatch(field):
                error.field = found.expand(sent)
                if not field.isalpha() or error.message.startswith(field):  # else it may be a word like any other
                    error.message = error.message.replace(field, error.field, 1)
                    error.remedy = None if error.remedy is None else error.remedy.replace(field, error.field)
                return
