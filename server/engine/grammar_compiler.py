"""Compiles grammars in the engine, beside its steps."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeAlias

from ...sessions.errors import RequestError
from ..text.schema_errors import readable
from .grammar import Grammar
from .grammar_matcher import GrammarMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Vocabulary: TypeAlias = "Callable[[], LLTokenizer]"
"""Makes the tokens' bytes ready for grammars; called once, by the first grammar."""

_STACK_BYTES = 32 * 2**20  # the front has compiled the same on a smaller one
_REMEMBERED = 128


class GrammarCompiler:
    """Alone owns the compiled grammars. The front has checked what comes here: compiling it is bounded."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()  # at their beginnings
        self._thread: ThreadPoolExecutor | None = None

    def start(self, grammar: Grammar) -> Future[GrammarMatcher]:
        """Begin to compile. The result is at the grammar's beginning; ``RequestError``: it cannot be used after all."""
        if self._thread is None:
            self._thread = _thread_with_stack(_STACK_BYTES)
        return self._thread.submit(self._compile, grammar)

    def close(self) -> None:
        """Let go of the thread."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def _compile(self, grammar: Grammar) -> GrammarMatcher:
        if grammar not in self._compiled:
            self._compiled[grammar] = self._new(grammar)
            if len(self._compiled) > _REMEMBERED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return GrammarMatcher(self._compiled[grammar].deep_copy())

    def _new(self, grammar: Grammar) -> LLMatcher:
        import llguidance

        from ..text.guidance import guidance_text, parser_limits

        if self._tokenizer is None:
            self._tokenizer = self._vocabulary()
        matcher = llguidance.LLMatcher(self._tokenizer, guidance_text(grammar), log_level=0, limits=parser_limits())
        if matcher.is_error():
            raise RequestError(f"the grammar cannot be used: {readable(matcher.get_error())}", field="grammar")
        return matcher


def _thread_with_stack(size: int) -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sessile-grammars")
    before = threading.stack_size(size)
    try:
        thread.submit(int).result()  # it is started by its first work
    finally:
        threading.stack_size(before)
    return thread
