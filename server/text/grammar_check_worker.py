"""Compiles clients' grammars in a process of its own: ``python -m sessile.server.text.grammar_check_worker``.

A grammar can make the compiler run for minutes, take all memory or overflow its stack. Here that ends this process
alone. On stdin comes a ``CheckSetup``, then each ``Grammar`` is answered by a ``Verdict`` on stdout.
"""

from __future__ import annotations

import resource
import sys
import threading
from typing import IO

import llguidance
import msgspec

from ...sessions.errors import RequestError
from ..engine.grammar import Grammar, GrammarKind
from .grammar_config import oversize
from .grammar_frames import CheckSetup, Verdict, frame, read_frame
from .guidance import guidance_text, guidance_tokenizer, parser_limits
from .schema_errors import explain, first_line, readable

STACK_BYTES = 4 * 2**20  # the engine compiles on a larger one: what fits here fits there
_MEMORY_BYTES = 4 * 2**30  # of addresses
_MOST_FORCED_BYTES = 256 * 2**10  # the engine works a forced text out in one go; in a turn, more would be a stall


class _LongestTokens:
    """Forced text in tokens. Any cut of it will do here; none at all, and a grammar that leaves one way to go on would
    seem to leave none."""

    tokenizer: llguidance.LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


class GrammarCheck:
    """Compiles grammars and says what is wrong with them."""

    def __init__(self, setup: CheckSetup) -> None:
        self._config = setup.config
        longest = _LongestTokens()
        self._tokenizer = longest.tokenizer = guidance_tokenizer(setup.vocabulary, longest)

    def check(self, grammar: Grammar) -> Verdict:
        """Compile ``grammar`` and take the first step with it."""
        too_large = oversize(grammar, self._config)
        if too_large is not None:
            return Verdict(too_large)
        try:
            message = self._refused(guidance_text(grammar))
        except RequestError as error:
            return Verdict(error.message)
        if message and grammar.kind is GrammarKind.JSON_SCHEMA:
            message = explain(grammar.text, message, self._refused_schema)
        return Verdict(first_line(message))

    def _refused_schema(self, schema: str) -> str:
        return self._refused(guidance_text(Grammar(GrammarKind.JSON_SCHEMA, schema)))

    def _refused(self, text: str) -> str:
        matcher = llguidance.LLMatcher(self._tokenizer, text, log_level=0, limits=parser_limits())
        if not matcher.is_error():
            matcher.compute_bitmask()
        if matcher.is_error():
            return readable(matcher.get_error())
        if len(matcher.compute_ff_bytes()) > _MOST_FORCED_BYTES:
            return f"its only beginning has more than {_MOST_FORCED_BYTES} bytes"
        return "no text satisfies it" if matcher.is_stopped() and not matcher.is_accepting() else ""


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer until the front closes ``requests``."""
    setup = read_frame(requests)
    if setup is None:
        return
    parts = msgspec.msgpack.decode(setup, type=CheckSetup)
    check = GrammarCheck(parts)
    decoder = msgspec.msgpack.Decoder(Grammar)
    answers.write(frame(Verdict()))  # ready
    answers.flush()
    while (request := read_frame(requests)) is not None:
        _allow_cpu_seconds(parts.config.compile_seconds)
        answers.write(frame(check.check(decoder.decode(request))))
        answers.flush()


def _allow_cpu_seconds(seconds: int) -> None:
    """The system ends this process when it has computed for so much longer; waiting for a busy machine is free."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(usage.ru_utime + usage.ru_stime) + 1 + seconds, hard))


def main() -> None:
    """Entry point of the child; the front alone starts it."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=serve, args=(sys.stdin.buffer, sys.stdout.buffer), daemon=True)
    worker.start()
    worker.join()


if __name__ == "__main__":
    main()
