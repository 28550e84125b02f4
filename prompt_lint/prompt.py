"""A request as the cache sees it: units in prompt order (tools, system, messages) and their leaves."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from .request import ApiShape, Json, Request

CHARS_PER_TOKEN = 4
_TEXT_CHUNK = 512
_MOST_COUNTED = 400_000
_LONG_UNIT = 2000
_SINGLE_TOKENS = 64
_TOKEN_RUN = 64
_ENCODER = msgspec.json.Encoder()


class Section(enum.Enum):
    """The three parts of a prompt, in the order in which every provider renders them."""

    TOOLS = "tools"
    SYSTEM = "system"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One scalar of a body: its JSON path and its text."""

    path: str
    text: str


@dataclass(slots=True, eq=False)
class Unit:
    """One tool, system block or message. `digest` covers its bytes as sent, markers left out."""

    section: Section
    path: str
    role: str
    value: Any
    digest: int
    size: int  # characters of its leaves, about
    marker: str | None = None  # time to live of a cache marker inside this unit ("5m", "1h")

    def leaves(self) -> list[Leaf]:
        """The unit's scalars in the order in which they were sent."""
        return list(_leaves(self.value, self.path))

    @property
    def plain(self) -> str:
        """All scalars in one text."""
        return self.value if isinstance(self.value, str) else "".join(leaf.text for leaf in self.leaves())

    @property
    def text(self) -> str:
        """All human-readable text of the unit, parts joined by newlines."""
        return "\n".join(texts_of(self.value))


def _leaves(value: Any, path: str) -> Iterator[Leaf]:
    if isinstance(value, dict):
        if not value:
            yield Leaf(path, "")
        for key, item in value.items():
            if key not in _MARKER_KEYS:
                yield from _leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        if not value:
            yield Leaf(path, "")
        for i, item in enumerate(value):
            yield from _leaves(item, f"{path}[{i}]")
    elif isinstance(value, str):
        yield Leaf(path, value)
    else:
        yield Leaf(path, "null" if value is None else str(value))


_MARKER_KEYS = frozenset({"cache_control", "cachePoint"})


def without_markers(value: Any) -> Any:
    """The value without cache markers; shares what has none."""
    if isinstance(value, dict):
        return {k: without_markers(v) for k, v in value.items() if k not in _MARKER_KEYS}
    if isinstance(value, list):
        return [without_markers(v) for v in value if not (isinstance(v, dict) and v.keys() == {"cachePoint"})]
    return value


def texts_of(value: Any) -> list[str]:
    """The prose inside a message or block: content, text parts, tool results, descriptions."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in texts_of(item)]
    if isinstance(value, dict):
        return [text for key in _TEXT_KEYS if key in value for text in texts_of(value[key])]
    return []


_TEXT_KEYS = ("content", "text", "parts", "output", "thinking", "description", "function", "toolResult")


def marker_of(value: Any) -> str | None:
    """The time to live of the first cache marker inside a value, or None."""
    if isinstance(value, dict):
        control = value.get("cache_control") or value.get("cachePoint")
        if isinstance(control, dict):
            return str(control.get("ttl", "5m"))
        return next((m for v in value.values() if isinstance(v, (dict, list)) and (m := marker_of(v))), None)
    if isinstance(value, list):
        return next((m for v in reversed(value) if isinstance(v, (dict, list)) and (m := marker_of(v))), None)
    return None


def _pieces(text: str) -> Iterator[str]:
    """The text in pieces of a few lines. Where it is cut depends on the lines alone, so equal parts are cut alike."""
    start = position = 0
    for line in text.splitlines(keepends=True):
        position += len(line)
        if len(line) % 8 == 0:
            yield text[start:position]
            start = position
    if start < len(text):
        yield text[start:]


class TokenCounter:
    """Counts tokens with a tokenizer; each distinct unit once."""

    def __init__(self, count: Callable[[str], int]) -> None:
        self.count = count
        self._units: dict[int, int] = {}

    def of_unit(self, unit: Unit) -> int:
        """Tokens of a unit's scalars."""
        known = self._units.get(unit.digest)
        if known is None:
            text = unit.plain
            known = self.count(text) if len(text) < _LONG_UNIT else sum(map(self._of_piece, _pieces(text)))
            self._keep(unit.digest, known)
        return known

    def _of_piece(self, piece: str) -> int:
        """A long text that differs in a line from one that was seen is not counted all over."""
        key = hash(piece)
        known = self._units.get(key)
        if known is None:
            known = self.count(piece)
            self._keep(key, known)
        return known

    def _keep(self, key: int, tokens: int) -> None:
        if len(self._units) > _MOST_COUNTED:
            self._units.clear()
        self._units[key] = tokens

    def of_part(self, unit: Unit, start: int, end: int) -> int:
        """Tokens of the characters [start, end) of a unit: counted, or what the shorter rest leaves of the whole."""
        rest = start + unit.size - end
        if rest == 0:
            return self.of_unit(unit)
        text = unit.plain
        if rest >= end - start:
            return self.count(text[start:end])
        outside = sum(self.count(part) for part in (text[:start], text[end:]) if part)
        return max(0, self.of_unit(unit) - outside)


class Prompt:
    """A request split into units, with the chains by which lineages are found."""

    def __init__(self, request: Request, counter: TokenCounter | None = None) -> None:
        self.request = request
        self._counter = counter
        self.units: list[Unit] = list(_units(request))
        self.total_chars: int = sum(unit.size for unit in self.units)

    def of_body(self, body: Json) -> Prompt:
        """The prompt of the same request with another body, and without what an answer said of its usage."""
        of = self.request
        request = Request(body, of.shape, of.index, session=of.session, provider=of.provider)
        return Prompt(request, self._counter)

    @cached_property
    def marked(self) -> bool:
        """True when the body asks for caching by itself (top-level automatic caching) or by markers."""
        return self.automatic_marker is not None or any(unit.marker for unit in self.units)

    @cached_property
    def automatic_marker(self) -> str | None:
        """Anthropic's top-level `cache_control`: the provider places the marker on the last block."""
        control = self.request.body.get("cache_control")
        return str(control.get("ttl", "5m")) if isinstance(control, dict) else None

    @cached_property
    def marker_positions(self) -> list[tuple[int, str]]:
        """(index of the unit whose end is marked, time to live), in prompt order."""
        found = [(i, unit.marker) for i, unit in enumerate(self.units) if unit.marker]
        if self.automatic_marker and (not found or found[-1][0] != len(self.units) - 1):
            found.append((len(self.units) - 1, self.automatic_marker))
        return [(i, ttl) for i, ttl in found if ttl]

    @cached_property
    def ends(self) -> list[int]:
        """Character position of the end of each unit."""
        ends, position = [], 0
        for unit in self.units:
            position += unit.size
            ends.append(position)
        return ends

    @cached_property
    def conversation(self) -> list[Unit]:
        """The units that are neither tools nor leading system text."""
        return [unit for unit in self.units if unit.section is Section.MESSAGES]

    @cached_property
    def talk_digests(self) -> list[int]:
        """Digests of the conversation, in its order."""
        return [unit.digest for unit in self.conversation]

    @cached_property
    def head_digests(self) -> list[int]:
        """Digests of tools and leading system text, in their order."""
        return [unit.digest for unit in self.units if unit.section is not Section.MESSAGES]

    @cached_property
    def tokens(self) -> int:
        """Prompt tokens: measured where the request has usage, else estimated."""
        usage = self.request.usage
        if usage and usage.prompt_tokens and self.request.complete:
            return usage.prompt_tokens
        return self.estimated_tokens

    @property
    def estimated_tokens(self) -> int:
        """Prompt tokens estimated from characters."""
        if self.request.shape is ApiShape.TOKENS:
            return len(token_ids(self.request.body))
        if self._counter is not None:
            return max(1, sum(self._counter.of_unit(unit) for unit in self.units))
        return max(1, self.total_chars // CHARS_PER_TOKEN)

    def count(self, text: str) -> int:
        """Tokens of a text: counted where a tokenizer is given, else estimated."""
        return self._counter.count(text) if self._counter is not None else len(text) // CHARS_PER_TOKEN

    def measure(self, start: int, end: int) -> int:
        """Tokens of the characters [start, end) of the prompt: counted where a tokenizer is given, else estimated."""
        if end <= start:
            return 0
        if self._counter is None or self.request.shape is ApiShape.TOKENS:
            return (end - start) // CHARS_PER_TOKEN
        total, position = 0, 0
        for unit in self.units:
            first, last = max(0, start - position), min(unit.size, end - position)
            position += unit.size
            if last > first:
                total += self._counter.of_part(unit, first, last)
            if position >= end:
                break
        return total

    def all_leaves(self) -> list[Leaf]:
        """Every scalar of the prompt, in prompt order."""
        if self.request.shape is ApiShape.TEXT:
            path, text = text_prompt(self.request.body)
            return [Leaf(path, text)]
        return [leaf for unit in self.units for leaf in unit.leaves()]


def token_ids(body: Json) -> list[int]:
    """The prompt's token ids. Only for `ApiShape.TOKENS`."""
    ids = body.get("prompt_token_ids")
    return ids if isinstance(ids, list) else list(body["input_ids"])


def text_prompt(body: Json) -> tuple[str, str]:
    """(path, text) of a plain text prompt."""
    for key in ("prompt", "input", "text"):
        if isinstance(body.get(key), str):
            return key, body[key]
    return "prompt", ""


def _unit(section: Section, path: str, role: str, value: Any) -> Unit:
    encoded = _ENCODER.encode(value)
    marker = None
    if b'"cache_control"' in encoded or b'"cachePoint"' in encoded:
        marker = marker_of(value)
        encoded = _ENCODER.encode(without_markers(value))
    return Unit(section, path, role, value, hash(encoded), _size(value), marker)


def _size(value: Any) -> int:
    """Characters of all scalars; markers are not counted."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_size(v) for k, v in value.items() if k not in _MARKER_KEYS)
    if isinstance(value, list):
        return sum(_size(v) for v in value)
    return 4 if value is None else len(str(value))


def _units(request: Request) -> Iterator[Unit]:
    body = request.body
    match request.shape:
        case ApiShape.TEXT:
            yield from _text_units(*text_prompt(body))
        case ApiShape.TOKENS:
            yield from _token_units(body)
        case ApiShape.GEMINI:
            yield from _gemini_units(body)
        case ApiShape.CONVERSE:
            yield from _list_units(Section.TOOLS, "toolConfig.tools", (body.get("toolConfig") or {}).get("tools"))
            yield from _list_units(Section.SYSTEM, "system", body.get("system"))
            yield from _message_units("messages", body.get("messages"))
        case ApiShape.ANTHROPIC:
            yield from _list_units(Section.TOOLS, "tools", body.get("tools"))
            yield from _list_units(Section.SYSTEM, "system", body.get("system"))
            yield from _message_units("messages", body.get("messages"))
        case ApiShape.RESPONSES:
            yield from _list_units(Section.TOOLS, "tools", body.get("tools"))
            yield from _list_units(Section.SYSTEM, "instructions", body.get("instructions"))
            yield from _message_units("input", body.get("input"))
        case ApiShape.GENERATE:
            yield from _list_units(Section.SYSTEM, "system", body.get("system"))
            yield from _message_units("prompt", body.get("prompt"))
        case ApiShape.OPENAI_CHAT:
            yield from _list_units(Section.TOOLS, "tools", body.get("tools") or body.get("functions"))
            yield from _message_units("messages", body.get("messages"))


def _list_units(section: Section, path: str, value: Any) -> Iterator[Unit]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            if isinstance(item, dict) and item.keys() == {"cachePoint"}:
                continue
            unit = _unit(section, f"{path}[{i}]", section.value, item)
            following = value[i + 1] if i + 1 < len(value) else None
            if isinstance(following, dict) and following.keys() == {"cachePoint"}:
                unit.marker = unit.marker or marker_of(following)
            yield unit
    elif value is not None and value != "":
        yield _unit(section, path, section.value, value)


def _message_units(path: str, value: Any) -> Iterator[Unit]:
    if isinstance(value, str):
        yield _unit(Section.MESSAGES, path, "user", value)
        return
    leading = True
    for i, item in enumerate(value if isinstance(value, list) else []):
        role = str(item.get("role") or item.get("type") or "") if isinstance(item, dict) else "user"
        leading = leading and role in ("system", "developer")
        yield _unit(Section.SYSTEM if leading else Section.MESSAGES, f"{path}[{i}]", role, item)


def _gemini_units(body: Json) -> Iterator[Unit]:
    yield from _list_units(Section.TOOLS, "tools", body.get("tools"))
    key = "system_instruction" if "system_instruction" in body else "systemInstruction"
    instruction = body.get(key)
    if isinstance(instruction, dict):
        yield from _list_units(Section.SYSTEM, f"{key}.parts", instruction.get("parts"))
    elif instruction:
        yield _unit(Section.SYSTEM, key, "system", instruction)
    yield from _message_units("contents", body.get("contents"))


def _text_units(path: str, text: str) -> Iterator[Unit]:
    """Pieces of about a chunk, cut before a space, where tokenizers cut too."""
    start = 0
    while start < len(text):
        end = start + _TEXT_CHUNK
        if end < len(text):
            space = text.rfind(" ", start + _TEXT_CHUNK // 2, end)
            end = space if space > 0 else end
        piece = text[start:end]
        yield Unit(Section.MESSAGES, path, "text", piece, hash(piece), len(piece))
        start = end


def _token_units(body: Json) -> Iterator[Unit]:
    """The first tokens one by one, then runs. Where these are cut depends on the tokens alone, as in ``_pieces``."""
    ids = token_ids(body)
    path = "prompt_token_ids" if "prompt_token_ids" in body else "input_ids"
    for i, token in enumerate(ids[:_SINGLE_TOKENS]):
        yield _token_unit(f"{path}[{i}]", token, token if isinstance(token, int) else hash(str(token)))
    start = _SINGLE_TOKENS
    for i, token in enumerate(ids[_SINGLE_TOKENS:], _SINGLE_TOKENS + 1):
        is_border = isinstance(token, int) and token % _TOKEN_RUN == 0
        if is_border or i - start == 4 * _TOKEN_RUN or i == len(ids):
            run = " ".join(map(str, ids[start:i]))
            yield _token_unit(f"{path}[{start}]", run, hash(run))
            start = i


def _token_unit(path: str, value: Any, digest: int) -> Unit:
    return Unit(Section.MESSAGES, path, "token", value, digest, len(str(value)))
