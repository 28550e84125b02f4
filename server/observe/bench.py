"""What observing costs: ``python -m sessile.server.observe.bench``.

CPU seconds a turn: of the explaining thread, for conversations of several lengths (most turns only grow; one in ten
breaks at its first line), and of the loop, for all that the observatory notes. Compare with a turn's own CPU time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import msgspec

from ...prompt_lint.live import LiveDiagnosis
from ...prompt_lint.request import Request, shape_of
from ..engine.messages import (
    AdmittedTurn,
    FinishReason,
    MissedTokens,
    SubmitTurn,
    TokensBySource,
    TurnOutput,
    TurnUsage,
)
from ..engine.sampling_params import SamplingParams
from ..engine.turn_watch import TurnWatch
from .miss_explainer import KEPT_CHARS, KEPT_REQUESTS
from .observatory import Observatory

_WORDS = "the agent reads a file and runs its tests before it answers with what it found there "
_TURNS = 40
_TOKENS_A_TURN = 60


def explaining_ms(chars_a_turn: int) -> tuple[float, float]:
    """Milliseconds of CPU for a turn that only grows and for one that breaks, over a conversation of 40 turns."""
    diagnosis = LiveDiagnosis(kept_chars=KEPT_CHARS, kept_requests=KEPT_REQUESTS)
    spent: dict[bool, list[float]] = {True: [], False: []}
    for turn, sent in enumerate(_conversation(chars_a_turn)):
        started = time.thread_time()
        body = msgspec.json.decode(sent)
        shape = shape_of(body)
        assert shape is not None
        diagnosis.feed(Request(body, shape, session="s"))
        spent[_breaks(turn)].append(time.thread_time() - started)
    return tuple(1000 * sum(times) / len(times) for times in (spent[False], spent[True]))  # type: ignore[return-value]


def noting_us() -> float:
    """Microseconds of CPU that the loop spends on all the observatory's notes of a turn of 60 tokens."""
    observatory = Observatory()
    turns = 2000
    started = time.thread_time()
    for number in range(turns):
        _note_turn(observatory, str(number))
    spent = time.thread_time() - started
    observatory.close()
    return 1e6 * spent / turns


def main() -> int:
    """Print a table."""
    write = sys.stdout.write
    write("characters at the end | ms a turn that grows | ms a turn that breaks\n")
    for chars in (500, 2000, 8000):
        grows, breaks = explaining_ms(chars)
        write(f"{chars * _TURNS:21,} | {grows:20.2f} | {breaks:21.2f}\n")
    write(f"the loop's notes of a turn of {_TOKENS_A_TURN} tokens: {noting_us():.0f} us\n")
    return 0


def _breaks(turn: int) -> bool:
    return turn > 0 and turn % 10 == 0


def _conversation(chars_a_turn: int) -> Iterator[bytes]:
    text = _WORDS * (chars_a_turn // len(_WORDS) + 1)
    clock, talk = 0, []
    for turn in range(_TURNS):
        clock += _breaks(turn)
        talk.append({"role": "user", "content": f"{turn}. {text[:chars_a_turn]}"})
        system = {"role": "system", "content": f"It is 10:{clock:02d}:00.\n{text}"}
        yield msgspec.json.encode({"model": "m", "messages": [system, *talk]})
        talk.append({"role": "assistant", "content": f"Answer {turn}"})


def _note_turn(observatory: Observatory, turn_id: str) -> None:
    turn = SubmitTurn(turn_id=turn_id, token_ids=[1], sampling=SamplingParams())
    sources = TokensBySource(device=1000, computed=200)
    observatory.asked(turn, "s", "", dict)
    observatory.turn_started(turn)
    observatory.turn_admitted(
        AdmittedTurn(turn_id=turn_id, tokens_by_source=sources, reusable_tokens=1000, missed=MissedTokens())
    )
    watch = TurnWatch(time.monotonic)
    for token in range(_TOKENS_A_TURN):
        seconds, count, first = watch.absorb(TurnOutput(turn_id=turn_id, token_ids=[token]))
        observatory.tokens_came(turn, seconds, count, first=first)
    usage = TurnUsage(prompt_tokens=1200, completion_tokens=_TOKENS_A_TURN, tokens_by_source=sources)
    watch.absorb(TurnOutput(turn_id=turn_id, token_ids=[], finish_reason=FinishReason.STOP, usage=usage))
    observatory.turn_ended(turn, watch)


if __name__ == "__main__":
    sys.exit(main())
