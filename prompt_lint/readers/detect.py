"""Tells the format of an input from its content, and reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter, itemgetter
from typing import IO, Any, Generic, TypeVar

import msgspec

from ..errors import LintConfigError, UnusableInput
from ..request import Json, Request
from . import agents, case_file, har, observability, otel, requests, server_logs
from .records import Errors, Record, Source, decoded, json_document, json_lines, text_lines

Looks = Callable[[Any], bool]
ReadRecords = Callable[[str, Iterator[Record]], Iterator[Request]]
ReadLines = Callable[[str, Iterator[tuple[int, str]]], Iterator[Request]]
_Read = TypeVar("_Read")


_MOST_SKIPPED = 50
_STAMPED = re.compile(rb"\[\d{4}-\d\d-\d\d[ T]")  # a log line, not a JSON list


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A format of JSON records."""

    name: str
    looks: Looks
    read: ReadRecords
    own_records: bool = False  # a record says all of its request, so that one may be missing


@dataclass(frozen=True, slots=True)
class TextFormat:
    """A format of text lines."""

    name: str
    looks: Callable[[str], bool]
    read: ReadLines


JSON_FORMATS: tuple[JsonFormat, ...] = (
    JsonFormat("har", har.looks_like_har, har.read_har),
    JsonFormat("otlp", otel.looks_like_otlp, otel.read_otlp),
    JsonFormat("genai-events", otel.looks_like_genai_event, otel.read_genai_events),
    JsonFormat("case", case_file.looks_like_case, case_file.read_case),
    JsonFormat("bedrock", observability.looks_like_bedrock, observability.read_bedrock, own_records=True),
    JsonFormat("claude-code", agents.looks_like_claude_code, agents.read_claude_code),
    JsonFormat("codex", agents.looks_like_codex, agents.read_codex),
    JsonFormat("langsmith", observability.looks_like_langsmith, observability.read_langsmith, own_records=True),
    JsonFormat("litellm", observability.looks_like_litellm, observability.read_litellm, own_records=True),
    JsonFormat("langfuse", observability.looks_like_langfuse, observability.read_langfuse, own_records=True),
    JsonFormat("helicone", observability.looks_like_helicone, observability.read_helicone, own_records=True),
    JsonFormat("sglang-requests", server_logs.looks_like_sglang_json, server_logs.read_sglang_json),
    JsonFormat("batch", requests.looks_like_batch, requests.read_batch, own_records=True),
    JsonFormat("requests", requests.looks_like_request, requests.read_requests, own_records=True),
    JsonFormat("responses", requests.looks_like_answer, requests.read_answers, own_records=True),
)
TEXT_FORMATS: tuple[TextFormat, ...] = (
    TextFormat("vllm-log", server_logs.looks_like_vllm, server_logs.read_vllm),
    TextFormat("sglang-log", server_logs.looks_like_sglang, server_logs.read_sglang),
    TextFormat("llama-server-log", server_logs.looks_like_llama, server_logs.read_llama),
)
FORMAT_NAMES = (*(f.name for f in JSON_FORMATS), *(f.name for f in TEXT_FORMATS))


@dataclass
class TraceInput:
    """A recognised input: its format, its requests, and the template and vocabulary that came with it."""

    format: str
    requests: Iterator[Request]
    extras: Json = field(default_factory=dict)
    errors: Errors = field(default_factory=Errors)


def open_trace(name: str, stream: IO[bytes], input_format: str | None = None) -> TraceInput:
    """Recognise an input and start reading it.

    Raises: UnusableInput when it is empty or of no known format; LintConfigError for an unknown format name.
    """
    if input_format is not None and input_format not in FORMAT_NAMES:
        raise LintConfigError(f"unknown input format {input_format!r}; known: {', '.join(FORMAT_NAMES)}")
    source = Source(name, stream)
    head = source.peek()
    if not head.strip():
        raise UnusableInput(name, "the input is empty")
    _refuse_binary(name, head)
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if start[:1] == b"{" or (start[:1] == b"[" and not _STAMPED.match(start)):
        return _open_json(source, input_format)
    return _open_text(source, input_format)


def _refuse_binary(name: str, head: bytes) -> None:
    if head[:1] == b"\x80":
        raise UnusableInput(name, "a Python pickle is never read; convert it with the tool that wrote it")
    if head[:8].split(b":")[0].isdigit() and b":" in head[:10] and b"version" in head[:4096]:
        raise UnusableInput(name, "a mitmproxy flow file; convert it: mitmdump -nr FILE --set hardump=OUT.har")
    if head[:2] == b"\x1f\x8b":
        raise UnusableInput(name, "compressed; unpack it first")
    if b"\x00" in head[:4096]:
        raise UnusableInput(name, "binary data, no known format")


def _open_json(source: Source, input_format: str | None) -> TraceInput:
    records = _records(source)
    first = next(records, None)
    if first is None:
        raise next(source.errors.told(), UnusableInput(source.name, "the input holds no record"))
    known = next((f for f in JSON_FORMATS if f.name == input_format), None)
    if input_format and known is None:
        raise UnusableInput(source.name, f"JSON was found where {input_format} was expected", first.line)
    skipped: list[Record] = []
    chosen = known or _known(first)
    while chosen is None and len(skipped) < _MOST_SKIPPED:  # a log may begin with lines of another kind
        skipped.append(first)
        first = next(records, None)
        chosen = None if first is None else _known(first)
        if first is None:
            break
    if chosen is None or first is None:
        raise _unknown(source.name, skipped[0])
    for record in skipped:
        source.errors.add(_unknown(source.name, record))
    extras = _extras(chosen, first)
    requests = _requests(source, chosen, chain([first], records))
    return TraceInput(chosen.name, requests, extras, source.errors)


def _records(source: Source) -> Iterator[Record]:
    """One record a line where the first line is a whole object, else one document (a list gives its items)."""
    first, _, _ = source.head.lstrip(b"\xef\xbb\xbf \t\r\n").partition(b"\n")
    stripped = first.strip()
    is_list = stripped[:1] == b"["
    if len(stripped) > 1 and not is_list and (_is_json(stripped) or not _may_continue(stripped, source.head)):
        yield from json_lines(source)
        return
    document = json_document(source)
    if isinstance(document.value, list):
        yield from (Record(1, item) for item in document.value)
    else:
        yield document


def _is_json(line: bytes) -> bool:
    try:
        value = decoded(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(value, dict)


def _may_continue(first: bytes, head: bytes) -> bool:
    """True for a document laid out over lines; a long or broken first line is a record."""
    return len(first) < 200 and b"\n" in head.strip() and first[-1:] in b"{[,"


def _known(record: Record) -> JsonFormat | None:
    return next((known for known in JSON_FORMATS if known.looks(record.value)), None)


def _unknown(name: str, record: Record) -> UnusableInput:
    value = record.value
    keys = ", ".join(list(value)[:6]) if isinstance(value, dict) else type(value).__name__
    return UnusableInput(name, f"no known format (found: {keys})", record.line)


def _extras(chosen: JsonFormat, first: Record) -> Json:
    if chosen.name != "case":
        return {}
    return {k: first.value[k] for k in ("chat_template", "vocab", "bos_token_id") if k in first.value}


class _Following(Generic[_Read]):
    """Passes records or lines on and remembers the line of the latest."""

    def __init__(self, items: Iterator[_Read], line_of: Callable[[_Read], int]) -> None:
        self._items = items
        self._line_of = line_of
        self.line = 1

    def __iter__(self) -> Iterator[_Read]:
        for item in self._items:
            self.line = self._line_of(item)
            yield item


_MALFORMED = (
    AttributeError,
    TypeError,
    KeyError,
    IndexError,
    ValueError,
)  # what reading a field of another type raises


def _requests(source: Source, chosen: JsonFormat, records: Iterator[Record]) -> Iterator[Request]:
    """The requests of an input. One without a request is unusable.

    Where each record is a request of its own, one that cannot be read is noted and stepped over.
    """
    following = _Following(records, attrgetter("line"))
    found = chosen.read(source.name, iter(following))
    count = 0
    while True:
        try:
            request = _next_request(source.name, chosen, found, following)
        except UnusableInput as error:
            if not chosen.own_records:
                raise
            source.errors.add(error)
            found = chosen.read(source.name, iter(following))
            continue
        if request is None:
            break
        count += 1
        yield request
    if count == 0 and not source.errors.first:
        raise UnusableInput(source.name, f"no request in this {chosen.name} input")


def _logged(source: Source, chosen: TextFormat) -> Iterator[Request]:
    """The requests of a log."""
    following = _Following(text_lines(source), itemgetter(0))
    found = chosen.read(source.name, iter(following))
    while (request := _next_request(source.name, chosen, found, following)) is not None:
        yield request


def _next_request(
    name: str, chosen: JsonFormat | TextFormat, found: Iterator[Request], following: _Following[Any]
) -> Request | None:
    """The next request. Raises: UnusableInput, with the line, for a field of the wrong type or nested too deeply."""
    try:
        request = next(found, None)
        if request is not None:
            _check_fields(request)
    except _MALFORMED as error:
        reason = f"a field of this {chosen.name} record has another type"
        raise UnusableInput(name, reason, following.line) from error
    except RecursionError as error:
        reason = f"a field of this {chosen.name} record is nested too deeply"
        raise UnusableInput(name, reason, following.line) from error
    return request


def _check_fields(request: Request) -> None:
    """Raises: TypeError for a field that is not of its type."""
    usage = request.usage
    counts = (usage.prompt_tokens, usage.cached_tokens, usage.written_tokens, usage.output_tokens) if usage else ()
    numbers = (request.ttft_ms, request.latency_ms, request.timestamp)
    texts = (request.session, request.provider, request.purpose, request.response_text, request.replica)
    wrong = (
        any(n is not None and (isinstance(n, bool) or not isinstance(n, int)) for n in counts)
        or any(n is not None and not isinstance(n, int | float) for n in numbers)
        or any(t is not None and not isinstance(t, str) for t in texts)
    )
    if wrong:
        raise TypeError("a field of a request is not of its type")


def _open_text(source: Source, input_format: str | None) -> TraceInput:
    head = source.head.decode("utf-8", "replace")
    known = next((f for f in TEXT_FORMATS if f.name == input_format), None)
    if input_format and known is None:
        raise UnusableInput(source.name, f"text was found where {input_format} was expected", 1)
    chosen = known or next((f for f in TEXT_FORMATS if f.looks(head)), None)
    if chosen is None:
        raise UnusableInput(source.name, "no known format", 1)
    return TraceInput(chosen.name, _logged(source, chosen))
