"""A break: a request that could have reused more of an earlier one than it does."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, islice

from .divergence import Divergence, section_at
from .profiles import CacheProfile
from .prompt import Leaf, Prompt, Section, Unit
from .request import ApiShape
from .text_change import TextChange


class Scope(enum.Enum):
    """Whether a break lies inside one lineage or between lineages that could share text."""

    LINEAGE = "session"
    FLEET = "cross-session"


class Layer(enum.Enum):
    """The first layer of the prompt in which two requests differ."""

    PARAMETERS = "parameters"
    BODY = "body"
    RENDERED = "rendered"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Break:
    """Two requests and the first place where the later one leaves the earlier one's prompt."""

    previous: Prompt
    current: Prompt
    place: Divergence
    scope: Scope
    profile: CacheProfile
    layer: Layer = Layer.BODY

    @cached_property
    def section(self) -> Section:
        """The section of the earlier prompt in which the place lies."""
        return section_at(self.previous, self.place.unit)

    @cached_property
    def was_unit(self) -> Unit | None:
        """The earlier prompt's unit at the place."""
        return _at(self.previous, self.place.unit)

    @cached_property
    def now_unit(self) -> Unit | None:
        """The later prompt's unit at the place."""
        return _at(self.current, self.place.unit)

    @cached_property
    def text(self) -> TextChange | None:
        """The change of the text at the place, when both versions have one there."""
        was, now = self.place.was, self.place.now
        if was is None or now is None or self.place.path != self.place.now_path:
            return None
        return TextChange(was.text, now.text, self.place.char)

    @cached_property
    def was_tail(self) -> list[Unit]:
        """The earlier prompt's units from the place on."""
        return self.previous.units[self.place.unit :]

    @cached_property
    def now_tail(self) -> list[Unit]:
        """The later prompt's units from the place on."""
        return self.current.units[self.place.unit :]

    @property
    def lost_chars(self) -> int:
        """Characters of the later prompt that would have been reused had the earlier one been kept."""
        return max(0, min(self.previous.total_chars, self.current.total_chars) - self.place.common_chars)

    @cached_property
    def recoverable_chars(self) -> int:
        """Characters after the place that both prompts hold: what undoing the change would bring back."""
        was = {unit.digest for unit in self.was_tail[1:]}
        shared = sum(unit.size for unit in self.now_tail[1:] if unit.digest in was)
        return shared + self.shared_in_unit

    @cached_property
    def shared_in_unit(self) -> int:
        """Characters behind the change that both versions of the differing unit hold."""
        if self.text is None:
            return 0
        return self.text.shared_behind + sum(len(leaf.text) for leaf in self._later_leaves)

    @property
    def _later_leaves(self) -> list[Leaf]:
        """The unit's texts behind the one that differs that both versions hold at the same place."""
        if self.was_unit is None or self.now_unit is None or self.current.request.shape is ApiShape.TEXT:
            return []
        now = {leaf.path: leaf for leaf in self.now_unit.leaves()}
        behind = dropwhile(lambda leaf: leaf.path != self.place.path, self.was_unit.leaves())
        return [leaf for leaf in islice(behind, 1, None) if now.get(leaf.path) == leaf]

    @cached_property
    def cached_chars(self) -> int:
        """How far the earlier request was cached: its whole prompt, or its last marker where markers rule."""
        if not self.profile.explicit:
            return self.previous.total_chars
        marks = self.previous.marker_positions
        return self.previous.ends[marks[-1][0]] if marks else 0

    @cached_property
    def marked_reuse(self) -> int:
        """The last marked position of the earlier prompt before the place."""
        ends = [self.previous.ends[i] for i, _ in self.previous.marker_positions]
        return max((end for end in ends if end <= self.place.common_chars), default=0)

    @cached_property
    def lost_tokens(self) -> int:
        """Prompt tokens computed again because of this break (estimated from characters)."""
        if self.profile.explicit:
            return self.current.measure(self.marked_reuse, min(self.cached_chars, self.current.total_chars))
        return self.current.measure(self.place.common_chars, self.place.common_chars + self.lost_chars)

    @property
    def costs_nothing(self) -> bool:
        """True when the place lies behind everything that was cached."""
        return self.profile.explicit and self.place.common_chars >= self.cached_chars


def scope_between(previous: Prompt, current: Prompt) -> Scope:
    """Two requests without session ids whose conversation does not grow are items of a batch, not turns."""
    if current.request.session is not None or previous.request.session is not None:
        return Scope.LINEAGE
    was, now = previous.conversation, current.conversation
    same = len(was) == len(now) and all(a.digest == b.digest for a, b in zip(was, now, strict=True))
    return Scope.FLEET if same and len(now) == 1 else Scope.LINEAGE


def _at(prompt: Prompt, unit: int) -> Unit | None:
    return prompt.units[unit] if unit < len(prompt.units) else None
