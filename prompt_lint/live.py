"""The library face for a server: requests as they come, and what broke between each and the nearest one before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .breaks import scope_between
from .causes import Causes, Loss
from .findings import Finding
from .fleet_pass import fleet_break
from .lineage import Entry, LineageIndex, Match
from .pairs import Judgement, PairJudge
from .prices import DEFAULT_PRICES
from .profiles import PROFILES, CacheProfile
from .prompt import Prompt
from .rendering import ChatTemplate
from .request import Request
from .severity import Thresholds
from .side_call import side_call


@dataclass(frozen=True, slots=True)
class PromptReading:
    """How a server reads prompts: its chat template, the text of token ids (None: unknown), and its start token."""

    template: ChatTemplate | None = None
    decode: Callable[[list[int]], str | None] = lambda ids: None
    bos_token_id: int | None = None


class LiveDiagnosis:
    """Remembers the latest requests, in bounded memory, and explains each new one against them. For one thread.

    ``kept_chars`` and ``kept_requests`` bound what is remembered.
    """

    def __init__(
        self,
        *,
        kept_chars: int,
        kept_requests: int,
        profile: str = "sessile",
        reading: PromptReading | None = None,
    ) -> None:
        reading = reading if reading is not None else PromptReading()
        self._profile: CacheProfile = PROFILES[profile]
        self._index = LineageIndex(kept_chars=kept_chars, kept_entries=kept_requests)
        self._judge = PairJudge(reading.template, reading.bos_token_id, reading.decode)
        self._count = 0

    def feed(self, request: Request) -> Finding | None:
        """What broke before ``request``, if anything did; then remember it. Sets the request's index."""
        request.index = self._count
        self._count += 1
        prompt = Prompt(request)
        match = self._index.find(prompt)
        found = (
            self._side_call(prompt, match) or self._against_parent(prompt, match) or self._against_fleet(prompt, match)
        )
        parent = match.parent if found is None or found[1].verdict.rule != "PL406" else None
        self._index.add(prompt, parent)
        return None if found is None else _finding(found[0], prompt, found[1])

    @property
    def kept_chars(self) -> int:
        """Characters of the requests that are remembered."""
        return self._index.kept_chars

    def _side_call(self, prompt: Prompt, match: Match) -> tuple[Entry, Judgement] | None:
        return side_call(prompt, self._index.recent(prompt.request.session), match.cached_chars)

    def _against_parent(self, prompt: Prompt, match: Match) -> tuple[Entry, Judgement] | None:
        parent = match.parent
        if parent is None:
            return None
        judged = self._judge.judge(parent.prompt, prompt, self._profile, scope_between(parent.prompt, prompt))
        return None if judged is None else (parent, judged)

    def _against_fleet(self, prompt: Prompt, match: Match) -> tuple[Entry, Judgement] | None:
        return None if match.parent is not None else fleet_break(prompt, self._profile, match, self._judge)


def _finding(entry: Entry, prompt: Prompt, judged: Judgement) -> Finding | None:
    causes = Causes(Thresholds(), DEFAULT_PRICES, None, tiny_tokens=0)
    pair = (entry.prompt.request.index, prompt.request.index)
    loss = Loss(judged.loss.tokens, judged.loss.prompt_tokens)
    causes.add(judged.verdict, prompt, pair, judged.path, judged.char, loss, entry.lineage.number, cap=judged.cap)
    return next(iter(causes.findings()), None)
