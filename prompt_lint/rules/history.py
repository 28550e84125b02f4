"""PL306 and PL401 to PL409: history that is not only appended to."""

from __future__ import annotations

import re
from itertools import takewhile
from typing import ClassVar

from ..breaks import Break, Scope
from ..grammars import words
from ..prompt import Prompt, Section, Unit, without_markers
from ..severity import Recurrence
from .base import Verdict
from .examples import steps_back

_TOOL_ROLES = ("tool", "function", "function_call_output", "custom_tool_call_output", "tool_result")
_LARGE_BLOCK = 1000


def _digests(units: list[Unit]) -> list[int]:
    return [unit.digest for unit in units]


class DuplicatedMessage:
    """A message that already stands in the prefix is inserted again."""

    code: ClassVar[str] = "PL408"

    def judge(self, brk: Break) -> Verdict | None:
        now, was = brk.now_unit, brk.was_unit
        if now is None or was is None or now.section is Section.TOOLS or now.size < 16 or brk.scope is Scope.FLEET:
            return None
        k = brk.place.unit
        if now.digest in _digests(brk.previous.units[:k]) and self._rest_follows(brk):
            return Verdict(self.code, "a message that already stands in the prompt is inserted again", path=now.path)
        inserted = brk.text.inserted if brk.text else None
        if inserted and len(inserted.strip()) >= 40 and brk.text and inserted.strip() in brk.text.was:
            return Verdict(self.code, "text that already stands in the prompt is inserted again", now=inserted)
        return None

    @staticmethod
    def _rest_follows(brk: Break) -> bool:
        """After the inserted messages the earlier prompt goes on."""
        assert brk.was_unit is not None
        return brk.was_unit.digest in _digests(brk.now_tail[1:6])


class HoistedSystemMessage:
    """System text grows at its end: a message from the middle of the chat was moved to the top."""

    code: ClassVar[str] = "PL409"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.scope is Scope.FLEET:
            return None
        if brk.text and brk.section is Section.SYSTEM and brk.text.only_appends:
            return Verdict(
                self.code,
                "a later system message is appended to the system text",
                now=brk.text.now[brk.text.position :],
            )
        now, was = brk.now_unit, brk.was_unit
        if now is None or was is None or now.section is not Section.SYSTEM or was.digest == now.digest:
            return None
        moved = was.section is not Section.SYSTEM or was.digest in _digests(brk.now_tail[1:])
        if moved:
            return Verdict(self.code, "a system message is moved to the top", path=now.path)
        return self._merged(brk)

    def _merged(self, brk: Break) -> Verdict | None:
        """The text of an earlier system message now stands in the leading one."""
        if brk.text is None or not brk.text.inserted:
            return None
        inserted = brk.text.inserted.strip()
        earlier = [u.text.strip() for u in brk.previous.conversation if u.role in ("system", "developer")]
        if any(text and (text in inserted or inserted in text) for text in earlier):
            return Verdict(self.code, "a system message from the chat is moved into the system text", now=inserted)
        return None


class HeadTruncation:
    """The oldest turns are dropped each time that new ones arrive."""

    code: ClassVar[str] = "PL402"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.section is not Section.MESSAGES or brk.scope is Scope.FLEET or steps_back(brk) > 1:
            return None
        dropped = self.dropped(brk.previous, brk.current, brk.place.unit)
        if dropped is None:
            return self._text(brk)
        added = len(brk.current.units) - (len(brk.previous.units) - dropped)
        if dropped > added + 1:
            return None
        return Verdict(self.code, f"the oldest {dropped} messages were dropped while new ones arrived")

    @staticmethod
    def dropped(previous: Prompt, current: Prompt, k: int) -> int | None:
        """How many messages fell out at the head of the conversation; None when it was something else."""
        head = len(previous.units) - len(previous.conversation)
        if k - head > 2:
            return None
        was, now = _digests(previous.units[k:]), _digests(current.units[k:])
        for d in range(1, len(was)):
            run = sum(1 for _ in takewhile(lambda p: p[0] == p[1], zip(was[d:], now, strict=False)))
            rest = len(was) - d
            if (run >= 2 and run >= rest - 1) or (run == 1 and rest <= 1 < len(was)):
                return d
        return None

    def _text(self, brk: Break) -> Verdict | None:
        """The same in a plain text prompt: what followed the cut now stands at the place of the cut."""
        if brk.text is None or brk.was_unit is None or brk.was_unit.role != "text":
            return None
        sample = brk.text.now[brk.text.position : brk.text.position + 200]
        found = brk.text.was.find(sample, brk.text.position + 1) if len(sample) == 200 else -1
        if found > 0 and len(brk.text.was) - found > 400:
            return Verdict(self.code, f"{found - brk.text.position} characters of the oldest turns were dropped")
        return None


_REASONING_TYPES = ("thinking", "redacted_thinking", "reasoning", "reasoning_content", "reasoningContent")
_REASONING_KEYS = {
    "reasoning_content",
    "reasoning",
    "thinking",
    "reasoning_details",
    "thought_signature",
    "thoughtSignature",
    "signature",
    "encrypted_content",
}
_THINK = re.compile(
    r"<(think|thinking|thought|reasoning|scratchpad)>.*?</\1>\s*|<\|channel\|>analysis.*?<\|end\|>", re.DOTALL
)


class ReasoningDropped:
    """Reasoning is missing when its turn is replayed."""

    code: ClassVar[str] = "PL404"

    def judge(self, brk: Break) -> Verdict | None:
        was, now = brk.was_unit, brk.now_unit
        if was is None or now is None or brk.section is not Section.MESSAGES or brk.scope is Scope.FLEET:
            return None
        message = "reasoning of an earlier turn is missing when it is replayed"
        if was.role == "reasoning":
            rest = [u.digest for u in brk.was_tail if u.role != "reasoning"]
            return Verdict(self.code, message) if rest and rest[0] == now.digest else None
        if _has_reasoning(was.value) and _stripped(was.value) == _stripped(now.value) and not self._more_now(brk):
            return Verdict(self.code, message)
        return None

    @staticmethod
    def _more_now(brk: Break) -> bool:
        assert brk.was_unit is not None
        assert brk.now_unit is not None
        return brk.now_unit.size > brk.was_unit.size


def _has_reasoning(value: object) -> bool:
    if isinstance(value, dict):
        if (
            value.get("type") in _REASONING_TYPES
            or value.get("thought") is True
            or any(value.get(k) for k in _REASONING_KEYS)
        ):
            return True
        return any(_has_reasoning(v) for v in value.values())
    if isinstance(value, list):
        return any(_has_reasoning(v) for v in value)
    return isinstance(value, str) and bool(_THINK.search(value))


def _stripped(value: object) -> object:
    """A message without its reasoning; one text part and a plain string count alike."""
    if isinstance(value, dict):
        return {k: _stripped(v) for k, v in without_markers(value).items() if k not in _REASONING_KEYS}
    if isinstance(value, list):
        parts = [
            p
            for p in value
            if not (
                isinstance(p, dict)
                and (p.get("type") in _REASONING_TYPES or p.get("thought") is True or "reasoningContent" in p)
            )
        ]
        if len(parts) == 1 and isinstance(parts[0], dict) and parts[0].keys() == {"type", "text"}:
            return _stripped(parts[0]["text"])
        return [_stripped(p) for p in parts]
    return _THINK.sub("", value).strip() if isinstance(value, str) else value


class MovingInsert:
    """A block rides along with the newest turn and so stands at another place each time."""

    code: ClassVar[str] = "PL306"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.section is not Section.MESSAGES or brk.scope is Scope.FLEET or brk.was_unit is None:
            return None
        message = "a block moves down with the newest turn"
        if self._whole_message(brk):
            return Verdict(self.code, message)
        block = removed_block(brk)
        if block and len(block) >= _LARGE_BLOCK and any(block.strip() in u.text for u in brk.now_tail[1:]):
            return Verdict(self.code, message, was=block)
        return None

    @staticmethod
    def _whole_message(brk: Break) -> bool:
        """The message at the place stands later now, with what followed it before it."""
        was, now = _digests(brk.was_tail), _digests(brk.now_tail)
        if was[0] not in now[1:] or brk.was_tail[0].size < 16:
            return False
        moved = now.index(was[0], 1)
        if _digests(brk.previous.units).count(was[0]) > 1 or moved == 0:
            return False
        from_end_was, from_end_now = len(was) - 1, len(now) - 1 - moved
        return abs(from_end_was - from_end_now) <= 1 and (from_end_was == 0 or was[1] == now[0])


def removed_block(brk: Break) -> str | None:
    """The text that a message lost (a part of it, or a piece of its text), when nothing else changed in it."""
    was, now = brk.was_unit, brk.now_unit
    if was is None or now is None or was.role != now.role:
        return None
    before, after = _parts(was), _parts(now)
    gone = [p for p in before if p not in after]
    if gone and after and [p for p in before if p in after] == after:
        return "\n".join(gone)
    whole, rest = "\n".join(before).strip(), "\n".join(after).strip()
    if rest and rest != whole and rest in whole:
        return whole.replace(rest, "", 1).strip() or None
    if brk.text and brk.text.removed:
        return brk.text.removed
    return _difference(whole, rest)


def _difference(whole: str, rest: str) -> str | None:
    """What `whole` has around and between the pieces of `rest`, when little of `rest` is its own."""
    if len(rest) < 8 or len(rest) >= len(whole):
        return None
    tail = next((n for n in range(min(len(whole), len(rest)), 7, -1) if whole.endswith(rest[-n:])), 0)
    return whole[: len(whole) - tail].strip() if tail >= 0.8 * len(rest) else None


def _parts(unit: Unit) -> list[str]:
    value = unit.value
    content = value.get("content", value.get("parts")) if isinstance(value, dict) else value
    if isinstance(content, list):
        return [_part_text(p) for p in content]
    return [content] if isinstance(content, str) else []


def _part_text(part: object) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return part if isinstance(part, str) else repr(without_markers(part))


class EphemeralInjection:
    """A reminder or attachment of the newest turn is gone when the turn is replayed."""

    code: ClassVar[str] = "PL405"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.section is not Section.MESSAGES or brk.scope is Scope.FLEET or brk.was_unit is None:
            return None
        message = "a block of the newest turn is gone when the turn is replayed"
        if self._whole_message(brk):
            return Verdict(self.code, message)
        if brk.was_unit.role in _TOOL_ROLES or not self._newest(brk):
            return None
        block = removed_block(brk)
        if block and len(block.strip()) >= 4:
            return Verdict(self.code, message, was=block)
        return self._replaced(brk, message)

    def _replaced(self, brk: Break, message: str) -> Verdict | None:
        """A reminder of one turn is another text, or stands in another form, in the replayed turn."""
        if brk.text is None or not words.REMINDER.search(
            brk.text.was[max(0, brk.text.position - 200) : brk.text.position + 60]
        ):
            return None
        return Verdict(self.code, message) if len(brk.text.now) < len(brk.text.was) else None

    @staticmethod
    def _newest(brk: Break) -> bool:
        """The message was the newest that a person wrote."""
        assert brk.was_unit is not None
        later = [u for u in brk.was_tail[1:] if u.role == "user" and not is_tool_result(u)]
        return brk.was_unit.role in ("user", "human") and not later

    @staticmethod
    def _whole_message(brk: Break) -> bool:
        """A message near the end is missing while what followed it goes on."""
        assert brk.was_unit is not None
        rest = _digests(brk.was_tail[1:])
        injected = brk.was_unit.role in ("system", "developer") or bool(words.REMINDER.search(brk.was_unit.text[:200]))
        return injected and bool(rest) and _digests(brk.now_tail)[: len(rest)] == rest


def is_tool_result(unit: Unit) -> bool:
    """A user message that only carries tool results."""
    content = unit.value.get("content", unit.value.get("parts")) if isinstance(unit.value, dict) else None
    if not isinstance(content, list):
        return unit.role in _TOOL_ROLES
    return any(
        isinstance(p, dict) and (p.get("type") == "tool_result" or "toolResult" in p or "functionResponse" in p)
        for p in content
    )


class ToolResultCleared:
    """An old tool output is replaced by a placeholder or cut short."""

    code: ClassVar[str] = "PL403"

    def judge(self, brk: Break) -> Verdict | None:
        was, now = brk.was_unit, brk.now_unit
        if was is None or now is None or brk.scope is Scope.FLEET or brk.section is not Section.MESSAGES:
            return None
        if not is_tool_result(was) or was.role != now.role or now.size >= was.size:
            return None
        if was.size - now.size < 16 and brk.text and not words.PLACEHOLDER.search(brk.text.now):
            return None
        return Verdict(self.code, "an old tool result is cleared or cut short", was=was.text, now=now.text)


class EditedHistory:
    """An old message was changed in place and what follows it was kept."""

    code: ClassVar[str] = "PL401"

    def judge(self, brk: Break) -> Verdict | None:
        if brk.scope is Scope.FLEET or brk.section is Section.TOOLS:
            return None
        later = {u.digest for u in brk.was_tail[1:]} & set(_digests(brk.now_tail[1:]))
        kept = bool(later) or (brk.text is not None and brk.recoverable_chars >= 200)
        is_text = brk.was_unit is not None and brk.was_unit.role == "text"
        if kept and (is_text or len(brk.current.units) >= brk.place.unit + 2):
            return Verdict(self.code, "an earlier message was edited", Recurrence.EACH_REQUEST)
        return None
