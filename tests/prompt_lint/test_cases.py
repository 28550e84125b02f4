"""Every case exact in rule, place and severity; clean cases give nothing; every rule has cases."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sessile.prompt_lint.rules.catalogue import CATALOGUE


def test_trace_case(trace_case: Any, judge_case: Callable[[Any], list[str]]) -> None:
    assert judge_case(trace_case) == []


def test_code_case(code_case: Any, judge_case: Callable[[Any], list[str]]) -> None:
    assert judge_case(code_case) == []


def test_file_case(file_case: Any, judge_case: Callable[[Any], list[str]]) -> None:
    assert judge_case(file_case) == []


@pytest.mark.parametrize("rule", sorted(CATALOGUE))
def test_every_rule_has_cases(rule: str, cases: list[Any]) -> None:
    assert any(c.rule == rule and not c.is_clean for c in cases), f"{rule} has no case that it must find"
