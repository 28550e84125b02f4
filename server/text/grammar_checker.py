"""Whether a client's grammar can be used, found out before its turn is started.

Grammars are compiled in a child process, which is started by the first of them and ended when one takes too long. No
grammar can stop the server: see ``grammar_check_worker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

import blake3
import msgspec

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar
from .grammar_config import GrammarConfig
from .grammar_frames import CheckSetup, Verdict, frame, read_frame
from .grammar_vocabulary import GrammarVocabulary
from .tokenizer import Tokenizer

_REMEMBERED = 1024
_PATIENCE = 20.0  # wall-clock seconds for each CPU second, on a machine that is busy with other things
_START_SECONDS = 120.0
_REMEDY = "docs/constrained-output.md has what is supported"


class GrammarChecker:
    """Checks grammars for one tokenizer. One asyncio loop owns it; a thread of its own talks to the child."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._config = config
        self._compiler = _CompilerProcess(tokenizer, config)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessile-grammars")
        self._verdicts: OrderedDict[bytes, str] = OrderedDict()  # error by digest; empty: good

    async def check(self, grammar: Grammar, vocab_size: int, field: str = "grammar") -> None:
        """Return if ``grammar`` can be used with a model of ``vocab_size`` logits.

        Raises:
            RequestError: it cannot, or it is too large or takes too long; names the schema's keyword and its place.
        """
        if len(grammar.text) > self._config.max_bytes:
            error = f"it has more than {self._config.max_bytes} bytes (--grammar-max-bytes)"
        else:
            error = await self._error_of(grammar, vocab_size)
        if error:
            raise RequestError(f"{field} cannot be used: {error}", field=field, remedy=_REMEDY)

    def close(self) -> None:
        """End the child and the thread; checks that wait fail."""
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._compiler.close()

    async def _error_of(self, grammar: Grammar, vocab_size: int) -> str:
        digest = blake3.blake3(msgspec.msgpack.encode(grammar)).digest()
        error = self._verdicts.get(digest)
        if error is None:
            loop = asyncio.get_running_loop()
            error = await loop.run_in_executor(self._thread, self._compiler.error_of, grammar, vocab_size)
        self._verdicts[digest] = error
        self._verdicts.move_to_end(digest)
        if len(self._verdicts) > _REMEMBERED:
            self._verdicts.popitem(last=False)
        return error


class _CompilerProcess:
    """The child, from the side of the thread that waits for it."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._child: subprocess.Popen[bytes] | None = None
        self._setup: bytes | None = None

    def error_of(self, grammar: Grammar, vocab_size: int) -> str:
        """What is wrong with ``grammar``, empty for nothing. Waits for the child."""
        child = self._started(vocab_size)
        verdict = _exchange(child, frame(grammar), self._config.compile_seconds * _PATIENCE)
        if verdict is None:
            self.close()
            return f"compiling it takes more than {self._config.compile_seconds} CPU seconds, or too much memory"
        return verdict.error

    def close(self) -> None:
        """End the child; the next grammar would start another."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):  # what was not sent yet
                    if stream is not None:
                        stream.close()

    def _started(self, vocab_size: int) -> subprocess.Popen[bytes]:
        if self._child is not None:
            return self._child
        if self._setup is None:
            self._setup = frame(CheckSetup(GrammarVocabulary.of(self._tokenizer, vocab_size), self._config))
        self._child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, "-m", f"{__package__}.grammar_check_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        if _exchange(self._child, self._setup, _START_SECONDS) is None:
            self.close()
            raise RuntimeError("the process that compiles grammars does not start")
        return self._child


def _exchange(child: subprocess.Popen[bytes], request: bytes, seconds: float) -> Verdict | None:
    """The child's answer; None if it ended, or had to be ended since it did not answer in time."""
    assert child.stdin is not None and child.stdout is not None
    watch = threading.Timer(seconds, child.kill)
    watch.start()
    try:
        child.stdin.write(request)
        child.stdin.flush()
        answer = read_frame(child.stdout)
    except (OSError, ValueError):  # ended, or closed by another thread
        answer = None
    finally:
        watch.cancel()
    return None if answer is None else msgspec.msgpack.decode(answer, type=Verdict)
