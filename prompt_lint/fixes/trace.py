"""What a trace would have reused had its repairable breaks not been there."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from ..divergence import first_divergence
from ..lineage import LineageIndex
from ..pairs import Judgement
from ..profiles import CacheProfile
from ..prompt import Prompt, Section
from ..request import ApiShape, Json
from ..reuse import estimated_reuse
from ..rules.catalogue import CATALOGUE
from ..text_change import TextChange

_MOST_ROUNDS = 6
_BY_UNIT = {"PL202", "PL206", "PL207", "PL208", "PL209", "PL210"}


@dataclass
class Repair:
    """Re-simulates a trace with each repairable break undone. Tokens are estimated as in the summary of the trace."""

    prompt_tokens: int = 0
    reused_before: int = 0
    reused_after: int = 0
    repaired: dict[str, int] = field(default_factory=dict)
    _index: LineageIndex = field(default_factory=LineageIndex)
    _twins: dict[int, Prompt] = field(default_factory=dict)

    @property
    def before(self) -> float:
        """Simulated hit rate of the trace as it is."""
        return self.reused_before / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def after(self) -> float:
        """Simulated hit rate with the repairs."""
        return self.reused_after / self.prompt_tokens if self.prompt_tokens else 0.0

    def note(
        self,
        prompt: Prompt,
        previous: Prompt | None,
        judged: Judgement | None,
        cached_chars: int,
        profile: CacheProfile,
    ) -> None:
        """Take one request in, repaired where its break can be."""
        twin = prompt
        if previous is not None and judged is not None:
            twin = self._repaired(prompt, self._twins.get(previous.request.index, previous), judged)
        self._twins[prompt.request.index] = twin
        match = self._index.find(twin)
        self.prompt_tokens += prompt.tokens
        self.reused_before += estimated_reuse(prompt, cached_chars, profile)
        self.reused_after += estimated_reuse(twin, match.cached_chars, profile)
        self._index.add(twin, match.parent)
        if len(self._twins) > 512:
            self._twins.pop(next(iter(self._twins)))

    def _repaired(self, prompt: Prompt, previous: Prompt, judged: Judgement) -> Prompt:
        rule = judged.verdict.rule
        if "trace" not in CATALOGUE[rule].autofix:
            return prompt
        body = copy.deepcopy(prompt.request.body)
        for _ in range(_MOST_ROUNDS):
            current = prompt.of_body(body)
            if not self._undo(previous, current, body, rule):
                break
            self.repaired[rule] = self.repaired.get(rule, 0) + 1
        return prompt.of_body(body)

    def _undo(self, previous: Prompt, current: Prompt, body: Json, rule: str) -> bool:
        place = first_divergence(previous, current)
        if place is None:
            return False
        if rule == "PL201":
            return _same_tool_order(previous, body)
        if place.unit >= len(previous.units) or place.unit >= len(current.units):
            return False
        was, now = previous.units[place.unit], current.units[place.unit]
        if rule in _BY_UNIT and was.section is now.section and was.role == now.role:
            return _put(body, now.path, copy.deepcopy(was.value))
        if place.was is None or place.now is None or place.path != place.now_path:
            return False
        if current.request.shape is ApiShape.TEXT or now.section is Section.TOOLS:
            return False
        change = TextChange(place.was.text, place.now.text, place.char)
        before, after = change.hunk
        text = place.now.text[: after.start] + before.text + place.now.text[after.end :]
        return _put(body, place.path, text)


def _same_tool_order(previous: Prompt, body: Json) -> bool:
    tools = previous.request.body.get("tools")
    if not isinstance(tools, list) or body.get("tools") == tools:
        return False
    body["tools"] = copy.deepcopy(tools)
    return True


def _put(body: Json, path: str, value: Any) -> bool:
    """Set the value at a JSON path like `messages[0].content`."""
    keys: list[str | int] = []
    for part in path.split("."):
        name, *indices = part.replace("]", "").split("[")
        keys += [name, *(int(i) for i in indices)]
    target: Any = body
    try:
        for key in keys[:-1]:
            target = target[key]
        if target[keys[-1]] == value:
            return False
        target[keys[-1]] = value
    except (KeyError, IndexError, TypeError):
        return False
    return True
