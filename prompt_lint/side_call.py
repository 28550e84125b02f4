"""A call that carries a conversation's text without extending its prompt (PL406)."""

from __future__ import annotations

from collections.abc import Iterable

from .causes import Loss
from .divergence import first_divergence
from .findings import Severity
from .lineage import Entry
from .pairs import Judgement
from .prompt import Prompt, Section
from .rules.base import Verdict

_PIECE = 160
_LEAST_PIECE = 24
_LEAST_CHARS = 600


def side_call(prompt: Prompt, recent: Iterable[Entry], cached_chars: int) -> tuple[Entry, Judgement] | None:
    """The warm conversation that a request quotes, and the verdict; None when it quotes none or extends one."""
    if (
        prompt.request.shape.value in ("text", "tokens")
        or len(prompt.conversation) > 4
        or cached_chars > 0.5 * prompt.total_chars
    ):
        return None
    text = "\n".join(unit.text for unit in prompt.units if unit.section is not Section.TOOLS)
    best: tuple[int, Entry] | None = None
    for entry in recent:
        if len(entry.prompt.conversation) < 3 or _shares_units(prompt, entry):
            continue
        quoted = _quoted_chars(entry.prompt, text)
        if quoted >= _LEAST_CHARS and (best is None or quoted > best[0]):
            best = (quoted, entry)
    if best is None:
        return None
    judgement = _verdict(best[1].prompt, prompt, best[0], len(text))
    return (best[1], judgement) if judgement else None


def side_call_pair(earlier: Prompt, prompt: Prompt) -> Judgement | None:
    """The same for one earlier request: a verdict when the later one quotes it and shares no prefix with it."""
    if (
        prompt.request.shape.value in ("text", "tokens")
        or len(prompt.conversation) > 4
        or len(earlier.conversation) < 3
    ):
        return None
    digests = {unit.digest for unit in earlier.conversation}
    if any(unit.digest in digests for unit in prompt.conversation):
        return None
    text = "\n".join(unit.text for unit in prompt.units if unit.section is not Section.TOOLS)
    quoted = _quoted_chars(earlier, text)
    return _verdict(earlier, prompt, quoted, len(text)) if quoted >= _LEAST_CHARS else None


def _verdict(earlier: Prompt, prompt: Prompt, quoted: int, length: int) -> Judgement | None:
    if quoted < 0.4 * min(length, earlier.total_chars):
        return None
    place = first_divergence(earlier, prompt)
    if place is None or place.common_chars > 0.3 * earlier.total_chars:
        return None
    lost = prompt.measure(place.common_chars, min(earlier.total_chars, prompt.total_chars))
    verdict = Verdict(
        "PL406", "the call repeats a conversation's text and shares no prefix with it", cap=Severity.WARNING
    )
    return Judgement(verdict, place.path, place.char, Loss(lost, prompt.tokens))


def _shares_units(prompt: Prompt, entry: Entry) -> bool:
    shared = sum(entry.conversation_digests.get(unit.digest, 0) for unit in prompt.conversation)
    return shared > 0.2 * prompt.total_chars


def _quoted_chars(earlier: Prompt, text: str) -> int:
    quoted = 0
    for unit in earlier.conversation:
        prose = unit.text.strip()
        if len(prose) >= _LEAST_PIECE and prose[:_PIECE] in text:
            quoted += len(prose)
    return quoted
