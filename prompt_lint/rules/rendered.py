"""PL109 and PL701 to PL703: the messages only grow, the rendered prompt does not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..divergence import common_length
from ..findings import Severity
from ..grammars import times
from ..severity import Recurrence
from .base import Verdict


@dataclass(frozen=True, slots=True)
class RenderedPair:
    """Two renderings. `was` ends with the generation prompt and, where known, the generated text."""

    was: str
    now: str
    generation_start: int  # where the generation prompt starts in `was`
    response_start: int  # where the generated text starts in `was`
    was_without_tools: str | None = None  # both without tools and generation prompt; None when no tools were sent
    now_without_tools: str | None = None

    @property
    def char(self) -> int:
        """The first character that differs."""
        return common_length(self.was, self.now)

    @property
    def lost(self) -> str:
        """What would have been reused had the earlier rendering been kept."""
        return self.now[self.char : min(len(self.was), len(self.now))]


class TemplateClock:
    """The template itself prints the time or the date."""

    code: ClassVar[str] = "PL109"

    def judge(self, pair: RenderedPair) -> Verdict | None:
        stamp = times.timestamps_at(pair.was, pair.now, pair.char)
        found = stamp or times.dates_at(pair.was, pair.now, pair.char)
        if not found:
            return None
        recurrence = Recurrence.EACH_REQUEST if stamp else Recurrence.NOW_AND_THEN
        return Verdict(
            self.code, "the chat template prints a clock value", recurrence, was=found[0].text, now=found[1].text
        )


class PositionDependentTools:
    """The template prints tools next to the newest user turn."""

    code: ClassVar[str] = "PL703"

    def judge(self, pair: RenderedPair) -> Verdict | None:
        was, now = pair.was_without_tools, pair.now_without_tools
        if was is None or now is None or not now.startswith(was):
            return None
        return Verdict(self.code, "the template prints the tools at another place when a turn is added")


class GenerationPromptMismatch:
    """The generation prompt ends with text that history does not repeat."""

    code: ClassVar[str] = "PL702"

    def judge(self, pair: RenderedPair) -> Verdict | None:
        if pair.generation_start < pair.char < pair.response_start:
            message = "the generation prompt ends with text that the template does not print in history"
            return Verdict(self.code, message, cap=Severity.WARNING, needs_loss=False)
        return None


class TemplateRewritesHistory:
    """An old turn is printed differently from how it was first sent or generated."""

    code: ClassVar[str] = "PL701"

    def judge(self, pair: RenderedPair) -> Verdict | None:
        if pair.char < len(pair.was.rstrip()):
            message = "the template prints an old turn differently"
            return Verdict(self.code, message, cap=Severity.WARNING, needs_loss=False)
        return None


RENDERED_RULES = (TemplateClock(), PositionDependentTools(), GenerationPromptMismatch(), TemplateRewritesHistory())
