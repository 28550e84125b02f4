"""Whether a client's grammar can be used, found out before its turn is started.

Grammars are compiled in a child process, which is started by the first of them and ended when one takes too long. No
grammar can stop the server: see ``grammar_check_worker``.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import OrderedDict

import blake3
import msgspec

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar
from .grammar_check_worker import FRAME, CheckSetup, Verdict, frame
from .grammar_limits import GrammarConfig
from .grammar_vocabulary import GrammarVocabulary
from .tokenizer import Tokenizer

_REMEMBERED = 1024
_PATIENCE = 20.0  # wall-clock seconds for each CPU second, on a machine that is busy with other things
_START_SECONDS = 120.0


class GrammarChecker:
    """Checks grammars for one tokenizer. One asyncio loop owns it."""

    def __init__(self, tokenizer: Tokenizer, config: GrammarConfig) -> None:
        self._tokenizer = tokenizer
        self._config = config
        self._alone = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None
        self._setup: bytes | None = None
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

    async def aclose(self) -> None:
        """End the child. The next check would start another."""
        async with self._alone:
            await self._end_child()

    def kill(self) -> None:
        """End the child without waiting for it."""
        if self._child is not None and self._child.returncode is None:
            self._child.kill()

    async def _error_of(self, grammar: Grammar, vocab_size: int) -> str:
        digest = blake3.blake3(msgspec.msgpack.encode(grammar)).digest()
        async with self._alone:
            if digest not in self._verdicts:
                self._verdicts[digest] = await self._ask(grammar, vocab_size)
                if len(self._verdicts) > _REMEMBERED:
                    self._verdicts.popitem(last=False)
            self._verdicts.move_to_end(digest)
            return self._verdicts[digest]

    async def _ask(self, grammar: Grammar, vocab_size: int) -> str:
        """Have the child compile ``grammar``; it is ended if it does not answer, or if nobody waits any more."""
        answered = False
        try:
            child = await self._started(vocab_size)
            verdict = await _exchange(child, frame(grammar), self._config.compile_seconds * _PATIENCE)
            answered = verdict is not None
        finally:
            if not answered:
                await self._end_child()
        if verdict is None:
            return f"compiling it takes more than {self._config.compile_seconds} CPU seconds, or too much memory"
        return verdict.error

    async def _started(self, vocab_size: int) -> asyncio.subprocess.Process:
        if self._child is not None and self._child.returncode is None:
            return self._child
        if self._setup is None:
            vocabulary = await asyncio.to_thread(GrammarVocabulary.of, self._tokenizer, vocab_size)
            self._setup = frame(CheckSetup(vocabulary, self._config))
        self._child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            f"{__package__}.grammar_check_worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await _exchange(self._child, self._setup, _START_SECONDS) is None:
            raise RuntimeError("the process that compiles grammars does not start")
        return self._child

    async def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.communicate()


_REMEDY = "see docs/constrained-output.md for what is supported"


async def _exchange(child: asyncio.subprocess.Process, request: bytes, seconds: float) -> Verdict | None:
    """The child's answer; None if it ended, or did not answer in time."""
    assert child.stdin is not None and child.stdout is not None
    try:
        async with asyncio.timeout(seconds):
            child.stdin.write(request)
            await child.stdin.drain()
            (size,) = FRAME.unpack(await child.stdout.readexactly(FRAME.size))
            return msgspec.msgpack.decode(await child.stdout.readexactly(size), type=Verdict)
    except (TimeoutError, asyncio.IncompleteReadError, ConnectionError):
        return None
