"""Numbers that run: counters, budgets, costs, percentages."""

from __future__ import annotations

import re

from .spans import Span, both_at

NUMBER = re.compile(r"[-+]?\d+(?:[.,'  ]\d{3}(?!\d))*(?:[.,]\d+)?(?:\s?(?:%|‰|k|K|M)\b)?")
COUNTER_WORDS = re.compile(
    r"token|turn|step|iteration|round|attempt|message|request|budget|cost|spent|spend|remaining|left|"
    r"used|usage|quota|limit|count"
    r"|balance|credit|progress|elapsed|uptime|percent|context|window|queries|calls|retries|score|points|level"
    r"|schritt|runde|versuch|kosten|verbraucht|verbleibend|übrig|nachricht|anzahl|zug|guthaben"
    r"|tour|étape|coût|restant|utilisé|turno|paso|coste|costo|restante|usado|passo|custo"
    r"|轮|步|次|剩余|已用|消耗|预算|費用|残り|回|使用|ход|шаг|осталось|использовано|€|\$|£|¥|%",
    re.IGNORECASE,
)

GAUGE = re.compile(r"\[(?=[^\]]*[#=*█▓>-])[#=*█▓▒░>. -]{3,}\]|[█▓▒░▰▱■□●○]{3,}")
_WORDS_BEFORE, _WORDS_BEHIND = 64, 24


def counts(line: str, start: int, end: int) -> bool:
    """True when a word that says what is counted stands near the number at [start, end) of a line."""
    return bool(COUNTER_WORDS.search(line[max(0, start - _WORDS_BEFORE) : end + _WORDS_BEHIND]))


def numbers_at(was: str, now: str, position: int) -> tuple[Span, Span] | None:
    """Two plain numbers in the slot where the texts part, or None."""
    found = both_at(NUMBER, was, now, position)
    if found and not any(_inside_word(text, span) for text, span in ((was, found[0]), (now, found[1]))):
        return found
    return None


def _inside_word(text: str, span: Span) -> bool:
    before = text[span.start - 1 : span.start]
    return before.isalpha() or before in ("_", "#", "v")


def value_of(text: str) -> float | None:
    """The number in a text, thousands separators removed; None when there is none."""
    digits = re.sub(r"(?<=\d)[,'  ](?=\d{3}\b)", "", text)
    match = re.search(r"-?\d+(?:[.,]\d+)?", digits)
    return float(match.group().replace(",", ".")) if match else None
