"""What a model thinks before it answers, parted from the answer."""

from __future__ import annotations

from dataclasses import dataclass

from .tool_calls.deltas import ReasoningDelta
from .tool_calls.feed import held_back


@dataclass(frozen=True, slots=True)
class ReasoningTags:
    """What stands around reasoning."""

    open: str
    close: str


THINK = ReasoningTags("<think>", "</think>")  # Qwen, DeepSeek and most others
BRACKETS = ReasoningTags("[THINK]", "[/THINK]")  # Mistral


class ReasoningSplitter:
    """Splits one answer. ``opened``: the prompt ended with the opening tag, so the answer begins inside.

    Reasoning stands at the beginning of an answer; a tag further on is text. White space between a tag and what is
    inside or behind it belongs to neither.
    """

    def __init__(self, tags: ReasoningTags, *, opened: bool) -> None:
        self._tags = tags
        self._pending = ""
        self._inside = opened
        self._decided = opened  # whether the answer begins with reasoning is known
        self._skip_space = opened

    @property
    def inside(self) -> bool:
        """Whether the text so far ends in reasoning."""
        return self._inside

    def push(self, text: str) -> list[str | ReasoningDelta]:
        """What became certain with this text."""
        self._pending += text
        out: list[str | ReasoningDelta] = []
        if not self._decided and not self._decide():
            return out
        if self._inside:
            self._push_inside(out)
        if not self._inside:
            self._tell(out, len(self._pending))
        return out

    def finish(self) -> list[str | ReasoningDelta]:
        """What was held back; the text ends here."""
        self._decided = True
        out: list[str | ReasoningDelta] = []
        self._tell(out, len(self._pending))
        return out

    def _decide(self) -> bool:
        begun = self._pending.lstrip()
        if begun.startswith(self._tags.open):
            self._pending = begun[len(self._tags.open) :]
            self._inside = self._skip_space = self._decided = True
        else:
            self._decided = not self._tags.open.startswith(begun)
        return self._decided

    def _push_inside(self, out: list[str | ReasoningDelta]) -> None:
        if self._skip_space:
            begun = self._pending.lstrip()
            if self._tags.open.startswith(begun):  # also when it is empty: the tag may come twice
                return
            self._pending = begun.removeprefix(self._tags.open)
        at = self._pending.find(self._tags.close)
        if at < 0:
            held = held_back(self._pending, (self._tags.close,))
            self._tell(out, len(self._pending[: len(self._pending) - held].rstrip()))
            return
        before = self._pending[:at].rstrip()
        behind = self._pending[at + len(self._tags.close) :]
        self._pending = before
        self._tell(out, len(before))
        self._pending = behind
        self._inside, self._skip_space = False, True

    def _tell(self, out: list[str | ReasoningDelta], length: int) -> None:
        text, self._pending = self._pending[:length], self._pending[length:]
        if self._skip_space:
            text = text.lstrip()
            self._skip_space = not text
        if text:
            out.append(ReasoningDelta(text=text) if self._inside else text)


def opens_reasoning(prompt_end: str, tags: ReasoningTags, said: str = "") -> bool:
    """Whether reasoning is open behind the end of a prompt, as templates leave it that make a model think, and what the
    answer said before it was cut off."""
    begun = prompt_end.rstrip().endswith(tags.open) or said.lstrip().startswith(tags.open)
    return begun and tags.close not in said
