"""How much of recorded answers is guessed right, without a model: each answer is told token by token as it stands."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...messages import SubmitTurn
from ...sampling_params import SamplingParams
from ...sequence import Sequence
from ..drafter import DraftRequest, VerifiedDraft
from ..past_outputs import PastOutputs
from ..proposal import Proposer
from ..session_texts import SessionTexts
from ..speculator import Speculator
from ..step_cost import StepCost
from ..suffix_proposer import NgramProposer, SuffixProposer

MEMORY_BYTES = 64 * 2**20
# Relative seconds of a step by rows, of a model whose weights are read once for up to eight rows.
TYPICAL_COST = {1: 1.0, 8: 1.04, 16: 1.45, 32: 2.3, 64: 4.2}


class Answer(msgspec.Struct, frozen=True):
    """A recorded request: its prompt and what was answered."""

    prompt: list[int]
    output: list[int]


class _Request(msgspec.Struct, frozen=True):
    input: str
    output: str
    timestamp: float


@dataclass(slots=True)
class Acceptance:
    """Sums over answers."""

    steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    bytes_a_token: float = 0.0
    by_source: dict[str, tuple[int, int]] = field(default_factory=dict)  # drafted, accepted


def read_answers(folder: Path, encode: Callable[[str], list[int]], most: int) -> list[Answer]:
    """The requests of all files of ``folder``, in order of time."""
    decoder = msgspec.json.Decoder(_Request)
    requests = [decoder.decode(line) for path in sorted(folder.glob("*.jsonl")) for line in path.open("rb")]
    requests.sort(key=lambda request: request.timestamp)
    answers = (Answer(encode(request.input), encode(request.output)) for request in requests[:most])
    return [answer for answer in answers if answer.prompt and answer.output]


def proposer(name: str) -> tuple[Proposer, SessionTexts, PastOutputs]:
    """``ngram`` or ``suffix``, and its texts."""
    texts, outputs = SessionTexts(MEMORY_BYTES), PastOutputs(MEMORY_BYTES)
    return (NgramProposer(texts) if name == "ngram" else SuffixProposer(texts, outputs)), texts, outputs


def tell(answers: Iterable[Answer], name: str, longest: int) -> Acceptance:
    """Tell ``answers`` one after the other to a drafter that verifies up to ``longest`` tokens of each guess."""
    chosen, texts, outputs = proposer(name)
    drafter = Speculator(chosen, StepCost(64, TYPICAL_COST), longest)
    found = Acceptance()
    for number, answer in enumerate(answers):
        turn = SubmitTurn(turn_id=str(number), token_ids=answer.prompt, sampling=SamplingParams(temperature=0.0))
        sequence = Sequence(turn, len(answer.output) + longest + 1, 0.0, number)
        sequence.append(answer.output[0], None)  # the prompt's own step
        _tell_one(sequence, answer.output, drafter, found, longest)
        drafter.ended(sequence)
    kept = max(1, texts.num_tokens + outputs.num_tokens)
    found.bytes_a_token = (texts.num_bytes + outputs.num_bytes) / kept
    found.by_source = {c.source: (c.drafted, c.accepted) for c in drafter.counters() if c.drafted}
    return found


def _tell_one(sequence: Sequence, output: list[int], drafter: Speculator, found: Acceptance, longest: int) -> None:
    while sequence.num_output_tokens < len(output):
        told = sequence.num_output_tokens
        started = time.perf_counter()
        branches = drafter.draft([DraftRequest(sequence, longest)], 63)[0]
        found.seconds += time.perf_counter() - started
        right = [_num_right(branch, output[told:]) for branch in branches]
        accepted = max(right, default=0)
        best = right.index(accepted) if branches else 0
        for token in output[told : told + accepted + 1]:
            sequence.append(token, None)
        started = time.perf_counter()
        verified = [VerifiedDraft(b, accepted if i == best else 0) for i, b in enumerate(branches) if b]
        drafter.verified(sequence, verified)
        found.seconds += time.perf_counter() - started
        found.steps += 1
        found.tokens += sequence.num_output_tokens - told
        found.drafted += sum(map(len, branches))
        found.accepted += accepted


def _num_right(branch: tuple[int, ...], coming: list[int]) -> int:
    for index, (draft, token) in enumerate(zip(branch, coming, strict=False)):
        if draft != token:
            return index
    return min(len(branch), len(coming))
