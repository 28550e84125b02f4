"""Text on its way to the tokenizer, with what the template wrote kept apart from what others wrote."""

from __future__ import annotations

import enum

import msgspec


class Origin(enum.Enum):
    """Who wrote a run of text, and so whether a special token's name in it means that token."""

    TEMPLATE = "template"
    LITERAL = "literal"  # a message or a tool contains a special token's name: it stays text


class TextPart(msgspec.Struct, frozen=True):
    text: str
    origin: Origin


class PromptText(msgspec.Struct, frozen=True):
    """A rendered prompt, or the part of one that follows tokens which are already in the log.

    ``already_logged`` is the text of the log's last token where the first part follows it. It is encoded in front of
    the parts and its token dropped again, since some tokenizers split text by what precedes it.
    """

    parts: tuple[TextPart, ...]
    already_logged: str = ""

    @property
    def text(self) -> str:
        """The parts as one string, without ``already_logged``."""
        return "".join(part.text for part in self.parts)
