"""PL601 to PL606: explicit cache markers. Each rule looks at a request and the one that it continues."""

from __future__ import annotations

from typing import ClassVar

from ..findings import Severity
from ..profiles import CacheProfile, minimum_of
from ..prompt import CHARS_PER_TOKEN, Prompt, Section, Unit
from ..request import ApiShape
from .base import Verdict

_NO_MARKER_MESSAGE = "the prompt is large and stable, and nothing in it is marked for caching"


class NoCacheBreakpoint:
    """A large stable prefix without a marker."""

    code: ClassVar[str] = "PL601"

    def judge(
        self, previous: Prompt, current: Prompt, profile: CacheProfile, common_chars: int
    ) -> tuple[Verdict, int] | None:
        """(verdict, tokens that a marker would have saved)."""
        if previous.marked or current.marked or _was_cached(current):
            return None
        tokens = common_chars // CHARS_PER_TOKEN
        if tokens < max(minimum_of(profile, current.request.model), 1):
            return None
        return Verdict(self.code, _NO_MARKER_MESSAGE), tokens


class BelowMinimum:
    """A marked prefix that is too short to be cached."""

    code: ClassVar[str] = "PL602"

    def judge(self, prompt: Prompt, profile: CacheProfile) -> Verdict | None:
        """Fires when every marked prefix is clearly under the least size."""
        marks = prompt.marker_positions
        if not marks or _was_cached(prompt) or _wrote(prompt) or prompt.automatic_marker:
            return None
        minimum = minimum_of(profile, prompt.request.model)
        longest = prompt.ends[marks[-1][0]] // CHARS_PER_TOKEN
        if longest >= 0.85 * minimum:
            return None
        message = f"the marked prefix has about {longest} tokens; less than {minimum} are never cached"
        return Verdict(self.code, message, cap=Severity.WARNING, floor=Severity.WARNING, needs_loss=False)


class LookbackExceeded:
    """The newest marker is too far behind the last cached position."""

    code: ClassVar[str] = "PL603"

    def judge(self, previous: Prompt, current: Prompt, profile: CacheProfile, common_units: int) -> Verdict | None:
        """Counts blocks between the earlier request's last marker and the nearest later marker."""
        old = [i for i, _ in previous.marker_positions if i < common_units]
        new = [i for i, _ in current.marker_positions]
        if profile.look_back is None or not old or not new or old[-1] < 0 or old[-1] in new:
            return None
        after = [i for i in new if i > old[-1]]
        if not after:
            return None
        distance = sum(_blocks(unit) for unit in current.units[old[-1] + 1 : after[0] + 1])
        if distance <= profile.look_back:
            return None
        limit = f"the provider looks back {profile.look_back}"
        message = f"the marker is {distance} blocks past the last cached position; {limit}"
        return Verdict(self.code, message, cap=Severity.WARNING, floor=Severity.WARNING, needs_loss=False)


def _blocks(unit: Unit) -> int:
    content = unit.value.get("content") if isinstance(unit.value, dict) else None
    return max(1, len(content)) if isinstance(content, list) else 1


class FrozenBreakpoint:
    """The last marker stays at an early message while the conversation grows."""

    code: ClassVar[str] = "PL604"

    def judge(self, previous: Prompt, current: Prompt, common_units: int) -> tuple[Verdict, int] | None:
        """(verdict, tokens of the repeated tail behind the marker)."""
        old, new = previous.marker_positions, current.marker_positions
        if not old or not new or old[-1][0] != new[-1][0] or current.automatic_marker:
            return None
        mark = new[-1][0]
        if (
            common_units < len(previous.units)
            or len(current.units) <= len(previous.units)
            or mark >= len(previous.units) - 1
        ):
            return None
        tail = (previous.total_chars - previous.ends[mark]) // CHARS_PER_TOKEN
        behind = len(current.units) - 1 - mark
        return Verdict(
            self.code, f"the last marker stays at {current.units[mark].path} while {behind} messages follow it"
        ), tail


class BreakpointMoved:
    """Markers stand where nothing was cached."""

    code: ClassVar[str] = "PL605"

    def judge(self, previous: Prompt, current: Prompt, common_units: int) -> tuple[Verdict, int] | None:
        """(verdict, tokens cached by the earlier request that no marker of this one can find)."""
        old = [i for i, _ in previous.marker_positions]
        new = [i for i, _ in current.marker_positions]
        if not old or not new or old[-1] >= common_units or any(n >= o for n in new for o in old[-1:]):
            return None
        best = max((o for o in old for n in new if o <= n), default=-1)
        lost = previous.ends[old[-1]] - (previous.ends[best] if best >= 0 else 0)
        if best >= 0 and set(new) <= set(old):
            return None
        places = f"{_paths(previous, old)}, then {_paths(current, new)}"
        return Verdict(self.code, f"markers moved before what was cached: {places}"), lost // CHARS_PER_TOKEN


def _paths(prompt: Prompt, indices: list[int]) -> str:
    return ", ".join(prompt.units[i].path for i in indices)


class MarkerLimit:
    """Too many markers, times to live in the wrong order, an empty marked block."""

    code: ClassVar[str] = "PL606"

    def judge(self, prompt: Prompt, profile: CacheProfile) -> Verdict | None:
        """Checks one request against the provider's table."""
        problem = self._problem(prompt, profile)
        return Verdict(self.code, problem, floor=Severity.ERROR, needs_loss=False) if problem else None

    @staticmethod
    def _problem(prompt: Prompt, profile: CacheProfile) -> str | None:
        if prompt.request.shape not in (ApiShape.ANTHROPIC, ApiShape.CONVERSE):
            return None
        controls = _controls(prompt.request.body)
        if profile.max_markers and len(controls) > profile.max_markers:
            return f"{len(controls)} cache markers, the provider takes {profile.max_markers}"
        lives = [ttl for ttl, _ in controls]
        if "1h" in lives and "5m" in lives[: len(lives) - lives[::-1].index("1h") - 1]:
            return "a marker of 1 h stands after one of 5 minutes"
        if any(empty for _, empty in controls):
            return "a marker stands on an empty block"
        return None


def _controls(body: dict[str, object]) -> list[tuple[str, bool]]:
    """(time to live, whether its block is empty) of each marker in prompt order."""
    found: list[tuple[str, bool]] = []
    for key in ("tools", "system", "messages", "toolConfig"):
        _collect(body.get(key), found)
    return found


def _collect(value: object, found: list[tuple[str, bool]]) -> None:
    if isinstance(value, dict):
        control = value.get("cache_control") or value.get("cachePoint")
        for item in value.values():
            _collect(item, found)
        if isinstance(control, dict):
            found.append(
                (str(control.get("ttl", "5m")), value.get("type") == "text" and not str(value.get("text", "")).strip())
            )
    elif isinstance(value, list):
        for item in value:
            _collect(item, found)


def _was_cached(prompt: Prompt) -> bool:
    usage = prompt.request.usage
    return bool(usage and usage.cached_tokens)


def _wrote(prompt: Prompt) -> bool:
    usage = prompt.request.usage
    return bool(usage and usage.written_tokens)


def static_units(prompt: Prompt) -> int:
    """How many leading units are tools or system text."""
    return sum(1 for unit in prompt.units if unit.section is not Section.MESSAGES)
