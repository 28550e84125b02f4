"""Go and Rust by patterns: what a function that builds prompts writes, line by line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..findings import Severity
from . import ir
from .verdicts import CodeHit

_PROMPT_NAME = re.compile(r"prompt|system|instruction|preamble|(?:^|_)messages?$|Messages?$|context", re.IGNORECASE)
_TOOLS_NAME = re.compile(r"tools?|functions?|schemas?|specs?|definitions?", re.IGNORECASE)
_SYSTEM_SINK = re.compile(
    r"[\"']system[\"']|Role::System|RoleSystem|SystemMessage|System:|\.system\(|system_prompt|"
    r"systemPrompt|SystemPrompt|Instructions:|\.instructions\("
)
_IGNORED = re.compile(
    r"^\s*(?://|\*|use |import )|\b(?:log|slog|tracing|logger|println|eprintln|print|dbg|debug|info|"
    r"warn|trace|error)(?:!|\.\w+)?\s*\(|fmt\.Print|Header(?:\(\)|s)?\.?(?:Set|Add|insert)|\.header\("
)


_IN_PLACE = re.compile(r"(\w+)\.(?:partial_)?shuffle\(|\b(\w+)\[\w+\],\s*\w+\[\w+\]\s*=")
_PASSES_ON = re.compile(r"extend|append|\breturn\b|collect|to_vec|Messages:|messages:")


@dataclass(frozen=True, slots=True)
class Language:
    """The patterns of one language."""

    function: re.Pattern[str]
    builds: re.Pattern[str]
    assign: re.Pattern[str]
    clock: re.Pattern[str]
    date_format: re.Pattern[str]
    random_id: re.Pattern[str]
    sampled: re.Pattern[str]
    listing: re.Pattern[str]
    environment: re.Pattern[str]
    window: re.Pattern[str]
    loop: re.Pattern[str]
    maps: re.Pattern[str]
    gathers: re.Pattern[str]
    sorts: re.Pattern[str]


RUST = Language(
    function=re.compile(r"^\s*(?:pub(?:\([\w:]+\))?\s+)?(?:async\s+)?fn\s+(\w+)", re.MULTILINE),
    builds=re.compile(r"format!|push_str|write!|writeln!|\.push\(|concat|\.join\(|content"),
    assign=re.compile(r"^\s*let\s+(?:mut\s+)?(\w+)[^=]*="),
    clock=re.compile(r"\b(?:Local|Utc|SystemTime|OffsetDateTime|Instant|Zoned|Timestamp)::now\w*\(|now_utc\(|now_local\("),
    date_format=re.compile(r"format\(\s*\"(?:(?!%-?[HIMSpTRrXcs+f])[^\"])*\"\s*\)|date_naive\(\)|\.date\(\)"),
    random_id=re.compile(r"Uuid::(?:new_v\d|now_v\d)|Ulid::new|nanoid!|rand::random|thread_rng\(\)\.gen|\{:p\}|process::id\(\)"),
    sampled=re.compile(r"\.(?:shuffle|choose|choose_multiple|partial_shuffle)\(|SliceRandom"),
    listing=re.compile(r"\bread_dir\(|WalkDir::new|glob\("),
    environment=re.compile(r"Command::new\(\s*\"git\""),
    window=re.compile(r"(?:history|messages|msgs|turns|conversation)\w*(?:\[\s*[\w.]*len\(\)\s*-|\.iter\(\)\.rev\(\)\.take\(|\.iter\(\)\.skip\([^)]*len\(\)|\[[^\]]*saturating_sub\([^\]]*\.\.\]|\.split_off\([^)]*len\(\))"),
    loop=re.compile(r"^\s*for\s+(.+?)\s+in\s+&?(?:mut\s+)?([\w.]+?)(?:\.(?:iter|values|keys|into_iter|drain|into_values|into_keys)\([^)]*\))*\s*\{"),
    maps=re.compile(r"\b(\w+)\s*:\s*&?(?:mut\s+)?(?:std::collections::)?Hash(?:Map|Set)\b|\blet\s+(?:mut\s+)?(\w+)[^=;]*=\s*(?:std::collections::)?Hash(?:Map|Set)\b"),
    gathers=re.compile(r"\.push(?:_str)?\(|extend|write|\+="),
    sorts=re.compile(r"\.sort\w*\(|BTree|\.sorted\w*\(|IndexMap"),
)  # fmt: skip

GO = Language(
    function=re.compile(r"^func\s+(?:\([^)]*\)\s*)?(\w+)", re.MULTILINE),
    builds=re.compile(r"Sprintf|WriteString|Fprintf|strings\.Join|\+\s*\"|\"\s*\+|\+=|append\(|Execute\(|Content|string\("),
    assign=re.compile(r"^\s*(?:var\s+)?(\w+)(?:,\s*\w+)?\s*:?=\s*"),
    clock=re.compile(r"\btime\.(?:Now|Since|Until)\("),
    date_format=re.compile(r"Format\(\s*(?:\"(?:(?!15|03|3:|04|05|PM|\.000)[^\"])*\"|time\.DateOnly)\s*\)|\.Date\(\)|\.YearDay\(\)|\.Weekday\(\)"),
    random_id=re.compile(r"\buuid\.(?:New\w*|Must\w*)\(|\bulid\.(?:Make|New|MustNew)\(|\bxid\.New|\brand\.(?:Int\w*|Read|Text|Uint\w*)\(|ksuid\.New|shortuuid|nanoid|%p\b|os\.Getpid"),
    sampled=re.compile(r"\brand\.(?:Shuffle|Perm)\("),
    listing=re.compile(r"$^"),
    environment=re.compile(r"exec\.Command(?:Context)?\([^)]*\"git\""),
    window=re.compile(r"(?:history|messages|msgs|turns|conversation|Messages|History)\w*\[\s*(?:len\([\w.]+\)\s*-|max\(0,\s*len\()[^\]]*:\s*\]"),
    loop=re.compile(r"^\s*for\s+([\w, ]+?)\s*:?=\s*range\s+([\w.]+)\s*\{"),
    maps=re.compile(r"\b(\w+)\s+map\[|\b(\w+)\s*:?=\s*(?:make\(\s*)?map\["),
    gathers=re.compile(r"append\(|WriteString|\+=|Fprintf|\[[^\]]*\]\s*="),
    sorts=re.compile(r"\bsort\.|slices\.Sort|maps\.Keys.*Sorted|slices\.Sorted"),
)  # fmt: skip
_MAP_NAME = re.compile(
    r"(?:^by[A-Z_]\w*|\w+By[A-Z]\w*|(?:Map|Set|Index|Lookup|_map|_set|_index|_by_\w+|registry)$|"
    r"^(?:map|set|index|m|registry)$)"
)


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class _Origin:
    rule: str
    severity: Severity
    what: str
    line: _Line


def analyse_lines(text: str, language: Language) -> list[CodeHit]:
    """Hits of a Go or Rust file."""
    maps = {name for groups in language.maps.findall(text) for name in groups if name}
    hits: dict[tuple[str, int], CodeHit] = {}
    for name, lines in _functions(text, language):
        for hit in _function_hits(name, lines, language, maps):
            hits.setdefault((hit.rule, hit.node.line), hit)
    return sorted(hits.values(), key=lambda hit: (hit.node.line, hit.rule))


def _functions(text: str, language: Language) -> Iterator[tuple[str, list[_Line]]]:
    """(name, lines) of each function, its body found by counting braces."""
    for match in language.function.finditer(text):
        start = text.find("{", match.end())
        if start < 0:
            continue
        depth, end = 0, start
        for end in range(start, len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                break
        first = text.count("\n", 0, match.start()) + 1
        lines, position = [], match.start()
        for i, line in enumerate(text[match.start() : end + 1].split("\n")):
            lines.append(_Line(first + i, position, line))
            position += len(line) + 1
        yield match.group(1), lines


def _function_hits(name: str, lines: list[_Line], language: Language, maps: set[str]) -> Iterator[CodeHit]:
    body = "\n".join(line.text for line in lines)
    is_prompt = bool(_PROMPT_NAME.search(name) or _SYSTEM_SINK.search(body))
    is_tools = bool(_TOOLS_NAME.search(name))
    if not is_prompt and not is_tools:
        return
    tainted: dict[str, _Origin] = {}
    for line in lines:
        if _IGNORED.search(line.text):
            continue
        yield from _line_hits(line, language, tainted, is_prompt)
    if not language.sorts.search(body):
        yield from _loop_hits(lines, language, maps)
        if is_prompt:
            yield from _listing_hits(lines, language)


def _line_hits(line: _Line, language: Language, tainted: dict[str, _Origin], is_prompt: bool) -> Iterator[CodeHit]:
    found = _origin(line, language)
    builds = language.builds.search(line.text)
    assigned = language.assign.match(line.text)
    in_place = _IN_PLACE.search(line.text)
    if found is None:
        used = next((name for name in tainted if re.search(rf"\b{re.escape(name)}\b", line.text)), None)
        found = _narrowed(tainted.get(used or ""), line, language)
        if found is None or (not builds and not assigned):
            return
    window = found.rule == "PL402" and (builds or _PASSES_ON.search(line.text))
    if is_prompt and (window or (builds and _writes_text(line.text, language))):
        site = found.line if window else line
        yield CodeHit(found.rule, found.severity, f"{found.what} reaches a prompt", _node(site))
    elif found.rule == "PL108" and in_place:
        tainted[in_place.group(1) or in_place.group(2)] = found
    elif assigned:
        tainted[assigned.group(1)] = found


def _narrowed(found: _Origin | None, line: _Line, language: Language) -> _Origin | None:
    """A clock value that is printed as a day is a date."""
    if found and found.rule == "PL101" and language.date_format.search(line.text):
        return _Origin("PL102", Severity.WARNING, "a date", found.line)
    return found


def _writes_text(line: str, language: Language) -> bool:
    return bool(re.search(r"\"", line)) or bool(re.search(r"push_str|WriteString", line))


def _origin(line: _Line, language: Language) -> _Origin | None:
    if language.clock.search(line.text):
        if language.date_format.search(line.text):
            return _Origin("PL102", Severity.WARNING, "a date", line)
        return _Origin("PL101", Severity.ERROR, "a clock value", line)
    others = (
        (language.random_id, "PL103", "a random id"),
        (language.sampled, "PL108", "a random sample"),
        (language.environment, "PL106", "state of the working copy"),
        (language.window, "PL402", "a window of the last messages"),
    )
    for pattern, rule, what in others:
        if pattern.search(line.text):
            return _Origin(rule, Severity.ERROR, what, line)
    return None


def _loop_hits(lines: list[_Line], language: Language, maps: set[str]) -> Iterator[CodeHit]:
    """A map is iterated and what comes out is gathered in its order."""
    for i, line in enumerate(lines):
        match = language.loop.match(line.text)
        if not match:
            continue
        last = match.group(2).rsplit(".", 1)[-1]
        body = "\n".join(following.text for following in lines[i + 1 : i + 12])
        if (last in maps or _MAP_NAME.search(last)) and language.gathers.search(body.split("\n}")[0]):
            yield CodeHit("PL203", Severity.ERROR, "a map is iterated in its own order", _node(line))


def _listing_hits(lines: list[_Line], language: Language) -> Iterator[CodeHit]:
    for line in lines:
        if language.listing.search(line.text):
            yield CodeHit(
                "PL205", Severity.WARNING, "a directory listing in file-system order reaches a prompt", _node(line)
            )


def _node(line: _Line) -> ir.Node:
    return ir.Node(line.number, line.start, line.start + len(line.text))
