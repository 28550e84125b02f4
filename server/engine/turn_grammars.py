"""The grammars of an engine's turns: compiled before a turn begins, followed by masks in each of its steps."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Rows
from concurrent.futures import Future
from typing import NoReturn

from ...sessions.errors import ModelError
from .grammar_compiler import GrammarCompiler, Vocabulary
from .grammar_masks import MaskThread, StepMasks
from .grammar_matcher import GrammarMatcher
from .sampler import SampleRow
from .sequence import Sequence, SequenceState

logger = logging.getLogger(__name__)


class TurnGrammars:
    """Owns the threads that compile and that make masks; neither exists before the first grammar.

    ``vocabulary`` None: there is no tokenizer, and turns with a grammar fail.
    """

    def __init__(self, vocabulary: Vocabulary | None, vocab_size: int) -> None:
        self._compiler = GrammarCompiler(vocabulary if vocabulary is not None else _no_vocabulary)
        self._masks = MaskThread(vocab_size)
        self._compiling: dict[Sequence, Future[GrammarMatcher]] = {}

    @property
    def num_compiling(self) -> int:
        """Turns that wait for their grammars."""
        return len(self._compiling)

    def compile(self, sequence: Sequence) -> None:
        """Begin to compile the grammar of a turn, which waits meanwhile."""
        grammar = sequence.turn.sampling.grammar
        assert grammar is not None
        sequence.state = SequenceState.PREPARING
        self._compiling[sequence] = self._compiler.start(grammar)

    def take_compiled(self) -> list[Sequence]:
        """The turns whose grammars are compiled, or could not be: then they have failed. Those that were ended
        meanwhile are left out."""
        done = [(sequence, future) for sequence, future in self._compiling.items() if future.done()]
        for sequence, future in done:
            del self._compiling[sequence]
            error = future.exception()
            if error is None:
                sequence.grammar = future.result()
            elif sequence.finish_reason is None:
                logger.error("a grammar could not be compiled", exc_info=error)
                sequence.fail(str(error))
        return [sequence for sequence, _ in done if sequence.state is SequenceState.PREPARING]

    def start_masks(self, rows: Rows[SampleRow]) -> Future[StepMasks] | None:
        """Begin to make the masks of a step; None where none of ``rows`` has a grammar."""
        return self._masks.start(rows)

    def close(self) -> None:
        """Let go of the threads."""
        self._compiler.close()
        self._masks.close()


def _no_vocabulary() -> NoReturn:
    raise ModelError("this engine has no tokenizer, which grammars need", field="grammar")
