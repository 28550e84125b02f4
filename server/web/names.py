"""Which names mean the served model."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import UnknownModel


@dataclass(frozen=True, slots=True)
class ServedName:
    """The model's name in the API, and the further names under which clients may ask for it.

    A client that names no model, or the empty name, means the served one.
    """

    name: str
    aliases: frozenset[str] = frozenset()

    def check(self, asked: str | None) -> None:
        """Raise UnknownModel for the name of another model."""
        if asked and asked != self.name and asked not in self.aliases:
            raise UnknownModel(asked, self.name, self.aliases)
