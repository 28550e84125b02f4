"""A log of all turns, one JSON object a line, which ``prompt-lint check`` and ``bench-agent run`` read.

    {"timestamp", "session_id", "request": {"messages": […]}, "response": {"choices": […], "usage": {…}}, "ttft_ms", …}

Files are rotated by size and only the latest are kept; nobody else may read them. A thread writes; when it cannot keep
up, lines are dropped and counted. A disk that is full, or any other error of writing, turns the log off for good.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import logging
import os
import queue
import re
import secrets
import threading
from base64 import b32encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ...sessions.errors import ConfigError
from ..text.detokenizer import IncrementalDetokenizer
from ..text.tokenizer import Tokenizer
from .config import ObserveConfig
from .turn_record import TurnRecord

logger = logging.getLogger(__name__)

MAX_WAITING = 256
_PREFIX = "turns-"
_WORD = re.compile(r"\w+")
_PLAIN_KEYS = frozenset({"role", "type", "model", "name"})  # say nothing of what was said
Body = dict[str, Any]
Detokenise = Callable[[tuple[int, ...]], str]


class TraceLog:
    """Owns the folder, the thread and the file that is written. ``content``: "off", "hashed" or "on"."""

    def __init__(
        self, folder: Path, *, content: str, file_bytes: int, files: int, detokenise: Detokenise, model: str = ""
    ) -> None:
        """Open a new file in ``folder``, which is made if need be. Raises OSError when that cannot be done."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._file_bytes = file_bytes
        self._most_files = files
        self._content = content
        self._model = model
        self._detokenise = detokenise
        self._blot = Blotter(_secret_of(folder)) if content == "hashed" else None
        self._numbers = itertools.count(1 + max((_number(path) for path in self._files()), default=0))
        self._file: BinaryIO | None = self._open_next()
        self._waiting: queue.Queue[tuple[TurnRecord, Callable[[], Body] | None] | None] = queue.Queue(MAX_WAITING)
        self.num_written = 0
        self.num_dropped = 0
        self.failure = ""  # why it is off; empty while it writes
        self._thread = threading.Thread(target=self._run, name="sessile-trace-log", daemon=True)
        self._thread.start()

    def write(self, record: TurnRecord, content: Callable[[], Body] | None) -> None:
        """Log a turn when there is time. Never waits."""
        if self.failure:
            return
        try:
            self._waiting.put_nowait((record, content))
        except queue.Full:
            self.num_dropped += 1

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._waiting.put(None)
        self._thread.join()
        if self._file is not None:
            with contextlib.suppress(OSError):  # of a line that could not be written: that was told
                self._file.close()

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            if self.failure:
                continue
            try:
                self._write_line(msgspec.json.encode(self._line(*item)) + b"\n")
            except OSError as error:
                self.failure = error.strerror or type(error).__name__
                logger.error("the trace log is off: %s", self.failure)
            except Exception:
                self.num_dropped += 1
                logger.debug("a turn could not be logged", exc_info=True)

    def _write_line(self, line: bytes) -> None:
        assert self._file is not None
        if self._file.tell() and self._file.tell() + len(line) > self._file_bytes:
            self._file.close()
            self._file = self._open_next()
        self._file.write(line)
        self._file.flush()
        self.num_written += 1

    def _open_next(self) -> BinaryIO:
        path = self._folder / f"{_PREFIX}{next(self._numbers):08d}.jsonl"
        opened = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        for old in self._files()[: -self._most_files]:
            old.unlink(missing_ok=True)
        return opened

    def _files(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(f"{_PREFIX}*.jsonl") if _number(path))

    # -- one line -----------------------------------------------------------------------------------------------------

    def _line(self, record: TurnRecord, content: Callable[[], Body] | None) -> Body:
        usage = record.usage
        line: Body = {
            "timestamp": record.started_at,
            "session_id": record.conversation or record.turn.turn_id,
            "tenant": record.tenant,
            "outcome": record.outcome,
            "latency_ms": record.duration_s * 1000,
        }
        if record.ttft_s is not None:
            line["ttft_ms"] = record.ttft_s * 1000
        if record.miss is not None:
            line["miss"] = {"rule": record.miss.rule, "lost_tokens": record.miss.lost_tokens}
        said = {} if usage is None else {"usage": _usage(record)}
        if self._content == "off":
            return line | said
        answer = {"role": "assistant", "content": self._detokenise(record.output_token_ids)}
        body: Body = content() if content is not None else {"prompt_token_ids": list(record.turn.token_ids)}
        if self._model:
            body.setdefault("model", self._model)
        if self._blot is not None:
            body, answer = self._blot.value(body), self._blot.value(answer)
        return line | {"request": body, "response": {"choices": [{"message": answer}], **said}}


_DIGITS_TO_LETTERS = str.maketrans("234567", "uvwxyz")  # a word of digits would be taken for a number


class Blotter:
    """Replaces each word by as many letters of its keyed hash: what was equal stays equal, and nothing else is told."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def value(self, value: Any, key: str = "") -> Any:
        """A JSON value with all its texts blotted, except roles, types and names."""
        if isinstance(value, str):
            return value if key in _PLAIN_KEYS else self.text(value)
        if isinstance(value, dict):
            return {name: self.value(item, name) for name, item in value.items()}
        if isinstance(value, list):
            return [self.value(item, key) for item in value]
        return value

    def text(self, text: str) -> str:
        """Words blotted; what stands between them stays."""
        return _WORD.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        word = match.group()
        digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=20).digest()
        letters = b32encode(digest).decode().lower().translate(_DIGITS_TO_LETTERS)
        return (letters * (len(word) // len(letters) + 1))[: len(word)]


def _usage(record: TurnRecord) -> Body:
    usage = record.usage
    assert usage is not None
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.tokens_by_source.cached},
        "prompt_tokens_by_source": msgspec.to_builtins(usage.tokens_by_source),
        "reusable_tokens": usage.reusable_tokens,
    }


def _secret_of(folder: Path) -> bytes:
    """The key of the hashes: made once, so that equal words stay equal over restarts."""
    path = folder / "hash.key"
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_bytes()
    with os.fdopen(descriptor, "wb") as file:
        file.write(secrets.token_bytes(32))
    return path.read_bytes()


def _number(path: Path) -> int:
    digits = path.stem.removeprefix(_PREFIX)
    return int(digits) if digits.isdecimal() else 0


def open_trace_log(config: ObserveConfig, tokenizer: Tokenizer, model: str) -> TraceLog | None:
    """The log that the configuration asks for.

    Raises:
        ConfigError: its folder cannot be written.
    """
    if config.trace_log is None:
        return None

    def detokenise(token_ids: tuple[int, ...]) -> str:
        detokenizer = IncrementalDetokenizer(tokenizer)
        return detokenizer.push(list(token_ids)) + detokenizer.flush()

    try:
        return TraceLog(
            config.trace_log,
            content=config.trace_content,
            file_bytes=config.trace_file_bytes,
            files=config.trace_files,
            detokenise=detokenise,
            model=model,
        )
    except OSError as error:
        raise ConfigError(
            f"the trace log cannot be written to {config.trace_log}: {error.strerror}",
            field="observe.trace_log",
            remedy="name a folder that can be written",
        ) from error
