"""The library face: rule and place of a miss between two requests."""

from __future__ import annotations

from typing import Any

import pytest

from sessile.prompt_lint import Severity, diagnose
from sessile.prompt_lint.errors import LintConfigError

RULES = "Follow every rule of the handbook. " * 200


def body(clock: str, *turns: str) -> dict[str, Any]:
    talk = [{"role": "user" if i % 2 == 0 else "assistant", "content": t} for i, t in enumerate(turns)]
    return {"model": "m", "messages": [{"role": "system", "content": f"{clock}\n{RULES}"}, *talk]}


def test_names_rule_place_and_loss() -> None:
    finding = diagnose(body("10:15:02", "a"), body("10:16:40", "a", "b", "c"))
    assert finding is not None
    assert (finding.rule, finding.severity, finding.pair) == ("PL101", Severity.ERROR, (0, 1))
    assert (finding.location.path, finding.location.char) == ("messages[0].content", 4)
    assert finding.cost.tokens > 1700


def test_nothing_broke() -> None:
    assert diagnose(body("noon", "a"), body("noon", "a", "b", "c")) is None
    assert diagnose(body("noon", "a", "b", "c"), body("noon", "a", "b", "other")) is None


def test_rendered_text_and_tokens() -> None:
    finding = diagnose({"prompt": f"Now 10:15:02\n{RULES}a"}, {"prompt": f"Now 10:16:40\n{RULES}ab"})
    assert finding is not None
    assert (finding.rule, finding.location.path) == ("PL101", "prompt")
    finding = diagnose({"prompt_token_ids": [1, 7, 8, 9]}, {"prompt_token_ids": [1, 1, 7, 8, 9, 10]})
    assert finding is not None
    assert finding.rule == "PL705"


def test_two_sessions() -> None:
    first, second = body("Customer: Ines", "hi"), body("Customer: Tom", "hi")
    finding = diagnose(first, second, same_session=False)
    assert finding is not None
    assert finding.rule == "PL301"


def test_keeps_its_arguments() -> None:
    first = body("10:15:02", "a")
    copy = {**first, "messages": [dict(m) for m in first["messages"]]}
    diagnose(first, body("10:16:40", "a", "b", "c"))
    assert first == copy


def test_wrong_arguments() -> None:
    with pytest.raises(LintConfigError, match="known: "):
        diagnose(body("x"), body("y"), "redis")
    with pytest.raises(ValueError, match="not a request body"):
        diagnose({"a": 1}, body("y"))


def test_cases_of_all_rules(cases: list[Any], pairs_of_case: Any) -> None:
    """At least 95% of the pairs that the cases expect are named with rule and place, one pair at a time."""
    outcomes = [outcome for case in cases for outcome in pairs_of_case(case)]
    assert len(outcomes) > 150
    assert sum(outcomes) >= 0.95 * len(outcomes)
